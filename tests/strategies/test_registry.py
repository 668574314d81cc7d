"""Strategies by name, and one's own among them."""

from __future__ import annotations

import pytest

from helpers import facts_for
from marslm.errors import InputError
from marslm.strategies.autoregressive import Autoregressive
from marslm.strategies.base import EngineFacts
from marslm.strategies.registry import (
    check_strategy,
    create_strategy,
    exact_strategies,
    register_strategy,
    strategy_names,
)

FACTS = facts_for(9)
BUILT_IN = [
    *("ar", "mars", "lossless", "lossless-chain", "lossless-tree"),
    *("jacobi", "prompt_lookup", "draft_model", "draft_model-mars"),
]


def test_the_built_in_strategies() -> None:
    assert sorted(strategy_names()) == sorted([*BUILT_IN, "block_diffusion", "medusa"])
    assert set(BUILT_IN) - set(exact_strategies()) == {"mars", "draft_model-mars"}
    for name in BUILT_IN:
        if not name.startswith("draft_model"):  # they build a decoder
            assert create_strategy(name, FACTS).name == name


def test_a_strategy_that_a_model_was_not_trained_for_is_refused() -> None:
    with pytest.raises(InputError, match="was not trained to fill blocks in any order: train one"):
        create_strategy("block_diffusion", FACTS)


@pytest.mark.parametrize("use", [check_strategy, lambda name: create_strategy(name, FACTS)])
def test_an_unknown_name_lists_the_known_ones(use: object) -> None:
    with pytest.raises(InputError, match=r"'magic': choose from ar, mars, lossless,"):
        use("magic")


def test_ones_own_strategy_is_given_the_engines_facts() -> None:
    given = []

    def factory(facts: EngineFacts) -> Autoregressive:
        given.append(facts)
        return Autoregressive(facts)

    register_strategy("mine", factory)
    assert strategy_names()[-1] == "mine"
    check_strategy("mine")
    assert isinstance(create_strategy("mine", FACTS), Autoregressive)
    assert given == [FACTS]

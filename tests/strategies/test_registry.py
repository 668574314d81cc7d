"""Strategies by name, and one's own among them."""

from __future__ import annotations

import pytest

from marslm.errors import InputError
from marslm.strategies import registry
from marslm.strategies.autoregressive import Autoregressive
from marslm.strategies.registry import (
    check_strategy,
    create_strategy,
    register_strategy,
    strategy_names,
)


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))


def test_the_built_in_strategies() -> None:
    assert strategy_names() == ["ar", "mars", "lossless"]
    for name in strategy_names():
        assert create_strategy(name, 9).name == name
    assert [create_strategy(name, 9).exact for name in strategy_names()] == [True, False, True]


@pytest.mark.parametrize("use", [check_strategy, lambda name: create_strategy(name, 9)])
def test_an_unknown_name_lists_the_known_ones(use: object) -> None:
    with pytest.raises(InputError, match=r"'magic': choose from ar, mars, lossless$"):
        use("magic")


def test_ones_own_strategy_is_given_the_mask_token() -> None:
    given = []

    def factory(mask_token_id: int) -> Autoregressive:
        given.append(mask_token_id)
        return Autoregressive()

    register_strategy("mine", factory)
    assert strategy_names()[-1] == "mine"
    check_strategy("mine")
    assert isinstance(create_strategy("mine", 77), Autoregressive)
    assert given == [77]

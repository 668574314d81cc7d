"""`lossless` == `ar`, token for token, greedy and sampled, whatever was drafted."""

from __future__ import annotations

import random
from collections.abc import Sequence as ListOf
from dataclasses import replace
from functools import partial

import pytest
from torch import Tensor

from helpers import build_model, letters, random_prompts, solo
from marslm.engine.engine import Engine
from marslm.models.loading import MarsModel
from marslm.runtime.costs import StepCosts
from marslm.runtime.params import SamplingParams
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.runtime.work import Work
from marslm.strategies import registry
from marslm.strategies.acceptance import from_mask
from marslm.strategies.base import EngineFacts, StepSettings
from marslm.strategies.lossless import Lossless, LosslessChain

SAMPLING = [(0.0, 0), (0.7, 1), (1.3, 2**40 + 3)]


class Coached(LosslessChain):
    """Lossless with drafts that a coach whispers: of any length, right or wrong at random."""

    def __init__(self, facts: EngineFacts, truth: list[int], seed: int, wrong: int = 97) -> None:
        super().__init__(facts)
        self._truth = truth
        self._wrong = wrong
        self._random = random.Random(seed)

    def propose(
        self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
    ) -> ListOf[Window]:
        for sequence in sequences:
            written = len(sequence.tokens) - sequence.prompt_length
            truth = self._truth[written : written + self._random.randrange(6)]
            drafts = [d if self._random.random() < 0.8 else self._wrong for d in truth]
            origins = [from_mask(index + 1, 1.0) for index in range(len(drafts))]
            self._state(sequence).read.take(drafts, origins)
        return super().propose(sequences, settings)


@pytest.mark.parametrize(("temperature", "seed"), SAMPLING)
def test_any_drafts_give_the_one_token_answer(
    random_model: MarsModel, temperature: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = set()
    for number, prompt in enumerate(random_prompts([1, 6, 15, 40], seed=seed)):
        params = SamplingParams(
            strategy="ar", max_new_tokens=30, temperature=temperature, seed=seed, ignore_eos=True
        )
        truth = solo(random_model, prompt, params)
        coach = partial(Coached, truth=truth.ids, seed=number)
        monkeypatch.setitem(registry._FACTORIES, "lossless", coach)

        answer = solo(
            random_model,
            prompt,
            SamplingParams(
                strategy="lossless",
                max_new_tokens=30,
                temperature=temperature,
                seed=seed,
                ignore_eos=True,
                block=1 + number,
            ),
        )

        assert (answer.ids, answer.text) == (truth.ids, truth.text)
        assert sum(answer.runs) == len(answer.ids)
        lengths |= set(answer.runs)
    assert lengths >= {1, 2, 3, 4}


def test_only_verified_tokens_end_an_answer(
    random_model: MarsModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULTS 3: the coach lies with end tokens, and whispers on behind real ones and stops."""
    end = random_model.tokenizer.eos_token_id
    reasons = []
    for number, prompt in enumerate(random_prompts([2, 5, 11, 3, 8, 20], seed=6)):
        unending = SamplingParams(strategy="ar", max_new_tokens=40, ignore_eos=True)
        truth = solo(random_model, prompt, unending)
        coach = partial(Coached, truth=truth.ids, seed=number, wrong=end)
        monkeypatch.setitem(registry._FACTORIES, "lossless", coach)
        stop = (truth.text[5:7],) if number % 2 else ()
        plain, lossless = (
            solo(random_model, prompt, SamplingParams(strategy=name, max_new_tokens=30, stop=stop))
            for name in ("ar", "lossless")
        )
        assert (lossless.ids, lossless.text, lossless.finish_reason) == (
            plain.ids,
            plain.text,
            plain.finish_reason,
        )
        reasons.append(plain.finish_reason)
    assert "stop" in reasons


@pytest.mark.parametrize("strategy", ["lossless", "lossless-chain", "lossless-tree"])
@pytest.mark.parametrize("block", [1, 2, 5])
@pytest.mark.parametrize(("temperature", "seed"), SAMPLING)
def test_a_trained_models_own_drafts_give_the_one_token_answer(
    fitted_model: MarsModel, strategy: str, temperature: float, seed: int, block: int
) -> None:
    generator = random.Random(seed)
    runs = []
    for length in (2, 9, 30):
        prompt = letters(length, generator)
        plain, lossless = (
            solo(
                fitted_model,
                prompt,
                SamplingParams(
                    strategy=name,
                    max_new_tokens=48,
                    temperature=temperature,
                    seed=seed,
                    block=block,
                    ignore_eos=True,
                ),
            )
            for name in ("ar", strategy)
        )
        assert lossless.ids == plain.ids
        assert lossless.text == plain.text
        runs += lossless.runs
    if block == 1:
        assert set(runs) == {1}
    else:
        # Drafts were accepted, and rejected or missing too, or else nothing was put to the test.
        assert sum(runs) > len(runs)
        assert min(runs) == 1
        assert max(runs) <= block


@pytest.mark.parametrize("seed", range(3))
def test_a_random_models_drafts_are_mostly_wrong_and_do_no_harm(seed: int) -> None:
    model = build_model("qwen3", seed=seed)
    for prompt in random_prompts([3, 18], seed=seed):
        params = {"max_new_tokens": 24, "ignore_eos": True}
        plain = solo(model, prompt, SamplingParams(strategy="ar", **params))
        assert solo(model, prompt, SamplingParams(strategy="lossless", **params)).ids == plain.ids


def test_lossless_takes_fewer_forwards_than_ar_on_a_trained_model(fitted_model: MarsModel) -> None:
    params = SamplingParams(strategy="lossless", max_new_tokens=60, ignore_eos=True)
    prompts = [letters(length, random.Random(length)) for length in (4, 7, 8, 12, 25)]
    forwards = sum(len(solo(fitted_model, prompt, params).runs) for prompt in prompts)
    assert forwards < 0.97 * 60 * len(prompts)


class MasksAlone(Lossless):
    """Lossless that does not look at the text."""

    looks_up = False


@pytest.mark.parametrize(("temperature", "seed"), SAMPLING[:2])
def test_a_text_that_repeats_itself_is_looked_up(
    fitted_model: MarsModel, temperature: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry._FACTORIES, "masks-alone", MasksAlone)
    forwards = {"ar": 0, "masks-alone": 0, "lossless": 0}
    for number in range(3):
        prompt = letters(60, random.Random(number), jump=0)
        params = SamplingParams(
            max_new_tokens=48, ignore_eos=True, temperature=temperature, seed=seed
        )
        found = {
            name: solo(fitted_model, prompt, replace(params, strategy=name)) for name in forwards
        }
        assert found["lossless"].ids == found["ar"].ids
        for name, answer in found.items():
            forwards[name] += len(answer.runs)
    assert forwards["lossless"] < 0.6 * forwards["masks-alone"] <= 0.6 * forwards["ar"]


class Whims(StepCosts):
    """Costs that make no sense, so that every shape is chosen at some time."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def seconds(self, rows: int, masks: bool) -> float:
        return 1 + self._random.choice([0, 0, 0.02, 0.3]) * rows * self._random.random()


@pytest.mark.parametrize("seed", range(2))
def test_no_choice_of_windows_changes_an_answer(fitted_model: MarsModel, seed: int) -> None:
    """Eight ragged requests over four slots, prompts in pieces, greedy and sampled, one aborted."""
    engine = Engine(fitted_model, slots=4, token_budget=9, pack=False, costs=Whims(seed))
    shapes: set[tuple[int, bool]] = set()
    forward = engine.runner.forward_with_hidden

    def spy(works: list[Work]) -> list[tuple[Tensor, Tensor]]:
        shapes.update((len(w.window), w.window.parents is not None) for w in works)
        return forward(works)

    engine.runner.forward_with_hidden = spy
    generator, requests = random.Random(seed), []
    for index, length in enumerate((3, 30, 1, 14, 8, 22, 5, 11)):
        params = SamplingParams(
            strategy=("lossless", "lossless-tree", "lossless-chain", "ar")[index % 4],
            max_new_tokens=26,
            temperature=(0.0, 0.9)[index % 3 == 1],
            seed=index,
            ignore_eos=True,
        )
        requests.append(engine.add(letters(length, generator), params))
    for step, _ in enumerate(iter(engine.step, [])):
        if step == 9:
            engine.abort(requests[1])
    for request in requests:
        prompt = request.tokens[: request.prompt_length]
        plain = solo(fitted_model, prompt, replace(request.params, strategy="ar"))
        written = request.transcript.ids
        assert written == plain.ids[: len(written)]
        assert len(written) == 26 or request is requests[1]
    assert {(0, False), (3, False)} < shapes
    assert any(tree for _, tree in shapes)

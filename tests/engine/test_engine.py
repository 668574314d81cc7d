"""The engine's own promises: ends, limits, slots, events and counts."""

from __future__ import annotations

import random
from collections.abc import Sequence as ListOf
from dataclasses import replace

import pytest
import torch

from helpers import build_model, letters, random_prompts, solo
from marslm.engine.admission import DEFAULT_BLOCK, trained_block
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.models.record import MarsRecord, marks_of
from marslm.runtime.params import SamplingParams
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.runtime.work import Work
from marslm.strategies.base import DraftSide, EngineFacts, Outcome, StepSettings, Strategy
from marslm.strategies.registry import register_strategy


@pytest.fixture(scope="module")
def small() -> MarsModel:
    return build_model("llama", hidden_size=16, layers=1, context=64)


class Scripted(Strategy):
    """Accepts the runs of tokens that a test wrote down."""

    name = "scripted"
    exact = False
    runs: ListOf[list[int]] = ()

    def __init__(self, facts: EngineFacts) -> None:
        self._mask_token_id = facts.model.mask_token_id

    def propose(
        self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
    ) -> ListOf[Window]:
        return [Window([self._mask_token_id] * 2) for _ in sequences]

    def accept(
        self,
        sequence: Sequence,
        window: Window,
        logits: torch.Tensor,
        settings: StepSettings,
    ) -> Outcome:
        assert len(logits) == 1 + len(window)
        return Outcome(list(self.runs[len(sequence.runs)]))


@pytest.fixture
def scripted() -> type[Scripted]:
    script = type("Script", (Scripted,), {})
    register_strategy("scripted", script)
    return script


def run_script(model: MarsModel, **params: object) -> tuple[Sequence, list[tuple[list[int], str]]]:
    engine = Engine(model, slots=1, pack=False)
    sequence = engine.add([1, 2], SamplingParams(strategy="scripted", **params))
    return sequence, [(event.tokens, event.text) for event in engine.run()]


def ids(text: str) -> list[int]:
    return [ord(letter) - ord("!") for letter in text]


@pytest.mark.parametrize("offset", range(4))
@pytest.mark.parametrize("kind", ["end token", "stop string", "length"])
def test_what_follows_the_end_of_an_accepted_run_is_gone_everywhere(
    small: MarsModel, scripted: type[Scripted], kind: str, offset: int
) -> None:
    """FAULTS 1: text, ids, events, counts and the request's tokens agree on where it ended."""
    second = ids("defg")
    params: dict[str, object] = {}
    shown = "abc" + "defg"[:offset]
    if kind == "end token":
        second[offset] = small.tokenizer.eos_token_id
    elif kind == "stop string":
        params["stop"] = ("defg"[offset],)
    else:
        params["max_new_tokens"] = 3 + offset + 1
        shown += "defg"[offset]
    scripted.runs = [ids("abc"), second, ids("hij")]

    sequence, events = run_script(small, **params)

    written = ids("abc") + second[: offset + 1]
    assert sequence.transcript.ids == written
    assert sequence.tokens == [1, 2, *written]
    assert sequence.runs == [3, offset + 1]
    assert sequence.transcript.text == shown
    assert [tokens for tokens, _ in events] == [ids("abc"), second[: offset + 1]]
    assert "".join(text for _, text in events) == shown
    assert sequence.transcript.finish_reason == ("length" if kind == "length" else "stop")


def test_the_stream_holds_a_possible_stop_string_back_over_steps(
    small: MarsModel, scripted: type[Scripted]
) -> None:
    scripted.runs = [ids("ab#"), ids("!c#"), ids("#"), ids("#d")]
    _, events = run_script(small, stop=("###",))
    assert [text for _, text in events] == ["ab", "#!c", "", ""]
    assert events[-1][0] == ids("#")


def test_rows_of_decoding_are_counted_and_those_of_the_prompt_are_not(
    small: MarsModel, scripted: type[Scripted]
) -> None:
    """Two masks a step; after the prompt a step feeds the run before it and its masks."""
    scripted.runs = [ids("abc"), ids("d"), ids("ef")]
    sequence, _ = run_script(small, max_new_tokens=6)
    assert sequence.runs == [3, 1, 2]
    assert sequence.decode_rows == (3 + 2) + (1 + 2)


def test_one_token_decoding_feeds_one_row_a_step(small: MarsModel) -> None:
    params = SamplingParams(strategy="ar", max_new_tokens=9, ignore_eos=True)
    answer = solo(small, [4, 5, 6], params)
    assert (answer.runs, answer.decode_rows) == ([1] * 9, 8)


def test_ones_own_strategy_runs_beside_the_others(
    small: MarsModel, scripted: type[Scripted]
) -> None:
    scripted.runs = [ids("abc"), ids("def")]
    engine = Engine(small, slots=2, pack=False)
    mine = engine.add([1], SamplingParams(strategy="scripted", max_new_tokens=6))
    plain = engine.add([9, 8], SamplingParams(strategy="ar", max_new_tokens=6))
    for _ in engine.run():
        pass
    assert mine.transcript.text == "abcdef"
    assert (
        plain.transcript.ids
        == solo(small, [9, 8], SamplingParams(strategy="ar", max_new_tokens=6)).ids
    )


def test_a_strategy_never_sees_what_another_one_remembers(
    small: MarsModel, scripted: type[Scripted]
) -> None:
    scripted.runs = [[40]] * 9
    seen = []

    class Remembering(scripted):
        def propose(
            self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
        ) -> ListOf[Window]:
            seen.append(sequences[0].state)
            sequences[0].state = "note"
            return [Window()]

    for name in ("one", "other"):
        register_strategy(name, Remembering)
    engine = Engine(small, slots=1, pack=False)
    engine.add([1], SamplingParams(max_new_tokens=9))
    for name in ("one", "one", "other", "other", "one"):
        engine.speed.strategy = name
        engine.step()
    assert seen == [None, "note", None, "note", None]


def test_a_strategy_is_asked_once_a_step_and_told_when_a_request_leaves_it(
    small: MarsModel, scripted: type[Scripted]
) -> None:
    """One request ends, one is aborted, and one goes on with another strategy."""
    scripted.runs = [[40]] * 9
    asked, released = [], []

    class Holding(scripted):
        def propose(
            self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
        ) -> ListOf[Window]:
            asked.append([sequence.number for sequence in sequences])
            return super().propose(sequences, settings)

        def release(self, sequence: Sequence) -> None:
            released.append(sequence.number)

    register_strategy("holding", Holding)
    engine = Engine(small, slots=4, pack=False)
    engine.add([1], SamplingParams(strategy="ar", max_new_tokens=4))
    engine.add([1], SamplingParams(strategy="holding", max_new_tokens=2))
    third = engine.add([1], SamplingParams(strategy="holding", max_new_tokens=9))
    engine.speed.strategy = "holding"
    engine.add([1], SamplingParams(max_new_tokens=4))
    engine.step()
    assert (asked, released) == ([[1, 2, 3]], [])
    engine.step()
    assert (asked[1:], released) == ([[1, 2, 3]], [1])
    engine.speed.strategy = "ar"
    engine.step()
    assert (asked[2:], released) == ([[2]], [1, 3])
    engine.abort(third)
    assert released == [1, 3, 2]
    for _ in engine.run():
        pass
    assert released == [1, 3, 2]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt is empty: give at least one token"),
        ([1] * 20, "has 20 tokens, .* limit of 20; shorten it or raise the limit .*context is 64"),
        ([1, 288], "token ids outside 0..287"),
        ([-1], "token ids outside 0..287"),
    ],
)
def test_a_prompt_that_cannot_be_answered(
    small: MarsModel, prompt: list[int], message: str
) -> None:
    engine = Engine(small, max_length=20, pack=False)
    with pytest.raises(InputError, match=message):
        engine.add(prompt)
    assert not engine.busy


def test_an_unknown_strategy_is_refused_when_a_request_is_added(small: MarsModel) -> None:
    engine = Engine(small, pack=False)
    with pytest.raises(InputError, match="unknown strategy 'magic'"):
        engine.add([1], SamplingParams(strategy="magic"))
    assert not engine.busy


@pytest.mark.parametrize(
    "options", [{"slots": 0}, {"token_budget": 0}, {"max_length": 0}, {"max_length": -5}]
)
def test_an_engine_that_could_never_answer_is_refused(
    small: MarsModel, options: dict[str, int]
) -> None:
    """Without a slot, a token a step or room for one, requests would wait forever."""
    [name] = options
    with pytest.raises(InputError, match=name):
        Engine(small, pack=False, **options)


@pytest.mark.parametrize("strategy", ["ar", "mars", "lossless"])
@pytest.mark.parametrize("room", [1, 2, 3, 7])
def test_an_answer_fills_the_limit_to_the_last_token(
    fitted_model: MarsModel, strategy: str, room: int
) -> None:
    """Windows are cut at the limit, and cutting them changes no token."""
    prompt = letters(9, random.Random(0))
    params = SamplingParams(strategy=strategy, tau=0.3, block=6, ignore_eos=True)
    engine = Engine(fitted_model, slots=1, max_length=len(prompt) + room, pack=False)
    sequence = engine.add(prompt, params)
    for _ in engine.run():
        pass
    assert sequence.transcript.finish_reason == "length"
    assert sequence.transcript.ids == solo(fitted_model, prompt, params).ids[:room]


def test_the_limit_is_at_most_the_models_context(small: MarsModel) -> None:
    assert Engine(small, max_length=1000, pack=False).max_length == 64
    assert Engine(small, pack=False).max_length == 64


def test_an_idle_engine_steps_to_nothing(small: MarsModel) -> None:
    engine = Engine(small, pack=False)
    assert not engine.busy
    assert list(engine.run()) == []
    assert engine.step() == []


def test_aborting_ends_a_request_once(small: MarsModel) -> None:
    engine = Engine(small, slots=1, pack=False)
    params = SamplingParams(strategy="ar", max_new_tokens=3, ignore_eos=True)
    running, waiting, last = (engine.add([n + 1], params) for n in range(3))
    engine.step()
    for sequence in (running, waiting):
        engine.abort(sequence)
        engine.abort(sequence)
        assert sequence.transcript.finish_reason == "abort"
        assert sequence.slot is None
    for _ in engine.run():
        pass
    assert (len(running.transcript.ids), len(waiting.transcript.ids)) == (1, 0)
    assert last.transcript.finish_reason == "length"
    engine.abort(last)
    assert last.transcript.finish_reason == "length"


def test_requests_that_come_while_others_run_are_served(small: MarsModel) -> None:
    engine = Engine(small, slots=2, pack=False)
    params = SamplingParams(strategy="ar", max_new_tokens=4, ignore_eos=True)
    engine.add([1], params)
    late: list[Sequence] = []
    for event in engine.run():
        if len(late) < 3:
            late.append(engine.add([*event.sequence.tokens], params))
    assert [len(sequence.transcript.ids) for sequence in late] == [4, 4, 4]


def test_no_slot_leaks(small: MarsModel) -> None:
    """Ten thousand random operations; then as many requests run at once as there are slots.

    The scheduler itself checks, whenever a request leaves, that every slot is free or held by one.
    """
    generator = random.Random(0)
    slots = 4
    engine = Engine(small, slots=slots, token_budget=11, pack=False)
    alive: list[Sequence] = []
    ended: list[Sequence] = []
    for _ in range(10_000):
        action = generator.random()
        if action < 0.35:
            [prompt] = random_prompts([generator.randrange(1, 12)], seed=generator.randrange(99))
            params = SamplingParams(
                strategy=generator.choice(["ar", "mars", "lossless"]),
                tau=0.05,
                max_new_tokens=generator.randrange(1, 9),
                temperature=generator.choice([0.0, 1.0]),
            )
            alive.append(engine.add(prompt, params))
        elif action < 0.7 and alive:
            engine.abort(generator.choice(alive[-8:]))
        elif engine.busy:
            engine.step()
        held = [sequence.slot for sequence in alive if sequence.slot is not None]
        assert len(held) == len(set(held)) <= slots
        assert all(sequence.slot is None for sequence in alive if sequence.finished)
        ended += [sequence for sequence in alive if sequence.finished]
        alive = [sequence for sequence in alive if not sequence.finished]
    for _ in engine.run():
        pass
    assert all(sequence.finished for sequence in alive)
    reasons = {sequence.transcript.finish_reason for sequence in [*ended, *alive]}
    assert reasons == {"stop", "length", "abort"}

    again = [engine.add([n + 1], SamplingParams(max_new_tokens=5)) for n in range(slots)]
    engine.step()
    assert sorted(sequence.slot for sequence in again if sequence.slot is not None) == [0, 1, 2, 3]


def test_a_long_prompt_never_stalls_those_that_decode(small: MarsModel) -> None:
    """The gap between two tokens is one step, whose rows the token budget bounds."""
    engine = Engine(small, slots=4, token_budget=8, pack=False)
    params = SamplingParams(strategy="ar", max_new_tokens=16, ignore_eos=True)
    decoding = [engine.add([n], params) for n in range(3)]
    engine.step()
    reader = engine.add(random_prompts([45])[0], params)
    fed: list[int] = []
    forward = engine.runner.forward_with_hidden

    def spy(works: list[Work]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        fed.append(sum(len(work.tokens) for work in works))
        return forward(works)

    engine.runner.forward_with_hidden = spy
    while not reader.runs:
        events = engine.step()
        assert {id(event.sequence) for event in events} >= {id(each) for each in decoding}
    assert max(fed) <= 8
    assert len(fed) == 9  # 45 tokens, five a step beside three decoding requests


def test_the_block_is_the_trained_one_unless_a_request_says_otherwise(
    fitted_model: MarsModel,
) -> None:
    assert trained_block(fitted_model) == DEFAULT_BLOCK == 4
    prompt = letters(6, random.Random(0))
    for block in (None, 2, 7):
        params = SamplingParams(
            strategy="mars", tau=1e-9, block=block, max_new_tokens=28, ignore_eos=True
        )
        assert set(solo(fitted_model, prompt, params).runs) == {block or 4}


@pytest.mark.parametrize("strategy", ["mars", "lossless", "lossless-chain", "lossless-tree"])
def test_a_block_beyond_the_trained_one_is_refused(fitted_draft: MarsModel, strategy: str) -> None:
    engine = Engine(fitted_draft, slots=1, pack=False)
    engine.add([5, 6], SamplingParams(strategy=strategy, block=4))
    with pytest.raises(InputError, match=r"block 5 is beyond the 4 that .* was trained for"):
        engine.add([5, 6], SamplingParams(strategy=strategy, block=5))
    engine.add([5, 6], SamplingParams(strategy="jacobi", block=9))  # no mask is read


def trained(model: MarsModel, **form: str) -> MarsModel:
    """Return the model with a record that says B = 4."""
    marks = marks_of(model.network, model.tokenizer)
    return replace(model, record=MarsRecord("full", model.mask_token_id, 4, marks, **form))


def test_a_judge_that_reads_its_own_masks_takes_no_block_beyond_the_trained_one(
    small: MarsModel,
) -> None:
    model = trained(small)
    engine = Engine(model, slots=1, pack=False, draft=DraftSide(model))
    engine.add([5, 6], SamplingParams(strategy="draft_model-mars", block=4))
    with pytest.raises(InputError, match=r"block 5 is beyond the 4 that .* was trained for"):
        engine.add([5, 6], SamplingParams(strategy="draft_model-mars", block=5))
    engine.add([5, 6], SamplingParams(strategy="draft_model", block=9))  # no mask is read


def test_where_masks_predict_their_own_place_mars_refuses_logprobs(small: MarsModel) -> None:
    """Token i is then drawn from row i + 1, and what would be listed is row i's."""
    params = SamplingParams(strategy="mars", logprobs=1)
    Engine(trained(small), slots=1, pack=False).add([5, 6], params)
    with pytest.raises(InputError, match="strategy mars cannot honour logprobs"):
        Engine(trained(small, alignment="own"), slots=1, pack=False).add([5, 6], params)


@pytest.mark.parametrize("block", [9, "full"])
def test_a_request_whose_block_the_new_strategy_cannot_take_goes_on_as_ar(
    small: MarsModel, block: int | str
) -> None:
    engine = Engine(trained(small), slots=1, pack=False)
    engine.speed.strategy, engine.speed.tau = "jacobi", 1e-9
    params = SamplingParams(block=block, max_new_tokens=12, ignore_eos=True)
    sequence = engine.add([5, 6], params)
    engine.speed.strategy = "mars"
    for _ in engine.run():
        pass
    assert sequence.runs == [1] * 12

"""One request's tokens, cursor and counters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from marslm.models.tiny import build_tokenizer
from marslm.runtime.params import SamplingParams
from marslm.runtime.sequence import Sequence
from marslm.runtime.stopping import Transcript

TOKENIZER = build_tokenizer()
END = TOKENIZER.eos_token_id


def start(prompt: list[int], **params: object) -> Sequence:
    settings = SamplingParams(**params)
    return Sequence(0, prompt, settings, Transcript(TOKENIZER, settings, frozenset({END})))


def test_a_prompt_is_pending_tokens() -> None:
    sequence = start([1, 2, 3])
    assert sequence.pending == [1, 2, 3]
    sequence.advance(2)
    assert sequence.pending == [3]
    sequence.commit([7, 8])
    sequence.advance(1)
    assert sequence.pending == [7, 8]
    assert sequence.tokens == [1, 2, 3, 7, 8]


def test_what_follows_the_end_is_neither_kept_nor_counted() -> None:
    sequence = start([1])
    assert sequence.commit([7, END, 8, 9]) == [7, END]
    assert sequence.tokens == [1, 7, END]
    assert sequence.transcript.ids == [7, END]
    assert sequence.runs == [2]
    assert sequence.finished


def test_the_caller_keeps_its_prompt() -> None:
    prompt = [1, 2]
    sequence = start(prompt)
    sequence.commit([3])
    assert prompt == [1, 2]


@given(
    prompt=st.lists(st.integers(0, 90), min_size=1, max_size=5),
    steps=st.lists(
        st.tuples(st.lists(st.integers(0, 90), min_size=1, max_size=4), st.integers(0, 9)),
        max_size=6,
    ),
)
def test_one_token_is_always_pending(prompt: list[int], steps: list[tuple[list[int], int]]) -> None:
    sequence = start(prompt)
    for tokens, cells in steps:
        sequence.commit(tokens)
        sequence.advance(cells)
        assert sequence.pending
        assert sequence.num_cached + len(sequence.pending) == len(sequence.tokens)
    assert sum(sequence.runs) == len(sequence.transcript.ids)

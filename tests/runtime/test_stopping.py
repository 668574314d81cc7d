"""Where an answer ends, and that ids, text and counts all follow (FAULTS 1 and 2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marslm.models.tiny import build_tokenizer
from marslm.runtime.params import SamplingParams
from marslm.runtime.stopping import Transcript

TOKENIZER = build_tokenizer()
END = TOKENIZER.eos_token_id
MASK = TOKENIZER.mask_token_id


def tokens(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def transcript(**params: object) -> Transcript:
    return Transcript(TOKENIZER, SamplingParams(**params), frozenset({END}))


@pytest.mark.parametrize("offset", range(6))
def test_an_end_token_at_every_offset_of_a_run(offset: int) -> None:
    run = tokens("abcdef")
    run[offset] = END
    answer = transcript()
    assert answer.extend(run) == offset + 1
    assert answer.ids == run[: offset + 1]
    assert answer.text == answer.take_new_text() == "abcdef"[:offset]
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("offset", range(1, 6))
def test_a_length_cap_at_every_offset_of_a_run(offset: int) -> None:
    answer = transcript(max_new_tokens=offset)
    assert answer.extend(tokens("abcdef")) == offset
    assert answer.ids == tokens("abcdef")[:offset]
    assert answer.text == answer.take_new_text() == "abcdef"[:offset]
    assert answer.finish_reason == "length"


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("offset", range(6))
def test_a_stop_string_at_every_offset_of_a_run(offset: int, size: int) -> None:
    """Its tokens count, since they were written; its text does not show."""
    text = "abcdef" + "xyz"
    stop = text[offset : offset + size]
    answer = transcript(stop=(stop,))
    assert answer.extend(tokens(text)) == offset + size
    assert answer.ids == tokens(text)[: offset + size]
    assert answer.text == answer.take_new_text() == text[:offset]
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_stop_string_over_two_steps(cut: int) -> None:
    run = tokens("ab<STOP>cd")
    answer = transcript(stop=("<STOP>",))
    streamed = ""
    assert answer.extend(run[:cut]) == cut
    streamed += answer.take_new_text()
    assert "<" not in streamed
    assert answer.extend(run[cut:]) == 8 - cut
    assert streamed + answer.take_new_text() == answer.text == "ab"
    assert answer.ids == tokens("ab<STOP>")


def test_a_possible_stop_string_is_held_back_and_released() -> None:
    answer = transcript(stop=("###", "#!"))
    seen = []
    for token in tokens("a##b#"):
        answer.extend([token])
        seen.append(answer.take_new_text())
    assert seen == ["a", "", "", "##b", ""]
    answer.extend([END])
    assert answer.take_new_text() == "#"
    assert answer.text == "a##b#"


def test_what_is_held_back_comes_out_at_the_length_cap_and_on_abort() -> None:
    capped = transcript(stop=("##",), max_new_tokens=2)
    capped.extend(tokens("a#b"))
    assert capped.take_new_text() == "a#"
    aborted = transcript(stop=("##",))
    aborted.extend(tokens("a#"))
    assert aborted.take_new_text() == "a"
    aborted.finish("abort")
    assert (aborted.take_new_text(), aborted.finish_reason) == ("#", "abort")


def test_the_earliest_of_several_stop_strings_ends_the_answer() -> None:
    answer = transcript(stop=("def", "bc", "cdef"))
    answer.extend(tokens("abcdef"))
    assert (answer.text, answer.ids) == ("a", tokens("abc"))


def test_of_stop_strings_that_one_token_completes_the_longer_cuts() -> None:
    for stop in (("c", "bc"), ("bc", "c")):
        answer = transcript(stop=stop)
        answer.extend(tokens("abcd"))
        assert (answer.text, answer.ids) == ("a", tokens("abc"))


def test_a_stop_string_that_begins_like_itself() -> None:
    answer = transcript(stop=("aab",))
    pieces = []
    for token in tokens("xaaab"):
        answer.extend([token])
        pieces.append(answer.take_new_text())
    assert "".join(pieces) == answer.text == "xa"
    assert answer.finish_reason == "stop"


def test_a_stop_string_of_split_characters() -> None:
    """Each character is three tokens, so it is found only when its last byte is there."""
    answer = transcript(stop=("。",))
    run = tokens("日本。語")
    assert answer.extend(run) == 9
    assert answer.text == "日本"


def test_an_end_inside_a_character_shows_the_broken_one() -> None:
    half = tokens("日")[:2]
    capped = transcript(max_new_tokens=3)
    capped.extend([*tokens("a"), *half])
    assert capped.text == "a\N{REPLACEMENT CHARACTER}"
    ended = transcript()
    ended.extend([*half, END])
    assert ended.text == "\N{REPLACEMENT CHARACTER}"
    assert ended.ids == [*half, END]


def test_ignore_eos_writes_on() -> None:
    answer = transcript(ignore_eos=True, max_new_tokens=4)
    assert answer.extend([*tokens("a"), END, *tokens("bc"), END]) == 4
    assert answer.text == "abc"
    assert answer.finish_reason == "length"


def test_ignore_eos_still_obeys_stop_strings() -> None:
    answer = transcript(ignore_eos=True, stop=("c",))
    answer.extend([END, *tokens("abcd")])
    assert (answer.text, answer.finish_reason) == ("ab", "stop")


def test_a_stop_string_that_the_last_allowed_token_completes_is_a_stop() -> None:
    answer = transcript(stop=("bc",), max_new_tokens=3)
    answer.extend(tokens("abc"))
    assert (answer.text, answer.finish_reason) == ("a", "stop")


def test_nothing_new_is_said_twice() -> None:
    answer = transcript()
    answer.extend(tokens("ab"))
    assert answer.take_new_text() == "ab"
    assert answer.take_new_text() == ""


def test_the_requests_own_end_tokens_end_it_and_do_not_show() -> None:
    for ignore_eos in (False, True):
        answer = transcript(stop_token_ids=(*tokens("x"), *tokens("c")), ignore_eos=ignore_eos)
        assert answer.extend(tokens("abcd")) == 3
        assert (answer.ids, answer.text) == (tokens("abc"), "ab")
        assert answer.finish_reason == "stop"


@pytest.mark.parametrize("cut", range(1, 8))
def test_nothing_ends_an_answer_before_min_tokens(cut: int) -> None:
    """Neither end tokens nor a stop string that is complete by then; what comes later does."""
    run = [*tokens("ab"), END, *tokens("abab")]
    answer = transcript(min_tokens=3, stop=("ab",))
    for step in (run[:cut], run[cut:]):
        if answer.finish_reason is None:
            answer.extend(step)
    assert answer.ids == run[:5]
    assert answer.text == "ab"
    assert transcript(min_tokens=1).extend([END, *tokens("a"), END, *tokens("b")]) == 3
    assert transcript(min_tokens=9, max_new_tokens=2).extend(tokens("abc")) == 2


def naive_end(
    run: list[int], stop: tuple[str, ...], limit: int, min_tokens: int
) -> tuple[list[int], str, str | None]:
    """Return ids, text and reason by looking at every prefix of the answer from scratch."""
    before = ""
    for count in range(1, len(run) + 1):
        text = TOKENIZER.decode(run[:count], skip_special_tokens=True)
        # A stop string counts if it ends in the new text.
        found = [
            at
            for s in stop
            for at in range(max(0, len(before) - len(s) + 1), len(text))
            if text.startswith(s, at)
        ]
        if found and count >= min_tokens:
            return run[:count], text[: min(found)], "stop"
        if run[count - 1] == END and count > min_tokens:
            return run[:count], text, "stop"
        before = text
        if count == limit:
            return run[:count], text, "length"
    return run, TOKENIZER.decode(run, skip_special_tokens=True), None


alphabet = st.sampled_from("ab日é")


@given(
    run=st.lists(
        st.one_of(alphabet.map(tokens), st.sampled_from([[END], [MASK]])), max_size=12
    ).map(lambda parts: [token for part in parts for token in part]),
    stop=st.lists(st.text(alphabet, min_size=1, max_size=3), max_size=2).map(tuple),
    limit=st.integers(1, 20),
    min_tokens=st.sampled_from([0, 0, 3]),
    cuts=st.lists(st.integers(1, 5), min_size=20, max_size=20),
)
def test_any_steps_end_where_looking_at_every_prefix_does(
    run: list[int], stop: tuple[str, ...], limit: int, min_tokens: int, cuts: list[int]
) -> None:
    ids, text, reason = naive_end(run, stop, limit, min_tokens)
    answer = transcript(stop=stop, max_new_tokens=limit, min_tokens=min_tokens)
    streamed, place = "", 0
    for size in cuts:
        step = run[place : place + size]
        if answer.finish_reason or not step:
            break
        committed = answer.extend(step)
        assert committed == len(step) or answer.finish_reason
        streamed += answer.take_new_text()
        assert text.startswith(streamed)
        place += size
    assert (answer.ids, answer.finish_reason) == (ids, reason)
    if reason:
        assert streamed == answer.text == text

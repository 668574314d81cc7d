"""Which self-written prompts are dropped, and why."""

from __future__ import annotations

import pytest

from marslm.distill.filters import Known, why_unusable


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Name a nice cat.", None),
        ("What should I cook for six guests on a rainy Sunday evening?", None),
        ("Hi there!", "short"),
        ("", "short"),
        ("¿Qué debo cocinar para mañana, señor García? ¿Qué más?", "language"),
        ("Lorem ipsum dolor sit amet consectetur adipiscing elit sed", "language"),
        ("go and go and go and go and go and go and stop", "repetition"),
        (" ".join(f"The cat number {i} sat on the mat." for i in range(40)), "repetition"),
    ],
)
def test_why_a_prompt_is_of_no_use(text: str, why: str | None) -> None:
    assert why_unusable(text) == why


def test_other_languages_may_be_wanted() -> None:
    assert why_unusable("¿Qué debo cocinar para mañana, señor García?", english=False) is None


def test_the_same_words_are_a_duplicate_whatever_their_case_and_punctuation() -> None:
    known = Known()
    known.add("Write a poem, please!")
    assert known.why_known("write a POEM please") == "duplicate"
    assert known.why_known("Write a poem about rain, please!") is None


def test_what_is_near_an_excluded_prompt_is_excluded_too() -> None:
    held_out = "How many apples does Anna have after she eats two of her seven apples?"
    known = Known([held_out])
    assert known.why_known(held_out.upper()) == "duplicate"
    reworded = "Tell me: how many apples does Anna have after she eats two of her nine pears?"
    assert known.why_known(reworded) == "excluded"
    assert known.why_known("How many apples does a healthy person eat in a year?") is None


def test_added_prompts_do_not_exclude_their_neighbours() -> None:
    known = Known()
    known.add("Explain how a steam engine works to a child.")
    assert known.why_known("Explain how a steam engine works to a child of six.") is None

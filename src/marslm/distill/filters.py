"""Which prompts are worth an answer: long enough, in English, not repetitive, and new.

Knows nothing about models or files.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

_COMMON_WORDS = frozenset(
    # A list of them would hide the words.
    "a an and are as be can do does for has have he how i in is it my of on or she that the "  # noqa: SIM905
    "they this to was we what when why with you".split()
)
_SHORTEST = 4
_PHRASE = 4
_SHARED = 0.5


def words_of(text: str) -> list[str]:
    """Return the words of `text` in lower case, without punctuation."""
    return re.findall(r"\w+", text.lower())


def why_unusable(text: str, *, english: bool = True) -> str | None:
    """Return why a self-written prompt is of no use, None if it is.

    "short": under four words. "language": hardly any ASCII, or a longer text without one common
    English word. "repetition": few different words, or text that compresses to a third.
    """
    words = words_of(text)
    if len(words) < _SHORTEST:
        return "short"
    if english and not _looks_english(text, words):
        return "language"
    raw = text.encode()
    squeezed = len(zlib.compress(raw)) / len(raw)
    if len(set(words)) < 0.45 * len(words) or (len(raw) > 200 and squeezed < 0.35):
        return "repetition"
    return None


def _looks_english(text: str, words: list[str]) -> bool:
    plain = sum(character.isascii() for character in text) / len(text)
    return plain >= 0.97 and (len(words) <= 6 or not _COMMON_WORDS.isdisjoint(words))


class Known:
    """Prompts that must not come again: those already there, and excluded ones.

    A prompt repeats a known one if it has the same words in the same order. It is too near an
    excluded one already if half of the four-word phrases of the shorter of the two are shared, so
    that nothing held out is learnt in another wording.
    """

    def __init__(self, excluded: Iterable[str] = ()) -> None:
        """Start with what is excluded."""
        self._seen: set[str] = set()
        self._phrases: dict[tuple[str, ...], list[int]] = {}
        self._sizes: list[int] = []
        for text in excluded:
            self._seen.add(_key(text))
            phrases = _phrases(text)
            for phrase in phrases:
                self._phrases.setdefault(phrase, []).append(len(self._sizes))
            self._sizes.append(len(phrases))

    def add(self, text: str) -> None:
        """Remember a prompt."""
        self._seen.add(_key(text))

    def why_known(self, text: str) -> str | None:
        """Return "duplicate", "excluded" or, for a new prompt, None."""
        if _key(text) in self._seen:
            return "duplicate"
        phrases = _phrases(text)
        shared: dict[int, int] = {}
        for phrase in phrases:
            for number in self._phrases.get(phrase, ()):
                shared[number] = shared.get(number, 0) + 1
        near = any(
            count > _SHARED * min(len(phrases), self._sizes[n]) for n, count in shared.items()
        )
        return "excluded" if near else None


def _key(text: str) -> str:
    return " ".join(words_of(text))


def _phrases(text: str) -> set[tuple[str, ...]]:
    words = words_of(text)
    return {tuple(words[i : i + _PHRASE]) for i in range(max(1, len(words) - _PHRASE + 1))}

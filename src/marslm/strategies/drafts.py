"""Guesses of what one request will write next, from one source, with the chance of each.

They are judged by what is written, whether they were fed or not: a source that is not used goes on
showing what it is worth. Knows nothing about where guesses come from or what it costs to feed them.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

from marslm.strategies.acceptance import DraftOdds, Origin, RequestFactor


class Drafts:
    """The guesses at hand. tokens: they. chances: of each, that it and all before it are right."""

    def __init__(self, odds: DraftOdds) -> None:
        """Have none. odds: of all requests, as they were judged so far."""
        self._odds = odds
        self._factor = RequestFactor()
        self.clear()

    def clear(self) -> None:
        """Forget the guesses, not what became of earlier ones."""
        self.tokens: ListOf[int] = ()
        self.chances: ListOf[float] = ()
        self._origins: ListOf[Origin] = ()
        self._single: ListOf[float] = ()

    def take(self, tokens: ListOf[int], origins: ListOf[Origin], floor: float = 0.0) -> None:
        """Hold new guesses, which end with the first whose chance is not above `floor`."""
        factor, chance_of, reach = self._factor.value, self._odds.chance, 1.0
        single, chances = [], []
        for kind, expected in origins:
            chance = min(1.0, factor * chance_of(kind, expected))
            reach *= chance
            single.append(chance)
            chances.append(reach)
            if reach <= floor:
                break
        self.tokens, self._origins = tokens[: len(chances)], origins[: len(chances)]
        self._single, self.chances = single, chances

    @property
    def confidences(self) -> list[float]:
        """How likely each guess seemed to its source."""
        return [expected for _, expected in self._origins]

    @property
    def hope(self) -> float:
        """How many of them are expected to be right."""
        return sum(self.chances)

    def judge(self, written: ListOf[int]) -> None:
        """Compare the guesses with what was written, up to the first wrong one; forget them."""
        if not self.tokens:
            return
        judged = zip(self.tokens, written, self._origins, self._single, strict=False)
        for guess, token, (kind, _), chance in judged:
            self._odds.observe(kind, guess == token)
            self._factor.observe(chance, guess == token)
            if guess != token:
                break
        self.clear()

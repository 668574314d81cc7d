"""User turns that the model writes itself, so that it can be trained without any data.

An instruction-tuned model continues the empty header of a user's turn with something a user might
have said (the trick of Magpie, arXiv 2406.08464; METHOD section 2). Each attempt has a seed of its
own, which is recorded with what became of it. Knows nothing about answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from marslm.data.encode import user_header
from marslm.distill.filters import Known, why_unusable
from marslm.distill.writers import Request, Sampling, TokensHeard, Writer
from marslm.errors import InputError
from marslm.rows_file import append_row, read_rows

SAMPLING = Sampling(max_new_tokens=160, temperature=1.0, top_p=0.95)
"""Prompts are drawn nearly freely, for variety; one that does not end in 160 tokens rambles."""

_MOST_AT_ONCE = 256
_FEWEST_KEPT = 0.02
_ENOUGH_TO_JUDGE = 200


@dataclass
class PromptSource:
    """Where self-written prompts come from and what they must pass.

    record: a file with a row for each attempt, `{"seed", "prompt"}` or `{"seed", "dropped"}`.
    first_seed: seeds count up from here. english: drop other languages.
    """

    writer: Writer
    tokenizer: PreTrainedTokenizerBase
    record: Path
    known: Known
    first_seed: int = 0
    english: bool = True

    def collect(
        self,
        wanted: int,
        heard: TokensHeard,
        attempted: Callable[[int, Counter[str], int], None] = lambda kept, dropped, new: None,
    ) -> tuple[list[dict[str, Any]], Counter[str]]:
        """Return `wanted` rows `{"seed", "prompt"}` and why others were dropped.

        Attempts in the record are not made again. `attempted` hears after every attempt how many
        prompts there are, why others were dropped, and how many are new. Raises
        InputError when hardly any attempt gives a prompt.
        """
        rows = read_rows(self.record, "seed")
        dropped = Counter(str(row["dropped"]) for row in rows if "dropped" in row)
        there = [row for row in rows if "prompt" in row]
        # An earlier run may have excluded less; its prompts are no repetitions of one another.
        kept = [row for row in there if not self.known.why_known(row["prompt"])]
        if len(kept) < len(there):
            dropped["excluded"] += len(there) - len(kept)
        del kept[wanted:]
        for row in kept:
            self.known.add(row["prompt"])
        before = len(kept)
        seeds = self._new_seeds({row["seed"] for row in rows})
        while len(kept) < wanted:
            self._check_yield(len(kept), dropped)
            for row in self._attempt(list(islice(seeds, _attempts(wanted - len(kept)))), heard):
                append_row(self.record, row)
                if "prompt" in row:
                    kept.append(row)
                else:
                    dropped[str(row["dropped"])] += 1
                attempted(len(kept), dropped, len(kept) - before)
        return kept[:wanted], dropped

    def _new_seeds(self, used: set[int]) -> Iterator[int]:
        seed = self.first_seed
        while True:
            if seed not in used:
                yield seed
            seed += 1

    def _attempt(self, seeds: list[int], heard: TokensHeard) -> Iterator[dict[str, Any]]:
        header = user_header(self.tokenizer)
        requests = [Request(str(seed), header, seed) for seed in seeds]
        for request, written in self.writer.write(requests, SAMPLING, heard):
            text = written.text.strip()
            why = "unfinished" if written.cut else why_unusable(text, english=self.english)
            why = why or self.known.why_known(text)
            if why:
                yield {"seed": request.seed, "dropped": why}
            else:
                self.known.add(text)
                yield {"seed": request.seed, "prompt": text}

    def _check_yield(self, kept: int, dropped: Counter[str]) -> None:
        attempts = kept + dropped.total()
        if attempts >= _ENOUGH_TO_JUDGE and kept < _FEWEST_KEPT * attempts:
            reasons = ", ".join(f"{count} {why}" for why, count in dropped.most_common())
            raise InputError(
                f"{kept} of {attempts} self-written prompts are usable ({reasons}): this model "
                "does not write prompts of its own; give it some with --prompts"
            )


def _attempts(missing: int) -> int:
    """Return how many attempts to make at once for so many prompts: about half may be dropped."""
    return min(_MOST_AT_ONCE, 2 * missing + 8)

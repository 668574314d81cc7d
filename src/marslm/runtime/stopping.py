"""The one place that ends an answer (FAULTS 1 and 2).

A step may bring several tokens, and the end may lie anywhere among them. `Transcript.extend` finds
the earliest of end token, stop string and length cap, and everything else follows from its answer:
ids, text, counts. Knows nothing about caches or strategies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from transformers import PreTrainedTokenizerBase

from marslm.runtime.detokenize import Detokenizer
from marslm.runtime.logprobs import TokenLogprobs
from marslm.runtime.params import SamplingParams

FinishReason: TypeAlias = Literal["stop", "length", "abort", "error"]


class Transcript:
    """The committed part of one answer, as ids and as text.

    ids: what was written, the end token included. logprobs: theirs, if they were asked for. text:
    without special tokens and the end token, cut before a stop string. finish_reason: None while
    the answer goes on. end_token_ids: the tokens that end it, the request's own among them.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        params: SamplingParams,
        end_token_ids: frozenset[int],
    ) -> None:
        """Start an empty answer."""
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self._params = params
        models_own = frozenset() if params.ignore_eos else end_token_ids
        self.end_token_ids = models_own | frozenset(params.stop_token_ids)
        self._detokenizer = Detokenizer(tokenizer)
        self._streamed = 0

    def extend(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> int:
        """Commit `tokens` from the left until the answer ends; return how many were committed.

        logprobs: theirs, if they were asked for.
        """
        for count, token in enumerate(tokens, start=1):
            self.ids.append(token)
            self.logprobs += logprobs[count - 1 : count]
            if token in self.end_token_ids and len(self.ids) > self._params.min_tokens:
                self.finish("stop")
            elif self._append(self._detokenizer.add([token])):
                self.finish_reason = "stop"
            elif len(self.ids) == self._params.max_new_tokens:
                self.finish("length")
            if self.finish_reason:
                return count
        return len(tokens)

    def finish(self, reason: FinishReason) -> None:
        """End the answer; what was held back of its text comes out."""
        self.finish_reason = "stop" if self._append(self._detokenizer.finish()) else reason

    def take_new_text(self) -> str:
        """Return the text not yet taken, less an end that may still become a stop string."""
        end = len(self.text)
        if self.finish_reason is None:
            end -= max((_overlap(self.text, stop) for stop in self._params.stop), default=0)
        new_text = self.text[self._streamed : end]
        self._streamed = max(self._streamed, end)
        return new_text

    def _append(self, piece: str) -> bool:
        """Append to the text; cut it before the first stop string, if there is one now."""
        before = len(self.text)
        self.text += piece
        if len(self.ids) < self._params.min_tokens:
            return False
        # One that lies wholly in the text before was let pass.
        starts = {s: max(0, before - len(s) + 1) for s in self._params.stop}
        found = [at for s, start in starts.items() if (at := self.text.find(s, start)) >= 0]
        if found:
            self.text = self.text[: min(found)]
        return bool(found)


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0

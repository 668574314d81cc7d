"""Answers that must match a regular expression or a JSON schema.

llguidance says which tokens may come next after an answer so far. A step looks at several answers
that may come to be, so a constraint is asked about whole answers and finds its own way from one to
the next; most differ in the last few tokens. Knows nothing about logits or drafts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

# Free whitespace would let a small model write blanks without end; these are json.dumps's.
_JSON_STYLE: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


class Constraint:
    """Which tokens may follow an answer."""

    def __init__(self, matcher: LLMatcher, end_token_ids: frozenset[int], vocabulary: int) -> None:
        """Start at the empty answer. vocabulary: rows of the logits."""
        self._matcher = matcher
        self._end_token_ids = end_token_ids
        self._vocabulary = vocabulary
        self._consumed: list[int] = []

    def allowed(self, answer: Sequence[int]) -> Tensor:
        """Return the tokens that may follow `answer`, as bool [V]; after an end token, only ends.

        `answer` must have been allowed token by token.
        """
        if answer and answer[-1] in self._end_token_ids:
            mask = torch.zeros(self._vocabulary, dtype=torch.bool)
            mask[sorted(self._end_token_ids)] = True
            return mask
        self._go_to([token for token in answer if token not in self._end_token_ids])
        octets = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        bits = octets[:, None].bitwise_right_shift(torch.arange(8, dtype=torch.uint8)) & 1
        return bits.flatten()[: self._vocabulary].bool()

    def _go_to(self, answer: list[int]) -> None:
        """Bring the matcher to `answer`, back to where it parts from the last one and on."""
        shared = 0
        for old, new in zip(self._consumed, answer, strict=False):
            if old != new:
                break
            shared += 1
        self._matcher.rollback(len(self._consumed) - shared)
        self._matcher.consume_tokens(answer[shared:])
        assert not self._matcher.is_error(), self._matcher.get_error()
        self._consumed = answer


class Grammars:
    """Builds constraints for one model's tokenizer, which is prepared when first needed."""

    def __init__(self, model: MarsModel) -> None:
        """Prepare nothing yet."""
        self._model = model
        self._vocabulary: int = model.network.config.vocab_size
        self._tokenizer: LLTokenizer | None = None

    def constraint_for(self, params: SamplingParams) -> Constraint | None:
        """Return a new constraint, None if the request has none.

        Raises InputError for a bad grammar, and for any without the extra `constrained`.
        """
        if params.regex is None and params.json_schema is None:
            return None
        try:
            from llguidance import LLMatcher  # noqa: PLC0415
            from llguidance.hf import from_tokenizer  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise InputError(
                "llguidance is not installed, so answers cannot follow a grammar; run "
                "pip install 'marslm[constrained]'"
            ) from error
        ends, tokenizer = self._model.end_token_ids, self._model.tokenizer
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise InputError(
                f"{self._model.name} has no fast tokenizer, so answers cannot follow a grammar: "
                "leave out regex and json_schema"
            )
        if self._tokenizer is None:
            known = [token for token in sorted(ends) if token < len(tokenizer)]
            self._tokenizer = from_tokenizer(tokenizer, n_vocab=self._vocabulary, eos_token=known)
        name, grammar = _grammar(params)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            reason = matcher.get_error().strip().splitlines()[0]
            raise InputError(f"the {name} cannot be used: {reason}; mend it")
        return Constraint(matcher, ends, self._vocabulary)


def _grammar(params: SamplingParams) -> tuple[str, str]:
    """Return what a request's grammar is called, and the grammar in llguidance's own form."""
    from llguidance import LLMatcher  # noqa: PLC0415

    if params.regex is not None:
        return "regex", LLMatcher.grammar_from_regex(params.regex)
    schema = params.json_schema
    text = schema if isinstance(schema, str) else json.dumps(dict(schema or {}))
    try:
        return "json_schema", LLMatcher.grammar_from_json_schema(text, defaults=_JSON_STYLE)
    except ValueError as error:
        reason = (str(error).strip() or "not JSON").splitlines()[0]
        raise InputError(f"the json_schema cannot be used: {reason}; mend it") from error

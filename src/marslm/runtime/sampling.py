"""From logits to tokens.

Every draw is the argmax of the processed logits plus Gumbel noise that depends on the request's
seed and the token's absolute position alone. So a draw does not depend on the batch, on the window
or on how many tokens a step accepted, and lossless decoding can compare drafts with draws (METHOD
section 3). Knows nothing about drafts or acceptance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as ListOf
from dataclasses import dataclass

import torch
from torch import Tensor

from marslm.core.accept import CONFIDENCES
from marslm.runtime.logits import Logits, widened
from marslm.runtime.params import SamplingParams
from marslm.runtime.processors import (
    Constrained,
    EndBan,
    Penalties,
    TextRule,
    add_bias,
    truncate,
)
from marslm.runtime.sequence import Sequence


@dataclass(frozen=True)
class Draws:
    """Tokens drawn from a chain of rows.

    scores: [R, V], what they were drawn from before noise, up to a constant for each row.
    likeliest: the logits of which the tokens are simply the likeliest, if they are.
    """

    tokens: list[int]
    scores: Tensor
    likeliest: Logits | None = None

    def log_probs(self) -> Tensor:
        """Return the log-probabilities [R, V] that the draws follow, in float32 or wider.

        At temperature 0 the draw is the argmax, and this is the distribution at temperature 1.
        """
        return torch.log_softmax(widened(self.scores), dim=-1)

    def confidences(self, kind: str = "probability") -> list[float]:
        """Return how sure each row is of its token, from 0 to 1, by a name in `CONFIDENCES`."""
        if kind == "probability" and self.likeliest is not None and self.likeliest.together:
            return self.likeliest.best_probabilities()
        tokens = torch.tensor(self.tokens, device=self.scores.device)
        found: list[float] = CONFIDENCES[kind](self.log_probs(), tokens).tolist()
        return found


def draw(logits: Logits | Tensor, sequence: Sequence, ahead: ListOf[int] = ()) -> Draws:
    """Draw a token from each row of `logits` [R, V], the rows being a chain.

    Row 0 chooses what follows the request's text and `ahead`; every other row, what follows row
    0's text and the choices of the rows before it. That is also right for drafts that are being
    verified: up to the first draft that differs from the choice at its place, both say the same.
    """
    params = sequence.params
    logits = Logits(logits) if isinstance(logits, Tensor) else logits
    if params.plain_greedy:
        return Draws(logits.best(), logits.tensor, logits)
    position = len(sequence.tokens) + len(ahead)
    scores = add_bias(logits.tensor.double(), params)
    rules = _text_rules(sequence, ahead, scores)
    if not rules:
        return _draw_rows(scores, params, position)
    rows: list[Draws] = []
    for row in scores.unsqueeze(1):
        for rule in rules:
            row = rule.apply(row)  # noqa: PLW2901
        rows.append(_draw_rows(row, params, position + len(rows)))
        for rule in rules:
            rule.add(rows[-1].tokens[0])
    return Draws([row.tokens[0] for row in rows], torch.cat([row.scores for row in rows]))


def choose(logits: Logits | Tensor, sequence: Sequence, ahead: ListOf[int] = ()) -> list[int]:
    """Return the tokens that `draw` draws."""
    return draw(logits, sequence, ahead).tokens


def _text_rules(sequence: Sequence, ahead: ListOf[int], like: Tensor) -> list[TextRule]:
    """Return the rules that read the text; none for most requests."""
    params = sequence.params
    if not params.reads_text:
        return []
    prompt = sequence.tokens[: sequence.prompt_length]
    answer = [*sequence.tokens[sequence.prompt_length :], *ahead]
    rules: list[TextRule] = []
    if params.penalised:
        rules.append(Penalties(params, prompt, answer, like))
    if params.min_tokens > len(answer):
        rules.append(EndBan(params.min_tokens, sequence.transcript.end_token_ids, len(answer)))
    if sequence.constraint is not None:
        rules.append(Constrained(sequence.constraint, answer))
    return rules


def _draw_rows(scores: Tensor, params: SamplingParams, position: int) -> Draws:
    """Draw from rows that know nothing of each other, the first one at `position`."""
    if params.temperature == 0:
        return Draws(scores.argmax(-1).tolist(), scores)
    scores = truncate(scores / params.temperature, params)
    noise = [_gumbel(params.seed, position + row, scores) for row in range(len(scores))]
    return Draws((scores + torch.stack(noise)).argmax(-1).tolist() if noise else [], scores)


def _gumbel(seed: int, position: int, like: Tensor) -> Tensor:
    """Return Gumbel noise [V] for one position, the same on every device."""
    # torch's CPU generator takes 32 bits of a seed, so all of both numbers must go into those.
    digest = hashlib.blake2b(f"{seed} {position}".encode(), digest_size=4).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    uniform = torch.rand(like.shape[-1], generator=generator, dtype=torch.float64)
    return -torch.log(-torch.log(uniform.clamp_(min=1e-300))).to(like.device)

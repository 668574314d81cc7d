"""How often narrower weights choose the token that the loaded weights choose.

After the same text, so that one other choice does not count for all that follow. Knows nothing
about files or tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from marslm.engine.api import Answer, generate
from marslm.models.loading import MarsModel
from marslm.models.quantize import Quantize
from marslm.runtime.decoder import Decoder
from marslm.runtime.runner import Runner
from marslm.runtime.window import Window
from marslm.runtime.work import Work


def agreement(
    model: MarsModel, kinds: Sequence[Quantize], prompts: Sequence[str], *, max_new_tokens: int
) -> dict[Quantize, float]:
    """Return for each kind the share of the model's own greedy answers' tokens that it chooses."""
    answers = generate(
        model, list(prompts), strategy="ar", max_new_tokens=max_new_tokens, ignore_eos=True
    )
    return {kind: equal_choices(replace(model, quantize=kind), answers) for kind in kinds}


def equal_choices(model: MarsModel, answers: Sequence[Answer]) -> float:
    """Return the share of greedy answers' tokens that `model` chooses too, after the same text."""
    longest = max(len(answer.prompt_ids) + len(answer.ids) for answer in answers)
    decoder = Decoder(model, max_length=longest)
    runner = Runner(decoder, decoder.new_cache(1), model.mask_token_id)
    equal = total = 0
    for answer in answers:
        text = [*answer.prompt_ids, *answer.ids[:-1]]
        [logits] = runner.forward([Work(0, 0, text, Window(), len(answer.ids))])
        chosen = logits.argmax(-1).tolist()
        equal += sum(a == b for a, b in zip(chosen, answer.ids, strict=True))
        total += len(answer.ids)
    return equal / total

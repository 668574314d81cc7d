"""Blocks filled in any order: as a plain loop over the whole text does it, for every form."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers import build_model, random_prompts, solo
from marslm.core.forms import BLOCK_DIFFUSION, Form
from marslm.engine.api import run_all
from marslm.engine.engine import Engine
from marslm.models.loading import MarsModel
from marslm.models.record import MarsRecord, marks_of
from marslm.runtime.params import SamplingParams

B = 4
FORMS = {"block_diffusion": BLOCK_DIFFUSION, "any_order": Form(order="confidence")}


def model_of(form: Form) -> MarsModel:
    model = build_model("qwen2", seed=4)
    record = MarsRecord(
        "full",
        model.mask_token_id,
        B,
        marks_of(model.network, model.tokenizer),
        attention=form.attention,
        alignment=form.alignment,
        order=form.order,
    )
    return replace(model, record=record)


def fill_plainly(model: MarsModel, prompt: list[int], tau: float, count: int) -> list[int]:
    """Recompute the whole text for each filled cell, with a mask of its own."""
    assert model.record is not None
    form, text = model.record.form, list(prompt)
    while len(text) < len(prompt) + count:
        cells: list[int | None] = [None] * B
        while None in cells:
            shown = [model.mask_token_id if cell is None else cell for cell in cells]
            rows = len(text) + B
            seen = torch.ones(rows, rows, dtype=torch.bool).tril()
            if form.bidirectional:
                seen[len(text) :, len(text) :] = True
            with torch.no_grad():
                logits = model.network(
                    torch.tensor([[*text, *shown]]), attention_mask=seen[None, None]
                ).logits[0]
            logits[:, model.mask_token_id] = -torch.inf
            first = len(text) - (form.alignment == "next")
            best, tokens = logits[first : first + B].softmax(-1).max(-1)
            masked = [place for place in range(B) if cells[place] is None]
            top = max(masked, key=lambda place: float(best[place]))
            for place in masked:
                if place == top or (tau < 1 and float(best[place]) >= tau):
                    cells[place] = int(tokens[place])
        text += [cell for cell in cells if cell is not None]
    return text[len(prompt) :][:count]


@pytest.mark.parametrize("tau", [1.0, 0.3])
@pytest.mark.parametrize("name", FORMS)
def test_it_fills_as_the_plain_loop_does(name: str, tau: float) -> None:
    model = model_of(FORMS[name])
    for prompt in random_prompts([3, 9]):
        params = SamplingParams(
            strategy="block_diffusion", tau=tau, max_new_tokens=11, ignore_eos=True
        )
        answer = solo(model, prompt, params)
        assert answer.ids == fill_plainly(model, prompt, tau, 11)
        # One cell a forward at tau = 1, and the answer is handed over block by block.
        assert len(answer.runs) == 12 if tau == 1 else len(answer.runs) <= 12
        assert sum(answer.runs) == 11
        assert all(run in (0, 3, 4) for run in answer.runs)


def test_a_batch_fills_as_each_alone() -> None:
    model = model_of(BLOCK_DIFFUSION)
    params = SamplingParams(strategy="block_diffusion", tau=0.3, max_new_tokens=9)
    prompts = random_prompts([2, 7, 13], seed=3)
    engine = Engine(model, slots=2, pack=False)
    together = run_all(engine, prompts, params)
    assert [a.ids for a in together] == [solo(model, p, params).ids for p in prompts]

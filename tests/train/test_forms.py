"""Every form of a block: its rows are those a decoder of that form reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import build_model
from marslm.core.forms import BLOCK_DIFFUSION, MARS, Form
from marslm.core.losses import IGNORE, LossCounts
from marslm.core.streams import PADDING, Rows
from marslm.data.encode import Example
from marslm.errors import InputError
from marslm.models.loading import MarsModel, load
from marslm.models.record import read_record
from marslm.train import run
from marslm.train.batches import TwoStreamData, collate
from marslm.train.config import TuneConfig
from marslm.train.run import train
from marslm.train.streams import HIDDEN

MakeModel = Callable[..., MarsModel]
B = 4

FORMS = {
    "mars": MARS,
    "previous_mask": Form(block_start="previous_mask"),
    "bidirectional": Form(attention="bidirectional"),
    "own": Form(alignment="own"),
    "confidence": Form(order="confidence"),
    "block_diffusion": BLOCK_DIFFUSION,
}


def config_for(form: Form, **settings: Any) -> TuneConfig:
    if form == BLOCK_DIFFUSION:
        return TuneConfig.for_mode("full", objective="block_diffusion", steps=1, **settings)
    return TuneConfig.for_mode("full", steps=1, **asdict(form), **settings)


def window_logits(
    model: MarsModel, ids: list[int], anchor: int, cells: list[int], form: Form
) -> Tensor:
    """Return logits of x[0..anchor] and the cells after it, as a decoder of this form reads them.

    The window's rows stand after the anchor; they see the text, and of the window what is before
    them, or all of it. [1 + cells, V], the anchor's row first.
    """
    rows = anchor + 1 + len(cells)
    seen = torch.ones(rows, rows, dtype=torch.bool).tril()
    if form.bidirectional:
        seen[anchor + 1 :, anchor + 1 :] = True
    with torch.no_grad():
        found: Tensor = model.network(
            input_ids=torch.tensor([[*ids[: anchor + 1], *cells]]),
            attention_mask=seen[None, None],
            use_cache=False,
        ).logits
    found = found[0, anchor:].clone()
    found[:, model.mask_token_id] = -torch.inf
    return found


def cells_of(batch: Any, text: int, anchor: int, mask: int) -> list[int]:
    noisy = Rows(**batch["noisy"])[text]
    chosen = (noisy.anchor == anchor) & (noisy.document != PADDING)
    ids = batch["noisy_ids"][text][chosen].tolist()
    return [mask if token == HIDDEN else token for token in ids]


def slow_candidates(
    model: MarsModel, batch: Any, example: Example, text: int, form: Form
) -> list[float]:
    """Return the losses in L_mask of one text, block by block, by the words of the method."""
    ids, supervised = list(example.ids), example.supervised
    noisy = Rows(**batch["noisy"])[text]
    runs, losses = supervised_runs(supervised), []
    with_rows = noisy.anchor[noisy.document != PADDING].tolist()
    alone = torch.nonzero(batch["first"][text]).flatten().tolist()
    for anchor in sorted({*with_rows, *alone}):
        end = next(e for s, e in runs if s <= anchor + 1 < e)
        start = next(s for s, e in runs if s <= anchor + 1 < e)
        cells = cells_of(batch, text, anchor, model.mask_token_id)
        logits = window_logits(model, ids, anchor, cells, form)
        for row, scores in enumerate(logits):
            place = anchor + row + (form.alignment == "next")
            cell = place - anchor  # the cell whose token is predicted
            hidden = cell == 0 or cell > len(cells) or cells[cell - 1] == model.mask_token_id
            if form.alignment == "own" and row == 0:
                continue
            if form.order == "confidence" and cell > B:
                continue
            if form.block_start == "previous_mask" and row == 0 and anchor + 1 != start:
                continue  # read from the previous block's last mask
            if place < end and hidden:
                losses.append(F.cross_entropy(scores, torch.tensor(ids[place])).item())
    return losses


def supervised_runs(supervised: tuple[bool, ...]) -> list[tuple[int, int]]:
    starts = [p for p, s in enumerate(supervised) if s and not supervised[p - 1]]
    ends = [p + 1 for p, s in enumerate(supervised) if s and not (*supervised, False)[p + 1]]
    return list(zip(starts, ends, strict=True))


@pytest.mark.parametrize("anchors", [None, 5])
@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_trained_as_it_is_decoded(
    name: str, anchors: int | None, examples: list[Example]
) -> None:
    """FAULTS 16 for every form, in float64, text with two answers and ragged ends included."""
    form = FORMS[name]
    if form.block_start == "previous_mask" and anchors:
        return
    model = build_model("qwen2", seed=2)
    config = config_for(form, block_size=B, anchors=anchors, ar_weight=0.0, seed=3)
    data = TwoStreamData(examples, config)
    batch = collate([data[1, index] for index in range(len(examples))])
    objective = run._objective(model.network, model.mask_token_id, config)
    mask, _ = objective.count_targets(batch)

    loss, hits = objective(batch, LossCounts(mask=mask, ar=1.0))

    slow = [
        value
        for text, example in enumerate(examples)
        for value in slow_candidates(model, batch, example, text, form)
    ]
    assert mask == len(slow) > 15
    assert loss.item() == pytest.approx(sum(slow) / len(slow), rel=1e-6)
    assert len(hits.total) == form.trained_rows(B) + 1


@pytest.mark.parametrize("name", FORMS)
def test_fixed_blocks_predict_each_answer_token_at_most_once(
    name: str, examples: list[Example]
) -> None:
    """Exactly once, unless part of a block is shown."""
    form = FORMS[name]
    data = TwoStreamData(examples, config_for(form, block_size=B))
    for index, example in enumerate(examples):
        item = data[0, index]
        noisy = item["noisy_targets"] != IGNORE
        predicted = (item["noisy"].position[noisy] + (form.alignment == "next")).tolist()
        predicted += (torch.nonzero(item["first"]).flatten() + 1).tolist()
        answer = [p for p, flag in enumerate(example.supervised) if flag]
        assert len(predicted) == len(set(predicted))
        if form.order == "confidence":
            assert set(predicted) <= set(answer)
            assert predicted
        else:
            assert sorted(predicted) == answer


def test_part_of_a_block_is_shown_in_confidence_order(examples: list[Example]) -> None:
    """Over many visits every cell of a full block is sometimes shown, sometimes hidden."""
    data = TwoStreamData(examples, config_for(BLOCK_DIFFUSION, block_size=B))
    shown, hidden = set(), set()
    for number in range(40):
        item = data[number, 2]
        first = item["noisy"].block == 0
        for cell, token in enumerate(item["noisy_ids"][first].tolist()):
            (hidden if token == HIDDEN else shown).add(cell)
            place = int(item["noisy"].position[first][cell])
            assert token in (HIDDEN, int(item["ids"][place]))
        assert (item["noisy_ids"][first] == HIDDEN).any()
    assert shown == hidden == set(range(B))


@pytest.mark.parametrize("name", FORMS)
def test_a_checkpoint_records_its_form(
    name: str, make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    train(make_model(), examples, config_for(FORMS[name], block_size=B, batch_size=2), tmp_path)
    assert read_record(tmp_path).form == FORMS[name]
    loaded = load(str(tmp_path)).record
    assert loaded is not None
    assert loaded.form == FORMS[name]


def test_forms_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(InputError, match=r"attention is 'both': choose causal or bidirectional"):
        Form(attention="both")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="previous_mask has no meaning with other forms"):
        Form(block_start="previous_mask", alignment="own")
    with pytest.raises(InputError, match="needs fixed blocks"):
        config_for(FORMS["previous_mask"], anchors=3)
    with pytest.raises(InputError, match="mask-only trains MARS's own form"):
        TuneConfig.for_mode("mask-only", steps=1, alignment="own")
    with pytest.raises(InputError, match="has its own form of a block"):
        TuneConfig.for_mode("full", steps=1, objective="ar", order="confidence")


# What the switches do to the loss.


def losses_of(
    model: MarsModel, examples: list[Example], **settings: Any
) -> tuple[float, tuple[float, float]]:
    config = TuneConfig.for_mode("full", steps=1, block_size=B, **settings)
    data = TwoStreamData(examples, config)
    batch = collate([data[0, index] for index in range(len(data))])
    objective = run._objective(model.network, model.mask_token_id, config)
    counts = objective.count_targets(batch)
    loss, _ = objective(batch, LossCounts(*map(float, counts)))
    return loss.item(), counts


def test_packed_texts_give_the_same_loss(make_model: MakeModel, examples: list[Example]) -> None:
    """One sequence that holds all five, none seeing another."""
    model = make_model()
    for settings in ({}, {"objective": "block_diffusion"}, {"objective": "ar"}):
        data = TwoStreamData(examples, TuneConfig.for_mode("full", steps=1, packing=True))
        assert len(data) == 1
        assert data.lengths == [sum(len(example.ids) for example in examples)]
        apart = losses_of(model, examples, **settings)
        packed = losses_of(model, examples, packing=True, **settings)
        assert packed[1] == apart[1]
        assert packed[0] == pytest.approx(apart[0], rel=1e-5)


def test_packed_texts_give_a_mask_only_adapter_the_same_loss(
    make_model: MakeModel, examples: list[Example]
) -> None:
    """The teacher's row is found by its place in the sequence, not by its position in the text."""
    found = []
    for packing in (False, True):
        model = make_model()
        config = TuneConfig.for_mode("mask-only", steps=1, rank=3, packing=packing, anchors=None)
        data = TwoStreamData(examples, config)
        batch = collate([data[0, index] for index in range(len(data))])
        _, objective = run.prepare(model, config)
        counts = objective.count_targets(batch)
        found.append((counts, objective(batch, LossCounts(*map(float, counts)))[0].item()))
    assert found[1][0] == found[0][0]
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-5)


def test_plain_fine_tuning_is_the_ar_loss_alone(
    make_model: MakeModel, examples: list[Example]
) -> None:
    model = make_model()
    both, _ = losses_of(model, examples, ar_weight=1.0)
    mask, _ = losses_of(model, examples, ar_weight=0.0)
    plain, counts = losses_of(model, examples, objective="ar")
    assert counts == (0, sum(sum(example.supervised) for example in examples))
    assert plain == pytest.approx(both - mask, rel=1e-5)


def test_far_rows_weigh_less_with_a_decay(make_model: MakeModel, examples: list[Example]) -> None:
    """Weights 1, 1, d, d^2 for the anchor's row and one, two, three masks; a weighted mean."""
    model = make_model()
    examples = [examples[1]]
    config = TuneConfig.for_mode("full", steps=1, block_size=B, ar_weight=0.0)
    batch = collate([TwoStreamData(examples, config)[0, 0]])
    slow = slow_candidates(model, batch, examples[0], 0, MARS)
    weights = [(1, 1, 0.5, 0.25)[place % B] for place in range(len(slow))]  # block after block
    found, (count, _) = losses_of(model, examples, ar_weight=0.0, distance_decay=0.5)
    assert count == pytest.approx(sum(weights))
    mean = sum(w * x for w, x in zip(weights, slow, strict=True)) / sum(weights)
    assert found == pytest.approx(mean, rel=1e-5)


def blocks_seen(examples: list[Example], steps: list[int], **settings: Any) -> set[int]:
    """Return the longest mask runs after an anchor, plus one, over visits at these steps."""
    config = TuneConfig.for_mode("full", steps=100, block_size=6, **settings)
    data = TwoStreamData(examples, config)
    items = [data[number, 1, step] for number, step in enumerate(steps)]
    return {int((item["noisy"].position - item["noisy"].anchor).max()) + 1 for item in items}


def test_a_random_window_covers_every_block_size(examples: list[Example]) -> None:
    assert blocks_seen(examples, [0] * 40, random_window=True) == {2, 3, 4, 5, 6}
    assert blocks_seen(examples, [0] * 5) == {6}


def test_a_curriculum_grows_the_block(examples: list[Example]) -> None:
    assert blocks_seen(examples, [0], curriculum=0.5) == {2}
    assert blocks_seen(examples, [25], curriculum=0.5) == {4}
    assert blocks_seen(examples, [50, 99], curriculum=0.5) == {6}
    with pytest.raises(InputError, match="give steps, not minutes"):
        TuneConfig.for_mode("full", minutes=1, curriculum=0.5)


def test_balance_keeps_both_losses_at_one_size(
    make_model: MakeModel, examples: list[Example]
) -> None:
    model = make_model()
    config = TuneConfig.for_mode("full", steps=1, block_size=B, balance_ar=True)
    objective = run._objective(model.network, model.mask_token_id, config)
    batch = collate([TwoStreamData(examples, config)[0, 0]])
    counts = LossCounts(*map(float, objective.count_targets(batch)))
    before, hits = objective(batch, counts)
    assert before.item() == pytest.approx((hits.mask_loss + hits.ar_loss).item())
    objective.rebalance(4.0, 1.0)
    after, hits = objective(batch, counts)
    assert after.item() == pytest.approx((hits.mask_loss + 4 * hits.ar_loss).item())
    for _ in range(100):
        objective.rebalance(1.0, 1e-9)
    most, hits = objective(batch, counts)
    assert most.item() == pytest.approx((hits.mask_loss + 10 * hits.ar_loss).item())

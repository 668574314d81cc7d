"""Training rows == decoder rows (FAULTS 16): what is trained is what decoding reads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import build_model, build_network, build_runner
from marslm.core.losses import LossCounts
from marslm.core.streams import CLEAN, PADDING, Rows
from marslm.data.encode import Example
from marslm.models.adapter import merge, read_adapter
from marslm.models.loading import MarsModel
from marslm.models.record import MarsRecord, marks_of
from marslm.models.tiny import ARCHITECTURES
from marslm.runtime.window import Window
from marslm.runtime.work import Work
from marslm.train import distillation, run
from marslm.train.batches import TwoStreamData, collate
from marslm.train.config import TuneConfig
from marslm.train.objectives import FrozenClean, TwoStream
from marslm.train.saving import save_adapter

TOLERANCE = 1e-10
FAR = 1e-3
"""What a wrong alignment must exceed."""

# C: context, A: supervised answer. Ragged, with two turns, and with an answer of one token.
TEXTS = ["CCCAAAAAAAAA", "CCCCCAAAACCAAAAAAA", "CA", "CCCCCCCCCCCAAAAAAAAAAAAAAAA"]


def make_batch(config: TuneConfig) -> dict[str, Any]:
    generator = random.Random(0)
    examples = [
        Example(tuple(generator.randrange(288) for _ in text), tuple(c == "A" for c in text), "")
        for text in TEXTS
    ]
    data = TwoStreamData(examples, config)
    return collate([data[3, i] for i in range(len(data))])


class Trained:
    """Hidden states of an objective's forward, as logits by row of the batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, objective: Any, batch: Any) -> None:
        seen: list[Tensor] = []

        def spy_on(owner: Any, name: str) -> None:
            real = getattr(owner, name)

            def spy(*inputs: Any, **named: Any) -> Any:
                result = real(*inputs, **named)
                seen.append(result[0] if isinstance(result, tuple) else result)
                return result

            monkeypatch.setattr(owner, name, spy)

        if isinstance(objective, FrozenClean):
            spy_on(objective._model, "run_clean")
            spy_on(objective._model, "run_masks")
        else:
            spy_on(objective, "_hidden")
        objective(batch, LossCounts(*map(float, objective.count_targets(batch))))
        hidden = torch.cat(seen, dim=1)
        with torch.no_grad():
            logits = objective._base.get_submodule("lm_head")(hidden)
        length = batch["ids"].shape[1]
        self.clean, self.noisy = logits[:, :length], logits[:, length:]


def decoder_blocks(model: MarsModel, batch: Any, text: int, block_size: int) -> dict[int, Tensor]:
    """Return by anchor the decoder's logits [B, V] in one pass over the text: row d sees d masks.

    As in decoding, each forward feeds what is not cached yet and overwrites the last one's masks.
    """
    runner, _ = build_runner(model)
    ids = batch["ids"][text].tolist()
    noisy = Rows(**batch["noisy"])[text]
    anchors = sorted(set(noisy.anchor[noisy.document != PADDING].tolist()))
    blocks, cursor = {}, 0
    for anchor in anchors:
        pending = ids[cursor : anchor + 1]
        window = Window([model.mask_token_id] * (block_size - 1))
        blocks[anchor] = runner.forward([Work(0, cursor, pending, window, block_size)])[0]
        cursor = anchor + 1
    return blocks


def gap(left: Tensor, right: Tensor, model: MarsModel) -> float:
    """Return the largest difference of two rows of logits, [MASK] left out."""
    apart = (left - right).abs()
    apart[model.mask_token_id] = 0
    return float(apart.max())


def compare(model: MarsModel, batch: Any, trained: Trained, block_size: int, shift: int = 0) -> Any:
    """Return gaps of noisy rows and of their blocks' clean rows, every anchor and distance.

    shift: compare with the decoder's row for so many masks more.
    """
    noisy_gaps, clean_gaps = [], []
    for text in range(len(batch["ids"])):
        blocks = decoder_blocks(model, batch, text, block_size)
        clean_gaps += [gap(trained.clean[text, a], rows[0], model) for a, rows in blocks.items()]
        noisy = Rows(**batch["noisy"])[text]
        for row in torch.nonzero(noisy.document != PADDING).flatten().tolist():
            anchor = int(noisy.anchor[row])
            seen = int(noisy.position[row]) - anchor + shift
            if seen < block_size:
                noisy_gaps.append(gap(trained.noisy[text, row], blocks[anchor][seen], model))
    return noisy_gaps, clean_gaps


CONFIGS = {
    "fixed": TuneConfig(mode="full", block_size=4, steps=1),
    "anchors": TuneConfig(mode="full", block_size=5, anchors=6, steps=1, seed=2),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_two_stream_rows_are_decoder_rows(
    architecture: str, config: TuneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = build_model(architecture, seed=3), make_batch(config)
    objective = TwoStream(model.network, model.mask_token_id, config.block_size, w=1.0)
    trained = Trained(monkeypatch, objective, batch)

    noisy, clean = compare(model, batch, trained, config.block_size)

    assert len(noisy) == int((batch["noisy"]["document"] != PADDING).sum()) > 20
    assert max(noisy) < TOLERANCE
    assert max(clean) < TOLERANCE
    wrong, _ = compare(model, batch, trained, config.block_size, shift=1)
    assert min(wrong) > FAR


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_supervised_clean_row_is_a_one_token_row(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CONFIGS["fixed"]
    model, batch = build_model(architecture, seed=3), make_batch(config)
    objective = TwoStream(model.network, model.mask_token_id, config.block_size, w=1.0)
    trained = Trained(monkeypatch, objective, batch)
    for text, pattern in enumerate(TEXTS):
        runner, _ = build_runner(model)
        ids = batch["ids"][text, : len(pattern)].tolist()
        rows = runner.forward([Work(0, 0, ids, Window(), len(ids))])[0]
        gaps = [gap(trained.clean[text, p], rows[p], model) for p in range(len(ids))]
        assert max(gaps) < TOLERANCE


def _anchor_hidden(query: Rows, key: Rows, **_: Any) -> Tensor:
    """A wrong rule: a mask does not see its anchor."""
    clean_past = (key.block == CLEAN) & (
        key.position <= query.anchor - (query.block != CLEAN).long()
    )
    own = (key.block == query.block) & (key.position <= query.position)
    return (query.document == key.document) & (clean_past | own)


def _neighbours_seen(query: Rows, key: Rows, **_: Any) -> Tensor:
    """A wrong rule: a mask sees the masks of other blocks as well."""
    clean_past = (key.block == CLEAN) & (key.position <= query.anchor)
    masks = (key.block != CLEAN) & (query.block != CLEAN) & (key.position <= query.position)
    return (query.document == key.document) & (clean_past | masks)


@pytest.mark.parametrize("rule", [_anchor_hidden, _neighbours_seen])
def test_a_wrong_mask_is_noticed(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIGS["fixed"]
    model, batch = build_model("llama", seed=3), make_batch(config)
    monkeypatch.setattr("marslm.core.masks.may_attend", rule)
    objective = TwoStream(model.network, model.mask_token_id, config.block_size, w=1.0)
    noisy, clean = compare(model, batch, Trained(monkeypatch, objective, batch), config.block_size)
    assert max(noisy) > FAR
    assert max(clean) < TOLERANCE


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_frozen_clean_rows_are_decoder_rows_with_the_saved_adapter(
    architecture: str, config: TuneConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Through PEFT, the adapter's files and the decoder's own adapter code."""
    settings = TuneConfig(
        mode="mask-only", rank=3, steps=1, block_size=config.block_size, anchors=config.anchors
    )
    batch = make_batch(settings)
    tuned = build_model(architecture, seed=3)
    network, objective = run.prepare(tuned, settings)
    assert isinstance(objective, FrozenClean)
    network.double()
    randomise(p for p in network.parameters() if p.requires_grad)
    record = MarsRecord(
        "mask-only",
        tuned.mask_token_id,
        settings.block_size,
        marks_of(tuned.network, tuned.tokenizer),
    )
    save_adapter(network, record, tmp_path)
    base = build_network(architecture, seed=3)
    model = MarsModel(
        "", base, tuned.tokenizer, tuned.mask_token_id, record, read_adapter(tmp_path)
    )

    trained = Trained(monkeypatch, objective, batch)

    noisy, clean = compare(model, batch, trained, settings.block_size)
    assert max(noisy) < TOLERANCE
    assert max(clean) < TOLERANCE
    wrong, _ = compare(model, batch, trained, settings.block_size, shift=1)
    assert min(wrong) > FAR
    plain = MarsModel("", base, tuned.tokenizer, tuned.mask_token_id)
    without_adapter, _ = compare(plain, batch, trained, settings.block_size)
    assert min(without_adapter) > FAR


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_lora_rows_are_decoder_rows_once_merged(
    architecture: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An adapter for every row: trained beside the weights, decoded inside them."""
    settings = TuneConfig(mode="lora", rank=3, steps=1, block_size=4)
    batch, tuned = make_batch(settings), build_model(architecture, seed=3)
    network, objective = run.prepare(tuned, settings)
    network.double()
    randomise(p for p in network.parameters() if p.requires_grad)
    marks = marks_of(tuned.network, tuned.tokenizer)
    record = MarsRecord("lora", tuned.mask_token_id, settings.block_size, marks)
    save_adapter(network, record, tmp_path)
    model = build_model(architecture, seed=3)
    merge(read_adapter(tmp_path), model.network)

    trained = Trained(monkeypatch, objective, batch)

    noisy, clean = compare(model, batch, trained, settings.block_size)
    # Adapters are read and multiplied in float32.
    assert max(noisy) < 1e-4
    assert max(clean) < 1e-4
    wrong, _ = compare(model, batch, trained, settings.block_size, shift=1)
    assert min(wrong) > FAR


def randomise(weights: Any) -> None:
    """Fill trained weights with noise that bfloat16 holds exactly, since adapters are saved so."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in weights:
            noise = 0.3 * torch.randn(weight.shape, generator=generator)
            weight.copy_(noise.to(torch.bfloat16).to(weight.dtype))


def test_the_teacher_of_a_mask_is_the_clean_row_at_its_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Self-distillation compares a mask at position p with the clean stream's row at p."""
    settings = TuneConfig(mode="mask-only", rank=3, steps=1, block_size=4, kl_weight=0.5)
    batch = make_batch(settings)
    model = build_model("llama", seed=3)
    _, objective = run.prepare(model, settings)
    taught: list[tuple[Tensor, ...]] = []
    real = distillation.distill_loss

    def spy(*parts: Any) -> tuple[Tensor, Tensor]:
        taught.append(parts)
        return real(*parts)

    monkeypatch.setattr(distillation, "distill_loss", spy)
    objective(batch, LossCounts(*map(float, objective.count_targets(batch))))

    teacher = torch.cat([logits for _, _, logits, _ in taught])
    targets = torch.cat([tokens for _, tokens, _, _ in taught])
    noisy = Rows(**batch["noisy"])
    places = torch.nonzero(batch["noisy_targets"] >= 0).tolist()
    assert len(places) == len(teacher) > 20
    for (text, row), logits, target in zip(places, teacher, targets, strict=True):
        position = int(noisy.position[text, row])
        ids = batch["ids"][text, : position + 1]
        with torch.no_grad():
            expected = model.network(ids[None]).logits[0, -1]
        assert target == batch["ids"][text, position + 1]
        assert gap(logits, expected, model) < 1e-4

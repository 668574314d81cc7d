"""Both objectives against a slow computation: one causal forward for each block, full logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn

from marslm.core.losses import LossCounts
from marslm.data.encode import Example
from marslm.models.loading import MarsModel
from marslm.train.batches import TwoStreamData, collate
from marslm.train.config import LORA_TARGETS, TuneConfig
from marslm.train.objectives import FrozenClean, TwoStream

MakeModel = Callable[..., MarsModel]
B = 4


def make_batch(
    examples: Sequence[Example], anchors: int | None = None, indices: Sequence[int] | None = None
) -> dict[str, Any]:
    data = TwoStreamData(examples, TuneConfig("full", block_size=B, anchors=anchors, steps=1))
    return collate([data[0, index] for index in indices or range(len(examples))])


def counts_of(batch: dict[str, Any]) -> LossCounts:
    """Count plainly: every candidate of a block, and every supervised token."""
    clean, noisy = batch["clean_targets"] >= 0, batch["noisy_targets"] >= 0
    mask = noisy.sum() + (clean & batch["first"]).sum()
    return LossCounts(mask=float(mask), ar=float(clean.sum()))


def runs(supervised: Sequence[bool]) -> list[tuple[int, int]]:
    """Return (start, end) of each run of supervised tokens, by plain counting."""
    found: list[tuple[int, int]] = []
    for place, flag in enumerate(supervised):
        if flag and found and found[-1][1] == place:
            found[-1] = (found[-1][0], place + 1)
        elif flag:
            found.append((place, place + 1))
    return found


@dataclass
class Block:
    """A clean prefix, how many masks follow it, and what the rows from its end on predict."""

    prefix: Tensor
    masks: int
    targets: Tensor
    full: Tensor


def paper_blocks(examples: Sequence[Example]) -> Iterator[Block]:
    """Cut each supervised run into blocks of B candidates: one clean row and B-1 masks."""
    for example in examples:
        ids = torch.tensor(example.ids)
        for start, end in runs(example.supervised):
            for first in range(start, end, B):
                targets = ids[first : min(first + B, end)]
                yield Block(ids[:first], len(targets) - 1, targets, ids)


def sampled_blocks(batch: dict[str, Any], examples: Sequence[Example]) -> Iterator[Block]:
    """Rebuild the blocks that start at the batch's sampled anchors."""
    for row, example in enumerate(examples):
        ids = torch.tensor(example.ids)
        for anchor in torch.nonzero(batch["first"][row]).flatten().tolist():
            end = next(e for s, e in runs(example.supervised) if s <= anchor + 1 < e)
            targets = ids[anchor + 1 : min(anchor + 1 + B, end)]
            yield Block(ids[: anchor + 1], len(targets) - 1, targets, ids)


def plain_logits(model: MarsModel, ids: Tensor) -> Tensor:
    """Return the network's own causal logits [L, V], [MASK] never predicted."""
    logits: Tensor = model.network(input_ids=ids[None]).logits[0].clone()
    logits[:, model.mask_token_id] = -torch.inf
    return logits


def slow_candidates(model: MarsModel, blocks: Iterator[Block]) -> Tensor:
    """Return the cross-entropy of all candidates, each block in a forward of its own."""
    parts = []
    for block in blocks:
        masks = torch.full((block.masks,), model.mask_token_id)
        logits = plain_logits(model, torch.cat([block.prefix, masks]))
        rows = logits[len(block.prefix) - 1 :]
        parts.append(F.cross_entropy(rows, block.targets, reduction="none"))
    return torch.cat(parts)


def slow_next_tokens(model: MarsModel, examples: Sequence[Example]) -> Tensor:
    """Return the cross-entropy of all supervised tokens on the clean text."""
    parts = []
    for example in examples:
        ids, flags = torch.tensor(example.ids), torch.tensor(example.supervised)
        logits = plain_logits(model, ids)[:-1]
        parts.append(F.cross_entropy(logits, ids[1:], reduction="none")[flags[1:]])
    return torch.cat(parts)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("weight", [0.0, 1.0, 0.3])
def test_two_stream_loss_is_the_direct_one(
    make_model: MakeModel, examples: list[Example], architecture: str, weight: float
) -> None:
    model = make_model(architecture)
    batch = make_batch(examples)
    loss, _ = TwoStream(model.network, model.mask_token_id, B, weight)(batch, counts_of(batch))
    candidates = slow_candidates(model, paper_blocks(examples))
    expected = candidates.mean() + weight * slow_next_tokens(model, examples).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_two_stream_loss_over_sampled_anchors(
    make_model: MakeModel, examples: list[Example]
) -> None:
    model = make_model()
    batch = make_batch(examples, anchors=3)
    assert batch["first"].sum(1).tolist() == [2, 3, 3, 3, 3]
    loss, _ = TwoStream(model.network, model.mask_token_id, B, 1.0)(batch, counts_of(batch))
    candidates = slow_candidates(model, sampled_blocks(batch, examples))
    expected = candidates.mean() + slow_next_tokens(model, examples).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_counts_are_all_candidates_and_all_supervised_tokens(
    make_model: MakeModel, examples: list[Example]
) -> None:
    model = make_model()
    supervised = sum(sum(example.supervised) for example in examples)
    # With the paper's blocks every supervised token is a candidate of exactly one block.
    count = TwoStream(model.network, model.mask_token_id, B, 1.0).count_targets
    assert count(make_batch(examples)) == (supervised, supervised)


def test_frozen_clean_counts_what_its_loss_takes_in(
    make_model: MakeModel, examples: list[Example]
) -> None:
    """The logged loss is a mean over masks: counting the frozen anchors too would shrink it."""
    model = make_model()
    batch = make_batch(examples, anchors=3)
    objective = FrozenClean(with_adapter(model), model.mask_token_id, B, 0.0)
    _, hits = objective(batch, LossCounts(mask=1.0, ar=1.0))
    assert objective.count_targets(batch) == (int(hits.total.sum()), 0)


def test_first_candidates_train_the_clean_rows_even_without_the_ar_loss(
    make_model: MakeModel, examples: list[Example]
) -> None:
    """With one token to predict there is a first candidate and no mask at all."""
    model = make_model()
    single = Example(examples[0].ids[:-1], (*(False,) * (len(examples[0].ids) - 2), True), "made:1")
    batch = make_batch([single])
    assert batch["noisy"]["position"].shape == (1, 0)
    loss, _ = TwoStream(model.network, model.mask_token_id, B, 0.0)(batch, counts_of(batch))
    assert loss.item() == pytest.approx(slow_next_tokens(model, [single]).item(), rel=1e-5)
    loss.backward()
    weight = model.network.get_submodule("model.layers.0.self_attn.q_proj").weight
    assert isinstance(weight, Tensor)
    assert weight.grad is not None
    assert weight.grad.abs().sum() > 0


def test_two_stream_gradients_are_the_direct_ones(
    make_model: MakeModel, examples: list[Example]
) -> None:
    fast, slow = make_model(), make_model()
    batch = make_batch(examples)
    TwoStream(fast.network, fast.mask_token_id, B, 1.0)(batch, counts_of(batch))[0].backward()
    candidates = slow_candidates(slow, paper_blocks(examples))
    (candidates.mean() + slow_next_tokens(slow, examples).mean()).backward()
    theirs = dict(slow.network.named_parameters())
    for name, weight in fast.network.named_parameters():
        torch.testing.assert_close(weight.grad, theirs[name].grad, rtol=1e-3, atol=1e-5)


def test_chunks_of_rows_are_one_batch_of_rows(
    make_model: MakeModel, examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many rows the logits are computed in parts, and again for the backward pass."""
    whole, parts = make_model(), make_model()
    batch = make_batch(examples)
    found = []
    for model, logits_at_once in ((whole, 10**9), (parts, 7 * 288 + 5)):
        monkeypatch.setattr("marslm.train.objectives._CHUNK", logits_at_once)
        objective = TwoStream(model.network, model.mask_token_id, B, 1.0)
        loss, hits = objective(batch, counts_of(batch))
        loss.backward()
        found.append((loss.item(), hits.correct.tolist(), hits.total.tolist()))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-6)
    assert found[1][1:] == found[0][1:]
    theirs = dict(whole.network.named_parameters())
    for name, weight in parts.network.named_parameters():
        torch.testing.assert_close(weight.grad, theirs[name].grad, rtol=1e-3, atol=1e-5)


def test_hits_are_counted_by_masks_seen(make_model: MakeModel, examples: list[Example]) -> None:
    model = make_model()
    batch = make_batch(examples)
    _, hits = TwoStream(model.network, model.mask_token_id, B, 1.0)(batch, counts_of(batch))
    sizes = [len(block.targets) for block in paper_blocks(examples)]
    by_masks = [sum(size > seen for size in sizes) for seen in range(1, B)]
    supervised = sum(sum(example.supervised) for example in examples)
    assert hits.total.tolist() == [supervised, *by_masks]
    right = torch.cat(
        [
            plain_logits(model, torch.tensor(e.ids)).argmax(-1)[:-1] == torch.tensor(e.ids)[1:]
            for e in examples
        ]
    )
    flags = torch.cat([torch.tensor(e.supervised)[1:] for e in examples])
    assert hits.correct[0].item() == (right & flags).sum()


def test_a_longer_neighbour_changes_nothing(make_model: MakeModel, examples: list[Example]) -> None:
    """Padding is never attended: a batch's loss is the sum of its texts' own."""
    model = make_model()
    objective = TwoStream(model.network, model.mask_token_id, B, 1.0)
    counts = LossCounts(mask=10.0, ar=10.0)
    pair = objective(make_batch(examples, indices=[0, 2]), counts)[0]
    alone = [objective(make_batch(examples, indices=[index]), counts)[0] for index in (0, 2)]
    assert len(examples[0].ids) < len(examples[2].ids)
    assert pair.item() == pytest.approx(sum(loss.item() for loss in alone), rel=1e-5)


def test_what_stands_in_padding_changes_nothing(
    make_model: MakeModel, examples: list[Example]
) -> None:
    model = make_model()
    objective = TwoStream(model.network, model.mask_token_id, B, 1.0)
    batch = make_batch(examples)
    before = objective(batch, counts_of(batch))[0]
    batch["ids"][batch["clean"]["document"] < 0] = 77
    assert objective(batch, counts_of(batch))[0].item() == pytest.approx(before.item(), rel=1e-6)


# FrozenClean: an adapter that is on for masks and off for text.


def with_adapter(model: MarsModel) -> PeftModel:
    """Return the network with a low-rank update that is not zero and a trained [MASK] row."""
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=4,
        lora_alpha=4,
        target_modules=list(LORA_TARGETS),
        trainable_token_indices={"embed_tokens": [model.mask_token_id]},
    )
    adapted = get_peft_model(model.network, config)
    assert isinstance(adapted, PeftModel)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return adapted


def slow_gated_logits(adapted: PeftModel, block: Block, mask_id: int) -> Tensor:
    """Return the mask rows' logits, the adapter kept off the prefix by hooks on every linear."""
    prefix = len(block.prefix)

    def only_on_masks(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        plain = module.get_submodule("base_layer")(inputs[0])
        return torch.cat([plain[:, :prefix], output[:, prefix:]], dim=1)

    linears = [m for n, m in adapted.named_modules() if n.endswith(LORA_TARGETS)]
    handles = [module.register_forward_hook(only_on_masks) for module in linears]
    ids = torch.cat([block.prefix, torch.full((block.masks,), mask_id)])
    logits: Tensor = adapted(input_ids=ids[None]).logits[0, prefix:].clone()
    for handle in handles:
        handle.remove()
    assert len(handles) == 2 * len(LORA_TARGETS)
    logits[:, mask_id] = -1e4
    return logits


def slow_mask_loss(model: MarsModel, adapted: PeftModel, block: Block, kl_weight: float) -> Tensor:
    """Return the summed loss of one block's masks against the text and the base model."""
    logits = slow_gated_logits(adapted, block, model.mask_token_id)
    targets = block.targets[1:]
    with adapted.disable_adapter(), torch.no_grad():
        everything = plain_logits(model, block.full).clamp(min=-1e4)
    # Mask d stands at position len(prefix) - 1 + d, and so does the clean row that teaches it.
    teacher = everything[len(block.prefix) : len(block.prefix) + block.masks].softmax(-1)
    hard = F.cross_entropy(logits, targets, reduction="none")
    soft = (teacher * (teacher.clamp(min=1e-30).log() - logits.log_softmax(-1))).sum(-1)
    return ((1 - kl_weight) * hard + kl_weight * soft).sum()


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kl_weight", [0.0, 1.0, 0.5])
def test_frozen_clean_loss_and_gradients_are_the_direct_ones(
    make_model: MakeModel, examples: list[Example], architecture: str, kl_weight: float
) -> None:
    """Against transformers' and PEFT's own modules, in float64, and plain autograd."""
    model = make_model(architecture)
    model.network.double()
    adapted = with_adapter(model)
    batch = make_batch(examples, anchors=3)
    objective = FrozenClean(adapted, model.mask_token_id, B, kl_weight)
    trained = {n: p for n, p in adapted.named_parameters() if p.requires_grad}
    loss, hits = objective(batch, LossCounts(mask=7.0, ar=1.0))
    gradients = torch.autograd.grad(loss, list(trained.values()))
    blocks = [block for block in sampled_blocks(batch, examples) if block.masks]
    slow = [slow_mask_loss(model, adapted, block, kl_weight) for block in blocks]
    expected = torch.stack(slow).sum() / 7
    torch.testing.assert_close(loss, expected)
    theirs = torch.autograd.grad(expected, list(trained.values()))
    for name, ours, plain in zip(trained, gradients, theirs, strict=True):
        assert plain.abs().max() > 1e-6, name
        torch.testing.assert_close(ours, plain, msg=name)
    assert hits.total[0].item() == 0
    assert hits.total.sum().item() == sum(block.masks for block in blocks)


def test_the_base_model_alone_would_give_another_loss(
    make_model: MakeModel, examples: list[Example]
) -> None:
    """The adapter must matter, or the comparison above would prove little."""
    model = make_model()
    adapted = with_adapter(model)
    batch = make_batch(examples, anchors=3)
    objective = FrozenClean(adapted, model.mask_token_id, B, 0.0)
    with_update = objective(batch, counts_of(batch))[0].item()
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            weight.mul_(0 if "lora_B" in name else 1)
    without = objective(batch, counts_of(batch))[0].item()
    assert abs(with_update - without) > 1e-3


def test_the_base_model_gets_no_gradient(make_model: MakeModel, examples: list[Example]) -> None:
    """Not even where its weights could take one."""
    model = make_model()
    adapted = with_adapter(model)
    adapted.requires_grad_(True)
    batch = make_batch(examples, anchors=3)
    FrozenClean(adapted, model.mask_token_id, B, 0.5)(batch, counts_of(batch))[0].backward()
    for name, weight in adapted.named_parameters():
        of_adapter = "lora_" in name or "trainable_tokens" in name
        assert (weight.grad is not None) == of_adapter, name


def test_a_batch_without_masks_has_no_loss(make_model: MakeModel, examples: list[Example]) -> None:
    """One rank may draw only answers too short for a mask, while others have some."""
    model = make_model()
    single = Example(examples[0].ids[:-1], (*(False,) * (len(examples[0].ids) - 2), True), "made:1")
    objective = FrozenClean(with_adapter(model), model.mask_token_id, B, 0.5)
    loss, hits = objective(make_batch([single], anchors=3), LossCounts(mask=1.0, ar=1.0))
    loss.backward()
    assert loss.item() == hits.total.sum().item() == 0


def test_only_the_adapter_gets_a_gradient(make_model: MakeModel, examples: list[Example]) -> None:
    model = make_model()
    adapted = with_adapter(model)
    batch = make_batch(examples, anchors=3)
    FrozenClean(adapted, model.mask_token_id, B, 0.5)(batch, counts_of(batch))[0].backward()
    trained = {n for n, p in adapted.named_parameters() if p.grad is not None and p.grad.any()}
    assert trained == {n for n, p in adapted.named_parameters() if p.requires_grad}
    assert all("lora_" in name or "trainable_tokens" in name for name in trained)


def test_frozen_clean_ignores_padding(make_model: MakeModel, examples: list[Example]) -> None:
    model = make_model()
    objective = FrozenClean(with_adapter(model), model.mask_token_id, B, 0.5)
    counts = LossCounts(mask=10.0, ar=10.0)
    pair = objective(make_batch(examples, 3, [0, 2]), counts)[0]
    alone = [objective(make_batch(examples, 3, [index]), counts)[0] for index in (0, 2)]
    assert pair.item() == pytest.approx(sum(loss.item() for loss in alone), rel=1e-5)

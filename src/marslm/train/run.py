"""One training run from examples to saved weights.

Knows nothing about where examples come from, nor about decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from marslm.data.encode import Example
from marslm.errors import InputError
from marslm.files import is_writable_place
from marslm.models.adapter import Adapter
from marslm.models.loading import MarsModel
from marslm.models.medusa import MedusaHeads
from marslm.models.record import MarsRecord, marks_of
from marslm.train.arguments import computes_in_bfloat16
from marslm.train.attention import pick_attention
from marslm.train.autoregressive import Autoregressive
from marslm.train.batches import TwoStreamData
from marslm.train.checkpoints import last_checkpoint
from marslm.train.config import LORA_TARGETS, TuneConfig
from marslm.train.events import Listener
from marslm.train.launch import check_launch
from marslm.train.medusa import Medusa
from marslm.train.objectives import FrozenClean, Objective, TwoStream
from marslm.train.saving import save_adapter, save_heads, save_model
from marslm.train.trainer import MarsTrainer

_SHARE = 0.5
"""Of a mask-only adapter's updates, what a LoRA starts from, since it applies them to every row.

On smollm2 the whole leaves one-token mode .66 of its tokens and the masks at distance 1 .46 of
theirs, half leaves .81 and .44 (docs/experiments.md).
"""


def train(
    model: MarsModel,
    examples: Sequence[Example],
    config: TuneConfig,
    folder: Path,
    *,
    resume: bool = False,
    listener: Listener = lambda event: None,
) -> MarsRecord:
    """Train `model` on `examples` and write the result to `folder`; return its record.

    The model's network is changed in place: load it anew to decode. A model that was loaded with a
    mask-only adapter goes on from its weights, in mode lora from half of them. `resume` continues
    from the last complete checkpoint in `folder`. Started by torchrun or `accelerate launch`, all
    processes call it with the same arguments; the first one writes and is heard.

    Raises InputError without examples, without a checkpoint to resume from, with a folder that
    already holds a run while not resuming, with an adapter that does not fit `config`, or under a
    launcher's configuration that the mode cannot do (`check_launch`).
    """
    check_launch(config.mode)
    check_adapter_fits(model, config)
    sequences = len(TwoStreamData(examples, config))
    if not sequences:
        raise InputError("there is nothing to train on: give examples with longer answers")
    checkpoint = checkpoint_to_resume(folder, resume=resume)
    config = config.in_steps(sequences)
    training = {"base_model": model.name, "examples": len(examples), **asdict(config)}
    if model.adapter is not None:
        training["continues"] = model.adapter.record.training
    record = MarsRecord(
        mode=config.mode,
        mask_token_id=model.mask_token_id,
        block_size=config.block_size,
        **asdict(config.form),
        base=marks_of(model.network, model.tokenizer),
        training=training,
    )
    network, objective = prepare(model, config)
    if config.mode != "mask-only":  # whose forward is written out
        objective.attention = pick_attention(model.network)
    data = TwoStreamData(examples, config)
    # A mask-only run computes in the dtype of its frozen weights, with no autocast.
    narrow = computes_in_bfloat16(model.network) and config.mode != "mask-only"
    trainer = MarsTrainer(
        objective, data, config, record, _checkpoints(folder), listener, bfloat16=narrow
    )
    trainer.run(checkpoint)
    state = trainer.gathered_state()
    if not trainer.is_world_process_zero():
        return record
    if isinstance(objective, Medusa):
        save_heads(objective.heads, record, folder)
    elif isinstance(network, PeftModel):
        save_adapter(network, record, folder, state)
    else:
        save_model(network, model.tokenizer, record, folder, state)
    return record


def check_adapter_fits(model: MarsModel, config: TuneConfig) -> None:
    """Raise InputError if `model` was loaded with an adapter that `config` cannot go on from."""
    if model.adapter is None:
        return
    if config.mode not in ("mask-only", "lora"):
        raise InputError(
            f"a mask-only adapter cannot be continued in mode {config.mode}: use mode mask-only or "
            "lora, or load the model without it"
        )
    for update in model.adapter.updates.values():
        if len(update.down) != config.rank:
            raise InputError(
                f"the adapter to continue has rank {len(update.down)}, not {config.rank}: give its "
                "rank"
            )
    layers = model.network.config.num_hidden_layers
    if len(model.adapter.updates) != layers * len(LORA_TARGETS):
        raise InputError(
            f"the adapter to continue does not update {', '.join(LORA_TARGETS)} of every layer: "
            "start without it"
        )


def checkpoint_to_resume(folder: Path, *, resume: bool) -> Path | None:
    """Return the checkpoint that a run in `folder` starts from, None for a new run.

    Raises InputError if there is none to resume, one that would be lost, or no folder to be had.
    """
    if (folder.exists() and not folder.is_dir()) or not is_writable_place(folder / "mars.json"):
        raise InputError(f"{folder} cannot be written to: choose another output folder")
    checkpoint = last_checkpoint(_checkpoints(folder))
    if resume and checkpoint is None:
        raise InputError(f"{folder} has no complete checkpoint: start without --resume")
    if checkpoint is not None and not resume:
        raise InputError(
            f"{folder} already holds a run: continue it with --resume, or choose another output "
            "folder"
        )
    return checkpoint


def _checkpoints(folder: Path) -> Path:
    return folder / "checkpoints"


def prepare(model: MarsModel, config: TuneConfig) -> tuple[PreTrainedModel | PeftModel, Objective]:
    """Return the network with what is to be trained requiring gradients, and the objective."""
    # Frozen weights may be bfloat16 where that is fast; trained ones stay float32.
    narrow = computes_in_bfloat16(model.network)
    frozen = config.mode in ("mask-only", "medusa")
    dtype = torch.bfloat16 if narrow and frozen else torch.float32
    network = model.network.to(dtype)  # type: ignore[arg-type]
    for weight in network.parameters():
        # A decoder of the same network may have laid them out to suit itself.
        weight.data = weight.data.contiguous()
    if config.recompute:
        network.gradient_checkpointing_enable({"use_reentrant": False})
    if config.mode == "full":
        network.requires_grad_(True)
        return network, _objective(network, model.mask_token_id, config)
    if config.mode == "medusa":
        network.requires_grad_(False)
        return network, _medusa(network, model.mask_token_id, config)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        adapted = get_peft_model(network, _lora_config(model, config))
    assert isinstance(adapted, PeftModel)
    if model.adapter is not None:
        _copy(model.adapter, adapted, 1 if config.mode == "mask-only" else _SHARE)
    if narrow and config.mode != "mask-only":
        _leave_inputs_narrow(adapted)
    return adapted, _objective(adapted, model.mask_token_id, config)


def _copy(adapter: Adapter, network: PeftModel, share: float) -> None:
    """Set the weights that PEFT trains to `share` of the updates of `adapter`, whose scale is 1."""
    base = network.get_base_model()
    with torch.no_grad():
        for name, update in adapter.updates.items():
            base.get_parameter(f"{name}.lora_A.default.weight").copy_(update.down)
            base.get_parameter(f"{name}.lora_B.default.weight").copy_(update.up * share)
        mask = "model.embed_tokens.token_adapter.trainable_tokens_delta.default"
        base.get_parameter(mask).copy_(adapter.mask_embedding)


def _objective(network: PreTrainedModel | PeftModel, mask: int, config: TuneConfig) -> Objective:
    if config.objective == "ar":
        return Autoregressive(network, mask, config.most_rows)
    if config.mode == "mask-only":
        assert isinstance(network, PeftModel)
        return FrozenClean(
            network,
            mask,
            config.block_size,
            config.kl_weight,
            distance_decay=config.distance_decay,
        )
    return TwoStream(
        network,
        mask,
        config.block_size,
        config.ar_weight,
        form=config.form,
        distance_decay=config.distance_decay,
        balance=config.balance_ar,
    )


def _medusa(network: PreTrainedModel, mask: int, config: TuneConfig) -> Medusa:
    own = network.get_output_embeddings().weight  # type: ignore[no-untyped-call]
    heads = MedusaHeads(own.detach().float(), config.block_size - 1)
    return Medusa(network, heads, mask, distance_decay=config.distance_decay)


def _leave_inputs_narrow(network: PeftModel) -> None:
    """Stop PEFT from casting every input to float32, which autocast undoes: a third of a step."""
    for module in network.modules():
        if hasattr(module, "cast_input_dtype_enabled"):
            setattr(module, "cast_input_dtype_enabled", False)  # noqa: B010


def _lora_config(model: MarsModel, config: TuneConfig) -> LoraConfig:
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=config.rank,
        lora_alpha=config.rank,
        target_modules=list(LORA_TARGETS),
        # [MASK] gets its own embedding: one existing row, so nothing is resized or untied.
        trainable_token_indices={"embed_tokens": [model.mask_token_id]},
    )

"""transformers' Trainer with this project's losses, sampling, schedule and checkpoints.

Adds nothing that the Trainer does itself. Knows nothing about decoding or where examples are from.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import broadcast_object_list
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler
from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
)

from marslm.core.losses import LossCounts
from marslm.errors import InputError
from marslm.models.record import MarsRecord
from marslm.train.arguments import training_arguments
from marslm.train.attention import FLEX_ROWS
from marslm.train.batches import TwoStreamData, collate
from marslm.train.budget import Budget
from marslm.train.checkpoints import (
    WEIGHTS,
    SaveByTime,
    check_same_model,
    check_same_settings,
    mark_complete,
    read_progress,
)
from marslm.train.config import TuneConfig
from marslm.train.events import Listener, Progress, Saved
from marslm.train.meter import Meter
from marslm.train.objectives import Objective
from marslm.train.visits import EndlessVisits, Visit

_MAY_CHANGE = (
    "steps",
    "minutes",
    "epochs",
    "checkpoint_minutes",
    "accumulation",
    "recompute",
    "report_to",
)
"""Settings that a resumed run may have otherwise: its length, and how the same step is computed."""


class MarsTrainer(Trainer):
    """Runs an objective module over two-stream data, in one process or many."""

    def __init__(
        self,
        objective: Objective,
        data: TwoStreamData,
        config: TuneConfig,
        record: MarsRecord,
        folder: Path,
        listener: Listener,
        *,
        bfloat16: bool = False,
    ) -> None:
        """`record`: of what is trained. `folder`: where checkpoints go. `listener` hears progress.

        `bfloat16`: autocast to it.
        """
        self._objective = objective
        self._config = config
        self._record = record
        self._budget = Budget(config.steps, config.minutes)
        self._listener = listener
        super().__init__(
            model=objective,
            args=training_arguments(config, self._budget, folder, bfloat16),
            train_dataset=data,
            data_collator=partial(collate, multiple=FLEX_ROWS if torch.cuda.is_available() else 1),
            callbacks=[self._budget, SaveByTime(config.checkpoint_minutes, self._budget)],
        )
        self._meter = Meter(config.most_rows + 1, self.args.device)
        # compute_loss divides by global counts itself.
        self.loss_is_scaled_for_ga = True
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)
        if self.accelerator.num_processes > 1:
            self._budget.share_clock(self._first_process_value)

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> LambdaLR:
        """Return the schedule over the budget, be it steps or minutes."""
        if self.lr_scheduler is None:
            optimizer = optimizer or self.optimizer
            assert optimizer is not None
            self.lr_scheduler = LambdaLR(
                optimizer,
                lambda step: self._budget.learning_rate_factor(step, self._config.warmup),
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Visit]:
        data = self.train_dataset
        assert isinstance(data, TwoStreamData)
        visits = self._budget.max_steps * self._config.batch_size
        return EndlessVisits(data.lengths, self._config.batch_size, visits, self._config.seed)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor:
        """Return the targets of all micro-batches and ranks: [of L_mask, of L_AR]."""
        count = self._objective.count_targets
        counts = torch.tensor([count(batch) for batch in batch_samples], device=device)
        total: Tensor = self.accelerator.reduce(counts.sum(0), "sum")
        return total.to(torch.float32).clamp(min=1)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the loss of one micro-batch, a part of the global mean."""
        assert isinstance(num_items_in_batch, Tensor)
        counts = LossCounts(mask=num_items_in_batch[0], ar=num_items_in_batch[1])
        loss, hits = model(inputs, counts)
        self._refuse_nan(loss, "the loss")
        self._meter.add(loss, hits, (inputs["clean"]["document"] >= 0).sum())
        # Data parallelism averages gradients over ranks, but the counts are global already.
        scaled: Tensor = loss * self.accelerator.num_processes
        return scaled

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clip as the Trainer does; a loss may be finite where its gradient is not."""
        norm = super()._clip_grad_norm(model)  # type: ignore[no-untyped-call]
        if norm is not None:
            self._refuse_nan(torch.as_tensor(norm), "the gradient's norm")
        return norm

    def _refuse_nan(self, value: Tensor, name: str) -> None:
        if not torch.isfinite(value):
            raise InputError(
                f"{name} is {value.item()} at step {self.state.global_step}; start again in "
                "another folder with a lower learning rate"
            )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Turn the Trainer's own log call into an event, and pass it on to its integrations."""
        if "loss" not in logs or self._meter.batches == 0:
            return
        step, facts = self.state.global_step, self._meter.read(self._add_up)
        self._objective.rebalance(facts["mask_loss"], facts["ar_loss"])
        if not self.is_world_process_zero():
            return
        progress = Progress(
            step=step,
            fraction=self._budget.fraction(step),
            learning_rate=logs["learning_rate"],
            elapsed=self._budget.elapsed,
            seconds_left=self._budget.seconds_left(step),
            **facts,
        )
        if self.args.report_to:
            super().log(_numbers(progress), start_time)
        self._listener(progress)

    def _add_up(self, sums: Tensor) -> Tensor:
        total: Tensor = self.accelerator.reduce(sums, "sum")
        return total

    def _first_process_value(self, value: float) -> float:
        return float(broadcast_object_list([value])[0])

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Write what is trained, and only that."""
        if not self.is_world_process_zero():
            return  # whoever shards weights gathers them in the first process alone
        folder = Path(output_dir or str(self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        # Under FSDP and DeepSpeed the Trainer hands over what it has gathered.
        state = self._objective.state_dict() if state_dict is None else state_dict
        trained = {name: state[name].contiguous() for name in self._trained_names}
        save_file(trained, folder / WEIGHTS)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save as the Trainer does, then mark the checkpoint complete."""
        super()._save_checkpoint(model, trial)
        # Every process writes its own random state, and the mark says that all is there.
        self.accelerator.wait_for_everyone()
        if not self.is_world_process_zero():
            return
        step = self.state.global_step
        folder = Path(str(self.args.output_dir)) / f"checkpoint-{step}"
        progress = {
            "elapsed": self._budget.shared_elapsed,
            "tokens": self._meter.all_tokens,
            "settings": self._settings,
            "base": asdict(self._record.base),
            "mask_token_id": self._record.mask_token_id,
            "objective": self._objective.memory(),
        }
        mark_complete(folder, progress)
        self._listener(Saved(step, folder))

    def run(self, checkpoint: Path | None) -> None:
        """Train, from `checkpoint` on if there is one; InputError if it is another run's."""
        if checkpoint is not None:
            progress = read_progress(checkpoint)
            check_same_settings(progress["settings"], self._settings)
            check_same_model(progress, self._record)
            self._budget.continue_from(progress["elapsed"])
            self._meter.all_tokens = progress["tokens"]
            self._objective.remember(progress["objective"])
        self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        """Load weights; DeepSpeed loads its own."""
        saved = cast("dict[str, Any]", load_file(Path(resume_from_checkpoint) / WEIGHTS))
        if self.is_fsdp_enabled:
            options = StateDictOptions(full_state_dict=True, strict=False)
            set_model_state_dict(self._objective, saved, options=options)
        else:
            self._objective.load_state_dict(saved, strict=False)

    @property
    def _settings(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        data = self.train_dataset
        assert isinstance(data, TwoStreamData)
        settings = asdict(self._config)
        for name in _MAY_CHANGE:
            del settings[name]
        return {**settings, "examples": len(data), "data": data.digest}

    def gathered_state(self) -> dict[str, Any] | None:
        """Return the network's whole state where a process may hold shards of it, else None.

        All processes call it together; it may be empty in all but the first.
        """
        if not (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            return None
        state = self.accelerator.get_state_dict(self.model_wrapped) or {}
        return {name.removeprefix("network."): weight for name, weight in state.items()}

    @property
    def _trained_names(self) -> set[str]:
        named = self._objective.named_parameters()
        return {name for name, weight in named if weight.requires_grad}


def _numbers(progress: Progress) -> dict[str, float]:
    """Return what a dashboard can draw, under flat names."""
    facts = asdict(progress)
    accuracy = {f"accuracy/{seen}_masks": a for seen, a in enumerate(facts.pop("accuracy"))}
    return {name: float(v) for name, v in {**facts, **accuracy}.items() if v is not None}

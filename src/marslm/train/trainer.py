"""transformers' Trainer with this project's losses, sampling, schedule and checkpoints.

Adds nothing that the Trainer does itself. Knows nothing about decoding or where examples are from.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainingArguments,
)

from marslm import files
from marslm.core.losses import LossCounts
from marslm.errors import InputError
from marslm.train.batches import EndlessVisits, TwoStreamData, Visit, collate
from marslm.train.budget import Budget
from marslm.train.config import TuneConfig
from marslm.train.events import Listener, Progress, Saved
from marslm.train.objectives import Hits, Objective

_WEIGHTS = "trained.safetensors"
_PROGRESS = "progress.json"
_COMPLETE = "complete"
_SMALL_HIDDEN_SIZE = 256


class MarsTrainer(Trainer):
    """Runs an objective module over two-stream data."""

    def __init__(
        self,
        objective: Objective,
        data: TwoStreamData,
        config: TuneConfig,
        folder: Path,
        listener: Listener,
        *,
        bfloat16: bool = False,
    ) -> None:
        """`folder`: where checkpoints go. `listener` hears progress. `bfloat16`: autocast to it."""
        self._objective = objective
        self._config = config
        self._budget = Budget(config.steps, config.minutes)
        self._listener = listener
        self._meter = _Meter(config.block_size)
        super().__init__(
            model=objective,
            args=_arguments(config, self._budget, folder, bfloat16),
            train_dataset=data,
            data_collator=collate,
            callbacks=[self._budget, _SaveByTime(config.checkpoint_minutes)],
        )
        # compute_loss divides by global counts itself.
        self.loss_is_scaled_for_ga = True
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)

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
        if not torch.isfinite(loss):
            raise InputError(
                f"the loss is {loss.item()} at step {self.state.global_step}; start again in "
                "another folder with a lower learning rate"
            )
        self._meter.add(loss.detach(), hits, int((inputs["clean"]["document"] >= 0).sum()))
        # Data parallelism averages gradients over ranks, but the counts are global already.
        scaled: Tensor = loss * self.accelerator.num_processes
        return scaled

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Turn the Trainer's own log call into an event."""
        if "loss" not in logs or self._meter.batches == 0:
            return
        step = self.state.global_step
        self._listener(
            Progress(
                step=step,
                fraction=self._budget.fraction(step),
                learning_rate=logs["learning_rate"],
                elapsed=self._budget.elapsed,
                seconds_left=self._budget.seconds_left(step),
                **self._meter.read(),
            )
        )

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Write what is trained, and only that."""
        folder = Path(output_dir or str(self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self._trained(), folder / _WEIGHTS)
        progress = {
            "elapsed": self._budget.elapsed,
            "tokens": self._meter.all_tokens,
            "settings": self._settings,
        }
        files.write_text(folder / _PROGRESS, json.dumps(progress))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save as the Trainer does, then mark the checkpoint complete."""
        super()._save_checkpoint(model, trial)
        step = self.state.global_step
        folder = Path(str(self.args.output_dir)) / f"checkpoint-{step}"
        (folder / _COMPLETE).touch()
        self._listener(Saved(step, folder))

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        folder = Path(resume_from_checkpoint)
        progress = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
        self._check_same_settings(progress["settings"])
        self._budget.continue_from(progress["elapsed"])
        self._meter.all_tokens = progress["tokens"]
        saved, trained = load_file(folder / _WEIGHTS), self._trained()
        with torch.no_grad():
            for name, weight in trained.items():
                weight.copy_(saved[name])

    @property
    def _settings(self) -> dict[str, Any]:
        """What must be the same when a run is resumed: everything but its length."""
        data = self.train_dataset
        assert isinstance(data, TwoStreamData)
        settings = asdict(self._config)
        for length in ("steps", "minutes", "checkpoint_minutes"):
            del settings[length]
        return {**settings, "examples": len(data), "data": data.digest}

    def _check_same_settings(self, saved: dict[str, Any]) -> None:
        other = [name for name, value in self._settings.items() if saved.get(name) != value]
        if other:
            raise InputError(
                f"this run was started with another {other[0]} ({saved.get(other[0])}): resume "
                "with the same settings, or start anew in another folder"
            )

    def _trained(self) -> dict[str, Tensor]:
        assert isinstance(self.model, nn.Module)
        return {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}


class _Meter:
    """Sums of one log interval."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.all_tokens = 0
        self._reset()

    def _reset(self) -> None:
        self.batches = 0
        self._tokens = 0
        self._loss = 0.0
        self._correct = torch.zeros(self._block_size)
        self._total = torch.zeros(self._block_size)
        self._since = time.monotonic()

    def add(self, loss: Tensor, hits: Hits, tokens: int) -> None:
        self.batches += 1
        self._loss += loss.item()
        self._tokens += tokens
        self.all_tokens += tokens
        self._correct += hits.correct.cpu()
        self._total += hits.total.cpu()

    def read(self) -> dict[str, Any]:
        """Return the facts since the last call: one optimiser step, since every step is logged."""
        pairs = zip(self._correct.tolist(), self._total.tolist(), strict=True)
        facts = {
            # Micro-batches are parts of one global mean, so they add up.
            "loss": self._loss,
            "accuracy": tuple(c / t if t else None for c, t in pairs),
            "tokens": self.all_tokens,
            "tokens_per_second": self._tokens / max(1e-9, time.monotonic() - self._since),
        }
        self._reset()
        return facts


class _SaveByTime(TrainerCallback):
    """Asks for a checkpoint every so many minutes."""

    def __init__(self, minutes: float) -> None:
        self._seconds = minutes * 60
        self._last = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **_: Any) -> None:
        if time.monotonic() - self._last >= self._seconds:
            control.should_save = True

    def on_save(self, *_: Any, **__: Any) -> None:
        self._last = time.monotonic()


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint; a killed run may have left an incomplete one."""
    complete = [mark.parent for mark in folder.glob(f"checkpoint-*/{_COMPLETE}")]
    return max(complete, key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    """Return after how many steps a checkpoint was written."""
    return int(checkpoint.name.split("-")[1])


def _arguments(
    config: TuneConfig, budget: Budget, folder: Path, bfloat16: bool
) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=budget.max_steps,
        per_device_train_batch_size=config.batch_size // config.accumulation,
        gradient_accumulation_steps=config.accumulation,
        learning_rate=config.learning_rate,
        weight_decay=0.0,
        use_cpu=not torch.cuda.is_available(),
        bf16=bfloat16,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        save_total_limit=2,
        remove_unused_columns=False,
        report_to="none",
        seed=config.seed,
        disable_tqdm=True,
    )


def computes_in_bfloat16(network: PreTrainedModel) -> bool:
    """Return whether to autocast to bfloat16: on GPUs, and on CPUs with AMX.

    A small model's products do not repay the casts, nor its training the rounding.
    """
    if network.config.hidden_size < _SMALL_HIDDEN_SIZE:
        return False
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.cpu.get_capabilities().get("amx_bf16", False))

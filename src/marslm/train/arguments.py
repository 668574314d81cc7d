"""The settings of a run as transformers' TrainingArguments, and the number type of a step.

Knows nothing about objectives or data.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel, TrainingArguments

from marslm.errors import InputError
from marslm.train.budget import Budget
from marslm.train.config import TuneConfig

_SMALL_HIDDEN_SIZE = 256


def training_arguments(
    config: TuneConfig, budget: Budget, folder: Path, bfloat16: bool
) -> TrainingArguments:
    """Return them; InputError if the batch cannot be shared out."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=budget.max_steps,
        gradient_accumulation_steps=config.accumulation,
        learning_rate=config.learning_rate,
        weight_decay=0.0,
        use_cpu=not torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
        bf16=bfloat16,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        save_total_limit=2,
        remove_unused_columns=False,
        report_to=config.report_to,
        seed=config.seed,
        disable_tqdm=True,
    )
    parts = config.accumulation * arguments.world_size
    if config.batch_size % parts:
        raise InputError(
            f"batch_size {config.batch_size} is not a multiple of accumulation times processes, "
            f"{parts}: change one of them"
        )
    arguments.per_device_train_batch_size = config.batch_size // parts
    return arguments


def computes_in_bfloat16(network: PreTrainedModel) -> bool:
    """Return whether to autocast to bfloat16: on GPUs, and on CPUs with AMX.

    A small model's products do not repay the casts, nor its training the rounding.
    """
    if network.config.hidden_size < _SMALL_HIDDEN_SIZE:
        return False
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.cpu.get_capabilities().get("amx_bf16", False))

"""What a launcher asks for, read before anything is loaded, and what training cannot do with it.

accelerate hands its configuration on in environment variables. Plain data parallelism and
DeepSpeed's ZeRO-1 and ZeRO-2 serve every mode, FSDP2 those that do not read weights where they are
in the modules. Knows nothing about models or data.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from marslm.errors import InputError
from marslm.models.record import Mode


def check_launch(mode: Mode) -> None:
    """Raise InputError for a configuration under which `mode` would fail, or its result be lost."""
    if _is_set("ACCELERATE_USE_FSDP"):
        _check_fsdp(mode)
    if _is_set("ACCELERATE_USE_DEEPSPEED"):
        _check_deepspeed()


def _check_fsdp(mode: Mode) -> None:
    if mode in ("mask-only", "medusa"):
        raise InputError(
            f"mode {mode} needs whole weights, which FSDP shards: use recipes/launch/ddp-8.yaml or "
            "zero2-8.yaml"
        )
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise InputError("FSDP1 is not supported: set fsdp_version: 2 in accelerate's fsdp_config")
    if os.environ.get("FSDP_STATE_DICT_TYPE") != "FULL_STATE_DICT":
        raise InputError(
            "checkpoints need whole weights: set fsdp_state_dict_type: FULL_STATE_DICT in "
            "accelerate's fsdp_config"
        )


def _check_deepspeed() -> None:
    """ZeRO-3 gathers the head for each chunk of the loss, and processes differ in their number."""
    if _zero_stage() >= 3:
        raise InputError(
            "ZeRO-3 is not supported: use recipes/launch/fsdp2-8.yaml, which shards weights too, "
            "or zero2-8.yaml"
        )


def _zero_stage() -> int:
    file = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")
    if file == "none":
        return int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2"))
    try:
        settings: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
        return int(settings.get("zero_optimization", {}).get("stage", 0))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"DeepSpeed's configuration {file} cannot be read ({error}): give a JSON file, as "
            "deepspeed_config_file in accelerate's deepspeed_config"
        ) from error


def _is_set(name: str) -> bool:
    return os.environ.get(name, "false").lower() == "true"

"""What a launcher asks for, read before anything is loaded, and what training cannot do with it.

accelerate hands its configuration on in environment variables. Plain data parallelism, FSDP2 and
DeepSpeed's ZeRO serve every objective; mask-only training reads the weights where they are in the
modules, so it needs them whole. Knows nothing about models or data.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from marslm.errors import InputError
from marslm.models.record import Mode

_WHOLE = "use recipes/launch/ddp-8.yaml or zero2-8.yaml"


def check_launch(mode: Mode) -> None:
    """Raise InputError for a configuration under which `mode` would fail, or its result be lost."""
    if _is_set("ACCELERATE_USE_FSDP"):
        _check_fsdp(mode)
    if _is_set("ACCELERATE_USE_DEEPSPEED"):
        _check_deepspeed(mode)


def _check_fsdp(mode: Mode) -> None:
    if mode in ("mask-only", "medusa"):
        raise InputError(f"mode {mode} needs whole weights, which FSDP shards: {_WHOLE}")
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise InputError("FSDP1 is not supported: set fsdp_version: 2 in accelerate's fsdp_config")
    if os.environ.get("FSDP_STATE_DICT_TYPE") != "FULL_STATE_DICT":
        raise InputError(
            "checkpoints need whole weights: set fsdp_state_dict_type: FULL_STATE_DICT in "
            "accelerate's fsdp_config"
        )


def _check_deepspeed(mode: Mode) -> None:
    stage, gathers = _zero()
    if stage < 3:
        return
    if mode in ("mask-only", "medusa"):
        raise InputError(f"mode {mode} needs whole weights, which ZeRO-3 shards: {_WHOLE}")
    if not gathers:
        raise InputError(
            "under ZeRO-3 the result is saved from gathered weights: set zero3_save_16bit_model: "
            "true in accelerate's deepspeed_config"
        )


def _zero() -> tuple[int, bool]:
    """Return ZeRO's stage, and whether stage 3 gathers weights to save them."""
    file = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")
    if file != "none":
        settings: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
        zero = settings.get("zero_optimization", {})
        gathers = bool(zero.get("stage3_gather_16bit_weights_on_model_save"))
        return int(zero.get("stage", 0)), gathers
    stage = int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2"))
    return stage, _is_set("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL")


def _is_set(name: str) -> bool:
    return os.environ.get(name, "false").lower() == "true"

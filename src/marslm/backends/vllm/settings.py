"""What the plugin was started with: [MASK], the adapter and the defaults of requests.

They come from vLLM's own configuration: `--speculative-config` gives the width of a step,
`--additional-config '{"mars": {...}}'` the adapter and the defaults, and a merged checkpoint brings
its own record. Knows nothing about requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marslm.backends.vllm.params import MarsParams, with_values
from marslm.core.forms import Form
from marslm.errors import InputError
from marslm.models.record import FILE_NAME, MarsRecord, read_record

PACKAGE = "marslm.backends.vllm"


@dataclass(frozen=True)
class MarsSettings:
    """The plugin's settings, the same in each of vLLM's processes.

    width: `num_speculative_tokens`, the most drafts and masks of one step. adapter: the folder of a
    mask-only adapter, None for a merged checkpoint.
    """

    mask_token_id: int
    width: int
    defaults: MarsParams
    adapter: Path | None = None


def wants_mars(vllm_config: Any) -> bool:
    """Return whether vLLM was started with this plugin's proposer or worker."""
    speculation = vllm_config.speculative_config
    names = (
        getattr(speculation, "model", None),
        getattr(vllm_config.parallel_config, "worker_cls", None),
    )
    return speculation is not None and any(
        isinstance(name, str) and name.startswith(PACKAGE) for name in names
    )


def read_settings(vllm_config: Any) -> MarsSettings:
    """Return the settings in vLLM's configuration; InputError if MARS cannot run with them."""
    options = _options(vllm_config)
    width = int(vllm_config.speculative_config.num_speculative_tokens)
    adapter = options.pop("adapter", None)
    folder = Path(vllm_config.model_config.model if adapter is None else adapter)
    record = read_record(folder) if adapter or (folder / FILE_NAME).exists() else None
    if record is not None:
        _check_record(record, is_adapter=adapter is not None)
        mask_token_id: int | None = record.mask_token_id
        block = record.block_size
    else:
        mask_token_id = getattr(vllm_config.model_config.hf_config, "mask_token_id", None)
        block = width // 2 + 1
    if mask_token_id is None:
        raise InputError(
            "this model names no [MASK]: give --additional-config "
            """'{"mars": {"adapter": "DIR"}}', or serve what `marslm export --merged` wrote"""
        )
    trained = MarsParams(window=max(2, min(block, width + 1)))
    defaults = with_values(trained, options, width)
    return MarsSettings(mask_token_id, width, defaults, Path(adapter) if adapter else None)


def _options(vllm_config: Any) -> dict[str, Any]:
    given = vllm_config.additional_config
    options = given.get("mars", {}) if isinstance(given, dict) else {}
    if not isinstance(options, dict):
        raise InputError("additional_config 'mars' must be an object with adapter, mode, ...")
    return dict(options)


def _check_record(record: MarsRecord, *, is_adapter: bool) -> None:
    if is_adapter and record.mode != "mask-only":
        raise InputError(
            f"this adapter is of mode {record.mode}: only mask-only ones stay beside the model; "
            "write the others into it with `marslm export --merged`"
        )
    if Form(record.block_start) != record.form:
        raise InputError(
            "this model was trained with another form of block than MARS, which vLLM's causal "
            "attention cannot decode; use `marslm serve`"
        )

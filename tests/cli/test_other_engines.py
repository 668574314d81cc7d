"""Commands for other engines: what they write, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def test_serving_with_vllm_where_it_is_not_installed(cli: Cli, model_folder: Path) -> None:
    result = cli("serve", "--backend", "vllm", "--model", model_folder)
    assert result.code == 2
    assert result.err == "error: vllm is not installed; run pip install 'marslm[vllm]'\n"


def test_backends_that_there_are_not(cli: Cli) -> None:
    assert "no backend 'sglang': choose marslm or vllm" in cli("serve", "--backend", "sglang").err


@pytest.mark.parametrize(
    "options",
    [
        ("--slo", "queue=4"),
        ("--quantize", "int8"),
        ("--timeout", "30"),
        ("--max-waiting", "5"),
        ("--cache-mb", "100"),
        ("--log-level", "debug"),
        ("--cors-origin", "http://here"),
    ],
)
def test_options_that_vllm_would_not_hear_are_refused(cli: Cli, options: tuple[str, str]) -> None:
    result = cli("serve", "--backend", "vllm", *options)
    assert result.code == 2
    assert f"--backend vllm knows no {options[0]}: give vLLM's own options" in result.err


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


def test_a_benchmark_without_a_prompt_that_fits(
    cli: Cli, model_folder: Path, write_rows: Callable[..., Path]
) -> None:
    data = ("--data", write_rows(), "--max-length", 20)
    result = cli("bench", "vllm", "-m", model_folder, *data)
    assert result.code == 2
    assert "no prompt leaves room for 64 new tokens within --max-length 20" in result.err

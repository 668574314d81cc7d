"""Bad input: one line that names the fix, exit code 2, no traceback, nothing half-written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from socket import create_server
from typing import Any

import pytest

Cli = Callable[..., Any]

DECODING = [
    (["--tau", "0"], "tau is 0.0: give a value above 0 and at most 1"),
    (["--tau", "-0.5"], "tau is -0.5"),
    (["--tau", "1.01"], "tau is 1.01"),
    (["--tau", "nan"], "tau is nan"),
    (["--block", "0"], "block is 0: give at least 1"),
    (["--temperature", "-1"], "temperature is -1.0: give 0 (greedy) or more"),
    (["--temperature", "inf"], "temperature is inf"),
    (["--max-new-tokens", "0"], "max_new_tokens is 0: give at least 1"),
    (["--confidence", "hunch"], "choose from probability, margin, entropy"),
]


def refused(result: Any, said: str) -> None:
    assert result.code == 2
    lines = result.err.strip().splitlines()
    assert len(lines) == 1, result.err
    assert lines[0].startswith("error: ")
    assert said in lines[0]
    assert "Traceback" not in result.out + result.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *DECODING,
        (["--strategy", "warp"], "unknown strategy 'warp': choose from ar, mars, lossless"),
    ],
)
def test_generate_refuses_options(
    cli: Cli, model_folder: Path, tmp_path: Path, options: list[str], said: str
) -> None:
    report = tmp_path / "report.json"
    refused(cli("generate", "-m", model_folder, "Hi", *options, "--json", report), said)
    assert not report.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *DECODING,
        (["--strategies", "ar,warp"], "unknown strategy 'warp'"),
        (["--baseline", "vroom"], "unknown baseline 'vroom': choose"),
        (["--prompts", "0"], "at least one"),
        (["--batch", "0"], "a batch of at least one"),
    ],
)
def test_bench_refuses_options(
    cli: Cli,
    model_folder: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
    options: list[str],
    said: str,
) -> None:
    report = tmp_path / "report.json"
    arguments = ["-m", model_folder, "--data", write_rows(), *options, "--json", report]
    refused(cli("bench", "decode", *arguments), said)
    assert not report.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [*DECODING, (["--strategy", "warp"], "unknown strategy 'warp'")],
)
def test_chat_refuses_options(cli: Cli, model_folder: Path, options: list[str], said: str) -> None:
    refused(cli("chat", "-m", model_folder, *options), said)


def test_serve_says_what_is_wrong_before_it_loads_a_model(cli: Cli) -> None:
    with create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(cli("serve", "-m", "nobody/nothing", "--port", port), f"on 127.0.0.1 port {port} (")
    loud = cli("serve", "-m", "nobody/nothing", "--port", 0, "--log-level", "loud")
    refused(loud, "unknown log level 'loud': choose from debug, info, warning, error")


@pytest.mark.parametrize("command", [["generate", "Hi"], ["info"], ["chat"]])
def test_models_that_do_not_exist(cli: Cli, command: list[str], tmp_path: Path) -> None:
    refused(cli(*command, "-m", "nobody/nothing"), "cannot load model 'nobody/nothing': give a Hub")
    refused(cli(*command, "-m", tmp_path / "no.gguf"), "no GGUF file at")
    refused(cli(*command, "-m", tmp_path), "has no config.json")


def test_adapters_that_do_not_fit(
    cli: Cli,
    save_model: Callable[..., Path],
    model_folder: Path,
    adapter_folder: Path,
    tmp_path: Path,
) -> None:
    def answer(model: Path, adapter: Path) -> Any:
        return cli("generate", "Hi", "-n", 2, "-m", model, "-a", adapter)

    refused(answer(model_folder, tmp_path / "nowhere"), "no adapter at")
    refused(answer(model_folder, tmp_path), "has no mars.json")
    refused(answer(adapter_folder, adapter_folder), "is an adapter; load the model it was trained")
    refused(answer(save_model("qwen2"), adapter_folder), "load the model that it was trained on")
    refused(answer(save_model("llama", word="hello"), adapter_folder), "another tokenizer")


def test_an_adapter_on_other_weights_only_warns(
    cli: Cli, save_model: Callable[..., Path], adapter_folder: Path
) -> None:
    sibling = save_model("llama", seed=8)
    result = cli("generate", "Hi", "-n", 2, "-m", sibling, "-a", adapter_folder)
    assert result.code == 0
    assert result.err.startswith("warning: this adapter was trained on other weights")
    assert len(result.err.strip().splitlines()) == 1


BAD_DATA = [
    ([], "chats.jsonl: no rows"),
    ([{"prompt": "a", "response": "b"}, "{not json"], "chats.jsonl:2: malformed JSON"),
    ([{"prompt": "a", "response": "b"}, {"foo": 1}], "chats.jsonl:2: row form not recognised"),
    (["[1]"], "chats.jsonl:1: a JSON list, not an object"),
    ([{"prompt": " ", "response": "b"}], "chats.jsonl:1: prompt is empty"),
    ([{"messages": [{"role": "alien", "content": "x"}]}], "chats.jsonl:1: role 'alien'"),
]


@pytest.mark.parametrize(("rows", "said"), BAD_DATA)
@pytest.mark.parametrize("command", ["generate", "bench", "tune"])
def test_data_that_cannot_be_read(
    cli: Cli,
    model_folder: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
    rows: list[object],
    said: str,
    command: str,
) -> None:
    data, output, report = write_rows(rows), tmp_path / "out", tmp_path / "report.json"
    arguments = {
        "generate": ["generate", "--prompts", data],
        "bench": ["bench", "decode", "--data", data],
        "tune": ["tune", "--data", data, "--steps", 1, "-o", output],
    }[command]
    refused(cli(*arguments, "-m", model_folder, "--json", report), said)
    assert not output.exists()
    assert not report.exists()


def test_files_that_do_not_exist(
    cli: Cli, model_folder: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    write_rows()
    typo = tmp_path / "chat.jsonl"
    near = f"did you mean {tmp_path / 'chats.jsonl'}?"
    refused(cli("generate", "-m", model_folder, "--prompts", typo), near)
    refused(cli("bench", "decode", "-m", model_folder, "--data", typo), near)
    tune = ["tune", "-m", model_folder, "--data", typo, "--steps", 1, "-o", tmp_path / "out"]
    refused(cli(*tune), near)
    assert not (tmp_path / "out").exists()


def test_spec_bench_without_its_folder(cli: Cli, model_folder: Path) -> None:
    refused(cli("bench", "decode", "-m", model_folder), "set MARSLM_DATA to the folder that holds")


def test_nothing_to_answer(cli: Cli, model_folder: Path) -> None:
    refused(cli("generate", "-m", model_folder), "give a prompt, or a file of prompts")


@pytest.mark.parametrize("where", ["argument", "file"])
def test_a_prompt_beyond_the_context(
    cli: Cli, model_folder: Path, write_rows: Callable[..., Path], tmp_path: Path, where: str
) -> None:
    long = "x" * 300
    prompt = [long] if where == "argument" else ["--prompts", write_rows([{"prompt": long}])]
    report = tmp_path / "report.json"
    said = "beyond the limit of 256; shorten it"
    refused(cli("generate", "-m", model_folder, *prompt, "--json", report), said)
    assert not report.exists()
    if where == "file":
        refused(cli("bench", "decode", "-m", model_folder, "--data", prompt[1]), said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give the length of the run as one of steps, minutes and epochs"),
        (["--steps", 2, "--minutes", 1], "one of steps, minutes and epochs"),
        (["--steps", 0], "steps is 0: give more than 0"),
        (["--minutes", 0], "minutes is 0.0: give more than 0"),
        (["--steps", 2, "--mode", "qlora"], "choose full, lora, mask-only, medusa"),
        (["--steps", 2, "--answers", "mine"], "answers is 'mine': choose gold or self"),
        (["--steps", 2, "--block", 1], "block_size is 1: give at least 2"),
        (["--steps", 2, "--batch-size", 3, "--accumulation", 2], "is not a multiple"),
        (["--steps", 2, "--rows", 0, "--held-out", 0], "at least 1"),
        (["--steps", 2, "--held-out", 9], "are to be held out: give more rows or hold out fewer"),
        (["--steps", 2, "--held-out", -1], "held"),
        (["--steps", 2, "--mask-token-id", 999], "mask token id 999 is outside"),
        (["--steps", 2, "--mask-token-id", 258], "is the eos token"),
        (["--steps", 2, "--max-length", 12], "raise"),
        (["--steps", 2, "--answers", "gold", "--max-length", 12], "raise"),
        (["--steps", 2, "--max-new-tokens", 0], "max_new_tokens is 0"),
        (["--steps", 2, "--from-adapter", "nowhere"], "no adapter at nowhere"),
        (["--steps", 2, "--resume"], "has no complete checkpoint: start without --resume"),
    ],
)
def test_tune_refuses_options(
    cli: Cli,
    model_folder: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
    options: list[object],
    said: str,
) -> None:
    output = tmp_path / "out"
    given = ["--max-new-tokens", 4, "--held-out", 1]
    arguments = ["-m", model_folder, "--data", write_rows(), "-o", output, *given, *options]
    refused(cli("tune", *arguments), said)
    assert not output.exists()


def test_tune_does_not_overwrite_a_run(
    cli: Cli, model_folder: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    arguments = ["tune", "-m", model_folder, "--data", write_rows(), "-o", output]
    arguments += ["--steps", 1, "--batch-size", 2, "--rank", 2, "--answers", "gold"]
    arguments += ["--held-out", 0]
    assert cli(*arguments).code == 0
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    refused(cli(*arguments), "already holds a run: continue it with --resume, or choose another")
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before


def test_rows_that_are_too_long_are_counted_and_said(
    cli: Cli, model_folder: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [{"prompt": "a", "response": "x" * n} for n in (3, 400, 3, 300)]
    arguments = ["-m", model_folder, "--data", write_rows(rows), "-o", tmp_path / "out"]
    arguments += ["--steps", 1, "--batch-size", 2, "--mode", "lora", "--rank", 2]
    result = cli("tune", *arguments, "--max-length", 128, "--held-out", 0)
    assert result.code == 0
    assert "2 examples" in result.out
    assert "rows dropped: 2 (too long)" in result.out


@pytest.mark.parametrize("command", ["generate", "info"])
def test_a_report_that_cannot_be_written(
    cli: Cli, model_folder: Path, command: str, tmp_path: Path
) -> None:
    arguments = ["Hi", "-n", 2] if command == "generate" else []
    refused(cli(command, *arguments, "-m", model_folder, "--json", tmp_path), "")


def test_an_output_that_is_a_file(
    cli: Cli, model_folder: Path, write_rows: Callable[..., Path]
) -> None:
    data = write_rows()
    arguments = ["-m", model_folder, "--data", data, "-o", data, "--held-out", 0]
    refused(cli("tune", *arguments, "--steps", 1, "--answers", "gold", "--rank", 2), "")
    assert json.loads(data.read_text().splitlines()[0])


def test_prompts_may_hold_what_looks_like_markup(cli: Cli, model_folder: Path) -> None:
    prompts = ["What does [/b] do?", "And [bold]?"]
    result = cli("generate", "-m", model_folder, *prompts, "-n", 2)
    assert result.code == 0
    assert all(prompt in result.out for prompt in prompts)

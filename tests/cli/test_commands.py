"""What the commands print and write when all is well."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from marslm import __version__

Cli = Callable[..., Any]
COMMANDS = (["demo"], ["tune"], ["generate"], ["chat"], ["info"], ["bench", "decode"])


def report_of(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text())
    assert report.keys() == {"version", "machine", "command", "rows"}
    assert report["version"] == __version__
    assert report["command"].startswith("marslm ")
    assert report["machine"]["cores"] > 0
    for row in report["rows"]:
        assert all(isinstance(v, str | int | float | bool | None) for v in row.values())
    return report


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_ends_with_examples(cli: Cli, command: list[str]) -> None:
    result = cli(*command, "--help")
    assert result.code == 0
    _, found, examples = result.out.rpartition("Examples")
    assert found
    assert f"marslm {' '.join(command)}" in examples


def test_help_and_errors_of_usage_import_no_torch() -> None:
    """Every help page in one process, as fast as a help page has to be."""
    script = f"""
import sys
from marslm.cli.app import main
for command in {[*COMMANDS, [], ["bench"]]}:
    sys.argv = ["marslm", *command, "--help"]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == 0, command
print(sorted({{"torch", "transformers", "peft", "datasets"}} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_the_version(cli: Cli) -> None:
    result = cli("--version")
    assert (result.code, result.out.strip()) == (0, __version__)


def test_info_tells_the_facts(
    cli: Cli, model_folder: Path, adapter_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "new" / "info.json"
    result = cli("info", "-m", model_folder, "-a", adapter_folder, "--json", file)
    assert result.code == 0
    assert re.search(r"mask token +<\|mask\|>", result.out)
    (row,) = report_of(file)["rows"]
    expected = {
        "type": "llama",
        "layers": 2,
        "hidden_size": 32,
        "vocabulary": 288,
        "context": 256,
        "mask_token_id": 259,
        "mode": "mask-only",
        "block": 5,
    }
    assert row.items() >= expected.items()


def test_generate_prints_the_text_and_its_figures(cli: Cli, model_folder: Path) -> None:
    result = cli("generate", "-m", model_folder, "Hi", "-n", 12, "-s", "ar")
    assert result.code == 0
    tokens, forwards = map(int, re.search(r"(\d+) tokens in (\d+) forwards", result.out).groups())  # type: ignore[union-attr]
    assert tokens == forwards <= 12
    assert "1.00 tokens per forward" in result.out
    assert "tokens/s" in result.out
    assert "\x1b[" not in result.out  # no colours into a pipe


@pytest.mark.parametrize("strategy", ["ar", "mars", "lossless"])
def test_generate_reports(
    cli: Cli, model_folder: Path, adapter_folder: Path, tmp_path: Path, strategy: str
) -> None:
    file = tmp_path / "report.json"
    arguments = ["-m", model_folder, "-a", adapter_folder, "-s", strategy, "--tau", 0.01, "-n", 9]
    result = cli("generate", *arguments, "Hi", "Tell me more", "--json", file)
    assert result.code == 0
    overall, *each = report_of(file)["rows"]
    assert [row["prompt"] for row in each] == ["Hi", "Tell me more"]
    assert all(row["text"] in result.out for row in each)
    for key in ("tokens", "forwards"):
        assert overall[key] == sum(row[key] for row in each)
    assert overall["tokens_per_forward"] == overall["tokens"] / overall["forwards"]
    assert overall["strategy"] == strategy
    assert overall["tau"] == (0.01 if strategy == "mars" else None)
    assert overall["adapter"] == str(adapter_folder)
    if strategy == "mars":  # any confidence reaches 0.01 sooner or later
        assert overall["tokens_per_forward"] > 1
    if strategy == "ar":
        assert overall["tokens_per_forward"] == 1


def test_generate_reports_the_speed_and_the_block(
    cli: Cli, model_folder: Path, tmp_path: Path
) -> None:
    """The fields that every report of a measurement has where they apply."""
    file = tmp_path / "report.json"
    cli("generate", "-m", model_folder, "-s", "mars", "-B", 3, "Hi", "-n", 9, "--json", file)
    overall = report_of(file)["rows"][0]
    assert overall["tokens_per_second"] > 0
    assert overall["block"] == 3


def test_lossless_writes_what_ar_writes(
    cli: Cli,
    model_folder: Path,
    adapter_folder: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
) -> None:
    texts = {}
    for strategy in ("ar", "lossless"):
        file = tmp_path / f"{strategy}.json"
        arguments = ["-m", model_folder, "-a", adapter_folder, "-s", strategy, "-n", 20]
        cli("generate", *arguments, "--prompts", write_rows(), "--json", file)
        texts[strategy] = [row["text"] for row in report_of(file)["rows"][1:]]
    assert len(texts["ar"]) == 5
    assert texts["lossless"] == texts["ar"]


def test_generate_takes_the_first_rows_of_a_file(
    cli: Cli, model_folder: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    arguments = ["--prompts", write_rows(), "--limit", 2, "-n", 2, "--json", file]
    assert cli("generate", "-m", model_folder, *arguments).code == 0
    assert [row.get("prompt") for row in report_of(file)["rows"]] == [None, "One and one?", "Hm"]


BENCH_FIELDS = {
    "strategy",
    "tokens",
    "forwards",
    "tokens_per_forward",
    "tokens_per_second",
    "seconds_per_forward",
    "rows_per_forward",
    "agreement",
    "identical_to_ar",
    "ties",
    "tau",
    "block",
    "batch",
    "adapter",
}


def test_bench_decode_reports_every_strategy_and_the_baseline(
    cli: Cli,
    model_folder: Path,
    adapter_folder: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
) -> None:
    file = tmp_path / "report.json"
    arguments = ["-m", model_folder, "-a", adapter_folder, "--data", write_rows(), "-n", 10]
    result = cli("bench", "decode", *arguments, "--prompts", 3, "--tau", 0.05, "--json", file)
    assert result.code == 0
    rows = report_of(file)["rows"]
    assert [row["strategy"] for row in rows] == ["ar", "mars", "lossless", "transformers"]
    ar, mars, lossless, outside = rows
    assert all(row.keys() >= BENCH_FIELDS for row in rows)
    assert [row["identical_to_ar"] for row in (ar, lossless, outside)] == [1, 1, 1]
    assert ar["tokens"] == lossless["tokens"] == outside["tokens"] == ar["forwards"]
    assert lossless["forwards"] <= ar["forwards"]
    assert mars["tokens_per_forward"] > 1
    assert 0 <= mars["agreement"] <= 1
    assert ar["agreement"] is None
    assert (ar["block"], mars["block"], mars["tau"], lossless["tau"]) == (1, 5, 0.05, None)
    assert (ar["rows_per_forward"], mars["rows_per_forward"] > 4) == (1, True)
    assert {row["adapter"] for row in rows} == {str(adapter_folder)}
    assert all(row["tokens_per_second"] > 0 < row["seconds_per_forward"] for row in rows)
    assert "transformers" in result.out


def test_bench_decode_on_tiny_without_a_baseline(
    cli: Cli, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    arguments = ["--data", write_rows(), "--baseline", "none", "--strategies", "lossless, ar"]
    arguments += ["-n", 6, "--batch", 2, "--prompts", 4, "--json", file]
    assert cli("bench", "decode", "-m", "tiny", *arguments).code == 0
    rows = report_of(file)["rows"]
    assert [row["strategy"] for row in rows] == ["lossless", "ar"]
    assert [(row["batch"], row["prompts"], row["identical_to_ar"]) for row in rows] == [
        (2, 4, 1)
    ] * 2


def test_bench_decode_takes_spec_bench_in_turn(
    cli: Cli, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gzip  # noqa: PLC0415

    kinds = ("qa", "writing", "rag")
    lines = [json.dumps({"category": k, "turns": [f"{k}{i}?"]}) for k in kinds for i in range(3)]
    (tmp_path / "spec_bench.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    monkeypatch.setenv("MARSLM_DATA", str(tmp_path))
    file = tmp_path / "report.json"
    arguments = ["--strategies", "ar", "--baseline", "none", "-n", 3, "--prompts", 6]
    assert cli("bench", "decode", "-m", model_folder, *arguments, "--json", file).code == 0
    overall, *by_kind = report_of(file)["rows"]
    assert "kind" not in overall
    assert [row["kind"] for row in by_kind] == ["qa", "mt_bench", "rag"]
    assert [row["prompts"] for row in by_kind] == [2, 2, 2]
    assert overall["prompts"] == 6
    assert overall["tokens"] == sum(row["tokens"] for row in by_kind)


def steps_of(folder: Path) -> list[int]:
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [row["step"] for row in lines if row["event"] == "step"]


def test_tune_from_start_to_resume(
    cli: Cli, model_folder: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    output, file = tmp_path / "out", tmp_path / "report.json"
    arguments = ["tune", "-m", model_folder, "--data", write_rows(), "-o", output]
    arguments += ["--held-out", 2, "--max-new-tokens", 8, "--batch-size", 2, "--rank", 2]
    arguments += ["--json", file]
    first = cli(*arguments, "--steps", 3)
    assert first.code == 0
    assert "supervised and not" in first.out
    assert "3 examples" in first.out
    assert "held-out prompts" in first.out
    rows = report_of(file)["rows"]
    assert [(row["strategy"], row["tau"]) for row in rows] == [
        ("ar", None),
        ("lossless", None),
        ("mars", 0.9),
        ("mars", 0.7),
    ]
    assert rows[0]["identical_to_ar"] == rows[1]["identical_to_ar"] == 1
    assert rows[0]["tokens_per_forward"] == 1
    assert steps_of(output) == [1, 2, 3]
    before = (output / "adapter_model.safetensors").read_bytes()

    again = cli(*arguments, "--steps", 5, "--resume")
    assert again.code == 0
    assert steps_of(output) == [1, 2, 3, 4, 5]
    assert (output / "adapter_model.safetensors").read_bytes() != before
    assert sorted(path.name for path in output.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "answers.jsonl",
        "checkpoints",
        "log.jsonl",
        "mars.json",
    ]
    assert cli("generate", "-m", model_folder, "-a", output, "Hi", "-n", 3).code == 0


def test_tune_shows_the_sample_in_colour(
    cli: Cli,
    model_folder: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from marslm.cli.render import console  # noqa: PLC0415

    monkeypatch.setattr(console, "_force_terminal", True)
    monkeypatch.setattr(console, "_color_system", 1)
    arguments = ["tune", "-m", model_folder, "--data", write_rows(), "-o", tmp_path / "out"]
    arguments += ["--steps", 1, "--held-out", 0, "--mode", "lora", "--batch-size", 2]
    result = cli(*arguments)
    assert result.code == 0
    assert "\x1b[1;32mTwo.<|im_end|>" in result.out
    assert "\x1b[2mOne and one?<|im_end|>" in result.out


def test_generate_colours_runs_of_several_tokens(
    cli: Cli, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from marslm.cli.render import console  # noqa: PLC0415

    monkeypatch.setattr(console, "_force_terminal", True)
    monkeypatch.setattr(console, "_color_system", 1)
    arguments = ["generate", "-m", model_folder, "Hi", "-n", 12]
    run = re.compile(r"\x1b\[1;3[2356]m")
    assert not run.search(cli(*arguments, "-s", "ar").out)
    found = run.findall(cli(*arguments, "-s", "mars", "--tau", 0.001).out)
    assert len(found) > 2
    assert len(set(found)) > 1


def test_ctrl_c_ends_generate_cleanly(
    cli: Cli, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(engine: object) -> Iterator[None]:
        raise KeyboardInterrupt

    monkeypatch.setattr("marslm.engine.engine.Engine.step", interrupt)
    result = cli("generate", "-m", model_folder, "Hi", "--json", tmp_path / "report.json")
    assert result.code == 130
    assert "Traceback" not in result.err
    assert not (tmp_path / "report.json").exists()


def test_ctrl_c_ends_training_cleanly(
    model_folder: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    command = [sys.executable, "-c", "from marslm.cli.app import main; main()", "tune"]
    command += ["-m", str(model_folder), "--data", str(write_rows()), "-o", str(output)]
    command += ["--mode", "full", "--minutes", "5", "--held-out", "0", "--batch-size", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        while not (output / "log.jsonl").exists() and run.poll() is None:
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate()
    assert run.returncode == 130, errors
    assert "Traceback" not in errors
    assert not (output / "mars.json").exists()
    assert not (output / "model.safetensors").exists()


def test_the_tiny_half_of_the_demo(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut down to a few steps and sums; what it prints and writes is the whole demo's."""
    from marslm.tuning import demo  # noqa: PLC0415

    config = dataclasses.replace(demo.TINY_CONFIG, steps=2, batch_size=4)
    monkeypatch.setattr(demo, "TINY_CONFIG", config)
    monkeypatch.setattr(demo, "_TRAINING_PROBLEMS", 20)
    monkeypatch.setattr(demo, "_HELD_OUT_PROBLEMS", 3)
    monkeypatch.chdir(tmp_path)
    result = cli("demo", "--model", "tiny", "--json", "demo.json")
    assert result.code == 0
    rows = report_of(tmp_path / "demo.json")["rows"]
    assert [row["strategy"] for row in rows] == ["ar", "mars", "lossless"]
    assert all(
        row.keys() >= {*BENCH_FIELDS - {"adapter"}, "accuracy", "speed_ratio"} for row in rows
    )
    assert rows[0]["speed_ratio"] == 1
    question = re.search(r"> (\d+ \+ \d+ = \?)", result.out)
    assert question
    assert cli("generate", "-m", "runs/demo/tiny", question[1], "-n", 3).code == 0


def test_the_demo_of_an_unknown_model(cli: Cli) -> None:
    result = cli("demo", "--model", "huge")
    assert (result.code, result.err) == (
        2,
        "error: the demo knows tiny, smollm2 and all, not 'huge'\n",
    )


class Typist:
    """Types lines, then presses Ctrl-D or Ctrl-C."""

    def __init__(self, *lines: str, then: type[BaseException] = EOFError) -> None:
        self._lines = list(lines)
        self._then = then

    def __call__(self, *_: object, **__: object) -> str:
        if not self._lines:
            raise self._then
        return self._lines.pop(0)


def chat(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, model: Path, *lines: str, **options: Any
) -> Any:
    monkeypatch.setattr("marslm.cli.render.console.input", Typist(*lines, **options))
    return cli("chat", "-m", model, "-n", 6)


def test_chat_answers_and_ends(
    cli: Cli, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = chat(cli, monkeypatch, model_folder, "Hi", "", "And you?", "/quit", "never said")
    assert result.code == 0
    assert result.out.count("tokens per forward") == 2


def test_generate_lists_log_probabilities(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    result = cli("generate", "-m", model_folder, "-n", 5, "--logprobs", 2, "Hi", "--json", file)
    assert result.code == 0
    overall, answer, *tokens = report_of(file)["rows"]
    assert "log-probability" in result.out
    assert [row["position"] for row in tokens] == list(range(overall["tokens"]))
    assert all(row["kind"] == "token" for row in tokens)
    for row in tokens:  # greedy, so the token is the likeliest
        first, second = map(float, row["top_logprobs"].split())
        assert first == pytest.approx(row["logprob"], rel=1e-5)
        assert second <= first < 0
        assert row["top_ids"].split()[0] == str(row["token_id"])
    assert "kind" not in answer


def test_ctrl_d_ends_a_chat(cli: Cli, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chat(cli, monkeypatch, model_folder, "Hi").code == 0


def test_ctrl_c_ends_a_chat(cli: Cli, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = chat(cli, monkeypatch, model_folder, then=KeyboardInterrupt)
    assert result.code == 130
    assert "Traceback" not in result.err


def test_the_knob_turns_in_a_chat(
    cli: Cli, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("Hi", "/ar", "Hi", "/speed 0.001", "Hi", "/new", "Hi")
    result = chat(cli, monkeypatch, model_folder, *lines)
    assert "mars, tau 0.001" in result.out
    rates = [float(rate) for rate in re.findall(r"= ([\d.]+) tokens per forward", result.out)]
    assert len(rates) == 4
    assert rates[1] == 1
    assert min(rates[2:]) > 1


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/speed 7", "tau is 7.0: give a value above 0 and at most 1"),
        ("/speed", "takes a number"),
        ("/speed [/b]", "takes a number"),
        ("/warp", "unknown command /warp"),
        ("x" * 400, "beyond the limit of 256"),
    ],
)
def test_a_chat_survives_bad_input(
    cli: Cli, model_folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    result = chat(cli, monkeypatch, model_folder, command, "Hi", "/quit")
    assert result.code == 0
    assert said in result.out
    assert "tokens per forward" in result.out


def test_ctrl_c_in_an_answer_ends_the_answer_alone(
    cli: Cli, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from marslm.engine.engine import Engine  # noqa: PLC0415

    real, calls = Engine.step, []

    def step(engine: Engine) -> Any:
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(engine)

    monkeypatch.setattr(Engine, "step", step)
    result = chat(cli, monkeypatch, model_folder, "Hi", "Again", "/quit")
    assert result.code == 0
    assert "2 tokens in 2 forwards" in result.out
    assert result.out.count("tokens per forward") == 2

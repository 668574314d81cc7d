"""The options that commands share: what they turn into, and what is refused."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marslm.cli.decoding import Decoding

Cli = Callable[..., Any]


def test_the_group_becomes_sampling_parameters(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}')
    decoding = Decoding(
        tau="0.5",
        block="full",
        top_k=3,
        logit_bias=["7=-inf", "8=1.5"],
        stop=["a", "b"],
        stop_token_id=[4],
        json_schema=schema,
    )
    params = decoding.params(strategy="jacobi")
    assert (params.strategy, params.tau, params.block, params.top_k) == ("jacobi", 0.5, "full", 3)
    assert params.logit_bias == {7: float("-inf"), 8: 1.5}
    assert (params.stop, params.stop_token_ids) == (("a", "b"), (4,))
    assert params.json_schema == '{"type": "integer"}'


def test_answers_follow_a_grammar_and_stop_where_told(cli: Cli, model_folder: Path) -> None:
    generate = ["generate", "-m", model_folder, "Hi", "-n", 30]
    assert re.search(r"^(yes|no)$", cli(*generate, "--regex", "yes|no").out, re.MULTILINE)
    biased = [*generate, "--logit-bias", "64=99", "-s", "ar"]  # "a"
    assert cli(*biased).out.startswith("a" * 30 + "\n")
    assert cli(*biased, "--stop", "aaa", "--min-tokens", 5).out.startswith("aa\n")
    assert "4 tokens in 4 forwards" in cli(*biased, "--stop-token-id", 64, "--min-tokens", 3).out


def test_a_small_model_drafts(cli: Cli, model_folder: Path) -> None:
    same = ["generate", "-m", model_folder, "Hi", "-n", 12, "--ignore-eos"]
    drafted = cli(*same, "-s", "draft_model", "--draft-model", model_folder, "--block", 4)
    assert "12 tokens in 3 forwards" in drafted.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tau", "fast"], "give a number or auto:RATE"),
        (["--tau", "auto:0.02", "-s", "mars"], "is not calibrated; run `marslm calibrate`"),
        (["--block", "some"], "give a whole number or full"),
        (["--block", "full"], "cannot take block full"),
        (["--logit-bias", "x=1"], "give ID=BIAS"),
        (["--logit-bias", "99999=1"], "token ids outside"),
        (["--top-p", "0"], "top_p is 0.0"),
        (["--json-schema", "nowhere.json"], "cannot be read"),
        (["-s", "draft_model"], "name one with --draft-model"),
        (["--regex", "("], "the regex cannot be used"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    cli: Cli, model_folder: Path, options: list[str], said: str
) -> None:
    result = cli("generate", "-m", model_folder, "Hi", "-n", 4, *options)
    assert result.code == 2
    assert said in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_calibrate_writes_what_auto_tau_reads(
    cli: Cli,
    model_folder: Path,
    adapter_folder: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
) -> None:
    model = ["-m", model_folder, "-a", adapter_folder]
    picture, report = tmp_path / "reliability.png", tmp_path / "calibration-report.json"
    calibrate = ["calibrate", *model, "--data", write_rows(), "-n", 8, "--rates", "0.05,0.5"]
    result = cli(*calibrate, "--plot", picture, "--json", report)
    assert result.code == 0, result.err
    try:
        written = json.loads((adapter_folder / "calibration.json").read_text())
        assert set(written["thresholds"]) == {"0.05", "0.5"}
        assert picture.stat().st_size > 1000
        rows = json.loads(report.read_text())["rows"]
        assert {row["rate"] for row in rows} == {0.05, 0.5}
        generate = ["generate", *model, "Hi", "-n", 4, "-s", "mars", "--tau"]
        assert cli(*generate, "auto:0.5").code == 0
        assert "choose from auto:0.05, auto:0.5" in cli(*generate, "auto:0.4").err
    finally:
        (adapter_folder / "calibration.json").unlink()


def test_calibrate_needs_a_folder_to_write_to(cli: Cli, write_rows: Callable[..., Path]) -> None:
    result = cli("calibrate", "-m", "tiny", "--data", write_rows())
    assert result.code == 2
    assert "name an --adapter" in result.err


def test_calibrate_says_at_once_that_its_folder_is_read_only(
    cli: Cli,
    adapter_folder: Path,
    write_rows: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("marslm.files.is_writable_place", lambda path: False)
    result = cli("calibrate", "-m", "/nowhere", "-a", adapter_folder, "--data", write_rows())
    assert result.code == 2
    assert "cannot be written to: copy it" in result.err


def test_brackets_in_a_tokens_name_are_shown(
    cli: Cli, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    monkeypatch.setattr(
        PreTrainedTokenizerFast, "convert_ids_to_tokens", lambda self, ids: "[bold]/[/x]"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = cli("info", "-m", model_folder)
    assert result.code == 0
    assert "[bold]/[/x]" in result.out


def test_narrower_weights_decode_and_are_reported(
    cli: Cli, model_folder: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    draft = ("-s", "draft_model", "--draft-model", model_folder)
    done = cli(
        *("generate", "-m", model_folder, "Hi", "-n", 5, "--ignore-eos", "--quantize", "int8"),
        *(*draft, "--json", report),
    )
    assert done.code == 0, done.err
    row = json.loads(report.read_text())["rows"][0]
    assert (row["quantize"], row["tokens"]) == ("int8", 5)

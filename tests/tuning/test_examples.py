"""Large data are encoded once and mapped; small data stay in memory; both train alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from marslm.data.store import TokenStore
from marslm.errors import InputError
from marslm.models.loading import load
from marslm.train.batches import TwoStreamData
from marslm.train.config import TuneConfig
from marslm.tuning import examples as module
from marslm.tuning.examples import gold_examples
from marslm.tuning.tune import TuneJob


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuneJob:
    monkeypatch.setenv("MARSLM_CACHE", str(tmp_path / "cache"))
    rows = [{"prompt": f"{n}?", "response": "x" * (1 + 7 * n % 50)} for n in range(12)]
    rows[3] = {"messages": [{"role": "assistant", "content": "y" * 200}]}
    rows[3]["messages"].insert(0, {"role": "user", "content": "long"})  # type: ignore[attr-defined]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = TuneConfig.for_mode("full", steps=1, max_length=128)
    return TuneJob("tiny", str(data), tmp_path / "out", config, held_out=2)


def test_a_store_holds_what_memory_would(job: TuneJob, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("tiny")
    inside, report, prompts = gold_examples(job, model)
    assert (len(inside), report.too_long, len(prompts)) == (9, 1, 2)
    monkeypatch.setattr(module, "_LARGE", 0)
    stored, same_report, same_prompts = gold_examples(job, model)
    assert isinstance(stored, TokenStore)
    assert [e.ids for e in stored] == [e.ids for e in inside]
    assert (same_report, same_prompts) == (report, prompts)
    ours, theirs = TwoStreamData(stored, job.config), TwoStreamData(inside, job.config)
    assert ours.lengths == theirs.lengths
    assert ours[0, 3]["noisy_targets"].tolist() == theirs[0, 3]["noisy_targets"].tolist()


def test_the_second_time_nothing_is_read(job: TuneJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE", 0)
    model = load("tiny")
    first, *_ = gold_examples(job, model)
    monkeypatch.setattr(module, "iterate_dialogues", None)
    again, *_ = gold_examples(job, model)
    assert len(again) == len(first) == 9
    with pytest.raises(TypeError):  # other settings are other tokens
        gold_examples(replace(job, turns="last"), model)


def test_too_few_rows_are_said(job: TuneJob) -> None:
    model = load("tiny")
    with pytest.warns(UserWarning, match="has 12 rows: 10 to train on, not the 50 that were asked"):
        gold_examples(replace(job, rows=50), model)
    with pytest.raises(InputError, match="has 12 rows and 12 are to be held out"):
        gold_examples(replace(job, held_out=12), model)

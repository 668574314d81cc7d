"""The whole job: read, answer, encode, train, measure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from helpers import build_network
from marslm.data.dialogues import Dialogue, Message
from marslm.data.encode import encode_dialogue, encode_prompt
from marslm.distill.answers import AnswerProgress
from marslm.engine.api import run_all
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.models.loading import MarsModel, load
from marslm.models.tiny import build_tokenizer
from marslm.runtime.costs import AssumedCosts
from marslm.runtime.params import SamplingParams
from marslm.train.config import TuneConfig
from marslm.train.events import Progress
from marslm.tuning.held_out import HeldOutResult, measure_held_out
from marslm.tuning.tune import DataReady, Measured, TuneJob, tune

ROWS = [{"prompt": f"{a}+{b}?", "response": str(a + b)} for a in range(3) for b in range(3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose answers end at one token in sixteen, so that none is long."""
    folder = tmp_path_factory.mktemp("model")
    network = build_network("llama", seed=3, dtype=torch.float32)
    ends = [258, *range(7, 256, 16)]
    network.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=256)
    network.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def make_job(model: str, tmp_path: Path) -> Callable[..., TuneJob]:
    """Return a function that makes a job of two steps on the rows above."""
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def make(mode: str = "mask-only", **options: Any) -> TuneJob:
        settings = {"steps": 2, "batch_size": 2, "rank": 2, **options.pop("settings", {})}
        config = TuneConfig.for_mode(mode, **settings)  # type: ignore[arg-type]
        usual = {"held_out": 2, "max_new_tokens": 6, "output": tmp_path / "out"}
        return TuneJob(model=model, data=str(data), config=config, **{**usual, **options})

    return make


def sum_of(index: int) -> Dialogue:
    row = ROWS[index]
    messages = Message("user", row["prompt"]), Message("assistant", row["response"])
    return Dialogue(messages, f"sums.jsonl:{index + 1}")


def events_of(job: TuneJob) -> tuple[list[HeldOutResult], list[Any]]:
    heard: list[Any] = []
    return tune(job, heard.append), heard


@pytest.mark.parametrize("mode", ["mask-only", "lora", "full"])
@pytest.mark.parametrize("answers", ["self", "gold"])
def test_every_mode_with_either_answers(
    make_job: Callable[..., TuneJob], mode: str, answers: str
) -> None:
    job = make_job(mode, answers=answers)
    results, heard = events_of(job)
    assert [(r.strategy, r.tau) for r in results] == [
        ("ar", None),
        ("lossless", None),
        ("mars", 0.9),
        ("mars", 0.7),
    ]
    ar, lossless, *_ = results
    assert ar.tokens_per_forward == ar.identical_to_ar == lossless.identical_to_ar == 1
    assert all(r.tokens >= 2 and r.forwards >= 2 for r in results)
    assert [e.step for e in heard if isinstance(e, Progress)] == [1, 2]
    assert isinstance(heard[-1], Measured)
    assert heard[-1].results == results
    assert (job.output / "answers.jsonl").exists() is (answers == "self")
    assert any(isinstance(e, AnswerProgress) for e in heard) is (answers == "self")
    assert json.loads((job.output / "mars.json").read_text())["mode"] == mode


@pytest.mark.parametrize(
    ("mode", "source"), [("mask-only", "self"), ("lora", "gold"), ("full", "gold")]
)
def test_mask_only_learns_the_models_own_answers_by_default(
    make_job: Callable[..., TuneJob], mode: str, source: str
) -> None:
    _, heard = events_of(make_job(mode))
    assert any(isinstance(e, AnswerProgress) for e in heard) is (source == "self")


def test_gold_answers_are_the_datas(make_job: Callable[..., TuneJob], model: str) -> None:
    _, heard = events_of(make_job("lora"))
    (ready,) = [event for event in heard if isinstance(event, DataReady)]
    expected = [encode_dialogue(load(model).tokenizer, sum_of(i)) for i in range(7)]
    assert ready.sample == expected[0]
    assert (ready.examples, sum(ready.dropped.values()), ready.held_out) == (7, 0, 2)
    assert ready.tokens == sum(len(example.ids) for example in expected)
    assert ready.supervised_tokens == sum(sum(example.supervised) for example in expected)


def test_own_answers_are_what_the_model_writes(
    make_job: Callable[..., TuneJob], model: str
) -> None:
    _, heard = events_of(make_job())
    (ready,) = [event for event in heard if isinstance(event, DataReady)]
    prompt = encode_prompt(load(model).tokenizer, sum_of(0).prompt)
    assert list(ready.sample.ids[: len(prompt)]) == prompt
    with torch.no_grad():
        text = torch.tensor([ready.sample.ids])
        logits = load(model).network(input_ids=text).logits[0, len(prompt) - 1 : -1]
    logits[:, 259] = -torch.inf
    assert logits.argmax(-1).tolist() == list(ready.sample.ids[len(prompt) :])
    assert ready.sample.supervised == (False,) * len(prompt) + (True,) * len(logits)


def test_rows_after_those_trained_on_are_held_out(
    make_job: Callable[..., TuneJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Any] = []

    def measure(name: str, folder: Path, prompts: list[list[int]]) -> list[HeldOutResult]:
        measured.extend(prompts)
        return []

    monkeypatch.setattr("marslm.tuning.tune.measure_held_out", measure)
    _, heard = events_of(make_job("lora", rows=4, held_out=3))
    (ready,) = [event for event in heard if isinstance(event, DataReady)]
    assert (ready.examples, ready.held_out) == (4, 3)
    tokenizer = build_tokenizer()
    assert measured == [encode_prompt(tokenizer, sum_of(i).prompt) for i in (4, 5, 6)]


def test_nothing_held_out(make_job: Callable[..., TuneJob]) -> None:
    results, heard = events_of(make_job("lora", held_out=0))
    assert results == []
    assert not any(isinstance(event, Measured) for event in heard)


def test_rows_that_are_too_long_are_counted(make_job: Callable[..., TuneJob]) -> None:
    job = make_job("lora", settings={"max_length": 25}, held_out=0)
    with pytest.raises(InputError, match="9 are longer than 25 tokens"):
        tune(job)
    Path(job.data).write_text(
        "".join(json.dumps({"prompt": "a" * n, "response": "b"}) + "\n" for n in (1, 90, 1, 2))
    )
    _, heard = events_of(make_job("lora", settings={"max_length": 40}, held_out=0))
    (ready,) = [event for event in heard if isinstance(event, DataReady)]
    assert (ready.examples, sum(ready.dropped.values())) == (3, 1)


def test_the_log_is_the_learning_curve(make_job: Callable[..., TuneJob]) -> None:
    job = make_job("lora")
    results, heard = events_of(job)
    *steps, last = map(json.loads, (job.output / "log.jsonl").read_text().splitlines())
    losses = [event.loss for event in heard if isinstance(event, Progress)]
    assert [(row["event"], row["step"], row["loss"]) for row in steps] == [
        ("step", 1, losses[0]),
        ("step", 2, losses[1]),
    ]
    assert last["event"] == "held_out"
    assert [row["tokens"] for row in last["results"]] == [result.tokens for result in results]


def test_answers_are_kept_when_the_run_is_interrupted(make_job: Callable[..., TuneJob]) -> None:
    job = make_job()

    def stop(event: Any) -> None:
        if isinstance(event, AnswerProgress) and event.done >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(job, stop)
    kept = (job.output / "answers.jsonl").read_text()
    assert len(kept.splitlines()) >= 3
    assert sorted(path.name for path in job.output.iterdir()) == ["answers.jsonl"]
    results, _ = events_of(job)
    assert (job.output / "answers.jsonl").read_text().startswith(kept)
    assert len(results) == 4


def test_a_job_goes_on_from_an_adapter(make_job: Callable[..., TuneJob], tmp_path: Path) -> None:
    first = make_job(held_out=0, output=tmp_path / "first")
    tune(first)
    second = make_job(output=tmp_path / "second", from_adapter=first.output)
    tune(second)
    record = json.loads((second.output / "mars.json").read_text())
    assert record["training"]["continues"]["steps"] == 2
    resumed = make_job(
        output=second.output, from_adapter=first.output, resume=True, settings={"steps": 3}
    )
    _, heard = events_of(resumed)
    assert [event.step for event in heard if isinstance(event, Progress)] == [3]


def test_an_adapter_that_does_not_fit_is_refused(
    make_job: Callable[..., TuneJob], tmp_path: Path
) -> None:
    masks, lora = tmp_path / "masks", tmp_path / "lora"
    tune(make_job(held_out=0, output=masks))
    tune(make_job("lora", held_out=0, output=lora))
    for job, said in (
        (make_job(from_adapter=masks, settings={"rank": 3}), "has rank 2, not 3: give its rank"),
        (make_job("full", from_adapter=masks), "use mode mask-only or lora"),
        (make_job(from_adapter=lora), "is not a mask-only adapter, so it cannot be continued"),
        (make_job(from_adapter=masks, mask_token_id=261), "mask token id 259: leave the other"),
        (make_job(from_adapter=tmp_path / "nowhere"), "no adapter at"),
    ):
        with pytest.raises(InputError, match=said):
            tune(job)
        assert not job.output.exists()


def test_bad_input_is_told_before_anything_is_written(make_job: Callable[..., TuneJob]) -> None:
    for job, said in (
        (make_job(held_out=9), "has 9 rows and 9 are to be held out: give more rows"),
        (make_job(mask_token_id=258), "eos token"),
        (make_job(max_new_tokens=600), "no prompt leaves room for 600 new tokens"),
        (make_job(resume=True), "no complete checkpoint"),
    ):
        with pytest.raises(InputError, match=said):
            tune(job)
        assert not job.output.exists(), said


@pytest.mark.parametrize("mode", ["mask-only", "lora", "full"])
def test_measuring_is_decoding_with_the_trained_weights(
    make_job: Callable[..., TuneJob], model: str, mode: str
) -> None:
    job = make_job(mode, answers="gold", held_out=0, settings={"learning_rate": 0.3})
    tune(job)
    trained = load(str(job.output)) if mode == "full" else load(model, adapter=job.output)
    prompts = [encode_prompt(trained.tokenizer, sum_of(i).prompt) for i in range(9)]

    def figures(network: MarsModel, strategy: str, tau: float | None) -> tuple[int, int]:
        params = SamplingParams(max_new_tokens=20, strategy=strategy, tau=tau)
        # What is fed depends on what steps cost, which here is assumed and not measured.
        answers = run_all(Engine(network, costs=AssumedCosts()), prompts, params)
        return sum(len(a.ids) for a in answers), sum(len(a.runs) for a in answers)

    results = measure_held_out(model, job.output, prompts, max_new_tokens=20)
    found = [(r.tokens, r.forwards) for r in results]
    assert found == [figures(trained, r.strategy, r.tau) for r in results]
    # Training changed what is written, or how fast.
    assert found != [figures(load(model), r.strategy, r.tau) for r in results]

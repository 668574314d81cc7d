"""The whole of `marslm tune`: read, answer, encode, train, measure.

Knows nothing about how progress is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from accelerate import PartialState

from marslm.data.dialogues import Dialogue, read_dialogues
from marslm.data.encode import Example, Turns
from marslm.distill.answers import AnswerProgress, answer_all
from marslm.errors import InputError
from marslm.models.loading import MarsModel, load
from marslm.train.config import TuneConfig
from marslm.train.events import Event as TrainEvent
from marslm.train.launch import check_launch
from marslm.train.run import check_adapter_fits, checkpoint_to_resume, train
from marslm.tuning.examples import gold_examples, held_out_prompts, hold_back, say_if_short
from marslm.tuning.held_out import HeldOutResult, measure_held_out
from marslm.tuning.log import LogFile

AnswerSource: TypeAlias = Literal["gold", "self"]


@dataclass(frozen=True)
class DataReady:
    """Examples are encoded. sample: the first example, for showing what is supervised.

    dropped: how many rows gave none, by reason.
    """

    examples: int
    dropped: dict[str, int]
    tokens: int
    supervised_tokens: int
    held_out: int
    sample: Example
    model: MarsModel


@dataclass(frozen=True)
class Measured:
    """Held-out prompts were decoded with the finished weights."""

    results: Sequence[HeldOutResult]


Event: TypeAlias = "AnswerProgress | DataReady | TrainEvent | Measured"
Listener: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True)
class TuneJob:
    """What to tune, on what, and where the result goes.

    data: a file or Hub data set. rows: how many of its rows to train on. held_out: how many more,
    kept out of training, to measure on afterwards. answers: whose answers to learn; by default the
    model's own for mask-only and medusa, which have to guess them, and the data's otherwise. turns:
    which of the data's assistant turns to learn. from_adapter: a mask-only adapter that a run in
    mode mask-only or lora starts from.
    """

    model: str
    data: str
    output: Path
    config: TuneConfig
    rows: int | None = None
    held_out: int = 16
    answers: AnswerSource | None = None
    mask_token_id: int | None = None
    max_new_tokens: int = 256
    from_adapter: Path | None = None
    turns: Turns = "all"
    resume: bool = False

    def __post_init__(self) -> None:
        """Raise InputError for numbers that cannot be meant."""
        for name, choices in (("answers", (None, "gold", "self")), ("turns", ("all", "last"))):
            if getattr(self, name) not in choices:
                names = " or ".join(filter(None, choices))
                raise InputError(f"{name} is {getattr(self, name)!r}: choose {names}")
        for name, least in (("rows", 1), ("held_out", 0), ("max_new_tokens", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}: give at least {least}")


def tune(job: TuneJob, listener: Listener = lambda event: None) -> list[HeldOutResult]:
    """Run a job; return the held-out measurements, empty if nothing was held out.

    Raises InputError for bad input, before anything is written.
    """
    check_launch(job.config.mode)
    checkpoint = checkpoint_to_resume(job.output, resume=job.resume)
    model = _load(job)
    max_length = min(job.config.max_length, model.context_length)
    job = replace(job, config=replace(job.config, max_length=max_length))
    examples, prompts = _prepare(job, model, listener)
    log = LogFile(job.output, listener, checkpoint)
    train(model, examples, job.config, job.output, resume=job.resume, listener=log)
    if not prompts or not PartialState().is_main_process:
        return []
    results = measure_held_out(job.model, job.output, prompts)
    log.write({"event": "held_out", "results": [asdict(result) for result in results]})
    listener(Measured(results))
    return results


def _load(job: TuneJob) -> MarsModel:
    model = load(job.model, adapter=job.from_adapter, mask_token_id=job.mask_token_id)
    if job.from_adapter is not None:
        if model.adapter is None:
            raise InputError(
                f"{job.from_adapter} is not a mask-only adapter, so it cannot be continued: start "
                "without it"
            )
        if job.mask_token_id not in (None, model.mask_token_id):
            raise InputError(
                f"{job.from_adapter} was trained with mask token id {model.mask_token_id}: leave "
                "the other one out"
            )
        check_adapter_fits(model, job.config)
    return model


def _answers(job: TuneJob) -> AnswerSource:
    return job.answers or ("self" if job.config.mode in ("mask-only", "medusa") else "gold")


def _prepare(
    job: TuneJob, model: MarsModel, listener: Listener
) -> tuple[Sequence[Example], list[list[int]]]:
    """Return examples and held-out prompts, and tell what became of the rows."""
    if _answers(job) == "gold":
        examples, report, prompts = gold_examples(job, model)
        dropped = {"too long": report.too_long, "no answer": report.unsupervised}
        tokens, supervised = report.tokens, report.supervised_tokens
    else:
        examples, prompts, dropped = _own_answers(job, model, listener)
        tokens = sum(len(example.ids) for example in examples)
        supervised = sum(sum(example.supervised) for example in examples)
    listener(
        DataReady(len(examples), dropped, tokens, supervised, len(prompts), examples[0], model)
    )
    return examples, prompts


def _own_answers(
    job: TuneJob, model: MarsModel, listener: Listener
) -> tuple[list[Example], list[list[int]], dict[str, int]]:
    """Return the model's answers to the data's prompts, held-out prompts, and rows left out."""
    wanted = None if job.rows is None else job.rows + job.held_out
    found = read_dialogues(job.data, rows=wanted, need_answers=False)
    held_out: list[Dialogue] = []
    training = list(hold_back(found, job.held_out, held_out))
    say_if_short(job, len(training), len(held_out))
    examples = answer_all(
        model,
        training,
        job.output / "answers.jsonl",
        max_length=job.config.max_length,
        max_new_tokens=job.max_new_tokens,
        listener=listener,
    )
    dropped = {"no room for an answer": len(training) - len(examples)}
    return examples, held_out_prompts(job, model, held_out), dropped

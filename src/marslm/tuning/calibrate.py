"""Finds the tau that keeps disagreement with one-token decoding under a wanted rate.

On held-out prompts the model writes its one-token answer; then, after every token of it, masks are
read as a step would read them, and each candidate is right if the answer has it at that place. A
threshold is found for each mask on half of the prompts and checked on the other half. Knows nothing
about files' formats or terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from marslm.core.accept import CONFIDENCES
from marslm.engine.admission import trained_block
from marslm.engine.api import run_all
from marslm.engine.engine import Engine, StepEvent
from marslm.errors import InputError
from marslm.models.calibration import Calibration
from marslm.models.loading import MarsModel
from marslm.report import Row
from marslm.runtime.params import SamplingParams
from marslm.runtime.window import Window
from marslm.runtime.work import Work

RATES = (0.01, 0.02, 0.05)
"""Rates of disagreement that are calibrated."""

_PIECE = 32
"""Tokens of an answer whose masks are read in one forward."""

_SLOTS = 16
"""Answers that are written side by side."""

_BINS = 10


@dataclass(frozen=True)
class Probe:
    """The candidates of the masks after one token: their confidence, and whether each is right."""

    confidence: tuple[float, ...]
    right: tuple[bool, ...]


def calibrate(
    model: MarsModel,
    prompts: Sequence[list[int]],
    *,
    confidence: str = "probability",
    max_new_tokens: int = 96,
    rates: Sequence[float] = RATES,
    on_part: Callable[[int], None] = lambda done: None,
) -> tuple[Calibration, list[Row], list[Probe]]:
    """Return the thresholds, one report row per rate and mask, and all probes.

    prompts: token ids, even ones to fit on, odd ones to check on. on_part hears how many parts are
    done, of two for each prompt: its answer, then its masks.

    Raises InputError for fewer than two prompts, a bad rate, or a model without masks to read.
    """
    if len(prompts) < 2:
        raise InputError(f"{len(prompts)} prompts: give at least two, for fitting and for checking")
    if not all(0 < rate < 1 for rate in rates) or not rates:
        raise InputError(f"rates are {list(rates)}: give numbers between 0 and 1")
    if confidence not in CONFIDENCES:
        raise InputError(f"confidence is {confidence!r}: choose from {', '.join(CONFIDENCES)}")
    block = trained_block(model)
    if model.record is None or block < 2:
        raise InputError(
            f"{model.name} was not trained for several tokens a forward: tune it first"
        )
    longest = max(map(len, prompts)) + max_new_tokens + _PIECE * block
    engine = Engine(model, slots=min(_SLOTS, len(prompts)), max_length=longest)
    answers = _answer_all(engine, prompts, max_new_tokens, on_part)
    found: list[list[Probe]] = []
    for prompt, answer in zip(prompts, answers, strict=True):
        found.append(read_probes(engine, prompt, answer, confidence, block - 1))
        on_part(len(prompts) + len(found))
    fitted = [probe for probes in found[::2] for probe in probes]
    checked = [probe for probes in found[1::2] for probe in probes]
    thresholds = {rate: fit_thresholds(fitted, rate, block - 1) for rate in rates}
    rows = [row for rate, taus in thresholds.items() for row in check(checked, rate, taus)]
    return Calibration(confidence, thresholds), rows, fitted + checked


def _answer_all(
    engine: Engine,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    on_part: Callable[[int], None],
) -> list[list[int]]:
    """Return each prompt's one-token answer."""
    finished = 0

    def count(event: StepEvent) -> None:
        nonlocal finished
        if event.sequence.finished:
            finished += 1
            on_part(finished)

    params = SamplingParams(strategy="ar", max_new_tokens=max_new_tokens)
    return [answer.ids for answer in run_all(engine, prompts, params, count)]


def read_probes(
    engine: Engine, prompt: list[int], answer: list[int], confidence: str, masks: int
) -> list[Probe]:
    """Return the probe after each token of `answer` but the last, and the one before the first."""
    probes: list[Probe] = []
    cached = 0
    for start in range(0, len(answer), _PIECE):
        text = [*prompt, *answer[:start]]
        left = answer[start:]
        window, runs = _probing_window(left, masks, engine.model.mask_token_id)
        work = Work(0, cached, text[cached:], window, 1 + len(window))
        log_probs = torch.log_softmax(engine.runner.forward([work])[0][1:].float(), dim=-1)
        candidates = log_probs.argmax(-1)
        values = CONFIDENCES[confidence](log_probs, candidates).tolist()
        for place, run in enumerate(runs):
            wanted = left[place + 1 : place + 1 + len(run)]
            right = [
                candidates[entry].item() == token for entry, token in zip(run, wanted, strict=True)
            ]
            probes.append(Probe(tuple(values[entry] for entry in run), tuple(right)))
        cached = len(text)
    return probes


def _probing_window(left: list[int], masks: int, mask_token_id: int) -> tuple[Window, list[range]]:
    """Return a tree of the next tokens with masks behind each, and where each run of masks lies.

    The masks of place p, behind token p - 1, stand for the tokens at p + 1 and on; those past the
    end of the answer are left out.
    """
    chain = left[: _PIECE - 1]
    tokens, parents = list(chain), list(range(-1, len(chain) - 1))
    runs = []
    for place in range(min(_PIECE, len(left) - 1)):
        run = range(len(tokens), len(tokens) + min(masks, len(left) - 1 - place))
        tokens += [mask_token_id] * len(run)
        parents += [place - 1, *run][: len(run)]
        runs.append(run)
    return Window(tokens, parents), runs


def fit_thresholds(probes: Sequence[Probe], rate: float, masks: int) -> tuple[float, ...]:
    """Return for each mask the lowest tau at which at most `rate` of what passes is wrong.

    A mask is judged where the masks before it pass and are right, for only there does the answer
    say what one-token decoding would write.
    """
    taus: list[float] = []
    alive = list(probes)
    for mask in range(masks):
        alive = [probe for probe in alive if len(probe.right) > mask]
        taus.append(lowest_threshold([(p.confidence[mask], p.right[mask]) for p in alive], rate))
        alive = [p for p in alive if p.right[mask] and p.confidence[mask] >= taus[-1]]
    return tuple(taus)


def lowest_threshold(judged: Sequence[tuple[float, bool]], rate: float) -> float:
    """Return the lowest confidence at which at most `rate` of what reaches it is wrong, else 1.

    One wrong candidate more is counted than was seen, so that a few samples never look certain.
    """
    ordered = sorted(judged, reverse=True)
    best, wrong = 1.0, 1
    for count, (confidence, right) in enumerate(ordered, start=1):
        wrong += not right
        last_of_equals = count == len(ordered) or ordered[count][0] < confidence
        if last_of_equals and wrong / (count + 1) <= rate:
            best = confidence
    return best


def check(probes: Sequence[Probe], rate: float, taus: Sequence[float]) -> list[Row]:
    """Return a row for each mask: how much passes its tau, and how much of that is wrong."""
    rows: list[Row] = []
    alive = list(probes)
    for mask, tau in enumerate(taus):
        alive = [probe for probe in alive if len(probe.right) > mask]
        passed = [p for p in alive if p.confidence[mask] >= tau and tau < 1]
        wrong = sum(not p.right[mask] for p in passed)
        rows.append(
            {
                "rate": rate,
                "mask": mask + 1,
                "tau": tau,
                "candidates": len(alive),
                "accepted": len(passed) / len(alive) if alive else None,
                "wrong": wrong / len(passed) if passed else None,
            }
        )
        alive = [p for p in passed if p.right[mask]]
    return rows


def reliability(probes: Sequence[Probe]) -> dict[str, list[tuple[float, float, int]]]:
    """Return per mask, for each tenth of confidence: mean confidence, share right, candidates."""
    masks = max((len(probe.right) for probe in probes), default=0)
    curves: dict[str, list[tuple[float, float, int]]] = {}
    for mask in range(masks):
        bins: list[list[tuple[float, bool]]] = [[] for _ in range(_BINS)]
        for probe in probes:
            if len(probe.right) > mask and all(probe.right[:mask]):
                value = probe.confidence[mask]
                bins[min(int(value * _BINS), _BINS - 1)].append((value, probe.right[mask]))
        curves[f"mask {mask + 1}"] = [
            (sum(v for v, _ in b) / len(b), sum(r for _, r in b) / len(b), len(b))
            for b in bins
            if b
        ]
    return curves

"""Every objective side by side on a tiny model: the paper's comparisons at a size that runs here.

As in the paper, plain fine-tuning comes first (stage 1), each variant continues from it, and a
control continues plain fine-tuning for as many steps. Results are kept as they come, so a study
that was interrupted goes on. Knows nothing about terminals.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marslm import files
from marslm.core.forms import MARS
from marslm.data import arithmetic
from marslm.data.dialogues import Message
from marslm.data.encode import encode_all, encode_prompt
from marslm.engine.api import Answer, room_for, run_all
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.models import tiny
from marslm.models.loading import MarsModel, load
from marslm.report import Row
from marslm.runtime.params import SamplingParams
from marslm.strategies.registry import strategy_names
from marslm.train.config import TuneConfig
from marslm.train.run import train

TAU = 0.95
_TRAINING, _HELD_OUT = 4000, 100
_STAGE_1: dict[str, Any] = {"objective": "ar", "steps": 600, "learning_rate": 3e-3}
_STAGE_2: dict[str, Any] = {"steps": 400, "learning_rate": 1e-3}
_COMMON: dict[str, Any] = {
    "batch_size": 16,
    "max_length": 128,
    "warmup": 0.05,
    "checkpoint_minutes": 60,
}


@dataclass(frozen=True)
class Variant:
    """One way to train on from stage 1. strategy: what decodes several tokens a forward."""

    name: str
    settings: dict[str, Any]
    mode: str = "full"
    strategy: str | None = "mars"


def _mars(block: int, **settings: Any) -> dict[str, Any]:
    # As many blocks as the paper's fixed ones have in 48 tokens, at places that vary: texts of one
    # fixed form would otherwise leave most pairs of place and distance untrained.
    return {"block_size": block, "anchors": 48 // block, **settings}


VARIANTS = (
    Variant("ar", {"objective": "ar"}, strategy=None),
    *(Variant(f"mars-b{b}", _mars(b)) for b in (4, 8, 16)),
    *(Variant(f"mars-b{b}-no-ar-loss", _mars(b, ar_weight=0.0)) for b in (4, 8, 16)),
    Variant("mars-b4-balanced", _mars(4, balance_ar=True)),
    Variant("mars-b4-distance-decay", _mars(4, distance_decay=0.8)),
    Variant("mars-b8-random-window", _mars(8, random_window=True)),
    Variant("mars-b8-curriculum", _mars(8, curriculum=0.5)),
    Variant("mars-b4-fixed", {"block_size": 4}),
    Variant("previous-mask-b4", {"block_size": 4, "block_start": "previous_mask"}),
    Variant("bidirectional-b4", _mars(4, attention="bidirectional")),
    Variant("own-position-b4", _mars(4, alignment="own")),
    Variant("any-order-b4", {"block_size": 4, "order": "confidence"}, strategy="block_diffusion"),
    Variant(
        "block-diffusion-b4",
        {"block_size": 4, "objective": "block_diffusion"},
        strategy="block_diffusion",
    ),
    Variant(
        "medusa-b4", {"block_size": 4, "learning_rate": 1e-3}, mode="medusa", strategy="medusa"
    ),
    Variant("mask-only-b4", _mars(4, kl_weight=0.0, learning_rate=5e-3), mode="mask-only"),
    Variant("mask-only-b4-kl", _mars(4, kl_weight=0.5, learning_rate=5e-3), mode="mask-only"),
)


def study(
    folder: Path,
    *,
    seeds: Sequence[int],
    names: Sequence[str] | None = None,
    listener: Callable[[str], None] = lambda what: None,
) -> list[Row]:
    """Train and measure all variants, or those named, under `folder`; return a row for each.

    What `folder` holds already is not run again. Raises InputError for an unknown name.
    """
    known = [variant.name for variant in VARIANTS]
    for name in names or ():
        if name not in known:
            raise InputError(f"unknown variant {name!r}: choose from {', '.join(known)}")
    chosen = [variant for variant in VARIANTS if names is None or variant.name in names]
    rows = []
    for seed in seeds:
        for variant in chosen:
            listener(f"{variant.name}, seed {seed}")
            rows.append(_one(folder / f"seed-{seed}", variant, seed))
    return rows


def _one(folder: Path, variant: Variant, seed: int) -> Row:
    """Return one variant's row, from its file if it is there."""
    kept = folder / variant.name / "row.json"
    if kept.exists():
        row: Row = json.loads(kept.read_text(encoding="utf-8"))
        return row
    model = _trained(folder, variant, seed)
    row = {"variant": variant.name, "seed": seed, **_measure(model, variant)}
    if row["accuracy_one_token"] is not None:
        files.write_text(kept, json.dumps(row) + "\n")
    return row


def _trained(folder: Path, variant: Variant, seed: int) -> MarsModel:
    """Return a variant's model, trained from stage 1 unless it is there already."""
    base, place = folder / "stage-1", folder / variant.name
    if not (base / "mars.json").exists():
        tokenizer = tiny.build_tokenizer()
        network = tiny.build_model(seed=seed)
        first = MarsModel("tiny", network, tokenizer, int(tokenizer.mask_token_id))
        _train(first, base, "full", {**_STAGE_1, "seed": seed})
    if not (place / "mars.json").exists():
        settings = {**_STAGE_2, **variant.settings, "seed": seed}
        _train(load(str(base)), place, variant.mode, settings)
    return load(str(place)) if variant.mode == "full" else load(str(base), adapter=place)


def _train(model: MarsModel, place: Path, mode: str, settings: dict[str, Any]) -> None:
    config = TuneConfig.for_mode(mode, **{**_COMMON, **settings})  # type: ignore[arg-type]
    problems, _ = arithmetic.split(_TRAINING, _HELD_OUT, seed=0)
    dialogues = [problem.dialogue for problem in problems]
    examples, _ = encode_all(model.tokenizer, dialogues, max_length=config.max_length)
    with files.new_folder(place) as draft:
        train(model, examples, config, draft)


def _measure(model: MarsModel, variant: Variant) -> Row:
    """Decode held-out sums at one token per step and with the variant's own strategy.

    accuracy, tokens_per_forward: at `TAU`; None where there is no such strategy.
    """
    assert model.record is not None
    one_token = SamplingParams(strategy="ar", max_new_tokens=80)
    if model.record.alignment == "own" or variant.strategy == "block_diffusion":
        one_token = SamplingParams(strategy=variant.strategy, tau=1.0, max_new_tokens=80)
    plain, fast, lossless = _decode(model, one_token), None, None
    if variant.strategy is not None:
        fast = _decode(model, replace(one_token, strategy=variant.strategy, tau=TAU))
    if variant.strategy == "mars" and model.record.form == MARS:
        # Whose window depends on the model alone, not on what a step costs here.
        lossless = _decode(model, replace(one_token, strategy="lossless-chain"))
    return {
        "block": model.record.block_size,
        "accuracy_one_token": plain.accuracy if plain else None,
        "accuracy": fast.accuracy if fast else None,
        "tokens_per_forward": fast.per_forward if fast else None,
        "lossless_tokens_per_forward": lossless.per_forward if lossless else None,
    }


@dataclass(frozen=True)
class _Decoded:
    accuracy: float
    per_forward: float


def _decode(model: MarsModel, params: SamplingParams) -> _Decoded | None:
    """Answer the held-out sums; None where the strategy does not exist."""
    if params.strategy not in strategy_names():
        return None
    _, problems = arithmetic.split(_TRAINING, _HELD_OUT, seed=0)
    prompts = [
        encode_prompt(model.tokenizer, [Message("user", problem.question)]) for problem in problems
    ]
    longest = max(map(len, prompts))
    engine = Engine(model, slots=16, max_length=room_for(model, longest, params))
    answers: list[Answer] = run_all(engine, prompts, params)
    right = sum(
        arithmetic.is_correct(problem, answer.text)
        for problem, answer in zip(problems, answers, strict=True)
    )
    forwards = sum(len(answer.runs) for answer in answers)
    return _Decoded(
        accuracy=right / len(problems),
        per_forward=sum(len(answer.ids) for answer in answers) / forwards,
    )

"""What a training run is asked to do.

Knows nothing about models, files or progress.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from marslm.core.forms import (
    BLOCK_DIFFUSION,
    MARS,
    Alignment,
    Attention,
    BlockStart,
    Form,
    Order,
)
from marslm.errors import InputError
from marslm.models.record import Mode

ObjectiveName: TypeAlias = Literal["mars", "ar", "block_diffusion", "medusa"]

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class TuneConfig:
    """Settings of one run; `for_mode` fills in what suits a mode.

    mode: "full", "lora" (merged at load), "mask-only" (the base model stays bit-identical) or
        "medusa" (heads beside a frozen model: the baseline).
    objective: "mars", "ar" (plain SFT: stage 1, and the control of equal compute),
        "block_diffusion" (the paper's baseline) or, in mode medusa, "medusa".
    block_size: B, the candidates of one step.
    block_start, attention, alignment, order: the form of a block; the defaults are MARS, the others
        its ablations.
    ar_weight: w in L = L_mask + w * L_AR; mask-only has no L_AR, its clean stream is frozen.
    balance_ar: multiply w by the running ratio L_mask / L_AR, so that neither drowns the other.
    anchors: masked blocks sampled per sequence at each visit; None cuts the answer into the
        paper's fixed blocks.
    kl_weight: share of KL to the clean stream's own distribution in L_mask, mask-only.
    distance_decay: weight of a row by the masks it sees: decay to the power of their number.
    random_window: draw B anew, from 2 up, at each visit: one checkpoint for every B.
    curriculum: share of the run over which B grows from 2; needs steps.
    rank: rank of the low-rank update; its scale is 1.
    batch_size: sequences per optimiser step over all processes, in micro-batches of
        batch_size / (processes * accumulation).
    max_length: longest sequence in tokens; with packing, the room that examples share.
    packing: put several examples into one sequence; none sees another.
    recompute: recompute activations in the backward pass instead of keeping them.
    steps, minutes, epochs: the length of the run; exactly one is given.
    report_to: where the Trainer sends metrics besides log.jsonl: tensorboard, wandb, trackio.
    """

    mode: Mode
    objective: ObjectiveName = "mars"
    block_size: int = 4
    block_start: BlockStart = MARS.block_start
    attention: Attention = MARS.attention
    alignment: Alignment = MARS.alignment
    order: Order = MARS.order
    ar_weight: float = 1.0
    balance_ar: bool = False
    anchors: int | None = None
    kl_weight: float = 0.0
    distance_decay: float = 1.0
    random_window: bool = False
    curriculum: float = 0.0
    rank: int = 32
    learning_rate: float = 5e-6
    warmup: float = 0.03
    batch_size: int = 8
    accumulation: int = 1
    max_length: int = 512
    packing: bool = False
    recompute: bool = False
    steps: int | None = None
    minutes: float | None = None
    epochs: float | None = None
    checkpoint_minutes: float = 5.0
    seed: int = 0
    report_to: str = "none"

    def __post_init__(self) -> None:
        """Raise InputError for settings that cannot be run."""
        if self.mode not in get_args(Mode):
            raise InputError(f"mode is {self.mode!r}: choose {', '.join(get_args(Mode))}")
        if self.objective not in get_args(ObjectiveName):
            names = ", ".join(get_args(ObjectiveName))
            raise InputError(f"objective is {self.objective!r}: choose one of {names}")
        if [self.steps, self.minutes, self.epochs].count(None) != 2:
            raise InputError("give the length of the run as one of steps, minutes and epochs")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}: give at least {least}")
        for name in ("kl_weight", "distance_decay", "curriculum"):
            if getattr(self, name) > 1:
                raise InputError(f"{name} is {getattr(self, name)}: give a share from 0 to 1")
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} is {value}: give more than 0")
        if self.batch_size % self.accumulation:
            raise InputError(
                f"batch_size {self.batch_size} is not a multiple of accumulation "
                f"{self.accumulation}: change one of them"
            )
        self._check_form()

    @property
    def form(self) -> Form:
        """The form of a block."""
        if self.objective == "block_diffusion":
            return BLOCK_DIFFUSION
        return Form(self.block_start, self.attention, self.alignment, self.order)

    def in_steps(self, sequences: int) -> TuneConfig:
        """Return the same settings with epochs over so many sequences as steps."""
        if self.epochs is None:
            return self
        steps = max(1, round(self.epochs * sequences / self.batch_size))
        return replace(self, epochs=None, steps=steps)

    @property
    def most_rows(self) -> int:
        """The most rows that follow an anchor, which is also the most masks that a row sees."""
        return self.form.trained_rows(self.block_size)

    def _check_form(self) -> None:
        """Raise InputError for settings that contradict one another."""
        given = Form(self.block_start, self.attention, self.alignment, self.order)
        if self.objective != "mars" and given != MARS:
            raise InputError(
                f"objective {self.objective} has its own form of a block: leave out block_start, "
                "attention, alignment and order"
            )
        if self.mode == "mask-only" and self.form != MARS:
            raise InputError("mask-only trains MARS's own form of a block: use mode full or lora")
        if (self.mode == "medusa") != (self.objective == "medusa"):
            raise InputError("mode and objective medusa belong together: give both or neither")
        if self.mode == "mask-only" and self.objective != "mars":
            raise InputError(f"objective {self.objective} has no masks: use mode full or lora")
        if self.mode == "mask-only" and self.recompute:
            raise InputError("recompute has no meaning in mask-only: its clean stream is frozen")
        if self.form.block_start == "previous_mask" and self.anchors is not None:
            raise InputError("block_start previous_mask needs fixed blocks: leave out anchors")
        if self.curriculum and self.minutes is not None:
            raise InputError("curriculum follows the steps of a run: give steps, not minutes")

    @classmethod
    def for_mode(cls, mode: Mode, **settings: object) -> TuneConfig:
        """Return the settings that suit `mode`, with those given on top (None: not given)."""
        given = {name: value for name, value in settings.items() if value is not None}
        objective = _OBJECTIVE_PRESETS.get(str(given.get("objective")), {})
        return cls(**{"mode": mode, **_PRESETS.get(mode, {}), **objective, **given})  # type: ignore[arg-type]


_ABOVE_ZERO = (
    "steps",
    "minutes",
    "epochs",
    "learning_rate",
    "checkpoint_minutes",
    "distance_decay",
)

_LEAST = {
    "block_size": 2,
    "ar_weight": 0,
    "anchors": 1,
    "kl_weight": 0,
    "rank": 1,
    "batch_size": 1,
    "accumulation": 1,
    "max_length": 8,
    "seed": 0,
    "curriculum": 0,
}


def check_meaningful(mode: str, **settings: object) -> None:
    """Raise InputError for a setting that is given (not None) but that `mode` does not read."""
    for name in _UNUSED.get(mode, ()):
        if settings.get(name) is not None:
            raise InputError(f"{name} has no meaning in mode {mode}: leave it out")


_UNUSED: dict[str, tuple[str, ...]] = {
    "full": ("kl_weight", "rank"),
    "lora": ("kl_weight",),
    "mask-only": ("ar_weight", "balance_ar", "recompute"),
    "medusa": (
        *("ar_weight", "balance_ar", "recompute", "kl_weight", "rank"),
        *("anchors", "random_window", "curriculum"),
    ),
}

_PRESETS: dict[Mode, dict[str, object]] = {
    "full": {},
    "lora": {"learning_rate": 2e-4},
    "mask-only": {
        "block_size": 5,
        "ar_weight": 0.0,
        "anchors": 48,
        "kl_weight": 0.5,
        "learning_rate": 8e-4,
    },
    # Medusa-1 (arXiv 2401.10774, section 2.2): a head's loss weighs 0.8 of the one before.
    "medusa": {
        "objective": "medusa",
        "ar_weight": 0.0,
        "distance_decay": 0.8,
        "learning_rate": 1e-3,
    },
}

_OBJECTIVE_PRESETS: dict[str, dict[str, object]] = {
    # As in the paper: its baseline has no loss on the clean stream.
    "block_diffusion": {"ar_weight": 0.0},
}

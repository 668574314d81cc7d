"""What a training run is asked to do.

Knows nothing about models, files or progress.
"""

from __future__ import annotations

from dataclasses import dataclass

from marslm.errors import InputError
from marslm.models.record import Mode

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class TuneConfig:
    """Settings of one run; `for_mode` fills in what suits a mode.

    mode: "full", "lora" (merged at load) or "mask-only" (the base model stays bit-identical).
    block_size: B, the candidates of one step, so B-1 masks.
    ar_weight: w in L = L_mask + w * L_AR; mask-only has no L_AR, its clean stream is frozen.
    anchors: masked blocks sampled per sequence at each visit; None cuts the answer into the
        paper's fixed blocks.
    kl_weight: share of KL to the clean stream's own distribution in L_mask, mask-only.
    rank: rank of the low-rank update; its scale is 1.
    batch_size: sequences per optimiser step, in micro-batches of batch_size / accumulation.
    steps, minutes: the length of the run; exactly one is given.
    """

    mode: Mode
    block_size: int = 4
    ar_weight: float = 1.0
    anchors: int | None = None
    kl_weight: float = 0.0
    rank: int = 32
    learning_rate: float = 5e-6
    warmup: float = 0.03
    batch_size: int = 8
    accumulation: int = 1
    max_length: int = 512
    steps: int | None = None
    minutes: float | None = None
    checkpoint_minutes: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InputError for settings that cannot be run."""
        if self.mode not in ("full", "lora", "mask-only"):
            raise InputError(f"mode is {self.mode!r}: choose full, lora or mask-only")
        if (self.steps is None) == (self.minutes is None):
            raise InputError("give the length of the run as either steps or minutes")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}: give at least {least}")
        if self.kl_weight > 1:
            raise InputError(f"kl_weight is {self.kl_weight}: give a share from 0 to 1")
        for name in ("steps", "minutes", "learning_rate", "checkpoint_minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} is {value}: give more than 0")
        if self.batch_size % self.accumulation:
            raise InputError(
                f"batch_size {self.batch_size} is not a multiple of accumulation "
                f"{self.accumulation}: change one of them"
            )

    @classmethod
    def for_mode(cls, mode: Mode, **settings: object) -> TuneConfig:
        """Return the settings that suit `mode`, with those given on top (None: not given)."""
        given = {name: value for name, value in settings.items() if value is not None}
        return cls(**{"mode": mode, **_PRESETS.get(mode, {}), **given})  # type: ignore[arg-type]


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
}


def check_meaningful(mode: str, **settings: object) -> None:
    """Raise InputError for a setting that is given (not None) but that `mode` does not read."""
    for name in _UNUSED.get(mode, ()):
        if settings.get(name) is not None:
            raise InputError(f"{name} has no meaning in mode {mode}: leave it out")


_UNUSED: dict[str, tuple[str, ...]] = {
    "full": ("kl_weight", "rank"),
    "lora": ("kl_weight",),
    "mask-only": ("ar_weight",),
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
}

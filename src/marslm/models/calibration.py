"""`calibration.json`: thresholds that keep a wanted rate of agreement, saved beside the weights.

Knows nothing about how they are measured.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from marslm import files
from marslm.errors import InputError

FILE_NAME = "calibration.json"


@dataclass(frozen=True)
class Calibration:
    """Thresholds by wanted rate of disagreement with one-token decoding.

    confidence: which confidence they are for. thresholds: rate -> tau of each mask, the first mask
    first; 1 where no threshold keeps the rate.
    """

    confidence: str
    thresholds: dict[float, tuple[float, ...]]

    def save(self, folder: Path) -> None:
        """Write the file into `folder` atomically."""
        files.write_text(folder / FILE_NAME, json.dumps(asdict(self), indent=1) + "\n")

    def taus(self, rate: float) -> tuple[float, ...]:
        """Return the thresholds for a rate; InputError if it was not calibrated."""
        if rate not in self.thresholds:
            known = ", ".join(f"auto:{each:g}" for each in sorted(self.thresholds))
            raise InputError(f"tau auto:{rate:g} is not calibrated: choose from {known}")
        return self.thresholds[rate]


def read_calibration(folder: Path) -> Calibration | None:
    """Read the calibration in `folder`, None if there is none; InputError if it is not one."""
    path = folder / FILE_NAME
    if not path.exists():
        return None
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        thresholds = {float(rate): tuple(map(float, t)) for rate, t in raw["thresholds"].items()}
        return Calibration(str(raw["confidence"]), thresholds)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise InputError(f"{path} cannot be read ({error}); calibrate again") from error

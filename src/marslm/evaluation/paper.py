"""The paper's own figures (arXiv 2604.07023, its main table and its tau figures), in percent.

Knows nothing about ours.
"""

from __future__ import annotations

from dataclasses import dataclass

COLUMNS = ("ifeval", "bbh", "mmlu_pro", "gpqa", "gsm8k", "humaneval")


@dataclass(frozen=True)
class PaperRow:
    """scores: of COLUMNS in their order, None where the paper gives the average alone."""

    name: str
    scores: tuple[float, ...] | None
    average: float
    tokens_per_forward: float = 1.0


ROWS = (
    PaperRow("0.5B AR SFT, 5 epochs", (48.4, 26.3, 11.9, 17.9, 32.0, 35.4), 28.7),
    PaperRow("0.5B MARS B=4, one token", (51.3, 26.6, 12.4, 19.4, 32.8, 40.2), 30.4),
    PaperRow("0.5B MARS B=4, tau 0.95", None, 29.0, 1.46),
    PaperRow("7B AR SFT", (67.0, 54.0, 43.9, 27.5, 68.7, 78.7), 56.6),
    PaperRow("7B MARS B=4, one token", (68.2, 54.6, 44.4, 26.6, 73.2, 81.7), 58.1),
    PaperRow("7B MARS B=4, tau 0.95", None, 56.8, 1.68),
)

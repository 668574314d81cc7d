"""A figure is drawn; what it shows is seen by looking."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_reliability_plot_is_written(tmp_path: Path, ending: str) -> None:
    from marslm.plots.reliability import plot_reliability  # noqa: PLC0415

    path = tmp_path / "new" / f"figure.{ending}"
    plot_reliability({"mask 1": [(0.2, 0.1, 4), (0.9, 0.8, 90)], "mask 2": []}, path, "tiny")
    assert path.stat().st_size > 1000

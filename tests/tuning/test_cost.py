"""What training costs: every objective takes the same steps, and bad names are refused early."""

from __future__ import annotations

import pytest

from marslm.errors import InputError
from marslm.tuning import cost


def test_objectives_take_turns_and_are_compared_with_full_fine_tuning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = cost.Setting("tiny", 2, 128, {"block_size": 4, "anchors": 3})
    monkeypatch.setitem(cost.SETTINGS, "tiny", small)
    peaks = {"ar": 100.0, "mars": 150.0, "mask-only": 90.0}
    monkeypatch.setattr(
        cost,
        "_memory_in_a_process",
        lambda model, name: {"peak": peaks[name], "steps": peaks[name] / 2},
    )
    rows = cost.measure("tiny", ["mars", "mask-only"], rounds=2)
    assert [row["objective"] for row in rows] == ["ar", "mars", "mask-only"]
    assert rows[0]["time_ratio"] == rows[0]["memory_ratio"] == 1
    assert rows[1]["memory_ratio"] == 1.5
    assert all(row["rounds"] == 2 for row in rows)


@pytest.mark.parametrize("name", cost.OBJECTIVES)
def test_every_objective_of_the_report_can_take_a_step(name: str) -> None:
    bench = cost.Bench(cost.Setting("tiny", 2, 128, {"block_size": 4, "anchors": 3}), name)
    first, again = bench.step(), bench.step()
    assert first[0] > 0
    assert first[1] > 0 < again[1]


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="no training benchmark for 'gpt': choose tiny or smollm2"):
        cost.measure("gpt", ["mars"], rounds=1)
    with pytest.raises(InputError, match="unknown objective 'magic'"):
        cost.measure("tiny", ["magic"], rounds=1)

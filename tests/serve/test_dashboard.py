"""The Grafana dashboard asks for metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

from serve.conftest import Running

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "marslm.json"


def test_every_metric_of_the_dashboard_is_exported(server: Running) -> None:
    exported = re.findall(r"^# TYPE (\S+) (\w+)", server.get("/metrics").text, re.MULTILINE)
    names = {
        name + suffix
        for name, kind in exported
        for suffix in {"histogram": ("_bucket", "_sum", "_count")}.get(kind, ("",))
    }
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"marslm:\w+", target["expr"])
    }
    assert len(asked) > 10
    assert asked <= names

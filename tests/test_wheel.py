"""A real wheel holds the shipped adapter, an editable one nothing but a pointer."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]
ADAPTER = ROOT / "models" / "smollm2-135m" / "mask-only"


def build(version: str, folder: Path) -> zipfile.ZipFile:
    builder = WheelBuilder(str(ROOT))
    (path,) = builder.build(directory=str(folder), versions=[version])
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return build("standard", tmp_path_factory.mktemp("wheel"))


def test_a_wheel_carries_the_adapter_whole(wheel: zipfile.ZipFile) -> None:
    for path in ADAPTER.iterdir():
        place = f"marslm/shipped/smollm2-135m/mask-only/{path.name}"
        assert wheel.getinfo(place).file_size == path.stat().st_size


def test_an_installed_wheel_finds_its_adapter(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = "import marslm.models.short_names as s; print(s.__file__, s.shipped_adapter('smollm2'))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True
    )
    module, adapter = run.stdout.decode().split()
    assert module.startswith(str(tmp_path))
    assert Path(adapter) == tmp_path / "marslm" / "shipped" / "smollm2-135m" / "mask-only"


def test_an_editable_wheel_makes_no_second_package(tmp_path: Path) -> None:
    names = build("editable", tmp_path).namelist()
    assert not [name for name in names if name.startswith("marslm/")]
    assert [name for name in names if name.endswith(".pth")]

"""The wheel holds what it should, and predicts in an environment without torch, from another folder."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def _run(*command: object, folder: Path) -> str:
    done = subprocess.run(list(map(str, command)), check=False, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    (built,) = folder.glob("stepgauge-*.whl")
    return built


def test_the_wheel_holds_the_packages_and_nothing_beside_them(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"cli.py", "oracle", "profiler", "calibration", "db", "service"}
    assert "db/migrations/env.py" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_installed_wheel_predicts_without_torch(wheel: Path, exported_calibration: Path, tmp_path: Path) -> None:
    _run(sys.executable, "-m", "venv", "empty", folder=tmp_path)
    python, stepgauge = tmp_path / "empty/bin/python", tmp_path / "empty/bin/stepgauge"
    constraints = ("-c", ROOT / "constraints.txt")
    _run(python, "-m", "pip", "install", "--quiet", *constraints, wheel, folder=tmp_path)
    missing = "import importlib.util as u; print([n for n in ('torch', 'sklearn', 'scipy') if u.find_spec(n)])"
    assert _run(python, "-c", missing, folder=tmp_path).strip() == "[]"
    store = ("--db", tmp_path / "laptop.sqlite")
    _run(stepgauge, "load", exported_calibration, *store, folder=tmp_path)
    told = _run(stepgauge, "predict", "resnet50", "--batch", 8, "--json", *store, folder=tmp_path)
    assert json.loads(told)["projections"][0]["step_s"]["middle"] > 0

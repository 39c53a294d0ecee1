"""Rules of the house that import-linter cannot check: it takes packages, not the single module `cli`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("oracle", "profiler", "calibration", "db", "service")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
HEAVY = ("torch", "sklearn", "scipy", "cupy", "alembic", "pandas", "matplotlib")


def _imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_imports_the_command_line_or_pickles(path: Path) -> None:
    assert not _imported(path) & {"cli", "pickle", "joblib", "dill", "cloudpickle"}


@pytest.mark.parametrize("path", [*SOURCES, ROOT / "cli.py"], ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_under_400_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 400


def _loaded_by(code: str) -> set[str]:
    """The top-level modules that are loaded after some code ran in a fresh interpreter."""
    report = "import sys; print('LOADED', *sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(re.search(r"^LOADED (.*)$", done.stdout, re.MULTILINE)[1].split())  # type: ignore[index]


def _command(*arguments: str) -> str:
    """Code that runs the command line as the installed script does, and fails where it fails."""
    run = "try:\n    cli.main()\nexcept SystemExit as ended:\n    assert not ended.code, ended.code"
    return f"import sys, cli\nsys.argv = ['stepgauge', *{arguments!r}]\n{run}"


def test_help_loads_no_heavy_library() -> None:
    assert not _loaded_by(_command("--help")) & {*HEAVY, "sqlalchemy", "numpy"}


def test_predict_loads_no_heavy_library(tmp_path: Path, exported_calibration: Path) -> None:
    db = str(tmp_path / "store.sqlite")
    load = _command("load", str(exported_calibration), "--db", db)
    predict = _command("predict", "resnet50", "--batch", "8", "--db", db)
    _loaded_by(load)  # creates the store, which may take Alembic
    assert not _loaded_by(predict) & set(HEAVY)

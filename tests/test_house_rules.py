"""Rules of the house that import-linter cannot check: it takes packages, not the single module `cli`."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cli

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("oracle", "profiler", "calibration", "db", "service")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
ONE_THREAD = "OPENBLAS_NUM_THREADS"
NEEDLESS = (
    "sqlalchemy",
    "db.store",
    "db.schema",
    "numpy.ma",
    "importlib.metadata",
    "profiler.environment",
    "profiler.nvml",
    "service.measuring_commands",
    "service.measuring_requests",
    "oracle.paradl_net",
)
"""What a prediction has loaded at some time, and does without."""

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
    """The modules that are loaded after some code ran in a fresh interpreter."""
    return set(_printed_by(f"{code}\nimport sys; print('SAID', *sys.modules)").split())


def _printed_by(code: str) -> str:
    """What some code says in a fresh interpreter, behind SAID."""
    alone = {name: value for name, value in os.environ.items() if name != ONE_THREAD}
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=ROOT, env=alone, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return re.search(r"^SAID (.*)$", done.stdout, re.MULTILINE)[1]  # type: ignore[index]


def _command(*arguments: str) -> str:
    """Code that runs the command line as the installed script does, and fails where it fails."""
    run = "try:\n    cli.main()\nexcept SystemExit as ended:\n    assert not ended.code, ended.code"
    return f"import sys, cli\nsys.argv = ['stepgauge', *{arguments!r}]\n{run}"


@pytest.fixture(scope="session")
def filled_store(tmp_path_factory: pytest.TempPathFactory, exported_calibration: Path) -> str:
    """A store with a calibration; creating it may take Alembic."""
    db = str(tmp_path_factory.mktemp("filled") / "store.sqlite")
    _loaded_by(_command("load", str(exported_calibration), "--db", db))
    return db


def test_help_loads_no_heavy_library() -> None:
    assert not _loaded_by(_command("--help")) & {*HEAVY, "sqlalchemy", "numpy"}


def test_predict_loads_nothing_that_it_does_not_need(filled_store: str) -> None:
    # A cold prediction is a matter of half a second, most of which is importing: what stands here took a part of it.
    loaded = _loaded_by(_command("predict", "resnet50", "--batch", "8", "--db", filled_store))
    assert "db.reading" in loaded
    assert not loaded & {*HEAVY, *NEEDLESS}


@pytest.mark.parametrize("command", [("list",), ("show",), ("export", "sim")])
def test_looking_at_calibrations_loads_no_heavy_library(filled_store: str, command: tuple[str, ...]) -> None:
    assert not _loaded_by(_command(*command, "--db", filled_store)) & {*HEAVY, "sqlalchemy"}


def test_commands_that_price_keep_linear_algebra_to_one_thread_and_no_others_do(filled_store: str) -> None:
    say = f"import os; print('SAID', os.environ.get({ONE_THREAD!r}))"
    predict = _command("predict", "alexnet", "--batch", "8", "--db", filled_store)
    assert _printed_by(f"{predict}\n{say}") == "1"
    assert _printed_by(f"{_command('calibrate', '--help')}\n{say}") == "None"
    assert cli.COMMANDS.keys() > cli.PRICING

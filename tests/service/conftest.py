"""Run the command line in this process, on a store that a simulated device has filled."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import cli


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


Stepgauge = Callable[..., Ran]


@pytest.fixture
def stepgauge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Stepgauge:
    """Call the command line with arguments."""

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["stepgauge", *map(str, arguments)])
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # which the command line may set, for its own process
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return run


@pytest.fixture
def store(simulated_store: Path, tmp_path: Path) -> Path:
    """A store of one's own with the calibration `sim`."""
    return Path(shutil.copy(simulated_store, tmp_path / "store.sqlite"))

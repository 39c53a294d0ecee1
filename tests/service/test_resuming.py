"""A run that is killed at any moment is resumed: nothing is lost, nothing is measured twice, nothing is half written."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from db.store import Store
from oracle.errors import BadInput
from profiler.anchors import ANCHOR
from profiler.run import RunSettings
from service.agenda import PLAN, REFUSED, SESSION, spent_s
from service.calibrating import calibrate
from service.claims import claimed
from service.measuring import measure_device
from service.requests import CalibrateRequest, MeasureRequest, Questions

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
KILLS = 10

TELLING = """
import json, sys
import cli, db.store

class Telling(db.store.Store):
    def add_measurement(self, measurement):
        super().add_measurement(measurement)
        print(json.dumps([measurement.case_key, measurement.taken_at, measurement.device_s]), flush=True)

    def add_calibration(self, *what, **how):
        print('"storing"', flush=True)
        super().add_calibration(*what, **how)

db.store.Store = Telling
sys.argv = ["stepgauge", *sys.argv[1:]]
cli.main()
"""
"""The command line, with a store that says what it has stored, after it has."""


@dataclass
class Told:
    """What all processes have said so far: one line for every stored measurement."""

    path: Path

    def lines(self) -> list[Any]:
        if not self.path.exists():
            return []
        whole = [line for line in self.path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [json.loads(line) for line in whole if line[0] in '["']

    def measurements(self) -> list[tuple[str, str, tuple[float, ...]]]:
        return [(line[0], line[1], tuple(line[2])) for line in self.lines() if line != "storing"]


def start(arguments: Sequence[str], told: Told) -> subprocess.Popen[bytes]:
    with told.path.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-c", TELLING, *arguments], cwd=ROOT, stdout=out, stderr=out, start_new_session=True
        )


def kill_when(process: subprocess.Popen[bytes], ready: Callable[[], bool], then_s: float = 0.0) -> bool:
    """Wait until something is so, and a little longer, then kill; says whether the process was still alive."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not ready() and process.poll() is None and time.monotonic() < give_up_s:
        time.sleep(0.002)
    time.sleep(then_s)
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def tiny_model(tmp_path: Path) -> Path:
    """A model of the documents with few calls of its own."""
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    path = tmp_path / "tiny.json"
    path.write_text(text.split("```json\n")[1].split("```")[0])
    return path


def test_ten_kills_lose_nothing_double_nothing_and_leave_nothing_half_written(tmp_path: Path) -> None:
    db, told = tmp_path / "store.sqlite", Told(tmp_path / "told")
    model = f"{tiny_model(tmp_path)}:4"
    calibrate_it = ["calibrate", "--device", "simulated", "--for", model, "--name", "killed", "--resume"]
    calibrate_it += ["--budget", "10min", "--db", str(db)]
    draw = random.Random(20)
    killed = 0
    for _ in range(KILLS):
        wanted, then_s = len(told.lines()) + draw.randrange(15), draw.random() * draw.choice([0.02, 1.0])
        killed += kill_when(start(calibrate_it, told), lambda wanted=wanted: len(told.lines()) >= wanted, then_s)  # type: ignore[misc]
    killed += kill_when(start(calibrate_it, told), lambda: "storing" in told.lines())
    assert killed >= KILLS  # the last kill may have come too late, after the calibration was stored
    if killed > KILLS:
        end = start(calibrate_it, told)
        assert end.wait(PATIENCE_S) == 0, told.path.read_text()[-1000:]

    with Store.open(str(db)) as store:
        (run,) = store.runs()  # every session went on with the first one's run
        assert run.status == "finished"
        measurements, facts = store.measurements(run.id), store.facts(run.id)
        assert store.calibration_runs("killed") == [run.id]
        counts = [shape.count for shape in store.calibration("killed").shapes]
    # Lost: what a process has told is there, sample for sample; a kill may have cut off one report, and no more.
    stored = Counter((m.case_key, m.taken_at, m.device_s) for m in measurements)
    reported = Counter(told.measurements())
    assert not reported - stored
    assert (stored - reported).total() <= killed
    # Doubled: no measurement is there twice, and no case was visited more often than a run does.
    assert max(stored.values()) == 1
    visits = Counter(m.case_key for m in measurements if ANCHOR not in m.flags)
    assert max(visits.values()) <= RunSettings("", 1.0).max_visits
    # Half-written: every measurement has its samples, and the plan's cases are all there.
    assert all(len(m.device_s) == len(m.host_s) >= 5 for m in measurements)
    (plan,) = [fact for fact in facts if fact.kind == PLAN]
    assert len(visits) == len(plan.values["cases"])
    assert sum(fact.kind == SESSION for fact in facts) >= 2
    assert min(counts) >= 5
    connection = sqlite3.connect(db)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()

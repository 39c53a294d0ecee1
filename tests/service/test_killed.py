"""A calibration that is killed leaves its measurements, no calibration, and a store that works."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0


def _measurements(db: Path) -> int:
    if not db.exists():
        return 0
    connection = sqlite3.connect(db, timeout=10)
    try:
        (count,) = connection.execute("SELECT count(*) FROM measurement").fetchone()
    except sqlite3.OperationalError:  # the tables are not there yet
        return 0
    finally:
        connection.close()
    return int(count)


def test_kill_in_mid_calibration(stepgauge: Callable[..., Any], tmp_path: Path) -> None:
    db = tmp_path / "store.sqlite"
    calibrate = ("calibrate", "--device", "cpu", "--budget", "300s", "--quick", "--name", "killed", "--db", str(db))
    process = subprocess.Popen([sys.executable, "cli.py", *calibrate], cwd=ROOT, start_new_session=True)
    give_up_s = time.monotonic() + PATIENCE_S
    while _measurements(db) < 3 and process.poll() is None and time.monotonic() < give_up_s:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = _measurements(db)
    assert kept >= 3
    assert "no calibration" in stepgauge("list", "--db", db).out
    # The name is still free, and the next run works.
    ran = stepgauge("calibrate", "--device", "simulated", "--quick", "--name", "killed", "--db", db)
    assert ran.code == 0, ran.err
    assert "killed" in stepgauge("list", "--db", db).out
    assert _measurements(db) > kept

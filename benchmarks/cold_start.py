"""Cold wall times of the command line as multiples of bare Python, interleaved in one run.

    python benchmarks/cold_start.py [ROUNDS]

`predict` runs on a stored calibration of the simulated device. The medians are over the rounds (15 by default).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from db.store import Store
from service.calibrating import calibrate
from service.requests import CalibrateRequest

CLI = str(Path(__file__).resolve().parents[1] / "cli.py")


def seconds(*command: str) -> float:
    """Wall time of one process."""
    start_s = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start_s


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with tempfile.TemporaryDirectory() as folder:
        db = str(Path(folder) / "store.sqlite")
        with Store.open(db) as store:
            calibrate(store, CalibrateRequest(device="simulated", name="sim", quick=True))
        commands = {
            "python -c pass": ("-c", "pass"),
            "python -c 'import numpy, sqlalchemy'": ("-c", "import numpy, sqlalchemy"),
            "stepgauge --help": (CLI, "--help"),
            "stepgauge predict resnet50": (CLI, "predict", "resnet50", "--batch", "8", "--db", db),
        }
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                taken[name].append(seconds(*command))
    bare_s = median(taken["python -c pass"])
    for name, times in taken.items():
        middle_s = median(times)
        print(f"{name:40s} {middle_s:6.3f} s, {middle_s / bare_s:5.1f} x bare Python (fastest {min(times):.3f} s)")


if __name__ == "__main__":
    main()

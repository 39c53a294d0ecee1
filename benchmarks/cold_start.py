"""Cold times of the command line, interleaved in one run: wall time as a multiple of bare Python, and CPU time.

    python benchmarks/cold_start.py [ROUNDS [STORE]]

The commands run on the newest calibration of STORE, by default one of the simulated device that is made for it. That
one has no residual models; a calibration of a CPU has them for most of its kernels, and reading them takes time too.
The medians are over the rounds (15 by default). CPU time is what to compare where others use the machine.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from db.store import Store
from service.calibrating import calibrate
from service.measuring_requests import CalibrateRequest

CLI = str(Path(__file__).resolve().parents[1] / "cli.py")


def seconds(*command: str) -> tuple[float, float]:
    """Wall and CPU time of one process."""
    before_s, start_s = _spent_s(), time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start_s, _spent_s() - before_s


def _spent_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def simulated_store(folder: str) -> str:
    """A store with a calibration of the simulated device."""
    db = str(Path(folder) / "store.sqlite")
    with Store.open(db) as store:
        calibrate(store, CalibrateRequest(device="simulated", name="sim", quick=True))
    return db


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with tempfile.TemporaryDirectory() as folder:
        db = sys.argv[2] if len(sys.argv) > 2 else simulated_store(folder)
        commands = {
            "python -c pass": ("-c", "pass"),
            "python -c 'import numpy'": ("-c", "import numpy"),
            "stepgauge --help": (CLI, "--help"),
            "stepgauge list": (CLI, "list", "--db", db),
            "stepgauge predict resnet50": (CLI, "predict", "resnet50", "--batch", "8", "--db", db),
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                taken[name].append(seconds(*command))
    bare_s = median(wall_s for wall_s, _ in taken["python -c pass"])
    for name, times in taken.items():
        walls_s, cpus_s = zip(*times, strict=True)
        wall_s = median(walls_s)
        print(
            f"{name:28s} {wall_s:6.3f} s, {wall_s / bare_s:5.1f} x bare Python (fastest {min(walls_s):.3f} s); "
            f"CPU {median(cpus_s):.3f} s (least {min(cpus_s):.3f} s)"
        )


if __name__ == "__main__":
    main()

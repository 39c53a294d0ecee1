"""How fast the oracle answers, each beside a plain Python loop that does the same, in one run.

    python benchmarks/oracle_speed.py

Nothing has to be measured first: the calibration is that of the simulated device. Times are CPU seconds of this
process, the best of three runs, so a machine that shares its cores disturbs them little; `loop` is a loop over layers
and rows in plain Python that knows the same constants. Asked for: a ResNet-50 prediction with remembered shapes <= 1 ms
and for the first time <= 30 ms; a sweep of 300,000 rows at >= 2e5 rows/s; all strategies over 1..1024 devices <= 1.5 s,
cold.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.recovery import measure
from calibration.calibrate import fit
from calibration.design import default_cases
from calibration.features import family
from calibration.timers import CalibratedTimer
from oracle.constants import Calibration
from oracle.execution import Execution
from oracle.links import LinkTimer
from oracle.loading import load_model
from oracle.machine import load_cluster
from oracle.model import ModelGraph
from oracle.plan import Job, tasks_of
from oracle.predictor import Predictor
from oracle.strategies import STRATEGIES, strategy
from oracle.sweep import sweep
from profiler.backends.simulated import Disturbance, SimulatedDevice

ABCI = load_cluster(Path(__file__).resolve().parents[1] / "docs" / "clusters" / "abci.yaml")
DEVICES = tuple(2**power for power in range(11))
ROWS = 300_000
REPEATS = 3


def calibration() -> Calibration:
    """What a fit of a quick design finds of the simulated device."""
    device = SimulatedDevice(0, Disturbance(0.05))
    cases = default_cases([(load_model("resnet50"), 8)], Execution(), quick=True)
    return fit([measure(case, device) for case in cases], "speed", created_at="2026-01-01T00:00:00Z")[0]


def cpu_s(work: Callable[[], object]) -> float:
    start_s = time.process_time()
    work()
    return time.process_time() - start_s


def cold_s(work: Callable[[ModelGraph], object]) -> float:
    """The best of some runs, each on a model that nothing is remembered of."""
    return min(cpu_s(partial(work, load_model("resnet50"))) for _ in range(REPEATS))


def loop_s_of(known: Calibration, graph: ModelGraph, samples: int) -> float:
    """A step in plain Python: every task priced by itself from the constants."""
    constants = {(fit.family, fit.phase): {c.quantity: c.value for c in fit.constants} for fit in known.fits}
    total = 0.0
    for task in tasks_of(graph, graph.nodes, samples):
        layer, phase = task.call.layer, task.call.phase
        own, work = constants.get((family(layer, phase), phase), {}), layer.work(phase, samples)
        launches = len(layer.param_shapes) if phase == "update" else 1
        total += task.count * (
            own.get("launch_s", 0.0) * launches
            + own.get("call_s", 0.0)
            + work.flop / own.get("flop_per_s", float("inf"))
            + work.bytes / own.get("bytes_per_s", float("inf"))
        )
    return total


def show(what: str, seconds: float, loop_s: float, limit: str) -> None:
    print(f"{what:44} {seconds * 1e3:10.2f} ms   loop {loop_s * 1e3:12.2f} ms   x {loop_s / seconds:8.2f}   {limit}")


def main() -> None:
    known = calibration()

    def fresh() -> Predictor:
        return Predictor(CalibratedTimer(known, Execution()), LinkTimer)

    graph, data = load_model("resnet50"), strategy("data")
    predictor, job = fresh(), Job(graph, 64 * 64, 64, ABCI)
    first = cold_s(lambda graph: fresh().project(replace(job, model=graph), data))
    predictor.project(job, data)
    again = min(cpu_s(lambda: [predictor.project(job, data) for _ in range(20)]) / 20 for _ in range(5))
    once = min(cpu_s(lambda: loop_s_of(known, graph, 64)) for _ in range(5))
    show("ResNet-50, first time", first, once, "<= 30 ms")
    show("ResNet-50, remembered", again, once, "<= 1 ms")

    def scale(graph: ModelGraph) -> None:
        predictor = fresh()
        for how in STRATEGIES.values():
            for count in DEVICES:
                predictor.project(Job(graph, 64 * count, count, ABCI), how)

    show("14 strategies x 1..1024 devices, cold", cold_s(scale), once * len(STRATEGIES) * len(DEVICES), "<= 1500 ms")

    per_pair = -(-ROWS // (len(STRATEGIES) * len(DEVICES)))
    batches = tuple(range(64, 64 * (per_pair + 1), 64))
    rows = len(batches) * len(STRATEGIES) * len(DEVICES)
    taken = cold_s(lambda graph: sweep(fresh(), replace(job, model=graph), STRATEGIES, DEVICES, batches))
    show(f"sweep of {rows} rows, cold", taken, once * rows, f"{rows / taken:.3g} rows/s, >= 2e5")


if __name__ == "__main__":
    main()

"""How fast the oracle answers, each beside a plain Python loop that does the same, in one run.

    python benchmarks/oracle_speed.py

Nothing has to be measured first: the calibrations are of the simulated device, one whose constants add up and one whose
families have residual models (`benchmarks.residual_store`; half a minute). Times are CPU seconds of this process, the
best of some runs, so a machine that shares its cores disturbs them little; `loop` is a loop over layers and rows in
plain Python that knows the same constants. Asked for: a ResNet-50 prediction with remembered shapes <= 1 ms and for
the first time <= 30 ms, with residual models as well; a sweep of 300,000 rows at >= 2e5 rows/s; all strategies over
1..1024 devices <= 1.5 s, cold. Of residual models <= 60 us per kernel in batches of 1,000, and <= 200 kB per family in
the store.
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

import numpy as np

from benchmarks.recovery import measure
from benchmarks.residual_store import residual_calibration
from calibration.calibrate import fit
from calibration.design import default_cases
from calibration.features import family
from calibration.stored_model import read_model
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
FIRST_REPEATS = 9
"""Of the first time, which takes milliseconds."""

BATCH = 1000


def calibration() -> Calibration:
    """What a fit of a quick design finds of the simulated device."""
    device = SimulatedDevice(0, Disturbance(0.05))
    cases = default_cases([(load_model("resnet50"), 8)], Execution(), quick=True)
    return fit([measure(case, device) for case in cases], "speed", created_at="2026-01-01T00:00:00Z")[0]


def cpu_s(work: Callable[[], object]) -> float:
    start_s = time.process_time()
    work()
    return time.process_time() - start_s


def cold_s(work: Callable[[ModelGraph], object], repeats: int = REPEATS) -> float:
    """The best of some runs, each on a model that nothing is remembered of."""
    return min(cpu_s(partial(work, load_model("resnet50"))) for _ in range(repeats))


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


def predictor_of(known: Calibration) -> Predictor:
    """One that remembers nothing yet."""
    return Predictor(CalibratedTimer(known, Execution()), LinkTimer)


def first_s(known: Calibration) -> float:
    """CPU seconds of the first prediction of ResNet-50, 64 samples on each of 64 devices."""
    data = strategy("data")
    return cold_s(lambda graph: predictor_of(known).project(Job(graph, 64 * 64, 64, ABCI), data), FIRST_REPEATS)


def show_residuals(loop_s: float) -> None:
    """The first prediction with residual models; of each model, its time per kernel and its size."""
    known = residual_calibration(ABCI)
    fits = [fit for fit in known.fits if fit.arrays]
    shapes = sorted(fit.shapes for fit in fits)
    show(f"ResNet-50, first time, {len(fits)} residual models", first_s(known), loop_s, "<= 30 ms")
    kernel_s, kbytes = [], []
    for fit_ in fits:
        stored = read_model(fit_)
        kernels = stored.canaries.kernels
        asked = kernels.take(np.arange(BATCH) % len(kernels))
        kernel_s.append(min(cpu_s(partial(stored.model.predict, asked)) for _ in range(REPEATS)) / BATCH)
        kbytes.append(sum(len(array.numbers) for array in fit_.arrays) / 1e3)
    print(
        f"residual models of {shapes[0]} to {shapes[-1]} shapes: "
        f"{1e6 * min(kernel_s):.1f} to {1e6 * max(kernel_s):.1f} us per kernel (<= 60 us), "
        f"{min(kbytes):.0f} to {max(kbytes):.0f} kB (<= 200 kB)"
    )


def main() -> None:
    known = calibration()
    fresh = partial(predictor_of, known)
    graph, data = load_model("resnet50"), strategy("data")
    predictor, job = fresh(), Job(graph, 64 * 64, 64, ABCI)
    first = first_s(known)
    predictor.project(job, data)
    again = min(cpu_s(lambda: [predictor.project(job, data) for _ in range(20)]) / 20 for _ in range(5))
    once = min(cpu_s(lambda: loop_s_of(known, graph, 64)) for _ in range(5))
    show("ResNet-50, first time", first, once, "<= 30 ms")
    show("ResNet-50, remembered", again, once, "<= 1 ms")
    show_residuals(once)

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

"""Do the fits recover the constants of a device that has known ones, and do their intervals cover them?

    python benchmarks/recovery.py [--runs 200] [--noise 0.05]

Every run measures the quick cases of a small residual network (for its families: the constants are the same for every
model) on the simulated device: five samples of each shape, each sample with its own log-normal noise, no sample
averaged beforehand. The fit is the whole of `calibration.calibrate.fit`, held-out scores included. Printed is, per
constant, the truth, the median over the runs, and in how many runs it was identified and its 80 % interval covered
the truth. Asked for: every median within 5 %, coverage between 75 and 90 %.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from calibration.calibrate import fit
from calibration.design import default_cases
from calibration.features import family
from oracle.constants import Constant
from oracle.execution import Execution
from oracle.layer import Layer, Phase
from oracle.layers import Elementwise, Linear, Loss, Norm
from oracle.model import GraphBuilder, ModelGraph
from oracle.units import format_rate, format_seconds
from oracle.windows import Conv, Pool
from profiler.backends.simulated import Disturbance, SimulatedDevice, true_constants
from profiler.case import Case
from profiler.measurement import Measurement

SAMPLES = 5
"""Raw samples of each shape."""


def small_residual_network() -> ModelGraph:
    """A network with the families of ResNet-50 and AlexNet."""
    build = GraphBuilder("small", (3, 64, 64))
    build.add("conv1", Conv.of(build.shape(), 32, 7, stride=2, padding=3, bias=False))
    build.add("bn1", Norm("batch", build.shape()))
    build.add("relu1", Elementwise("relu", build.shape()))
    entry = build.add("pool", Pool.of("max", build.shape(), 3, stride=2, padding=1))
    for block in ("a", "b"):
        build.add(f"{block}.conv1", Conv.of(build.shape(), 64, 1, bias=False))
        build.add(f"{block}.relu", Elementwise("relu", build.shape()))
        branch = build.add(f"{block}.conv2", Conv.of(build.shape(), 32, 3, padding=1, bias=False))
        entry = build.add(f"{block}.add", Elementwise("add", build.shape()), branch, entry)
    build.add("avg", Pool.of("avg", build.shape(), build.shape()[1:]))
    build.add("fc1", Linear(32, 128))
    build.add("drop", Elementwise("dropout", build.shape()))
    build.add("fc2", Linear(128, 10))
    build.add("loss", Loss("cross_entropy", build.shape()))
    return build.graph()


def measure(case: Case, device: SimulatedDevice, visit: int = 0) -> Measurement:
    """One visit of one case, without a stopping rule."""
    with device.open(case) as kernel:
        samples = [kernel.sample(1) for _ in range(SAMPLES)]
    return Measurement(
        micro=case.call.layer.kind,
        case=case.to_dict(),
        phase=case.call.phase,
        execution=case.execution_key,
        device_s=tuple(sample.device_s for sample in samples),
        host_s=tuple(sample.host_s for sample in samples),
        inner=1,
        device=device.device,
        environment=device.environment(),
        run_id="recovery",
        taken_at=f"2026-01-01T00:{visit:02d}:00Z",
        stopped="samples",
    )


@dataclass(frozen=True)
class Recovery:
    """One constant over all runs: the truth, the share of runs that identified it, the median, the coverage."""

    name: str
    quantity: str
    truth: float
    identified: float
    median: float
    coverage: float

    @property
    def error(self) -> float:
        """How far the median lies from the truth, as a share of it."""
        return self.median / self.truth - 1


def recover(cases: Sequence[Case], seeds: Sequence[int], noise_sd: float) -> Iterator[Recovery]:
    """Measure and fit once per seed, and compare every constant with the truth."""
    layers: dict[tuple[str, Phase], Layer] = {}
    for case in cases:
        layers.setdefault((family(case.call.layer, case.call.phase), case.call.phase), case.call.layer)
    found: dict[tuple[str, Phase, str], list[Constant]] = defaultdict(list)
    for seed in seeds:
        device = SimulatedDevice(seed, Disturbance(noise_sd))
        calibration, _ = fit([measure(case, device) for case in cases], f"run{seed}", created_at="2026-01-01T00:00:00Z")
        for constant in calibration.constants:
            found[(constant.family, constant.phase, constant.quantity)].append(constant)
    for (name, phase, quantity), constants in sorted(found.items()):
        truth = float(getattr(true_constants(layers[(name, phase)], phase), quantity))
        yield Recovery(
            name=constants[0].name,
            quantity=quantity,
            truth=truth,
            identified=len(constants) / len(seeds),
            median=float(np.median([constant.value for constant in constants])),
            coverage=float(np.mean([constant.lo <= truth <= constant.hi for constant in constants])),
        )


def _format(value: float, quantity: str) -> str:
    if quantity == "launch_s":
        return format_seconds(value)
    return format_rate(value, "FLOP/s" if quantity == "flop_per_s" else "B/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--noise", type=float, default=0.05)
    options = parser.parse_args()
    cases = default_cases([(small_residual_network(), 8)], Execution(), quick=True)
    start = time.perf_counter()
    rows = list(recover(cases, range(options.runs), options.noise))
    print(f"{'constant':50} {'truth':>12} {'median':>12} {'error':>7} {'identified':>10} {'coverage':>8}")
    for row in rows:
        values = f"{_format(row.truth, row.quantity):>12} {_format(row.median, row.quantity):>12}"
        print(f"{row.name:50} {values} {row.error:+7.2%} {row.identified:10.1%} {row.coverage:8.1%}")
    coverages = [row.coverage for row in rows]
    print(
        f"\n{options.runs} runs of {len(cases)} cases, {SAMPLES} samples each, noise {options.noise:.0%} per sample, "
        f"{time.perf_counter() - start:.0f} s: {len(rows)} constants, "
        f"largest error of a median {max(abs(row.error) for row in rows):.2%}, "
        f"coverage {min(coverages):.1%} to {max(coverages):.1%}, mean {np.mean(coverages):.1%}, "
        f"least identified {min(row.identified for row in rows):.1%}"
    )


if __name__ == "__main__":
    main()

"""How well are whole training steps predicted on this machine?

    python benchmarks/step_accuracy.py [--budget 480] [--rounds 4] [--steps 4] [--profile] [--net NAME ...]

Five networks at four batch sizes. Microbenchmarks (`stepgauge measure --for`, each network at one batch) and real
steps, each point in a fresh process as a training run would be, take turns; anchors are measured around both, and the
machine's slow moves are divided out of both by one estimate. The noise floor of a point is how far its steps of the
even rounds and of the odd ones lie apart, over the square root of two: what a median of one half misses another by.

(a) predicts all points from the microbenchmarks alone, canary steps of other networks included; (b), with --profile,
profiles each network at the batch that was calibrated and predicts the others.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median

from calibration.calibrate import fit
from calibration.drift import MachineSpeed, machine_speed
from calibration.timers import CalibratedTimer
from db.store import Store
from oracle.constants import Calibration
from oracle.execution import Execution
from profiler.anchors import choose_anchors, visit_anchors
from profiler.backends.base import Backend, open_backend
from profiler.measurement import Measurement
from profiler.steps.serial import StepSettings, time_steps
from profiler.stopping import StoppingRule
from service.measuring import measure_device
from service.measuring_requests import MeasureRequest, Questions
from service.models import find_model, find_question
from service.predicting import feasible_step, serial_projection

ROOT = Path(__file__).resolve().parents[1]
OWN = "benchmarks/nets.py"
NETS: dict[str, tuple[int, ...]] = {
    "alexnet": (32, 8, 16, 64),
    "vgg16": (4, 1, 2, 6),
    "resnet50": (8, 2, 4, 12),
    f"{OWN}:resnet18": (16, 4, 8, 32),
    f"{OWN}:encoder": (8, 2, 4, 16),
}
"""Each network with its batch sizes; the first is the one that is calibrated and profiled."""

LARGEST_FLOOR = 0.10


@dataclass
class Point:
    """One network at one batch: its steps by round, as taken."""

    net: str
    batch: int
    steps: dict[int, tuple[str, float]] = field(default_factory=dict)

    def steady_s(self, speed: MachineSpeed) -> dict[int, float]:
        """Median step of each round with the machine's slow moves divided out."""
        rounds = list(self.steps)
        shifts = speed.log_slowness([self.steps[number][0] for number in rounds])
        return {n: self.steps[n][1] * math.exp(-shift) for n, shift in zip(rounds, shifts, strict=True)}


@dataclass(frozen=True)
class Row:
    """A prediction beside its steps."""

    point: Point
    predicted_s: float
    interval_s: tuple[float, float]
    measured_s: float
    floor: float

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted_s / self.measured_s - 1

    @property
    def inside(self) -> bool:
        """Whether the steps lie inside the 80 % interval."""
        return self.interval_s[0] <= self.measured_s <= self.interval_s[1]

    @property
    def half_width(self) -> float:
        """Of the 80 % interval, relative to its middle."""
        return (self.interval_s[1] - self.interval_s[0]) / (2 * self.predicted_s)


def time_point(net: str, batch: int, steps: int) -> None:
    """Time steps in this process and print them as JSON."""
    rule = StoppingRule(target=0.0, min_samples=steps, max_samples=steps)
    question, settings = find_question(net, batch), StepSettings("steps", rule)
    timed = time_steps(question.graph, batch, Execution(), open_backend("cpu"), settings, question.make)
    taken_at, seconds = timed.measurement.taken_at, timed.measurement.device_s
    print(json.dumps({"taken_at": taken_at, "seconds": seconds}))


def steps_in_fresh_process(point: Point, steps: int) -> tuple[str, float]:
    """When and how long the median step took, each point in a process of its own."""
    command = [sys.executable, __file__, "--point", point.net, str(point.batch), "--steps", str(steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    found = json.loads(done.stdout.splitlines()[-1])
    return found["taken_at"], median(found["seconds"])


@dataclass
class Session:
    """What is measured, in turn: microbenchmarks, steps, and anchors around both."""

    store: Store
    backend: Backend
    points: Sequence[Point]
    request: MeasureRequest
    run_id: str = ""

    def __post_init__(self) -> None:
        self._cases = choose_anchors(self.backend, self.request.execution)

    def round(self, number: int, budget_s: float, steps: int) -> None:
        """One share of the microbenchmarks, then every point once."""
        say(f"round {number + 1}: microbenchmarks for {budget_s:.0f} s")
        asked = MeasureRequest(
            device=self.request.device, budget_s=budget_s, questions=self.request.questions, run_id=self.run_id or None
        )
        self.run_id = measure_device(self.store, asked).run.run_id
        for point in self.points:
            self._visit_anchors()
            point.steps[number] = steps_in_fresh_process(point, steps)
            say(f"round {number + 1}: {point.net} at {point.batch}: {point.steps[number][1]:.3f} s")
        self._visit_anchors()

    def _visit_anchors(self) -> None:
        self.store.add_measurements(visit_anchors(self._cases, self.backend, self.run_id))

    def measurements(self) -> list[Measurement]:
        """Microbenchmarks and anchors."""
        return list(self.store.measurements(self.run_id))


def say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


def rows_of(points: Sequence[Point], calibrations: dict[str, Calibration], speed: MachineSpeed) -> Iterator[Row]:
    """Predict points, each network from its calibration."""
    for point in points:
        timer = CalibratedTimer(calibrations[point.net], Execution())
        step = feasible_step(serial_projection(find_model(point.net), point.batch, timer))
        steady = point.steady_s(speed)
        halves = [[s for n, s in steady.items() if n % 2 == half] for half in (0, 1)]
        floor = abs(math.log(median(halves[0]) / median(halves[1]))) / math.sqrt(2) if all(halves) else math.nan
        yield Row(point, step.middle, step.interval(), median(steady.values()), floor)


def print_rows(title: str, rows: Sequence[Row], limit: float, floors: float) -> None:
    """Every row, and what they come to."""
    print(f"\n{title}\n{'network':10s} {'batch':>5s} {'predicted':>10s} {'measured':>10s} {'error':>8s} {'floor':>7s}")
    for row in rows:
        where = "inside" if row.inside else "outside"
        name = row.point.net.removeprefix(f"{OWN}:")
        print(
            f"{name:10s} {row.point.batch:5d} {row.predicted_s:9.3f}s {row.measured_s:9.3f}s {row.error:+8.1%} "
            f"{row.floor:7.1%}  {row.interval_s[0]:.3f} - {row.interval_s[1]:.3f} {where}"
        )
    error, floor = fmean(abs(row.error) for row in rows), fmean(row.floor for row in rows)
    print(
        f"mean |error| {error:.1%}, mean floor {floor:.1%}; limit {limit:.0%} or {floors:g} floors "
        f"({floors * floor:.1%}); mean error {fmean(row.error for row in rows):+.1%}"
    )
    inside, width = sum(row.inside for row in rows), median(row.half_width for row in rows)
    print(f"80 % intervals hold {inside} of {len(rows)}, median half-width {width:.1%}")
    if floor > LARGEST_FLOOR:
        print(f"the floor is above {LARGEST_FLOOR:.0%}: measure again on a quieter machine")


def profiled(session: Session, base: Calibration, nets: Sequence[str]) -> dict[str, Calibration]:
    """A calibration with each network's own profile at its first batch."""
    from service.measuring_requests import ProfileRequest
    from service.profiling import profile

    session.store.add_calibration(base, [session.run_id])
    found = {}
    for number, net in enumerate(nets):
        say(f"profiling {net} at {NETS[net][0]}")
        request = ProfileRequest(models=((net, NETS[net][0]),), calibration=base.name, name=f"profiled-{number}")
        profile(session.store, request)
        found[net] = session.store.calibration(f"profiled-{number}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted training steps beside measured ones.")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds of microbenchmarks, over all rounds")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a point in a round")
    parser.add_argument("--net", action="append", choices=NETS, help="only these networks")
    parser.add_argument("--profile", action="store_true", help="(b) as well")
    parser.add_argument("--db", help="keep the measurements here")
    parser.add_argument("--point", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.point:
        time_point(asked.point[0], int(asked.point[1]), asked.steps)
        return
    begun_s = time.monotonic()
    nets = asked.net or list(NETS)
    points = [Point(net, batch) for net in nets for batch in NETS[net]]
    questions = Questions(tuple((net, NETS[net][0]) for net in nets))
    with tempfile.TemporaryDirectory() as folder, Store.open(asked.db or str(Path(folder) / "store.sqlite")) as store:
        session = Session(store, open_backend("cpu"), points, MeasureRequest(questions=questions))
        for number in range(asked.rounds):
            session.round(number, asked.budget / asked.rounds, asked.steps)
        created_at = datetime.now(UTC).isoformat(timespec="seconds")
        base, report = fit(session.measurements(), "base", created_at=created_at)
        speed = machine_speed(session.measurements())
        print(f"{report.measurements} visits of {len(base.shapes)} shapes; the machine moved by {speed.moved:.0%}")
        rows = list(rows_of(points, dict.fromkeys(nets, base), speed))
        print_rows("(a) from microbenchmarks alone", rows, 0.15, 2.0)
        if asked.profile:
            others = [point for point in points if point.batch != NETS[point.net][0]]
            rows = list(rows_of(others, profiled(session, base, nets), speed))
            print_rows("(b) after a profile at the first batch, at the others", rows, 0.08, 1.5)
    print(f"took {(time.monotonic() - begun_s) / 60:.1f} min")


if __name__ == "__main__":
    main()

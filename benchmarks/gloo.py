"""Measure Gloo on this machine with 2 and 4 processes, fit every other size, and predict the others.

    python benchmarks/gloo.py [seconds for each run, 60] [repeats, 3]

Runs of 2 and of 4 processes alternate, each time with fresh processes. Beside the error of unseen sizes stands the
noise floor: how far two visits of one size lie apart in the median, over the square root of two. Last, the all_reduce
of the gradient of ResNet-50, predicted and measured: in one message and in the buckets of 25 MiB that the plan of data
parallelism makes of it. None of these sizes is one of the fit.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from calibration.link_rows import LinkRow
from calibration.link_series import LinkSeries
from calibration.link_values import CurveKey, LinkCalibration
from calibration.links import fit_links
from oracle.loading import load_model
from oracle.machine import Cluster, Link
from oracle.plan import Job
from oracle.strategies.choices import parse_strategy
from profiler.collectives.measure import measure_collectives
from profiler.collectives.settings import CollectiveSettings
from profiler.measurement import Measurement
from profiler.stopping import StoppingRule

GRADIENT_BYTES = 4 * 25_557_032
"""ResNet-50 has 25,557,032 parameters (torchvision, resnet50); one fp32 number each."""

BUCKETS = "data,buckets=25MiB"

WORLDS = (2, 4)
ROUNDS = 3
"""Visits of each size in one run."""

MIDDLE_BYTES, LARGE_BYTES = 1 << 24, 1 << 28


def runs(folder: Path, ranks: int, budget_s: float, repeat: int) -> Iterable[CollectiveSettings]:
    """All collectives to a middle size, all_reduce at large ones, and the gradient."""
    base = CollectiveSettings(
        folder=folder / f"{ranks}-all",
        run_id="gloo",
        budget_s=budget_s,
        ranks=ranks,
        largest_bytes=MIDDLE_BYTES,
        rounds=ROUNDS * repeat,
        # On a machine that others use, many short visits minutes apart say more than a few long ones.
        rule=StoppingRule(target=0.05, max_samples=6, max_s=0.06),
        seed=repeat,
        resume=True,
    )
    large = replace(base, collectives=("all_reduce",), smallest_bytes=2 * MIDDLE_BYTES, largest_bytes=LARGE_BYTES)
    yield base
    yield replace(large, folder=folder / f"{ranks}-large")
    for size in (GRADIENT_BYTES, *bucket_sizes()):
        yield replace(large, folder=folder / f"{ranks}-{size}", smallest_bytes=size, largest_bytes=size)


@cache
def bucket_sizes() -> tuple[int, ...]:
    """The bytes of each bucket of ResNet-50's gradient, as the oracle plans them."""
    cluster = Cluster.of_link("any", Link(1e-6, 1e9))
    plan = parse_strategy(BUCKETS).plan(Job(load_model("resnet50"), 2, 2, cluster))
    return tuple(round(exchange.transfer.bytes) for stage in plan.stages for exchange in stage.exchanges)


def key_of(measurement: Measurement) -> CurveKey:
    """One curve for each form of a collective: in place and out of place differ, and so do patterns of p2p."""
    case = measurement.case
    form = case.get("pattern", "in place" if case["in_place"] else "out of place")
    return CurveKey(case["collective"], case["ranks"], case["nodes"], case["dtype"], "gloo", form)


Visits = dict[CurveKey, dict[int, list[float]]]


def visits_of(found: Iterable[Measurement]) -> Visits:
    """The median seconds of each visit, by curve and size."""
    visits: Visits = defaultdict(lambda: defaultdict(list))
    for measurement in found:
        visits[key_of(measurement)][measurement.case["bytes"]].append(measurement.median_s)
    return visits


def held_out(sizes: Sequence[int]) -> list[int]:
    """Every other size, never an end."""
    return sorted(set(sizes) - {GRADIENT_BYTES, *bucket_sizes()})[1:-1:2]


def fitted(visits: Visits) -> LinkCalibration:
    """A calibration that has not seen the sizes that are held out."""
    rows = [
        LinkRow(key, size, tuple(seconds))
        for key, by_size in visits.items()
        for size, seconds in by_size.items()
        if size not in {*held_out(list(by_size)), GRADIENT_BYTES, *bucket_sizes()}
    ]
    return fit_links(rows, "gloo", "Gloo on this machine")


def print_errors(calibration: LinkCalibration, visits: Visits) -> None:
    print(f"{'curve':48}{'sizes':>6}{'median':>9}{'largest':>9}{'noise':>8}{'in 80 %':>9}")
    everything: dict[int, list[float]] = defaultdict(list)
    floors: dict[int, list[float]] = defaultdict(list)
    for curve in calibration.curves:
        by_size = visits[curve.key]
        sizes = held_out(list(by_size))
        answer = LinkSeries([curve], None, calibration.spread).read(curve.key.ranks, np.array(sizes, dtype=float))
        miss = answer.log_s - np.log([median(by_size[size]) for size in sizes])
        errors = np.abs(np.expm1(miss))
        noise = [abs(np.log(b / a)) / 2**0.5 for size in sizes for a, b in pairwise(by_size[size])]
        everything[curve.key.ranks] += list(errors)
        floors[curve.key.ranks] += noise
        inside = 100 * float(np.mean(np.abs(miss) <= answer.half_80))
        name = f"{curve.key.collective} of {curve.key.ranks}, {curve.key.job}"
        floor_text = f"{100 * median(noise):7.1f}%" if noise else "      ?"
        cells = f"{100 * np.median(errors):8.1f}%{100 * errors.max():8.1f}%{floor_text}{inside:8.0f}%"
        print(f"{name:48}{len(sizes):6}{cells}")
    for ranks, errors_of in everything.items():
        floor = median(floors[ranks]) if floors[ranks] else float("nan")
        error = median(errors_of)
        print(
            f"{ranks} ranks: median error {100 * error:.1f} %, noise floor {100 * floor:.1f} %: {error / floor:.2f} x"
        )


def print_gradient(calibration: LinkCalibration, visits: Visits) -> None:
    for curve in calibration.curves:
        by_size = visits[curve.key]
        for what, sizes in (("in one message", (GRADIENT_BYTES,)), (f"as {BUCKETS}", bucket_sizes())):
            if any(size not in by_size for size in sizes):
                continue
            answer = LinkSeries([curve], None, calibration.spread).read(curve.key.ranks, np.array(sizes, dtype=float))
            predicted = float(np.exp(answer.log_s).sum())
            half = float(np.expm1(answer.half_80).max())
            measured = sum(median(by_size[size]) for size in sizes)
            counts = "; ".join(", ".join(f"{1e3 * second:.1f}" for second in by_size[size]) for size in sizes)
            print(
                f"all_reduce of ResNet-50's gradient {what}, {curve.key.ranks} ranks: "
                f"predicted {1e3 * predicted:.1f} ms (80 %: {100 * half:.0f} % either way), "
                f"measured {1e3 * measured:.1f} ms ({counts}): {100 * (predicted / measured - 1):+.1f} %"
            )


def main() -> None:
    budget_s = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    found: dict[str, Measurement] = {}

    def keep(measurement: Measurement) -> None:
        found[f"{measurement.taken_at} {measurement.case_key}"] = measurement  # resumed runs give earlier visits again

    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(1, repeats + 1):
            for ranks in WORLDS:
                for settings in runs(Path(folder), ranks, budget_s, repeat):
                    summary = measure_collectives(settings, keep)
                    print(f"{ranks} ranks: {summary.visits} visits of {summary.cases} cases", file=sys.stderr)
                    for missing in summary.unavailable:
                        print(f"not available: {missing.what}: {missing.reason}", file=sys.stderr)
            print(f"\nafter {repeat} of {repeats} repeats")
            report(found.values())


def report(found: Iterable[Measurement]) -> None:
    visits = visits_of(found)
    calibration = fitted(visits)
    print_errors(calibration, visits)
    print_gradient(calibration, visits)


if __name__ == "__main__":
    main()

"""What surrounds a collective, measured with Gloo on this machine: kernels beside it, other groups, pauses.

    python benchmarks/gloo_company.py [seconds for each run, 60]

Runs of 2 and 4 processes: all_reduce alone and beside each kernel, back to back and spaced, and with 4 processes two
pairs at once. What is printed is what `fit` stores: overlap factors of both sides, contention, and the time of spaced
calls over that of calls back to back.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibration.link_overlap import fit_overlap
from calibration.link_sources import link_rows
from calibration.link_values import LinkCalibration, LinkCurve, Measured
from calibration.links import fit_links
from profiler.collectives.measure import measure_collectives
from profiler.collectives.settings import KERNELS, SPACINGS, CollectiveSettings
from profiler.collectives.sides import MICRO
from profiler.measurement import Measurement
from profiler.stopping import StoppingRule


def measured(ranks: int, budget_s: float) -> tuple[LinkCalibration, Sequence[Measurement]]:
    """A run, fitted, and what it measured."""
    found: list[Measurement] = []
    with tempfile.TemporaryDirectory() as folder:
        settings = CollectiveSettings(
            folder=Path(folder),
            run_id="company",
            budget_s=budget_s,
            ranks=ranks,
            collectives=("all_reduce",),
            smallest_bytes=1 << 10,
            largest_bytes=1 << 24,
            size_factor=8.0,
            groups=("all",) if ranks == 2 else ("all", "first:2"),
            concurrent=True,
            spacings=SPACINGS,
            beside=KERNELS,
            rule=StoppingRule(target=0.05, max_samples=6, max_s=0.1),
        )
        measure_collectives(settings, found.append)
    network = fit_links(link_rows(item for item in found if item.micro != MICRO), "gloo", "this machine")
    return network, [item for item in found if item.micro == MICRO]


def text(factor: Measured) -> str:
    return f"{factor.value:.2f} ({factor.lo:.2f} - {factor.hi:.2f}, n = {factor.n})"


def spaced(curve: LinkCurve, plain: LinkCurve) -> float:
    """Time of spaced calls over that of calls back to back, the median over the sizes of both."""
    alone = dict(zip(plain.sizes_bytes, plain.seconds, strict=True))
    pairs = zip(curve.sizes_bytes, curve.seconds, strict=True)
    return float(np.median([seconds / alone[size] for size, seconds in pairs if size in alone]))


def main() -> None:
    budget_s = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    for ranks in (2, 4):
        network, beside = measured(ranks, budget_s)
        for item in fit_overlap(beside):
            where = f"{item.collective} of {item.ranks} ranks beside {item.kernel}"
            print(f"{where}: collective x {text(item.of_collective)}, kernel x {text(item.of_kernels)}")
        for group in network.contention:
            interval = f"{group.lo:.2f} - {group.hi:.2f}"
            print(f"{group.concurrent} groups at once: {group.factor:.2f} ({interval}) times the time of a byte")
        plain = {curve.key.ranks: curve for curve in network.curves if not curve.key.form}
        for curve in network.curves:
            if curve.key.form:
                print(f"{curve.key.ranks} ranks, {curve.key.form}: {spaced(curve, plain[curve.key.ranks]):.2f} times")


if __name__ == "__main__":
    main()

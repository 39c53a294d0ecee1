"""Measured collectives in one line each: where they were measured, their latency, their bandwidth, the fit's error."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from calibration.link_sources import bus_factor, key_of, label
from calibration.link_values import CurveKey, LinkCalibration
from profiler.collectives.collected import differences
from profiler.collectives.sides import MICRO as OVERLAP
from profiler.measurement import Measurement

JOB_KEYS = ("node_set", "nodes", "world_ranks")
"""What of an identity tells one job from another and no environment: where it ran, and on how much."""


@dataclass(frozen=True)
class CollectiveRow:
    """One collective of one group.

    Args:
        collective, ranks, nodes, dtype: of the curve; nodes are 0 where unknown.
        concurrent: groups that did it at once.
        form: how it was called, such as `pattern=one_way`; empty for plain calls back to back.
        environment: what the rows differ in beside that; empty where they share it.
        sizes: different sizes that were measured, visits: how often all together.
        latency_s: median time of the smallest message.
        bus_bytes_per_s: bandwidth at the best size, as nccl-tests counts it.
        held_out_error: mean error of sizes left out of the fit, as a fraction; None where nothing was fitted.
        stragglers: visits in which a rank took much longer than the median rank.
    """

    collective: str
    ranks: int
    nodes: int
    dtype: str
    concurrent: int
    form: str
    environment: str
    sizes: int
    visits: int
    latency_s: float
    bus_bytes_per_s: float
    held_out_error: float | None
    stragglers: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def rows_of(measurements: Sequence[Measurement], network: LinkCalibration | None) -> tuple[CollectiveRow, ...]:
    """One row for each curve.

    Args:
        measurements: of collectives; those beside kernels have no row, the network says their factors.
        network: that was fitted to them, if any.
    """
    curves: dict[tuple[CurveKey, int], list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        if measurement.micro == OVERLAP:
            continue
        curves[(key_of(measurement, JOB_KEYS), int(measurement.case.get("concurrent", 1)))].append(measurement)
    differing = differences(measurement.environment for measurement in measurements)
    errors = {} if network is None else {curve.key: curve.held_out_error for curve in network.curves}
    ordered = sorted(curves.items(), key=lambda item: item[0])
    return tuple(_row(key, many, own, errors.get(key), differing) for (key, many), own in ordered)


def _row(
    key: CurveKey, concurrent: int, own: list[Measurement], error: float | None, differing: Collection[str]
) -> CollectiveRow:
    identity = own[0].environment.identity
    by_size: dict[int, list[float]] = defaultdict(list)
    for measurement in own:
        by_size[int(measurement.case["bytes"])].append(measurement.median_s)
    times = {size: median(seconds) for size, seconds in by_size.items()}
    return CollectiveRow(
        collective=key.collective,
        ranks=key.ranks,
        nodes=key.nodes,
        dtype=key.dtype,
        concurrent=concurrent,
        form=key.form,
        environment=label({name: identity[name] for name in differing if name in identity}),
        sizes=len(times),
        visits=len(own),
        latency_s=times[min(times)],
        bus_bytes_per_s=max(bus_factor(key) * size / seconds for size, seconds in times.items()),
        held_out_error=error if concurrent == 1 else None,
        stragglers=sum(any(flag.startswith("straggler") for flag in measurement.flags) for measurement in own),
    )

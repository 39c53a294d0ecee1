"""What surrounds a collective: kernels beside it, and the library that calls it. NumPy only.

Overlap. A measurement of `profiler.collectives.beside` is one of four times of a visit: collective and kernel, each
alone and in company, sample by sample within a fraction of a second. The factor of a visit is the median over its
samples of (in company / alone), so the drift of a machine between visits is not in it; the constant is the median over
visits and sizes, its interval holds 80 % of them. Sizes are pooled: from buckets up (256 KiB) a message is long against
what starts it. In the oracle both factors hold while kernels and transfers run at the same time, and not outside
(`oracle.streams`). Kernels of all sorts are pooled there, because a step's backward is a mixture of them: the middle is
the geometric mean of the kernels that were measured and the interval holds their differences.

Overhead. Where the same collective was measured through torch.distributed and through CuPy on the same NCCL, the
difference of the two at small sizes is what the framework adds to every call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibration.draws import standard_rows
from calibration.link_sources import key_of
from calibration.link_values import CurveKey, LinkCurve, Measured, Overhead, Overlap
from oracle.estimate import Estimate
from oracle.pricing import NO_SLOWDOWN, Slowdown
from profiler.collectives.sides import COLLECTIVE_ALONE, COLLECTIVE_BESIDE, KERNEL_ALONE, KERNEL_BESIDE
from profiler.measurement import Measurement

SMALL_BYTES = 4096
"""Up to this size a message takes the time of an empty one."""

_CUPY = "api=cupy"
_OF_THE_SIDE = ("beside", "timed")


def fit_overlap(measurements: Iterable[Measurement], job_keys: Sequence[str] = ()) -> tuple[Overlap, ...]:
    """The overlap factors of each (collective, ranks, nodes, environment, kernel).

    Args:
        measurements: of the microbenchmark `overlap`; a visit that lacks a side is left out.
        job_keys: as in `calibration.link_sources.link_rows`.

    Raises:
        BadInput: a case that describes no collective.
    """
    visits: dict[tuple[str, str, CurveKey, float, str], dict[str, Measurement]] = defaultdict(dict)
    for item in measurements:
        key = key_of(_without(item, _OF_THE_SIDE), job_keys)
        visit = (item.run_id, item.taken_at, key, float(item.case["bytes"]), str(item.case.get("beside", "")))
        visits[visit][str(item.case.get("timed", ""))] = item
    found: dict[tuple[str, int, int, str, str], list[tuple[float, float]]] = defaultdict(list)
    for (_, _, key, _, kernel), sides in visits.items():
        if {COLLECTIVE_ALONE, COLLECTIVE_BESIDE, KERNEL_ALONE, KERNEL_BESIDE} <= set(sides):
            factors = _ratio(sides, KERNEL_BESIDE, KERNEL_ALONE), _ratio(sides, COLLECTIVE_BESIDE, COLLECTIVE_ALONE)
            found[(key.collective, key.ranks, key.nodes, key.environment, kernel)].append(factors)
    return tuple(
        Overlap(*where, Measured.of([pair[0] for pair in pairs]), Measured.of([pair[1] for pair in pairs]))
        for where, pairs in sorted(found.items())
    )


def _without(item: Measurement, names: Sequence[str]) -> Measurement:
    case: Mapping[str, Any] = {name: value for name, value in item.case.items() if name not in names}
    return replace(item, case=case)


def _ratio(sides: Mapping[str, Measurement], beside: str, alone: str) -> float:
    """The median over the samples of one visit."""
    return float(np.median(np.array(sides[beside].device_s) / np.array(sides[alone].device_s)))


def fit_overheads(curves: Sequence[LinkCurve]) -> tuple[Overhead, ...]:
    """What torch.distributed adds to small collectives, where CuPy's times of the same NCCL stand beside it."""
    by_key = {curve.key: curve for curve in curves}
    found = []
    for curve in curves:
        other = by_key.get(replace(curve.key, form=""))
        if curve.key.form != _CUPY or other is None:
            continue
        bare = dict(zip(curve.sizes_bytes, curve.seconds, strict=True))
        extra = [
            seconds - bare[size]
            for size, seconds in zip(other.sizes_bytes, other.seconds, strict=True)
            if size <= SMALL_BYTES and size in bare
        ]
        if extra and float(np.median(extra)) > 0:
            key = curve.key
            found.append(Overhead(key.collective, key.ranks, key.nodes, key.dtype, key.environment, Measured.of(extra)))
    return tuple(found)


def slowdown_of(known: Sequence[Overlap], collectives: Iterable[str], between_nodes: bool, where: str) -> Slowdown:
    """By how much the kernels and the transfers of a plan slow one another down.

    Taken from the collectives that the plan has, else from all; from groups that reach across nodes, or do not, as the
    plan's do, else from all.

    Args:
        known: of one environment.
        collectives: canonical names of what the plan transfers beside kernels.
        between_nodes: whether any of it leaves a node.
        where: what the draws belong to.
    """
    if not known:
        return NO_SLOWDOWN
    wanted = set(collectives)
    own = [item for item in known if item.collective in wanted] or list(known)
    own = [item for item in own if (item.nodes > 1) == between_nodes] or own
    kernels = _pooled([item.of_kernels for item in own], f"{where}/kernels")
    return Slowdown(kernels, _pooled([item.of_collective for item in own], f"{where}/transfers"))


def _pooled(factors: Sequence[Measured], where: str) -> Estimate:
    """One factor of several, not below 1."""
    logs = np.log([factor.value for factor in factors])
    within = np.mean([factor.log_sd**2 for factor in factors])
    middle, spread = float(logs.mean()), float(np.sqrt(within + logs.var()))
    draws = np.exp(middle + spread * standard_rows(where, 1)[0])
    return Estimate(float(np.exp(middle)), draws).maximum(1.0)

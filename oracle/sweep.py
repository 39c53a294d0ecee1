"""Scan devices, batches and strategies by the hundred thousand: arrays of step times, communication and memory.

Under one strategy on one number of devices the step is a curve of the samples of a replica. Kernels and transfers are
nearly straight lines in the samples between knots that all layers share, and then so is their sum: each curve is
projected at a few knots, more where the lines between them are not close enough, and interpolated in between. What a
projection rounds (segments of a pipeline that do not divide the batch) is rounded at the knots only. At the knots a row
is the projection itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from oracle.estimate import Floats
from oracle.plan import Job, Strategy
from oracle.predictor import Predictor
from oracle.strategies.data import Data
from oracle.strategies.hybrid import Hybrid
from oracle.strategies.owt import Owt
from oracle.strategies.zero import Zero

CLOSE = 0.003
"""How far a projection between two knots may lie from their line, as a share, before it becomes one itself."""

DEEPEST = 3
"""How often a curve is halved at most: what rounds at every batch is no line at any scale."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sweep:
    """A table with one row per (strategy, devices, batch), in that order; NaN where it cannot be used.

    Args:
        strategies: their names, which `strategy` counts.
        strategy, devices, global_batch: what each row is of.
        step_s: the middle of its step.
        communication_share: what of it is waited for transfers.
        memory_bytes: what a device holds.
        fits: whether it can be used, memory included.
    """

    strategies: tuple[str, ...]
    strategy: Ints
    devices: Ints
    global_batch: Ints
    step_s: Floats
    communication_share: Floats
    memory_bytes: Floats
    fits: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.step_s)


def sweep(
    predictor: Predictor, job: Job, strategies: Mapping[str, Strategy], devices: Sequence[int], batches: Sequence[int]
) -> Sweep:
    """Scan all combinations.

    Args:
        predictor: prices the knots.
        job: its model, cluster and execution; its own devices and batch do not matter.
        strategies: by the name that the table gives them.
        devices: numbers of devices.
        batches: global batches, rising.

    Raises:
        NotCalibrated: a timer knows nothing of something that a plan asks.
    """
    asked = np.asarray(batches, dtype=np.int64)
    blocks = [
        _curve(predictor, replace(job, devices=count), how, asked) for how in strategies.values() for count in devices
    ]
    values = np.concatenate(blocks, axis=1) if blocks else np.empty((3, 0))
    numbers = (np.arange(len(strategies), dtype=np.int64), np.asarray(devices, dtype=np.int64), asked)
    which, counts, samples = (column.ravel() for column in np.meshgrid(*numbers, indexing="ij"))
    step_s, shares, memory_bytes = values
    fits = np.isfinite(step_s) & (memory_bytes <= (job.cluster.memory_bytes or np.inf))
    return Sweep(tuple(strategies), which, counts, samples, step_s, shares, memory_bytes, fits)


def _curve(predictor: Predictor, job: Job, how: Strategy, batches: Ints) -> Floats:
    """Step, communication share and memory of each batch, shape (3, n)."""
    rows = np.full((3, len(batches)), np.nan)
    allowed = _first_allowed(job, how, batches)
    if allowed == len(batches):
        return rows
    start = allowed
    for fixed, part in _parts(job, how, batches[allowed:]):
        replicas = _replicas(replace(job, global_batch=int(part[-1])), fixed)
        samples = -(-part // replicas)
        knots, points = _knots(samples, partial(_point, predictor, job, fixed, replicas))
        step_s, moved_s, memory_bytes = (np.interp(samples, knots, points[:, column]) for column in range(3))
        rows[:, start : start + len(part)] = step_s, moved_s / step_s, memory_bytes
        start += len(part)
    return rows


def _parts(job: Job, how: Strategy, batches: Ints) -> Iterator[tuple[Strategy, Ints]]:
    """Runs of batches for which a hybrid's groups, which may grow with the batch, stay the same."""
    if not isinstance(how, Hybrid) or how.group is not None:
        yield how, batches
        return
    first, last = (how.group_of(replace(job, global_batch=int(batches[end]))) for end in (0, -1))
    if first == last:
        yield replace(how, group=first), batches
    else:
        half = len(batches) // 2
        yield from _parts(job, how, batches[:half])
        yield from _parts(job, how, batches[half:])


def _point(predictor: Predictor, job: Job, how: Strategy, replicas: int, samples: int) -> tuple[float, float, float]:
    """Step, waiting for transfers and memory where each replica has so many samples."""
    projection = predictor.project(replace(job, global_batch=samples * replicas), how)
    if projection.step is None or projection.memory is None:
        return np.nan, np.nan, np.nan
    return projection.step.middle, projection.communication_total.middle, projection.memory.total_bytes


def _knots(samples: Ints, point: Callable[[int], tuple[float, float, float]]) -> tuple[Ints, Floats]:
    """Knots between the fewest samples and the most, and their points: halved until a line is close enough."""
    known = {int(end): point(int(end)) for end in (samples[0], samples[-1])}
    spans = [(int(samples[0]), int(samples[-1]), 0)]
    while spans:
        first, last, depth = spans.pop()
        middle = round((first * last) ** 0.5)
        if depth == DEEPEST or not first < middle < last:
            continue
        known[middle] = point(middle)
        share = (middle - first) / (last - first)
        line = (1 - share) * np.array(known[first]) + share * np.array(known[last])
        # Step and memory decide; what is waited for transfers is a part of the step.
        if np.any(np.abs(line - known[middle])[[0, 2]] > CLOSE * np.array(known[middle])[[0, 2]]):
            spans += [(first, middle, depth + 1), (middle, last, depth + 1)]
    knots = np.array(sorted(known), dtype=np.int64)
    return knots, np.array([known[int(knot)] for knot in knots])


def _first_allowed(job: Job, how: Strategy, batches: Ints) -> int:
    """The index of the first batch that is large enough to be spread; more samples never are too many."""
    low, high = 0, len(batches)
    while low < high:
        middle = (low + high) // 2
        asked = replace(job, global_batch=int(batches[middle]))
        refused = how.limit(asked).refusal(how.name, asked) is not None
        low, high = (middle + 1, high) if refused else (low, middle)
    return low


def _replicas(job: Job, how: Strategy) -> int:
    """By how many the batch is divided before anything else is."""
    if isinstance(how, Hybrid):
        inner = _replicas(replace(job, devices=how.group_of(job)), how.inner)
        return how.outer.accumulation * (job.devices // how.group_of(job)) * inner
    if isinstance(how, Data):
        return job.devices * how.accumulation
    return job.devices if isinstance(how, Owt | Zero) else 1

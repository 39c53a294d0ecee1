"""Scan devices, batches and strategies by the hundred thousand: arrays of step times, communication and memory.

Under one strategy on one number of devices most of a plan is the same for every batch: which layers a device runs, what
is exchanged when, and how it follows one another. Only the samples of a pass, the segments of a pipeline and the bytes
of what is sent with the samples are different, and the strategy says how (`oracle.plan.Shares`). So two plans, of the
smallest and of the largest batch, give those of all batches between; the timers price each layer as a curve over its
samples, and the schedule adds the curves up. Every row is what a projection of its own would say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from oracle.enqueueing import host_of_step, host_times
from oracle.estimate import Floats, Ints, slowest_of
from oracle.memory import Lots, ManyBatches, MemoryRule, memory_of, stages_of_devices
from oracle.plan import Job, Plan, Shares, Strategy
from oracle.predictor import Predictor
from oracle.pricing import LayerTimer, TransferTimer, over_bytes, over_samples
from oracle.questions import Where, ask, factors_of, kernels_asked, stage_times
from oracle.schedules import added, combine
from oracle.strategies.hybrid import Hybrid
from oracle.streams import Factors


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
    start = _first_allowed(job, how, batches)
    if start == len(batches):
        return rows
    for fixed, part in _parts(job, how, batches[start:]):
        step_s, moved_s, memory_bytes = _rows(predictor, job, fixed, part)
        rows[:, start : start + len(part)] = step_s, moved_s / step_s, memory_bytes
        start += len(part)
    return rows


def _parts(job: Job, how: Strategy, batches: Ints) -> Iterator[tuple[Strategy, Ints]]:
    """Runs of batches for which a hybrid's groups, which may grow with the batch, stay the same."""
    if not isinstance(how, Hybrid) or how.group is not None:
        yield how, batches
        return

    def others(index: int) -> bool:
        """Whether the groups are not those of the first batch that is left."""
        return how.group_of(replace(job, global_batch=int(batches[index]))) != group

    while len(batches):
        group = how.group_of(replace(job, global_batch=int(batches[0])))
        end = _first_true(1, len(batches), others) if others(-1) else len(batches)
        yield replace(how, group=group), batches[:end]
        batches = batches[end:]


@dataclass(frozen=True, eq=False)
class _Family:
    """The plans of a strategy for n batches on the same devices.

    Args:
        plan: makes the plan of one of the batches.
        batches: rising, no two with equal shares next to each other.
        first, last: the plans of the smallest and of the largest.
        shares: what is different in between.
    """

    plan: Callable[[int], Plan]
    batches: Ints
    first: Plan
    last: Plan
    shares: Shares

    def samples(self, stage: int) -> Ints:
        """Of one pass of a stage."""
        return self.shares.later if stage else self.shares.samples

    def line(self, stage: int, first: float, last: float) -> tuple[float, float]:
        """What is `first` in the first plan and `last` in the last: at no samples of the stage, and for each."""
        few, many = self.first.stages[stage].samples, self.last.stages[stage].samples
        slope = (last - first) / (many - few) if many > few else 0.0
        return last - slope * many, slope


def _family(job: Job, how: Strategy, batches: Ints) -> tuple[_Family, Ints]:
    """The plans for some batches, and the index of each batch among those of the family."""
    shares = how.shares(replace(job, global_batch=int(batches[-1])), batches)
    kinds = np.stack((shares.samples, shares.later, shares.segments))
    # Many batches have the same largest share.
    new = np.concatenate(([True], np.any(np.diff(kinds) != 0, axis=0)))
    few = batches[new]

    def plan(batch: int) -> Plan:
        return how.plan(replace(job, global_batch=batch))

    family = _Family(plan, few, plan(int(few[0])), plan(int(few[-1])), Shares(*kinds[:, new]))
    return family, np.cumsum(new) - 1


def _rows(predictor: Predictor, job: Job, how: Strategy, batches: Ints) -> Floats:
    """Step, waiting for transfers and memory of each batch, shape (3, n)."""
    family, index = _family(job, how, batches)
    links = predictor.links(job.cluster)
    kernels, moves = _kernel_seconds(family, predictor.layers), _move_seconds(family, links)
    factors = factors_of(family.last, links)
    slowed = None if factors is None else Factors(factors.kernels[0], factors.transfers[0])
    spent = combine(family.last, stage_times(family.last, kernels, moves), family.shares.segments, slowed)
    computing, moved_s = added(spent.compute), added(spent.communication)
    step_s = computing * slowest_of(job.devices, job.cluster.device_spread) + moved_s + spent.bubble
    host = host_times(family.last, predictor.layers)
    if host is not None:
        middles = [{part: seconds[..., 0] for part, seconds in stage.items()} for stage in host]
        step_s = np.maximum(step_s, added(host_of_step(family.last, middles, family.shares.segments)))
    columns = np.broadcast_arrays(step_s, moved_s, _peak_bytes(predictor.memory, family))
    return np.stack(columns)[:, index]


def _kernel_seconds(family: _Family, timer: LayerTimer) -> dict[Where, Floats]:
    """Seconds of the kernels of each place, shape (n,)."""
    asked = kernels_asked(family.last)
    sums = np.zeros((len(asked.places), len(family.shares.samples)))
    samples = {stage.samples: family.samples(index) for index, stage in enumerate(family.last.stages)}
    for count, each in samples.items():
        members = [index for index, call in enumerate(asked.questions) if call.samples == count]
        curves = over_samples(timer, [asked.questions[index] for index in members], each)
        sums += curves.sums(asked.counts[:, members], each)
    return dict(zip(asked.places, sums, strict=True))


def _move_seconds(family: _Family, timer: TransferTimer) -> dict[Where, Floats]:
    """Seconds of the transfers of each place, shape (n,)."""
    moves: dict[Where, Floats] = {}
    for index, (few, many) in enumerate(zip(family.first.stages, family.last.stages, strict=True)):
        pairs = zip(few.exchanges, many.exchanges, strict=True)
        sizes = [(e, family.line(index, small.transfer.bytes, e.transfer.bytes)) for small, e in pairs]
        asked = ask(((index, e.part, e.place), (e.transfer, line), 1) for e, line in sizes)
        if asked.questions:
            lines, samples = np.array([question[1] for question in asked.questions]), family.samples(index)
            curves = over_bytes(timer, [question[0] for question in asked.questions], lines, samples)
            moves |= zip(asked.places, curves.sums(asked.counts, samples), strict=True)
    return moves


def _peak_bytes(rule: MemoryRule, family: _Family) -> Floats:
    """What the fullest device holds at each batch, shape (n,)."""
    if not isinstance(rule, ManyBatches):
        plans = map(family.plan, family.batches.tolist())
        return np.array([memory_of(plan, rule).total_bytes for plan in plans])
    shares, last = family.shares, family.last
    fixed, slope = family.line(0, family.first.held.transfer_bytes, last.held.transfer_bytes)
    peaks = np.zeros(len(shares.samples))
    # What stages hold is known for stages whose samples keep their ratio.
    ratios = shares.later / shares.samples
    for ratio in np.unique(ratios):
        own = ratios == ratio
        samples = shares.samples[own]
        lots = Lots(samples, shares.segments[own], fixed + slope * samples)
        counts = (int(samples[-1]), int(shares.later[own][-1]))
        stages = tuple(replace(stage, samples=counts[min(i, 1)]) for i, stage in enumerate(last.stages))
        plan = replace(last, stages=stages)
        peaks[own] = np.max([rule.peak_bytes(plan, own_stages, lots) for own_stages in stages_of_devices(plan)], axis=0)
    return peaks


def _first_allowed(job: Job, how: Strategy, batches: Ints) -> int:
    """The index of the first batch that is large enough to be spread; more samples never are too many."""

    def allowed(index: int) -> bool:
        asked = replace(job, global_batch=int(batches[index]))
        return how.limit(asked).refusal(how.name, asked) is None

    if not len(batches) or allowed(0):
        return 0
    return _first_true(1, len(batches), allowed) if allowed(-1) else len(batches)


def _first_true(low: int, high: int, is_so: Callable[[int], bool]) -> int:
    """The first index from `low` on of which something holds that then holds of all up to `high`; `high` if of none."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_so(middle) else (middle + 1, high)
    return low

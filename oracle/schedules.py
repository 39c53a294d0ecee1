"""What the parts of a step add up to under each schedule, entry by entry of whatever their arrays hold.

The last axis of every array of seconds is either the middle and the draws of one step (`oracle.project`) or many
batches (`oracle.sweep`): the sums and maxima are the same.

Pipelines. With p stages and S segments both halves of a step take p + S - 1 slots of the slowest stage, and the
slowest transfer between neighbours is on the way p + S - 2 times forward and as often back (ParaDL, HPDC 2021, Table
III, with the slowest stage of each half instead of one average; GPipe, NeurIPS 2019). In 1F1B a slot is a forward and
a backward of the same stage, which makes it no slower. What the busiest device does not compute is its bubble.

Overlap. A second stream runs transfers in the order in which they are asked for; layers wait for what they need and
the update waits for all (`oracle.streams`). Where it was measured by how much kernels and transfers slow one another
down, they do so while both streams run; what stands between a stage's kernels (its own exchanges) is slowed like them.
What a step waits for is what its kernels alone do not take: a slower kernel beside a transfer is time lost to it.

Rounds. A round's data travels while the round before computes, so of each of the later rounds only what is longer than
the computing is waited for (Krizhevsky, arXiv 1404.5997, section 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from oracle.estimate import Floats, Ints
from oracle.plan import Microbatched, Overlapped, Place, Plan, Rounds, StepPart
from oracle.projection import FORWARD_BACKWARD
from oracle.streams import Factors, Item, ends_of

PartSeconds = Mapping[StepPart, Floats]
"""Seconds by part of a step."""

ZERO: Floats = np.zeros(())
"""No time at all, whatever the last axis is."""

_BACKWARD = (StepPart.BACKWARD_DATA, StepPart.BACKWARD_WEIGHT)


def added(times: PartSeconds, parts: Iterable[StepPart] = tuple(StepPart)) -> Floats:
    """The sum of some parts of a step."""
    return sum((times[part] for part in parts if part in times), start=ZERO)


@dataclass(frozen=True, eq=False)
class StageTimes:
    """Seconds of one pass of a stage (its gradient exchange and update: per step)."""

    compute: dict[StepPart, Floats] = field(default_factory=dict)
    moved: dict[Place, dict[StepPart, Floats]] = field(default_factory=lambda: {place: {} for place in Place})

    def computing(self, *parts: StepPart) -> Floats:
        """Seconds of kernels in some parts."""
        return added(self.compute, parts)

    def moving(self, place: Place, *parts: StepPart) -> Floats:
        """Seconds of transfers of one place in some parts."""
        return added(self.moved[place], parts)

    def busy(self, *parts: StepPart) -> Floats:
        """Seconds of kernels and of the transfers that they stand still for."""
        return self.computing(*parts) + self.moving(Place.INSIDE, *parts)


@dataclass(frozen=True, eq=False)
class Spent:
    """What a step spends; the fields are those of `oracle.projection.Projection`."""

    compute: PartSeconds
    communication: PartSeconds
    bubble: Floats = field(default_factory=lambda: ZERO)
    hidden: Floats = field(default_factory=lambda: ZERO)


def combine(
    plan: Plan, stages: Sequence[StageTimes], segments: Ints | None = None, factors: Factors | None = None
) -> Spent:
    """Put the stages of a plan together as its schedule says.

    Args:
        plan: gives the schedule and how often passes are repeated.
        stages: the times of its stages.
        segments: of a pipeline, one number for each entry of the times; by default the schedule's own.
        factors: by how much kernels and transfers that run at once slow one another down; None: they do not.
    """
    schedule = plan.schedule
    if isinstance(schedule, Microbatched):
        return _microbatched(
            plan, schedule.kind, stages, np.asarray(schedule.segments) if segments is None else segments
        )
    if isinstance(schedule, Rounds):
        return _rounds(schedule.count, plan.accumulation, stages, factors)
    if isinstance(schedule, Overlapped):
        return _overlapped(plan.accumulation, stages, factors)
    return _sequential(plan.accumulation, stages)


def _sequential(passes: int, stages: Sequence[StageTimes]) -> Spent:
    compute = _repeated(sum_of(stage.compute for stage in stages), passes)
    moved = sum_of(moved for stage in stages for moved in stage.moved.values())
    return Spent(compute, _repeated(moved, passes))


def _microbatched(plan: Plan, kind: str, stages: Sequence[StageTimes], segments: Ints) -> Spent:
    slots, hops = len(stages) + segments - 1, len(stages) + segments - 2
    if kind == "1f1b":
        slot = _largest(stage.busy(*FORWARD_BACKWARD) for stage in stages)
    else:
        halves = ((StepPart.FORWARD,), _BACKWARD)
        slot = sum((_largest(stage.busy(*half) for stage in stages) for half in halves), start=ZERO)
    between = {
        part: _largest(stage.moving(Place.BETWEEN, part) for stage in stages) * (hops * plan.accumulation)
        for part in FORWARD_BACKWARD
    }
    busiest = np.stack(np.broadcast_arrays(*(stage.busy(*FORWARD_BACKWARD) for stage in stages))).argmax(axis=0)
    passes = segments * plan.accumulation
    compute, inside = ({part: chosen(busiest, [each.get(part, ZERO) for each in times]) * passes
                        for part in FORWARD_BACKWARD}
                       for times in ([stage.compute for stage in stages],
                                     [stage.moved[Place.INSIDE] for stage in stages]))  # fmt: skip
    bubble = slot * (slots * plan.accumulation) - added(compute) - added(inside)
    once = {StepPart.UPDATE: _largest(stage.computing(StepPart.UPDATE) for stage in stages)}
    exchange = {
        part: _largest(stage.moving(Place.INSIDE, part) for stage in stages)
        for part in (StepPart.GRADIENT_EXCHANGE, StepPart.UPDATE)
    }
    return Spent(_known(compute | once), _known(sum_of((between, inside, exchange))), bubble)


def chosen(index: NDArray[np.intp], values: Sequence[Floats]) -> Floats:
    """For each entry the value that its index names."""
    table = np.stack([np.broadcast_to(value, index.shape) for value in values])
    found: Floats = np.take_along_axis(table, index[np.newaxis], axis=0)[0]
    return found


def _rounds(count: int, passes: int, stages: Sequence[StageTimes], factors: Factors | None) -> Spent:
    once, rounds = stages
    compute = sum_of((once.compute, _repeated(rounds.compute, count)))
    moved = sum_of((once.moved[Place.INSIDE], _repeated(rounds.moved[Place.INSIDE], count)))
    junction = once.moved[Place.BETWEEN]
    busy = rounds.busy(*FORWARD_BACKWARD)
    ends = ends_of([Item(busy)], [Item(added(junction))], factors)
    exposed = (np.maximum(ends[0][-1], ends[1][-1]) - busy) * (count - 1)
    # Shared out evenly between forward and backward, as what is sent is.
    waits = {part: seconds + exposed / len(junction) for part, seconds in junction.items()}
    hidden = np.maximum((added(junction) * (count - 1) - (exposed if junction else ZERO)) * passes, 0.0)
    return Spent(_repeated(compute, passes), _repeated(sum_of((moved, waits)), passes), hidden=hidden)


def _overlapped(passes: int, stages: Sequence[StageTimes], factors: Factors | None) -> Spent:
    waits = _two_streams(stages, factors, exchange=True)
    if passes > 1:
        earlier = _two_streams(stages, factors, exchange=False)
        before = {part: earlier[part] * (passes - 1) for part in FORWARD_BACKWARD if part in earlier}
        waits = sum_of((before, waits))
    sent = sum_of(moved for stage in stages for moved in stage.moved.values())
    compute = _repeated(sum_of(stage.compute for stage in stages), passes)
    hidden = np.maximum(added(_repeated(sent, passes)) - added(waits), 0.0)
    return Spent(compute, waits, hidden=hidden)


def _two_streams(stages: Sequence[StageTimes], factors: Factors | None, *, exchange: bool) -> PartSeconds:
    """What a pass waits for transfers, by part, where they run in a stream of their own.

    Args:
        stages: parts of the model, in order; backward goes through them in reverse.
        factors: as in `combine`.
        exchange: whether gradients are exchanged in this pass.
    """
    kernels: list[Item] = []
    transfers: list[Item] = []
    for stage in stages:
        if stage.moved[Place.AHEAD]:
            transfers.append(Item(stage.moving(Place.AHEAD, StepPart.FORWARD)))
        kernels.append(Item(stage.busy(StepPart.FORWARD), after=len(transfers)))
    forward = len(kernels)
    unsent = None
    for stage in reversed(stages):
        needed = 0
        # A stage's weights are asked for before the gradients of the stage that ran before it are sent.
        if stage.moved[Place.AHEAD]:
            transfers.append(Item(stage.moving(Place.AHEAD, *_BACKWARD), after=forward))
            needed = len(transfers)
        if unsent is not None:
            transfers.append(Item(unsent, after=len(kernels)))
        kernels.append(Item(stage.busy(*_BACKWARD), after=needed))
        unsent = stage.moved[Place.INSIDE].get(StepPart.GRADIENT_EXCHANGE) if exchange else None
    if unsent is not None:
        transfers.append(Item(unsent, after=len(kernels)))
    ends, sent = ends_of(kernels, transfers, factors)
    turn, done = ends[forward - 1], ends[-1]
    waits = {
        StepPart.FORWARD: turn - sum((stage.computing(StepPart.FORWARD) for stage in stages), start=ZERO),
        StepPart.BACKWARD_DATA: done - turn - sum((stage.computing(*_BACKWARD) for stage in stages), start=ZERO),
        StepPart.GRADIENT_EXCHANGE: np.maximum(sent[-1] if sent else ZERO, done) - done,
        StepPart.UPDATE: sum((stage.moving(Place.INSIDE, StepPart.UPDATE) for stage in stages), start=ZERO),
    }
    return _known(waits)


def _largest(values: Iterable[Floats]) -> Floats:
    return reduce(np.maximum, values)


def sum_of(times: Iterable[PartSeconds]) -> dict[StepPart, Floats]:
    """The sums of equal parts, in the order of a step."""
    parts: dict[StepPart, Floats] = {}
    for each in times:
        for part, seconds in each.items():
            parts[part] = parts[part] + seconds if part in parts else seconds
    return {part: parts[part] for part in StepPart if part in parts}


def _repeated(times: PartSeconds, passes: int) -> dict[StepPart, Floats]:
    """The same with forward and backward repeated."""
    if passes == 1:
        return dict(times)
    return {part: seconds * (passes if part in FORWARD_BACKWARD else 1) for part, seconds in times.items()}


def _known(times: PartSeconds) -> dict[StepPart, Floats]:
    """The parts that take any time, in the order of a step."""
    return {part: times[part] for part in StepPart if part in times and np.any(times[part])}

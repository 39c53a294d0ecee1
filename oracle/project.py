"""A plan and timers to a projection: the only file that adds up seconds of a step.

All questions of a plan go to each timer at once, so that prices share their draws and one batched call prices them.
The times of every part of every stage are then put together as the plan's schedule says. An epoch is its steps times
the *mean* step: what many steps add up to is their mean, and skewed times have a mean above their middle.

Pipelines. With p stages and S segments both halves of a step take p + S - 1 slots of the slowest stage, and the
slowest transfer between neighbours is on the way p + S - 2 times forward and as often back (ParaDL, HPDC 2021, Table
III, with the slowest stage of each half instead of one average; GPipe, NeurIPS 2019). In 1F1B a slot is a forward and
a backward of the same stage, which makes it no slower. What the busiest device does not compute is its bubble.

Overlap. A second stream runs transfers in the order in which they are asked for; layers wait for what they need and
the update waits for all. The sums are then maxima along two streams, and what a step waits for is what is left.

Rounds. A round's data travels while the round before computes, so of each of the later rounds only what is longer than
the computing is waited for (Krizhevsky, arXiv 1404.5997, section 4).

Stragglers. A synchronous step waits for its slowest device: its kernels take the expected maximum over all devices of
their spread (`Cluster.device_spread`), so the middle of a step grows with the number of devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Generic, TypeVar

import numpy as np

from oracle.autograd import AUTOGRAD
from oracle.estimate import Estimate, Floats
from oracle.identity import Same
from oracle.memory import Memory, MemoryRule, memory_of, refusal_of
from oracle.plan import Job, Microbatched, Overlapped, Place, Plan, Rounds, StepPart, Strategy, Task
from oracle.pricing import LayerCall, LayerTimer, Method, Prices, TransferTimer
from oracle.projection import FORWARD_BACKWARD, NONE, PartTimes, Projection, total_of

_BACKWARD = (StepPart.BACKWARD_DATA, StepPart.BACKWARD_WEIGHT)

MENTIONED_SHARE = 0.01
"""The share of a step from which a note says that it is extrapolated or assumed."""


def project(
    job: Job,
    strategy: Strategy,
    layer_timer: LayerTimer,
    transfer_timer: TransferTimer,
    memory_rule: MemoryRule = AUTOGRAD,
    suggest_batch: bool = True,
) -> Projection:
    """Predict a step of a job under a strategy.

    Devices that the strategy cannot use and too little memory are results with a reason, not errors. Where only the
    memory is short, the times are there all the same.

    Args:
        job: what is to be trained on what.
        strategy: how it is spread over devices.
        layer_timer: prices kernels.
        transfer_timer: prices transfers.
        memory_rule: what a device holds.
        suggest_batch: whether the reason of what does not fit names the largest batch that does, which is searched
            for along the rule and costs more than the projection itself.

    Raises:
        NotCalibrated: a timer knows nothing of something that the plan asks.
    """
    refused = strategy.limit(job).refusal(strategy.name, job)
    if refused is not None:
        return Projection(strategy.name, job, reason=refused)
    plan = strategy.plan(job)
    stages, methods = _price(plan, layer_timer, transfer_timer)
    spent = _combine(plan, stages)
    computing = total_of(spent.compute)
    stragglers = computing.expected_max(job.devices, job.cluster.device_spread) - computing
    memory = memory_of(plan, memory_rule)
    return Projection(
        strategy=strategy.name,
        job=job,
        reason=refusal_of(job, strategy, memory, memory_rule) if suggest_batch else memory.refusal or "",
        samples_per_device=plan.samples,
        step=computing + total_of(spent.communication) + spent.bubble + stragglers,
        compute=spent.compute,
        communication=spent.communication,
        bubble=spent.bubble,
        stragglers=stragglers,
        hidden=spent.hidden,
        memory=memory,
        methods=methods,
        notes=_notes(plan, memory, methods),
    )


@dataclass(frozen=True, eq=False)
class _StageTimes:
    """Seconds of one pass of a stage (its gradient exchange and update: per step)."""

    compute: dict[StepPart, Estimate] = field(default_factory=dict)
    moved: dict[Place, dict[StepPart, Estimate]] = field(default_factory=lambda: {place: {} for place in Place})

    def computing(self, *parts: StepPart) -> Estimate:
        """Seconds of kernels in some parts."""
        return total_of(self.compute, parts)

    def moving(self, place: Place, *parts: StepPart) -> Estimate:
        """Seconds of transfers of one place in some parts."""
        return total_of(self.moved[place], parts)

    def busy(self, *parts: StepPart) -> Estimate:
        """Seconds of kernels and of the transfers that they stand still for."""
        return self.computing(*parts) + self.moving(Place.INSIDE, *parts)


@dataclass(frozen=True, eq=False)
class _Spent:
    """What a step spends."""

    compute: PartTimes
    communication: PartTimes
    bubble: Estimate = NONE
    hidden: Estimate = NONE


def _price(
    plan: Plan, layer_timer: LayerTimer, transfer_timer: TransferTimer
) -> tuple[list[_StageTimes], dict[Method, float]]:
    """The times of every stage, and the share of all seconds that is known in each way."""
    times = [_StageTimes() for _ in plan.stages]
    methods: Counter[Method] = Counter()
    kernels = _kernels(Same(tuple(stage.tasks for stage in plan.stages)))
    for (index, part, _), seconds in _add_up(kernels, layer_timer.price, plan, methods).items():
        times[index].compute[part] = seconds
    moves = _ask(((i, e.part, e.place), e.transfer, 1) for i, stage in enumerate(plan.stages) for e in stage.exchanges)
    for (index, part, place), seconds in _add_up(moves, transfer_timer.price, plan, methods).items():
        times[index].moved[place][part] = seconds
    total = sum(methods.values())
    return times, {method: float(methods[method] / total) for method in Method if methods.get(method)}


_Where = tuple[int, StepPart, Place]
"""The stage's index, the part of the step, and who waits."""

_Question = TypeVar("_Question", bound=Hashable)


@dataclass(frozen=True, eq=False)
class _Asked(Generic[_Question]):
    """Distinct questions, and how often each belongs to each place: a row per place, a column per question."""

    questions: tuple[_Question, ...]
    places: tuple[_Where, ...]
    counts: Floats


def _ask(items: Iterable[tuple[_Where, _Question, int]]) -> _Asked[_Question]:
    questions: dict[_Question, int] = {}
    places: dict[_Where, int] = {}
    found = [
        (places.setdefault(where, len(places)), questions.setdefault(question, len(questions)), count)
        for where, question, count in items
    ]
    counts = np.zeros((len(places), len(questions)))
    for row, column, count in found:
        counts[row, column] += count
    return _Asked(tuple(questions), tuple(places), counts)


@lru_cache(maxsize=128)
def _kernels(tasks: Same[tuple[Task, ...]]) -> _Asked[LayerCall]:
    """What stages ask of a layer timer; tasks that come from `tasks_of`'s memory are recognised."""
    return _ask(((i, t.part, Place.INSIDE), t.call, t.count) for i, stage in enumerate(tasks.items) for t in stage)


def _add_up(
    asked: _Asked[_Question],
    price: Callable[[Sequence[_Question]], Prices],
    plan: Plan,
    methods: Counter[Method],
) -> dict[_Where, Estimate]:
    """Price every distinct question once: the sums of each place; adds to the seconds known in each way."""
    if not asked.questions:
        return {}
    prices = price(asked.questions)
    per_step = np.array([passes_of(plan, where) for where in asked.places], dtype=np.float64) @ asked.counts
    for method, seconds in zip(prices.methods, (per_step * prices.middle_s).tolist(), strict=True):
        methods[method] += seconds
    middles, draws = asked.counts @ prices.middle_s, asked.counts @ prices.draws_s
    return {where: Estimate(float(middles[row]), draws[row]) for row, where in enumerate(asked.places)}


def passes_of(plan: Plan, where: _Where) -> int:
    """How often per step something happens that a stage's pass (or its exchange of gradients or update) does once."""
    index, part, place = where
    if part not in FORWARD_BACKWARD:
        return 1
    # What leads to a later stage of `Rounds` is sent as often as that stage runs.
    return plan.passes(min(index + (place is Place.BETWEEN), len(plan.stages) - 1))


def _combine(plan: Plan, stages: Sequence[_StageTimes]) -> _Spent:
    """Put the stages together as the schedule says."""
    if isinstance(plan.schedule, Microbatched):
        return _microbatched(plan, plan.schedule, stages)
    if isinstance(plan.schedule, Rounds):
        return _rounds(plan.schedule.count, plan.accumulation, stages)
    if isinstance(plan.schedule, Overlapped):
        return _overlapped(plan.accumulation, stages)
    return _sequential(plan.accumulation, stages)


def _sequential(passes: int, stages: Sequence[_StageTimes]) -> _Spent:
    compute = _repeated(_sum_of(stage.compute for stage in stages), passes)
    moved = _sum_of(moved for stage in stages for moved in stage.moved.values())
    return _Spent(compute, _repeated(moved, passes))


def _microbatched(plan: Plan, schedule: Microbatched, stages: Sequence[_StageTimes]) -> _Spent:
    slots, hops = len(stages) + schedule.segments - 1, len(stages) + schedule.segments - 2
    if schedule.kind == "1f1b":
        slot = _largest(stage.busy(*FORWARD_BACKWARD) for stage in stages)
    else:
        halves = ((StepPart.FORWARD,), _BACKWARD)
        slot = sum((_largest(stage.busy(*half) for stage in stages) for half in halves), start=NONE)
    between = {
        part: _largest(stage.moving(Place.BETWEEN, part) for stage in stages) * (hops * plan.accumulation)
        for part in FORWARD_BACKWARD
    }
    busiest = max(stages, key=lambda stage: stage.busy(*FORWARD_BACKWARD).middle)
    passes = schedule.segments * plan.accumulation
    compute, inside = ({part: each[part] * passes for part in FORWARD_BACKWARD if part in each}
                       for each in (busiest.compute, busiest.moved[Place.INSIDE]))  # fmt: skip
    bubble = slot * (slots * plan.accumulation) - total_of(compute) - total_of(inside)
    once = {StepPart.UPDATE: _largest(stage.computing(StepPart.UPDATE) for stage in stages)}
    exchange = {
        part: _largest(stage.moving(Place.INSIDE, part) for stage in stages)
        for part in (StepPart.GRADIENT_EXCHANGE, StepPart.UPDATE)
    }
    return _Spent(_known(compute | once), _known(_sum_of((between, inside, exchange))), bubble)


def _rounds(count: int, passes: int, stages: Sequence[_StageTimes]) -> _Spent:
    once, rounds = stages
    compute = _sum_of((once.compute, _repeated(rounds.compute, count)))
    moved = _sum_of((once.moved[Place.INSIDE], _repeated(rounds.moved[Place.INSIDE], count)))
    junction = once.moved[Place.BETWEEN]
    exposed = (total_of(junction) - rounds.busy(*FORWARD_BACKWARD)).maximum(0.0) * (count - 1)
    # Shared out evenly between forward and backward, as what is sent is.
    waits = {part: seconds + exposed * (1 / len(junction)) for part, seconds in junction.items()}
    hidden = (total_of(junction) * (count - 1) - (exposed if junction else NONE)) * passes
    return _Spent(_repeated(compute, passes), _repeated(_sum_of((moved, waits)), passes), hidden=hidden)


def _overlapped(passes: int, stages: Sequence[_StageTimes]) -> _Spent:
    waits = _two_streams(stages, exchange=True)
    if passes > 1:
        earlier = _two_streams(stages, exchange=False)
        before = {part: earlier[part] * (passes - 1) for part in FORWARD_BACKWARD if part in earlier}
        waits = _sum_of((before, waits))
    sent = _sum_of(moved for stage in stages for moved in stage.moved.values())
    compute = _repeated(_sum_of(stage.compute for stage in stages), passes)
    return _Spent(compute, waits, hidden=total_of(_repeated(sent, passes)) - total_of(waits))


def _two_streams(stages: Sequence[_StageTimes], *, exchange: bool) -> PartTimes:
    """What a pass waits for transfers, by part, where they run in a stream of their own.

    Args:
        stages: parts of the model, in order; backward goes through them in reverse.
        exchange: whether gradients are exchanged in this pass.
    """
    kernels = transfers = NONE
    for stage in stages:
        transfers = transfers + stage.moving(Place.AHEAD, StepPart.FORWARD)
        kernels = kernels.maximum(transfers) + stage.busy(StepPart.FORWARD)
    turn = kernels
    transfers = transfers.maximum(turn)
    unsent = None
    for stage in reversed(stages):
        # A stage's weights are asked for before the gradients of the stage that ran before it are sent.
        transfers = transfers + stage.moving(Place.AHEAD, *_BACKWARD)
        ready = kernels.maximum(transfers) if stage.moved[Place.AHEAD] else kernels
        transfers = transfers if unsent is None else transfers.maximum(kernels) + unsent
        kernels = ready + stage.busy(*_BACKWARD)
        unsent = stage.moved[Place.INSIDE].get(StepPart.GRADIENT_EXCHANGE) if exchange else None
    transfers = transfers if unsent is None else transfers.maximum(kernels) + unsent
    waits = {
        StepPart.FORWARD: turn - sum((stage.computing(StepPart.FORWARD) for stage in stages), start=NONE),
        StepPart.BACKWARD_DATA: kernels - turn - sum((stage.computing(*_BACKWARD) for stage in stages), start=NONE),
        StepPart.GRADIENT_EXCHANGE: transfers.maximum(kernels) - kernels,
        StepPart.UPDATE: sum((stage.moving(Place.INSIDE, StepPart.UPDATE) for stage in stages), start=NONE),
    }
    return _known(waits)


def _largest(estimates: Iterator[Estimate]) -> Estimate:
    return reduce(Estimate.maximum, estimates)


def _sum_of(times: Iterator[PartTimes] | Sequence[PartTimes]) -> dict[StepPart, Estimate]:
    """The sums of equal parts, in the order of a step."""
    parts: dict[StepPart, Estimate] = {}
    for each in times:
        for part, seconds in each.items():
            parts[part] = parts[part] + seconds if part in parts else seconds
    return {part: parts[part] for part in StepPart if part in parts}


def _repeated(times: PartTimes, passes: int) -> dict[StepPart, Estimate]:
    """The same with forward and backward repeated."""
    if passes == 1:
        return dict(times)
    return {part: seconds * (passes if part in FORWARD_BACKWARD else 1) for part, seconds in times.items()}


def _known(times: PartTimes) -> dict[StepPart, Estimate]:
    """The parts that take any time, in the order of a step."""
    return {part: times[part] for part in StepPart if part in times and np.any(times[part].draws)}


def _notes(plan: Plan, memory: Memory, methods: Mapping[Method, float]) -> tuple[str, ...]:
    notes = []
    if plan.samples * plan.groups > plan.job.global_batch:
        notes.append(f"{plan.job.global_batch} samples do not divide evenly: the busiest device has {plan.samples}")
    if methods.get(Method.EXTRAPOLATED, 0.0) >= MENTIONED_SHARE:
        notes.append(f"{methods[Method.EXTRAPOLATED]:.0%} of the step is priced outside the range that was measured")
    if methods.get(Method.ASSUMED, 0.0) >= MENTIONED_SHARE:
        notes.append(f"{methods[Method.ASSUMED]:.0%} of the step rests on numbers that were given, not measured")
    if memory.fits is None:
        notes.append("the memory of the device is not known, so whether it fits was not checked")
    return tuple(notes)

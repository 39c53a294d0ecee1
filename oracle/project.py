"""A plan and timers to a projection.

All questions of a plan go to each timer at once, so that prices share their draws and one batched call prices them.
The times of every part of every stage are then put together as the plan's schedule says (`oracle.schedules`). An epoch
is its steps times the *mean* step: what many steps add up to is their mean, and skewed times have a mean above their
middle.

The host. Where a timer knows what enqueueing kernels costs the host, a step takes the longer of that and of what the
devices need, kernels, transfers, bubbles and stragglers together (`oracle.enqueueing` says why).

Stragglers. A synchronous step waits for its slowest device: its kernels take the expected maximum over all devices of
their spread (`Cluster.device_spread`), so the middle of a step grows with the number of devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from oracle.autograd import AUTOGRAD
from oracle.enqueueing import host_of_step, host_times, waits_for_host
from oracle.estimate import DRAWS, Estimate, Floats
from oracle.memory import Memory, MemoryRule, memory_of, refusal_of
from oracle.plan import Job, Plan, StepPart, Strategy
from oracle.pricing import LayerTimer, Method, Prices, TransferTimer
from oracle.projection import Projection, total_of
from oracle.questions import Asked, Question, Where, factors_of, kernels_asked, moves_asked, passes_of, stage_times
from oracle.schedules import PartSeconds, StageTimes, combine

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
    stages, methods = _priced(plan, layer_timer, transfer_timer)
    spent = combine(plan, stages, factors=factors_of(plan, transfer_timer))
    compute, communication, bubble = _estimates(spent.compute), _estimates(spent.communication), _estimate(spent.bubble)
    computing = total_of(compute)
    stragglers = computing.expected_max(job.devices, job.cluster.device_spread) - computing
    device = computing + total_of(communication) + bubble + stragglers
    host = host_times(plan, layer_timer)
    asking = {} if host is None else host_of_step(plan, host)
    host_wait = _estimates(waits_for_host(asking, spent.compute, device)) if asking else {}
    memory = memory_of(plan, memory_rule)
    return Projection(
        strategy=strategy.name,
        job=job,
        reason=refusal_of(job, strategy, memory, memory_rule) if suggest_batch else memory.refusal or "",
        samples_per_device=plan.samples,
        step=device + total_of(host_wait) if host_wait else device,
        compute=compute,
        communication=communication,
        bubble=bubble,
        stragglers=stragglers,
        hidden=_estimate(spent.hidden),
        host=_estimates(asking),
        host_wait=host_wait,
        memory=memory,
        methods=methods,
        notes=(*_notes(plan, memory, methods), *_host_notes(device, host_wait)),
    )


def _priced(
    plan: Plan, layer_timer: LayerTimer, transfer_timer: TransferTimer
) -> tuple[list[StageTimes], dict[Method, float]]:
    """The times of every stage (their last axis: the middle, then the draws), and the share known in each way."""
    methods: Counter[Method] = Counter()
    kernels = _add_up(kernels_asked(plan), layer_timer.price, plan, methods)
    moves = _add_up(moves_asked(plan), transfer_timer.price, plan, methods)
    total = sum(methods.values())
    shares = {method: float(methods[method] / total) for method in Method if methods.get(method)}
    return stage_times(plan, kernels, moves), shares


def _add_up(
    asked: Asked[Question],
    price: Callable[[Sequence[Question]], Prices],
    plan: Plan,
    methods: Counter[Method],
) -> dict[Where, Floats]:
    """Price every distinct question once: the sums of each place; adds to the seconds known in each way."""
    if not asked.questions:
        return {}
    prices = price(asked.questions)
    per_step = np.array([passes_of(plan, where) for where in asked.places], dtype=np.float64) @ asked.counts
    for method, seconds in zip(prices.methods, (per_step * prices.middle_s).tolist(), strict=True):
        methods[method] += seconds
    return asked.sums(np.column_stack((prices.middle_s, prices.draws_s)))


def _estimate(seconds: Floats) -> Estimate:
    """A middle and its draws, from where they were added up."""
    values = np.broadcast_to(seconds, (1 + DRAWS,))
    return Estimate(float(values[0]), values[1:])


def _estimates(times: PartSeconds) -> dict[StepPart, Estimate]:
    return {part: _estimate(seconds) for part, seconds in times.items()}


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


def _host_notes(device: Estimate, host_wait: Mapping[StepPart, Estimate]) -> Iterator[str]:
    """That the step is as long as its host needs."""
    wait_s = total_of(host_wait).middle if host_wait else 0.0
    share = wait_s / (device.middle + wait_s) if wait_s else 0.0
    if share >= MENTIONED_SHARE:
        yield f"{share:.0%} of the step waits for the host, which enqueues kernels slower than the device runs them"

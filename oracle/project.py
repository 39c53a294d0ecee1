"""A plan and timers to a projection: the only file that adds up seconds of a step.

All questions of a plan go to each timer at once, so that prices share their draws and one batched call prices them.
The times of every part of every stage are then put together as the plan's schedule says. An epoch is its steps times
the *mean* step: what many steps add up to is their mean, and skewed times have a mean above their middle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from oracle.estimate import Estimate, Floats
from oracle.memory import AUTOGRAD, Memory, MemoryRule, memory_of
from oracle.plan import Job, Plan, StepPart, Strategy
from oracle.pricing import LayerTimer, Method, Prices, TransferTimer

FORMAT = "stepgauge-projection-1"
"""The `format` of a projection's JSON: it changes when a key changes its meaning or goes away."""

LEVEL = 0.8
"""The level of the intervals in a projection's JSON."""

PartTimes = Mapping[StepPart, Estimate]

_FORWARD_BACKWARD = (StepPart.FORWARD, StepPart.BACKWARD_DATA, StepPart.BACKWARD_WEIGHT)


@dataclass(frozen=True, eq=False)
class Projection:
    """What a strategy makes of a job. Times are in seconds per step, of the busiest device.

    Args:
        strategy: its name.
        job: what was asked.
        reason: why it cannot be done, in one line; empty where it can.
        samples_per_device: samples of the busiest device per step; None where the devices are too many, as then the
            step, the times and the memory are missing.
        step: the whole step.
        compute, communication: what the step spends in each of its parts.
        memory: what a device holds.
        methods: the share of the step that is known in each way; the shares add up to 1.
        notes: what a reader has to know, one line each.
    """

    strategy: str
    job: Job
    reason: str = ""
    samples_per_device: int | None = None
    step: Estimate | None = None
    compute: PartTimes = field(default_factory=dict)
    communication: PartTimes = field(default_factory=dict)
    memory: Memory | None = None
    methods: Mapping[Method, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether it can be done."""
        return not self.reason

    @property
    def compute_total(self) -> Estimate:
        """Seconds of kernels in a step."""
        return _total(self.compute)

    @property
    def communication_total(self) -> Estimate:
        """Seconds of transfers in a step."""
        return _total(self.communication)

    @property
    def forward_backward(self) -> Estimate:
        """FB: forward and backward, with the transfers inside them."""
        return _total(self.compute, _FORWARD_BACKWARD) + _total(self.communication, _FORWARD_BACKWARD)

    @property
    def gradient_exchange(self) -> Estimate:
        """GE: the exchange of gradients."""
        return self._part(StepPart.GRADIENT_EXCHANGE)

    @property
    def weight_update(self) -> Estimate:
        """WU: the optimizer."""
        return self._part(StepPart.UPDATE)

    def _part(self, part: StepPart) -> Estimate:
        return _total(self.compute, (part,)) + _total(self.communication, (part,))

    @property
    def epoch(self) -> Estimate | None:
        """Seconds of an epoch; None where the step or the size of the data set is not known."""
        steps = self.job.steps_per_epoch
        if self.step is None or steps is None:
            return None
        return Estimate(steps * self.step.mean, steps * self.step.draws)

    @property
    def samples_per_s(self) -> Estimate | None:
        """Samples of all devices together per second."""
        return None if self.step is None else self.job.global_batch / self.step

    def to_dict(self) -> dict[str, Any]:
        """The projection as plain JSON values.

        `format`, `strategy`, `model`, `device`, `cluster`, `devices`, `global_batch`, `samples_per_device`, `execution`
        and `steps_per_epoch` say what was asked; `feasible` and `reason` whether it can be done. Every time is null or
        an object with `middle` and the interval `lo` to `hi` at `level`, in seconds: `step_s`, `epoch_s`, the ParaDL
        split `forward_backward_s`, `gradient_exchange_s`, `weight_update_s`, and `compute_s` and `communication_s` by
        part of the step. `samples_per_s` is a rate in the same form. `memory` has `by_kind_bytes`, `total_bytes`,
        `capacity_bytes` and `fits`. `methods` are shares of the step, `notes` lines of text.
        """
        known = self.step is not None
        return {
            "format": FORMAT,
            "strategy": self.strategy,
            **_job_to_dict(self.job),
            "samples_per_device": self.samples_per_device,
            "feasible": self.feasible,
            "reason": self.reason,
            "step_s": _estimate_to_dict(self.step),
            "epoch_s": _estimate_to_dict(self.epoch),
            "samples_per_s": _estimate_to_dict(self.samples_per_s),
            "forward_backward_s": _estimate_to_dict(self.forward_backward if known else None),
            "gradient_exchange_s": _estimate_to_dict(self.gradient_exchange if known else None),
            "weight_update_s": _estimate_to_dict(self.weight_update if known else None),
            "compute_s": {part.value: _estimate_to_dict(time) for part, time in self.compute.items()},
            "communication_s": {part.value: _estimate_to_dict(time) for part, time in self.communication.items()},
            "memory": _memory_to_dict(self.memory),
            "methods": {method.value: share for method, share in self.methods.items()},
            "notes": list(self.notes),
        }


def project(
    job: Job,
    strategy: Strategy,
    layer_timer: LayerTimer,
    transfer_timer: TransferTimer,
    memory_rule: MemoryRule = AUTOGRAD,
) -> Projection:
    """Predict a step of a job under a strategy.

    Too many devices for the strategy and too little memory are results with a reason, not errors. Where only the memory
    is short, the times are there all the same.

    Args:
        job: what is to be trained on what.
        strategy: how it is spread over devices.
        layer_timer: prices kernels.
        transfer_timer: prices transfers.
        memory_rule: what a device holds.

    Raises:
        NotCalibrated: a timer knows nothing of something that the plan asks.
    """
    too_many = strategy.limit(job).refusal(strategy.name, job)
    if too_many is not None:
        return Projection(strategy.name, job, reason=too_many)
    plan = strategy.plan(job)
    stages = list(enumerate(plan.stages))
    tasks = [((i, task.part), task.call, task.count) for i, stage in stages for task in stage.tasks]
    moves = [((i, move.part), move.transfer, 1) for i, stage in stages for move in stage.exchanges]
    compute_s, compute_methods = _add_up(tasks, layer_timer.price)
    communication_s, communication_methods = _add_up(moves, transfer_timer.price)
    compute, communication = _sequential(compute_s), _sequential(communication_s)
    memory = memory_of(plan, memory_rule)
    methods = _shares(compute_methods + communication_methods)
    return Projection(
        strategy=strategy.name,
        job=job,
        reason=memory.refusal or "",
        samples_per_device=plan.samples,
        step=_total(compute) + _total(communication),
        compute=compute,
        communication=communication,
        memory=memory,
        methods=methods,
        notes=_notes(plan, memory, methods),
    )


_Where = tuple[int, StepPart]
"""The stage's index and the part of the step."""

_Question = TypeVar("_Question", bound=Hashable)


def _add_up(
    asked: Sequence[tuple[_Where, _Question, int]], price: Callable[[Sequence[_Question]], Prices]
) -> tuple[dict[_Where, Estimate], Counter[Method]]:
    """Price every distinct question once; the sums of each place, and the seconds known in each way."""
    questions = {question: index for index, question in enumerate(dict.fromkeys(item[1] for item in asked))}
    prices = price(list(questions))
    counts: dict[_Where, Floats] = {}
    for where, question, count in asked:
        counts.setdefault(where, np.zeros(len(questions)))[questions[question]] += count
    methods: Counter[Method] = Counter()
    for method, seconds in zip(prices.methods, sum(counts.values()) * prices.middle_s, strict=True):
        methods[method] += seconds
    return {where: prices.total(row) for where, row in counts.items()}, methods


def _sequential(times: Mapping[_Where, Estimate]) -> dict[StepPart, Estimate]:
    """The parts of a step whose stages follow one another, each once."""
    parts: dict[StepPart, Estimate] = {}
    for (_, part), seconds in times.items():
        parts[part] = parts[part] + seconds if part in parts else seconds
    return {part: parts[part] for part in StepPart if part in parts}


def _total(times: PartTimes, parts: Sequence[StepPart] = tuple(StepPart)) -> Estimate:
    return sum((times[part] for part in parts if part in times), start=Estimate.exact(0.0))


def _shares(seconds: Mapping[Method, float]) -> dict[Method, float]:
    total = sum(seconds.values())
    return {method: float(seconds[method] / total) for method in Method if seconds.get(method)}


def _notes(plan: Plan, memory: Memory, methods: Mapping[Method, float]) -> tuple[str, ...]:
    notes = []
    if plan.samples * plan.job.devices > plan.job.global_batch > plan.samples:
        notes.append(f"{plan.job.global_batch} samples do not divide evenly: the busiest device has {plan.samples}")
    if methods.get(Method.EXTRAPOLATED):
        notes.append(f"{methods[Method.EXTRAPOLATED]:.0%} of the step is priced outside the range that was measured")
    if methods.get(Method.ASSUMED):
        notes.append(f"{methods[Method.ASSUMED]:.0%} of the step rests on numbers that were given, not measured")
    if memory.fits is None:
        notes.append("the memory of the device is not known, so whether it fits was not checked")
    return tuple(notes)


def _job_to_dict(job: Job) -> dict[str, Any]:
    return {
        "model": job.model.name,
        "device": job.cluster.device,
        "cluster": job.cluster.name,
        "devices": job.devices,
        "global_batch": job.global_batch,
        "execution": {
            "precision": job.execution.precision,
            "memory_format": job.execution.memory_format,
            "optimizer": job.execution.optimizer,
        },
        "steps_per_epoch": job.steps_per_epoch,
    }


def _estimate_to_dict(estimate: Estimate | None) -> dict[str, float] | None:
    if estimate is None:
        return None
    lo, hi = estimate.interval(LEVEL)
    return {"middle": estimate.middle, "lo": lo, "hi": hi, "level": LEVEL}


def _memory_to_dict(memory: Memory | None) -> dict[str, Any] | None:
    if memory is None:
        return None
    return {
        "by_kind_bytes": {kind.value: size for kind, size in memory.by_kind_bytes.items()},
        "total_bytes": memory.total_bytes,
        "capacity_bytes": memory.capacity_bytes,
        "fits": memory.fits,
    }

"""`Projection`: what is predicted of a job under a strategy, as a value and as JSON. `oracle.project` makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oracle.estimate import Estimate
from oracle.memory import Memory
from oracle.plan import Job, StepPart
from oracle.pricing import Method

FORMAT = "stepgauge-projection-1"
"""The `format` of a projection's JSON: it changes when a key changes its meaning or goes away."""

LEVEL = 0.8
"""The level of the intervals in a projection's JSON."""

NONE = Estimate.exact(0.0)
"""No time at all."""

PartTimes = Mapping[StepPart, Estimate]

FORWARD_BACKWARD = (StepPart.FORWARD, StepPart.BACKWARD_DATA, StepPart.BACKWARD_WEIGHT)
"""The parts of a step that ParaDL calls FB."""


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
        compute: what the step spends in kernels in each of its parts.
        communication: what it waits for transfers, and by how much its kernels are slower beside them; what is hidden
            behind kernels is not in here.
        bubble: what a pipeline's busiest device waits for others while the pipeline fills and drains.
        stragglers: what all devices wait for the slowest of them.
        hidden: transfers that run behind kernels; no part of the step.
        host: what the host needs to enqueue the kernels of each part, beside the devices; empty where it is not known.
        host_wait: what the step waits for its host in each of its parts.
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
    bubble: Estimate = NONE
    stragglers: Estimate = NONE
    hidden: Estimate = NONE
    host: PartTimes = field(default_factory=dict)
    host_wait: PartTimes = field(default_factory=dict)
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
        return total_of(self.compute)

    @property
    def communication_total(self) -> Estimate:
        """Seconds that a step waits for transfers."""
        return total_of(self.communication)

    @property
    def forward_backward(self) -> Estimate:
        """FB: forward and backward, with the transfers and the waiting inside them."""
        kinds = (self.compute, self.communication, self.host_wait)
        return sum((total_of(times, FORWARD_BACKWARD) for times in kinds), start=self.bubble + self.stragglers)

    @property
    def gradient_exchange(self) -> Estimate:
        """GE: the exchange of gradients."""
        return self._part(StepPart.GRADIENT_EXCHANGE)

    @property
    def weight_update(self) -> Estimate:
        """WU: the optimizer."""
        return self._part(StepPart.UPDATE)

    def _part(self, part: StepPart) -> Estimate:
        kinds = (self.compute, self.communication, self.host_wait)
        return sum((total_of(times, (part,)) for times in kinds), start=NONE)

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
        part of the step; `bubble_s`, `stragglers_s` and `hidden_s` are times too. `host_s` and `host_wait_s`, by part,
        are what the host needs to enqueue kernels and what of the step waits for it. `samples_per_s` is a rate in the
        same form. `memory` has `by_kind_bytes`, `total_bytes`, `capacity_bytes`, `fits` and `risk`, the
        probability that it does not fit. `methods` are shares of the
        step, `notes` lines of text.
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
            "bubble_s": _estimate_to_dict(self.bubble if known else None),
            "stragglers_s": _estimate_to_dict(self.stragglers if known else None),
            "hidden_s": _estimate_to_dict(self.hidden if known else None),
            "host_s": {part.value: _estimate_to_dict(time) for part, time in self.host.items()},
            "host_wait_s": {part.value: _estimate_to_dict(time) for part, time in self.host_wait.items()},
            "memory": _memory_to_dict(self.memory),
            "methods": {method.value: share for method, share in self.methods.items()},
            "notes": list(self.notes),
        }


def total_of(times: PartTimes, parts: Sequence[StepPart] = tuple(StepPart)) -> Estimate:
    """The sum of some parts of a step, in seconds."""
    return sum((times[part] for part in parts if part in times), start=NONE)


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
            "recomputed_segments": job.execution.recomputed_segments,
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
        "risk": memory.risk,
    }

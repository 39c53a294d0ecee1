"""Bytes that one device holds in a training step, by kind; whether they fit, and which batch would.

A `MemoryRule` says what stages hold at the fullest moment of a step, so that the kinds add up to the peak; the rule for
torch is `oracle.autograd.AUTOGRAD`.

A peak is predicted with an error, so a device that is barely large enough may run out of memory all the same. The
true peak is taken to be the predicted one times a log-normal factor of middle 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, runtime_checkable

from oracle.estimate import Floats, Ints
from oracle.plan import Job, Microbatched, Plan, Strategy
from oracle.units import format_bytes

SPREAD = 0.03
"""Standard deviation of the logarithm of the true peak over the predicted one: an assumption.

Torch's tracker agrees within a few thousandths (benchmarks/memory_accuracy.py). This leaves room for what it cannot
see.
"""

MAX_BATCH = 2**30
"""Where the search for the largest batch ends."""


class MemoryKind(StrEnum):
    """What memory is held for."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer_states"
    BUFFERS = "buffers"
    """Running statistics of batch normalisation."""
    CASTS = "weight_casts"
    """Copies of the weights in the precision that multiplies, which autocast keeps for the step."""
    INPUT = "input"
    """The samples and their targets."""
    ACTIVATIONS = "activations"
    """What backward needs of forward."""
    TRANSIENT = "activation_gradients"
    """Gradients of activations, which live only while backward passes by."""
    TRANSFERS = "transfer_buffers"
    """Where transfers are received or sent from: weights gathered for use, activations on their way."""
    UPDATE = "update_temporaries"
    """What the optimizer works in."""
    BUCKETS = "gradient_buckets"
    """Copies of the gradients that are sent."""
    COMMUNICATION = "communication_buffers"
    """Buffers of each group of devices that exchanges something."""
    CONTEXT = "device_context"
    WORKSPACE = "library_workspaces"
    ROUNDING = "allocator_rounding"
    FRAGMENTATION = "fragmentation"


@dataclass(frozen=True)
class Memory:
    """What one device holds, and what it could.

    Args:
        by_kind_bytes: bytes of each kind that is not zero.
        capacity_bytes: memory of the device; None where it is not known.
        spread: standard deviation of the logarithm of what a device turns out to hold over this prediction.
    """

    by_kind_bytes: Mapping[MemoryKind, float]
    capacity_bytes: float | None
    spread: float = SPREAD

    @property
    def total_bytes(self) -> float:
        """All kinds together."""
        return sum(self.by_kind_bytes.values())

    @property
    def fits(self) -> bool | None:
        """Whether the device is large enough; None where its memory is not known."""
        return None if self.capacity_bytes is None else self.total_bytes <= self.capacity_bytes

    @property
    def risk(self) -> float | None:
        """The probability that the device is too small after all; None where its memory is not known.

        >>> Memory({MemoryKind.WEIGHTS: 100.0}, capacity_bytes=100.0).risk
        0.5
        >>> round(Memory({MemoryKind.WEIGHTS: 100.0}, capacity_bytes=103.0, spread=0.03).risk, 2)
        0.16
        """
        if self.capacity_bytes is None:
            return None
        if not self.spread or not self.total_bytes:
            return float(not self.fits)
        deviations = math.log(self.total_bytes / self.capacity_bytes) / self.spread
        return 0.5 * (1 + math.erf(deviations / math.sqrt(2)))

    @property
    def refusal(self) -> str | None:
        """Why it does not fit, in one line; None where it fits or nobody knows."""
        if self.capacity_bytes is None or self.fits:
            return None
        largest = max(self.by_kind_bytes, key=lambda kind: self.by_kind_bytes[kind])
        needed, capacity = format_bytes(self.total_bytes), format_bytes(self.capacity_bytes)
        share = format_bytes(self.by_kind_bytes[largest])
        return f"does not fit: a device needs {needed} and has {capacity} ({share} are {largest.replace('_', ' ')})"


class MemoryRule(Protocol):
    """How much some stages hold on one device."""

    def held_bytes(self, plan: Plan, stages: range) -> Mapping[MemoryKind, float]:
        """Bytes by kind at the fullest moment of a device that runs these of the plan's stages."""


@runtime_checkable
class ManyBatches(Protocol):
    """A `MemoryRule` that knows how what is held grows with the batch."""

    def peak_bytes(self, plan: Plan, stages: range, lots: Lots) -> Floats:
        """All that a device holds under a plan for each of n batches; what `held_bytes` adds up to; shape (n,).

        Args:
            plan: of one of the batches.
            stages: those of its stages that the device runs.
            lots: the batches.
        """


@dataclass(frozen=True, eq=False)
class Lots:
    """What of a plan's memory is different for each of n batches; arrays of shape (n,).

    Args:
        samples: of one pass of the first of the stages.
        segments: of a pipeline; 1 elsewhere.
        transfer_bytes: buffers that transfers are received in or sent from.
    """

    samples: Ints
    segments: Ints
    transfer_bytes: Floats


def memory_of(plan: Plan, rule: MemoryRule) -> Memory:
    """What the fullest device holds under a plan."""
    held = (rule.held_bytes(plan, stages) for stages in stages_of_devices(plan))
    fullest = max(held, key=lambda kinds: sum(kinds.values()))
    return Memory({kind: size for kind, size in fullest.items() if size}, plan.job.cluster.memory_bytes)


def stages_of_devices(plan: Plan) -> list[range]:
    """The stages that each kind of device runs: one of a pipeline, all of them elsewhere."""
    every = range(len(plan.stages))
    return [range(stage, stage + 1) for stage in every] if isinstance(plan.schedule, Microbatched) else [every]


def largest_batch(job: Job, strategy: Strategy, rule: MemoryRule) -> int | None:
    """The largest global batch whose plan fits into the devices' memory, by search along the rule.

    Args:
        job: what is asked; the search starts at its batch.
        strategy: how it is spread over the job's devices.
        rule: what a device holds.

    Returns:
        Samples per step; None where the memory of a device is not known, or where no batch that the strategy can
        spread over so many devices fits.
    """
    if job.cluster.memory_bytes is None:
        return None

    capacity_bytes = job.cluster.memory_bytes

    def allowed(batch: int) -> bool:
        asked = replace(job, global_batch=batch)
        return strategy.limit(asked).refusal(strategy.name, asked) is None

    def room_bytes(batch: int) -> float:
        # Batches too small to spread are no reason to look among still smaller ones.
        if not allowed(batch):
            return capacity_bytes
        return capacity_bytes - memory_of(strategy.plan(replace(job, global_batch=batch)), rule).total_bytes

    largest = _last_with_room(room_bytes, job.global_batch)
    return largest if largest and allowed(largest) else None


def _last_with_room(room_bytes: Callable[[int], float], start: int) -> int:
    """The last batch of up to `MAX_BATCH` that leaves room of zero or more; 0 where none does.

    Memory is nearly a straight line in the batch, so the search alternates between where the line through both ends
    crosses zero, the batch after the last known to fit, and the middle.
    """
    low, low_room, high = 0, math.inf, start
    while (high_room := room_bytes(high)) >= 0:
        if high >= MAX_BATCH:
            return high
        low, low_room, high = high, high_room, min(2 * high, MAX_BATCH)
    tries = 0
    while high - low > 1:
        share = low_room / (low_room - high_room) if math.isfinite(low_room) else 0.5
        step = (int((high - low) * share), 1, (high - low) // 2)[tries % 3]
        batch, tries = min(max(low + step, low + 1), high - 1), tries + 1
        room = room_bytes(batch)
        low, low_room, high, high_room = (batch, room, high, high_room) if room >= 0 else (low, low_room, batch, room)
    return low


def refusal_of(job: Job, strategy: Strategy, memory: Memory, rule: MemoryRule) -> str:
    """Why a job does not fit, with the largest batch that does; empty where it fits or nobody knows."""
    if memory.refusal is None:
        return ""
    batch = largest_batch(job, strategy, rule)
    fitting = "no batch fits" if batch is None else f"the largest global batch that fits is {batch}"
    return f"{memory.refusal}; {fitting}"

"""What the host needs to ask for a step's kernels, and how long the step waits for it.

On an accelerator a call returns when its kernel has been enqueued, and the host runs ahead: kernel i starts at
max(end of kernel i - 1, end of its enqueueing). The host waits for no kernel, step after step, where the loop reads
nothing back from the device (`profiler.steps.serial` runs such a loop; one that prints its loss in every step waits
longer). So host and devices are two machines in a row with a store of work between them, and the time from one step to
the next is that of the slower: max(what the host needs for a step, what the devices need for it), not the sum of the
larger of the two over kernels or phases, which would forget what the host is ahead by. In the algebra of such systems
(Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992, chapter 3) the cycle time is the largest of
the strongly connected parts: the host of a process is one, and all streams and transfers of all devices together are
another, so what overlaps what on the devices, and what waits for a transfer, stays as it is. A pipeline has a process
for every stage, and waits for the busiest host. The queue holds about a thousand kernels, which is more than most
steps have by a factor of two; a host that is ahead by more than that would wait, and then it is not what binds.

A step's wait is shared out over its parts by how much the host needs longer for each of them than its kernels do.
Kernels from a CUDA graph are asked for in one launch per step, which is taken as nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from oracle.estimate import Estimate, Floats, Ints
from oracle.execution import Execution
from oracle.plan import Microbatched, Plan, StepPart
from oracle.pricing import LayerCall, LayerTimer
from oracle.projection import FORWARD_BACKWARD
from oracle.questions import kernels_asked
from oracle.schedules import ZERO, PartSeconds, added, chosen, sum_of

_NEXT_TO_NOTHING_S = 1e-300


@runtime_checkable
class Enqueues(Protocol):
    """A `LayerTimer` that knows the host's seconds too."""

    def enqueue(self, calls: Sequence[LayerCall], execution: Execution) -> Floats | None:
        """The host's seconds for each of n calls; None where the host is not known, or is the device itself.

        The last axis of the (n, 1 + DRAWS) seconds is the middle and the draws.

        Args:
            calls: they may differ in their samples, on which the answer does not depend.
            execution: that of the job, whose CUDA graphs and implementation of updates may be others than those that
                the timer prices kernels for: a what-if asks so.
        """


def host_of_calls(timer: LayerTimer, calls: Sequence[LayerCall], execution: Execution) -> Floats | None:
    """What a timer says of the host; None where it says nothing."""
    if execution.graph or not calls or not isinstance(timer, Enqueues):
        return None
    return timer.enqueue(calls, execution)


def host_times(plan: Plan, timer: LayerTimer) -> tuple[PartSeconds, ...] | None:
    """The host's seconds of one pass of every stage by part (the update: per step); None where they are not known.

    The last axis is the middle and the draws. A device's update is with the first of its stages that has one.
    """
    asked = kernels_asked(plan)
    known_s = host_of_calls(timer, asked.questions, plan.job.execution)
    if known_s is None:
        return None
    stages: list[dict[StepPart, Floats]] = [{} for _ in plan.stages]
    for (index, part, _), seconds in asked.sums(known_s).items():
        stages[index][part] = seconds
    return tuple(stages)


def host_of_step(plan: Plan, times: Sequence[PartSeconds], segments: Ints | None = None) -> dict[StepPart, Floats]:
    """The host's seconds of a step by part, of the busiest process.

    Args:
        plan: gives the schedule and how often passes are repeated.
        times: of its stages.
        segments: of a pipeline, one number for each entry; by default the schedule's own.
    """
    pipeline = isinstance(plan.schedule, Microbatched)
    stages = []
    for index, stage in enumerate(times):
        passes = plan.passes(index) if segments is None or not pipeline else segments * plan.accumulation
        stages.append({part: s * (passes if part in FORWARD_BACKWARD else 1) for part, s in stage.items()})
    processes = stages if pipeline else [sum_of(stages)]
    if len(processes) == 1:
        return processes[0]
    busiest = np.stack(np.broadcast_arrays(*map(added, processes))).argmax(axis=0)
    parts = [part for part in StepPart if any(part in process for process in processes)]
    return {part: chosen(busiest, [process.get(part, ZERO) for process in processes]) for part in parts}


def waits_for_host(host: PartSeconds, compute: PartSeconds, device: Estimate) -> dict[StepPart, Floats]:
    """What a step waits for its host, by part; the last axis is the middle and the draws.

    Args:
        host: the host's seconds by part.
        compute: those of the kernels.
        device: what the devices need for the step, at least the sum of `compute`.

    >>> host, compute = {StepPart.FORWARD: np.full(65, 3.0)}, {StepPart.FORWARD: np.full(65, 1.0)}
    >>> float(waits_for_host(host, compute, Estimate.exact(1.5))[StepPart.FORWARD][0])
    1.5
    """
    wait = np.maximum(added(host) - np.append(device.middle, device.draws), 0.0)
    if not wait.any():
        return {}
    longer = {part: np.maximum(seconds - _of(compute, part), 0.0) for part, seconds in host.items()}
    # Where the step waits at all, the host needs longer for some part by at least as much.
    share = wait / np.maximum(added(longer), _NEXT_TO_NOTHING_S)
    return {part: share * seconds for part, seconds in longer.items() if seconds.any()}


def _of(times: Mapping[StepPart, Floats], part: StepPart) -> Floats:
    return times.get(part, ZERO)

"""Jobs, plans and strategies: what is computed, moved and held, never how long it takes.

A plan is written for the busiest device. Its stages are consecutive parts of the model: in a pipeline each stage runs
on devices of its own, elsewhere one device runs all of them (a stage then is what a schedule orders: a gradient
bucket's part of backward, or the part of a model that runs in rounds). A stage says what one pass over its samples
runs and exchanges; the schedule says how passes and stages follow one another. Layers are the shards that the device
runs, so whoever prices them needs to know no strategy, and nothing is assumed to get p times faster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from oracle.errors import OutOfRange
from oracle.execution import Execution
from oracle.layer import Layer, Phase
from oracle.layers import Elementwise
from oracle.machine import Cluster
from oracle.model import ModelGraph, Node
from oracle.pricing import LayerCall, Transfer


class StepPart(StrEnum):
    """When in a step something happens. ParaDL's FB is the first three together, GE and WU are the others."""

    FORWARD = "forward"
    BACKWARD_DATA = "backward_data"
    BACKWARD_WEIGHT = "backward_weight"
    GRADIENT_EXCHANGE = "gradient_exchange"
    UPDATE = "update"


@dataclass(frozen=True)
class Job:
    """What is to be trained on what.

    Args:
        model: the whole model.
        global_batch: samples per step over all devices.
        devices: how many devices train it.
        cluster: the machine that they belong to.
        execution: precision, memory format and optimizer.
        dataset_samples: samples per epoch; by default the model's own, where it has one.

    Raises:
        OutOfRange: no samples, no devices, or more devices than the cluster has.
    """

    model: ModelGraph
    global_batch: int
    devices: int
    cluster: Cluster
    execution: Execution = field(default_factory=Execution)
    dataset_samples: int | None = None

    def __post_init__(self) -> None:
        if self.global_batch < 1:
            raise OutOfRange(f"a global batch has at least one sample, not {self.global_batch}")
        if self.devices < 1:
            raise OutOfRange(f"training needs at least one device, not {self.devices}")
        if self.dataset_samples is not None and self.dataset_samples < 1:
            raise OutOfRange(f"a data set has at least one sample, not {self.dataset_samples}")
        self.cluster.tier_of(self.devices)

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps that read every sample of the data set once; None where its size is not known."""
        samples = self.dataset_samples or self.model.dataset_samples
        return None if samples is None else math.ceil(samples / self.global_batch)


@dataclass(frozen=True)
class Task:
    """Layer calls of one kind in one part of a step.

    The part may differ from the call's own phase: gradients that meet are added up in backward by a forward kernel, and
    recomputed activations are forward work in backward.
    """

    call: LayerCall
    part: StepPart
    count: int = 1


@dataclass(frozen=True)
class Exchange:
    """A transfer in its place in a step."""

    transfer: Transfer
    part: StepPart


@dataclass(frozen=True)
class Stage:
    """A consecutive part of the model as one device runs it.

    Args:
        nodes: its layers as the device holds them, in an order in which they can run.
        samples: samples of one pass.
        tasks: what runs: forward and backward in every pass, gradient exchange and update once per step.
        exchanges: what moves, in the same sense.
    """

    nodes: tuple[Node, ...]
    samples: int
    tasks: tuple[Task, ...]
    exchanges: tuple[Exchange, ...] = ()

    @property
    def params(self) -> int:
        """Trainable parameters that the device holds for this stage."""
        return sum(node.layer.params for node in self.nodes)


@dataclass(frozen=True)
class Sequential:
    """One pass; everything follows one another and nothing is hidden behind anything else."""


Schedule = Sequential
"""Every schedule that `oracle.project` can add up."""


@dataclass(frozen=True)
class Plan:
    """What the busiest device computes, exchanges and holds in one step.

    Args:
        job: what was asked.
        samples: samples that this device works on per step.
        stages: parts of the model, in order.
        schedule: how they follow one another.
    """

    job: Job
    samples: int
    stages: tuple[Stage, ...]
    schedule: Schedule = Sequential()


@dataclass(frozen=True)
class Limit:
    """The largest number of devices that a strategy can use for a job, and what sets it."""

    max_devices: int
    reason: str

    def refusal(self, strategy: str, job: Job) -> str | None:
        """Why the job's devices are too many, in one line; None where they are not."""
        if job.devices <= self.max_devices:
            return None
        possible = "1 device" if self.max_devices == 1 else f"1 to {self.max_devices} devices"
        return f"strategy '{strategy}' can use {possible} for {job.model.name}, not {job.devices} ({self.reason})"


class Strategy(Protocol):
    """A way to spread a job over devices. Its choices (cuts, grids, buckets) are its fields."""

    @property
    def name(self) -> str:
        """What people call it."""

    def limit(self, job: Job) -> Limit:
        """How many devices it can use at most for this model and batch."""

    def plan(self, job: Job) -> Plan:
        """What the busiest device does; for a job within the limit."""


def whole_model(model: ModelGraph, samples: int) -> Stage:
    """The stage of a device that holds the whole model."""
    return Stage(model.nodes, samples, tasks_of(model, model.nodes, samples))


def tasks_of(model: ModelGraph, nodes: Sequence[Node], samples: int) -> tuple[Task, ...]:
    """What one pass and one update of some layers run, equal calls counted together.

    A layer without trainable parameters before it computes no gradient of its input (the first convolution reads
    pixels). A tensor that is read more than once gets as many gradients, and autograd adds them up.

    Args:
        model: the whole model, which knows what lies before a layer and who reads it.
        nodes: those of its layers that run here, possibly as shards.
        samples: samples of one pass.
    """
    counts: Counter[tuple[Layer, Phase, StepPart]] = Counter()
    for node in nodes:
        for phase in node.layer.phases:
            if phase is not Phase.BACKWARD_DATA or _runs_backward_data(model, node):
                counts[node.layer, phase, StepPart(phase.value)] += 1
        extra_readers = model.readers[node.name] - 1
        if extra_readers > 0 and (model.needs_data_gradient[node.name] or node.layer.params):
            sum_of_two = Elementwise("add", node.layer.output_shape)
            counts[sum_of_two, Phase.FORWARD, StepPart.BACKWARD_DATA] += extra_readers
    return tuple(Task(LayerCall(layer, phase, samples), part, count) for (layer, phase, part), count in counts.items())


def _runs_backward_data(model: ModelGraph, node: Node) -> bool:
    # A normalisation's one backward kernel also yields the gradients of its scale and shift.
    yields_weight_gradients = node.layer.params > 0 and Phase.BACKWARD_WEIGHT not in node.layer.phases
    return model.needs_data_gradient[node.name] or yields_weight_gradients

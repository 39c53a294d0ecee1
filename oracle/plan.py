"""Jobs, plans and strategies: what is computed, moved and held, never how long it takes.

A plan is written for the busiest device. Its stages are consecutive parts of the model: in a pipeline each stage runs
on devices of its own, elsewhere one device runs all of them (a stage then is what a schedule orders: a gradient
bucket's part of backward, or the part of a model that runs in rounds). A stage says what one pass over its samples
runs and exchanges; the schedule says how passes and stages follow one another. Layers are the shards that the device
runs, so whoever prices them needs to know no strategy, and nothing is assumed to get p times faster.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

import numpy as np

from oracle.errors import OutOfRange, UnknownName
from oracle.estimate import Ints
from oracle.execution import Execution
from oracle.identity import Same
from oracle.layer import Layer, Phase
from oracle.layers import Elementwise
from oracle.machine import Cluster
from oracle.model import ModelGraph, Node
from oracle.pricing import LayerCall, Transfer
from oracle.updates import together


class StepPart(StrEnum):
    """When in a step something happens. ParaDL's FB is the first three together, GE and WU are the others."""

    FORWARD = "forward"
    BACKWARD_DATA = "backward_data"
    BACKWARD_WEIGHT = "backward_weight"
    GRADIENT_EXCHANGE = "gradient_exchange"
    UPDATE = "update"


MOST = 10**15
"""Samples or devices above which a number is a slip, and no longer exact in floating point."""


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
        if max(self.global_batch, self.devices, self.dataset_samples or 1) > MOST:
            raise OutOfRange(f"there are at most {MOST:.0e} samples in a batch or a data set, and as many devices")
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


class Place(StrEnum):
    """Who waits for an exchange in forward or backward. The exchange of gradients is waited for by the update."""

    INSIDE = "inside"
    """The layers of the stage: nothing else runs meanwhile."""
    AHEAD = "ahead"
    """The stage's layers need it, but it depends on no result of theirs and may run ahead of them."""
    BETWEEN = "between"
    """It leads from this stage to the next, and back in backward."""


@dataclass(frozen=True)
class Exchange:
    """A transfer in its place in a step.

    Args:
        transfer: what moves.
        part: when.
        layer: the name of the layer that it belongs to; empty where it belongs to the whole stage.
        place: who waits for it.
    """

    transfer: Transfer
    part: StepPart
    layer: str = ""
    place: Place = Place.INSIDE


@dataclass(frozen=True)
class Stage:
    """A consecutive part of the model as one device runs it.

    Args:
        nodes: its layers as the device holds them, in an order in which they can run.
        samples: samples of one pass.
        tasks: what runs: forward and backward in every pass, gradient exchange and update once per step.
        exchanges: what moves, in the same sense.
        reduced: what the exchange of gradients inside a group leaves each device to exchange with other groups is
            one `reduced`-th of the gradients (after a reduce_scatter a device answers for a share of the sum).
    """

    nodes: tuple[Node, ...]
    samples: int
    tasks: tuple[Task, ...]
    exchanges: tuple[Exchange, ...] = ()
    reduced: int = 1

    @property
    def params(self) -> int:
        """Trainable parameters that the device holds for this stage."""
        return _params(Same(self.nodes))


@dataclass(frozen=True)
class Sequential:
    """One pass; everything follows one another and nothing is hidden behind anything else."""


@dataclass(frozen=True)
class Overlapped:
    """One pass of all stages, with a second stream for transfers that may run beside kernels.

    A stage's gradients are exchanged as soon as its backward is done (buckets of gradients: Li et al., PyTorch
    Distributed, VLDB 2020), and what a stage needs ahead of its layers is fetched while earlier stages run (Zhao et
    al., PyTorch FSDP, VLDB 2023). Transfers follow one another in the order in which they are asked for. By how much
    kernels and transfers slow one another down meanwhile is measured (`oracle.pricing.Slowdown`).
    """


PIPELINES = ("gpipe", "1f1b")
"""All forwards before all backwards (Huang et al., NeurIPS 2019), or in turns (Narayanan et al., SOSP 2019)."""


@dataclass(frozen=True)
class Microbatched:
    """Every stage runs on a device of its own and passes `segments` micro-batches on; `kind` is one of `PIPELINES`."""

    segments: int
    kind: str = "gpipe"

    def __post_init__(self) -> None:
        if self.kind not in PIPELINES:
            raise UnknownName("pipeline schedule", self.kind, PIPELINES)
        if self.segments < 1:
            raise OutOfRange(f"a pipeline has at least one segment, not {self.segments}")


@dataclass(frozen=True)
class Rounds:
    """The first stage runs once, the second `count` times; what leads to a round is sent during the round before."""

    count: int


Schedule = Sequential | Overlapped | Microbatched | Rounds
"""Every schedule that `oracle.project` can add up."""


@dataclass(frozen=True)
class Held:
    """How what a device holds differs from its layers' own tensors.

    Args:
        weights, gradients, optimizer: the share of each that it holds between steps.
        transfer_bytes: buffers that transfers are received in or sent from.
    """

    weights: float = 1.0
    gradients: float = 1.0
    optimizer: float = 1.0
    transfer_bytes: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What the busiest device computes, exchanges and holds in one step.

    Args:
        job: what was asked.
        samples: samples that this device works on per step.
        stages: parts of the model, in order.
        schedule: how they follow one another.
        groups: how many groups of devices share the batch out among themselves.
        accumulation: how many times forward and backward run before gradients are exchanged and weights updated.
        held: what the device holds beside and instead of its layers' tensors.
    """

    job: Job
    samples: int
    stages: tuple[Stage, ...]
    schedule: Schedule = Sequential()
    groups: int = 1
    accumulation: int = 1
    held: Held = Held()

    def passes(self, stage: int) -> int:
        """How many times forward and backward of a stage run per step."""
        if isinstance(self.schedule, Microbatched):
            return self.schedule.segments * self.accumulation
        return (self.schedule.count if isinstance(self.schedule, Rounds) and stage else 1) * self.accumulation

    def in_flight(self, stage: int) -> int:
        """How many passes' activations a stage's device holds at once.

        All segments under GPipe; one per stage from here to the last under 1F1B.
        """
        if not isinstance(self.schedule, Microbatched):
            return 1
        ahead = len(self.stages) - stage if self.schedule.kind == "1f1b" else self.schedule.segments
        return min(ahead, self.schedule.segments)


@dataclass(frozen=True)
class Limit:
    """The largest number of devices that a strategy can use for a job, and what sets it.

    Args:
        max_devices: the largest number.
        reason: what sets it.
        refused: why it cannot use the very number that the job has, although that is not too large; empty where it can.
    """

    max_devices: int
    reason: str
    refused: str = ""

    def refusal(self, strategy: str, job: Job) -> str | None:
        """Why the job's devices cannot be used, in one line; None where they can."""
        what = "serial training" if strategy == "serial" else f"{strategy} parallelism"
        if job.devices > self.max_devices:
            possible = "1 device" if self.max_devices == 1 else f"1 to {self.max_devices} devices"
            return f"{what} can use {possible} for {job.model.name}, not {job.devices} ({self.reason})"
        if self.refused:
            asked = "1 device" if job.devices == 1 else f"{job.devices} devices"
            return f"{what} cannot use {asked} for {job.model.name} ({self.refused})"
        return None


@dataclass(frozen=True, eq=False)
class Shares:
    """What of a plan changes with the batch, for n batches; the rest, bytes aside, is the same for all of them.

    What a stage exchanges is a straight line in its samples: so many bytes for each, or so many whatever they are.

    Args:
        samples: of one pass of the first stage; shape (n,), as the others.
        later: of one pass of the stages after it.
        segments: of a pipeline; 1 elsewhere.
    """

    samples: Ints
    later: Ints
    segments: Ints

    @classmethod
    def of(cls, samples: Ints) -> Shares:
        """The same samples in all stages, uncut."""
        return cls(samples, samples, np.ones_like(samples))


class Strategy(Protocol):
    """A way to spread a job over devices. Its choices (cuts, grids, buckets) are its fields."""

    @property
    def name(self) -> str:
        """What people call it."""

    def limit(self, job: Job) -> Limit:
        """How many devices it can use at most for this model and batch."""

    def plan(self, job: Job) -> Plan:
        """What the busiest device does; for a job within the limit."""

    def shares(self, job: Job, batches: Ints) -> Shares:
        """What of the plan is different for each of some global batches within the limit, the job's among them."""


def stage_of(job: Job, nodes: tuple[Node, ...], samples: int, exchanges: Sequence[Exchange] = ()) -> Stage:
    """The stage of a device that runs these layers (possibly shards) and exchanges.

    With recomputation forward runs once more before backward, with the exchanges inside it; what comes from another
    stage was kept.
    """
    again = [
        replace(exchange, part=StepPart.BACKWARD_DATA)
        for exchange in exchanges
        if exchange.part is StepPart.FORWARD and exchange.place is Place.INSIDE and job.execution.recomputed_segments
    ]
    tasks = tasks_of(job.model, nodes, samples, recompute=job.execution.recomputed_segments > 0)
    return Stage(nodes, samples, tasks, (*exchanges, *again))


def tasks_of(model: ModelGraph, nodes: Sequence[Node], samples: int, *, recompute: bool = False) -> tuple[Task, ...]:
    """What one pass and one update of some layers run, equal calls counted together.

    A layer without trainable parameters before it computes no gradient of its input (the first convolution reads
    pixels). A tensor that is read more than once gets as many gradients, and autograd adds them up. The optimizer
    updates the tensors of all these layers in one call.

    Args:
        model: the whole model, which knows what lies before a layer and who reads it.
        nodes: those of its layers that run here, possibly as shards.
        samples: samples of one pass.
        recompute: whether forward runs once more in backward, because its activations were not kept.
    """
    return _tasks(Same((model,)), Same(tuple(nodes)), samples, recompute)


@lru_cache(maxsize=4096)
def _params(nodes: Same[Node]) -> int:
    return sum(node.layer.params for node in nodes.items)


@lru_cache(maxsize=256)
def _tasks(model: Same[ModelGraph], nodes: Same[Node], samples: int, recompute: bool) -> tuple[Task, ...]:
    counted = _counted(model, nodes, recompute)
    return tuple(Task(LayerCall(layer, phase, samples), part, count) for layer, phase, part, count in counted)


_PARTS = {phase: StepPart(phase.value) for phase in Phase}
"""The part of a step in which the kernels of a phase run."""


@lru_cache(maxsize=4096)
def _counted(
    model: Same[ModelGraph], nodes: Same[Node], recompute: bool
) -> tuple[tuple[Layer, Phase, StepPart, int], ...]:
    """The tasks for any number of samples: a sweep over batches asks for them again and again."""
    graph = model.items[0]
    counts: defaultdict[tuple[Layer, Phase, StepPart], int] = defaultdict(int)
    updated: list[Layer] = []
    for node in nodes.items:
        for phase in node.layer.phases:
            if phase is Phase.UPDATE:
                updated.append(node.layer)
            elif phase is not Phase.BACKWARD_DATA or _runs_backward_data(graph, node):
                counts[node.layer, phase, _PARTS[phase]] += 1
        if recompute:
            counts[node.layer, Phase.FORWARD, StepPart.BACKWARD_DATA] += 1
        extra_readers = graph.readers[node.name] - 1
        if extra_readers > 0 and (graph.needs_data_gradient[node.name] or node.layer.params):
            sum_of_two = Elementwise("add", node.layer.output_shape)
            counts[sum_of_two, Phase.FORWARD, StepPart.BACKWARD_DATA] += extra_readers
    if updated:
        counts[together(updated), Phase.UPDATE, StepPart.UPDATE] = 1
    return tuple((*key, count) for key, count in counts.items())


def _runs_backward_data(model: ModelGraph, node: Node) -> bool:
    # A normalisation's one backward kernel also yields the gradients of its scale and shift.
    yields_weight_gradients = node.layer.params > 0 and Phase.BACKWARD_WEIGHT not in node.layer.phases
    return model.needs_data_gradient[node.name] or yields_weight_gradients

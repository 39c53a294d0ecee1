"""Data parallelism: replicas of something that trains, each with its share of the batch.

The gradients are averaged by one all_reduce of all of them after backward (ParaDL, HPDC 2021, Table III, row 'data'),
or in buckets while backward still runs. Where the batch does not divide, some replicas have one sample more, and a
synchronous step waits for them. A replica is one device or, in a hybrid, a group of devices under another strategy.

Accumulation: gradients of several passes add up before they are exchanged once; the passes of the busiest device are
taken to be equally large. DistributedDataParallel broadcasts the buffers (running statistics) of the first replica
before every forward unless told not to. A synchronised batch normalisation gathers each replica's sums, sums of squares
and count forward (2 C + 1 items) and adds up two gradients per channel backward (torch.nn.SyncBatchNorm): latency.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from oracle.errors import OutOfRange
from oracle.estimate import Ints
from oracle.groups import Group
from oracle.layers import Norm
from oracle.plan import Exchange, Job, Limit, Overlapped, Plan, Sequential, Shares, Stage, StepPart, Strategy, stage_of
from oracle.strategies.serial import Serial

Batch = TypeVar("Batch", int, Ints)
"""Samples of one batch, or of each of many."""

STATISTIC_BYTES = 4
"""Statistics of batch normalisations are float32 whatever the activations are."""


@dataclass(frozen=True)
class Data:
    """Replicas, each with its share of the batch.

    Args:
        bucket_bytes: gradients that are exchanged together as soon as backward has them (torch: 25 MiB); None exchanges
            all of them after backward. Only a replica whose layers run once, one after another, is cut into buckets.
        accumulation: passes whose gradients add up before they are exchanged.
        broadcast_buffers: whether running statistics are broadcast before every forward.
        synchronised_norm: whether batch normalisations take their statistics over all replicas.
    """

    name: ClassVar[str] = "data"
    bucket_bytes: float | None = None
    accumulation: int = 1
    broadcast_buffers: bool = False
    synchronised_norm: bool = False

    def __post_init__(self) -> None:
        if self.accumulation < 1:
            raise OutOfRange(f"gradients of at least one pass are accumulated, not of {self.accumulation}")
        if self.bucket_bytes is not None and not self.bucket_bytes > 0:
            raise OutOfRange(f"a bucket of gradients has more than zero bytes, not {self.bucket_bytes}")

    def limit(self, job: Job) -> Limit:
        """Every device needs a sample in every pass."""
        passes = f" in each of {self.accumulation} passes" if self.accumulation > 1 else ""
        reason = f"a global batch of {job.global_batch} has no sample for more{passes}"
        refused = "" if job.global_batch >= self.accumulation else reason
        return Limit(max(1, job.global_batch // self.accumulation), reason, refused)

    def plan(self, job: Job) -> Plan:
        """The whole model on the largest share of the batch, and the exchange of all gradients."""
        return self.around(job, Serial(), 1)

    def shares(self, job: Job, batches: Ints) -> Shares:
        """The largest share of each batch, in each of its passes."""
        return Shares.of(self.pass_samples(batches, job.devices))

    def pass_samples(self, batch: Batch, replicas: int) -> Batch:
        """Samples of one pass of the busiest replica."""
        return -(-batch // (replicas * self.accumulation))

    def around(self, job: Job, inner: Strategy, group: int) -> Plan:
        """Replicas of what `inner` makes of a contiguous group of devices."""
        outer = Group(job.devices // group, stride=group)
        samples = self.pass_samples(job.global_batch, outer.size)
        plan = inner.plan(replace(job, global_batch=samples, devices=group))
        if outer.size > 1:
            plan = self._exchanging(plan, job, outer)
        return replace(
            plan,
            job=job,
            samples=plan.samples * self.accumulation,
            groups=plan.groups * outer.size,
            accumulation=plan.accumulation * self.accumulation,
        )

    def _exchanging(self, plan: Plan, job: Job, outer: Group) -> Plan:
        stages, schedule = plan.stages, plan.schedule
        if self.bucket_bytes is not None and isinstance(schedule, Sequential):
            schedule = Overlapped()
            stages = tuple(bucket for stage in stages for bucket in in_buckets(stage, job, self.bucket_bytes))
        stages = tuple(with_gradient_exchange(self._with_statistics(s, job, outer), job, outer) for s in stages)
        return replace(plan, stages=stages, schedule=schedule)

    def _with_statistics(self, stage: Stage, job: Job, outer: Group) -> Stage:
        added: list[Exchange] = []
        norms = [node for node in stage.nodes if isinstance(node.layer, Norm) and node.layer.op == "batch"]
        if self.broadcast_buffers and norms:
            # Mean and variance in float32 and a 64-bit count of batches, sent as one message.
            items_bytes = sum(2 * STATISTIC_BYTES * node.layer.output_shape[0] + 8 for node in norms)
            added.append(Exchange(outer.transfer(job.cluster, "broadcast", items_bytes), StepPart.FORWARD))
        for node in norms if self.synchronised_norm else ():
            channels = node.layer.output_shape[0]
            sums = outer.transfer(job.cluster, "all_gather", STATISTIC_BYTES * outer.size * (2 * channels + 1))
            gradients = outer.transfer(job.cluster, "all_reduce", STATISTIC_BYTES * 2 * channels)
            added.append(Exchange(sums, StepPart.FORWARD, node.name))
            added.append(Exchange(gradients, StepPart.BACKWARD_DATA, node.name))
        return replace(stage, exchanges=(*added, *stage.exchanges))


def with_gradient_exchange(stage: Stage, job: Job, group: Group) -> Stage:
    """The stage with an all_reduce of the gradients that its device answers for; unchanged for a group of one."""
    if group.size == 1 or not stage.params:
        return stage
    size_bytes = stage.params * job.execution.parameter_bytes / stage.reduced
    exchange = Exchange(group.transfer(job.cluster, "all_reduce", size_bytes), StepPart.GRADIENT_EXCHANGE)
    return replace(stage, exchanges=(*stage.exchanges, exchange))


def in_buckets(stage: Stage, job: Job, bucket_bytes: float) -> tuple[Stage, ...]:
    """Cut a stage so that each part but the first has at least so many bytes of weights, filled from the last layer on.

    Exchanges go with their layers; those of the whole stage stay with its first part, which backward reaches last.
    """
    parts: list[list[int]] = [[]]
    filled_bytes = 0
    for index in reversed(range(len(stage.nodes))):
        parts[-1].append(index)
        filled_bytes += stage.nodes[index].layer.params * job.execution.parameter_bytes
        if filled_bytes >= bucket_bytes and index:
            parts.append([])
            filled_bytes = 0
    cut = []
    for indices in reversed(parts):
        nodes = tuple(stage.nodes[index] for index in reversed(indices))
        names = {node.name for node in nodes} | ({""} if 0 in indices else set())
        own = tuple(exchange for exchange in stage.exchanges if exchange.layer in names)
        tasks = stage_of(job, nodes, stage.samples).tasks
        cut.append(replace(stage, nodes=nodes, tasks=tasks, exchanges=own))
    return tuple(cut)

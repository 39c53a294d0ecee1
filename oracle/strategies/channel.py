"""Channel parallelism: every device has a share of each layer's input channels and all samples.

What a device computes of a result is a partial sum, which an all_reduce completes; in backward each device has the
gradient of its own channels, which an all_gather makes whole. The first layer, which reads samples of a few channels,
runs replicated, and so do layers without channels to sum over (as under filter parallelism). The table of ParaDL (HPDC
2021, Table III) gives filter parallelism's volume, which leaves the sum of the last layer out; every partial sum has to
be completed, so here it is 2 |y| + |x| of every split layer. A grouped convolution cannot be split by channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from oracle.estimate import Ints
from oracle.groups import Group
from oracle.model import Node
from oracle.plan import Exchange, Job, Limit, Plan, Shares, StepPart, stage_of
from oracle.sharding import channel_ways, shard_node
from oracle.strategies.filter import chosen, limit_by, splittable


@dataclass(frozen=True)
class Channel:
    """Shares of the input channels.

    Args:
        split: the layers whose channels are spread, by name; the others run replicated. By default all that have any,
            but those that read the samples.
    """

    name: ClassVar[str] = "channel"
    split: tuple[str, ...] | None = None

    def limit(self, job: Job) -> Limit:
        """Every device needs a channel of every layer that is split."""
        return limit_by(job, self._split(job), channel_ways, "channel")

    def plan(self, job: Job) -> Plan:
        """All samples on shares of the channels."""
        group, split = Group(job.devices), self._split(job)
        if group.size == 1:
            split = frozenset()
        shards: list[Node] = []
        exchanges: list[Exchange] = []
        for node in job.model.nodes:
            if node.name not in split:
                shards.append(node)
                continue
            shards.append(shard_node(node, channels=group.size))
            item_bytes = job.global_batch * job.execution.item_bytes
            summed = group.transfer(job.cluster, "all_reduce", item_bytes * node.layer.output_items)
            exchanges.append(Exchange(summed, StepPart.FORWARD, node.name))
            if job.model.needs_data_gradient[node.name]:
                whole = group.transfer(job.cluster, "all_gather", item_bytes * node.layer.input_items)
                exchanges.append(Exchange(whole, StepPart.BACKWARD_DATA, node.name))
        stage = stage_of(job, tuple(shards), job.global_batch, exchanges)
        return Plan(job, job.global_batch, (stage,))

    def shares(self, job: Job, batches: Ints) -> Shares:
        """All samples of every batch."""
        return Shares.of(batches)

    def _split(self, job: Job) -> frozenset[str]:
        if self.split is None:
            split = splittable(job.model, channel_ways)
            return frozenset(name for name in split if job.model.needs_data_gradient[name])
        return chosen(job, self.split, lambda layer: channel_ways(layer) > 0, "channels")

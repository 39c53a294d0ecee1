"""Filter parallelism: every device has a share of each layer's filters and all samples.

After a layer an all_gather makes its result whole for the next one; in backward an all_reduce adds up the devices'
parts of the gradient of its input (ParaDL, HPDC 2021, Table III, row 'filter'). The last layer with filters is not
gathered, and the first layer, which reads samples, has no gradient to add up. Poolings, normalisations, activations and
sums run on the gathered tensors, the same on every device, and are not divided. Weights are not replicated, so no
gradients are exchanged. Grouped convolutions are split by their groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from oracle.errors import BadInput
from oracle.estimate import Ints
from oracle.groups import Group
from oracle.identity import Same
from oracle.layer import Layer
from oracle.model import ModelGraph, Node
from oracle.plan import Exchange, Job, Limit, Plan, Shares, Stage, StepPart, stage_of
from oracle.sharding import filter_ways, shard_node


@dataclass(frozen=True)
class Filter:
    """Shares of the filters.

    Args:
        split: the layers whose filters are spread, by name; the others run replicated. By default all that have any.
    """

    name: ClassVar[str] = "filter"
    split: tuple[str, ...] | None = None

    def limit(self, job: Job) -> Limit:
        """Every device needs a filter of every layer that is split."""
        return limit_by(job, self._split(job), filter_ways, "filter")

    def plan(self, job: Job) -> Plan:
        """All samples on shares of the filters."""
        nodes, split = job.model.nodes, self._split(job)
        stage = split_by_filters(job, nodes, split, job.global_batch, Group(job.devices))
        return Plan(job, job.global_batch, (stage,))

    def shares(self, job: Job, batches: Ints) -> Shares:
        """All samples of every batch."""
        return Shares.of(batches)

    def _split(self, job: Job) -> frozenset[str]:
        if self.split is None:
            return splittable(job.model, filter_ways)
        return chosen(job, self.split, lambda layer: filter_ways(layer) > 0, "filters")


def split_by_filters(job: Job, nodes: Sequence[Node], split: Collection[str], samples: int, group: Group) -> Stage:
    """The stage of a device with its share of the filters of the split layers and all samples."""
    last = next((node.name for node in reversed(nodes) if filter_ways(node.layer)), None)
    shards: list[Node] = []
    exchanges: list[Exchange] = []
    for node in nodes:
        if node.name not in split or group.size == 1:
            shards.append(node)
            continue
        shards.append(shard_node(node, filters=group.size))
        item_bytes = samples * job.execution.item_bytes
        if node.name != last:
            whole = group.transfer(job.cluster, "all_gather", item_bytes * node.layer.output_items)
            exchanges.append(Exchange(whole, StepPart.FORWARD, node.name))
        if job.model.needs_data_gradient[node.name]:
            summed = group.transfer(job.cluster, "all_reduce", item_bytes * node.layer.input_items)
            exchanges.append(Exchange(summed, StepPart.BACKWARD_DATA, node.name))
    return stage_of(job, tuple(shards), samples, exchanges)


def limit_by(job: Job, split: Collection[str], ways: Callable[[Layer], int], what: str) -> Limit:
    """The limit that the narrowest of the split layers sets."""
    narrowest = _narrowest(Same((job.model,)), frozenset(split), ways)
    if narrowest is None:
        return Limit(1, f"no layer of it has {what}s to split")
    fewest, node = narrowest
    groups = getattr(node.layer, "groups", 1)
    if groups > 1:
        return Limit(fewest, f"{node.name} is a convolution in {groups} groups")
    return Limit(fewest, f"{node.name} has {fewest} {what}{'s' if fewest > 1 else ''}")


@lru_cache(maxsize=64)
def _narrowest(model: Same[ModelGraph], split: frozenset[str], ways: Callable[[Layer], int]) -> tuple[int, Node] | None:
    layers = [(ways(node.layer), node) for node in model.items[0].nodes if node.name in split]
    return min(layers, key=lambda item: item[0], default=None)


def splittable(model: ModelGraph, ways: Callable[[Layer], int]) -> frozenset[str]:
    """The names of the layers that can be split at all."""
    return _splittable(Same((model,)), ways)


@lru_cache(maxsize=64)
def _splittable(model: Same[ModelGraph], ways: Callable[[Layer], int]) -> frozenset[str]:
    return frozenset(node.name for node in model.items[0].nodes if ways(node.layer) > 0)


def chosen(job: Job, names: Collection[str], possible: Callable[[Layer], bool], what: str) -> frozenset[str]:
    """The names, if the model has such layers and they can be split.

    Raises:
        BadInput: a name that no layer has, or a layer that cannot be split.
    """
    layers = {node.name: node.layer for node in job.model.nodes}
    for name in names:
        if name not in layers:
            raise BadInput(f"{job.model.name} has no layer '{name}' to split")
        if not possible(layers[name]):
            raise BadInput(
                f"layer '{name}' of {job.model.name} has no {what} to split: its kind is {layers[name].kind}"
            )
    return frozenset(names)

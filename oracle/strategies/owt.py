"""One weird trick: data parallelism in the convolutions, filter parallelism in the fully connected layers.

Each of K workers runs the convolutions on its own b samples of a batch B and owns 1/K of the neurons of every fully
connected layer (Krizhevsky, 2014, arXiv 1404.5997). Where the convolutions end, the last activities must reach every
worker, by one of three schemes: (a) all gather all of them and compute the fully connected layers once, on B samples;
(b) in K rounds one worker after another sends its b samples to all; (c) in K rounds every worker sends b / K to all.
What is sent per worker is the same; in (b) and (c) rounds are sent while the round before computes. Backward returns
the gradients the same way. Only convolutional weights are synchronised. With (b) and (c) the fully connected weights
may be updated in every round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from oracle.errors import UnknownName
from oracle.estimate import Ints
from oracle.groups import Group
from oracle.identity import Same
from oracle.layers import Linear
from oracle.model import INPUT, ModelGraph, Node
from oracle.plan import Exchange, Held, Job, Limit, Place, Plan, Rounds, Shares, Stage, StepPart, stage_of
from oracle.pricing import Transfer
from oracle.sharding import filter_ways
from oracle.strategies.data import with_gradient_exchange
from oracle.strategies.filter import limit_by, split_by_filters, splittable
from oracle.strategies.serial import Serial

SCHEMES = ("a", "b", "c")
"""How the activities reach all workers."""

UPDATES = ("step", "round")
"""When the fully connected weights are updated."""


@dataclass(frozen=True)
class Owt:
    """Data parallelism up to the first fully connected layer, filter parallelism from there on.

    Args:
        scheme: one of `SCHEMES`.
        update: one of `UPDATES`; scheme (a) has one round.
    """

    name: ClassVar[str] = "owt"
    scheme: str = "c"
    update: str = "step"

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise UnknownName("scheme of owt", self.scheme, SCHEMES)
        if self.update not in UPDATES:
            raise UnknownName("update rule of owt", self.update, UPDATES)

    def limit(self, job: Job) -> Limit:
        """Every worker needs a sample (in scheme (c) one per round) and a neuron of every fully connected layer."""
        first, nodes = self._first(job), job.model.nodes
        if not 0 < first < len(nodes):
            return Limit(1, f"it has no {'fully connected layers' if first else 'layers before the fully connected'}")
        split = splittable(job.model, filter_ways).intersection(node.name for node in nodes[first:])
        neurons = limit_by(job, split, filter_ways, "filter")
        most, reason = job.global_batch, f"a global batch of {job.global_batch} has no sample for more"
        if self.scheme == "c":
            # The largest K with K <= ceil(B / K): (K - 1) K < B.
            most = (1 + math.isqrt(4 * job.global_batch - 3)) // 2
            reason = f"a worker's share of a global batch of {job.global_batch} has no sample for more rounds"
        return neurons if neurons.max_devices < most else Limit(most, reason)

    def plan(self, job: Job) -> Plan:
        """Two stages: the convolutions once, the fully connected layers in rounds."""
        if job.devices == 1:
            return Serial().plan(job)
        group, first, nodes = Group(job.devices), self._first(job), job.model.nodes
        rounds, shares = 1 if self.scheme == "a" else group.size, self.shares(job, np.array([job.global_batch]))
        samples, round_samples = int(shares.samples[0]), int(shares.later[0])
        items = _crossing_items(nodes, first)
        sent_bytes = samples * items * job.execution.item_bytes
        junction = self._junction(job, group, sent_bytes)
        parts = (StepPart.FORWARD, StepPart.BACKWARD_DATA)
        sends = [Exchange(junction, part, nodes[first].name, Place.BETWEEN) for part in parts]
        convolutions = with_gradient_exchange(stage_of(job, nodes[:first], samples, sends), job, group)
        split = splittable(job.model, filter_ways)
        connected = split_by_filters(job, nodes[first:], split, round_samples, group)
        # The gradient of what the first of them reads goes back over the junction.
        inside = tuple(e for e in connected.exchanges if (e.layer, e.part) != (nodes[first].name, parts[1]))
        connected = replace(connected, exchanges=inside)
        if self.update == "round":
            connected = _updated(connected, rounds)
        held = Held(transfer_bytes=2 * sent_bytes if rounds > 1 else 0.0)
        stages = (replace(convolutions, reduced=group.size), connected)
        return Plan(job, samples, stages, Rounds(rounds), groups=group.size, held=held)

    def shares(self, job: Job, batches: Ints) -> Shares:
        """A worker's share of each batch, on which the fully connected layers work in rounds, or once on all of it."""
        samples = -(-batches // job.devices)
        return Shares(samples, batches if self.scheme == "a" else samples, np.ones_like(batches))

    def _first(self, job: Job) -> int:
        """The place of the first fully connected layer; the number of layers where there is none."""
        return _first_connected(Same((job.model,)))

    def _junction(self, job: Job, group: Group, sent_bytes: float) -> Transfer:
        """What is sent before a round."""
        if self.scheme == "b":  # one worker to every other, one after another
            return group.neighbours(job.cluster, sent_bytes, messages=group.size - 1)
        gathered_bytes = sent_bytes * group.size if self.scheme == "a" else sent_bytes
        return group.transfer(job.cluster, "all_gather", gathered_bytes)


@lru_cache(maxsize=64)
def _first_connected(model: Same[ModelGraph]) -> int:
    nodes = model.items[0].nodes
    return next((place for place, node in enumerate(nodes) if isinstance(node.layer, Linear)), len(nodes))


def _crossing_items(nodes: tuple[Node, ...], first: int) -> int:
    """Items per sample of the tensors that the layers from `first` on read from those before."""
    after = {node.name for node in nodes[first:]} | {INPUT}
    read = {name for node in nodes[first:] for name in node.inputs} - after
    return sum(node.layer.output_items for node in nodes[:first] if node.name in read)


def _updated(stage: Stage, times: int) -> Stage:
    tasks = (replace(t, count=t.count * times) if t.part is StepPart.UPDATE else t for t in stage.tasks)
    return replace(stage, tasks=tuple(tasks))

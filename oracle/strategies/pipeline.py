"""Pipeline parallelism: consecutive parts of the model on devices of their own, micro-batches passing through.

See `oracle.project` for the time of a schedule, and `Plan.in_flight` for the activations that a stage holds. What
crosses a cut are all tensors made before it and read after it; one that skips stages is handed through them. A batch is
cut as torch.chunk does: into equal micro-batches, the last one smaller, and fewer of them than asked for where rounding
up leaves none for the last. By default the cuts balance the operations of forward and backward,
and there are four segments per stage: from then on the bubble is small (Huang et al., NeurIPS 2019, section 2.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from oracle.cuts import balanced_cuts
from oracle.errors import BadInput, UnknownName
from oracle.estimate import Ints
from oracle.groups import hop
from oracle.plan import PIPELINES, Exchange, Job, Limit, Microbatched, Place, Plan, Shares, StepPart, stage_of
from oracle.strategies.serial import Serial


@dataclass(frozen=True)
class Pipeline:
    """Stages on devices of their own.

    Args:
        cuts: the names of the layers that begin the second stage, the third...; by default balanced.
        segments: micro-batches of a step, at most; by default four per stage, as far as there are samples.
        kind: a name in `oracle.plan.PIPELINES`.
    """

    name: ClassVar[str] = "pipeline"
    cuts: tuple[str, ...] | None = None
    segments: int | None = None
    kind: str = "gpipe"

    def __post_init__(self) -> None:
        if self.kind not in PIPELINES:
            raise UnknownName("pipeline schedule", self.kind, PIPELINES)

    def limit(self, job: Job) -> Limit:
        """Every stage needs a layer, and every segment a sample."""
        layers = len(job.model.nodes)
        refused = ""
        if self.segments is not None and self.segments > job.global_batch:
            refused = f"a batch of {job.global_batch} cannot be cut into {self.segments} segments"
        if self.cuts is not None and job.devices not in (1, len(self.cuts) + 1):
            refused = f"its {len(self.cuts)} cuts make {len(self.cuts) + 1} stages"
        return Limit(layers, f"it has {layers} layers", refused if job.devices > 1 else "")

    def plan(self, job: Job) -> Plan:
        """A stage per device."""
        if job.devices == 1:
            return Serial().plan(job)
        model, bounds = job.model, self._bounds(job)
        shares = self.shares(job, np.array([job.global_batch]))
        samples, segments = int(shares.samples[0]), int(shares.segments[0])
        stages = []
        for device, (first, last) in enumerate(pairwise(bounds)):
            exchanges = []
            if last < len(model.nodes):
                size_bytes = samples * job.execution.item_bytes * model.crossing_items[last]
                for part in (StepPart.FORWARD, StepPart.BACKWARD_DATA):
                    exchanges.append(Exchange(hop(job.cluster, device, size_bytes), part, place=Place.BETWEEN))
            stages.append(stage_of(job, model.nodes[first:last], samples, exchanges))
        return Plan(job, job.global_batch, tuple(stages), Microbatched(segments, self.kind))

    def shares(self, job: Job, batches: Ints) -> Shares:
        """Segments as equal as they can be, and only as many as are not empty."""
        if job.devices == 1:
            return Shares.of(batches)
        samples = -(-batches // (self.segments or 4 * job.devices))
        return Shares(samples, samples, -(-batches // samples))

    def _bounds(self, job: Job) -> list[int]:
        nodes = job.model.nodes
        if self.cuts is None:
            return [0, *balanced_cuts(job.model.sample_flop, job.devices), len(nodes)]
        places = {node.name: index for index, node in enumerate(nodes)}
        for name in self.cuts:
            if name not in places:
                raise BadInput(f"{job.model.name} has no layer '{name}' to begin a stage with")
        bounds = [0, *(places[name] for name in self.cuts), len(nodes)]
        if any(first >= last for first, last in pairwise(bounds)):
            raise BadInput(f"the cuts {', '.join(self.cuts)} of {job.model.name} leave a stage without layers")
        return bounds

"""`Predictor`: everything that turns a job and a strategy into a projection, as one value to ask again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from oracle.autograd import AUTOGRAD
from oracle.errors import NotCalibrated
from oracle.machine import Cluster
from oracle.memory import MemoryRule
from oracle.plan import Job, Strategy
from oracle.pricing import LayerTimer, TransferTimer
from oracle.project import project
from oracle.projection import Projection


@dataclass(frozen=True)
class Predictor:
    """Timers and a memory rule.

    Args:
        layers: prices kernels.
        links: prices the transfers on a cluster; what-ifs ask it for clusters that nobody has.
        memory: what a device holds.
    """

    layers: LayerTimer
    links: Callable[[Cluster], TransferTimer]
    memory: MemoryRule = AUTOGRAD

    def project(self, job: Job, strategy: Strategy, *, suggest_batch: bool = False) -> Projection:
        """Predict a step; see `oracle.project.project`."""
        return project(job, strategy, self.layers, self.links(job.cluster), self.memory, suggest_batch)

    def project_known(self, jobs: Iterable[tuple[Job, Strategy]]) -> list[Projection]:
        """Predict a step of each, where a kernel or transfer of which nothing is known is a reason like any other.

        Raises:
            NotCalibrated: nothing is known of any that could be done; the text is about the first.
        """
        projections: list[Projection] = []
        missing: list[NotCalibrated] = []
        for job, strategy in jobs:
            try:
                projections.append(self.project(job, strategy))
            except NotCalibrated as error:
                missing.append(error)
                projections.append(Projection(strategy.name, job, reason=str(error)))
        if missing and all(projection.step is None for projection in projections):
            raise missing[0]
        return projections

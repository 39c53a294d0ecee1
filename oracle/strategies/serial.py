"""One device trains the whole model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from oracle.estimate import Ints
from oracle.plan import Job, Limit, Plan, Shares, stage_of


@dataclass(frozen=True)
class Serial:
    """Everything on one device; what every other strategy is compared with."""

    name: ClassVar[str] = "serial"

    def limit(self, job: Job) -> Limit:
        """One device."""
        return Limit(1, "it spreads nothing")

    def plan(self, job: Job) -> Plan:
        """The whole model on the whole batch."""
        return Plan(job, job.global_batch, (stage_of(job, job.model.nodes, job.global_batch),))

    def shares(self, job: Job, batches: Ints) -> Shares:
        """All samples of every batch."""
        return Shares.of(batches)

"""Data parallelism: every device holds the whole model and trains it on its share of the batch.

The gradients are averaged by one all_reduce of all of them after backward (ParaDL, HPDC 2021, Table III, row 'data').
Where the batch does not divide, some devices have one sample more, and a synchronous step waits for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from oracle.plan import Exchange, Job, Limit, Plan, Stage, StepPart, whole_model
from oracle.pricing import Transfer


@dataclass(frozen=True)
class Data:
    """Replicas of the model, each with its share of the batch."""

    name: ClassVar[str] = "data"

    def limit(self, job: Job) -> Limit:
        """Every device needs a sample."""
        return Limit(job.global_batch, f"a global batch of {job.global_batch} has no sample for more")

    def plan(self, job: Job) -> Plan:
        """The whole model on the largest share of the batch, and the exchange of all gradients."""
        samples = -(-job.global_batch // job.devices)
        stage = with_gradient_exchange(whole_model(job.model, samples), job, job.devices)
        return Plan(job, samples, (stage,))


def with_gradient_exchange(stage: Stage, job: Job, group: int) -> Stage:
    """The stage with an all_reduce of its gradients over a contiguous group; unchanged for a group of one."""
    if group == 1 or not stage.params:
        return stage
    size_bytes = float(stage.params * job.execution.parameter_bytes)
    transfer = Transfer("all_reduce", size_bytes, group, job.cluster.tier_of(group))
    exchange = Exchange(transfer, StepPart.GRADIENT_EXCHANGE)
    return replace(stage, exchanges=(*stage.exchanges, exchange))

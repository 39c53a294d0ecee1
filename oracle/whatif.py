"""Changes to a job or its strategy whose effect the engine computes: what a bottleneck's remedy is made of.

Every change is a function of a job and a strategy to another job and strategy, and None where it does not apply. It
promises nothing: whether it helps, and whether it fits, is for a projection to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from oracle.machine import Cluster, Tier
from oracle.plan import Job, Strategy
from oracle.strategies.channel import Channel
from oracle.strategies.data import Data
from oracle.strategies.filter import Filter
from oracle.strategies.hybrid import Hybrid
from oracle.strategies.pipeline import Pipeline
from oracle.strategies.spatial import Spatial
from oracle.strategies.zero import Zero

BUCKET_BYTES = 25 * 2.0**20
"""What torch's DistributedDataParallel fills a bucket with by default."""


@dataclass(frozen=True)
class Change:
    """Another job and strategy, and how people say it: a noun phrase that something `would` follow."""

    text: str
    job: Job
    strategy: Strategy


WhatIf = Callable[[Job, Strategy], Change | None]


def twice_the_batch(job: Job, strategy: Strategy) -> Change:
    """Twice the samples per step."""
    text = "twice the batch" if job.devices == 1 else "twice the batch per device"
    return Change(text, replace(job, global_batch=2 * job.global_batch), strategy)


def buckets_during_backward(job: Job, strategy: Strategy) -> Change | None:
    """Gradients exchanged in buckets while backward still runs."""
    text = "exchanging gradients in buckets while backward runs"
    if isinstance(strategy, Data) and strategy.bucket_bytes is None:
        return Change(text, job, replace(strategy, bucket_bytes=BUCKET_BYTES))
    if isinstance(strategy, Hybrid) and strategy.outer.bucket_bytes is None:
        return Change(text, job, replace(strategy, outer=replace(strategy.outer, bucket_bytes=BUCKET_BYTES)))
    return None


def smaller_groups(job: Job, strategy: Strategy) -> Change | None:
    """Model-parallel groups of half the devices, and twice as many of them."""
    inner = strategy.inner if isinstance(strategy, Hybrid) else strategy
    if not isinstance(inner, Filter | Channel | Spatial | Pipeline) or job.devices < 2:
        return None
    if isinstance(inner, Spatial) and inner.grid is not None:
        return None
    whole = strategy.group_of(job) if isinstance(strategy, Hybrid) else job.devices
    if whole < 2 or whole % 2:
        return None
    outer = strategy.outer if isinstance(strategy, Hybrid) else Data()
    if whole == 2:
        return Change("data parallelism alone", job, outer)
    return Change(f"groups of {whole // 2} instead of {whole}", job, Hybrid(outer, inner, whole // 2))


def twice_the_bandwidth(job: Job, strategy: Strategy) -> Change | None:
    """Links of twice the bandwidth, on every tier."""
    if not job.cluster.tiers:
        return None
    return Change("links of twice the bandwidth", _on_tiers(job, _faster), strategy)


def half_the_latency(job: Job, strategy: Strategy) -> Change | None:
    """Links of half the startup time, on every tier."""
    if not job.cluster.tiers:
        return None
    return Change("links of half the latency", _on_tiers(job, _sooner), strategy)


def no_congestion(job: Job, strategy: Strategy) -> Change | None:
    """No oversubscription, and a network card for every device."""
    if not job.cluster.tiers:
        return None
    cards = job.cluster.tiers[0].devices or 1
    changed = _on_tiers(job, lambda tier: replace(tier, oversubscription=1.0, nics_per_node=max(cards, 1)))
    return Change("a network without oversubscription and with a card for every device", changed, strategy)


def sharded_states(job: Job, strategy: Strategy) -> Change | None:
    """Weights, gradients and optimizer states shared out instead of held by every device."""
    if isinstance(strategy, Data) and job.devices > 1:
        return Change("sharing out weights, gradients and optimizer states (zero)", job, Zero())
    return None


def recomputation(job: Job, strategy: Strategy) -> Change | None:
    """Activations not kept but computed again in backward, in sqrt(layers) segments (Chen et al., 2016)."""
    if job.execution.recomputed_segments:
        return None
    segments = round(math.sqrt(len(job.model.nodes)))
    changed = replace(job, execution=replace(job.execution, recomputed_segments=segments))
    return Change(f"computing activations again in {segments} segments", changed, strategy)


def half_the_batch(job: Job, strategy: Strategy) -> Change | None:
    """Half the samples per step."""
    if job.global_batch < 2:
        return None
    return Change("half the batch", replace(job, global_batch=job.global_batch // 2), strategy)


def more_segments(job: Job, strategy: Strategy) -> Change | None:
    """Twice the micro-batches of a pipeline."""
    inner = strategy.inner if isinstance(strategy, Hybrid) else strategy
    if not isinstance(inner, Pipeline):
        return None
    stages = strategy.group_of(job) if isinstance(strategy, Hybrid) else job.devices
    segments = 2 * (inner.segments or 4 * stages)
    changed = replace(inner, segments=segments)
    how = replace(strategy, inner=changed) if isinstance(strategy, Hybrid) else changed
    return Change(f"{segments} segments", job, how)


def cuda_graphs(job: Job, strategy: Strategy) -> Change | None:
    """All kernels of a step captured once and launched together."""
    if job.execution.graph:
        return None
    return Change("a CUDA graph of the step", replace(job, execution=replace(job.execution, graph=True)), strategy)


def fused_optimizer(job: Job, strategy: Strategy) -> Change | None:
    """An optimizer that updates all tensors in one kernel."""
    if job.execution.update == "fused":
        return None
    return Change("a fused optimizer", replace(job, execution=replace(job.execution, update="fused")), strategy)


def data_parallelism(job: Job, strategy: Strategy) -> Change | None:
    """No model parallelism at all."""
    if isinstance(strategy, Data) or job.devices == 1:
        return None
    return Change("data parallelism alone", job, Data())


def _on_tiers(job: Job, change: Callable[[Tier], Tier]) -> Job:
    cluster: Cluster = replace(job.cluster, tiers=tuple(map(change, job.cluster.tiers)))
    return replace(job, cluster=cluster)


def _faster(tier: Tier) -> Tier:
    link = replace(tier.link, bandwidth_bytes_per_s=2 * tier.link.bandwidth_bytes_per_s)
    return replace(tier, link=link)


def _sooner(tier: Tier) -> Tier:
    return replace(tier, link=replace(tier.link, latency_s=tier.link.latency_s / 2))

"""Hybrids by composition: data parallelism over groups of devices, each under a strategy of its own.

The groups are contiguous, so that they lie inside nodes, and data parallelism runs across them (ParaDL, HPDC 2021,
section 3.6). After a reduce_scatter inside the group each device answers for its share of the gradients, which it then
reduces with the devices of the same place in other groups: the segmented all_reduce, not one through leaders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from oracle.errors import OutOfRange
from oracle.estimate import Ints
from oracle.plan import Job, Limit, Plan, Shares, Strategy
from oracle.strategies.data import Data


@dataclass(frozen=True)
class Hybrid:
    """Data parallelism over groups.

    Args:
        outer: how the groups share the batch.
        inner: what each group does with its share.
        group: devices in a group; by default the most that divide the devices, lie inside a node and can be used.
    """

    outer: Data
    inner: Strategy
    group: int | None = None

    def __post_init__(self) -> None:
        if self.group is not None and self.group < 1:
            raise OutOfRange(f"a group has at least one device, not {self.group}")

    @property
    def name(self) -> str:
        """The names of both."""
        return f"{self.outer.name}+{self.inner.name}"

    def limit(self, job: Job) -> Limit:
        """Every group needs a sample, and the inner strategy limits the group."""
        most, why = self._most(job)
        refused = ""
        if job.devices <= most and self._group(job) is None:
            refused = self._refused(job)
        return Limit(most, why, refused)

    def plan(self, job: Job) -> Plan:
        """The inner plan of a group, replicated."""
        return self.outer.around(job, self.inner, self.group_of(job))

    def shares(self, job: Job, batches: Ints) -> Shares:
        """What a group makes of its share of each batch; batches for which the groups are those of the job."""
        group = self.group_of(job)
        own = self.outer.pass_samples(batches, job.devices // group)
        return self.inner.shares(replace(job, devices=group), own)

    def group_of(self, job: Job) -> int:
        """Devices in a group for a job within the limit."""
        return self._group(job) or 1

    def _refused(self, job: Job) -> str:
        if self.group is None:
            return "they do not divide into groups that can be used and lie inside a node"
        if job.devices % self.group:
            return f"they are no multiple of its group of {self.group}"
        asked = self._in_a_group(job, self.group, job.devices // self.group)
        return self.inner.limit(asked).refusal(self.inner.name, asked) or "its batch has no sample for every group"

    def _group(self, job: Job) -> int | None:
        """Devices in a group; None where no group can be used."""
        if self.group is not None:
            sizes = [self.group] if job.devices % self.group == 0 else []
        else:
            most = min(job.devices, _node_devices(job) or job.devices)
            sizes = [size for size in _divisors(job.devices) if size <= most]
        return next((size for size in sizes if self._usable(job, size, job.devices // size)), None)

    def _usable(self, job: Job, group: int, replicas: int) -> bool:
        if self.outer.limit(replace(job, devices=replicas)).refusal(self.outer.name, replace(job, devices=replicas)):
            return False
        asked = self._in_a_group(job, group, replicas)
        return self.inner.limit(asked).refusal(self.inner.name, asked) is None

    def _in_a_group(self, job: Job, group: int, replicas: int) -> Job:
        return replace(job, global_batch=self.outer.pass_samples(job.global_batch, replicas), devices=group)

    def _most(self, job: Job) -> tuple[int, str]:
        """The most devices: over every size of a group's share of the batch, as many groups as have one."""
        outer = self.outer.limit(job)
        replicas, best = outer.max_devices, 0
        cap = _node_devices(job)
        largest, why = self._largest_group(job, 1, cap)
        while replicas >= 1 and best < replicas * largest:
            fewer = replicas * 3 // 4
            if fewer and replicas * self._largest_group(job, fewer, cap)[0] <= best:
                replicas = fewer  # a smaller share makes no larger group: none of those between beats the best
                continue
            group, reason = self._largest_group(job, replicas, cap)
            if group * replicas > best:
                best, why = group * replicas, f"{replicas} groups of {group}: {outer.reason}, and {reason}"
            samples = self.outer.pass_samples(job.global_batch, replicas)
            # The next fewer groups whose share is larger.
            replicas = -(-job.global_batch // (samples * self.outer.accumulation)) - 1
        return max(best, 1), why

    def _largest_group(self, job: Job, replicas: int, cap: int | None) -> tuple[int, str]:
        there = job.cluster.devices
        if self.group is not None and there is not None and self.group > there:
            return 0, f"a group has {self.group} devices, and cluster '{job.cluster.name}' {there}"
        asked = self._in_a_group(job, self.group or 1, replicas)
        limit = self.inner.limit(asked)
        if self.group is not None:
            usable = limit.refusal(self.inner.name, asked) is None
            return (self.group if usable else 0), f"a group has {self.group}" if usable else limit.reason
        if cap is not None and cap <= limit.max_devices:
            return cap, f"a node has {cap} for a group"
        return limit.max_devices, limit.reason


def _divisors(number: int) -> list[int]:
    """All divisors, the largest first.

    >>> _divisors(12)
    [12, 6, 4, 3, 2, 1]
    """
    low = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*low, *(number // size for size in low)}, reverse=True)


def _node_devices(job: Job) -> int | None:
    return job.cluster.tiers[0].devices if job.cluster.tiers else 1

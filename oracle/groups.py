"""Groups of devices that exchange something, and where on the machine their transfers run.

Devices are numbered node after node. Model-parallel groups are contiguous, so that a group lies inside a node where it
can; groups that reduce gradients across them are strided: their devices have the same place in every model-parallel
group (ParaDL, HPDC 2021, section 3.6). As many strided groups as there are places talk at the same time. Between nodes
those of one node share its network cards; inside a node every device sends over a port of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from oracle.machine import Cluster
from oracle.pricing import Transfer


@dataclass(frozen=True)
class Group:
    """Devices 0, stride, 2 stride... as a pattern that repeats over all devices.

    Args:
        size: devices in a group.
        stride: the distance between neighbours; as many groups talk at the same time.
    """

    size: int
    stride: int = 1

    def transfer(self, cluster: Cluster, collective: str, size_bytes: float, messages: int = 1) -> Transfer:
        """A collective of the whole group on a buffer of so many bytes, so many times."""
        tier, concurrent = self._place(cluster)
        return Transfer(collective, float(size_bytes), self.size, tier, concurrent, messages)

    def neighbours(self, cluster: Cluster, size_bytes: float, messages: int = 1) -> Transfer:
        """What every device sends to a neighbour, over the slowest link that neighbours in the group have."""
        tier, concurrent = self._place(cluster)
        return Transfer("p2p", float(size_bytes), min(2, self.size), tier, concurrent, messages)

    def _place(self, cluster: Cluster) -> tuple[int, int]:
        """The tier of the group, and how many groups share its links."""
        tier = cluster.tier_of(self.size * self.stride)
        return tier, min(self.stride, cluster.tiers[0].devices or 1) if tier else 1


def hop(cluster: Cluster, device: int, size_bytes: float) -> Transfer:
    """What a device (its number from 0 on) sends to the next one."""
    sizes = [tier.devices for tier in cluster.tiers]
    same = (i for i, size in enumerate(sizes) if size is None or device // size == (device + 1) // size)
    return Transfer("p2p", float(size_bytes), 2, next(same, 0))

"""Prices transfers by the links of a cluster: the ideal alpha-beta forms, for machines that nobody has measured.

Contention: `concurrent` groups that use the same links share a node's network cards, so each sees the bandwidth
divided by concurrent / nics_per_node once there are more groups than cards (the factor phi of ParaDL, HPDC 2021,
section 3.3, with the number of cards made explicit). Bandwidth is of one card or path; oversubscription divides it
further. Both hold for full load, which is what synchronous training puts on a network. Kernels and transfers are taken
not to slow one another down: a data sheet says nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oracle.collectives import collective
from oracle.errors import OutOfRange
from oracle.estimate import Floats
from oracle.machine import Cluster
from oracle.pricing import NO_SLOWDOWN, Prices, Slowdown, Transfer


@dataclass(frozen=True)
class LinkTimer:
    """A `TransferTimer` from the links of a cluster alone. What it says is assumed, without spread."""

    cluster: Cluster

    def price(self, transfers: Sequence[Transfer]) -> Prices:
        """Seconds of each transfer, all its messages together; 0 for a group of one.

        Raises:
            UnknownName: no such collective.
            OutOfRange: a tier that the cluster does not have.

        >>> from oracle.machine import Link
        >>> timer = LinkTimer(Cluster.of_link("any", Link(1e-6, 1e9)))
        >>> float(timer.price([Transfer("all_reduce", 4e9, 4)]).middle_s[0])
        6.000006
        """
        lines = [(*self._line(transfer), transfer.bytes) for transfer in transfers]
        return Prices.exact([startup_s + s_per_byte * size_bytes for startup_s, s_per_byte, size_bytes in lines])

    def slowdown(self, transfers: Sequence[Transfer]) -> Slowdown:
        """None is known."""
        return NO_SLOWDOWN

    def lines(self, transfers: Sequence[Transfer]) -> Floats:
        """Seconds without bytes and for each byte, shape (transfers, 2); see `oracle.pricing.Lines`."""
        return np.array([self._line(transfer) for transfer in transfers]).reshape(-1, 2)

    def _line(self, transfer: Transfer) -> tuple[float, float]:
        """Seconds to start all messages, and for each byte of one of them."""
        row = collective(transfer.collective)
        if transfer.group == 1:
            return 0.0, 0.0
        if transfer.tier >= len(self.cluster.tiers):
            tiers = len(self.cluster.tiers)
            raise OutOfRange(f"cluster '{self.cluster.name}' has {tiers} tier(s) of links, no tier {transfer.tier}")
        tier = self.cluster.tiers[transfer.tier]
        contention = max(1.0, transfer.concurrent / tier.nics_per_node) * tier.oversubscription
        s_per_byte = row.wire_share(transfer.group) * contention / tier.link.bandwidth_bytes_per_s
        return transfer.messages * row.rounds(transfer.group) * tier.link.latency_s, transfer.messages * s_per_byte

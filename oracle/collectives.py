"""What each collective does on the wire: rounds, and bytes over the busiest link, as functions of the group.

A transfer names its whole buffer (see `oracle.pricing.Transfer`), so a share is of that buffer: a ring all_gather of
m bytes on p devices sends p - 1 segments of m / p each. Time on a link with startup alpha and bandwidth B is then
rounds * alpha + share * m / B for every collective, which is the alpha-beta model of ParaDL (HPDC 2021, Table II).
Large messages on rings are what training sends; other algorithms are further rows of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from oracle.errors import UnknownName


@dataclass(frozen=True)
class Collective:
    """One collective by one algorithm.

    Args:
        name: what a transfer asks for.
        algorithm: how it is done.
        rounds: group -> how many steps follow one another, each with the startup of a link.
        wire_share: group -> bytes over the busiest link per byte of the whole buffer.
        source: where the forms are derived.
    """

    name: str
    algorithm: str
    rounds: Callable[[int], float]
    wire_share: Callable[[int], float]
    source: str


_RING = "Patarasuk, Yuan, JPDC 69(2), 2009"
_NCCL = "nccl-tests, PERFORMANCE.md"
_MPI = "Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005"

_TABLE = (
    Collective("all_reduce", "ring", lambda p: 2 * (p - 1), lambda p: 2 * (p - 1) / p, _RING),
    Collective("all_gather", "ring", lambda p: p - 1, lambda p: (p - 1) / p, _RING),
    Collective("reduce_scatter", "ring", lambda p: p - 1, lambda p: (p - 1) / p, _RING),
    # A pipeline around the ring: the whole buffer passes every link.
    Collective("broadcast", "ring", lambda p: p - 1, lambda p: min(1.0, p - 1), _NCCL),
    # The buffer is what one device sends; the part for itself stays.
    Collective("all_to_all", "pairwise", lambda p: p - 1, lambda p: (p - 1) / p, _MPI),
    # A neighbour's message; a group of one has no neighbour.
    Collective("p2p", "direct", lambda p: min(1, p - 1), lambda p: min(1.0, p - 1), "Hockney, Parallel Comp. 20, 1994"),
)

COLLECTIVES: dict[str, Collective] = {row.name: row for row in _TABLE}
"""The collective that a name stands for where nothing else says which algorithm runs."""


def collective(name: str) -> Collective:
    """The row of a collective.

    Raises:
        UnknownName: no such collective.

    >>> collective("all_reduce").rounds(4), collective("all_reduce").wire_share(4)
    (6, 1.5)
    """
    if name not in COLLECTIVES:
        raise UnknownName("collective", name, COLLECTIVES)
    return COLLECTIVES[name]

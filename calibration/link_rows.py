"""What a fit of links takes: one row for each (collective, ranks, nodes, size) with its repeats, checked and gathered.

A row that cannot be a measurement ends the fit with one line that names it. What is odd but possible (repeats that
contradict one another, too few sizes) becomes a note, because a log with one stalled message is still worth having.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from calibration.link_values import CurveKey
from oracle.errors import BadInput
from oracle.estimate import Floats

CONTRADICTION = 1.5
"""Repeats of one size whose largest and smallest time differ by more than this factor contradict one another."""

FEW_SIZES = 4
"""Below this many sizes nothing but the Hockney model can be fitted, and nothing be left out to test it."""

CLIFF_SLOPE = 1.5
"""d ln(time) / d ln(bytes) above this is more than bandwidth explains: congestion, or a worse algorithm."""

ALIASES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "p2p": "send_recv",
    "bcast": "broadcast",
}
"""Other names of the same collectives, as logs and plans write them. Logs measure send and receive as an exchange
around a ring, which is what halos do and a little more than one way between two stages."""


def canonical(collective: str) -> str:
    """The one name of a collective.

    >>> canonical("alltoall"), canonical("AllReduce"), canonical("broadcast")
    ('all_to_all', 'all_reduce', 'broadcast')
    """
    name = collective.strip().lower()
    return ALIASES.get(name.replace("_", ""), name)


@dataclass(frozen=True)
class LinkRow:
    """The repeats of one message.

    Args:
        key: what it belongs to.
        bytes: the whole buffer, as nccl-tests counts it.
        seconds: the repeats, each the time of one collective; in place and out of place may both be given.
        concurrent: groups that ran it on the same links at the same time.
        algorithm: NCCL's own `ALGORITHM/PROTOCOL`, where a log names it.
        rank_seconds: the time of each rank, where they were kept apart.

    Raises:
        BadInput: no repeats, or a size, count or time that no measurement has.
    """

    key: CurveKey
    bytes: float
    seconds: tuple[float, ...]
    concurrent: int = 1
    algorithm: str = ""
    rank_seconds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        where = f"{self.key.text}, {self.bytes:g} bytes"
        if self.key.ranks < 2 or self.key.nodes < 0 or self.concurrent < 1:
            raise BadInput(f"{where}: a collective has at least 2 ranks and 1 group, and nodes are not negative")
        if self.key.nodes > self.key.ranks:
            raise BadInput(f"{where}: {self.key.ranks} ranks cannot sit on {self.key.nodes} nodes")
        if not (math.isfinite(self.bytes) and self.bytes > 0):
            raise BadInput(f"{where}: a message has more than zero bytes")
        if not self.seconds:
            raise BadInput(f"{where}: no times")
        for second in (*self.seconds, *self.rank_seconds):
            if not (math.isfinite(second) and second > 0):
                raise BadInput(f"{where}: a time of {second:g} s; times are positive numbers of seconds")


@dataclass(frozen=True)
class Series:
    """The rows of one key, gathered by size; arrays of shape (n,), sizes ascending.

    Args:
        labels: the algorithm of each size; empty texts where unknown.
        repeat_log_sd: spread of repeats, as `LinkCurve` has it.
        rank_ratio: slowest over median rank, as `LinkCurve` has it.
    """

    key: CurveKey
    sizes: Floats
    seconds: Floats
    labels: tuple[str, ...]
    repeat_log_sd: float | None
    rank_ratio: float | None


def gather(rows: Iterable[LinkRow]) -> tuple[dict[tuple[CurveKey, int], Series], list[str]]:
    """The series of each (key, concurrent groups), and notes on what is odd about them.

    Repeats of one size are taken at their median, also when they come in several rows.
    """
    by_key: dict[tuple[CurveKey, int], dict[float, list[LinkRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_key[(row.key, row.concurrent)][row.bytes].append(row)
    notes: list[str] = []
    found = {(key, concurrent): _series(key, sizes, notes) for (key, concurrent), sizes in by_key.items()}
    return found, notes


def _series(key: CurveKey, by_size: dict[float, list[LinkRow]], notes: list[str]) -> Series:
    sizes = sorted(by_size)
    repeats = [np.array([second for row in by_size[size] for second in row.seconds]) for size in sizes]
    seconds = np.array([float(np.median(values)) for values in repeats])
    worst = max(float(values.max() / values.min()) for values in repeats)
    if worst > CONTRADICTION:
        notes.append(f"{key.text}: repeats of one size differ by a factor of {worst:.2g}; their median is taken")
    if len(sizes) < FEW_SIZES:
        notes.append(f"{key.text}: only {len(sizes)} sizes; {FEW_SIZES} are the least for pieces and a test of them")
    notes.extend(_cliffs(key, sizes, seconds))
    names = [{row.algorithm for row in by_size[size]} for size in sizes]
    labels = tuple(next(iter(name)) if len(name) == 1 else "" for name in names)
    return Series(key, np.array(sizes), seconds, labels, _repeat_sd(repeats), _rank_ratio(by_size))


def _cliffs(key: CurveKey, sizes: list[float], seconds: Floats) -> list[str]:
    """Notes on sizes from which time grows faster than any bandwidth explains."""
    steps = zip(pairwise(sizes), pairwise(seconds), strict=True)
    steep = [a for (a, b), (s, t) in steps if math.log(t / s) > max(CLIFF_SLOPE * math.log(b / a), 0.7)]
    if not steep:
        return []
    places = ", ".join(f"{size:.3g}" for size in steep)
    return [f"{key.text}: time grows faster than the message above {places} bytes (congestion or a worse algorithm)"]


def _repeat_sd(repeats: list[Floats]) -> float | None:
    """Pooled standard deviation of ln(seconds) of sizes that were repeated."""
    several = [values for values in repeats if len(values) > 1]
    if not several:
        return None
    squares = sum(float(np.var(np.log(values)) * len(values)) for values in several)
    return math.sqrt(squares / sum(len(values) - 1 for values in several))


def _rank_ratio(by_size: dict[float, list[LinkRow]]) -> float | None:
    apart = [row.rank_seconds for rows in by_size.values() for row in rows if len(row.rank_seconds) > 1]
    if not apart:
        return None
    return float(np.median([max(times) / float(np.median(times)) for times in apart]))

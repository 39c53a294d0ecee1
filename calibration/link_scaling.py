"""How times grow with ranks between nodes. NumPy only: fit and price share it.

Between measured scales ln(t) is interpolated in ln(p). Beyond the largest, with at least three scales between nodes,
the price is the median of three laws that fail differently:

- a + b log2(p) for each size, non-negative, relative weights: trees;
- a power of p from the growth of the last two doublings, halved, since growth slows down: whatever the data do;
- the joint law over sizes and ranks, the fastest of a ring, a tree and a low-latency tree: physics (`SHAPES`).

On ABCI's V100 all_reduce from 32 to 128 ranks the three were wrong by 27, 15 and 18 %, their median by 18 %; from 64
by 23, 11 and 17 %, the median by 12 %; on ten environments of Alps from 8 to 16 nodes by 32, 34 and 30 %, the median
by 22 %. Alpha and beta linear in log2(p) were wrong by 34 to 43 %. General normal forms (powers times logarithms) go
wrong by hundreds of percent with three to five scales and are not offered. With fewer than three scales the last one
stands, and the interval says so. A node's inside is another machine than what lies between nodes, so no law crosses
that boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from calibration.link_values import Branch
from oracle.estimate import Floats

LEAST_SCALES = 3
"""Scales between nodes that a law in ranks needs."""

SHRINK = 0.5
"""How much of the growth of the last doublings is taken to go on."""

Shape = Callable[[Floats, Floats], Floats]


def _log_nodes(ranks: Floats, nodes: Floats) -> Floats:
    del ranks
    rounds: Floats = np.log2(nodes)
    return rounds


def _others(ranks: Floats, nodes: Floats) -> Floats:
    del nodes
    others: Floats = ranks - 1
    return others


def _ring_share(ranks: Floats, nodes: Floats) -> Floats:
    del nodes
    share: Floats = (ranks - 1) / ranks
    return share


def _whole(ranks: Floats, nodes: Floats) -> Floats:
    del nodes
    return np.ones_like(ranks)


def _twice(shape: Shape) -> Shape:
    def doubled(ranks: Floats, nodes: Floats) -> Floats:
        both: Floats = 2 * shape(ranks, nodes)
        return both

    return doubled


_GATHER: tuple[tuple[str, Shape, Shape], ...] = (("ring", _others, _ring_share), ("tree", _log_nodes, _whole))

SHAPES: dict[str, tuple[tuple[str, Shape, Shape], ...]] = {
    # Ring and double binary tree as NCCL counts them (src/graph/tuning.cc); the low-latency tree moves flags with data.
    "all_reduce": (
        ("ring", _twice(_others), _twice(_ring_share)),
        ("tree", _twice(_log_nodes), _twice(_whole)),
        ("low_latency", _twice(_log_nodes), _whole),
    ),
    "all_gather": _GATHER,
    "reduce_scatter": _GATHER,
    "all_to_all": (("pairwise", _others, _ring_share), ("tree", _log_nodes, _whole)),
    "broadcast": (("chain", _others, _whole), ("tree", _log_nodes, _whole)),
}
"""Collective -> algorithms, each with its rounds and the share of the buffer on the wire, as functions of (p, N)."""


def branch_terms(collective: str, ranks: Floats, nodes: Floats, sizes: Floats) -> Floats:
    """What the constants of each branch multiply: 1, rounds, share times bytes; shape (branches, 3, n)."""
    ones = np.ones_like(sizes)
    terms = [(ones, rounds(ranks, nodes), share(ranks, nodes) * sizes) for _, rounds, share in SHAPES[collective]]
    return np.array([np.broadcast_arrays(*term) for term in terms])


def joint_law(collective: str, branches: Sequence[Branch], ranks: Floats, nodes: Floats, sizes: Floats) -> Floats:
    """ln(seconds) of the fastest branch at n (ranks, nodes, sizes), shape (n,)."""
    constants = np.array([[branch.start_s, branch.round_s, branch.s_per_byte] for branch in branches])
    times = np.einsum("bk,bkn->bn", constants, branch_terms(collective, ranks, nodes, sizes))
    fastest: Floats = np.log(times.min(axis=0))
    return fastest


def log_law(log_s: Floats, ranks: Floats, wanted: float) -> Floats:
    """The law a + b log2(p), both non-negative and fitted relatively, for each of n sizes; (k, n), (k,) -> (n,)."""
    weight, rounds = np.exp(-log_s), np.log2(ranks)[:, None]
    a, b, c = (weight**2).sum(axis=0), (weight**2 * rounds).sum(axis=0), ((weight * rounds) ** 2).sum(axis=0)
    d, e = weight.sum(axis=0), (weight * rounds).sum(axis=0)
    determinant = a * c - b * b
    start, growth = (c * d - b * e) / determinant, (a * e - b * d) / determinant
    flat, steep = growth < 0, start < 0
    start, growth = np.where(flat, d / a, start), np.where(flat, 0.0, growth)
    start, growth = np.where(steep, 0.0, start), np.where(steep, e / c, growth)
    law: Floats = np.log(start + growth * np.log2(wanted))
    return law


def power_law(log_s: Floats, ranks: Floats, wanted: float) -> Floats:
    """The halved growth of the last two doublings carried on; (k, n), (k,) -> (n,)."""
    growth = np.diff(log_s, axis=0) / np.diff(np.log(ranks))[:, None]
    power = np.clip(SHRINK * growth[-2:].mean(axis=0), 0.0, 1.0)
    carried: Floats = log_s[-1] + power * np.log(wanted / ranks[-1])
    return carried


def between_scales(log_s: Floats, ranks: Floats, wanted: float) -> Floats:
    """ln(t) interpolated in ln(p) inside the measured scales, the nearest scale outside; (k, n), (k,) -> (n,)."""
    above = int(np.clip(np.searchsorted(ranks, wanted), 1, max(len(ranks) - 1, 1)))
    if len(ranks) == 1 or wanted <= ranks[0] or wanted >= ranks[-1]:
        nearest: Floats = log_s[0] if wanted <= ranks[0] else log_s[-1]
        return nearest
    share = np.log(wanted / ranks[above - 1]) / np.log(ranks[above] / ranks[above - 1])
    mixed: Floats = (1 - share) * log_s[above - 1] + share * log_s[above]
    return mixed

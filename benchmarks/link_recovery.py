"""Recover the constants of simulated fabrics from noisy times: `python benchmarks/link_recovery.py [runs] [repeats]`.

Every fabric is a rule from (ranks, nodes, bytes) to seconds with known constants. Each time gets log-normal noise of
10 %; three repeats of every power of two from 64 B to 1 GiB go through the same fit as real ones. Printed are the
median over seeded runs of |fitted / true - 1| of every constant, and how often the number of affine pieces is right.

With one repeat (100 runs) every constant is within 9 % and 99 % of the curves have the right number of pieces. The
largest error, 8.7 %, is that of the slope of the first of three protocols, which shapes the time of two sizes only. No
fit does better: one that knew which sizes belong to that piece would be wrong by 9.1 % (Cramer-Rao, in the median), the
same within what 100 runs tell.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from calibration.link_rows import LinkRow
from calibration.link_values import CurveKey, LinkCalibration
from calibration.links import fit_links

NOISE = 0.1
REPEATS = 3
SIZES = tuple(64.0 * 2**doubling for doubling in range(25))

Rule = Callable[[int, int, float], float]


@dataclass(frozen=True)
class SimulatedFabric:
    """A fabric whose constants are known.

    Args:
        name: what it is.
        places: the (ranks, nodes) that are measured.
        seconds: its rule, of (ranks, nodes, bytes).
        truth: name -> the constant.
        fitted: the same constants read off a calibration.
        pieces: how many affine pieces every curve has.
    """

    name: str
    places: tuple[tuple[int, int], ...]
    seconds: Rule
    truth: Mapping[str, float]
    fitted: Callable[[LinkCalibration], Mapping[str, float]]
    pieces: int

    def measured(self, rng: np.random.Generator, noise: float = NOISE, repeated: int = REPEATS) -> list[LinkRow]:
        """Noisy repeats for every size and place."""
        rows = []
        for ranks, nodes in self.places:
            for size in SIZES:
                repeats = self.seconds(ranks, nodes, size) * np.exp(noise * rng.standard_normal(repeated))
                rows.append(LinkRow(CurveKey("all_reduce", ranks, nodes, "float"), size, tuple(map(float, repeats))))
        return rows


def ring(ranks: int, size: float, hop_s: float, s_per_byte: float) -> float:
    """Seconds of a ring all_reduce: 2 (p - 1) hops and 2 (p - 1) / p of the buffer on the wire."""
    return 2 * (ranks - 1) * hop_s + 2 * (ranks - 1) / ranks * size * s_per_byte


def tree(nodes: int, size: float, start_s: float, hop_s: float, s_per_byte: float) -> float:
    """Seconds of a double binary tree between nodes: up and down."""
    return start_s + 2 * float(np.log2(nodes)) * hop_s + 2 * size * s_per_byte


def _only_curve(calibration: LinkCalibration) -> dict[str, float]:
    """Alpha and seconds per byte of the pieces of the only curve, by number."""
    pieces = calibration.curves[0].pieces
    alphas = {f"alpha {number}": piece.alpha_s for number, piece in enumerate(pieces)}
    return alphas | {f"beta {number}": piece.s_per_byte for number, piece in enumerate(pieces)}


def _eight_ring(calibration: LinkCalibration) -> dict[str, float]:
    piece = calibration.curves[0].pieces[0]
    return {"hop": piece.alpha_s / 14, "s_per_byte": piece.s_per_byte / 1.75}


def _eight_tree(calibration: LinkCalibration) -> dict[str, float]:
    piece = calibration.curves[0].pieces[0]
    return {"start and hops": piece.alpha_s, "s_per_byte": piece.s_per_byte / 2}


def _two_tiers(calibration: LinkCalibration) -> dict[str, float]:
    """The inside of a node from its curve of 8 ranks, what lies between from the joint law."""
    inside = next(curve for curve in calibration.curves if curve.key.ranks == 8 and curve.key.nodes == 1).pieces[0]
    branches = {branch.name: branch for branch in calibration.laws[0].branches}
    return {
        "inside hop": inside.alpha_s / 14,
        "inside s_per_byte": inside.s_per_byte / 1.75,
        "between hop": branches["ring"].round_s,
        "between s_per_byte": branches["ring"].s_per_byte,
    }


def _two_tier_seconds(ranks: int, nodes: int, size: float) -> float:
    hop_s, s_per_byte = (3e-6, 5e-12) if nodes == 1 else (8e-6, 4e-11)
    return ring(ranks, size, hop_s, s_per_byte)


_LL, _LL128, _SIMPLE = (1e-5, 1e-9), (3e-5, 1e-10), (1.5e-4, 1e-11)


def _fastest(*protocols: tuple[float, float]) -> Rule:
    return lambda ranks, nodes, size: min(alpha + beta * size for alpha, beta in protocols)


def _constants(*protocols: tuple[float, float]) -> dict[str, float]:
    alphas = {f"alpha {number}": alpha for number, (alpha, _) in enumerate(protocols)}
    return alphas | {f"beta {number}": beta for number, (_, beta) in enumerate(protocols)}


FABRICS = (
    SimulatedFabric(
        "ring of 8",
        ((8, 1),),
        lambda ranks, nodes, size: ring(ranks, size, 2e-6, 5e-12),
        {"hop": 2e-6, "s_per_byte": 5e-12},
        _eight_ring,
        1,
    ),
    SimulatedFabric(
        "tree over 8 nodes",
        ((32, 8),),
        lambda ranks, nodes, size: tree(nodes, size, 1e-5, 7e-6, 4e-11),
        {"start and hops": 5.2e-5, "s_per_byte": 4e-11},
        _eight_tree,
        1,
    ),
    SimulatedFabric(
        "two tiers, rings",
        ((2, 1), (4, 1), (8, 1), (16, 2), (32, 4), (64, 8), (128, 16)),
        _two_tier_seconds,
        {"inside hop": 3e-6, "inside s_per_byte": 5e-12, "between hop": 8e-6, "between s_per_byte": 4e-11},
        _two_tiers,
        1,
    ),
    SimulatedFabric(
        "switch of protocol",
        ((8, 1),),
        _fastest(_LL, _SIMPLE),
        _constants(_LL, _SIMPLE),
        _only_curve,
        2,
    ),
    SimulatedFabric(
        "two switches of protocol",
        ((8, 1),),
        _fastest(_LL, _LL128, _SIMPLE),
        _constants(_LL, _LL128, _SIMPLE),
        _only_curve,
        3,
    ),
)


@dataclass(frozen=True)
class Recovery:
    """What many seeded runs of one fabric gave.

    Args:
        errors: constant -> median of |fitted / true - 1| over the runs that found it.
        pieces_right: share of curves with the right number of pieces.
    """

    errors: Mapping[str, float]
    pieces_right: float


def recover(fabric: SimulatedFabric, runs: int, noise: float = NOISE, repeated: int = REPEATS) -> Recovery:
    """Fit `runs` seeded simulations of a fabric; a run that did not find a constant counts as wrong by 100 %."""
    errors: dict[str, list[float]] = defaultdict(list)
    right: list[bool] = []
    for seed in range(runs):
        calibration = fit_links(fabric.measured(np.random.default_rng(seed), noise, repeated), "simulated", fabric.name)
        fitted = fabric.fitted(calibration)
        for name, true in fabric.truth.items():
            errors[name].append(abs(fitted.get(name, 0.0) / true - 1))
        right.extend(len(curve.pieces) == fabric.pieces for curve in calibration.curves)
    return Recovery({name: float(np.median(values)) for name, values in errors.items()}, float(np.mean(right)))


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    repeated = int(sys.argv[2]) if len(sys.argv) > 2 else REPEATS
    for fabric in FABRICS:
        found = recover(fabric, runs, repeated=repeated)
        constants = ", ".join(f"{name} {100 * error:.1f} %" for name, error in found.errors.items())
        print(f"{fabric.name}: {constants}; pieces right in {100 * found.pieces_right:.0f} %")


if __name__ == "__main__":
    main()

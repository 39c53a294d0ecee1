"""Growth with ranks, recovery of known fabrics, and the public measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.collectives import beyond, load, score
from benchmarks.link_recovery import FABRICS, SimulatedFabric, recover
from calibration.link_rank_fit import fit_branches
from calibration.link_scaling import SHAPES, between_scales, branch_terms, joint_law, log_law, power_law
from calibration.link_values import Branch, LinkCurve
from calibration.links import fit_links

RANKS = np.array([8.0, 16.0, 32.0])


def test_a_tree_is_carried_on_exactly_by_the_logarithmic_law() -> None:
    # 1 + 2 log2 p at 8, 16, 32 is 7, 9, 11; at 128 it is 15.
    log_s = np.log([[7.0], [9.0], [11.0]])
    assert np.exp(log_law(log_s, RANKS, 128)) == pytest.approx([15.0])


def test_the_logarithmic_law_never_falls() -> None:
    assert np.exp(log_law(np.log([[3.0], [2.0], [1.0]]), RANKS, 128)) <= 3.0
    assert np.exp(log_law(np.log([[2.0], [2.0], [2.0]]), RANKS, 128)) == pytest.approx([2.0])


def test_half_of_the_last_growth_goes_on() -> None:
    # t doubles with p; half of the power 1 is a square root: four times the ranks take twice the time.
    assert np.exp(power_law(np.log([[1.0], [2.0], [4.0]]), RANKS, 128)) == pytest.approx([8.0])


def test_between_scales_is_exact_at_scales_and_flat_outside() -> None:
    log_s = np.array([[0.0], [1.0], [3.0]])
    found = [float(between_scales(log_s, RANKS, ranks)[0]) for ranks in (4, 8, 16, 32, 64)]
    assert found == pytest.approx([0.0, 0.0, 1.0, 3.0, 3.0])
    assert between_scales(log_s[:1], RANKS[:1], 64) == pytest.approx([0.0])


@pytest.mark.parametrize("collective", SHAPES)
def test_every_collective_has_laws_that_find_their_own_constants(collective: str) -> None:
    sizes = np.tile(64.0 * np.exp2(np.arange(25.0)), 4)
    ranks = np.repeat([8.0, 16.0, 32.0, 64.0], 25)
    true = [Branch(name, 1e-5, 3e-6, 4e-11) for name, _, _ in SHAPES[collective]]
    seconds = np.exp(joint_law(collective, true, ranks, ranks / 4, sizes))
    constants = fit_branches(branch_terms(collective, ranks, ranks / 4, sizes), seconds)
    again = [Branch(name, *map(float, row)) for (name, _, _), row in zip(SHAPES[collective], constants, strict=True)]
    wider = joint_law(collective, again, 2 * ranks, ranks / 2, sizes)
    assert wider == pytest.approx(joint_law(collective, true, 2 * ranks, ranks / 2, sizes), abs=0.05)


def test_two_scales_between_nodes_carry_no_law() -> None:
    rng = np.random.default_rng(0)
    rows = [row for row in FABRICS[2].measured(rng) if row.key.nodes in (1, 2, 4)]
    assert fit_links(rows, "two", "fabric").laws == ()


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: fabric.name)
def test_constants_of_simulated_fabrics_are_found_again(fabric: SimulatedFabric) -> None:
    found = recover(fabric, runs=5)
    assert all(error <= 0.15 for error in found.errors.values()), found
    assert found.pieces_right >= 0.8


def test_exact_times_give_exact_constants() -> None:
    found = recover(FABRICS[3], runs=1, noise=0.0)
    assert all(error < 0.01 for error in found.errors.values())
    assert found.pieces_right == 1


def test_public_fabrics_are_predicted_as_well_as_the_benchmark_says(shared: Path) -> None:
    fabrics = load(shared / "data" / "collectives.csv.gz")
    for fabric, rows in fabrics.items():
        if fabric[:2] in (("aiconfigurator", "a100_sxm"), ("snellius", "NVIDIA H100")):
            found = score(fabric, rows)
            assert found is not None
            assert found.errors["price"].mean() <= 0.07
            assert found.errors["price"].mean() < found.errors["alpha-beta"].mean()
            assert found.hit_80.mean() >= 0.65


@pytest.mark.parametrize("top", [32, 64])
def test_abci_is_predicted_at_128_ranks_from_fewer(shared: Path, top: int) -> None:
    fabrics = load(shared / "data" / "collectives.csv.gz")
    rows = [
        item.row
        for fabric, items in fabrics.items()
        for item in items
        if fabric[0] == "abci" and item.row.key.collective == "all_reduce"
    ]
    errors = beyond(rows, top, 128)
    assert errors["price"].mean() <= 0.18
    assert errors["price"].mean() < errors["alpha-beta in log2 p"].mean()


def test_curves_of_a_simulated_series_know_how_good_they_are() -> None:
    curves: tuple[LinkCurve, ...] = fit_links(FABRICS[0].measured(np.random.default_rng(3)), "ring", "fabric").curves
    error = curves[0].held_out_error
    assert error is not None
    assert 0.02 < error < 0.2

"""The network half of a calibration as the oracle's timer, and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from calibration.link_pricing import LinkTimer
from calibration.link_rows import LinkRow
from calibration.link_values import (
    AffinePiece,
    Contention,
    CurveKey,
    LinkCalibration,
    LinkCurve,
    Spread,
)
from calibration.links import fit_links
from oracle.errors import BadInput, NotCalibrated, OutOfRange, UnknownName
from oracle.estimate import DRAWS
from oracle.pricing import Method, Transfer

SIZES = tuple(64.0 * 2**doubling for doubling in range(25))
SPREAD = Spread(0.5, 0.8, 100)


def affine(collective: str, ranks: int, nodes: int, alpha_s: float, s_per_byte: float, job: str = "") -> LinkCurve:
    """A curve that is one affine piece."""
    piece = AffinePiece(alpha_s, s_per_byte)
    key = CurveKey(collective, ranks, nodes, "float", "env", job)
    return LinkCurve(key, SIZES, tuple(piece.seconds(size) for size in SIZES), piece, (piece,))


def calibration(*curves: LinkCurve) -> LinkCalibration:
    return LinkCalibration("net", "four nodes of four", curves, spread=SPREAD)


INSIDE = affine("all_reduce", 4, 1, 1e-5, 1e-10)


def seconds(known: LinkCalibration, *transfers: Transfer) -> list[float]:
    return [float(second) for second in LinkTimer(known).price(transfers).middle_s]


def test_a_measured_transfer_is_priced_as_measured_and_messages_add_up() -> None:
    prices = LinkTimer(calibration(INSIDE)).price(
        [Transfer("all_reduce", 2.0**20, 4), Transfer("all_reduce", 2.0**20, 4, messages=3)]
    )
    one = 1e-5 + 2**20 * 1e-10
    assert prices.middle_s == pytest.approx([one, 3 * one])
    assert prices.methods == (Method.MEASURED, Method.MEASURED)
    assert prices.draws_s[1] == pytest.approx(3 * prices.draws_s[0])


def test_methods_say_how_a_price_is_known() -> None:
    asked = [Transfer("all_reduce", size, 4) for size in (2.0**20, 3e6, 2.0**33)]
    assert LinkTimer(calibration(INSIDE)).price(asked).methods == (
        Method.MEASURED,
        Method.FITTED,
        Method.EXTRAPOLATED,
    )


def test_one_device_and_no_bytes_take_no_time() -> None:
    asked = [Transfer("all_reduce", 1e6, 1), Transfer("all_reduce", 0.0, 4)]
    assert seconds(calibration(INSIDE), *asked) == [0.0, 0.0]
    assert seconds(calibration(INSIDE)) == []


def test_draws_have_the_measured_interval_and_repeat() -> None:
    # One piece and three readings that agree: doubt is sqrt(0.02), so the half-width is 0.5 * sqrt(0.02) = 7.1 %.
    asked = [Transfer("all_reduce", 3e6, 4)]
    first, again = (LinkTimer(calibration(INSIDE)).price(asked) for _ in range(2))
    assert first.draws_s.shape == (1, DRAWS)
    assert (first.draws_s == again.draws_s).all()
    low, high = np.quantile(np.log(first.draws_s[0] / first.middle_s[0]), [0.1, 0.9])
    assert (high - low) / 2 == pytest.approx(0.5 * np.sqrt(0.02), rel=0.2)


def test_intervals_widen_outside_what_was_measured() -> None:
    prices = LinkTimer(calibration(INSIDE)).price([Transfer("all_reduce", 2.0**s, 4) for s in (30, 33, 36)])
    spread = np.log(prices.draws_s).std(axis=1)
    assert spread[0] < spread[1] < spread[2]


def test_between_scales_the_time_is_interpolated_and_beyond_few_scales_it_stands() -> None:
    known = calibration(affine("all_reduce", 8, 2, 2e-5, 1e-10), affine("all_reduce", 32, 8, 8e-5, 4e-10))
    asked = [Transfer("all_reduce", 2.0**20, group, tier=1) for group in (8, 16, 32, 64)]
    prices = LinkTimer(known).price(asked)
    assert prices.middle_s[1] == pytest.approx(np.sqrt(prices.middle_s[0] * prices.middle_s[2]))
    assert prices.middle_s[3] == prices.middle_s[2]
    assert prices.methods == (Method.MEASURED, Method.FITTED, Method.MEASURED, Method.EXTRAPOLATED)
    assert np.log(prices.draws_s[3]).std() > 2 * np.log(prices.draws_s[2]).std()


def test_a_node_is_never_read_off_what_lies_between_nodes() -> None:
    known = calibration(affine("all_reduce", 8, 2, 2e-5, 1e-9))
    with pytest.raises(NotCalibrated, match="no all_reduce of 4 devices inside one node"):
        seconds(known, Transfer("all_reduce", 1e6, 4, tier=0))
    with pytest.raises(NotCalibrated, match="between nodes; it has all_reduce inside one node"):
        seconds(calibration(INSIDE), Transfer("all_reduce", 1e6, 8, tier=1))


def test_full_nodes_are_composed_of_the_inside_and_one_device_of_each() -> None:
    # 1 MiB over 4 nodes of 4: inside 1 MiB, and 1/4 MiB on each of four rails at once, which share the wire: factor 4.
    rails = affine("all_reduce", 4, 4, 5e-5, 1e-9)
    prices = LinkTimer(calibration(INSIDE, rails)).price([Transfer("all_reduce", 2.0**20, 16, tier=1)])
    inside, between = 1e-5 + 2**20 * 1e-10, 5e-5 + 4 * 2**18 * 1e-9
    assert prices.middle_s[0] == pytest.approx(inside + between)
    assert prices.methods == (Method.EXTRAPOLATED,)


def test_measured_contention_stretches_bytes_and_not_alpha() -> None:
    rails = affine("all_reduce", 4, 4, 5e-5, 1e-9)
    known = replace(calibration(INSIDE, rails), contention=(Contention(True, 4, 2.0),))
    alone, four, two = seconds(
        known, *(Transfer("all_reduce", 2.0**20, 4, tier=1, concurrent=groups) for groups in (1, 4, 2))
    )
    assert alone == pytest.approx(5e-5 + 2**20 * 1e-9)
    assert four == pytest.approx(5e-5 + 2 * 2**20 * 1e-9)
    # From 1 alone to 2 among four in a straight line: two groups stretch by 1 + 1/3.
    assert two == pytest.approx(5e-5 + 4 / 3 * 2**20 * 1e-9)


def test_contention_is_fitted_from_rows_taken_in_company() -> None:
    key = CurveKey("all_reduce", 4, 4, "float")
    alone = [LinkRow(key, size, (5e-5 + 1e-9 * size,)) for size in SIZES]
    company = [LinkRow(key, size, (5e-5 + 2.5e-9 * size,), concurrent=4) for size in SIZES]
    (found,) = fit_links([*alone, *company], "net", "fabric").contention
    assert (found.between_nodes, found.concurrent) == (True, 4)
    assert found.factor == pytest.approx(2.5, rel=0.01)


def test_jobs_at_one_scale_are_averaged_and_widen_the_price() -> None:
    one, two = (affine("all_reduce", 8, 2, alpha, 1e-10, job) for alpha, job in ((1e-5, "a"), (4e-5, "b")))
    asked = [Transfer("all_reduce", 64.0, 8, tier=1)]
    alone, both = (LinkTimer(calibration(*curves)).price(asked) for curves in ((one,), (one, two)))
    assert both.middle_s[0] == pytest.approx(2e-5, rel=0.01)
    assert np.log(both.draws_s).std() > 3 * np.log(alone.draws_s).std()


def test_an_environment_has_to_be_chosen_where_there_are_several() -> None:
    other = replace(INSIDE, key=replace(INSIDE.key, environment="other"))
    known = calibration(INSIDE, other)
    with pytest.raises(BadInput, match="holds 2 environments; choose one: env, other"):
        LinkTimer(known)
    with pytest.raises(UnknownName, match="unknown environment 'othr'; did you mean 'other'"):
        LinkTimer(known, "othr")
    assert LinkTimer(known, "other").price([Transfer("all_reduce", 64.0, 4)]).middle_s[0] > 0


@pytest.mark.parametrize(
    "wrong", [{"bytes": float("nan")}, {"bytes": -1.0}, {"group": 0}, {"concurrent": 0}, {"messages": -1}]
)
def test_impossible_transfers_are_refused(wrong: dict[str, float]) -> None:
    transfer = replace(Transfer("all_reduce", 1e6, 4), **wrong)  # type: ignore[arg-type]
    with pytest.raises(OutOfRange, match=f"the {next(iter(wrong))} of a all_reduce"):
        seconds(calibration(INSIDE), transfer)


def test_a_calibration_goes_through_json_and_prices_the_same() -> None:
    keys = [CurveKey("all_reduce", 4 * nodes, nodes, "float") for nodes in (1, 2, 4, 8)]
    rows = [
        LinkRow(key, size, (1e-5 * key.nodes + 1e-10 * size, 1.1e-5 * key.nodes + 1e-10 * size))
        for key in keys
        for size in SIZES[::4]
    ]
    known = fit_links(rows, "net", "fabric")
    assert known.laws
    back = LinkCalibration.from_dict(json.loads(json.dumps(known.to_dict())))
    assert back == known
    asked = [Transfer("all_reduce", 3e6, group, tier=1) for group in (8, 24, 64)]
    assert (LinkTimer(back).price(asked).draws_s == LinkTimer(known).price(asked).draws_s).all()


@pytest.mark.parametrize(
    "spoil",
    [
        {"curves": []},
        {"curves": [{}]},
        {"curves": None},
        {"spread": {"half_80": 1}},
        {"spread": {"half_80": "wide", "half_90": 1, "residuals": 0}},
        {"contention": [{"between_nodes": True, "concurrent": 1, "factor": 2.0}]},
    ],
)
def test_json_that_is_no_calibration_is_refused(spoil: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        LinkCalibration.from_dict({**calibration(INSIDE).to_dict(), **spoil})


def test_pricing_needs_numpy_alone() -> None:
    code = "import sys, calibration.link_pricing; print({'scipy', 'sklearn', 'torch'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"

"""Overlap factors, contention intervals and the framework's overhead: fitted, stored, used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from calibration.link_overlap import fit_overheads, fit_overlap, slowdown_of
from calibration.link_pricing import LinkTimer
from calibration.link_rows import LinkRow
from calibration.link_sources import key_of
from calibration.link_values import (
    AffinePiece,
    Contention,
    CurveKey,
    LinkCalibration,
    LinkCurve,
    Measured,
    Overlap,
)
from calibration.links import fit_links
from oracle.errors import BadInput
from oracle.pricing import NO_SLOWDOWN, Transfer
from profiler.collectives.sides import COLLECTIVE_ALONE, COLLECTIVE_BESIDE, KERNEL_ALONE, KERNEL_BESIDE
from profiler.measurement import Measurement
from service.networks import named_constants

MakeMeasurement = Callable[..., Measurement]
SIZES = tuple(2.0**doubling for doubling in range(6, 31, 2))
MINE = {"of_kernels": Measured(1.2, 1.1, 1.3, 9), "of_collective": Measured(1.5, 1.4, 1.7, 9)}
OVERLAP = Overlap("all_reduce", 4, 1, "", "matmul 256", **MINE)


def visit(make: MakeMeasurement, at: str, kernel: float, collective: float, **case: object) -> list[Measurement]:
    """The four sides of one visit, with drift: the second sample is twice as slow on all sides."""
    times = {
        COLLECTIVE_ALONE: 1e-3,
        KERNEL_ALONE: 1e-4,
        COLLECTIVE_BESIDE: 1e-3 * collective,
        KERNEL_BESIDE: 1e-4 * kernel,
    }
    whole = {
        "collective": "all_reduce",
        "bytes": 2**20,
        "ranks": 4,
        "nodes": 1,
        "dtype": "fp32",
        "beside": "matmul 256",
    }
    return [
        make("r", micro="overlap", case={**whole, **case, "timed": side}, phase="all_reduce",
             device_s=(seconds, 2 * seconds, seconds), host_s=(), taken_at=at)
        for side, seconds in times.items()
    ]  # fmt: skip


def curve(form: str, alpha_s: float, collective: str = "send_recv", ranks: Sequence[int] = (4,)) -> list[LinkCurve]:
    piece = AffinePiece(alpha_s, 1e-10)
    keys = [CurveKey(collective, count, 1, "fp32", form=form) for count in ranks]
    return [LinkCurve(key, SIZES, tuple(map(piece.seconds, SIZES)), piece, (piece,)) for key in keys]


def test_factors_are_the_median_of_visits_and_free_of_drift(make_measurement: MakeMeasurement) -> None:
    factors = [(1.1, 1.4), (1.2, 1.5), (1.6, 1.9)]
    rows = [row for index, pair in enumerate(factors) for row in visit(make_measurement, f"t{index}", *pair)]
    (found,) = fit_overlap(rows)
    assert (found.collective, found.ranks, found.kernel) == ("all_reduce", 4, "matmul 256")
    assert found.of_kernels.value == pytest.approx(1.2)
    # Three visits: the interval is all of them.
    assert [found.of_collective.lo, found.of_collective.hi] == pytest.approx([1.4, 1.9])
    assert found.of_collective.n == 3


def test_a_visit_that_lacks_a_side_counts_for_nothing(make_measurement: MakeMeasurement) -> None:
    assert fit_overlap(visit(make_measurement, "t", 1.1, 1.2)[:3]) == ()


def test_kernels_ranks_and_sizes_are_kept_apart_or_pooled(make_measurement: MakeMeasurement) -> None:
    rows = [
        *visit(make_measurement, "a", 1.1, 1.2),
        *visit(make_measurement, "a", 1.3, 1.2, bytes=2**22),
        *visit(make_measurement, "a", 1.5, 1.2, beside="copy 64"),
        *visit(make_measurement, "a", 1.5, 1.2, ranks=8),
    ]
    found = {(item.ranks, item.kernel): item.of_kernels for item in fit_overlap(rows)}
    assert {key: value.n for key, value in found.items()} == {
        (4, "copy 64"): 1,
        (4, "matmul 256"): 2,
        (8, "matmul 256"): 1,
    }
    assert found[(4, "matmul 256")].value == pytest.approx(1.2)


def test_what_a_plan_has_decides_which_factors_it_gets() -> None:
    across = replace(OVERLAP, collective="all_gather", nodes=2, of_kernels=Measured(1.05, 1.05, 1.05, 5))
    inside = slowdown_of([OVERLAP, across], ["all_reduce"], False, "x")
    assert inside.kernels.middle == pytest.approx(1.2)
    assert slowdown_of([OVERLAP, across], ["all_gather"], True, "x").kernels.middle == pytest.approx(1.05)
    # Nothing of a broadcast was measured: both, and their difference widens the interval.
    both = slowdown_of([OVERLAP, replace(across, nodes=1)], ["broadcast"], False, "x").kernels
    assert both.middle == pytest.approx((1.2 * 1.05) ** 0.5)
    lo, hi = both.interval()
    assert hi - lo > inside.kernels.interval()[1] - inside.kernels.interval()[0]
    assert slowdown_of([], ["all_reduce"], False, "x") is NO_SLOWDOWN


def test_no_kernel_gets_faster_beside_a_transfer() -> None:
    noisy = replace(OVERLAP, of_kernels=Measured(0.97, 0.9, 1.05, 9))
    assert slowdown_of([noisy], ["all_reduce"], False, "x").kernels.middle == 1.0


def test_factors_are_rows_and_travel_with_the_network() -> None:
    known = LinkCalibration("net", "fabric", tuple(curve("", 1e-5)), overlap=(OVERLAP,))
    rows = {row.name: row for row in named_constants(known)}
    row = rows["overlap.all_reduce.4ranks.1nodes.matmul_256.of_collective"]
    assert (row.value, row.lo, row.hi, row.ranks) == (1.5, 1.4, 1.7, 4)
    again = LinkCalibration.from_dict(known.to_dict())
    assert again == known
    assert LinkTimer(again).slowdown([Transfer("all_reduce", 1e6, 4)]).transfers.middle == pytest.approx(1.5)


def test_a_network_from_before_overlap_is_read() -> None:
    values = LinkCalibration("net", "fabric", tuple(curve("", 1e-5))).to_dict()
    del values["overlap"], values["overheads"]
    for item in values["curves"]:
        del item["key"]["form"]
    assert LinkCalibration.from_dict(values).overlap == ()


def test_impossible_factors_are_refused() -> None:
    values = LinkCalibration("net", "fabric", tuple(curve("", 1e-5)), overlap=(OVERLAP,)).to_dict()
    values["overlap"][0]["of_kernels"]["lo"] = -1.0
    with pytest.raises(BadInput):
        LinkCalibration.from_dict(values)


def test_contention_has_an_interval_that_a_price_carries() -> None:
    key = CurveKey("all_reduce", 4, 4, "float")
    alone = [LinkRow(key, size, (5e-5 + 1e-9 * size,)) for size in SIZES]
    company = [
        LinkRow(key, size, (5e-5 + factor * 1e-9 * size,), concurrent=4)
        for size, factor in zip(SIZES, (2.0, 3.0) * 7, strict=False)
    ]
    known = fit_links([*alone, *company], "net", "fabric")
    (found,) = known.contention
    assert found.lo is not None
    assert found.hi is not None
    assert pytest.approx(found.lo, rel=0.02) == 2.0
    assert pytest.approx(found.hi, rel=0.02) == 3.0
    sharp = replace(known, contention=(Contention(True, 4, found.factor),))
    asked = [Transfer("all_reduce", 2.0**28, 4, tier=1, concurrent=4)]
    wide, narrow = (LinkTimer(each).price(asked).draws_s.std() for each in (known, sharp))
    assert wide > 2 * narrow


def test_the_pattern_and_the_spacing_are_a_form_and_no_environment(make_measurement: MakeMeasurement) -> None:
    case = {"collective": "p2p", "bytes": 64, "ranks": 2, "nodes": 1, "dtype": "fp32"}
    plain, spaced = (
        key_of(make_measurement("r", micro="collective", case={**case, **more}))
        for more in ({"pattern": "ring"}, {"pattern": "ring", "spacing": "pause 1 ms"})
    )
    assert plain.environment == spaced.environment
    assert (plain.form, spaced.form) == ("pattern=ring", "pattern=ring, spacing=pause 1 ms")


def test_a_plan_gets_the_form_most_like_training() -> None:
    def alpha(*forms: str) -> float:
        curves = tuple(one for index, form in enumerate(forms) for one in curve(form, 1e-5 * (index + 1)))
        prices = LinkTimer(LinkCalibration("n", "f", curves)).price([Transfer("p2p", 64.0, 4)])
        return round(float(prices.middle_s[0]) / 1e-5)

    assert alpha("", "spacing=pause 1 ms", "spacing=matmul 256") == 3
    assert alpha("pattern=one_way", "pattern=exchange") == 2
    assert alpha("api=cupy", "") == 2
    # More scales count for more than the form.
    many = (*curve("", 1e-5, ranks=(2, 4)), *curve("spacing=matmul 256", 2e-5))
    price = LinkTimer(LinkCalibration("n", "f", many)).price([Transfer("p2p", 64.0, 4)])
    assert price.middle_s[0] == pytest.approx(1e-5, rel=0.01)


def test_the_frameworks_overhead_is_the_difference_at_small_sizes() -> None:
    known = [*curve("", 3e-5, "all_reduce"), *curve("api=cupy", 1e-5, "all_reduce")]
    (found,) = fit_overheads(known)
    assert found.seconds.value == pytest.approx(2e-5)
    # 64 B, 256 B, 1 KiB and 4 KiB are small.
    assert found.seconds.n == 4
    rows = {row.name: row.value for row in named_constants(LinkCalibration("n", "f", tuple(known), overheads=(found,)))}
    assert rows["all_reduce.4ranks.1nodes.fp32.framework_s"] == pytest.approx(2e-5)
    elsewhere = [replace(one, key=replace(one.key, environment="nccl=2.19")) for one in known[1:]]
    assert fit_overheads([known[0], *elsewhere]) == ()

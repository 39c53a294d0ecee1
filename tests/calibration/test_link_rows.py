"""What the fit of links refuses, and what it says about rows that are odd."""

from __future__ import annotations

import math

import pytest

from calibration.link_rows import LinkRow, canonical, gather
from calibration.link_values import CurveKey
from calibration.links import fit_links
from oracle.errors import BadInput

KEY = CurveKey("all_reduce", 8, 1, "float")


def rows(*pairs: tuple[float, float], key: CurveKey = KEY) -> list[LinkRow]:
    return [LinkRow(key, size, (seconds,)) for size, seconds in pairs]


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1e-6, 0.0])
def test_a_time_that_is_no_positive_number_is_refused_by_name(seconds: float) -> None:
    with pytest.raises(BadInput, match=r"all_reduce of 8 ranks on 1 node, float, 64 bytes: a time of"):
        LinkRow(KEY, 64, (1e-5, seconds))


@pytest.mark.parametrize("size", [math.nan, -8, 0])
def test_a_size_that_is_no_positive_number_is_refused(size: float) -> None:
    with pytest.raises(BadInput, match="more than zero bytes"):
        LinkRow(KEY, size, (1e-5,))


def test_a_row_without_times_is_refused() -> None:
    with pytest.raises(BadInput, match="no times"):
        LinkRow(KEY, 64, ())


@pytest.mark.parametrize("key", [CurveKey("all_reduce", 1, 1), CurveKey("all_reduce", 2, 4), CurveKey("x", 2, -1)])
def test_ranks_that_cannot_be_are_refused(key: CurveKey) -> None:
    with pytest.raises(BadInput, match="ranks"):
        LinkRow(key, 64, (1e-5,))


def test_three_sizes_are_fitted_and_said_to_be_few() -> None:
    calibration = fit_links(rows((64, 1e-5), (1024, 1.1e-5), (2**20, 1e-3)), "few", "a fabric")
    assert len(calibration.curves[0].pieces) == 1
    assert "only 3 sizes" in calibration.notes[0]


def test_equal_sizes_are_repeats_and_no_curve() -> None:
    with pytest.raises(BadInput, match="no collective was measured at two sizes"):
        fit_links(rows((64, 1e-5), (64, 1.1e-5), (64, 1.2e-5)), "equal", "a fabric")


def test_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="no collective"):
        fit_links([], "empty", "a fabric")


def test_repeats_that_contradict_one_another_are_named_and_taken_at_their_median() -> None:
    gathered, notes = gather(rows((64, 1e-5), (64, 1e-5), (64, 3e-5), (128, 1e-5)))
    series = gathered[(KEY, 1)]
    assert series.seconds[0] == 1e-5
    assert any("differ by a factor of 3" in note for note in notes)


def test_spread_of_repeats_is_that_of_their_logarithms() -> None:
    # Two repeats a factor e apart: ln differs by 1, so the standard deviation is 1 / sqrt(2).
    gathered, _ = gather([LinkRow(KEY, 64, (1e-5, 1e-5 * math.e))])
    assert gathered[(KEY, 1)].repeat_log_sd == pytest.approx(1 / math.sqrt(2))


def test_slow_ranks_are_kept_as_a_ratio() -> None:
    gathered, _ = gather([LinkRow(KEY, 64, (3e-5,), rank_seconds=(1e-5, 1e-5, 3e-5))])
    assert gathered[(KEY, 1)].rank_ratio == pytest.approx(3.0)


def test_a_cliff_is_named_with_its_size() -> None:
    # Twice the message, eight times the time.
    _, notes = gather(rows((2**20, 1e-3), (2**21, 2e-3), (2**22, 1.6e-2), (2**23, 3.2e-2)))
    assert any("faster than the message above 2.1e+06 bytes" in note for note in notes)


@pytest.mark.parametrize(
    ("written", "name"), [("alltoall", "all_to_all"), ("all_to_all", "all_to_all"), ("sendrecv", "send_recv")]
)
def test_names_of_logs_become_one_name(written: str, name: str) -> None:
    assert canonical(written) == name


def test_environments_and_jobs_are_never_one_curve() -> None:
    keys = [CurveKey("all_reduce", 8, 1, "float", environment, job) for environment in "ab" for job in "xy"]
    measured = [row for key in keys for row in rows((64, 1e-5), (1024, 1.2e-5), key=key)]
    assert {curve.key for curve in fit_links(measured, "four", "a fabric").curves} == set(keys)

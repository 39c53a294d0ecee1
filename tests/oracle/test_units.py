"""Texts with a unit to SI values, and back."""

from __future__ import annotations

import pytest

from oracle.errors import BadInput
from oracle.units import (
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_bytes_per_s,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1B", 1.0), ("2kB", 2e3), ("1.5GB", 1.5e9), ("1GiB", 2.0**30), ("64 MiB", 2.0**26), ("8Gb", 1e9), ("1e3MB", 1e9)],
)
def test_sizes_are_read_in_bytes(text: str, expected: float) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("9us", 9e-6), ("9µs", 9e-6), ("9μs", 9e-6), ("500ns", 5e-7), ("2min", 120.0), ("1h", 3600.0)],
)
def test_durations_are_read_in_seconds(text: str, expected: float) -> None:
    assert parse_seconds(text) == pytest.approx(expected)


def test_bandwidths_are_read_in_bytes_per_second() -> None:
    assert parse_bytes_per_s("12.5GB/s") == 12.5e9
    assert parse_bytes_per_s("100Gb/s") == 12.5e9


@pytest.mark.parametrize("text", ["", "5", "GB", "5 parsecs", "1..2GB", "nanGB", "infGB", "1e999GB", "5GB/s", "5gb"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"'.*' is not"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["5GB", "5 GB / s", "5GB/h"])
def test_what_is_no_bandwidth_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not a bandwidth"):
        parse_bytes_per_s(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (1.5e-9, "1.5 ns"), (0.0123, "12.3 ms"), (59.0, "59 s"), (90.0, "1.5 min"), (86400.0 * 3, "3 d")],
)
def test_seconds_are_written_with_their_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_large_values_have_no_exponent_below_the_next_unit() -> None:
    assert format_bytes(1023 * 2**20) == "1023 MiB"
    assert format_bytes(1024 * 2**20) == "1 GiB"
    assert format_rate(9.996e11, "FLOP/s") == "1000 GFLOP/s"

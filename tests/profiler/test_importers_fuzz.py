"""Damaged logs: never another error than BadInput, never a number that its own row contradicts."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.errors import BadInput
from profiler.importers.base import ImportResult, Limits
from profiler.importers.collectives import BUS_FACTORS
from profiler.importers.files import import_file
from profiler.importers.nccl_lines import pieces

FOLDER = Path(__file__).parents[1] / "data" / "importers"
SAMPLES = sorted(path.name for path in FOLDER.iterdir() if path.name != "README.md")
TABLES = [name for name in SAMPLES if name.startswith("nccl_") and name.endswith(".txt") and "tuning" not in name]
LIMITS = Limits(file_bytes=1_000_000, line_bytes=10_000, value_bytes=100_000)
JUNK = (
    *("", "NaN", "-1", "--1", "1e999", "9" * 30, "9" * 400, "9" * 5000, "N/A", "XXX.XX", "²"),
    *("[0]", "0: ", "#", '"', "}", "]", ",,,", "\x1b[0m", "é"),
)

_edits = st.lists(
    st.tuples(
        st.sampled_from(("cut", "repeat", "swap", "junk", "digit", "truncate", "glue")),
        st.floats(0, 1, exclude_max=True),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(JUNK),
    ),
    min_size=1,
    max_size=6,
)


def damaged(text: str, edits: list[tuple[str, float, float, str]]) -> str:
    """The text after some accidents; the floats choose where."""
    for kind, first, second, junk in edits:
        lines = text.split("\n")
        i, j = int(first * len(lines)), int(second * len(lines))
        at = int(second * (len(lines[i]) + 1))
        if kind == "cut":
            del lines[i]
        elif kind == "repeat":
            lines.insert(j, lines[i])
        elif kind == "swap":
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == "junk":
            lines[i] = lines[i][:at] + junk + lines[i][at:]
        elif kind == "digit":
            digits = [match.start() for match in re.finditer(r"\d", lines[i])]
            if digits:
                k = digits[int(second * len(digits))]
                lines[i] = lines[i][:k] + str((int(lines[i][k]) + 1 + int(first * 97) % 9) % 10) + lines[i][k + 1 :]
        elif kind == "glue":
            lines[i : i + 2] = ["".join(lines[i : i + 2])]
        else:
            return "\n".join(lines[:i]) + lines[i][:at]
        text = "\n".join(lines)
    return text


def read(folder: Path, text: str) -> ImportResult | None:
    path = folder / "damaged"
    path.write_text(text, encoding="utf-8")
    with suppress(BadInput):
        return import_file(path, limits=LIMITS)
    return None


@pytest.mark.parametrize("name", SAMPLES)
@given(edits=_edits)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_read_or_refused(
    tmp_path: Path, name: str, edits: list[tuple[str, float, float, str]]
) -> None:
    result = read(tmp_path, damaged((FOLDER / name).read_text(encoding="utf-8"), edits))
    if result is None:
        return
    assert len(result.report.dropped) >= result.report.rows_dropped
    for measurement in result.measurements:
        assert all(0 < sample < 1e6 for sample in measurement.device_s)
        if measurement.micro == "collective":
            assert measurement.case["ranks"] >= 2
            assert measurement.case["bytes"] > 0


@pytest.mark.parametrize("name", TABLES)
@given(edits=_edits)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_number_is_taken_that_its_row_contradicts(
    tmp_path: Path, name: str, edits: list[tuple[str, float, float, str]]
) -> None:
    text = damaged((FOLDER / name).read_text(encoding="utf-8"), edits)
    result = read(tmp_path, text)
    triples = _triples(text)
    for measurement in result.measurements if result else ():
        case = measurement.case
        time_us = round(measurement.median_s * 1e6, 6)
        factor = BUS_FACTORS[case["collective"]](case["ranks"])
        expected = case["bytes"] / time_us / 1e3
        fits = [
            (_near(algbw, expected) and _near(busbw, expected * factor))
            # before June 2020 both columns held the bus bandwidth
            or (algbw == busbw and _near(busbw, expected * factor))
            for time, algbw, busbw in triples
            if abs(time - time_us) < 1e-6
        ]
        assert any(fits), (case, time_us)


def _near(printed: float, value: float) -> bool:
    return abs(printed - value) <= 0.02 * value + 0.006


def _triples(text: str) -> list[tuple[float, float, float]]:
    """Every three numbers that follow one another in a piece of a line: candidates for time, algbw and busbw."""
    found = []
    for line in text.split("\n"):
        for piece in pieces(line)[0]:
            numbers = [
                float(word) if re.fullmatch(r"\d+(\.\d*)?", word) else float("nan") for word in piece.text.split()
            ]
            found += list(zip(numbers, numbers[1:], numbers[2:], strict=False))
    return found

"""Tidy tables: CSV with a head, one measurement per row, the unit of the time in the name of its column.

Columns are found by name, in any order; further columns are ignored. A row with too few or too many cells is dropped
(a file that was cut off ends with one).
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from oracle.errors import BadInput
from profiler.importers.base import Log, Verdict
from profiler.importers.source import Source

_TIME = re.compile(r"(?:time|step)_(ns|us|ms|s)")
_SCALES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,2})?")
_LONGEST_NUMBER = 43
"""Characters that `_NUMBER` takes at most."""

LONGEST_S = 1e5


@dataclass(frozen=True)
class Cells:
    """One row by the names of its columns; empty cells are left out."""

    line: int
    text: str
    values: Mapping[str, str]
    seconds: float

    def text_of(self, *names: str) -> str:
        """The first of the columns that has a value, or an empty text."""
        for name in names:
            if name in self.values:
                return self.values[name]
        return ""

    def whole(self, *names: str) -> int | None:
        """The first of the columns as a whole number (`128` or `128.0`), or None."""
        return whole_of(self.values, names)

    def texts_of(self, names: Iterable[str]) -> tuple[str | None, ...]:
        """The cells of some columns, None where one is empty: equal for rows that say the same of them."""
        return tuple(map(self.values.get, names))

    @property
    def flags(self) -> tuple[str, ...]:
        """`calib` where the row may be used by a calibration (the others are for scoring)."""
        return ("calib",) if self.values.get("calib") in ("True", "true", "1") else ()


def whole_of(values: Mapping[str, str], names: Iterable[str]) -> int | None:
    """The first of the columns that has a value as a whole number, or None."""
    for name in names:
        if name in values:
            return whole(values[name])
    return None


def whole(text: str) -> int | None:
    """A whole number, also as `128.0`; None for anything else.

    >>> whole("128.0"), whole("1.5"), whole("-1")
    (128, None, None)
    """
    return _whole(text) if len(text) <= _LONGEST_NUMBER else None


@lru_cache(maxsize=1 << 14)
def _whole(text: str) -> int | None:
    """Shapes say the same few numbers again and again."""
    if text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    if _NUMBER.fullmatch(text) is None:
        return None
    value = float(text)
    return int(value) if value == math.floor(value) and value < 1e18 else None


def head_columns(head: str) -> list[str]:
    """The names in the first line of a file."""
    first = head.split("\n", 1)[0].strip()
    return [name.strip().strip('"') for name in first.split(",")]


def time_column(columns: list[str]) -> tuple[str, float] | None:
    """The column with the time and the seconds of its unit, or None."""
    for name in columns:
        if match := _TIME.fullmatch(name):
            return name, _SCALES[match[1]]
    return None


def rows(source: Source, log: Log) -> Iterator[Cells]:
    """The rows that have all cells and a plausible time; the others go to the log.

    Raises:
        BadInput: the table is no CSV.
    """
    lines = (line + "\n" for _, line in source.lines())
    reader = csv.reader(lines)
    columns: list[str] = []
    try:
        for cells in reader:
            if not columns:
                columns = [name.strip() for name in cells]
                found = time_column(columns)
                if found is None or len(set(columns)) != len(columns):
                    raise BadInput(f"{source.path.name}: no column with a time, or two columns of one name")
                name, scale = found
            elif cells:
                row = _checked(reader.line_num, cells, columns, (name, scale), log)
                if row is not None:
                    yield row
    except csv.Error as error:
        raise BadInput(f"{source.path.name} is no CSV: {error}") from None


def _checked(line: int, cells: list[str], columns: list[str], time: tuple[str, float], log: Log) -> Cells | None:
    text = ",".join(cells)
    if len(cells) != len(columns):
        log.drop(line, text, f"{len(cells)} cells, the head has {len(columns)}: cut off?")
        log.judge(Verdict.INCOMPLETE)
        return None
    values = {name: kept for name, cell in zip(columns, cells, strict=True) if (kept := cell.strip())}
    said = values.get(time[0], "")
    if _NUMBER.fullmatch(said) is None:
        log.drop(line, text, f"'{said[:40]}' is no time")
        return None
    seconds = float(said) * time[1]
    if not 0 < seconds < LONGEST_S:
        log.drop(line, text, f"{seconds:g} s is no plausible time")
        return None
    return Cells(line, text, values, seconds)

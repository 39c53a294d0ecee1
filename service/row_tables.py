"""Reads tidy tables whose rows are to be priced: whatever columns they have, with or without a time."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from oracle.errors import BadInput
from profiler.importers.base import Limits
from profiler.importers.printed import printed
from profiler.importers.source import open_source
from profiler.importers.tidy import Cells, time_column
from service.conditions import parse_condition

PRICES = ("predicted_s", "lo_s", "hi_s", "method")
"""The columns that pricing adds."""


@dataclass(frozen=True)
class RowTable:
    """A table in memory.

    Args:
        columns: its names.
        rows: the cells by name; `seconds` is 0 where a row carries no time.
    """

    columns: tuple[str, ...]
    rows: tuple[Cells, ...]

    @property
    def is_of_collectives(self) -> bool:
        """Whether its rows are transfers; else they are kernels."""
        return "collective" in self.columns


@dataclass(frozen=True)
class RowPrice:
    """What a row was priced at: seconds with the 80 % interval, and how it is known."""

    seconds: float
    lo_s: float
    hi_s: float
    method: str


def read_table(path: Path, limits: Limits = Limits()) -> RowTable:
    """Read a CSV, plain or gzip.

    Raises:
        BadInput: it cannot be read, exceeds a limit, or is neither a table of collectives nor one of kernels.
    """
    source = open_source(path, limits)
    reader = csv.reader(line + "\n" for _, line in source.lines())
    rows: list[Cells] = []
    try:
        columns = tuple(name.strip() for name in next(reader, []))
        scale = _time_of(path, columns)
        for cells in reader:
            if len(cells) == len(columns):
                rows.append(_row(reader.line_num, cells, columns, scale))
            elif cells:
                raise BadInput(f"{path.name}, line {reader.line_num}: {len(cells)} cells, the head has {len(columns)}")
            if len(rows) > limits.results:
                raise BadInput(f"{path.name} has more than {limits.results} rows")
    except csv.Error as error:
        raise BadInput(f"{path.name} is no CSV: {error}") from None
    return RowTable(columns, tuple(rows))


def _time_of(path: Path, columns: Sequence[str]) -> tuple[str, float] | None:
    kinds = ({"collective", "bytes", "nranks"}, {"op", "phase", "dtype"})
    if len(set(columns)) != len(columns) or not any(kind <= set(columns) for kind in kinds):
        raise BadInput(
            f"{path.name} is no table to price: it needs the columns collective, bytes, nranks (collectives) "
            "or op, phase, dtype and a shape (kernels), each once"
        )
    return time_column(list(columns))


def _row(line: int, cells: list[str], columns: Sequence[str], time: tuple[str, float] | None) -> Cells:
    values = {name: kept for name, cell in zip(columns, cells, strict=True) if (kept := cell.strip())}
    number = None if time is None else printed(values.get(time[0], ""))
    seconds = 0.0 if number is None or time is None else number.value * time[1]
    return Cells(line, ",".join(cells), values, seconds)


def kept_rows(table: RowTable, where: Sequence[str]) -> list[Cells]:
    """The rows whose columns say what is asked, `COLUMN=VALUE` or `COLUMN<=NUMBER`...

    Raises:
        BadInput: no such column, or no row says so.
    """
    found = list(table.rows)
    for condition in map(parse_condition, where):
        if condition.key not in table.columns:
            columns = ", ".join(table.columns)
            raise BadInput(f"--where takes COLUMN=VALUE with one of {columns}, not '{condition.text}'")
        found = [row for row in found if condition.holds([row.text_of(condition.key)])]
        if not found:
            raise BadInput(f"no row has {condition.text}")
    return found


def write_priced(path: Path, table: RowTable, priced: Sequence[tuple[Cells, RowPrice | None]]) -> None:
    """Write the rows with their prices; cells of rows that have none stay empty.

    Raises:
        BadInput: the file cannot be written.
    """
    own = [name for name in table.columns if name not in PRICES]
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*own, *PRICES])
            for row, price in priced:
                cells = ("", "", "", "") if price is None else _cells(price)
                writer.writerow([*(row.values.get(name, "") for name in own), *cells])
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None


def _cells(price: RowPrice) -> tuple[str, ...]:
    number: Callable[[float], str] = "{:.6g}".format
    return number(price.seconds), number(price.lo_s), number(price.hi_s), price.method

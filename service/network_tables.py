"""Results of imports and networks as the tables that a user reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from service.tables import console, print_notes, table

if TYPE_CHECKING:
    from service.importing import ImportedOne, ImportResult


def print_imported(result: ImportResult) -> None:
    """One line for each file, then what of it was dropped and has to be known."""
    out = console()
    rows = table("", "file", "format", ">rows taken", ">dropped", "ranks", "verdict", "run")
    for file in result.files:
        rows.add_row(*_file_cells(file))
    out.print(rows)
    for file in result.files:
        _print_dropped(out, file, result.verbose)


def _file_cells(file: ImportedOne) -> list[str]:
    name = escape(file.file)
    if file.known:
        return [name, "", "0", "", "", "known already, nothing added", file.run]
    if file.report is None:
        return [name, "", "0", "", "", "[red]refused[/]", ""]
    report = file.report
    ranks = ", ".join(map(str, report.ranks[:8])) + (", ..." if len(report.ranks) > 8 else "")
    return [name, report.format, str(report.rows_taken), str(report.rows_dropped), ranks, str(report.verdict), file.run]


def _print_dropped(out: Console, file: ImportedOne, verbose: bool) -> None:
    from service.importing import grouped

    report = file.report
    if report is None:
        return
    if verbose:
        for item in report.dropped:
            out.print(f"{escape(file.file)}:{item.line}: {escape(item.reason)}: {escape(item.text)}", highlight=False)
    else:
        for reason, count, line in grouped(report.dropped):
            text = f"{file.file}: dropped {count} x {reason} (first in line {line})"
            out.print(escape(text), highlight=False)
    print_notes(out, [f"{file.file}: {warning}" for warning in report.warnings])


PRINTERS: dict[str, Callable[[Any], None]] = {"import": print_imported}
"""The printer of each command's result."""

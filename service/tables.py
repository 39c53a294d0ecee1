"""How tables look."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from oracle.units import format_seconds

if TYPE_CHECKING:
    from oracle.estimate import Estimate


def show_table(console: Console, shown: Table) -> None:
    """Print a table as wide as it is: a terminal that is narrower wraps its lines, and no column is cut."""
    if shown.title:  # which a table that is narrower than its title would wrap
        console.print(shown.title, style="bold", highlight=False, soft_wrap=True)
        shown.title = None
    needed = console.measure(shown, options=console.options.update(max_width=1000)).maximum
    Console(width=max(needed, console.width)).print(shown)


def table(title: str, *columns: str) -> Table:
    """A table whose columns are right-aligned where the name starts with `>`."""
    made = Table(title=title, header_style="bold", box=None, pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.lstrip(">"), justify="right" if right else "left", no_wrap=right)
    return made


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """What a reader has to know, one line each."""
    for note in notes:
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)


def interval(estimate: Estimate) -> str:
    """The 80 % interval of a time."""
    lo, hi = estimate.interval()
    return f"{format_seconds(lo)} - {format_seconds(hi)}"

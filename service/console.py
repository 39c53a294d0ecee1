"""What every command does around its use case: open the store, show progress, print the result."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from db.reading import Reader
    from db.store import Store
    from oracle.execution import Execution
    from service.measuring_requests import Progress


def execution_of(precision: str, memory_format: str, optimizer: str, recompute: int = 0) -> Execution:
    """The execution that a command's options name."""
    from oracle.execution import Execution

    return Execution(precision, memory_format, optimizer, recompute)


@contextmanager
def open_reader(db: str | None) -> Iterator[Reader]:
    """The calibrations of `--db`, by default where everybody's are."""
    from db.location import default_url
    from db.reading import Reader

    with Reader.open(db or default_url()) as reader:
        yield reader


@contextmanager
def open_store(db: str | None) -> Iterator[Store]:
    """The store of `--db`, to write to it."""
    from db.location import default_url
    from db.store import Store

    with Store.open(db or default_url()) as store:
        yield store


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar on standard error, or a line now and then where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_now_and_then()
        return
    columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def advance(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total, description=text)

        yield advance


def _line_now_and_then(every_s: float = 30.0) -> Progress:
    """Progress for files and CI logs: a line every half minute."""
    from time import monotonic

    last_s = monotonic()

    def advance(done: int, total: int, text: str) -> None:
        nonlocal last_s
        if monotonic() - last_s >= every_s:
            last_s = monotonic()
            sys.stderr.write(f"{done} of {total}: {text}\n")

    return advance


PRINTERS: dict[str, str] = {
    "doctor": "printing:print_report",
    "calibrate": "printing:print_calibrated",
    "measure": "printing:print_measured",
    "list": "printing:print_catalogue",
    "show": "printing:print_shown",
    "predict": "printing:print_predicted",
    "validate": "printing:print_validated",
    "compare": "printing:print_compared",
    "advise": "advice_tables:print_advice",
    "scale": "advice_tables:print_scaled",
    "explain": "advice_tables:print_explained",
    "ceilings": "ceiling_tables:print_ceilings",
    "trace": "model_tables:print_traced",
    "profile": "model_tables:print_profiled",
    "import": "network_tables:print_imported",
    "fit": "network_tables:print_fitted",
    "price": "network_tables:print_priced",
    "collectives": "collective_tables:print_measured",
    "collect": "collective_tables:print_collected",
    "plan-measurement": "collective_tables:print_plan",
}
"""Command -> module of this package and function that print its result; a command loads its own alone."""


def show(command: str, result: Any, json: bool) -> None:
    """Print a result as JSON, or with the command's printer."""
    if json:
        from json import dumps

        typer.echo(dumps({"format": f"stepgauge-{command}-1", **result.to_dict()}, indent=2))
        return
    module, _, function = PRINTERS[command].partition(":")
    getattr(import_module(f"service.{module}"), function)(result)

"""The commands on stored calibrations: list, show and compare them, carry them elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oracle.errors import BadInput
from service.console import execution_of, open_reader, open_store
from service.console import show as show_result
from service.options import Db, Json, MemoryFormat, Optimizer, Plot, Precision


def list_(db: Db = None, json: Json = False) -> None:
    """List the stored calibrations."""
    from service.catalogue import list_calibrations

    with open_reader(db) as store:
        show_result("list", list_calibrations(store), json)


def show(
    name: Annotated[str | None, typer.Argument(help="A stored calibration. Default: the newest.")] = None,
    collectives: Annotated[bool, typer.Option("--collectives", help="Every measured size of a network.")] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="How well every kernel family is known.")] = False,
    question: Annotated[
        str | None,
        typer.Option("--for", metavar="MODEL:BATCH", help="With --kernels: what to measure to narrow this step."),
    ] = None,
    plot: Plot = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Show one calibration: constants, intervals, errors.

    --plot draws a network (bus bandwidth against size, measured and fitted) or, with --kernels, its families.
    """
    from service.catalogue import show_calibration
    from service.plotting import PLOTS, check_plot

    if question is not None and not kernels:
        raise BadInput("--for belongs to --kernels")
    if kernels:
        from service.kernel_tables import show_and_plot_kernels

        with open_reader(db) as store:
            show_result("show", show_and_plot_kernels(store, name, question, plot), json)
        return
    if plot is not None:
        check_plot(plot)
    with open_reader(db) as store:
        shown = show_calibration(store, name, collectives)
    if plot is not None:
        PLOTS["show"](shown, plot)
    show_result("show", shown, json)


def compare(
    first: Annotated[str, typer.Argument(help="A stored calibration.")],
    second: Annotated[str, typer.Argument(help="Another one.")],
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="MODEL:BATCH", help="Predict this step with both; repeatable."),
    ] = None,
    precision: Precision = "fp32",
    memory_format: MemoryFormat = "channels_first",
    optimizer: Optimizer = "sgd_momentum",
    db: Db = None,
    json: Json = False,
) -> None:
    """Put two calibrations side by side, and their steps."""
    from service.comparing import compare as use_case
    from service.requests import parse_model_batch

    models = tuple(parse_model_batch(text) for text in model or [])
    with open_reader(db) as store:
        result = use_case(store, first, second, models, execution_of(precision, memory_format, optimizer))
    show_result("compare", result, json)


def export(
    name: Annotated[str, typer.Argument(help="A stored calibration.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: print it.")] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Without names, paths and whatever else could tell the site.")
    ] = False,
    as_: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Its name there, with --redact.")] = None,
    db: Db = None,
) -> None:
    """Write a calibration as JSON, to be loaded elsewhere."""
    from service.catalogue import export_calibration, write_text
    from service.redacting import redaction

    with open_reader(db) as store:
        text = export_calibration(store, name, redaction(redact, as_))
    if output is None:
        typer.echo(text)
    else:
        write_text(output, text)
        typer.echo(f"wrote {output}", err=True)


def load(
    file: Annotated[Path, typer.Argument(help="What 'stepgauge export' wrote.")],
    name: Annotated[str | None, typer.Option(help="Store it under another name.")] = None,
    db: Db = None,
) -> None:
    """Store a calibration that was exported elsewhere."""
    from service.catalogue import load_calibration

    with open_store(db) as store:
        loaded = load_calibration(store, file, name)
    typer.echo(f"loaded '{loaded.name}' ({loaded.of}, {loaded.constants} constants)")

"""The commands on networks and on files that people already have; `cli.py` adds them to the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from service.console import open_store, show
from service.options import Db, Json


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Logs, tables or traces; plain or gzip.")],
    collective: Annotated[str | None, typer.Option(help="Such as all_reduce, where the log does not say.")] = None,
    ranks: Annotated[int | None, typer.Option(help="Of the run, where the log does not say.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Of the run, where the log does not say.")] = None,
    device: Annotated[str | None, typer.Option(help="Name of the device, where the log does not say.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List dropped rows line by line.")] = False,
    db: Db = None,
    json: Json = False,
) -> None:
    """Store what other tools measured, and say what was left out.

    Recognises logs of nccl-tests, rccl-tests, OSU, perftest and others by their content. The same file twice adds
    nothing.
    """
    from service.importing import ImportRequest, import_files

    request = ImportRequest(tuple(files), collective, ranks, nodes, device, verbose)
    with open_store(db) as store:
        result = import_files(store, request)
    show("import", result, json)
    for file in result.refused:
        typer.echo(f"error: {file.error_line}", err=True)
    if result.refused:
        raise typer.Exit(2)


def fit(
    sources: Annotated[
        list[str], typer.Option("--from", metavar="SOURCE", help="A run, or a file that was imported; repeatable.")
    ],
    name: Annotated[str, typer.Option(help="Name of the new calibration.")],
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only measurements that say so: device=..., flag=calib; repeatable."),
    ] = None,
    job: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="What marks one job of a scaling study, such as tag; repeatable."),
    ] = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Fit stored measurements: a network's or a device's.

    Collectives become a network for 'predict --network', kernels a calibration like that of 'calibrate'. Different
    devices are refused, different environments stay apart.
    """
    from service.fitting import FitRequest, fit_stored

    request = FitRequest(tuple(sources), name, tuple(where or ()), tuple(job or ()))
    with open_store(db) as store:
        result = fit_stored(store, request)
    show("fit", result, json)


NETWORKS: dict[str, Callable[..., None]] = {"import": import_, "fit": fit}
"""Name -> command."""

"""The command on a device's limits."""

from __future__ import annotations

from typing import Annotated

import typer

from service.console import open_store, progress_bar, show
from service.options import Db, Json, RealDevice


def ceilings(
    device: RealDevice = "cpu",
    about: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP", help="compute, memory, launch, copy, update; repeatable. Default: all but update."
        ),
    ] = None,
    sustain: Annotated[
        str, typer.Option(metavar="TIME", help="How long to keep up each rate; 0s for bursts only.")
    ] = "2s",
    db: Db = None,
    json: Json = False,
) -> None:
    """Measure what this device can do at most, in bursts and sustained.

    Peak arithmetic, memory bandwidth beyond the caches, launches, copies and optimizer steps, beside the vendor's data
    sheet where it is known. On NVIDIA devices with CuPy also by raw kernels.
    """
    from oracle.units import parse_seconds
    from service.ceilings import CeilingsRequest, find_ceilings

    request = CeilingsRequest(device, tuple(about or ()), parse_seconds(sustain))
    with open_store(db) as store, progress_bar() as progress:
        result = find_ceilings(store, request, progress)
    show("ceilings", result, json)

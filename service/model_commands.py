"""The commands that look at one model: trace it, profile it; `cli.py` adds them to the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.console import show
from service.options import Json

Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="SHAPE",
        help="Shape of an input without the batch, such as 3x224x224, or 128:int64 for tokens; repeatable. "
        "Default: the example inputs that the factory returns beside the module.",
    ),
]


def trace(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY",
            help="package.module:callable or path/file.py:callable; it returns a torch module, or a pair of a module "
            "and its example inputs.",
        ),
    ],
    inputs: Inputs = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples of the traced step.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE.json", help="Write the graph here.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the graph. Default: the callable's.")] = None,
    json: Json = False,
) -> None:
    """Turn a torch module into a model that predict can read.

    Runs one training step without weights or data: every operation of forward and backward is seen, and what has no
    layer kind is priced by the bytes that it moves and named.
    """
    from service.tracing import TraceRequest, trace_model

    show("trace", trace_model(TraceRequest(factory, tuple(inputs or ()), batch, out, name)), json)


MODEL_COMMANDS = (trace,)
"""The commands of this file."""

"""The options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="Database: a file or an SQLAlchemy URL. Default: $STEPGAUGE_DB, else your data folder.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
CalibrationName = Annotated[
    str | None, typer.Option("--calibration", metavar="NAME", help="A stored calibration. Default: the newest.")
]
Device = Annotated[str, typer.Option("--device", help="Kind of device: cpu, cuda, or simulated (a made-up one).")]
RealDevice = Annotated[str, typer.Option("--device", help="Kind of device: cpu or cuda.")]
Precision = Annotated[str, typer.Option("--precision", help="fp32, tf32, bf16 or fp16.")]
MemoryFormat = Annotated[str, typer.Option("--memory-format", help="channels_first or channels_last.")]
Optimizer = Annotated[str, typer.Option("--optimizer", help="sgd, sgd_momentum, adam or adamw.")]
NetworkName = Annotated[
    str | None, typer.Option("--network", metavar="NAME", help="A stored network; its curves price the transfers.")
]
NetworkEnvironment = Annotated[
    str | None, typer.Option("--environment", metavar="TEXT", help="Which environment of the network, or a part of it.")
]

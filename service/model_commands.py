"""The commands that look at single models here: trace, profile, validate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from service.console import execution_of, open_store, progress_bar, show
from service.options import CalibrationName, Db, Json, MemoryFormat, Optimizer, Precision, RealDevice

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


def profile(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL:BATCH...", help="Such as resnet50:8, net.json:4 or nets.py:mine:16.")
    ],
    calibration: CalibrationName = None,
    name: Annotated[
        str | None, typer.Option(help="Make a new calibration of this name, in which these models' layers are in situ.")
    ] = None,
    device: RealDevice = "cpu",
    budget: Annotated[str, typer.Option(metavar="TIME", help="How long to measure each model.")] = "30s",
    all_layers: Annotated[bool, typer.Option("--all", help="Every layer, not only the longest.")] = False,
    precision: Precision = "fp32",
    memory_format: MemoryFormat = "channels_first",
    optimizer: Optimizer = "sgd_momentum",
    db: Db = None,
    json: Json = False,
) -> None:
    """Time every layer inside real training steps.

    Prints the layers beside the whole step and stores them; with --name they become a calibration that predicts other
    batches of these models.
    """
    from oracle.units import parse_seconds
    from service.measuring_requests import ProfileRequest, parse_model
    from service.profiling import profile as use_case

    request = ProfileRequest(
        models=tuple(parse_model(text) for text in models),
        calibration=calibration,
        name=name,
        device=device,
        budget_s=parse_seconds(budget),
        execution=execution_of(precision, memory_format, optimizer),
    )
    with open_store(db) as store, progress_bar() as progress:
        result = use_case(store, request, progress)
    show("profile", replace(result, all_layers=all_layers), json)


def validate(
    models: Annotated[list[str], typer.Argument(metavar="MODEL:BATCH...", help="Such as resnet50:8 alexnet:32.")],
    calibration: CalibrationName = None,
    device: RealDevice = "cpu",
    budget: Annotated[str, typer.Option(metavar="TIME", help="How long to measure each model.")] = "20s",
    precision: Precision = "fp32",
    memory_format: MemoryFormat = "channels_first",
    optimizer: Optimizer = "sgd_momentum",
    db: Db = None,
    json: Json = False,
) -> None:
    """Run real training steps here beside their prediction."""
    from oracle.units import parse_seconds
    from service.measuring_requests import ValidateRequest
    from service.requests import parse_model_batch
    from service.validating import validate as use_case

    request = ValidateRequest(
        models=tuple(parse_model_batch(text) for text in models),
        calibration=calibration,
        device=device,
        budget_s=parse_seconds(budget),
        execution=execution_of(precision, memory_format, optimizer),
    )
    with open_store(db) as store, progress_bar() as progress:
        result = use_case(store, request, progress)
    show("validate", result, json)

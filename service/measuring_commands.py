"""The commands that measure kernels; `cli.py` adds them to the others."""

from __future__ import annotations

from typing import Annotated

import typer

from service.console import execution_of, open_store, progress_bar, show
from service.options import (
    Batch,
    BatchPerDevice,
    Budget,
    Db,
    Device,
    Devices,
    For,
    Force,
    ForStrategies,
    Json,
    MemoryFormat,
    Optimizer,
    Precision,
    Quick,
    Resume,
    RunId,
    Seed,
)


def calibrate(
    device: Device = "cpu",
    name: Annotated[str | None, typer.Option(help="Name of the calibration. Default: the device and the date.")] = None,
    budget: Budget = None,
    quick: Quick = False,
    for_: For = None,
    strategies: ForStrategies = None,
    devices: Devices = "1",
    batch: Batch = None,
    batch_per_device: BatchPerDevice = None,
    resume: Resume = False,
    run: RunId = None,
    force: Force = False,
    precision: Precision = "fp32",
    memory_format: MemoryFormat = "channels_first",
    optimizer: Optimizer = "sgd_momentum",
    seed: Seed = 0,
    db: Db = None,
    json: Json = False,
) -> None:
    """Measure this machine, fit its constants, store both."""
    from oracle.units import parse_seconds
    from service.calibrating import calibrate as use_case
    from service.requests import CalibrateRequest, parse_questions

    request = CalibrateRequest(
        device=device,
        name=name,
        budget_s=None if budget is None else parse_seconds(budget),
        quick=quick,
        seed=seed,
        execution=execution_of(precision, memory_format, optimizer),
        questions=parse_questions(for_, strategies, devices, batch, batch_per_device),
        resume=resume,
        run_id=run,
        force=force,
    )
    with open_store(db) as store, progress_bar() as progress:
        result = use_case(store, request, progress)
    show("calibrate", result, json)


def measure(
    device: Device = "cpu",
    budget: Budget = None,
    quick: Quick = False,
    for_: For = None,
    strategies: ForStrategies = None,
    devices: Devices = "1",
    batch: Batch = None,
    batch_per_device: BatchPerDevice = None,
    resume: Resume = False,
    run: RunId = None,
    force: Force = False,
    precision: Precision = "fp32",
    memory_format: MemoryFormat = "channels_first",
    optimizer: Optimizer = "sgd_momentum",
    seed: Seed = 0,
    db: Db = None,
    json: Json = False,
) -> None:
    """Measure this machine and store it; fit later."""
    from oracle.units import parse_seconds
    from service.measuring import measure_device
    from service.requests import MeasureRequest, parse_questions

    request = MeasureRequest(
        device=device,
        budget_s=None if budget is None else parse_seconds(budget),
        quick=quick,
        seed=seed,
        execution=execution_of(precision, memory_format, optimizer),
        questions=parse_questions(for_, strategies, devices, batch, batch_per_device),
        resume=resume,
        run_id=run,
        force=force,
    )
    with open_store(db) as store, progress_bar() as progress:
        result = measure_device(store, request, progress)
    show("measure", result, json)


MEASURING_COMMANDS = (calibrate, measure)
"""The commands of this file."""

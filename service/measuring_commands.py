"""The commands that measure, kernels or collectives; `cli.py` adds them to the others."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from service.collective_commands import collectives_request, refuse_strangers, run_collectives
from service.console import execution_of, open_store, progress_bar, show
from service.options import (
    Batch,
    BatchPerDevice,
    Beside,
    Budget,
    Collectives,
    Concurrent,
    Cupy,
    Db,
    Device,
    Devices,
    Dtypes,
    Folder,
    For,
    Force,
    ForStrategies,
    Groups,
    Json,
    Largest,
    MemoryFormat,
    NoPrior,
    Only,
    Optimizer,
    Precision,
    Processes,
    Quick,
    Ranks,
    Resume,
    RunId,
    Seed,
    Spacing,
)


def calibrate(
    device: Device = "cpu",
    name: Annotated[str | None, typer.Option(help="Name of the calibration. Default: the device and the date.")] = None,
    no_prior: NoPrior = False,
    budget: Budget = None,
    quick: Quick = False,
    for_: For = None,
    strategies: ForStrategies = None,
    devices: Devices = "1",
    batch: Batch = None,
    batch_per_device: BatchPerDevice = None,
    resume: Resume = False,
    run: RunId = None,
    processes: Processes = None,
    force: Force = False,
    precision: Precision = "fp32",
    memory_format: MemoryFormat = "channels_first",
    optimizer: Optimizer = "sgd_momentum",
    seed: Seed = 0,
    collectives: Collectives = False,
    ranks: Ranks = None,
    largest: Largest = None,
    groups: Groups = None,
    dtypes: Dtypes = None,
    only: Only = None,
    concurrent: Concurrent = False,
    spacing: Spacing = None,
    beside: Beside = None,
    cupy: Cupy = False,
    folder: Folder = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Measure this machine, fit its constants, store both."""
    theirs: dict[str, Any] = {
        "ranks": ranks,
        "largest": largest,
        "concurrent": concurrent,
        "folder": folder,
        "cupy": cupy,
    }
    lists = {"groups": groups, "dtypes": dtypes, "only": only, "spacing": spacing, "beside": beside}
    kernels = {"for": for_, "strategies": strategies, "batch": batch, "batch-per-device": batch_per_device, "run": run}
    refuse_strangers(collectives, theirs | lists, kernels | {"no-prior": no_prior})
    if collectives:
        asked = collectives_request(
            budget, lists, device=device, quick=quick, seed=seed, resume=resume, name=name, **theirs
        )
        run_collectives(asked, True, db, json)
        return
    from oracle.units import parse_seconds
    from service.calibrating import calibrate as use_case
    from service.requests import CalibrateRequest, parse_questions

    request = CalibrateRequest(
        device=device,
        name=name,
        prior=not no_prior,
        budget_s=None if budget is None else parse_seconds(budget),
        quick=quick,
        seed=seed,
        execution=execution_of(precision, memory_format, optimizer),
        questions=parse_questions(for_, strategies, devices, batch, batch_per_device),
        resume=resume,
        run_id=run,
        processes=processes,
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
    processes: Processes = None,
    force: Force = False,
    precision: Precision = "fp32",
    memory_format: MemoryFormat = "channels_first",
    optimizer: Optimizer = "sgd_momentum",
    seed: Seed = 0,
    collectives: Collectives = False,
    ranks: Ranks = None,
    largest: Largest = None,
    groups: Groups = None,
    dtypes: Dtypes = None,
    only: Only = None,
    concurrent: Concurrent = False,
    spacing: Spacing = None,
    beside: Beside = None,
    cupy: Cupy = False,
    folder: Folder = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Measure this machine and store it; fit later."""
    theirs: dict[str, Any] = {
        "ranks": ranks,
        "largest": largest,
        "concurrent": concurrent,
        "folder": folder,
        "cupy": cupy,
    }
    lists = {"groups": groups, "dtypes": dtypes, "only": only, "spacing": spacing, "beside": beside}
    kernels = {"for": for_, "strategies": strategies, "batch": batch, "batch-per-device": batch_per_device, "run": run}
    refuse_strangers(collectives, theirs | lists, kernels)
    if collectives:
        asked = collectives_request(budget, lists, device=device, quick=quick, seed=seed, resume=resume, **theirs)
        run_collectives(asked, False, db, json)
        return
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
        processes=processes,
        force=force,
    )
    with open_store(db) as store, progress_bar() as progress:
        result = measure_device(store, request, progress)
    show("measure", result, json)


MEASURING_COMMANDS = (calibrate, measure)
"""The commands of this file."""

"""The commands that check this machine and measure it, kernels or collectives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from inspect import signature
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


def doctor(device: Device = "cpu", db: Db = None, json: Json = False) -> None:
    """Check this machine: what would spoil a calibration."""
    from service.checking import examine

    report = examine(device, db)
    show("doctor", report, json)
    if not report.usable:
        raise typer.Exit(1)


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
    _carry_out(locals(), fits=True)


def _with_options_of(other: Callable[..., None], *, but: Collection[str]) -> Callable[[Callable[..., None]], Any]:
    """Make a command that takes another one's options, but for some; Typer reads them from the signature."""

    def taking(command: Callable[..., None]) -> Any:
        theirs = signature(other, eval_str=True)
        taken = [parameter for name, parameter in theirs.parameters.items() if name not in but]
        command.__signature__ = theirs.replace(parameters=taken)  # type: ignore[attr-defined]
        return command

    return taking


@_with_options_of(calibrate, but=("name", "no_prior"))
def measure(**options: Any) -> None:
    """Measure this machine and store it; fit later."""
    _carry_out(options, fits=False)


def _carry_out(options: Mapping[str, Any], *, fits: bool) -> None:
    """Measure kernels, or collectives, as the options of a command ask; fit them as well."""
    lists = {name: options[name] for name in ("groups", "dtypes", "only", "spacing", "beside")}
    theirs = {name: options[name] for name in ("ranks", "largest", "concurrent", "folder", "cupy")}
    kernels = {"for": "for_", "batch-per-device": "batch_per_device", "no-prior": "no_prior"}
    kernels |= {name: name for name in ("strategies", "batch", "run")}
    strangers = {name: options.get(option) for name, option in kernels.items()}
    refuse_strangers(options["collectives"], theirs | lists, strangers)
    shared = {name: options[name] for name in ("device", "quick", "seed", "resume")}
    if options["collectives"]:
        asked = collectives_request(options["budget"], lists, name=options.get("name"), **shared, **theirs)
        run_collectives(asked, fits, options["db"], options["json"])
        return
    from oracle.units import parse_seconds
    from service.measuring_requests import CalibrateRequest, MeasureRequest, parse_questions

    budget, counts = options["budget"], (options["devices"], options["batch"], options["batch_per_device"])
    fields: dict[str, Any] = shared | {
        "budget_s": None if budget is None else parse_seconds(budget),
        "execution": execution_of(options["precision"], options["memory_format"], options["optimizer"]),
        "questions": parse_questions(options["for_"], options["strategies"], *counts),
        "run_id": options["run"],
        "processes": options["processes"],
        "force": options["force"],
    }
    with open_store(options["db"]) as store, progress_bar() as progress:
        result: Any
        if fits:
            from service.calibrating import calibrate as use_case

            request = CalibrateRequest(name=options["name"], prior=not options["no_prior"], **fields)
            result = use_case(store, request, progress)
        else:
            from service.measuring import measure_device

            result = measure_device(store, MeasureRequest(**fields), progress)
    show("calibrate" if fits else "measure", result, options["json"])

"""The command line: parse, call one use case, print. Heavy imports wait until a command needs them."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, NoReturn, cast

import typer

from oracle.errors import BadInput, MissingDependency, StepgaugeError
from service.ceiling_commands import CEILINGS
from service.console import execution_of, open_reader, open_store, progress_bar
from service.console import show as show_result
from service.measuring_commands import MEASURING_COMMANDS
from service.model_commands import MODEL_COMMANDS
from service.networking import NETWORKS
from service.options import (
    Batch,
    BatchPerDevice,
    CalibrationName,
    ClusterFile,
    DatasetSamples,
    Db,
    Device,
    DeviceMemory,
    Devices,
    Json,
    LinkText,
    MemoryFormat,
    NetworkEnvironment,
    NetworkName,
    Optimizer,
    Plot,
    Precision,
    RealDevice,
    Recompute,
    Strategy,
)
from service.planning import PLANNING

app = typer.Typer(
    name="stepgauge",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure your devices once, then predict how long a training step will take.",
)

MEASURING = ("torch", "sklearn", "scipy")
"""Libraries of the extra [measure]: predicting works without them."""

LONGEST_ERROR = 1000

USAGE = cast("type[typer.BadParameter]", next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"))
"""The base of Typer's own errors, wherever the installed Typer keeps it."""


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"stepgauge {version('stepgauge')}")
        except PackageNotFoundError:
            typer.echo("stepgauge, not installed (run from a source folder)")
        raise typer.Exit


@app.callback()
def stepgauge(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Measure your devices once, then predict how long a training step will take."""


@app.command()
def doctor(device: Device = "cpu", db: Db = None, json: Json = False) -> None:
    """Check this machine: what would spoil a calibration."""
    from service.checking import examine

    report = examine(device, db)
    show_result("doctor", report, json)
    if not report.usable:
        raise typer.Exit(1)


for _command in (*MEASURING_COMMANDS, *MODEL_COMMANDS):
    app.command()(_command)


@app.command("list")
def list_(db: Db = None, json: Json = False) -> None:
    """List the stored calibrations."""
    from service.catalogue import list_calibrations

    with open_reader(db) as store:
        show_result("list", list_calibrations(store), json)


@app.command()
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


@app.command()
def predict(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="alexnet, vgg16, resnet50, resnet152, cosmoflow, a .json or .net file, or MODULE:FACTORY in Python.",
        ),
    ],
    calibration: CalibrationName = None,
    batch: Batch = None,
    batch_per_device: BatchPerDevice = None,
    devices: Devices = "1",
    strategy: Strategy = None,
    cluster: ClusterFile = None,
    link: LinkText = None,
    network: NetworkName = None,
    environment: NetworkEnvironment = None,
    memory: DeviceMemory = None,
    dataset_samples: DatasetSamples = None,
    precision: Precision = "fp32",
    memory_format: MemoryFormat = "channels_first",
    optimizer: Optimizer = "sgd_momentum",
    recompute: Recompute = 0,
    db: Db = None,
    json: Json = False,
) -> None:
    """Predict training steps and epochs; needs no GPU.

    Prices every layer of the model from a stored calibration. Runs on any machine, without torch.
    """
    from service.predicting import predict as use_case
    from service.requests import PredictRequest, parse_devices, parse_memory

    request = PredictRequest(
        models=tuple(models),
        calibration=calibration,
        strategy=strategy,
        devices=parse_devices(devices),
        batch=batch,
        batch_per_device=batch_per_device,
        cluster=cluster,
        link=link,
        network=network,
        environment=environment,
        memory_bytes=parse_memory(memory),
        dataset_samples=dataset_samples,
        execution=execution_of(precision, memory_format, optimizer, recompute),
    )
    with open_reader(db) as store:
        result = use_case(store, request)
    show_result("predict", result, json)


for _command in PLANNING:
    app.command()(_command)


@app.command()
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
    from service.requests import ValidateRequest, parse_model_batch
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
    show_result("validate", result, json)


@app.command()
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


@app.command()
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


@app.command()
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


for _name, _command in {**NETWORKS, **CEILINGS}.items():
    app.command(_name)(_command)


def main() -> None:
    """Run the command line; what stepgauge refuses is one line on standard error and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal's encoding lacks is no error
    with suppress(ValueError):  # only the main thread may
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's end of time is an interruption
    try:
        code = app(standalone_mode=False) if len(sys.argv) > 1 else app(["--help"], standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except BrokenPipeError:
        _drop_output()
        sys.exit(1)
    except OSError as error:
        _drop_output()
        _refuse(StepgaugeError(f"{error.filename or 'the output'}: {error.strerror}"))
    except ModuleNotFoundError as error:
        if error.name not in MEASURING:
            raise
        _refuse(MissingDependency(error.name, "measure"))
    except StepgaugeError as error:
        _refuse(error)
    except USAGE as error:
        _refuse(StepgaugeError(error.format_message()))
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted; what was measured is kept\n")
        sys.exit(130)


def _drop_output() -> None:
    """Keep the interpreter from flushing, at its end, to where nothing can be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(error: StepgaugeError) -> NoReturn:
    """End with the error on one line; a name or a file that it quotes may hold line breaks."""
    text = str(error)
    if len(text) > LONGEST_ERROR:
        text = f"{text[:LONGEST_ERROR]}..."
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    sys.stderr.write(f"error: {line}\n")
    sys.exit(2)


if __name__ == "__main__":
    main()

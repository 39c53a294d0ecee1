"""The command line: parse, call one use case, print. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oracle.errors import StepgaugeError

if TYPE_CHECKING:
    from db.store import Store
    from oracle.execution import Execution
    from service.requests import Progress

app = typer.Typer(
    name="stepgauge",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure your devices once, then predict how long a training step will take.",
)

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
Precision = Annotated[str, typer.Option("--precision", help="fp32, tf32, bf16 or fp16.")]
MemoryFormat = Annotated[str, typer.Option("--memory-format", help="channels_first or channels_last.")]
Optimizer = Annotated[str, typer.Option("--optimizer", help="sgd, sgd_momentum, adam or adamw.")]


@app.command()
def doctor(device: Device = "cpu", db: Db = None, json: Json = False) -> None:
    """Check this machine: what would spoil a calibration."""
    from service.checking import examine

    report = examine(device, db)
    _print(report, json, "print_report")
    if not report.usable:
        raise typer.Exit(1)


@app.command()
def calibrate(
    device: Device = "cpu",
    name: Annotated[str | None, typer.Option(help="Name of the calibration. Default: the device and the date.")] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long to measure, such as 90s or 10min.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases: 4 minutes instead of 15.")] = False,
    precision: Precision = "fp32",
    memory_format: MemoryFormat = "channels_first",
    optimizer: Optimizer = "sgd_momentum",
    seed: Annotated[int, typer.Option(help="Order of the cases and random inputs.")] = 0,
    db: Db = None,
    json: Json = False,
) -> None:
    """Measure this machine, fit its constants, store both."""
    from oracle.units import parse_seconds
    from service.calibrating import calibrate as use_case
    from service.requests import CalibrateRequest

    request = CalibrateRequest(
        device=device,
        name=name,
        budget_s=None if budget is None else parse_seconds(budget),
        quick=quick,
        seed=seed,
        execution=_execution(precision, memory_format, optimizer),
    )
    with _open(db) as store, _progress() as progress:
        result = use_case(store, request, progress)
    _print(result, json, "print_calibrated")


@app.command("list")
def list_(db: Db = None, json: Json = False) -> None:
    """List the stored calibrations."""
    from service.catalogue import list_calibrations

    with _open(db) as store:
        _print(list_calibrations(store), json, "print_catalogue")


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(help="A stored calibration. Default: the newest.")] = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Show one calibration: constants, intervals, errors."""
    from service.catalogue import show_calibration

    with _open(db) as store:
        _print(show_calibration(store, name), json, "print_calibration")


@app.command()
def predict(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="A zoo name, a graph .json or a .net file.")],
    calibration: CalibrationName = None,
    batch: Annotated[int | None, typer.Option(help="Samples of one step over all devices.")] = None,
    batch_per_device: Annotated[int | None, typer.Option(help="Samples of one step on each device.")] = None,
    devices: Annotated[str, typer.Option(help="Device counts, such as 1,2,4.")] = "1",
    strategy: Annotated[str | None, typer.Option(help="serial or data. Default: data beyond one device.")] = None,
    cluster: Annotated[Path | None, typer.Option(metavar="FILE", help="The network, tier by tier, in YAML.")] = None,
    link: Annotated[str | None, typer.Option(help="The network as latency,bandwidth: 9us,50GB/s.")] = None,
    dataset_samples: Annotated[int | None, typer.Option(help="Samples per epoch. Default: the model's own.")] = None,
    precision: Precision = "fp32",
    memory_format: MemoryFormat = "channels_first",
    optimizer: Optimizer = "sgd_momentum",
    db: Db = None,
    json: Json = False,
) -> None:
    """Predict training steps and epochs; needs no GPU.

    Prices every layer of the model from a stored calibration. Runs on any machine, without torch.
    """
    from service.predicting import predict as use_case
    from service.requests import PredictRequest, parse_devices

    request = PredictRequest(
        models=tuple(models),
        calibration=calibration,
        strategy=strategy,
        devices=parse_devices(devices),
        batch=batch,
        batch_per_device=batch_per_device,
        cluster=cluster,
        link=link,
        dataset_samples=dataset_samples,
        execution=_execution(precision, memory_format, optimizer),
    )
    with _open(db) as store:
        result = use_case(store, request)
    _print(result, json, "print_predicted")


@app.command()
def validate(
    models: Annotated[list[str], typer.Argument(metavar="MODEL:BATCH...", help="Such as resnet50:8 alexnet:32.")],
    calibration: CalibrationName = None,
    device: Device = "cpu",
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
        execution=_execution(precision, memory_format, optimizer),
    )
    with _open(db) as store, _progress() as progress:
        result = use_case(store, request, progress)
    _print(result, json, "print_validated")


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
    with _open(db) as store:
        result = use_case(store, first, second, models, _execution(precision, memory_format, optimizer))
    _print(result, json, "print_compared")


@app.command()
def export(
    name: Annotated[str, typer.Argument(help="A stored calibration.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: print it.")] = None,
    db: Db = None,
) -> None:
    """Write a calibration as JSON, to be loaded elsewhere."""
    from service.catalogue import export_calibration, write_text

    with _open(db) as store:
        text = export_calibration(store, name)
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

    with _open(db) as store:
        calibration = load_calibration(store, file, name)
    typer.echo(f"loaded '{calibration.name}' ({calibration.device}, {len(calibration.constants)} constants)")


def _execution(precision: str, memory_format: str, optimizer: str) -> Execution:
    from oracle.execution import Execution

    return Execution(precision=precision, memory_format=memory_format, optimizer=optimizer)


@contextmanager
def _open(db: str | None) -> Iterator[Store]:
    from db.location import default_url
    from db.store import Store

    with Store.open(db or default_url()) as store:
        yield store


@contextmanager
def _progress() -> Iterator[Progress]:
    """A progress bar on standard error, silent where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=None)

        def advance(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total, description=text)

        yield advance


def _print(result: Any, json: bool, printer: str) -> None:
    """Print a result as JSON, or with one of the printers of `service.printing`."""
    if json:
        from json import dumps

        typer.echo(dumps(result.to_dict(), indent=2))
        return
    import service.printing

    show_result: Callable[[Any], None] = getattr(service.printing, printer)
    show_result(result)


def main() -> None:
    """Run the command line; an error that stepgauge raises on purpose is one line and exit code 2."""
    try:
        app()
    except StepgaugeError as error:
        # A name or a file may hold line breaks; the error stays one line.
        line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(error))
        sys.stderr.write(f"error: {line}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; what was measured is kept\n")
        sys.exit(130)


if __name__ == "__main__":
    main()

"""Results as the tables that a user reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from oracle.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:  # the results of commands that measure and fit are not loaded to print a prediction
    from oracle.constants import Calibration, KernelFit
    from oracle.estimate import Estimate
    from oracle.project import Projection
    from service.calibrating import CalibrateResult
    from service.catalogue import Catalogue, ShownCalibration
    from service.checking import Report
    from service.comparing import CompareResult
    from service.predicting import PredictResult
    from service.validating import ValidateResult

_LEVELS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}


def _console() -> Console:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 140)
    return console


def _table(title: str, *columns: str) -> Table:
    """A table whose columns are right-aligned where the name starts with `>`."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.lstrip(">"), justify="right" if right else "left", no_wrap=right)
    return table


def _notes(console: Console, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False)


def _interval(estimate: Estimate) -> str:
    lo, hi = estimate.interval()
    return f"{format_seconds(lo)} - {format_seconds(hi)}"


def print_report(report: Report) -> None:
    """What of this machine is good, doubtful and bad."""
    table = _table("", "", "subject", "finding")
    for finding in report.findings:
        remedy = f" [dim]({escape(finding.remedy)})[/]" if finding.remedy else ""
        table.add_row(_LEVELS[finding.level], escape(finding.subject), escape(finding.text) + remedy)
    _console().print(table)


def print_calibrated(result: CalibrateResult) -> None:
    """What was measured and fitted, and where it is."""
    console = _console()
    _print_constants(console, result.calibration)
    unmeasured = f", {len(result.run.unmeasured)} cases not measured" if result.run.unmeasured else ""
    console.print(
        f"measured {len(result.calibration.shapes)} shapes in {format_seconds(result.elapsed_s)}{unmeasured}; "
        f"stored as '{escape(result.calibration.name)}' in {escape(result.store)}",
        highlight=False,
    )
    _notes(console, result.calibration.notes)


def print_catalogue(catalogue: Catalogue) -> None:
    """The calibrations of a store, one a line."""
    console = _console()
    if not catalogue.calibrations:
        console.print(f"no calibration in {escape(catalogue.location)} yet; run 'stepgauge calibrate'", highlight=False)
        return
    table = _table("", "name", "device", "created", ">constants", ">shapes", ">held-out error (median)")
    for item in catalogue.calibrations:
        error = "" if item.median_held_out_error is None else f"{item.median_held_out_error:.1%}"
        counts = (str(item.constants), str(item.shapes))
        table.add_row(escape(item.name), escape(item.device), item.created_at, *counts, error)
    console.print(table)


def print_calibration(shown: ShownCalibration) -> None:
    """One calibration: provenance, constants, notes."""
    console = _console()
    calibration = shown.calibration
    console.print(f"[bold]{escape(calibration.name)}[/]: {escape(calibration.device)}, {calibration.created_at}")
    _print_constants(console, calibration)
    identity = ", ".join(f"{key} {value}" for key, value in sorted(calibration.environment.items()))
    console.print(f"[dim]{escape(identity)}[/]", highlight=False)
    console.print(
        f"{len(calibration.shapes)} shapes are looked up; the machine as a whole drifts by "
        f"{calibration.common_sd:.1%} (standard deviation)",
        highlight=False,
    )
    _notes(console, shown.notes)


def _print_constants(console: Console, calibration: Calibration) -> None:
    table = _table("", "kernels", ">shapes", ">launch", ">effective FLOP/s", ">effective bytes/s", ">held-out error")
    for fit in calibration.fits:
        cells = [_constant(fit, quantity) for quantity in ("launch_s", "flop_per_s", "bytes_per_s")]
        table.add_row(_kernels(fit), str(fit.shapes), *cells, f"{fit.held_out_error:.0%}")
    console.print(table)
    console.print("[dim]80 % intervals in brackets; a dash: the measurements do not identify it[/]", highlight=False)


def _kernels(fit: KernelFit) -> str:
    """`conv2d backward-data, fp32/channels_first`."""
    phase = "" if fit.family == fit.phase else f" {fit.phase.replace('_', '-')}"
    return f"{fit.family}{phase}, {fit.execution}"


def _constant(fit: KernelFit, quantity: str) -> str:
    """Value and 80 % interval, or a dash."""
    for constant in fit.constants:
        if constant.quantity == quantity:
            numbers = (constant.value, constant.lo, constant.hi)
            if quantity == "launch_s":
                value, lo, hi = map(format_seconds, numbers)
            else:
                value, lo, hi = (format_rate(number, constant.unit) for number in numbers)
            unit = value.split(" ")[-1]
            # One unit is enough where all three share it.
            short = [text.removesuffix(f" {unit}") for text in (lo, hi)]
            return f"{value} ({short[0]} - {short[1]})"
    return "-"


def print_predicted(result: PredictResult) -> None:
    """Steps, epochs, memory, and how they are known."""
    console = _console()
    columns = ("model", "strategy", ">devices", ">batch", ">step", ">80 % interval", ">samples/s", ">epoch")
    table = _table("", *columns, ">communication", ">memory", "known by")
    refused = []
    for projection in result.projections:
        if projection.step is None:
            refused.append(projection.reason)
            continue
        table.add_row(*_prediction_cells(projection))
        if projection.reason:
            refused.append(projection.reason)
    if table.row_count:
        console.print(table)
    for reason in refused:
        console.print(f"[red]cannot be done:[/] {escape(reason)}", highlight=False)
    console.print(
        f"[dim]calibration '{escape(result.calibration.name)}' of {escape(result.calibration.device)}, "
        f"{result.calibration.created_at}[/]",
        highlight=False,
    )
    own = dict.fromkeys(note for projection in result.projections for note in projection.notes)
    _notes(console, [*own, *result.notes])


def _prediction_cells(projection: Projection) -> list[str]:
    step, rate, epoch = projection.step, projection.samples_per_s, projection.epoch
    if step is None or rate is None:
        return []
    job = projection.job
    memory = projection.memory
    return [
        escape(job.model.name),
        projection.strategy,
        str(job.devices),
        str(job.global_batch),
        format_seconds(step.middle),
        _interval(step),
        f"{rate.middle:.4g}",
        "-" if epoch is None else format_seconds(epoch.middle),
        f"{projection.communication_total.middle / step.middle:.0%}",
        "-" if memory is None else format_bytes(memory.total_bytes),
        ", ".join(f"{share:.0%} {method}" for method, share in projection.methods.items()),
    ]


def print_validated(result: ValidateResult) -> None:
    """Predicted steps beside measured ones."""
    console = _console()
    columns = ("model", ">batch", ">predicted step", ">80 % interval", ">measured step", ">difference", "inside")
    table = _table("", *columns, "known by")
    for step in result.steps:
        projection = step.projection
        table.add_row(
            escape(projection.job.model.name),
            str(projection.job.global_batch),
            format_seconds(step.predicted.middle),
            _interval(step.predicted),
            f"{format_seconds(step.measured_s)} (n = {len(step.measurement.device_s)})",
            f"{step.difference:+.1%}",
            "yes" if step.inside else "no",
            ", ".join(f"{share:.0%} {method}" for method, share in projection.methods.items()),
        )
    console.print(table)
    _notes(console, result.notes)


def print_compared(result: CompareResult) -> None:
    """Constants with their ratio, then predicted steps."""
    console = _console()
    first, second = escape(result.first.name), escape(result.second.name)
    table = _table("", "constant", "execution", f">{first}", f">{second}", ">ratio", ">80 % interval", "")
    for item in result.ratios:
        unit = item.first.unit
        table.add_row(
            item.first.name,
            item.first.execution,
            format_rate(item.first.value, unit) if unit != "s" else format_seconds(item.first.value),
            format_rate(item.second.value, unit) if unit != "s" else format_seconds(item.second.value),
            f"{item.ratio:.2f}",
            f"{item.lo:.2f} - {item.hi:.2f}",
            "differs" if item.differs else "",
        )
    console.print(table)
    if result.steps:
        steps = _table("", "model", ">batch", f">{first}", f">{second}", ">speed-up", ">80 % interval", "")
        for step in result.steps:
            lo, hi = step.speedup.interval()
            steps.add_row(
                escape(step.model),
                str(step.samples),
                f"{format_seconds(step.first.middle)} ({_interval(step.first)})",
                f"{format_seconds(step.second.middle)} ({_interval(step.second)})",
                f"{step.speedup.middle:.2f}",
                f"{lo:.2f} - {hi:.2f}",
                "a tie" if step.tied else "",
            )
        console.print(steps)
    for name, only in ((first, result.only_first), (second, result.only_second)):
        if only:
            console.print(f"only in {name}: {', '.join(only)}", highlight=False)
    _notes(console, result.notes)

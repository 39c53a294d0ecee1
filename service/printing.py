"""Results as the tables that a user reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from oracle.layer import Phase
from oracle.units import format_bytes, format_rate, format_seconds
from service.advice_tables import print_advice, print_explained, print_scaled
from service.tables import console, interval, print_notes, table

if TYPE_CHECKING:  # the results of commands that measure and fit are not loaded to print a prediction
    from oracle.constants import Calibration, KernelFit
    from oracle.projection import Projection
    from service.calibrating import CalibrateResult
    from service.catalogue import Catalogue, ShownCalibration
    from service.checking import Report
    from service.comparing import CompareResult
    from service.predicting import PredictResult
    from service.validating import ValidateResult

_LEVELS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}


def print_report(report: Report) -> None:
    """What of this machine is good, doubtful and bad."""
    rows = table("", "", "subject", "finding")
    for finding in report.findings:
        remedy = f" [dim]({escape(finding.remedy)})[/]" if finding.remedy else ""
        rows.add_row(_LEVELS[finding.level], escape(finding.subject), escape(finding.text) + remedy)
    console().print(rows)


def print_calibrated(result: CalibrateResult) -> None:
    """What was measured and fitted, and where it is."""
    out = console()
    _print_constants(out, result.calibration)
    unmeasured = f", {len(result.run.unmeasured)} cases not measured" if result.run.unmeasured else ""
    out.print(
        f"measured {len(result.calibration.shapes)} shapes in {format_seconds(result.elapsed_s)}{unmeasured}; "
        f"stored as '{escape(result.calibration.name)}' in {escape(result.store)}",
        highlight=False,
    )
    print_notes(out, result.calibration.notes)


def print_catalogue(catalogue: Catalogue) -> None:
    """The calibrations of a store, one a line."""
    out = console()
    if not catalogue.calibrations:
        out.print(f"no calibration in {escape(catalogue.location)} yet; run 'stepgauge calibrate'", highlight=False)
        return
    rows = table("", "name", "device", "created", ">constants", ">shapes", ">held-out error (median)")
    for item in catalogue.calibrations:
        error = "" if item.median_held_out_error is None else f"{item.median_held_out_error:.1%}"
        counts = (str(item.constants), str(item.shapes))
        rows.add_row(escape(item.name), escape(item.device), item.created_at, *counts, error)
    out.print(rows)


def print_calibration(shown: ShownCalibration) -> None:
    """One calibration: provenance, constants, notes."""
    out = console()
    calibration = shown.calibration
    out.print(f"[bold]{escape(calibration.name)}[/]: {escape(calibration.device)}, {calibration.created_at}")
    _print_constants(out, calibration)
    identity = ", ".join(f"{key} {value}" for key, value in sorted(calibration.environment.items()))
    out.print(f"[dim]{escape(identity)}[/]", highlight=False)
    out.print(
        f"{len(calibration.shapes)} shapes are looked up; all kernels together are uncertain by "
        f"{calibration.common_sd:.0%} (drift of the machine, and what a step does beside its kernels)",
        highlight=False,
    )
    print_notes(out, shown.notes)


def _print_constants(out: Console, calibration: Calibration) -> None:
    executions = {fit.execution for fit in calibration.fits if fit.phase != Phase.UPDATE}
    rows = table("", "kernels", ">shapes", ">launch", ">effective FLOP/s", ">effective bytes/s", ">held-out error")
    for fit in calibration.fits:
        cells = [_constant(fit, quantity) for quantity in ("launch_s", "flop_per_s", "bytes_per_s")]
        label = _kernels(fit) if len(executions) == 1 else f"{_kernels(fit)}, {fit.execution}"
        rows.add_row(label, str(fit.shapes), *cells, f"{fit.held_out_error:.0%}")
    out.print(rows)
    out.print(
        f"[dim]{', '.join(sorted(executions))}; 80 % intervals in brackets; "
        "a dash: the measurements do not identify it[/]",
        highlight=False,
    )


def _kernels(fit: KernelFit) -> str:
    """`conv2d backward-data`, `update sgd_momentum`."""
    if fit.phase == Phase.UPDATE:
        return f"update {fit.execution.rpartition('/')[2]}"
    return f"{fit.family} {fit.phase.replace('_', '-')}"


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
    out = console()
    columns = ("model", "strategy", ">devices", ">batch", ">step", ">80 % interval", ">samples/s", ">epoch")
    rows = table("", *columns, ">communication", ">memory", "known by")
    refused = []
    for projection in result.projections:
        if projection.step is None:
            refused.append(projection.reason)
            continue
        rows.add_row(*_prediction_cells(projection))
        if projection.reason:
            refused.append(projection.reason)
    if rows.row_count:
        out.print(rows)
    for reason in refused:
        out.print(f"[red]cannot be done:[/] {escape(reason)}", highlight=False)
    out.print(
        f"[dim]calibration '{escape(result.calibration.name)}' of {escape(result.calibration.device)}, "
        f"{result.calibration.created_at}[/]",
        highlight=False,
    )
    own = dict.fromkeys(note for projection in result.projections for note in projection.notes)
    print_notes(out, [*own, *result.notes])


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
        interval(step),
        f"{rate.middle:.4g}",
        "-" if epoch is None else format_seconds(epoch.middle),
        f"{projection.communication_total.middle / step.middle:.0%}",
        "-" if memory is None else format_bytes(memory.total_bytes),
        _known_by(projection),
    ]


def _known_by(projection: Projection) -> str:
    """`80% measured, 20% fitted`; below half a percent as `<1%`."""
    shares = ((f"{share:.0%}" if share >= 0.005 else "<1%", method) for method, share in projection.methods.items())
    return ", ".join(f"{share} {method}" for share, method in shares)


def print_validated(result: ValidateResult) -> None:
    """Predicted steps beside measured ones."""
    out = console()
    columns = ("model", ">batch", ">predicted step", ">80 % interval", ">measured step", ">difference", "inside")
    rows = table("", *columns, "known by")
    for step in result.steps:
        projection = step.projection
        rows.add_row(
            escape(projection.job.model.name),
            str(projection.job.global_batch),
            format_seconds(step.predicted.middle),
            interval(step.predicted),
            f"{format_seconds(step.measured_s)} (n = {len(step.measurement.device_s)})",
            f"{step.difference:+.1%}",
            "yes" if step.inside else "no",
            _known_by(projection),
        )
    out.print(rows)
    print_notes(out, result.notes)


def print_compared(result: CompareResult) -> None:
    """Constants with their ratio, then predicted steps."""
    out = console()
    first, second = escape(result.first.name), escape(result.second.name)
    rows = table("", "constant", "execution", f">{first}", f">{second}", ">ratio", ">80 % interval", "")
    for item in result.ratios:
        unit = item.first.unit
        rows.add_row(
            item.first.name,
            item.first.execution,
            format_rate(item.first.value, unit) if unit != "s" else format_seconds(item.first.value),
            format_rate(item.second.value, unit) if unit != "s" else format_seconds(item.second.value),
            f"{item.ratio:.2f}",
            f"{item.lo:.2f} - {item.hi:.2f}",
            "differs" if item.differs else "",
        )
    out.print(rows)
    if result.steps:
        steps = table("", "model", ">batch", f">{first}", f">{second}", ">speed-up", ">80 % interval", "")
        for step in result.steps:
            lo, hi = step.speedup.interval()
            steps.add_row(
                escape(step.model),
                str(step.samples),
                f"{format_seconds(step.first.middle)} ({interval(step.first)})",
                f"{format_seconds(step.second.middle)} ({interval(step.second)})",
                f"{step.speedup.middle:.2f}",
                f"{lo:.2f} - {hi:.2f}",
                "a tie" if step.tied else "",
            )
        out.print(steps)
    for name, only in ((first, result.only_first), (second, result.only_second)):
        if only:
            out.print(f"only in {name}: {', '.join(only)}", highlight=False)
    print_notes(out, result.notes)


PRINTERS: dict[str, Callable[[Any], None]] = {
    "doctor": print_report,
    "calibrate": print_calibrated,
    "list": print_catalogue,
    "show": print_calibration,
    "predict": print_predicted,
    "validate": print_validated,
    "compare": print_compared,
    "advise": print_advice,
    "scale": print_scaled,
    "explain": print_explained,
}
"""The printer of each command's result."""

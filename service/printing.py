"""Results as the tables that a user reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from oracle.constants import FRESH_PAGES, STEP
from oracle.layer import Phase
from oracle.units import format_bytes, format_number, format_rate, format_seconds
from service.tables import interval as _interval
from service.tables import print_notes as _notes
from service.tables import show_table as _show
from service.tables import table as _table

if TYPE_CHECKING:  # the results of commands that measure and fit are not loaded to print a prediction
    from oracle.constants import Calibration, KernelFit
    from oracle.projection import Projection
    from service.calibrating import CalibrateResult
    from service.catalogue import Catalogue, ShownCalibration, ShownNetwork
    from service.checking import Report
    from service.comparing import CompareResult
    from service.kernel_view import ShownKernels
    from service.measuring import MeasureResult
    from service.network_comparing import NetworkComparison
    from service.predicting import PredictResult
    from service.validating import ValidateResult

_LEVELS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "refuse": "[red]refuse[/]", "fail": "[red]fail[/]"}


def print_report(report: Report) -> None:
    """What of this machine is good, doubtful and bad."""
    table = _table("", "", "subject", "finding")
    for finding in report.findings:
        remedy = f" [dim]({escape(finding.remedy)})[/]" if finding.remedy else ""
        table.add_row(_LEVELS[finding.level], escape(finding.subject), escape(finding.text) + remedy)
    _show(Console(), table)


def print_calibrated(result: CalibrateResult) -> None:
    """What was measured and fitted, and where it is."""
    console = Console()
    _print_constants(console, result.calibration)
    console.print(
        f"measured {len(result.calibration.shapes)} shapes in {format_seconds(result.elapsed_s)}; "
        f"stored as '{escape(result.calibration.name)}' in {escape(result.store)}",
        highlight=False,
        soft_wrap=True,
    )
    _notes(console, result.calibration.notes)


def print_measured(result: MeasureResult) -> None:
    """What was measured, where it is, and how to go on."""
    console = Console()
    run, cases = result.run, result.run.measured + len(result.run.unmeasured)
    console.print(
        f"{run.measured} of {cases} cases measured, {run.converged} as certain as asked, "
        f"in {run.visits} visits{' with those before' if result.resumed else ''}; "
        f"{format_seconds(result.elapsed_s)}; stored as run {run.run_id} in {escape(result.store)}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"fit it with: stepgauge fit --from {run.run_id} --name NAME", highlight=False, soft_wrap=True)
    _notes(console, result.notes)


def print_catalogue(catalogue: Catalogue) -> None:
    """The calibrations of a store, one a line."""
    console = Console()
    if not catalogue.calibrations and not catalogue.networks:
        console.print(
            f"no calibration in {escape(catalogue.location)} yet; run 'stepgauge calibrate'",
            highlight=False,
            soft_wrap=True,
        )
        return
    table = _table("", "name", "device", "created", ">constants", ">shapes", ">held-out error (median)")
    for item in catalogue.calibrations:
        error = "" if item.median_held_out_error is None else f"{item.median_held_out_error:.1%}"
        counts = (str(item.constants), str(item.shapes))
        table.add_row(escape(item.name), escape(item.device), item.created_at, *counts, error)
    for network in catalogue.networks:
        cells = (escape(network.name), f"network: {escape(network.fabric)}", network.created_at)
        table.add_row(*cells, str(network.constants), "", "")
    _show(console, table)
    _notes(console, [f"{item.name}: {note}" for item in catalogue.calibrations for note in catalogue.stale(item)])


def print_shown(shown: ShownCalibration | ShownNetwork | ShownKernels) -> None:
    """One calibration, of a device or of a network, or its kernels."""
    from service.catalogue import ShownNetwork
    from service.kernel_view import ShownKernels

    if isinstance(shown, ShownKernels):
        from service.kernel_tables import print_kernels

        print_kernels(shown)
    elif isinstance(shown, ShownNetwork):
        from service.network_tables import print_network

        print_network(shown)
    else:
        print_calibration(shown)


def print_calibration(shown: ShownCalibration) -> None:
    """One calibration: provenance, constants, notes."""
    console = Console()
    calibration = shown.calibration
    console.print(f"[bold]{escape(calibration.name)}[/]: {escape(calibration.device)}, {calibration.created_at}")
    _print_constants(console, calibration)
    identity = ", ".join(f"{key} {value}" for key, value in sorted(calibration.environment.items()))
    console.print(f"[dim]{escape(identity)}[/]", highlight=False, soft_wrap=True)
    console.print(
        f"{len(calibration.shapes)} shapes are looked up; all kernels together are uncertain by "
        f"{calibration.common_sd:.0%} (drift of the machine{_beside(calibration)})",
        highlight=False,
        soft_wrap=True,
    )
    _notes(console, shown.notes)


def _print_constants(console: Console, calibration: Calibration) -> None:
    kernels = [fit for fit in calibration.fits if fit.family not in (STEP, FRESH_PAGES)]
    executions = {fit.execution for fit in kernels if fit.phase != Phase.UPDATE}
    table = _table("", "kernels", ">shapes", ">launch", ">effective FLOP/s", ">effective bytes/s", ">held-out error")
    for fit in kernels:
        cells = [_constant(fit, quantity) for quantity in ("launch_s", "flop_per_s", "bytes_per_s")]
        label = _kernels(fit) if len(executions) == 1 else f"{_kernels(fit)}, {fit.execution}"
        table.add_row(escape(label), str(fit.shapes), *cells, f"{fit.held_out_error:.0%}" if fit.tested else "-")
    _show(console, table)
    console.print(
        f"[dim]{escape(', '.join(sorted(executions)))}; 80 % intervals in brackets; "
        "a dash: the measurements do not identify it[/]",
        highlight=False,
        soft_wrap=True,
    )
    _print_surroundings(console, calibration)


def _print_surroundings(console: Console, calibration: Calibration) -> None:
    """What kernels pay beside their work, inside steps and for memory, with 80 % intervals."""
    named = {Phase.FORWARD: "forward", Phase.BACKWARD_DATA: "backward", Phase.UPDATE: "update"}
    factors = [
        f"{named[fit.phase]} x{factor.value:.2f} ({factor.lo:.2f} - {factor.hi:.2f})"
        for fit in calibration.fits
        if fit.family == STEP and fit.phase in named
        for factor in fit.constants
    ]
    if factors:
        console.print(f"inside a training step: {', '.join(factors)}", highlight=False, soft_wrap=True)
    for fit in calibration.fits:
        cell = _constant(fit, "call_s")
        if cell != "-":
            said = f"{_kernels(fit)}: a step costs {cell} beside its tensors, each of which costs a launch"
            console.print(escape(said), highlight=False, soft_wrap=True)
    for rate in (fit for fit in calibration.fits if fit.family == FRESH_PAGES):
        cell = _constant(rate, "bytes_per_s")
        console.print(f"fresh pages for results from 32 MiB on: {cell}", highlight=False, soft_wrap=True)


def _beside(calibration: Calibration) -> str:
    """What the common spread holds beside the drift."""
    measured = any(fit.family == STEP for fit in calibration.fits)
    return "" if measured else ", and what a step does beside its kernels"


def _kernels(fit: KernelFit) -> str:
    """`conv2d backward-data`, `update sgd_momentum`."""
    if fit.phase == Phase.UPDATE:
        return f"update {fit.execution.rpartition('/')[2]}"
    return f"{fit.family} {fit.phase.replace('_', '-')}"


def _constant(fit: KernelFit, quantity: str) -> str:
    """Value and 80 % interval, or a dash."""
    for constant in fit.constants:
        if constant.quantity == quantity and constant.identified:
            numbers = (constant.value, constant.lo, constant.hi)
            if constant.unit == "s":
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
    console = Console()
    columns = ("model", "strategy", ">devices", ">batch", ">step", ">80 % interval", ">samples/s", ">epoch")
    table = _table("", *columns, ">communication", ">memory", "known by")
    for projection in result.projections:
        if projection.step is not None:
            table.add_row(*_prediction_cells(projection))
    if table.row_count:
        _show(console, table)
    for projection in result.projections:
        if projection.reason:
            reason = f"{_where(projection)}: {projection.reason}"
            console.print(f"[red]cannot be done:[/] {escape(reason)}", highlight=False, soft_wrap=True)
    console.print(
        f"[dim]calibration '{escape(result.calibration.name)}' of {escape(result.calibration.device)}, "
        f"{result.calibration.created_at}[/]",
        highlight=False,
        soft_wrap=True,
    )
    _notes(console, [*_own_notes(result.projections), *result.notes])


def _where(projection: Projection) -> str:
    devices = projection.job.devices
    return f"{projection.job.model.name} on {devices} device{'s' if devices > 1 else ''}"


def _own_notes(projections: Sequence[Projection]) -> Iterator[str]:
    """The notes of projections, each once, with those that it belongs to unless it belongs to all."""
    places: dict[str, list[str]] = {}
    for projection in projections:
        for note in projection.notes:
            places.setdefault(note, []).append(_where(projection))
    for note, named in places.items():
        yield note if len(named) == len(projections) else f"{', '.join(named)}: {note}"


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
        format_number(rate.middle),
        "-" if epoch is None else format_seconds(epoch.middle),
        f"{projection.communication_total.middle / step.middle:.0%}",
        "-" if memory is None else format_bytes(memory.total_bytes) + (" (too much)" if memory.fits is False else ""),
        _known_by(projection),
    ]


def _known_by(projection: Projection) -> str:
    """`80% measured, 20% fitted`; below half a percent as `<1%`."""
    shares = ((f"{share:.0%}" if share >= 0.005 else "<1%", method) for method, share in projection.methods.items())
    return ", ".join(f"{share} {method}" for share, method in shares)


def print_validated(result: ValidateResult) -> None:
    """Predicted steps beside measured ones."""
    console = Console()
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
            _known_by(projection),
        )
    _show(console, table)
    _notes(console, result.notes)


def print_compared(result: CompareResult | NetworkComparison) -> None:
    """Constants with their ratio, then predicted steps; of two networks their times first."""
    from service.network_comparing import NetworkComparison

    if isinstance(result, NetworkComparison):
        from service.network_tables import print_networks

        print_networks(result)
        return
    console = Console()
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
    _show(console, table)
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
        _show(console, steps)
    for name, only in ((first, result.only_first), (second, result.only_second)):
        if only:
            console.print(f"only in {name}: {', '.join(only)}", highlight=False, soft_wrap=True)
    _notes(console, result.notes)

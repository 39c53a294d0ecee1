"""Advice, scaling and explanations as the text that a user reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from oracle.breakdown import rates_of
from oracle.units import format_bytes, format_energy, format_number, format_rate, format_seconds
from service.tables import interval, print_notes, show_table, table

if TYPE_CHECKING:
    from oracle.bottlenecks import Bottleneck
    from oracle.breakdown import KernelItem, MoveItem
    from oracle.estimate import Estimate
    from oracle.plan import Job
    from service.advising import AdviceResult, ExplainResult, Row, ScaleResult

LAYERS = 12
"""How many layers an explanation lists, those that take most first."""

TRANSFERS = 8
"""How many transfers it lists."""


def print_advice(result: AdviceResult) -> None:
    """The ranking, what holds the fastest, the front, and what cannot be used."""
    out = Console()
    job = result.ranking.job
    out.print(f"[bold]{_title(job)}[/]", highlight=False, soft_wrap=True)
    if result.rows:
        show_table(out, _ranked(result.rows, job))
        _print_figures(out, result.rows[0])
        _print_bottlenecks(out, f"What holds {result.rows[0].label}", result.bottlenecks)
        out.print()
        show_table(out, _front(result.front, job))
    else:
        out.print("[red]no strategy can be used[/]")
    out.print()
    for item in result.ranking.refused:
        out.print(f"[red]cannot be used:[/] {item.strategy}: {escape(item.reason)}", highlight=False, soft_wrap=True)
    _print_provenance(out, result)


def print_scaled(result: ScaleResult) -> None:
    """A row for each strategy and number of devices, then what cannot be used."""
    out = Console()
    rows = table(
        *("", "strategy", ">devices", ">batch", ">step", ">80 % interval", ">samples/s", ">efficiency", ">epoch"),
        *(">communication", ">memory"),
    )
    left_out: list[Row] = []
    first: dict[str, float] = {}
    for row in result.rows:
        step, job = row.projection.step, row.projection.job
        if step is None or row.projection.reason:
            left_out.append(row)
            continue
        per_device = job.global_batch / step.middle / job.devices
        efficiency = per_device / first.setdefault(row.label, per_device)
        rows.add_row(escape(row.label), str(job.devices), str(job.global_batch), *_step(row), f"{efficiency:.0%}",
                     _time(row.projection.epoch), _communication(row), _memory(row))  # fmt: skip
    if rows.row_count:
        show_table(out, rows)
        out.print("[dim]efficiency: samples/s of one device over those at the fewest devices listed[/]")
    for text in _reasons(left_out):
        out.print(f"[red]cannot be used:[/] {escape(text)}", highlight=False, soft_wrap=True)
    _print_provenance(out, result)


def _reasons(rows: Iterable[Row]) -> Iterator[str]:
    """Why rows cannot be used: a line for each strategy that lacks memory, with the devices that lack least."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.label, "" if row.projection.memory else row.projection.reason.partition(", not ")[0]].append(row)
    for (label, _), own in groups.items():
        counts = [row.projection.job.devices for row in own]
        sizes = [row.projection.memory.total_bytes if row.projection.memory else 0.0 for row in own]
        least = own[sizes.index(min(sizes))].projection
        where = f"; so it is at {least.job.devices}, which needs least" if least.memory and len(own) > 1 else ""
        yield f"{label} at {', '.join(map(str, counts))}: {least.reason}{where}"


def print_explained(result: ExplainResult) -> None:
    """One step: its parts, its layers, its transfers, and what holds it."""
    out = Console()
    projection = result.row.projection
    step = projection.step
    if step is None:
        return
    out.print(f"[bold]{_title(projection.job)}, {escape(result.row.label)}[/]", highlight=False, soft_wrap=True)
    if projection.reason:
        out.print(f"[red]cannot be done:[/] {escape(projection.reason)}", highlight=False, soft_wrap=True)
    share = f"{format_seconds(step.middle)} ({interval(step)})"
    out.print(
        f"step {share}, {format_number(projection.job.global_batch / step.middle)} samples/s",
        highlight=False,
        soft_wrap=True,
    )
    _print_figures(out, result.row)
    _print_bottlenecks(out, "What holds it", result.bottlenecks)
    out.print()
    show_table(out, _parts(result.row))
    out.print()
    show_table(out, _layers(result.kernels))
    if result.moves:
        out.print()
        show_table(out, _transfers(result.moves, projection.job))
    if projection.memory is not None:
        kinds = sorted(projection.memory.by_kind_bytes.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{format_bytes(size)} {kind.replace('_', ' ')}" for kind, size in kinds)
        out.print()
        out.print(f"memory of a device: {_memory(result.row)}: {shown}", highlight=False, soft_wrap=True)
    _print_provenance(out, result)


def _title(job: Job) -> str:
    return escape(f"{job.model.name} on {job.devices} x {job.cluster.device} ({job.cluster.name}), "
                  f"{job.global_batch} samples per step")  # fmt: skip


def _ranked(rows: Iterable[Row], job: Job) -> Table:
    made = table(
        *("", ">", "strategy", ">step", ">80 % interval", ">samples/s", ">epoch", ">communication", ">memory"), ""
    )
    for place, row in enumerate(rows, start=1):
        cells = (*_step(row), _time(row.projection.epoch), _communication(row), _memory(row))
        said = [*(["a tie with the first"] if row.tied else []), *_saved(row, job)]
        made.add_row(str(place), _name(row, job), *cells, ", ".join(said))
    return made


def _name(row: Row, job: Job) -> str:
    """A row as the command line takes it, for somebody who asked for a job without its savings."""
    own = row.projection.job.execution.recomputed_segments
    return escape(row.label if own == job.execution.recomputed_segments else f"{row.label} --recompute {own}")


def _saved(row: Row, job: Job) -> list[str]:
    """What a row does to fit."""
    again = row.projection.job.execution != job.execution
    done = [
        *(["recomputing activations"] if again else []),
        *(["accumulating gradients"] if "accumul" in row.label else []),
    ]
    return [f"fits by {' and '.join(done)}"] if done else []


def _front(rows: Iterable[Row], asked: Job) -> Table:
    made = table(
        "Nothing beats these in time, memory and devices at once",
        *("strategy", ">devices", ">batch", ">step", ">samples/s", ">memory"),
    )
    for row in rows:
        step, _, rate = _step(row)
        job = row.projection.job
        made.add_row(_name(row, asked), str(job.devices), str(job.global_batch), step, rate, _memory(row))
    return made


def _step(row: Row) -> tuple[str, str, str]:
    step = row.projection.step
    if step is None:
        return "-", "-", "-"
    rate = row.projection.job.global_batch / step.middle
    return format_seconds(step.middle), interval(step), format_number(rate)


def _seconds(seconds: float) -> str:
    return format_seconds(seconds) if seconds else "-"


def _time(seconds: Estimate | None) -> str:
    return "-" if seconds is None else format_seconds(seconds.middle)


def _communication(row: Row) -> str:
    step = row.projection.step
    return "-" if step is None else f"{row.projection.communication_total.middle / step.middle:.0%}"


def _memory(row: Row) -> str:
    memory = row.projection.memory
    return "-" if memory is None else format_bytes(memory.total_bytes)


def _print_figures(out: Console, row: Row) -> None:
    figures = row.figures
    said = []
    if figures.training_s is not None and figures.device_hours is not None:
        said += [
            f"training {format_seconds(figures.training_s.middle)}",
            f"{format_number(figures.device_hours.middle)} device-hours",
        ]
    if figures.mfu is not None:
        too_much = " (above 100 %: --peak is too small)" if figures.mfu.middle > 1 else ""
        said.append(f"MFU {figures.mfu.middle:.0%}{too_much}")
    if figures.energy_j is not None:
        said.append(format_energy(figures.energy_j.middle))
    if figures.cost is not None:
        said.append(f"cost {format_number(figures.cost.middle)}")
    if said:
        out.print(f"{escape(row.label)}: {', '.join(said)}", highlight=False, soft_wrap=True)


def _print_bottlenecks(out: Console, title: str, found: Sequence[Bottleneck]) -> None:
    out.print()
    out.print(f"[bold]{escape(title)}[/]", highlight=False, soft_wrap=True)
    for item in found:
        out.print(f" [cyan]{item.kind} {item.phase:6}[/] {escape(item.text)}", highlight=False, soft_wrap=True)
    if not found:
        out.print(" no limit or bottleneck: all devices compute nearly all of the time")


def _parts(row: Row) -> Table:
    projection = row.projection
    hosts = (">host", ">waiting for it") if projection.host else ()
    made = table("Where the step goes", "part", ">kernels", ">transfers waited for", *hosts, ">share")
    whole = projection.step.middle if projection.step is not None else 1.0
    for part in dict.fromkeys((*projection.compute, *projection.communication)):
        kinds = (projection.compute, projection.communication, projection.host, projection.host_wait)
        compute, moved, host, wait = (times[part].middle if part in times else 0.0 for times in kinds)
        waits = (_seconds(host), _seconds(wait)) if hosts else ()
        cells = (_seconds(compute), _seconds(moved), *waits, f"{(compute + moved + wait) / whole:.1%}")
        made.add_row(part.replace("_", " "), *cells)
    blank = [""] * len(hosts)
    for name, seconds in (("bubble", projection.bubble), ("stragglers", projection.stragglers)):
        if seconds.middle:
            made.add_row(name, "-", format_seconds(seconds.middle), *blank, f"{seconds.middle / whole:.1%}")
    if projection.hidden.middle:
        made.add_row("(hidden)", "-", format_seconds(projection.hidden.middle), *blank, "no part of it")
    return made


def _layers(items: Sequence[KernelItem]) -> Table:
    total = sum(item.seconds for item in items)
    by_layer: dict[str, list[KernelItem]] = defaultdict(list)
    for item in items:
        by_layer[item.layer].append(item)
    ranked = sorted(by_layer, key=lambda name: -sum(item.seconds for item in by_layer[name]))
    made = table(
        f"Kernels: {len(by_layer)} layers, {format_seconds(total)}",
        *("layer", "kind", ">forward", ">backward data", ">backward weight", ">update", ">share", "bound by"),
        *((">host",) if (hosts := any(item.host_s is not None for item in items)) else ()),
    )
    bound = rates_of(items)
    for name in ranked[:LAYERS]:
        own = by_layer[name]
        cells = [sum(item.seconds for item in own if item.part == part) for part in
                 ("forward", "backward_data", "backward_weight", "update")]  # fmt: skip
        largest = max(own, key=lambda item: item.seconds)
        times = [_seconds(seconds) for seconds in cells]
        said = [f"{sum(cells) / total:.1%}", bound.of(largest)]
        said += [_seconds(sum(item.host_s or 0.0 for item in own))] if hosts else []
        made.add_row(escape(name), largest.call.layer.kind, *times, *said)
    rest = ranked[LAYERS:]
    if rest:
        left = sum(item.seconds for name in rest for item in by_layer[name])
        made.add_row(f"({len(rest)} more)", "", "", "", "", "", f"{left / total:.1%}")
    return made


def _transfers(items: Sequence[MoveItem], job: Job) -> Table:
    total = sum(item.seconds for item in items)
    made = table(
        f"Transfers: {len(items)}, {format_seconds(total)} (hidden ones included)",
        *("layer", "part", "what", ">buffer", ">devices", "links", ">times", ">seconds", ">startup", ">effective"),
    )
    ranked = sorted(items, key=lambda item: -item.seconds)
    for item in ranked[:TRANSFERS]:
        transfer = item.exchange.transfer
        sent = item.count * transfer.messages * transfer.bytes / item.seconds if item.seconds else 0.0
        made.add_row(
            escape(item.exchange.layer or "(all)"),
            item.exchange.part.replace("_", " "),
            transfer.collective,
            format_bytes(transfer.bytes),
            str(transfer.group),
            escape(job.cluster.tiers[transfer.tier].name),
            str(item.count * transfer.messages),
            format_seconds(item.seconds),
            f"{item.latency_s / item.seconds:.0%}" if item.seconds else "-",
            format_rate(sent, "B/s"),
        )
    if len(ranked) > TRANSFERS:
        left = sum(item.seconds for item in ranked[TRANSFERS:])
        made.add_row(f"({len(ranked) - TRANSFERS} more)", *[""] * 6, format_seconds(left), "", "")
    return made


def _print_provenance(out: Console, result: AdviceResult | ScaleResult | ExplainResult) -> None:
    found = result.calibration
    out.print(
        f"[dim]calibration '{escape(found.name)}' of {escape(found.device)}, {found.created_at}[/]", highlight=False
    )
    print_notes(out, result.notes)

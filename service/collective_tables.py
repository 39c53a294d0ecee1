"""Measured and collected collectives as the tables that a user reads."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from oracle.units import format_rate, format_seconds
from service.launch_lines import ADDRESS
from service.network_tables import print_drift
from service.tables import print_notes, show_table, table

if TYPE_CHECKING:
    from calibration.link_values import LinkCalibration
    from profiler.collectives.records import Unavailable
    from service.collecting import CollectivesResult, CollectResult
    from service.collective_rows import CollectiveRow
    from service.measurement_plan import MeasurementPlan

_MOST_NOTES = 20


def print_measured(result: CollectivesResult) -> None:
    """What was measured on this machine, or where the ranks of a launcher left it."""
    out = Console()
    summary = result.summary
    if summary.place is not None:
        _say(
            out, f"each of {summary.place.ranks} ranks keeps its measurements in {result.folder}; bring them together:"
        )
        _say(out, f"stepgauge collect {result.folder}")
        return
    _print_rows(out, result.rows)
    stored = f"run {summary.run_id} in {result.store}"
    if result.network is not None:
        stored = f"'{result.network.name}' in {result.store} (run {summary.run_id})"
    _say(out, f"measured {summary.visits} visits in {format_seconds(summary.elapsed_s)}; stored as {stored}")
    _say(out, f"the times of every rank are kept in {result.folder}")
    _print_notes(out, [*_unavailable(summary.unavailable), *summary.problems, *_notes_of(result.network)])
    print_drift(out, result.drift)


def print_collected(result: CollectResult) -> None:
    """What the files of ranks brought, and what was left out."""
    out = Console()
    _print_rows(out, result.rows)
    for run in result.runs:
        scale = f"{run.ranks or 'unknown'} ranks on {run.nodes or 'unknown'} node(s) of {run.device}"
        known = run.visits - run.added
        known_text = f", {known} were known already" if known else ""
        _say(out, f"run {run.run} ({scale}): {run.added} visits added{known_text}")
    if result.network is not None:
        _say(out, f"fitted {len(result.network.curves)} curves; stored as '{result.network.name}' in {result.store}")
    _print_notes(out, [*_unavailable(result.unavailable), *result.problems, *_notes_of(result.network)])
    print_drift(out, result.drift)


def _print_rows(out: Console, rows: Sequence[CollectiveRow]) -> None:
    columns = ("collective", ">ranks", ">nodes", "dtype", ">sizes", ">visits", ">latency", ">bus bandwidth")
    apart = any(row.environment for row in rows)
    shown = table("", *columns, ">held-out error", ">stragglers", *(("environment",) if apart else ()))
    for row in rows:
        company = f", {row.concurrent} groups at once" if row.concurrent > 1 else ""
        form = f", {row.form}" if row.form else ""
        cells = [
            escape(f"{row.collective}{form}{company}"),
            str(row.ranks),
            str(row.nodes or "?"),
            row.dtype,
            str(row.sizes),
            str(row.visits),
            format_seconds(row.latency_s),
            format_rate(row.bus_bytes_per_s, "B/s"),
            "-" if row.held_out_error is None else f"{row.held_out_error:.1%}",
            str(row.stragglers),
        ]
        shown.add_row(*cells, *((escape(row.environment),) if apart else ()))
    show_table(out, shown)


def _notes_of(network: LinkCalibration | None) -> list[str]:
    """What the fit has to say, without the environment and the job that all curves share."""
    if network is None:
        return []
    shared = (set(network.environments), {curve.key.job for curve in network.curves})
    texts = [f", {text}" for found in shared if len(found) == 1 for text in found if text]
    return [functools.reduce(lambda note, text: note.replace(text, ""), texts, note) for note in network.notes]


def _unavailable(unavailable: Iterable[Unavailable]) -> Iterator[str]:
    """What the backend cannot do, a line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for item in unavailable:
        by_reason.setdefault(item.reason, []).append(item.what)
    for reason, whats in by_reason.items():
        more = f" and {len(whats) - 1} more" if len(whats) > 1 else ""
        yield f"not measured: {whats[0]}{more}: {reason}"


def _print_notes(out: Console, notes: Sequence[str]) -> None:
    print_notes(out, notes[:_MOST_NOTES])
    if len(notes) > _MOST_NOTES:
        print_notes(out, [f"and {len(notes) - _MOST_NOTES} more (all with --json)"])


def _say(out: Console, text: str) -> None:
    out.print(escape(text), highlight=False, soft_wrap=True)


def print_plan(plan: MeasurementPlan) -> None:
    """What to run on a cluster, why, and the lines that start it."""
    out = Console()
    for job in plan.jobs:
        where = f"{job.nodes} node{'s' if job.nodes > 1 else ''} of {job.ranks_per_node} ranks"
        placement = f" ({job.placement})" if job.placement else ""
        minutes = f"measuring {format_seconds(job.budget_s)}, time limit {format_seconds(job.launch.time_limit_s)}"
        out.print(f"[bold]{escape(job.name)}[/]: {escape(f'{where}{placement}, {minutes}')}", highlight=False)
        groups = table("", "  group", ">ranks", "why")
        for group in job.groups:
            groups.add_row(f"  {group.kind}", str(group.ranks), escape(group.why))
        show_table(out, groups)
        for launcher, line in job.launch.commands().items():
            _say(out, f"  {launcher:9} {line}")
        _say(out, f"  {'then':9} {job.launch.collect}")
    if any(job.nodes > 1 for job in plan.jobs):
        _say(out, "before, in a batch job of Slurm (srun and torchrun need to know where rank 0 is):")
        for line in ADDRESS:
            _say(out, f"  {line}")
    for script in plan.scripts:
        _say(out, f"wrote {script}")
    print_notes(out, plan.notes)

"""What tracing and profiling print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from oracle.layer import Phase
from oracle.units import format_bytes, format_seconds
from service.tables import print_notes, show_table, table

if TYPE_CHECKING:
    from profiler.insitu.profile import Profile
    from service.profiling import ProfileResult
    from service.tracing import TraceResult


def print_traced(result: TraceResult) -> None:
    """The kinds of layers of a traced model, and what has to be said of it."""
    console, graph = Console(), result.graph
    shape = " x ".join(map(str, graph.sample_shape))
    console.print(
        f"[bold]{escape(graph.name)}[/]: {len(graph.nodes)} layers on samples of {shape}, {graph.params:,} parameters, "
        f"{result.flop(Phase.FORWARD) / 1e9:.4g} GFLOP forward and "
        f"{result.flop(Phase.BACKWARD_DATA, Phase.BACKWARD_WEIGHT) / 1e9:.4g} backward a sample",
        highlight=False,
        soft_wrap=True,
    )
    kinds = table("", "kind", ">layers", ">parameters", ">GFLOP a sample")
    for kind, count in result.kinds.items():
        places = [index for index, node in enumerate(graph.nodes) if node.layer.kind == kind]
        params = sum(graph.nodes[index].layer.params for index in places)
        flop = sum(graph.sample_flop[index] for index in places)
        kinds.add_row(kind, str(count), f"{params:,}", f"{flop / 1e9:.4g}")
    show_table(console, kinds)
    print_notes(console, result.notes)
    where = (
        f"wrote {result.out}" if result.out else "give --out FILE.json to keep it, then: stepgauge predict FILE.json"
    )
    console.print(f"[dim]{escape(where)}[/]", highlight=False, soft_wrap=True)


SHOWN = 15
"""Layers that a profile prints unless all are asked for."""

_PHASES = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD_DATA: "backward-data",
    Phase.BACKWARD_WEIGHT: "backward-weight",
    Phase.UPDATE: "update",
}


def print_profiled(result: ProfileResult) -> None:
    """The layers of each model beside its step."""
    console = Console()
    for found in result.profiles:
        _print_profile(console, result, found)
    if result.calibration is not None:
        said = f"stored as '{result.calibration.name}' in {result.store}: predict other batches with it"
    else:
        said = f"measurements are in {result.store} (run {result.run_id}); --name NAME makes a calibration of them"
    console.print(escape(said), highlight=False, soft_wrap=True)


def _print_profile(console: Console, result: ProfileResult, found: Profile) -> None:
    step_s = found.step_s
    title = f"{escape(found.graph.name)}, {found.samples} samples a step"
    layers = table(title, "layer", "kind", *(f">{name}" for name in _PHASES.values()), ">all", ">of the step")
    rows = result.rows(found)
    shown = rows if result.all_layers else rows[:SHOWN]
    for row in shown:
        phases = [format_seconds(row.seconds[phase]) if phase in row.seconds else "" for phase in _PHASES]
        layers.add_row(escape(row.node), row.kind, *phases, format_seconds(row.total_s), f"{row.total_s / step_s:.1%}")
    if len(rows) > len(shown):
        hidden = rows[len(shown) :]
        phases = [format_seconds(sum(row.seconds.get(phase, 0.0) for row in hidden)) for phase in _PHASES]
        total_s = sum(row.total_s for row in hidden)
        cells = (f"{len(hidden)} others", "", *phases, format_seconds(total_s), f"{total_s / step_s:.1%}")
        layers.add_row(*cells, style="dim")
    phases = [format_seconds(found.phase_s(phase)) for phase in _PHASES]
    total = f"{found.layers_s / step_s:.1%}"
    layers.add_row("all layers", "", *phases, format_seconds(found.layers_s), total, style="bold")
    for name, seconds in found.rest_s.items():
        layers.add_row(name, "", *[""] * len(_PHASES), format_seconds(seconds), f"{seconds / step_s:.1%}")
    steps = f"of {len(found.forward_s)} steps"
    layers.add_row("whole step", "", steps, *[""] * 3, format_seconds(step_s), "100.0%", style="bold")
    show_table(console, layers)
    faults = "" if found.page_faults is None else f"; {found.page_faults:,.0f} pages are faulted in by a step"
    console.print(
        f"[dim]peak memory {format_bytes(found.peak_bytes)}{faults}; data takes no time, the batch stays on the "
        "device[/]",
        highlight=False,
        soft_wrap=True,
    )

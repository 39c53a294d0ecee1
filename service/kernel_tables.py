"""The kernels of a calibration as tables and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from oracle.layer import Phase
from oracle.units import format_rate, format_seconds
from service.tables import print_notes, show_table, table

if TYPE_CHECKING:
    from db.reading import Reader
    from oracle.constants import Constant
    from service.kernel_view import FamilyView, Narrowing, ShownKernels

_LEGEND = 12
"""Families that are named in a picture: those with the most shapes."""


def show_and_plot_kernels(store: Reader, name: str | None, question: str | None, plot: Path | None) -> ShownKernels:
    """The kernels of a calibration, drawn into a file where one is named; see `kernel_view.show_kernels`."""
    from service.kernel_view import show_kernels
    from service.plotting import check_plot

    if plot is not None:  # refused before anything is computed for it
        check_plot(plot)
    shown = show_kernels(store, name, question)
    if plot is not None:
        plot_kernels(shown, plot)
    return shown


def print_kernels(shown: ShownKernels) -> None:
    """Families with their constants and errors, then what would narrow a question."""
    console = Console()
    known = shown.calibration
    console.print(f"[bold]{escape(known.name)}[/]: {escape(known.device)}, {known.created_at}")
    columns = ("kernels", "law", ">shapes", "constants", ">held-out error", ">own shapes inside", ">half-width")
    families = table("", *columns, "not identified", "correlated")
    for view in shown.families:
        fit = view.fit
        families.add_row(
            escape(f"{fit.family} {str(fit.phase).replace('_', '-')} {fit.execution}"),
            fit.law,
            str(fit.shapes),
            ", ".join(_constant(constant) for constant in fit.constants if constant.identified),
            f"{fit.held_out_error:.1%}" if fit.tested else "-",
            "-" if view.coverage is None else f"{view.coverage:.0%}",
            "-" if view.half_width is None else f"{view.half_width:.1%}",
            ", ".join(view.not_identified),
            ", ".join(f"{first} and {second} {value:+.2f}" for first, second, value in view.correlated),
        )
    show_table(console, families)
    if shown.narrowing is not None:
        _print_narrowing(console, shown.narrowing)
    print_notes(console, shown.notes)


def _constant(constant: Constant) -> str:
    if constant.unit == "1":
        return f"{constant.quantity} {constant.value:.2f}"
    if constant.unit == "s":
        what = {
            "launch_s": "launch",
            "call_s": "a step",
            "enqueue_s": "enqueue",
            "enqueue_step_s": "enqueue a step",
        }[constant.quantity]
        return f"{what} {format_seconds(constant.value)}"
    return format_rate(constant.value, constant.unit)


def _print_narrowing(console: Console, narrowing: Narrowing) -> None:
    console.print(
        f"{escape(narrowing.question)}: {format_seconds(narrowing.step_s)}, 80 % interval "
        f"+-{narrowing.half_width:.1%} without the machine's drift; with these measured +-{narrowing.after:.1%}",
        highlight=False,
        soft_wrap=True,
    )
    if not narrowing.proposals:
        console.print("every call of it was measured: nothing but a repeat narrows it")
        return
    proposals = table("", "measure", "phase", ">samples", ">times", ">seconds", "known by", ">share of the variance")
    for item in narrowing.proposals:
        cells = (str(item.samples), str(item.count), format_seconds(item.seconds), item.method, f"{item.share:.0%}")
        proposals.add_row(escape(item.layer), item.phase.replace("_", "-"), *cells)
    show_table(console, proposals)


def plot_kernels(shown: ShownKernels, path: Path) -> None:
    """Predicted against measured, the rooflines with the measured shapes, and residuals by shape."""
    from matplotlib.figure import Figure

    from service.plotting import save_figure

    figure = Figure(figsize=(16, 6), layout="constrained")
    panels = figure.subplots(1, 3)
    named = sorted(shown.families, key=lambda view: -len(view.measured_s))
    for place, view in enumerate(named):
        label = f"{view.fit.family} {view.fit.phase}" if place < _LEGEND else None
        _draw(panels, view, label, f"C{place % 10}")
    ends = _ends(named)
    panels[0].plot(ends, ends, color="grey", linewidth=0.8)
    panels[0].set(xlabel="measured s", ylabel="predicted s", xscale="log", yscale="log")
    panels[1].set(xlabel="FLOP per byte", ylabel="FLOP/s", xscale="log", yscale="log")
    panels[2].axhline(0, color="grey", linewidth=0.8)
    panels[2].set(xlabel="measured s", ylabel="ln(measured / predicted)", xscale="log")
    figure.suptitle(f"{shown.calibration.name}: {shown.calibration.device}; measured shapes, priced by the fits")
    save_figure(figure, panels, path)


def _ends(views: list[FamilyView]) -> list[float]:
    times = np.concatenate([view.measured_s for view in views] or [np.ones(1)])
    return [float(times.min()), float(times.max())] if len(times) else [1e-6, 1.0]


def _draw(panels: Any, view: FamilyView, label: str | None, color: str) -> None:
    points = {"s": 8, "color": color, "alpha": 0.6}
    panels[0].scatter(view.measured_s, view.predicted_s, label=label, **points)
    panels[2].scatter(view.measured_s, np.log(view.measured_s / view.predicted_s), **points)
    rates = {constant.quantity: constant.value for constant in view.fit.constants}
    if view.fit.phase is Phase.UPDATE or "flop_per_s" not in rates or not len(view.measured_s):
        return
    panels[1].scatter(view.flop / view.bytes, view.flop / view.measured_s, **points)
    intensity = np.geomspace((view.flop / view.bytes).min() / 2, (view.flop / view.bytes).max() * 2, 50)
    ceiling = np.minimum(rates["flop_per_s"], intensity * rates.get("bytes_per_s", np.inf))
    panels[1].plot(intensity, ceiling, color=color, linewidth=0.8)

"""Pictures of advice, scaling, explanations and networks, as .png, .svg or .html (an SVG inside a page)."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oracle.errors import BadInput, MissingDependency
from oracle.units import format_bytes

if TYPE_CHECKING:
    from calibration.link_values import LinkCurve
    from service.advising import AdviceResult, ExplainResult, ScaleResult
    from service.catalogue import ShownCalibration, ShownNetwork

_LINE_POINTS = 200
_LONGEST_LABEL = 60

SUFFIXES = (".png", ".svg", ".html")


def check_plot(path: Path) -> None:
    """Refuse a picture that cannot be drawn.

    Raises:
        BadInput: another suffix, or no such folder. MissingDependency: matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise BadInput(f"--plot draws {', '.join(SUFFIXES)}, not '{path.name}'")
    if not path.resolve().parent.is_dir():
        raise BadInput(f"cannot write {path}: no folder {path.resolve().parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingDependency("matplotlib", "plot") from None


def plot_advice(result: AdviceResult, path: Path) -> None:
    """Memory over time per sample: every variant that was tried, and the front."""
    figure, axes = _axes()
    tried = [option for option in result.ranking.tried if option.projection.step is not None]
    axes.scatter(
        [1e3 * option.seconds_per_sample for option in tried],
        [option.memory_bytes / 2**30 for option in tried],
        color="lightgrey",
        label="tried",
    )
    for row in result.front:
        step, memory, job = row.projection.step, row.projection.memory, row.projection.job
        if step is not None and memory is not None:
            label = f"{row.label} ({job.devices}, {format_bytes(memory.total_bytes)})"
            axes.scatter([1e3 * step.middle / job.global_batch], [memory.total_bytes / 2**30], label=label)
    job = result.ranking.job
    axes.set(xlabel="ms per sample", ylabel="GiB per device", xscale="log", yscale="log")
    axes.set_title(f"{job.model.name} on up to {job.devices} x {job.cluster.device}")
    save_figure(figure, [axes], path)


def plot_scaling(result: ScaleResult, path: Path) -> None:
    """Samples per second over devices, with 80 % intervals."""
    figure, axes = _axes()
    lines: dict[str, list[tuple[int, float, float, float]]] = defaultdict(list)
    for row in result.rows:
        rate = row.projection.samples_per_s
        if rate is not None and not row.projection.reason:
            lines[row.label].append((row.projection.job.devices, rate.middle, *rate.interval()))
    for label, points in lines.items():
        devices, middle, low, high = zip(*points, strict=True)
        (line,) = axes.plot(devices, middle, marker="o", label=label)
        axes.fill_between(devices, low, high, color=line.get_color(), alpha=0.2)
    axes.set(xlabel="devices", ylabel="samples/s", yscale="log")
    axes.set_xscale("log", base=2)
    if result.rows:
        axes.set_title(result.rows[0].projection.job.model.name)
    save_figure(figure, [axes], path)


def plot_explanation(result: ExplainResult, path: Path) -> None:
    """A bar for each part of the step: kernels and transfers."""
    figure, axes = _axes()
    projection = result.row.projection
    parts = list(dict.fromkeys((*projection.compute, *projection.communication)))
    names = [part.replace("_", " ") for part in parts]
    compute = [1e3 * projection.compute[part].middle if part in projection.compute else 0.0 for part in parts]
    moved = [1e3 * projection.communication[part].middle if part in projection.communication else 0.0 for part in parts]
    axes.barh(names, compute, label="kernels")
    axes.barh(names, moved, left=compute, label="transfers waited for")
    for name, seconds in (("bubble", projection.bubble), ("stragglers", projection.stragglers)):
        if seconds.middle:
            axes.barh([name], [1e3 * seconds.middle], label=name)
    axes.invert_yaxis()
    axes.set(xlabel="ms per step", title=f"{projection.job.model.name}, {result.row.label}")
    save_figure(figure, [axes], path)


def plot_network(shown: ShownCalibration | ShownNetwork, path: Path) -> None:
    """Bus bandwidth over size, both logarithmic: what was measured as points, the fit as lines; one panel each.

    Raises:
        BadInput: it is the calibration of a device.
    """
    from service.catalogue import ShownNetwork

    if not isinstance(shown, ShownNetwork):
        raise BadInput("--plot draws the collectives of a network, not the constants of a device")
    known = shown.calibration
    names = sorted({curve.key.collective for curve in known.curves})
    figure, panels = _panels(len(names))
    figure.suptitle(f"{known.name}: {known.fabric}")
    for name, axes in zip(names, panels, strict=True):
        for curve in known.curves:
            if curve.key.collective == name:
                _draw_curve(axes, curve)
        axes.set(title=name, xlabel="bytes", ylabel="bus bandwidth in bytes/s", xscale="log", yscale="log")
    save_figure(figure, panels, path)


def _draw_curve(axes: Any, curve: LinkCurve) -> None:
    import numpy as np

    from calibration.link_curves import read
    from calibration.link_sources import bus_factor

    key, factor = curve.key, bus_factor(curve.key)
    sizes, seconds = np.array(curve.sizes_bytes), np.array(curve.seconds)
    about = ", ".join(text for text in (key.dtype, key.form, key.environment, key.job) if text)
    label = f"{key.ranks} ranks, {key.nodes or '?'} nodes, {about}"[:_LONGEST_LABEL]
    (points,) = axes.plot(sizes, factor * sizes / seconds, linestyle="", marker="o", markersize=4, label=label)
    between = np.geomspace(sizes[0], sizes[-1], _LINE_POINTS)
    axes.plot(between, factor * between / np.exp(read(curve, between).log_s), color=points.get_color(), linewidth=1)


def _axes() -> tuple[Any, Any]:
    figure, (axes,) = _panels(1)
    return figure, axes


def _panels(count: int) -> tuple[Any, list[Any]]:
    """So many panels, two in a row."""
    from matplotlib.figure import Figure

    columns = min(2, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(9 if columns == 1 else 14, 6 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for empty in panels[count:]:
        empty.set_visible(False)
    return figure, panels[:count]


def save_figure(figure: Any, panels: Sequence[Any], path: Path) -> None:
    """Write a figure with the legends of its panels.

    Raises:
        BadInput: the file cannot be written.
    """
    for axes in panels:
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
    page = path.suffix.lower() == ".html"
    target: Any = io.StringIO() if page else path
    try:
        figure.savefig(target, format="svg" if page else path.suffix[1:].lower(), dpi=150)
        if page:
            head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>stepgauge</title><body>'
            svg = target.getvalue()
            path.write_text(f"{head}{svg[svg.index('<svg') :]}</body></html>\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None


PLOTS: dict[str, Callable[[Any, Path], None]] = {
    "advise": plot_advice,
    "scale": plot_scaling,
    "explain": plot_explanation,
    "show": plot_network,
}
"""The picture of each command's result."""

"""Pictures of advice, scaling and explanations, as .png, .svg or .html (an SVG inside a page)."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oracle.errors import BadInput, MissingDependency
from oracle.units import format_bytes

if TYPE_CHECKING:
    from service.advising import AdviceResult, ExplainResult, ScaleResult

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


def _axes() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    return figure, figure.subplots()


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
}
"""The picture of each command's result."""

"""Results of imports and networks as the tables that a user reads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.markup import escape

from calibration.link_curves import read
from calibration.link_sources import bus_factor
from oracle.units import format_rate, format_seconds
from service.tables import print_notes, show_table, table

if TYPE_CHECKING:
    from calibration.link_values import LinkCalibration, LinkCurve, Measured
    from service.catalogue import ShownNetwork
    from service.fitting import FitResult
    from service.importing import ImportedOne, ImportResult
    from service.network_comparing import NetworkComparison
    from service.row_pricing import PriceResult


def print_imported(result: ImportResult) -> None:
    """One line for each file, then what of it was dropped and has to be known."""
    out = Console()
    rows = table("", "file", "format", ">rows taken", ">dropped", "ranks", "verdict", "run")
    for file in result.files:
        rows.add_row(*_file_cells(file))
    show_table(out, rows)
    for file in result.files:
        _print_dropped(out, file, result.verbose)


def _file_cells(file: ImportedOne) -> list[str]:
    name = escape(file.file)
    if file.known:
        return [name, "", "0", "", "", "known already, nothing added", file.run]
    if file.report is None:
        return [name, "", "0", "", "", "[red]refused[/]", ""]
    report = file.report
    ranks = ", ".join(map(str, report.ranks[:8])) + (", ..." if len(report.ranks) > 8 else "")
    return [name, report.format, str(report.rows_taken), str(report.rows_dropped), ranks, str(report.verdict), file.run]


def _print_dropped(out: Console, file: ImportedOne, verbose: bool) -> None:
    from service.importing import grouped

    report = file.report
    if report is None:
        return
    if verbose:
        for item in report.dropped:
            out.print(
                f"{escape(file.file)}:{item.line}: {escape(item.reason)}: {escape(item.text)}",
                highlight=False,
                soft_wrap=True,
            )
    else:
        for reason, count, line in grouped(report.dropped):
            text = f"{file.file}: dropped {count} x {reason} (first in line {line})"
            out.print(escape(text), highlight=False, soft_wrap=True)
    print_notes(out, [f"{file.file}: {warning}" for warning in report.warnings])


def print_fitted(result: FitResult) -> None:
    """What was fitted, how well, and from what."""
    out = Console()
    if result.network is not None:
        _print_curves(out, result.network)
        what = f"{len(result.network.curves)} curves of {result.network.fabric}"
        name = result.network.name
    elif result.calibration is not None:
        name = result.calibration.name
        counts = f"{len(result.calibration.constants)} constants and {len(result.calibration.shapes)} shapes"
        what = f"{counts} of {result.calibration.device}"
    left = f"; {result.left_out} that are no layer's kernels left out" if result.left_out else ""
    text = (
        f"fitted {what} from {result.measurements} measurements of {', '.join(result.runs)}{left}; stored as '{name}'"
    )
    out.print(escape(text), highlight=False, soft_wrap=True)
    print_notes(out, result.notes)
    print_drift(out, result.drift)


def print_drift(out: Console, drift: NetworkComparison | None) -> None:
    """How a network that was just fitted differs from the one before of its fabric; nothing where it is the first."""
    if drift is not None:
        out.print(f"drift against '{escape(drift.first.name)}':", highlight=False, soft_wrap=True)
        _print_times(out, drift)


def print_networks(result: NetworkComparison) -> None:
    """Two networks: times of the same collectives, then constants."""
    out = Console()
    _print_times(out, result)
    columns = ("constant", "environment", f">{escape(result.first.name)}", f">{escape(result.second.name)}")
    rows = table("", *columns, ">ratio", ">80 % interval", "")
    for item in result.constants:
        interval = "" if item.lo is None or item.hi is None else f"{item.lo:.2f} - {item.hi:.2f}"
        numbers = (f"{item.first.value:.4g} {item.first.unit}", f"{item.second.value:.4g} {item.second.unit}")
        names = (escape(item.first.name), escape(item.first.environment))
        rows.add_row(*names, *numbers, f"{item.ratio:.2f}", interval, "differs" if item.differs else "")
    if result.constants:
        show_table(out, rows)
    for name, only in ((result.first.name, result.only_first), (result.second.name, result.only_second)):
        if only:
            print_notes(out, [f"only in {name}: {'; '.join(only)}"])


def _print_times(out: Console, result: NetworkComparison) -> None:
    """How many times as long each collective takes as before, over the sizes that both have."""
    columns = ("collective", ">ranks", ">nodes", "dtype", ">sizes", ">time, second / first", ">80 % interval", "")
    rows = table("", *columns, "environment")
    for item in result.times:
        key = item.key
        environment = key.environment if item.was == key.environment else f"{item.was} -> {key.environment}"
        rows.add_row(
            escape(" ".join(text for text in (key.collective, key.form) if text)),
            str(key.ranks),
            str(key.nodes or "?"),
            key.dtype,
            str(item.sizes),
            f"{item.ratio:.2f}",
            f"{item.lo:.2f} - {item.hi:.2f}",
            "differs" if item.differs else "",
            escape(environment),
        )
    if result.times:
        show_table(out, rows)
    else:
        print_notes(out, ["no collective has a size in common"])


def print_network(shown: ShownNetwork) -> None:
    """One network: its curves, its laws in ranks, its notes; every measured size where that is asked."""
    out = Console()
    known = shown.calibration
    out.print(
        f"[bold]{escape(known.name)}[/]: {escape(known.fabric)}, {shown.network.created_at}",
        highlight=False,
        soft_wrap=True,
    )
    if shown.collectives:
        for curve in known.curves:
            _print_sizes(out, curve)
    else:
        _print_curves(out, known)
    for law in known.laws:
        names = ", ".join(branch.name for branch in law.branches)
        where = f"{law.collective} between nodes, {law.ranks_per_node} per node, {law.dtype} {law.environment}".strip()
        scales = ", ".join(map(str, law.ranks))
        out.print(escape(f"{where}: a law in ranks ({names}) from {scales} ranks"), highlight=False, soft_wrap=True)
    _print_company(out, known)
    print_notes(out, known.notes)


def _print_company(out: Console, known: LinkCalibration) -> None:
    """What other groups, kernels and the framework make of a transfer."""
    for item in known.contention:
        where = "between nodes" if item.between_nodes else "inside a node"
        interval = "" if item.lo is None or item.hi is None else f" ({item.lo:.2f} - {item.hi:.2f})"
        text = f"{item.concurrent} groups at once {where}: {item.factor:.2f} times the time of a byte{interval}"
        out.print(text, highlight=False, soft_wrap=True)
    for overlap in known.overlap:
        kernels, moved = overlap.of_kernels, overlap.of_collective
        text = (
            f"{overlap.collective} of {overlap.ranks} ranks beside {overlap.kernel}: it takes {_times(moved)} as long"
        )
        out.print(escape(f"{text}, the kernel {_times(kernels)}"), highlight=False, soft_wrap=True)
    for overhead in known.overheads:
        text = f"torch.distributed adds {format_seconds(overhead.seconds.value)} to a small {overhead.collective}"
        out.print(escape(f"{text} of {overhead.ranks} ranks"), highlight=False, soft_wrap=True)


def _times(factor: Measured) -> str:
    return f"{factor.value:.2f} ({factor.lo:.2f} - {factor.hi:.2f}) times"


def _print_curves(out: Console, known: LinkCalibration) -> None:
    columns = ("collective", ">ranks", ">nodes", "dtype", ">sizes", ">alpha", ">bytes/s", ">pieces", ">held-out error")
    rows = table("", *columns, "environment")
    for curve in known.curves:
        key, line = curve.key, curve.alpha_beta
        rows.add_row(
            key.collective,
            str(key.ranks),
            str(key.nodes or "?"),
            key.dtype,
            str(len(curve.sizes_bytes)),
            format_seconds(line.alpha_s),
            format_rate(1 / line.s_per_byte, "B/s") if line.s_per_byte else "-",
            str(len(curve.pieces)),
            "" if curve.held_out_error is None else f"{curve.held_out_error:.1%}",
            escape(", ".join(text for text in (key.form, key.environment, key.job) if text)),
        )
    show_table(out, rows)
    out.print(
        "[dim]alpha and bytes/s of the whole buffer: the explanation, not the price[/]", highlight=False, soft_wrap=True
    )


def _print_sizes(out: Console, curve: LinkCurve) -> None:
    """Bus bandwidth against size: measured, priced, and by alpha and beta alone."""
    columns = (">bytes", ">time", ">busbw", ">priced", ">difference", ">alpha-beta", "busbw, up to the largest")
    rows = table(escape(curve.key.text), *columns)
    factor = bus_factor(curve.key)
    sizes = np.array(curve.sizes_bytes)
    priced = np.exp(read(curve, sizes).log_s)
    busbw = factor * sizes / np.array(curve.seconds)
    for size, second, price, rate in zip(sizes, curve.seconds, priced, busbw, strict=True):
        rows.add_row(
            f"{size:.0f}",
            format_seconds(second),
            format_rate(float(rate), "B/s"),
            format_rate(factor * float(size / price), "B/s"),
            f"{price / second - 1:+.1%}",
            format_rate(factor * float(size / curve.alpha_beta.seconds(float(size))), "B/s"),
            _bar(float(rate / busbw.max())),
        )
    show_table(out, rows)


def _bar(share: float) -> str:
    """A bar on a logarithmic scale of three decades, as long as the share of the largest.

    >>> len(_bar(1.0)), len(_bar(0.1)), len(_bar(1e-9))
    (30, 20, 0)
    """
    return "#" * max(0, round(30 + 10 * math.log10(max(share, 1e-9))))


def print_priced(result: PriceResult) -> None:
    """How many rows have a price and how, and the scores of those that carry a time."""
    out = Console()
    if result.scores:
        rows = table("", "group", ">rows", ">MAPE", ">median", ">P90", ">in 80 % interval", ">half-width")
        for score in result.scores:
            shares = (score.mape, score.median, score.p90, score.coverage, score.half_width)
            rows.add_row(escape(score.group), str(score.rows), *(f"{share:.1%}" for share in shares))
        show_table(out, rows)
    methods = ", ".join(f"{count} {method}" for method, count in result.methods.items())
    written = f"; written to {result.out}" if result.out else ""
    how = f" ({methods})" if methods else ""
    text = f"{result.priced} of {result.rows} rows priced by '{result.name}'{how}{written}"
    out.print(escape(text), highlight=False, soft_wrap=True)
    reasons = list(result.unpriced.items())
    print_notes(out, [f"{count} rows have no price: {reason}" for reason, count in reasons[:_MOST_REASONS]])
    if len(reasons) > _MOST_REASONS:
        print_notes(out, [f"and {len(reasons) - _MOST_REASONS} further reasons (all with --json)"])


_MOST_REASONS = 10

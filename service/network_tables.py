"""Results of imports and networks as the tables that a user reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from calibration.link_curves import read
from calibration.link_sources import bus_factor
from oracle.units import format_rate, format_seconds
from service.tables import print_notes, show_table, table

if TYPE_CHECKING:
    from calibration.link_values import LinkCalibration, LinkCurve
    from service.catalogue import ShownNetwork
    from service.fitting import FitResult
    from service.importing import ImportedOne, ImportResult
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
    print_notes(out, known.notes)


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
            escape(", ".join(text for text in (key.environment, key.job) if text)),
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
    text = f"{result.priced} of {result.rows} rows priced by '{result.name}' ({methods}){written}"
    out.print(escape(text), highlight=False, soft_wrap=True)
    reasons = list(result.unpriced.items())
    print_notes(out, [f"{count} rows have no price: {reason}" for reason, count in reasons[:_MOST_REASONS]])
    if len(reasons) > _MOST_REASONS:
        print_notes(out, [f"and {len(reasons) - _MOST_REASONS} further reasons (all with --json)"])


_MOST_REASONS = 10

PRINTERS: dict[str, Callable[[Any], None]] = {"import": print_imported, "fit": print_fitted, "price": print_priced}
"""The printer of each command's result."""

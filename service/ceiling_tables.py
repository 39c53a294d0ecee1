"""The limits of a device as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from oracle.units import format_bytes, format_rate, format_seconds
from service.tables import print_notes, show_table, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from profiler.ceilings.probe import Ceiling, Probe
    from service.ceilings import CeilingsResult


def print_ceilings(result: CeilingsResult) -> None:
    """Every answer, in a burst and sustained, beside the data sheet."""
    console = Console()
    shown = table("", "question", ">case", ">burst", ">sustained", ">data sheet", ">burst / data sheet")
    for item in result.ceilings:
        promise = result.promise(item)
        shown.add_row(
            item.probe.question,
            _case(item.probe),
            _value(item, item.burst),
            "" if item.sustained is None else _value(item, item.sustained),
            "" if promise is None else _value(item, promise),
            "" if promise is None else f"{item.burst / promise:.0%}",
        )
    show_table(console, shown)
    where = f"{escape(result.device)}; stored as run {result.run_id} in {escape(result.store)}"
    console.print(f"[dim]{where}[/]", highlight=False, soft_wrap=True)
    print_notes(console, _notes(result))


def _notes(result: CeilingsResult) -> Iterator[str]:
    if result.sheet is None:
        yield f"no data sheet of '{result.device}' is at hand"
    else:
        yield f"data sheet: {result.sheet.source}"
    reasons: dict[str, list[str]] = {}
    for item in result.unanswered:
        reasons.setdefault(item.reason, []).append(item.probe.text)
    for reason, texts in reasons.items():
        yield f"{', '.join(texts)}: {reason}"


def _case(probe: Probe) -> str:
    return " ".join(
        format_bytes(value) if name.endswith("bytes") else f"{name} {value}" for name, value in probe.case.items()
    )


def _value(item: Ceiling, value: float) -> str:
    return format_seconds(value) if item.probe.unit == "s" else format_rate(value, item.probe.unit)

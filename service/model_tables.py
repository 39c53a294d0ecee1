"""What tracing and profiling print."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from oracle.layer import Phase
from service.tables import print_notes, show_table, table

if TYPE_CHECKING:
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


PRINTERS: dict[str, Callable[[Any], None]] = {"trace": print_traced}
"""The printer of each command's result."""

"""Trace a model that is written in Python, and keep it as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracle.layer import Phase
from oracle.model import ModelGraph
from service.catalogue import write_text


@dataclass(frozen=True)
class TraceRequest:
    """Trace a module.

    Args:
        factory: `package.module:callable` or `path/file.py:callable`.
        inputs: shapes such as `3x224x224` or `128:int64`; none takes the factory's example inputs.
        batch: samples of the traced step.
        out: where to write the graph.
        name: of the graph.
    """

    factory: str
    inputs: tuple[str, ...] = ()
    batch: int | None = None
    out: Path | None = None
    name: str | None = None


@dataclass(frozen=True)
class TraceResult:
    """A traced model, where it was written, and what has to be said of it."""

    graph: ModelGraph
    notes: tuple[str, ...]
    out: Path | None

    @property
    def kinds(self) -> dict[str, int]:
        """How many layers of each kind there are."""
        return dict(Counter(node.layer.kind for node in self.graph.nodes).most_common())

    def flop(self, *phases: Phase) -> float:
        """Operations of one sample in some phases."""
        layers = [node.layer for node in self.graph.nodes]
        return sum(layer.work(phase, 1).flop for layer in layers for phase in phases if phase in layer.phases)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "model": self.graph.name,
            "sample_shape": list(self.graph.sample_shape),
            "layers": len(self.graph.nodes),
            "kinds": self.kinds,
            "parameters": self.graph.params,
            "forward_flop": self.flop(Phase.FORWARD),
            "backward_flop": self.flop(Phase.BACKWARD_DATA, Phase.BACKWARD_WEIGHT),
            "out": None if self.out is None else str(self.out),
            "notes": list(self.notes),
        }


def trace_model(request: TraceRequest) -> TraceResult:
    """Trace a module and write its graph.

    Raises:
        BadInput: the module cannot be traced; the text says where and why.
        MissingDependency: torch is not installed.
    """
    from profiler.tracing.factory import load_factory, parse_input
    from profiler.tracing.trace import trace

    inputs = tuple(map(parse_input, request.inputs))
    traced = trace(load_factory(request.factory), inputs, request.batch, request.name)
    if request.out is not None:
        write_text(request.out, traced.graph.to_json() + "\n")
    return TraceResult(traced.graph, traced.notes, request.out)

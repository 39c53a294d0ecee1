"""Which layer and phase an operation of a step belongs to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from oracle.layer import Layer, Phase
from oracle.model import ModelGraph
from profiler.insitu.observer import Operation
from profiler.tracing.trace import Traced

LOSS, SUMS, COPIES = "loss and reshapes", "sums of gradients", "copies of gradients"
"""What operations do that belong to no layer."""

_GRAPH_LAYER = re.compile(r"layers\.(\d+)(\.|$)")
"""How the parts of a `GraphModule` are called."""


@dataclass(frozen=True)
class Attribution:
    """Where the operations of a step belong.

    Args:
        places: for every operation, (node, phase) or one of the rests above; updates have neither.
        updates: for every operation of the update, the share of each node; by operation.
        tensors: parameters that each node holds.
    """

    places: tuple[tuple[str, Phase] | str | None, ...]
    updates: Mapping[int, Mapping[str, float]]
    tensors: Mapping[str, int]


def of_graph_module(graph: ModelGraph, operations: Sequence[Operation], params: Iterable[str]) -> Attribution:
    """Where the operations of the module of a graph belong: it has a part for each node, in order."""

    def node_of(name: str) -> str | None:
        found = _GRAPH_LAYER.match(name)
        return graph.nodes[int(found[1])].name if found else None

    owners = [node_of(operation.module) if operation.part == "forward" else None for operation in operations]
    return _attributed(graph, operations, owners, {name: node_of(name) or "" for name in params})


def of_traced(traced: Traced, operations: Sequence[Operation]) -> Attribution:
    """Where the operations of another module belong: they are lined up with those of its trace.

    A real step may run more than a trace (autocast casts weights and inputs); what has no counterpart goes with the
    next operation of the same module.
    """
    forward = [operation for operation in operations if operation.part == "forward"]
    real = [(operation.name, operation.module) for operation in forward]
    matcher = SequenceMatcher(None, [(name, module) for name, module, _ in traced.operations], real, autojunk=False)
    owners: list[str | None] = [None] * len(operations)
    matched = [False] * len(real)
    places = [index for index, operation in enumerate(operations) if operation.part == "forward"]
    for block in matcher.get_matching_blocks():
        for step in range(block.size):
            owners[places[block.b + step]] = traced.operations[block.a + step][2]
            matched[block.b + step] = True
    after: dict[str, str | None] = {}
    for index in reversed(range(len(real))):
        module = real[index][1]
        if matched[index]:
            after[module] = owners[places[index]]
        else:
            owners[places[index]] = after.get(module)
    return _attributed(traced.graph, operations, owners, traced.holders)


def _attributed(
    graph: ModelGraph, operations: Sequence[Operation], owners: Sequence[str | None], holders: Mapping[str, str]
) -> Attribution:
    layers = {node.name: node.layer for node in graph.nodes}
    places: list[tuple[str, Phase] | str | None] = []
    updates: dict[int, Mapping[str, float]] = {}
    for index, operation in enumerate(operations):
        if operation.part == "update":
            updates[index] = _shares(operation, holders)
            places.append(None)
        else:
            owner = owners[index] if operation.part == "forward" else _owner_of_gradient(operation, owners)
            places.append(_place(operation, owner, graph, layers))
    return Attribution(tuple(places), updates, Counter(node for node in holders.values() if node))


def _owner_of_gradient(operation: Operation, owners: Sequence[str | None]) -> str | None:
    known = operation.forward is not None and operation.forward < len(owners)
    return owners[operation.forward] if known and operation.forward is not None else None


def _place(
    operation: Operation, owner: str | None, graph: ModelGraph, layers: Mapping[str, Layer]
) -> tuple[str, Phase] | str:
    if operation.part == "backward" and operation.forward is None:
        return COPIES if operation.accumulates or not operation.name.startswith("add") else SUMS
    if owner is None or owner not in layers:
        return LOSS
    if operation.part == "forward":
        return (owner, Phase.FORWARD)
    return (owner, _backward_phase(layers[owner], operation, graph.needs_data_gradient[owner]))


def _backward_phase(layer: Layer, operation: Operation, needs_data_gradient: bool) -> Phase:
    """The half of backward that an operation belongs to; a layer that hands no gradient on has only one."""
    if Phase.BACKWARD_WEIGHT not in layer.phases:
        return Phase.BACKWARD_DATA
    if Phase.BACKWARD_DATA not in layer.phases or not needs_data_gradient:
        return Phase.BACKWARD_WEIGHT
    if operation.half:
        return Phase.BACKWARD_DATA if operation.half == "data" else Phase.BACKWARD_WEIGHT
    return Phase.BACKWARD_DATA if operation.reads_weight else Phase.BACKWARD_WEIGHT


def _shares(operation: Operation, holders: Mapping[str, str]) -> dict[str, float]:
    """What each node has of an operation of the update: in proportion to the items that it updates."""
    items: Counter[str] = Counter()
    for name, count in (operation.touched or {}).items():
        if holders.get(name):
            items[holders[name]] += count
    total = items.total()
    return {node: count / total for node, count in items.items()}

"""Records of a step as a `ModelGraph`: neighbours without a kind put together, edges, names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from oracle.layer import Layer, Shape
from oracle.model import INPUT, Node
from oracle.operations import Other
from profiler.tracing.kinds import sample_shape
from profiler.tracing.recorder import SAMPLE, Record, Value

MOST_NAMES = 6
"""Operations that the name of an `other` layer lists."""


@dataclass(frozen=True)
class Assembled:
    """The nodes of a model, and for every record the node that it is part of."""

    nodes: tuple[Node, ...]
    node_of: tuple[str | None, ...]


def assemble(records: Sequence[Record], batch: int, shape: Shape) -> Assembled:
    """Turn records into nodes.

    Args:
        records: of one forward with its backward, in order.
        batch: samples in it.
        shape: of one sample.
    """
    return _Assembly(records, batch, shape).assembled()


class _Assembly:
    def __init__(self, records: Sequence[Record], batch: int, shape: Shape) -> None:
        self.records, self.batch, self.shape = records, batch, shape
        self.groups = list(_groups(records))
        self.group_of = {index: place for place, group in enumerate(self.groups) for index in group}
        self.read = self._read_elsewhere()
        self.names: set[str] = {INPUT}
        self.nodes: list[Node] = []
        self.node_of: list[str | None] = [None] * len(records)
        self.made: dict[tuple[int, int], str] = {}
        self.leaves = _leaves(records)

    def assembled(self) -> Assembled:
        for group in self.groups:
            record = self.records[group[0]]
            layer = record.layer
            name = self._other(group) if layer is None else self._layer(group[0], record, layer)
            for index in group:
                self.node_of[index] = name
        return Assembled(tuple(self.nodes), tuple(self.node_of))

    def _read_elsewhere(self) -> list[Value]:
        """The values that another group reads, in the order in which they were made."""
        found: dict[Value, None] = {}
        for index, record in enumerate(self.records):
            for value in record.operands if record.layer is not None else record.reads:
                if value.record != SAMPLE and self.group_of[value.record] != self.group_of[index]:
                    found[value] = None
        return sorted(found, key=lambda value: (value.record, value.output))

    def _layer(self, index: int, record: Record, layer: Layer) -> str:
        inputs = [
            self._source(value, math.prod(shape))
            for value, shape in zip(record.operands, layer.input_shapes, strict=True)
        ]
        name = self._append(self._name(record), layer, inputs)
        self.made[index, 0] = name
        for value in self.read:
            if value.record == index and value.output:
                self._part(name, layer.output_items, value)
        return name

    def _other(self, group: Sequence[int]) -> str | None:
        records = [self.records[index] for index in group]
        results = [value for value in self.read if value.record in set(group)]
        costs = [sum(getattr(record, count) for record in records) for count in _COUNTS]
        weights = tuple(items for record in records for items in record.weights)
        if not results and not any(costs) and not weights:
            return None
        reads = dict.fromkeys(value for record in records for value in record.reads if value.record not in set(group))
        sources = [(self._source(value), self._items(value)) for value in reads] or [(INPUT, math.prod(self.shape))]
        shape = self._shape(results[-1]) if results else self._last_shape(records)
        # Views are named where there is nothing else: their gradients may cost something.
        operations = [record.name for record in records if record.moved] or [record.name for record in records]
        layer = Other(
            operations=_listed(operations),
            operands=tuple(items for _, items in sources),
            shape=shape,
            **{count: -(-cost // self.batch) for count, cost in zip(_COUNTS, costs, strict=True)},
            weights=weights,
        )
        name = self._append(self._name(records[0], operations), layer, [source for source, _ in sources])
        for value in results[-1:]:
            self.made[value.record, value.output] = name
        for value in results[:-1]:
            self._part(name, layer.output_items, value)
        return name

    def _last_shape(self, records: Sequence[Record]) -> Shape:
        read = [value for record in records for value in record.reads]
        return self._shape(read[-1]) if read else self.shape

    def _part(self, name: str, items: int, value: Value) -> None:
        """Something else that a node makes: a node of no cost that gives it."""
        part = self._append(f"{name}.part", Other("part", (items,), self._shape(value)), [name])
        self.made[value.record, value.output] = part

    def _source(self, value: Value, wanted: int | None = None) -> str:
        """The node that makes a value, seen as `wanted` items (an expansion) where that is asked."""
        name = INPUT if value.record == SAMPLE else self.made[value.record, value.output]
        items = self._items(value)
        if wanted is None or wanted == items:
            return name
        return self._append(f"{name}.expanded", Other("expand", (items,), (wanted,)), [name])

    def _items(self, value: Value) -> int:
        return math.prod(self._shape(value))

    def _shape(self, value: Value) -> Shape:
        if value.record == SAMPLE:
            return self.shape
        return sample_shape(value.shape, self.batch) if value.sampled else (value.shape or (1,))

    def _append(self, name: str, layer: Layer, inputs: Iterable[str]) -> str:
        unique, count = name, 1
        while unique in self.names:
            count += 1
            unique = f"{name}_{count}"
        self.names.add(unique)
        self.nodes.append(Node(unique, layer, tuple(inputs)))
        return unique

    def _name(self, record: Record, operations: Sequence[str] = ()) -> str:
        """The module's name, with the operation's where the module runs more than one thing."""
        if record.module and record.module in self.leaves:
            return record.module
        own = operations[-1] if operations else record.name
        return ".".join(part for part in (record.module, own.strip("_")) if part)


_COUNTS = ("moved", "backward_moved", "flop", "backward_flop")


def _groups(records: Sequence[Record]) -> Iterator[list[int]]:
    """Layers one by one, and what has no kind together with its neighbours in the same module."""
    group: list[int] = []
    for index, record in enumerate(records):
        if group and record.layer is None and _may_join(records[group[-1]], record):
            group.append(index)
            continue
        if group:
            yield group
        group = [index]
    if group:
        yield group


def _may_join(before: Record, record: Record) -> bool:
    same_place = (before.module, before.sampled) == (record.module, record.sampled)
    return before.layer is None and same_place and record.module != "input"


def _leaves(records: Sequence[Record]) -> set[str]:
    """Modules that run one thing only."""
    counts = Counter(records[group[0]].module for group in _groups(records))
    return {module for module, count in counts.items() if count == 1}


def _listed(operations: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(name.strip("_") for name in operations))
    return "+".join([*distinct[:MOST_NAMES], *(["..."] if len(distinct) > MOST_NAMES else [])])


def without_dead_ends(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes without those that cost nothing and that nobody reads."""
    kept: list[Node] = []
    read: set[str] = set()
    for node in reversed(nodes):
        if node.layer.phases or node.name in read:
            kept.append(node)
            read.update(node.inputs)
    return tuple(replace(node) for node in reversed(kept))

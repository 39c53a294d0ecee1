"""Spatial parallelism: every device has a block of the image or volume of every sample, and all weights.

Before a layer whose windows overlap, neighbours exchange the rows at the rim of their blocks (the halo): of its input
forward and of its result's gradient backward; the gradient of weights needs none (ParaDL, HPDC 2021, Table III, row
'spatial'). Axis after axis is exchanged, each with the rows that the axes before it brought, so that corners arrive
without messages of their own. Batch normalisations keep the statistics of their block. All gradients are reduced over
all devices, as data-parallel frameworks do.

A layer that cannot be split (fully connected ones, global poolings, extents smaller than the grid) and all that follows
from it run replicated on gathered tensors: an all_gather forward and its reverse, a reduce_scatter, backward wherever a
tensor crosses over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from oracle.errors import BadInput, OutOfRange
from oracle.estimate import Ints
from oracle.groups import Group
from oracle.identity import Same
from oracle.layer import Shape
from oracle.model import INPUT, ModelGraph, Node
from oracle.plan import Exchange, Job, Limit, Plan, Shares, StepPart, stage_of
from oracle.sharding import backward_halo, forward_halo, shard, shard_node, spatial_ways
from oracle.strategies.data import with_gradient_exchange


@dataclass(frozen=True)
class Spatial:
    """Blocks of space.

    Args:
        grid: devices along each spatial axis, the first axis first; by default all along the first.
        last_split: the last layer, by name, that is split; those after it run replicated. By default every layer is
            split that can be, down to extents smaller than the grid.
    """

    name: ClassVar[str] = "spatial"
    grid: Shape | None = None
    last_split: str | None = None

    def __post_init__(self) -> None:
        if self.grid is not None and not (self.grid and min(self.grid) >= 1):
            raise OutOfRange(f"a grid has one or more devices along each axis, not {self.grid}")

    def limit(self, job: Job) -> Limit:
        """Every device needs a row of the layers that are split (by default: of the first layer)."""
        if self.grid is None:
            return self._row_limit(job)
        size, shown = math.prod(self.grid), "x".join(map(str, self.grid))
        narrowest = _narrowest(self._must_split(job), self.grid)
        if narrowest is not None:
            return Limit(1, f"{narrowest} is too small for a grid of {shown}")
        refused = "" if job.devices in (1, size) else f"a grid of {shown} has {size}"
        return Limit(size, f"a grid of {shown} has no more", refused)

    def plan(self, job: Job) -> Plan:
        """All samples on blocks of space, then replicated; and the exchange of all gradients."""
        grid = (job.devices,) if self.grid is None or job.devices == 1 else self.grid
        group = Group(job.devices)
        split = self._split(job, grid) if group.size > 1 else frozenset()
        nodes = [shard_node(n, spatial=grid) if n.name in split else n for n in job.model.nodes]
        exchanges = [] if group.size == 1 else [*_halos(job, split, grid), *_junctions(job, split, group)]
        stage = stage_of(job, tuple(nodes), job.global_batch, exchanges)
        stage = replace(with_gradient_exchange(stage, job, group), reduced=group.size)
        return Plan(job, job.global_batch, (stage,))

    def shares(self, job: Job, batches: Ints) -> Shares:
        """All samples of every batch."""
        return Shares.of(batches)

    def _row_limit(self, job: Job) -> Limit:
        rows = [(spatial_ways(node.layer)[:1] or (1,), node.name) for node in self._must_split(job)]
        if not rows:
            return Limit(1, "its samples have no rows to split")
        (fewest,), name = min(rows)
        return Limit(fewest, f"{name} has {fewest} row{'s' if fewest > 1 else ''}")

    def _must_split(self, job: Job) -> tuple[Node, ...]:
        """The layers that the limit rests on: up to the last one that is asked for, else the first alone."""
        nodes = job.model.nodes
        if len(job.model.sample_shape) < 2:
            return ()
        if self.last_split is None:
            return nodes[:1]
        names = [node.name for node in nodes]
        if self.last_split not in names:
            raise BadInput(f"{job.model.name} has no layer '{self.last_split}' to split")
        return nodes[: names.index(self.last_split) + 1]

    def _split(self, job: Job, grid: Shape) -> frozenset[str]:
        """The layers that are split: those that can be, read nothing replicated and come no later than the last."""
        return _splittable(Same((job.model,)), grid, self.last_split)


@lru_cache(maxsize=256)
def _splittable(model: Same[ModelGraph], grid: Shape, last_split: str | None) -> frozenset[str]:
    split = {INPUT}
    for node in model.items[0].nodes:
        tensors = (*node.layer.input_shapes, node.layer.output_shape)
        in_space = all(len(shape) == len(model.items[0].sample_shape) for shape in tensors)
        if in_space and _fits(spatial_ways(node.layer), grid) and split.issuperset(node.inputs):
            split.add(node.name)
        if node.name == last_split:
            break
    return frozenset(split - {INPUT})


def _fits(ways: Shape, grid: Shape) -> bool:
    return len(ways) >= len(grid) and all(size <= most for size, most in zip(grid, ways, strict=False))


def _narrowest(nodes: tuple[Node, ...], grid: Shape) -> str | None:
    return next((node.name for node in nodes if not _fits(spatial_ways(node.layer), grid)), None)


@dataclass(frozen=True)
class _Rim:
    """What a device gets from one side of a split axis, before or after a layer runs on its block."""

    layer: str
    part: StepPart
    axis: int
    items: int


def _halos(job: Job, split: frozenset[str], grid: Shape) -> list[Exchange]:
    groups = [Group(ways, stride=math.prod(grid[axis + 1 :])) for axis, ways in enumerate(grid)]
    item_bytes = job.global_batch * job.execution.item_bytes
    return [
        Exchange(groups[rim.axis].neighbours(job.cluster, item_bytes * rim.items), rim.part, rim.layer)
        for rim in _rims(Same((job.model,)), split, grid)
    ]


@lru_cache(maxsize=256)
def _rims(model: Same[ModelGraph], split: frozenset[str], grid: Shape) -> tuple[_Rim, ...]:
    rims: list[_Rim] = []
    for node in model.items[0].nodes:
        if node.name not in split:
            continue
        whole, block = node.layer, shard(node.layer, spatial=grid)
        forward = {axis: forward_halo(whole, axis) for axis, ways in enumerate(grid) if ways > 1}
        block_in = tuple(-(-extent // ways) for extent, ways in _along(whole.input_shapes[0][1:], grid))
        rims += _sides(node.name, StepPart.FORWARD, (whole.input_shapes[0][0], *block_in), forward)
        if model.items[0].needs_data_gradient[node.name]:
            backward = {axis: backward_halo(whole, axis) for axis, ways in enumerate(grid) if ways > 1}
            rims += _sides(node.name, StepPart.BACKWARD_DATA, block.output_shape, backward)
    return tuple(rims)


def _sides(layer: str, part: StepPart, block: Shape, rows: dict[int, tuple[int, int]]) -> Iterator[_Rim]:
    """One message for each side of each split axis that needs rows."""
    extents = list(block)
    for axis, sides in rows.items():
        line = math.prod(extents) // extents[axis + 1]
        yield from (_Rim(layer, part, axis, count * line) for count in sides if count)
        extents[axis + 1] += sum(sides)


def _along(extents: Shape, grid: Shape) -> list[tuple[int, int]]:
    return [(extent, grid[axis] if axis < len(grid) else 1) for axis, extent in enumerate(extents)]


def _junctions(job: Job, split: frozenset[str], group: Group) -> list[Exchange]:
    """Where a tensor that is split is read by a layer that is not: gathered once, whoever reads it."""
    read_whole = {name for node in job.model.nodes if node.name not in split for name in node.inputs}
    exchanges = []
    for node in job.model.nodes:
        if node.name in split and node.name in read_whole:
            size_bytes = job.global_batch * job.execution.item_bytes * node.layer.output_items
            whole = group.transfer(job.cluster, "all_gather", size_bytes)
            exchanges.append(Exchange(whole, StepPart.FORWARD, node.name))
            if job.model.needs_data_gradient[node.name] or node.layer.params:
                back = group.transfer(job.cluster, "reduce_scatter", size_bytes)
                exchanges.append(Exchange(back, StepPart.BACKWARD_DATA, node.name))
    return exchanges

"""Each row of the table of ParaDL (HPDC 2021, Table III, corrected): its time columns, on the chain that it assumes.

Convolutions with weights alone, odd kernels and stride 1, extents and channels that divide, one alpha and beta for all
links, and an ideal device: a shard takes its share of the work. The table is per epoch; here D = B, so one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from oracle.layer import Layer, Phase
from oracle.layers import Loss, Norm
from oracle.links import LinkTimer
from oracle.machine import Cluster, Link
from oracle.model import GraphBuilder, ModelGraph
from oracle.plan import Job, Strategy
from oracle.pricing import IdealTimer
from oracle.project import project
from oracle.strategies.channel import Channel
from oracle.strategies.data import Data
from oracle.strategies.filter import Filter
from oracle.strategies.hybrid import Hybrid
from oracle.strategies.pipeline import Pipeline
from oracle.strategies.serial import Serial
from oracle.strategies.spatial import Spatial
from oracle.windows import Conv

ALPHA, BETA, DELTA = 3e-6, 1 / 7e9, 4
CLUSTER = Cluster.of_link("any", Link(ALPHA, 1 / BETA))
RATE = 1e12
TIMER = IdealTimer(
    lambda call: 0.0 if isinstance(call.layer, Loss) else call.layer.work(call.phase, call.samples).flop / RATE
)
B = 64
WIDTHS = (8, 16, 32, 16, 8)
KERNELS = (3, 5, 1, 3)


def chain(before: Layer | None = None, after: Layer | None = None) -> ModelGraph:
    build = GraphBuilder("chain", (WIDTHS[0], 16, 16))
    if before is not None:
        build.add("before", before)
    for number, (width, kernel) in enumerate(zip(WIDTHS[1:], KERNELS, strict=True), start=1):
        build.add(f"conv{number}", Conv.of(build.shape(), width, kernel, padding=kernel // 2, bias=False))
    if after is not None:
        build.add("after", after)
    return build.graph()


PLAIN = chain()
NORMED = chain(before=Norm("batch", (8, 16, 16)))  # so that the first convolution has a gradient of its input
GATHERED = chain(before=Norm("batch", (8, 16, 16)), after=Loss("mse", (8, 16, 16)))


@dataclass(frozen=True)
class Symbols:
    """The symbols of the table for one model."""

    model: ModelGraph

    def seconds(self, phases: Sequence[Phase], names: Sequence[str] | None = None) -> float:
        """Per sample (update: per step), over some layers."""
        total = 0.0
        for node in self.model.nodes:
            if (names is not None and node.name not in names) or isinstance(node.layer, Loss):
                continue
            for phase in set(phases) & set(node.layer.phases):
                yields_weights = isinstance(node.layer, Norm)
                if phase is not Phase.BACKWARD_DATA or self.model.needs_data_gradient[node.name] or yields_weights:
                    total += node.layer.work(phase, 1).flop / RATE
        return total

    def fw(self, names: Sequence[str] | None = None) -> float:
        return self.seconds([Phase.FORWARD], names)

    def bw(self, names: Sequence[str] | None = None) -> float:
        return self.seconds([Phase.BACKWARD_DATA, Phase.BACKWARD_WEIGHT], names)

    def wu(self, names: Sequence[str] | None = None) -> float:
        return self.seconds([Phase.UPDATE], names)

    @property
    def fb(self) -> float:
        return self.fw() + self.bw()

    @property
    def w(self) -> int:
        return self.model.params

    @property
    def convs(self) -> list[Conv]:
        return [node.layer for node in self.model.nodes if isinstance(node.layer, Conv)]


Times = tuple[float, float]


def all_reduce(p: int, w: float) -> float:
    return 2 * (p - 1) * (ALPHA + w * DELTA * BETA / p)


def halos(s: Symbols, samples: float) -> float:
    """2 S (2 alpha + B (halo(x) + halo(dy)) delta beta), where there is a halo: rows x channels x the other extent."""
    rows = [(conv.kernel[0] // 2, conv) for conv in s.convs]
    return sum(
        2 * (2 * ALPHA + samples * r * 16 * (conv.in_channels + conv.out_channels) * DELTA * BETA)
        for r, conv in rows
        if r
    )


def serial(s: Symbols) -> Times:
    return B * s.fb + s.wu(), 0


def data(s: Symbols) -> Times:
    return B / 4 * s.fb + s.wu(), all_reduce(4, s.w)


def spatial(s: Symbols) -> Times:
    return B / 4 * s.fb + s.wu(), all_reduce(4, s.w) + halos(s, B)


def pipeline(s: Symbols) -> Times:
    stages, segments = [["conv1"], ["conv2", "conv3"], ["conv4"]], 8
    slots = len(stages) + segments - 1
    compute = B * slots / segments * (max(map(s.fw, stages)) + max(map(s.bw, stages))) + max(map(s.wu, stages))
    cuts = [16 * 256, 16 * 256]  # what conv1 and conv3 give
    return compute, 2 * (slots - 1) * max(ALPHA + B / segments * y * DELTA * BETA for y in cuts)


def filters(s: Symbols, samples: float = B, group: int = 4) -> Times:
    gathered = sum(ALPHA + samples * conv.output_items / group * DELTA * BETA for conv in s.convs[:-1])
    return samples / group * s.fb + s.wu() / group, 3 * (group - 1) * gathered


def channels(s: Symbols) -> Times:
    # All layers split: 2 S y + S_{l >= 2} x; the gradient of the samples is nobody's.
    reduced = sum(2 * (ALPHA + B * conv.output_items / 4 * DELTA * BETA) for conv in s.convs)
    gathered = sum(ALPHA + B * conv.input_items / 4 * DELTA * BETA for conv in s.convs[1:])
    return B / 4 * s.fb + s.wu() / 4, 3 * (reduced + gathered)


def channels_from_the_second(s: Symbols) -> Times:
    first = ["conv1"]
    reduced = sum(2 * (ALPHA + B * conv.output_items / 4 * DELTA * BETA) for conv in s.convs[1:])
    gathered = sum(ALPHA + B * conv.input_items / 4 * DELTA * BETA for conv in s.convs[1:])
    whole = s.fw(first) + s.bw(first)
    compute = B * whole + B / 4 * (s.fb - whole) + s.wu(first) + (s.wu() - s.wu(first)) / 4
    return compute, 3 * (reduced + gathered)


def data_filters(s: Symbols) -> Times:
    compute, inside = filters(s, B / 2, 4)
    return compute, inside + all_reduce(2, s.w / 4)


def data_spatial(s: Symbols) -> Times:
    p1, p2, y = 2, 4, s.convs[-1].output_items
    junction = 2 * (p2 - 1) * (ALPHA + B / p1 * y / p2 * DELTA * BETA)
    segmented = 2 * (p2 - 1) * (ALPHA + s.w * DELTA * BETA / p2) + 2 * (p1 - 1) * (
        ALPHA + s.w * DELTA * BETA / (p1 * p2)
    )
    return B / (p1 * p2) * s.fb + s.wu(), halos(s, B / p1) + junction + segmented


EVERY_CONV = ("conv1", "conv2", "conv3", "conv4")
ROWS: list[tuple[str, ModelGraph, Strategy, int, Callable[[Symbols], Times]]] = [
    ("serial", PLAIN, Serial(), 1, serial),
    ("data", PLAIN, Data(), 4, data),
    ("spatial", NORMED, Spatial(), 4, spatial),
    ("pipeline", PLAIN, Pipeline(cuts=("conv2", "conv4"), segments=8), 3, pipeline),
    ("filter", PLAIN, Filter(), 4, filters),
    ("channel", PLAIN, Channel(split=EVERY_CONV), 4, channels),
    ("channel from layer 2", PLAIN, Channel(), 4, channels_from_the_second),
    ("data+filter", PLAIN, Hybrid(Data(), Filter(), 4), 8, data_filters),
    ("data+spatial", GATHERED, Hybrid(Data(), Spatial(), 4), 8, data_spatial),
]


@pytest.mark.parametrize(("model", "strategy", "devices", "row"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_the_engine_reduces_to_each_row_of_the_table(
    model: ModelGraph, strategy: Strategy, devices: int, row: Callable[[Symbols], Times]
) -> None:
    job = Job(model, B, devices, CLUSTER, dataset_samples=B)
    answer = project(job, strategy, TIMER, LinkTimer(CLUSTER))
    compute_s, communication_s = row(Symbols(model))
    assert answer.step is not None
    assert (answer.compute_total + answer.bubble).middle == pytest.approx(compute_s, rel=1e-9)
    assert answer.communication_total.middle == pytest.approx(communication_s, rel=1e-9)
    assert answer.step.middle == pytest.approx(compute_s + communication_s, rel=1e-9)


def test_the_chain_is_what_the_table_assumes() -> None:
    for conv in Symbols(PLAIN).convs:
        assert conv.output_shape[1:] == (16, 16)
        assert conv.in_channels % 4 == conv.out_channels % 4 == 0
    assert math.prod(PLAIN.sample_shape) == 8 * 256

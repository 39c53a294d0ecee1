"""Generic shapes that tell the constants of a family apart, so that models which were not measured can be priced.

Each family gets tiny calls (launches rule), calls with much arithmetic per byte and calls with little, over four
decades of work. Which of them a device finds bound by what is for the fit to say: balance points lie at 5 to 15 FLOP
per byte on CPUs and 10 to 100 on accelerators, and the tables straddle both. Large images with a stride and few
channels are what a convolution has of shapes with much traffic; but no fewer than 8 channels, since kernels that
cannot fill their vector lanes are slow for a reason that neither FLOP nor bytes know, and would spoil the bandwidth
of all others. For matrix products it is few rows, for attention few tokens.

Updates are told apart by the number of tensors and their size: what a step costs shows in single small tensors, what a
tensor costs in hundreds of them, and the traffic in large ones. Mixes are those of networks: matrices of a few sizes,
and about as many vectors.

Every table goes from what a fit needs to what it would like: a quick calibration takes the head of it. Positions of a
convolution are given as a power of two that 1, 2 and 3 divide, so that one row serves lines, images and volumes.
Convolutions of images have a second table, of the extents that networks have (multiples of 7, odd ones, tiles of an
image with their halo) and of channels and filters that are chosen apart: halves and quarters of layers look like these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from calibration.features import family
from oracle.layer import Layer, Phase
from oracle.layers import ELEMENTWISE, LOSSES, NORMS, Attention, Concat, Elementwise, Embedding, Linear, Loss, Norm
from oracle.operations import Matmul, Other
from oracle.pricing import LayerCall
from oracle.updates import Parameters, Sizes
from oracle.windows import POOLS, Conv, Pool

HEAD = 9
"""How many rows of a table a quick calibration takes: about three that show each constant. The residuals of m calls
that show one constant are m - 1 independent numbers, so with two calls its interval would rest on a single one."""

_TABLES = {"conv1d": 2, "conv2d": 2, "conv3d": 2}
"""Families whose calls come from several tables in turn: of general and of pointwise convolutions."""


@dataclass(frozen=True)
class _Row:
    """A convolution: channels in and out, log2 of its positions, samples; stride and kernel are equal on all axes."""

    channels: int
    filters: int
    log2_positions: int
    samples: int
    stride: int = 1
    kernel: int = 3


_DENSE = (
    _Row(4, 8, 6, 1),
    _Row(128, 128, 12, 1),
    _Row(16, 8, 18, 2, stride=2),
    _Row(8, 8, 6, 1),
    _Row(8, 8, 18, 4, stride=2),
    _Row(256, 256, 6, 8),
    _Row(8, 16, 6, 1),
    _Row(32, 8, 18, 1, stride=2),
    _Row(32, 64, 12, 4),
    _Row(16, 16, 6, 2),
    _Row(64, 64, 12, 8),
    _Row(3, 32, 18, 2, stride=2),
    _Row(512, 512, 6, 16),
    _Row(64, 8, 12, 8),
    _Row(8, 64, 12, 8),
    _Row(192, 96, 12, 4, stride=2),
    _Row(48, 192, 6, 32, kernel=5),
)
_POINTWISE = (
    _Row(4, 8, 6, 1),
    _Row(256, 256, 12, 2),
    _Row(16, 8, 18, 2),
    _Row(8, 8, 6, 1),
    _Row(8, 16, 18, 4),
    _Row(1024, 1024, 6, 8),
    _Row(8, 16, 6, 1),
    _Row(32, 8, 18, 1),
    _Row(64, 256, 12, 4),
    _Row(16, 16, 6, 2),
    _Row(256, 64, 12, 8),
    _Row(16, 16, 18, 2),
    _Row(2048, 512, 6, 16),
    _Row(24, 144, 12, 8),
    _Row(512, 1024, 12, 4, stride=2),
    _Row(96, 96, 6, 32),
)
_IMAGES = (  # channels, height, width, filters, kernel, stride, samples
    (64, 112, 112, 128, 3, 1, 2),
    (128, 9, 28, 256, 3, 1, 16),
    (512, 7, 7, 256, 3, 1, 16),
    (64, 30, 56, 64, 3, 2, 8),
    (48, 56, 56, 24, 3, 1, 16),
    (3, 112, 224, 64, 7, 2, 8),
    (256, 14, 14, 128, 3, 1, 16),
    (512, 4, 14, 512, 3, 1, 8),
    (32, 16, 56, 64, 3, 1, 8),
    (256, 28, 28, 256, 3, 2, 8),
    (128, 28, 28, 64, 3, 1, 8),
    (96, 27, 27, 256, 5, 1, 4),
    (384, 13, 13, 256, 3, 1, 8),
    (96, 28, 56, 96, 3, 1, 4),
    (3, 64, 224, 96, 11, 4, 8),
    (128, 16, 56, 128, 3, 2, 8),
    (160, 14, 14, 320, 3, 1, 8),
    (32, 112, 112, 32, 3, 1, 4),
    (1024, 7, 7, 64, 3, 1, 8),
    (24, 112, 112, 48, 5, 2, 4),
    (256, 8, 28, 64, 3, 1, 8),
    (16, 28, 112, 64, 3, 1, 8),
    (20, 35, 35, 40, 3, 1, 8),
    (64, 56, 56, 32, 1, 1, 8),
    (512, 14, 14, 128, 1, 1, 16),
    (256, 14, 56, 128, 1, 1, 8),
    (24, 112, 112, 96, 1, 1, 4),
    (2048, 7, 7, 128, 1, 1, 8),
    (128, 14, 28, 512, 1, 1, 8),
    (480, 14, 14, 80, 1, 1, 16),
    (512, 14, 28, 1024, 1, 2, 8),
    (192, 28, 28, 48, 1, 1, 8),
    (320, 10, 10, 1280, 1, 1, 8),
    (64, 28, 112, 256, 1, 1, 4),
    (1024, 7, 14, 256, 1, 1, 8),
    (96, 56, 56, 24, 1, 1, 8),
    (256, 56, 56, 512, 1, 2, 4),
    (160, 7, 7, 960, 1, 1, 16),
    (256, 7, 28, 512, 1, 1, 8),
    (40, 28, 28, 240, 1, 1, 8),
    (576, 7, 7, 1024, 1, 1, 8),
    (16, 112, 112, 16, 1, 1, 4),
)
_DEPTHWISE = (
    _Row(8, 8, 6, 1),
    _Row(256, 256, 12, 4, kernel=7),
    _Row(8, 8, 18, 4),
    _Row(16, 16, 6, 1),
    _Row(16, 16, 18, 2),
    _Row(512, 512, 6, 32, kernel=7),
    _Row(24, 24, 6, 1),
    _Row(32, 32, 18, 1),
    _Row(64, 64, 12, 8),
    _Row(32, 32, 6, 2),
    _Row(128, 128, 12, 4, stride=2),
    _Row(960, 960, 6, 8, kernel=5),
)
_GROUPED = (
    _Row(8, 8, 6, 1),
    _Row(256, 256, 12, 4),
    _Row(16, 16, 18, 2, stride=2),
    _Row(16, 16, 6, 1),
    _Row(16, 32, 18, 2, stride=2),
    _Row(512, 512, 6, 16),
    _Row(16, 8, 6, 1),
    _Row(32, 32, 18, 1, stride=2),
    _Row(64, 64, 12, 8),
    _Row(32, 32, 6, 2),
    _Row(128, 256, 12, 4, stride=2),
)
_TRANSPOSED = (
    _Row(4, 8, 6, 1, stride=2),
    _Row(128, 128, 12, 1, stride=2),
    _Row(16, 16, 12, 32, stride=2, kernel=2),
    _Row(8, 8, 6, 1, stride=2),
    _Row(8, 16, 12, 32, stride=2, kernel=2),
    _Row(256, 256, 6, 8, stride=2),
    _Row(8, 16, 6, 1, stride=2),
    _Row(16, 8, 12, 32, stride=2, kernel=2),
    _Row(64, 32, 12, 2, stride=2, kernel=2),
    _Row(16, 16, 6, 2, stride=2),
    _Row(512, 256, 6, 8, stride=2, kernel=2),
)
_LINEAR = (  # features in and out, rows, samples
    (16, 16, 1, 1),
    (1024, 1024, 1, 512),
    (4096, 4096, 1, 1),
    (64, 32, 1, 2),
    (2048, 4096, 1, 2),
    (512, 512, 64, 16),
    (32, 64, 1, 4),
    (4096, 1024, 1, 1),
    (768, 1024, 16, 32),
    (256, 1000, 1, 32),
    (32, 64, 1, 8),
    (9216, 4096, 1, 2),
    (768, 3072, 128, 4),
    (3072, 768, 128, 4),
    (4096, 4096, 1, 64),
    (128, 128, 256, 32),
    (32, 32, 1024, 64),
)
_ATTENTION = (  # heads, tokens, head width, samples
    (1, 16, 16, 1),
    (8, 512, 64, 2),
    (16, 16, 64, 256),
    (2, 16, 32, 1),
    (16, 16, 32, 512),
    (12, 256, 64, 4),
    (1, 16, 32, 2),
    (32, 16, 64, 128),
    (8, 64, 64, 32),
    (4, 32, 32, 2),
    (12, 128, 64, 8),
    (16, 1024, 64, 1),
)
_MATMUL = (  # batch, rows, inner, columns, samples
    (1, 16, 16, 16, 1),
    (12, 512, 64, 512, 2),
    (16, 16, 64, 16, 256),
    (2, 16, 32, 16, 1),
    (12, 512, 512, 64, 2),
    (16, 16, 16, 64, 256),
    (1, 16, 32, 16, 2),
    (8, 64, 64, 64, 64),
    (12, 128, 64, 128, 8),
    (12, 128, 128, 64, 8),
    (1, 1024, 1024, 1024, 1),
)
_OTHER = (  # items of the operand and the result, samples
    (256, 1),
    (2**20, 16),
    (512, 1),
    (2**20, 4),
    (1024, 4),
    (2**18, 16),
    (2048, 2),
    (2**18, 4),
    (2**16, 8),
)
_EXTENT = (  # channels, positions per axis of an image, samples
    (4, 8, 1),
    (128, 56, 16),
    (8, 8, 1),
    (64, 112, 4),
    (4, 8, 4),
    (64, 28, 8),
    (16, 8, 1),
    (512, 7, 64),
    (16, 14, 4),
    (256, 14, 8),
    (32, 56, 16),
)
_VECTORS = (  # features and samples of losses
    (16, 1),
    (1000, 4096),
    (32, 1),
    (4096, 256),
    (16, 4),
    (1000, 256),
    (64, 1),
    (1000, 32),
    (100, 64),
    (10, 512),
)
_TOKENS = (  # vocabulary, width, tokens and samples of embeddings
    (128, 16, 8, 1),
    (30000, 768, 512, 16),
    (64, 32, 8, 1),
    (1000, 256, 256, 16),
    (128, 16, 16, 1),
    (8000, 128, 128, 64),
)


def _conv(rank: int, row: _Row, groups: int = 1, *, transposed: bool = False) -> tuple[Layer, int]:
    extents = (2 ** (row.log2_positions // rank),) * rank
    options = {"stride": row.stride, "groups": groups, "bias": False, "transposed": transposed}
    if transposed:
        options["output_padding"] = row.kernel % 2
    padding = (row.kernel - 1) // 2
    return Conv.of((row.channels, *extents), row.filters, row.kernel, padding=padding, **options), row.samples


def _convolutions(rank: int) -> Iterator[tuple[Layer, int]]:
    pointwise = [replace(row, kernel=1) for row in _POINTWISE]
    for pair in zip_longest(_DENSE, pointwise):
        yield from (_conv(rank, row) for row in pair if row is not None)
    for row in _DEPTHWISE:
        yield _conv(rank, row, groups=row.channels)
    for row in _GROUPED:
        yield _conv(rank, row, groups=4)
    for row in _TRANSPOSED:
        yield _conv(rank, row, transposed=True)


def _images() -> Iterator[tuple[Layer, int]]:
    for channels, height, width, filters, kernel, stride, samples in _IMAGES:
        padding = (kernel - 1) // 2
        image = (channels, height, width)
        yield Conv.of(image, filters, kernel, stride=stride, padding=padding, bias=False), samples


def _by_extent() -> Iterator[tuple[Layer, int]]:
    for channels, extent, samples in _EXTENT:
        image, sequence = (channels, extent, extent), (extent * extent, channels)
        for op in POOLS:
            yield Pool.of(op, image, 2), samples
            yield Pool.of(op, (channels, extent * extent), 2), samples
            yield Pool.of(op, (channels, extent, extent, 4), 2), max(1, samples // 4)
        for op in NORMS:
            groups = 4 if op == "group" else 1
            # Statistics over the batch need more than one value per channel, which every extent here gives.
            yield Norm(op, sequence if op == "layer" else image, groups=groups), samples
        for op in ELEMENTWISE:
            yield Elementwise(op, sequence if op == "softmax" else image), samples
        yield Concat((channels, channels), (extent, extent)), samples


def _kernels() -> Iterator[tuple[Layer, int]]:
    for rank in (1, 2, 3):
        yield from _convolutions(rank)
    yield from _images()
    yield from _by_extent()
    for features_in, features_out, rows, samples in _LINEAR:
        yield Linear(features_in, features_out, rows=rows), samples
    for heads, tokens, width, samples in _ATTENTION:
        yield Attention(heads, tokens, tokens, width), samples
    for vocabulary, width, tokens, samples in _TOKENS:
        yield Embedding(vocabulary, width, tokens), samples
    for batch, rows, inner, columns, samples in _MATMUL:
        yield Matmul(batch, rows, inner, columns), samples
    for items, samples in _OTHER:
        yield Other("copy", (items,), (items,), moved=2 * items, backward_moved=2 * items), samples
    for op in LOSSES:
        for features, samples in _VECTORS:
            yield Loss(op, (features,)), samples


_UPDATES: tuple[Sizes, ...] = (
    ((64, 2),),
    ((2**24, 1), (4096, 1)),
    ((512, 160),),
    ((2**18, 64), (512, 128)),
    ((576, 1),),
    ((2359296, 1),),
    ((64, 300),),
    ((2**20, 24), (2**16, 24), (512, 64)),
    ((2**15, 48), (128, 48)),
    ((256, 1), (16, 1)),
    ((2**20, 1), (1024, 1)),
    ((4096, 16),),
    ((37748736, 1),),
    ((2359296, 8), (589824, 32), (3072, 8), (768, 72)),
    ((2048, 2),),
    ((2**16, 8),),
    ((2048000, 1), (1000, 1)),
    ((128, 512),),
    ((2359296, 4), (589824, 8), (147456, 12), (36864, 12), (512, 24), (64, 48)),
    ((16384, 1),),
    ((2**14, 256),),
    ((256, 32),),
    ((2**25, 3), (4096, 3)),
)
"""Sizes of tensors that are updated together, and how many have each."""


_LARGE = (("relu", Phase.BACKWARD_DATA), ("relu", Phase.FORWARD), ("add", Phase.FORWARD))


def large_calls() -> Mapping[tuple[str, Phase], LayerCall]:
    """Calls of memory-bound families with results of 98 MiB: beyond what a CPU's allocator keeps."""
    image, samples = (64, 56, 56), 128
    layers = [(Elementwise(op, image), phase) for op, phase in _LARGE]
    norm = Norm("batch", image)
    calls = [LayerCall(layer, phase, samples) for layer, phase in (*layers, (norm, Phase.FORWARD))]
    return {(family(call.layer, call.phase), call.phase): call for call in calls}


def generic_calls() -> Mapping[tuple[str, Phase], tuple[LayerCall, ...]]:
    """The calls of each (family, phase), the ones that a fit needs most first."""
    found: dict[tuple[str, Phase], list[LayerCall]] = {}
    for layer, samples in _kernels():
        for phase in layer.phases:
            if phase is not Phase.UPDATE:
                found.setdefault((family(layer, phase), phase), []).append(LayerCall(layer, phase, samples))
    found[("update", Phase.UPDATE)] = [LayerCall(Parameters(sizes), Phase.UPDATE, 1) for sizes in _UPDATES]
    return {key: tuple(dict.fromkeys(calls)) for key, calls in found.items()}


def head(name: str, calls: Sequence[LayerCall], rows: int) -> Sequence[LayerCall]:
    """The first rows of the tables that the calls of a family come from."""
    return calls[: rows * _TABLES.get(name, 1)]

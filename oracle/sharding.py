"""The part of a layer that one of several devices runs, as a layer of its own shape.

Shares are those of the slowest device: of 65 filters on 7 devices it has 10. Whoever prices a shard sees its true
shape, because a convolution with 1/p of its filters is rarely p times faster (ParaDL, HPDC 2021, section 5.3).

Filters and channels. Convolutions and fully connected layers can be split; a grouped convolution by its groups, which
each need their own channels only, and never by channels, which its groups already do.

Space. A device owns a block of the output. Its input has the rows that the block needs, neighbours' rows (the halo)
included, and no padding along split axes: devices at the rim compute on zeros what the others compute on neighbours'
rows. Poolings, elementwise layers and batch normalisations (with statistics of their own block) are split with the
tensor that they work on. Layers whose result needs all of a tensor (fully connected layers, global poolings, other
normalisations, softmax) cannot be split, and neither can transposed convolutions whose windows overlap.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from oracle.errors import OutOfRange
from oracle.layer import Layer, Shape
from oracle.layers import Elementwise, Linear, Norm
from oracle.model import Node
from oracle.windows import Conv, Pool


def filter_ways(layer: Layer) -> int:
    """On how many devices its filters can be spread; 0 for a layer without filters of its own.

    >>> filter_ways(Conv.of((64, 8, 8), 128, 3)), filter_ways(Conv.of((64, 8, 8), 128, 3, groups=64))
    (128, 64)
    """
    if isinstance(layer, Conv):
        return layer.out_channels if layer.groups == 1 else layer.groups
    return layer.out_features if isinstance(layer, Linear) else 0


def channel_ways(layer: Layer) -> int:
    """On how many devices its input channels can be spread; 0 for a layer that sums over no channels.

    >>> channel_ways(Conv.of((64, 8, 8), 128, 3)), channel_ways(Conv.of((64, 8, 8), 128, 3, groups=64))
    (64, 1)
    """
    if isinstance(layer, Conv):
        return layer.in_channels if layer.groups == 1 else 1
    return layer.in_features if isinstance(layer, Linear) else 0


def spatial_ways(layer: Layer) -> Shape:
    """On how many devices each spatial axis can be spread; () for a layer that cannot be split in space.

    >>> spatial_ways(Conv.of((64, 14, 8), 128, 3, stride=2, padding=1))
    (7, 4)
    """
    if isinstance(layer, Conv | Pool) and not _overlapping_transposed(layer):
        return tuple(map(min, layer.input_shapes[0][1:], layer.output_shape[1:]))
    if (isinstance(layer, Elementwise) and layer.op != "softmax") or (isinstance(layer, Norm) and layer.op == "batch"):
        return layer.output_shape[1:]
    return ()


@lru_cache(maxsize=2**14)
def shard(layer: Layer, *, filters: int = 1, channels: int = 1, spatial: Shape = ()) -> Layer:
    """The layer that the slowest of several devices runs.

    Args:
        layer: the whole layer.
        filters: devices that share its filters.
        channels: devices that share its input channels; each result is a partial sum.
        spatial: devices along each spatial axis, the first axis first; axes without a number are not split.

    Raises:
        OutOfRange: the layer cannot be spread over so many devices.

    >>> shard(Conv.of((3, 8, 8), 65, 3), filters=7).output_shape[0]
    10
    >>> shard(Conv.of((4, 8, 8), 4, 3, padding=1), spatial=(2,)).input_shapes
    ((4, 6, 8),)
    """
    if filters > 1:
        _check(layer, "filters", filters, filter_ways(layer))
        layer = _share_of_filters(layer, filters)
    if channels > 1:
        _check(layer, "channels", channels, channel_ways(layer))
        layer = _share_of_channels(layer, channels)
    if any(ways > 1 for ways in spatial):
        possible = spatial_ways(layer)
        for axis, ways in enumerate(spatial):
            _check(layer, f"axis {axis + 1}", ways, possible[axis] if axis < len(possible) else 0)
        layer = _block(layer, (*spatial, *(1,) * (len(possible) - len(spatial))))
    return layer


@lru_cache(maxsize=2**14)
def shard_node(node: Node, *, filters: int = 1, channels: int = 1, spatial: Shape = ()) -> Node:
    """A layer in its place with the `shard` that one device runs: the same object for the same question."""
    return replace(node, layer=shard(node.layer, filters=filters, channels=channels, spatial=spatial))


def forward_halo(layer: Layer, axis: int) -> tuple[int, int]:
    """Rows of the input that a device needs from the neighbours before and after it along a split axis.

    `padding` before and K - s - padding after, where K is the extent of the (dilated) kernel and s the stride.

    >>> forward_halo(Conv.of((3, 9, 9), 4, 3, padding=1), 0), forward_halo(Pool.of("max", (4, 8, 8), 2), 0)
    ((1, 1), (0, 0))
    """
    window = _window(layer, axis)
    if window is None:
        return 0, 0
    extent, stride, padding = window
    overlap = max(0, extent - stride)
    return min(padding, overlap), max(0, overlap - padding)


def backward_halo(layer: Layer, axis: int) -> tuple[int, int]:
    """Rows of the result's gradient that a device needs from its neighbours for the gradient of its input.

    Row i of the input met the results j with 0 <= i + padding - s j < K, so the first row of a block needs
    floor((K - 1 - padding) / s) results before it and the last ceil(padding / s) after it; at stride 1 that is the
    forward halo mirrored. Windows that do not overlap (K <= s) need none.

    >>> backward_halo(Conv.of((3, 9, 9), 4, 5, padding=2), 0)
    (2, 2)
    """
    window = _window(layer, axis)
    if window is None or window[0] <= window[1]:
        return 0, 0
    extent, stride, padding = window
    return (extent - 1 - padding) // stride, -(-padding // stride)


def _check(layer: Layer, what: str, ways: int, possible: int) -> None:
    if ways < 1 or (ways > 1 and ways > possible):
        limit = f"1 to {possible} devices" if possible > 1 else "1 device"
        raise OutOfRange(f"a {layer.kind} layer can spread its {what} over {limit}, not {ways}")


def _share(total: int, ways: int) -> int:
    return -(-total // ways)


def _share_of_filters(layer: Layer, ways: int) -> Layer:
    if isinstance(layer, Linear):
        return replace(layer, out_features=_share(layer.out_features, ways))
    if not isinstance(layer, Conv):
        return layer
    if layer.groups == 1:
        return replace(layer, out_channels=_share(layer.out_channels, ways))
    groups = _share(layer.groups, ways)
    inside, outside = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    return replace(layer, groups=groups, in_channels=groups * inside, out_channels=groups * outside)


def _share_of_channels(layer: Layer, ways: int) -> Layer:
    if isinstance(layer, Linear):
        return replace(layer, in_features=_share(layer.in_features, ways))
    return replace(layer, in_channels=_share(layer.in_channels, ways)) if isinstance(layer, Conv) else layer


def _block(layer: Layer, grid: Shape) -> Layer:
    if isinstance(layer, Norm | Elementwise):
        return replace(layer, shape=(layer.shape[0], *map(_share, layer.shape[1:], grid)))
    if not isinstance(layer, Conv | Pool):
        return layer
    extents, padding = list(layer.input_shapes[0][1:]), list(layer.padding)
    for axis, ways in enumerate(grid):
        if ways > 1:
            extents[axis] = _input_rows(layer, axis, _share(layer.output_shape[1:][axis], ways))
            padding[axis] = 0
    if isinstance(layer, Pool):
        return replace(layer, shape=(layer.shape[0], *extents), padding=tuple(padding), ceil_mode=False)
    return replace(layer, extents=tuple(extents), padding=tuple(padding))


def _input_rows(layer: Conv | Pool, axis: int, output_rows: int) -> int:
    window = _window(layer, axis)
    if window is None:  # a transposed convolution whose windows do not overlap
        return -(-output_rows // layer.stride[axis])
    extent, stride, _ = window
    return (output_rows - 1) * stride + extent


def _window(layer: Layer, axis: int) -> tuple[int, int, int] | None:
    """The extent of the window, its stride and its padding; None for a layer that slides none over its input."""
    if isinstance(layer, Pool):
        return layer.kernel[axis], layer.stride[axis], layer.padding[axis]
    if isinstance(layer, Conv) and not layer.transposed:
        extent = layer.dilation[axis] * (layer.kernel[axis] - 1) + 1
        return extent, layer.stride[axis], layer.padding[axis]
    return None


def _overlapping_transposed(layer: Layer) -> bool:
    if not (isinstance(layer, Conv) and layer.transposed):
        return False
    plain = not any(layer.padding) and not any(layer.output_padding) and max(layer.dilation) == 1
    return not (plain and layer.kernel == layer.stride)

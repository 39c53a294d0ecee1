"""Shards: what one of several devices runs of a layer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.errors import OutOfRange
from oracle.layer import Layer, Phase
from oracle.layers import Attention, Elementwise, Embedding, Linear, Loss, Norm
from oracle.sharding import backward_halo, channel_ways, filter_ways, forward_halo, shard, spatial_ways
from oracle.windows import Conv, Pool


@pytest.mark.parametrize(
    ("layer", "ways", "share"),
    [
        (Conv.of((3, 8, 8), 65, 3), 7, Conv.of((3, 8, 8), 10, 3)),  # the slowest of 7 devices has 10 of 65 filters
        (Conv.of((3, 8, 8), 64, 3), 64, Conv.of((3, 8, 8), 1, 3)),
        (Linear(100, 10), 3, Linear(100, 4)),
        # 12 groups on 5 devices: 3 groups of 2 channels in and 4 filters each
        (Conv.of((24, 8, 8), 48, 3, groups=12), 5, Conv.of((6, 8, 8), 12, 3, groups=3)),
        (Conv.of((4, 8, 8), 8, 2, stride=2, transposed=True), 2, Conv.of((4, 8, 8), 4, 2, stride=2, transposed=True)),
    ],
)
def test_the_slowest_device_has_the_largest_share_of_the_filters(layer: Layer, ways: int, share: Layer) -> None:
    assert shard(layer, filters=ways) == share


@pytest.mark.parametrize(
    ("layer", "ways", "share"),
    [
        (Conv.of((65, 8, 8), 4, 3), 7, Conv.of((10, 8, 8), 4, 3)),
        (Linear(100, 10), 3, Linear(34, 10)),
    ],
)
def test_the_slowest_device_has_the_largest_share_of_the_channels(layer: Layer, ways: int, share: Layer) -> None:
    assert shard(layer, channels=ways) == share


@pytest.mark.parametrize(
    ("layer", "grid", "share"),
    [
        # 8 rows on 2 devices: 4 rows and a row from each neighbour (or of zeros), no padding left
        (Conv.of((3, 8, 8), 4, 3, padding=1), (2,), Conv.of((3, 6, 8), 4, 3, padding=(0, 1))),
        (Conv.of((3, 8, 8), 4, 3, padding=1), (2, 2), Conv.of((3, 6, 6), 4, 3)),
        # 112 rows of results on 5 devices: 23, which need 22 * 2 + 7 rows
        (
            Conv.of((3, 224, 224), 64, 7, stride=2, padding=3),
            (5,),
            Conv.of((3, 51, 224), 64, 7, stride=2, padding=(0, 3)),
        ),
        (Conv.of((4, 8, 8, 8), 4, 3, padding=1), (2, 2, 2), Conv.of((4, 6, 6, 6), 4, 3)),
        (Pool.of("max", (4, 8, 8), 2), (4,), Pool.of("max", (4, 2, 8), 2)),
        (Pool.of("max", (4, 13, 13), 3, stride=2), (3,), Pool.of("max", (4, 5, 13), 3, stride=2)),
        (Norm("batch", (4, 9, 8)), (2,), Norm("batch", (4, 5, 8))),
        (Elementwise("relu", (4, 9, 8)), (2, 3), Elementwise("relu", (4, 5, 3))),
        (
            Conv.of((4, 8, 8), 2, 2, stride=2, transposed=True),
            (4,),
            Conv.of((4, 2, 8), 2, 2, stride=2, transposed=True),
        ),
    ],
)
def test_a_block_has_the_rows_that_its_results_need(layer: Layer, grid: tuple[int, ...], share: Layer) -> None:
    assert shard(layer, spatial=grid) == share


@pytest.mark.parametrize(
    "layer",
    [
        Linear(8, 4),
        Pool.of("avg", (4, 7, 7), 7),
        Norm("group", (4, 8, 8), 2),
        Norm("layer", (4, 8)),
        Elementwise("softmax", (4, 8, 8)),
        Conv.of((4, 8, 8), 4, 3, stride=2, padding=1, transposed=True),
        Embedding(10, 4, 8),
        Attention(2, 8, 8, 4),
        Loss("mse", (4, 8, 8)),
    ],
)
def test_what_needs_all_of_a_tensor_is_not_split_in_space(layer: Layer) -> None:
    assert not spatial_ways(layer) or max(spatial_ways(layer)) == 1
    with pytest.raises(OutOfRange, match=f"a {layer.kind} layer can spread its axis 1 over 1 device, not 2"):
        shard(layer, spatial=(2,))


@pytest.mark.parametrize("kind", ["filters", "channels"])
@pytest.mark.parametrize("layer", [Pool.of("max", (4, 8, 8), 2), Norm("batch", (4, 8)), Elementwise("relu", (4,))])
def test_what_has_no_filters_is_not_split_by_them(kind: str, layer: Layer) -> None:
    assert filter_ways(layer) == channel_ways(layer) == 0
    with pytest.raises(OutOfRange, match=f"can spread its {kind} over 1 device, not 2"):
        shard(layer, **{kind: 2})


def test_limits_of_shards_are_those_of_the_shapes() -> None:
    with pytest.raises(OutOfRange, match="a conv layer can spread its filters over 1 to 4 devices, not 5"):
        shard(Conv.of((8, 8, 8), 4, 3), filters=5)
    with pytest.raises(OutOfRange, match="a conv layer can spread its channels over 1 to 8 devices, not 9"):
        shard(Conv.of((8, 8, 8), 4, 3), channels=9)
    with pytest.raises(OutOfRange, match="a conv layer can spread its channels over 1 device, not 2"):
        shard(Conv.of((8, 8, 8), 8, 3, groups=8), channels=2)
    with pytest.raises(OutOfRange, match="a conv layer can spread its axis 2 over 1 to 6 devices, not 7"):
        shard(Conv.of((8, 8, 8), 4, 3), spatial=(1, 7))


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 3), st.integers(0, 3), st.integers(2, 4))
def test_halos_are_the_rows_that_blocks_lack(rows: int, kernel: int, stride: int, padding: int, devices: int) -> None:
    # Blocks of `rows` results whose inputs begin at multiples of rows * stride: count what an inner block lacks.
    padding = min(padding, kernel - 1)
    extent = devices * rows * stride
    layer = Conv.of((1, extent + kernel), 1, kernel, stride=stride, padding=padding)
    first, last = rows * stride - padding, (2 * rows - 1) * stride - padding + kernel - 1
    before, after = rows * stride - first, last - (2 * rows * stride - 1)
    if kernel > stride:
        assert forward_halo(layer, 0) == (min(before, kernel - stride), max(0, after))
    needed = [
        j
        for i in range(rows * stride, 2 * rows * stride)
        for j in range(-9, 99)
        if 0 <= i + padding - stride * j < kernel
    ]
    if kernel > stride:
        assert backward_halo(layer, 0) == (max(0, rows - min(needed)), max(0, max(needed) - (2 * rows - 1)))
    else:
        assert forward_halo(layer, 0) == backward_halo(layer, 0) == (0, 0)


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD_DATA, Phase.BACKWARD_WEIGHT])
@pytest.mark.parametrize("split", [{"filters": 4}, {"channels": 4}, {"spatial": (4,)}, {"spatial": (2, 2)}])
def test_equal_shares_do_equal_parts_of_the_work(phase: Phase, split: dict[str, int]) -> None:
    layer = Conv.of((8, 16, 16), 8, 3, padding=1, bias=False)
    share = shard(layer, **split)
    assert 4 * share.work(phase, 2).flop == layer.work(phase, 2).flop

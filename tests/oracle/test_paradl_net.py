"""ParaDL's layer tables and masks: the published ones, and the ways in which one can be wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oracle.errors import BadInput
from oracle.layers import Elementwise
from oracle.paradl_net import NetTable, read_mask, read_net
from oracle.windows import Conv, Pool

CONV = "CONV|3x8x8|3x4x3x3|4x8x8"


def read(*lines: str, shape: str = "3x8x8") -> NetTable:
    return read_net("\n".join([f"Input|50x{shape}", *lines]), "test")


def published(shared: Path, name: str) -> NetTable:
    return read_net((shared / "data" / "paradl" / "model" / name).read_text(), name)


@pytest.mark.parametrize(
    ("name", "layers", "weights", "seconds", "samples"),
    [
        # |w| of C F K K; the files' 5x5 convolution has no groups and their first layer 96 filters of 11x11
        ("ALEXNET_ImageNet.net", 20, 62_367_776, 0.0, 1_280_000),
        ("ALEXNET_ImageNet_profall.net_sc", 20, 62_367_776, 0.000610938, 1_280_000),
        # 14,710,464 convolutional weights, 512*64*4096 + 4096*4096 + 4096*1000 fully connected
        ("VGG_ImageNet_profall.net_sc", 38, 14_710_464 + 134_217_728 + 16_777_216 + 4_096_000, 0.008245589, 1_280_000),
        # the 2,131,252 parameters of CosmoFlow without its biases, 880 of convolutions and 2,308 of the others
        ("COSMOFLOW.net", 25, 2_131_252 - 880 - 2_308, 2.108143184, 1584),
    ],
)
def test_published_tables_have_the_weights_and_times_they_state(
    shared: Path, name: str, layers: int, weights: int, seconds: float, samples: int
) -> None:
    table = published(shared, name)
    assert len(table.graph.nodes) == len(table.seconds_per_sample) == layers
    assert table.graph.params == weights
    assert sum(table.seconds_per_sample) == pytest.approx(seconds, rel=1e-12)
    assert table.graph.dataset_samples == samples


def test_published_resnet_has_every_line_as_a_layer_of_its_sizes(shared: Path) -> None:
    table = published(shared, "RESNET50_ImageNet_profall.net_sc")
    kinds = Counter(node.name.split("_")[0].rstrip("0123456789").split(".")[0] for node in table.graph.nodes)
    assert kinds == {"CONV": 49, "BNORM": 49, "RELU": 49, "MPOOL": 1, "APOOL": 1, "ADD": 16, "FC": 1}
    # All weights of ResNet-50 (25,557,032) but the projections, 64*256 + 256*512 + 512*1024 + 1024*2048 with
    # two batch-norm numbers for each of 256 + 512 + 1024 + 2048 filters, and the bias of the last layer.
    projections = 64 * 256 + 256 * 512 + 512 * 1024 + 1024 * 2048 + 2 * (256 + 512 + 1024 + 2048)
    assert table.graph.params == 25_557_032 - projections - 1000
    first = table.graph.nodes[0].layer
    assert isinstance(first, Conv)
    assert (first.stride, first.padding) == ((2, 2), (3, 3))
    assert (first.input_items, first.output_items, first.params) == (3 * 226**2, 64 * 113**2, 3 * 64 * 49)
    assert sum(table.seconds_per_sample) == table.seconds_per_sample[0] == 0.003119502


def test_published_resnet_adds_its_shortcuts_where_they_are_not_projected(shared: Path) -> None:
    nodes = published(shared, "RESNET50_ImageNet_profall.net_sc").graph.nodes
    sums = [node for node in nodes if node.layer == Elementwise("add", node.layer.output_shape)]
    doubled = [number for number, node in enumerate(sums) if len(set(node.inputs)) == 1]
    assert doubled == [0, 3, 7, 13]  # the first block of each of the four stages
    names = [node.name for node in nodes]
    first, second = sums[0], sums[1]
    assert second.inputs == ("BNORM.7", names[names.index(first.name) + 1])  # the ReLU after the first sum


def test_published_table_with_a_slip_is_refused_by_its_line(shared: Path) -> None:
    with pytest.raises(BadInput, match=r"line 8 of table 'COSMOFLOW.net_256'.*32x2128x128x128"):
        published(shared, "COSMOFLOW.net_256")


@pytest.mark.parametrize(
    ("mask", "table", "split"),
    [
        ("filter_alexnet.lc", "ALEXNET_ImageNet_profall.net_sc", 5),
        ("spatial_alexnet.lc", "ALEXNET_ImageNet_profall.net_sc", 7),
        ("filter_resnet.lc", "RESNET50_ImageNet_profall.net_sc", None),
        ("channel_resnet.lc", "RESNET50_ImageNet_profall.net_sc", None),
        ("spatial_resnet.lc", "RESNET50_ImageNet_profall.net_sc", None),
        ("filter_vgg.lc", "VGG_ImageNet_profall.net_sc", None),
        ("spatial_vgg.lc", "VGG_ImageNet_profall.net_sc", None),
        ("spatial_cosmolow.lc", "COSMOFLOW.net", 2),
    ],
)
def test_published_masks_have_one_mark_per_layer(shared: Path, mask: str, table: str, split: int | None) -> None:
    marks = read_mask((shared / "data" / "paradl" / "model" / mask).read_text())
    assert len(marks) == len(published(shared, table).graph.nodes)
    assert split is None or sum(marks) == split


def test_comments_stray_columns_and_spaces_do_no_harm() -> None:
    plain = read(CONV, "RELU|4x8x8|4x4x0x0|4x8x8|0.25")
    noisy = read("# group|0", f"  {CONV} |0 ", "", "#", "RELU | 4x8x8|4x4x0x0| 4x8x8 |0.25\r")
    assert noisy == plain
    assert noisy.seconds_per_sample == (0.0, 0.25)


def test_a_sum_reads_what_its_block_reads() -> None:
    # two convolutions of one shape between the block's entry and its sum
    relu, add = "RELU|4x8x8|4x4x0x0|4x8x8", "ADD|4x8x8|4x4x0x0|4x8x8"
    same = "CONV|4x8x8|4x4x3x3|4x8x8"
    table = read(CONV, "MPOOL|4x8x8|0x0x3x3|4x8x8", same, relu, same, add, relu, same, add)
    sums = [node.inputs for node in table.graph.nodes if node.name.startswith("ADD")]
    assert sums == [("CONV.3", "MPOOL"), ("CONV.4", "RELU.2")]


@pytest.mark.parametrize(
    ("line", "stride", "padding", "ceil_mode"),
    [
        ("MPOOL|96x54x54|0x0x3x3|96x27x27", 2, 0, True),  # floor(51/2)+1 = 26, ceil(51/2)+1 = 27
        ("MPOOL|96x27x27|0x0x3x3|96x13x13", 2, 0, False),
        ("MPOOL|96x113x113|0x0x2x2|96x57x57", 2, 0, True),
        (
            "MPOOL|96x112x112|0x0x3x3|96x56x56",
            2,
            0,
            True,
        ),  # torchvision pads by 1: less padding wins, sizes are the same
        ("APOOL|96x7x7|0x0x7x7|96x1x1", 1, 0, False),
        ("MPOOL|96x8x8|0x0x3x3|96x8x8", 1, 1, False),
    ],
)
def test_pooling_windows_have_the_least_padding(line: str, stride: int, padding: int, ceil_mode: bool) -> None:
    layer = read(line, shape=line.split("|")[1]).graph.nodes[0].layer
    assert isinstance(layer, Pool)
    assert (layer.stride, layer.padding, layer.ceil_mode) == ((stride,) * 2, (padding,) * 2, ceil_mode)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 4), st.integers(0, 3), st.booleans())
def test_every_window_that_torch_could_have_is_explained(
    x: int, kernel: int, stride: int, padding: int, pooled: bool
) -> None:
    assume(x + 2 * padding >= kernel and 2 * padding <= kernel)
    if pooled:
        layer: Conv | Pool = Pool.of("max", (2, x, 9), (kernel, 1), stride=(stride, 1), padding=(padding, 0))
    else:
        layer = Conv.of((2, x, 9), 2, (kernel, 1), stride=(stride, 1), padding=(padding, 0))
    y = layer.output_shape[1]
    line = f"{'MPOOL' if pooled else 'CONV'}|2x{x}x9|2x2x{kernel}x1|2x{y}x9"
    found = read(line, shape=f"2x{x}x9").graph.nodes[0].layer
    assert isinstance(found, Conv | Pool)
    assert found.output_shape == layer.output_shape
    assert found.padding[0] <= padding


BAD_LINES = {
    "an unknown kind": ("POOL|3x8x8|0x0x2x2|3x4x4", "begins with none of CONV, BNORM"),
    "too few columns": ("CONV|3x8x8|3x4x3x3", "not 3"),
    "too many columns": (f"{CONV}|0|0", "not 6"),
    "sizes that are none": ("CONV|3x8xa|3x4x3x3|4x8x8", "'3x8xa' is not"),
    "negative sizes": ("CONV|3x8x-8|3x4x3x3|4x8x8", "is not one to five sizes"),
    "endless sizes": (f"CONV|{'9' * 5000}|3x4x3x3|4x8x8", "is not one to five sizes"),
    "axes that differ": ("CONV|3x8x8|3x4x3|4x8x8", "3, 3 and 3 axes"),
    "an empty output": ("CONV|3x8x8|3x4x3x3|4x0x8", "empty"),
    "a kernel of zero": ("CONV|3x8x8|3x4x0x0|4x8x8", "kernel"),
    "another input": ("CONV|3x9x9|3x4x3x3|4x9x9", "reads 3x9x9, but the line before it gives 3x8x8"),
    "other channels": ("CONV|3x8x8|5x4x3x3|4x8x8", "channels from 3 to 4"),
    "an inexplicable convolution": ("CONV|3x8x8|3x4x2x2|4x8x8", "no stride and symmetric padding"),
    "an inexplicable pooling": ("MPOOL|3x8x8|0x0x3x3|3x9x9", "no stride and symmetric padding"),
    "a huge kernel": ("CONV|3x8x8|3x4x99999999x99999999|4x8x8", "no stride and symmetric padding"),
    "a pooling that changes channels": ("MPOOL|3x8x8|0x0x2x2|4x4x4", "gives 3x4x4, not 4x4x4"),
    "an activation that changes shape": ("RELU|3x8x8|3x3x0x0|3x8x9", "gives 3x8x8, not 3x8x9"),
    "a kernel beside its input": ("FC|3x8x8|3x4x1x1|4x1x1", "not of its whole input 8x8"),
    "a flat layer with extents": ("FC|3x8x8|3x4x8x8|4x2x1", "gives 4x1x1, not 4x2x1"),
    "an endless name": (f"CONV{'_' * 1000}|3x8x8|3x4x3x3|4x8x8", "is no name"),
    "a name that cannot be printed": ("CONV\0|3x8x8|3x4x3x3|4x8x8", "is no name"),
    "no time": (f"{CONV}|fast", "'fast' is no number of seconds"),
    "a negative time": (f"{CONV}|-1", "from 0 s on"),
    "NaN seconds": (f"{CONV}|nan", "finite"),
    "a second input": ("Input|50x3x8x8", "columns"),
}


@pytest.mark.parametrize(("line", "said"), BAD_LINES.values(), ids=list(BAD_LINES))
def test_a_bad_line_is_refused_with_its_number(line: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        read("# comment", line)
    assert str(caught.value).startswith("line 3 of table 'test': ")
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no layers"),
        ("Input|50x3x8x8", "no layers"),
        (CONV, "line 1 .* before"),
        ("Input|0x3x8x8\n" + CONV, "line 1"),
        ("Input|50\n" + CONV, "line 1"),
        ("Input|50x0x8", "line 1"),
    ],
)
def test_a_table_without_layers_or_input_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read_net(text, "test")


@pytest.mark.parametrize("text", ["CONV|2", "CONV", "CONV|1|0", "|1", "CONV|1\nRELU||0"])
def test_a_bad_mask_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(BadInput, match=r"line [12] of a layer mask"):
        read_mask(text)

"""The networks of the zoo: published parameters and shapes."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from oracle.layer import Phase
from oracle.layers import Elementwise, Loss
from oracle.loading import load_model
from oracle.model import ModelGraph, Node
from oracle.windows import Conv
from oracle.zoo import ZOO


def nodes(graph: ModelGraph) -> dict[str, Node]:
    return {node.name: node for node in graph.nodes}


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("alexnet", 61_100_840),
        ("vgg16", 138_357_544),
        ("resnet50", 25_557_032),
        ("resnet152", 60_192_808),
        # by hand: seven convolutions 1744 + 13856 + 55360 + 221312 + 262400 + 524544 + 262272,
        # fully connected 264192 + 524544 + 1028 ("about 2 M" in the paper)
        ("cosmoflow512", 2_131_252),
    ],
)
def test_parameters_are_the_published_ones(name: str, params: int) -> None:
    assert load_model(name).params == params


@pytest.mark.parametrize("name", ZOO)
def test_every_network_ends_in_its_loss_and_names_its_source_and_data_set(name: str) -> None:
    graph = load_model(name)
    last = graph.nodes[-1].layer
    assert isinstance(last, Loss)
    cosmoflow = name.startswith("cosmoflow")
    assert last.op == ("mse" if cosmoflow else "cross_entropy")
    assert last.shape == ((4,) if cosmoflow else (1000,))
    assert graph.dataset_samples == (1584 if cosmoflow else 1_281_167)
    assert "arXiv" in graph.source


@pytest.mark.parametrize("name", ZOO)
def test_every_result_but_the_loss_is_read(name: str) -> None:
    graph = load_model(name)
    assert [node.name for node in graph.nodes if not graph.readers.get(node.name)] == ["loss"]


def test_alexnet_is_the_one_of_the_one_weird_trick_paper() -> None:
    # one tower: 2,468,544 convolutional and 58,621,952 fully connected weights, 9,216 items between them
    graph = load_model("alexnet")
    weights = dict.fromkeys(("conv", "linear"), 0)
    for node in graph.nodes:
        if node.layer.kind in weights:
            weights[node.layer.kind] += math.prod(node.layer.param_shapes[0])
    assert weights == {"conv": 2_468_544, "linear": 58_621_952}
    assert nodes(graph)["conv1"].layer.output_shape == (64, 55, 55)
    assert nodes(graph)["pool5"].layer.output_items == 9216


def test_resnet_halves_the_extents_in_its_3x3_convolutions() -> None:
    # version 1.5: 4.09 G multiply-adds forward for ResNet-50, where version 1 has 3.8 G (torchvision's table of models)
    graph = load_model("resnet50")
    strided = [node.name for node in graph.nodes if isinstance(node.layer, Conv) and max(node.layer.stride) > 1]
    assert strided == ["conv1", *(f"layer{i}.0.{name}" for i in (2, 3, 4) for name in ("conv2", "downsample.0"))]
    products = [node.layer for node in graph.nodes if node.layer.kind in ("conv", "linear")]
    assert sum(layer.work(Phase.FORWARD, 1).flop for layer in products) / 2 == pytest.approx(4.09e9, rel=1e-3)


@pytest.mark.parametrize(("name", "blocks", "shortcuts"), [("resnet50", 16, 4), ("resnet152", 50, 4)])
def test_every_block_of_a_resnet_adds_its_shortcut(name: str, blocks: int, shortcuts: int) -> None:
    sums = [node for node in load_model(name).nodes if isinstance(node.layer, Elementwise) and node.layer.op == "add"]
    assert len(sums) == blocks
    assert sum(node.inputs[1].endswith("downsample.1") for node in sums) == shortcuts
    assert all(len(set(node.inputs)) == 2 for node in sums)


@pytest.mark.parametrize(
    ("name", "convolutions", "poolings", "features"),
    [
        ("cosmoflow512", 7, 6, 128),
        # 256 -> 254 -> 127 -> 125 -> 62 -> 30 -> 15 -> 13 -> 6 -> 5 -> 2 -> 1
        ("cosmoflow256", 6, 5, 256),
        # 128 -> 126 -> 63 -> 61 -> 30 -> 14 -> 7 -> 5 -> 2 -> 1
        ("cosmoflow128", 5, 4, 256),
    ],
)
def test_cosmoflow_runs_as_far_as_its_volume_has_room(
    name: str, convolutions: int, poolings: int, features: int
) -> None:
    graph = load_model(name)
    kinds = [node.layer.kind for node in graph.nodes]
    assert (kinds.count("conv"), kinds.count("pool"), kinds.count("linear")) == (convolutions, poolings, 3)
    assert nodes(graph)["fc1"].layer.input_shapes == ((features,),)


def test_importing_the_zoo_imports_no_network() -> None:
    code = "import sys, oracle.zoo; print([name for name in sys.modules if name.startswith('oracle.zoo.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

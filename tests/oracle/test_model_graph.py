"""`ModelGraph`: what a graph may be, and its JSON, good and bad."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.errors import BadInput, OutOfRange
from oracle.layers import Elementwise, Linear
from oracle.loading import load_model
from oracle.model import INPUT, GraphBuilder, ModelGraph, Node
from oracle.zoo import ZOO


@st.composite
def graphs(draw: st.DrawFn) -> ModelGraph:
    """Graphs of fully connected layers, activations and sums of earlier results of one width."""
    build = GraphBuilder(draw(st.sampled_from(("a", "model 1"))), (draw(st.integers(1, 9)),))
    build.add("first", Linear(build.sample_shape[0], draw(st.integers(1, 9))))
    for number in range(draw(st.integers(0, 12))):
        source = draw(st.sampled_from(build.nodes)).name
        shape = build.shape(source)
        match draw(st.sampled_from(("linear", "relu", "add"))):
            case "linear":
                build.add(f"{number}", Linear(shape[0], draw(st.integers(1, 9)), bias=draw(st.booleans())), source)
            case "relu":
                build.add(f"{number}", Elementwise("relu", shape, draw(st.booleans())), source)
            case "add":
                other = draw(st.sampled_from([node.name for node in build.nodes if node.layer.output_shape == shape]))
                build.add(f"{number}", Elementwise("add", shape), source, other)
    return build.graph(draw(st.none() | st.integers(1, 10**7)), draw(st.sampled_from(("", "a paper"))))


@settings(derandomize=True, deadline=None, max_examples=150)
@given(graphs())
def test_a_graph_survives_json(graph: ModelGraph) -> None:
    again = ModelGraph.from_json(graph.to_json())
    assert again == graph
    assert again.source == graph.source  # which equality leaves out


@pytest.mark.parametrize("name", ZOO)
def test_every_graph_of_the_zoo_survives_json(name: str) -> None:
    graph = load_model(name)
    assert ModelGraph.from_json(graph.to_json()) == graph


def tiny() -> ModelGraph:
    build = GraphBuilder("tiny", (8,))
    build.add("hidden", Linear(8, 4))
    build.add("relu", Elementwise("relu", (4,)))
    build.add("sum", Elementwise("add", (4,)), "relu", "hidden")
    return build.graph(100, "by hand")


def test_gradients_stop_at_the_first_trainable_layer() -> None:
    # nothing before 'hidden' learns; what comes after it passes gradients back to it
    assert tiny().needs_data_gradient == {"hidden": False, "relu": True, "sum": True}
    assert tiny().readers == {INPUT: 1, "hidden": 2, "relu": 1}


def test_a_graph_without_layers_or_samples_is_refused() -> None:
    with pytest.raises(BadInput, match="'empty' has no layers"):
        ModelGraph("empty", (3,), ())
    with pytest.raises(OutOfRange, match="at least one sample, not 0"):
        ModelGraph("tiny", (8,), (Node("a", Linear(8, 4), (INPUT,)),), dataset_samples=0)


def layer(values: dict[str, Any], number: int) -> dict[str, Any]:
    found = values["layers"][number]
    assert isinstance(found, dict)
    return found


BAD_VALUES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another format": lambda v: v.update(format="stepgauge-model-0"),
    "no name": lambda v: v.pop("name"),
    "no layers": lambda v: v.pop("layers"),
    "empty layers": lambda v: v["layers"].clear(),
    "layers of a wrong type": lambda v: v.update(layers=3),
    "layers in an object": lambda v: v.update(layers={"hidden": {}}),
    "a layer of a wrong type": lambda v: v["layers"].append("relu"),
    "a cycle": lambda v: layer(v, 0).update(inputs=["sum"]),
    "a layer that reads itself": lambda v: layer(v, 1).update(inputs=["relu"]),
    "a missing edge": lambda v: layer(v, 2).update(inputs=["relu"]),
    "an edge from nowhere": lambda v: layer(v, 1).update(inputs=["hiden"]),
    "an edge of a wrong type": lambda v: layer(v, 1).update(inputs=[["hidden"]]),
    "edges of a wrong type": lambda v: layer(v, 1).update(inputs="hidden"),
    "a doubled name": lambda v: layer(v, 1).update(name="hidden"),
    "a layer called input": lambda v: layer(v, 0).update(name="input"),
    "a layer without a name": lambda v: layer(v, 0).pop("name"),
    "a name of two lines": lambda v: layer(v, 0).update(name="a\nb"),
    "a name of a wrong type": lambda v: v.update(name=["tiny"]),
    "a name that cannot be printed": lambda v: v.update(name="\ud800"),
    "an endless name": lambda v: v.update(name="a" * 100_000),
    "an unknown kind": lambda v: layer(v, 1).update(kind="rleu"),
    "an unknown field": lambda v: layer(v, 1).update(size=3),
    "sizes that do not match": lambda v: layer(v, 1).update(shape=[5]),
    "NaN": lambda v: layer(v, 0).update(in_features=float("nan")),
    "Infinity": lambda v: v.update(sample_shape=[float("inf")]),
    "an empty sample": lambda v: v.update(sample_shape=[]),
    "a sample of no items": lambda v: v.update(sample_shape=[8, 0]),
    "a sample of a wrong type": lambda v: v.update(sample_shape=8),
    "a sample of fractions": lambda v: v.update(sample_shape=[8.0]),
    "numbers beyond all models": lambda v: v.update(sample_shape=[10**4000, 10**4000]),
    "dataset_samples of zero": lambda v: v.update(dataset_samples=0),
    "dataset_samples as a text": lambda v: v.update(dataset_samples="100"),
    "dataset_samples as a fraction": lambda v: v.update(dataset_samples=1e6),
    "dataset_samples as a bool": lambda v: v.update(dataset_samples=True),
    "dataset_samples as a list": lambda v: v.update(dataset_samples=[100]),
    "a source of a wrong type": lambda v: v.update(source=7),
}

BAD_TEXTS = {
    "nothing": "",
    "no JSON": "layers: relu",
    "half of it": tiny().to_json()[:200],
    "a list": "[]",
    "a number too long to read": "1" * 5000,
    "deep nesting": "[" * 100_000,
    "deep nesting that ends": "[" * 50_000 + "]" * 50_000,
    "objects nested deeply": '{"format":' * 50_000 + "1" + "}" * 50_000,
    **{
        f"a {what} nested {depth} times": f'{{"format": "stepgauge-model-1", "{what}": {"[" * depth}{"]" * depth}}}'
        for what in ("name", "sample_shape", "layers")
        for depth in (10, 500, 900)
    },
}


def is_refused_in_one_short_line(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        ModelGraph.from_json(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("spoil", BAD_VALUES.values(), ids=list(BAD_VALUES))
def test_bad_values_are_refused_in_one_short_line(spoil: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(tiny().to_json())
    spoil(values)
    is_refused_in_one_short_line(json.dumps(values))


@pytest.mark.parametrize("text", BAD_TEXTS.values(), ids=list(BAD_TEXTS))
def test_bad_json_is_refused_in_one_short_line(text: str) -> None:
    is_refused_in_one_short_line(text)

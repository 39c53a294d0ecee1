"""`ModelGraph`: a model as a directed acyclic graph of layers, read from and written to JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from oracle.errors import BadInput, OutOfRange
from oracle.layer import Layer, Phase, Shape
from oracle.layers import LAYERS, checked, layer_from_dict
from oracle.plain_json import without_doubled_keys

INPUT = "input"
"""The name that stands for the sample among the inputs of a node."""

FORMAT = "stepgauge-model-1"
"""The `format` of a model's JSON."""


@dataclass(frozen=True)
class Node:
    """A layer in its place: its name and the nodes that its operands come from."""

    name: str
    layer: Layer
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class ModelGraph:
    """A model: nodes in an order in which they can run.

    A node may take a tensor of another shape with the same number of items (a fully connected layer after a
    convolution flattens it, a volume may be read as tokens): only the number of items is checked along an edge.

    Args:
        sample_shape: one sample, (channels, *extents) or (tokens,).
        dataset_samples: samples per epoch, when known.
        source: where the definition comes from.

    Raises:
        BadInput: no nodes, a doubled name, an input that does not come before, a wrong number of operands or items.
    """

    name: str
    sample_shape: Shape
    nodes: tuple[Node, ...]
    dataset_samples: int | None = None
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.nodes:
            raise BadInput(f"model '{self.name}' has no layers")
        if self.dataset_samples is not None and self.dataset_samples < 1:
            raise OutOfRange(f"a data set has at least one sample, not {self.dataset_samples}")
        items = {INPUT: math.prod(self.sample_shape)}
        for node in self.nodes:
            wanted = node.layer.input_shapes
            if node.name in items:
                raise BadInput(f"two layers of '{self.name}' are called '{node.name}'")
            if len(node.inputs) != len(wanted):
                raise BadInput(f"layer '{node.name}' takes {len(wanted)} operands, not {len(node.inputs)}")
            for name, shape in zip(node.inputs, wanted, strict=True):
                if name not in items:
                    raise BadInput(f"layer '{node.name}' reads '{name}', which no layer before it is called")
                if items[name] != math.prod(shape):
                    raise BadInput(f"layer '{node.name}' takes {shape}, but '{name}' gives {items[name]} items")
            items[node.name] = node.layer.output_items

    @property
    def params(self) -> int:
        """Trainable parameters."""
        return sum(node.layer.params for node in self.nodes)

    @cached_property
    def needs_data_gradient(self) -> Mapping[str, bool]:
        """Which nodes compute the gradient of their input: those with trainable parameters somewhere before them."""
        trainable = {INPUT: False}
        needs: dict[str, bool] = {}
        for node in self.nodes:
            needs[node.name] = any(trainable[name] for name in node.inputs)
            trainable[node.name] = needs[node.name] or node.layer.params > 0
        return needs

    @cached_property
    def readers(self) -> Mapping[str, int]:
        """How many operands read each node's result; gradients of more than one are added up in backward."""
        return Counter(name for node in self.nodes for name in node.inputs)

    @cached_property
    def sample_flop(self) -> tuple[float, ...]:
        """Operations of forward and backward of every layer, per sample."""
        return tuple(
            sum(node.layer.work(phase, 1).flop for phase in node.layer.phases if phase is not Phase.UPDATE)
            for node in self.nodes
        )

    @cached_property
    def crossing_items(self) -> tuple[int, ...]:
        """For every layer: items per sample made before it and read by it or after it; the sample not counted."""
        places = {node.name: index for index, node in enumerate(self.nodes)}
        last_read: dict[str, int] = {}
        for index, node in enumerate(self.nodes):
            last_read.update(dict.fromkeys(node.inputs, index))
        changes = [0] * (len(self.nodes) + 1)
        for name, read in last_read.items():
            if name in places:
                items = self.nodes[places[name]].layer.output_items
                changes[places[name] + 1] += items
                changes[read + 1] -= items
        return tuple(accumulate(changes))

    def to_json(self) -> str:
        """The graph as JSON text."""
        layers = [{"name": node.name, "inputs": list(node.inputs), **node.layer.to_dict()} for node in self.nodes]
        head = {"format": FORMAT, "name": self.name, "sample_shape": list(self.sample_shape)}
        tail = {"dataset_samples": self.dataset_samples, "source": self.source, "layers": layers}
        return json.dumps(head | tail, indent=1)

    @classmethod
    def from_json(cls, text: str) -> ModelGraph:
        """Read what `to_json` wrote.

        Raises:
            BadInput: no JSON, another format, or a graph that cannot be.
        """
        try:
            values = json.loads(text, object_pairs_hook=without_doubled_keys)
        except ValueError as error:
            raise BadInput(f"not a model: {error}") from None
        except RecursionError:
            raise BadInput("not a model: its lists are nested too deeply") from None
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise BadInput(f"not a model: its format is not '{FORMAT}'")
        try:
            return cls(
                name=checked(values["name"], str, "the name of a model"),
                sample_shape=_shape(values["sample_shape"]),
                nodes=tuple(_node(item) for item in values["layers"]),
                dataset_samples=_optional_count(values.get("dataset_samples")),
                source=checked(values.get("source", ""), str, "the source of a model"),
            )
        except KeyError as error:
            raise BadInput(f"not a model: it has no {error}") from None
        except TypeError as error:
            raise BadInput(f"not a model: {error}") from None


def _optional_count(value: object) -> int | None:
    return None if value is None else int(checked(value, int, "dataset_samples of a model"))


def _shape(value: object) -> Shape:
    shape: Shape = checked(value, Shape, "the sample_shape of a model")
    if not shape or min(shape) < 1:
        raise BadInput(f"the sample_shape of a model is one or more numbers from 1 on, not {list(shape)}")
    return shape


def _node(values: object) -> Node:
    if not isinstance(values, dict) or not isinstance(values.get("inputs"), list):
        raise BadInput("a layer of a model is an object with a list of inputs")
    name = checked(values["name"], str, "the name of a layer")
    inputs = tuple(checked(item, str, f"an input of layer '{name}'") for item in values["inputs"])
    layer = layer_from_dict({key: value for key, value in values.items() if key not in ("name", "inputs")}, LAYERS)
    return Node(name, layer, inputs)


class GraphBuilder:
    """Append layers one after another and name what each returns; what the zoo's definitions are written with.

    >>> from oracle.layers import Linear
    >>> build = GraphBuilder("tiny", (8,))
    >>> hidden = build.add("hidden", Linear(8, 4))
    >>> build.add("out", Linear(4, 2), hidden)
    'out'
    >>> build.graph().params
    46
    """

    def __init__(self, name: str, sample_shape: Shape) -> None:
        self.name, self.sample_shape = name, sample_shape
        self.nodes: list[Node] = []

    def add(self, name: str, layer: Layer, *inputs: str) -> str:
        """Append a layer that reads `inputs` (by default the layer before it) and return its name."""
        before = self.nodes[-1].name if self.nodes else INPUT
        self.nodes.append(Node(name, layer, inputs or (before,)))
        return name

    def shape(self, name: str | None = None) -> Shape:
        """The shape that a node (by default the last one) gives."""
        if name == INPUT or not self.nodes:
            return self.sample_shape
        if name is None:
            return self.nodes[-1].layer.output_shape
        return next(node.layer.output_shape for node in reversed(self.nodes) if node.name == name)

    def graph(self, dataset_samples: int | None = None, source: str = "") -> ModelGraph:
        """The finished graph."""
        return ModelGraph(self.name, self.sample_shape, tuple(self.nodes), dataset_samples, source)

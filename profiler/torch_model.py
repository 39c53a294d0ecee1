"""Any `ModelGraph` as a `torch.nn.Module` that trains.

Every layer becomes the module of `torch.nn` that people would write, with torch's own initial values. Nodes run in the
graph's order. A tensor is let go after its last reader, as it would be in a hand-written model. A layer whose operand
has the right items in another shape reshapes it. In-place layers run in place where that is safe: not on the sample,
and not on a tensor that another layer reads. A sum is in place (`out += identity`) only where the graph says so.

Two things are as they are only nearly. A layer with tied weights has weights of its own here, because a graph does not
say whose they are; and operations without a kind are stood in for by copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from oracle.errors import BadInput
from oracle.layer import Layer
from oracle.layers import Attention, Concat, Elementwise, Embedding, Linear, Loss, Norm
from oracle.model import INPUT, ModelGraph, Node
from oracle.operations import Matmul, Other
from oracle.windows import Conv, Pool
from profiler.micro.loss import loss_of, random_target

DROPOUT = 0.5


class _Function(nn.Module):
    """A module without parameters that applies a function."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def _conv(layer: Conv) -> nn.Module:
    classes: dict[tuple[int, bool], Any] = {
        (1, False): nn.Conv1d,
        (2, False): nn.Conv2d,
        (3, False): nn.Conv3d,
        (1, True): nn.ConvTranspose1d,
        (2, True): nn.ConvTranspose2d,
        (3, True): nn.ConvTranspose3d,
    }
    options: dict[str, Any] = {"output_padding": layer.output_padding} if layer.transposed else {}
    options |= {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
    options |= {"groups": layer.groups, "bias": layer.bias}
    module: nn.Module = classes[len(layer.extents), layer.transposed](
        layer.in_channels, layer.out_channels, layer.kernel, **options
    )
    return module


def _linear(layer: Linear) -> nn.Module:
    return nn.Linear(layer.in_features, layer.out_features, layer.bias)


def _norm(layer: Norm) -> nn.Module:
    if layer.op == "layer":
        return nn.LayerNorm(layer.features, elementwise_affine=layer.affine)
    if layer.op == "group":
        return nn.GroupNorm(layer.groups, layer.features, affine=layer.affine)
    # Modules differ by the number of axes, one for the batch, one for the channels and the extents.
    batch: tuple[Any, ...] = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    instance: tuple[Any, ...] = (nn.InstanceNorm1d, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
    module: nn.Module = (batch if layer.op == "batch" else instance)[len(layer.shape) - 1](
        layer.features, affine=layer.affine
    )
    return module


def _pool(layer: Pool) -> nn.Module:
    classes: dict[tuple[str, int], Any] = {
        ("max", 1): nn.MaxPool1d,
        ("max", 2): nn.MaxPool2d,
        ("max", 3): nn.MaxPool3d,
        ("avg", 1): nn.AvgPool1d,
        ("avg", 2): nn.AvgPool2d,
        ("avg", 3): nn.AvgPool3d,
    }
    # An average over one axis takes numbers, not tuples of one.
    windows = (layer.kernel, layer.stride, layer.padding)
    sizes = [window[0] for window in windows] if len(layer.kernel) == 1 else windows
    module: nn.Module = classes[layer.op, len(layer.kernel)](*sizes, ceil_mode=layer.ceil_mode)
    return module


def _elementwise(layer: Elementwise) -> nn.Module:
    inplace = layer.inplace
    modules: dict[str, Callable[[], nn.Module]] = {
        "relu": lambda: nn.ReLU(inplace),
        "sigmoid": nn.Sigmoid,
        "tanh": nn.Tanh,
        "silu": lambda: nn.SiLU(inplace),
        "gelu": nn.GELU,
        "dropout": lambda: nn.Dropout(DROPOUT, inplace),
        "softmax": lambda: nn.Softmax(-1),
        "add": lambda: _Function(Tensor.add_ if inplace else torch.add),
        "mul": lambda: _Function(Tensor.mul_ if inplace else torch.mul),
    }
    if layer.op not in modules:
        raise BadInput(f"there is no torch module for '{layer.op}'; there are {', '.join(modules)}")
    return modules[layer.op]()


def _concat(layer: Concat) -> nn.Module:
    return _Function(lambda *inputs: torch.cat(inputs, 1))


def _embedding(layer: Embedding) -> nn.Module:
    return nn.Embedding(layer.vocabulary, layer.width)


def _attention(layer: Attention) -> nn.Module:
    def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=layer.causal)

    return _Function(attend)


def _matmul(layer: Matmul) -> nn.Module:
    return _Function(torch.matmul)


class _StandIn(nn.Module):
    """Stands in for operations that nobody knows by name: its result has their shape, and depends on all they read."""

    def __init__(self, layer: Other) -> None:
        super().__init__()
        self.shape = layer.shape
        self.is_view = not layer.moved
        self.weights = nn.ParameterList(torch.ones(items) for items in layer.weights)

    def forward(self, *inputs: Tensor) -> Tensor:
        read = torch.cat([operand.flatten(1) for operand in inputs], 1)
        read = read if read.is_floating_point() or self.is_view else read.float()
        items = math.prod(self.shape)
        result = read.repeat(1, -(-items // read.shape[1]))[:, :items]
        for weight in self.weights:
            result = result * weight.mean()
        return result.reshape(-1, *self.shape)


def _loss(layer: Loss) -> nn.Module:
    return _Function(lambda x, target: loss_of(layer, x, target))


MODULES: dict[str, Callable[[Any], nn.Module]] = {
    Conv.kind: _conv,
    Linear.kind: _linear,
    Norm.kind: _norm,
    Pool.kind: _pool,
    Elementwise.kind: _elementwise,
    Concat.kind: _concat,
    Embedding.kind: _embedding,
    Attention.kind: _attention,
    Matmul.kind: _matmul,
    Loss.kind: _loss,
    Other.kind: _StandIn,
}
"""Kind of layer -> its module."""


def module_of(layer: Layer) -> nn.Module:
    """The module of one layer, in training mode; a loss takes the prediction and the target.

    Raises:
        BadInput: there is none.
    """
    if layer.kind not in MODULES:
        raise BadInput(f"there is no torch module for {layer.kind} layers; there are {', '.join(MODULES)}")
    return MODULES[layer.kind](layer)


class GraphModule(nn.Module):
    """A model graph that trains: `module(sample, target)` returns the last node's result.

    Args:
        graph: the model.
    """

    def __init__(self, graph: ModelGraph) -> None:
        super().__init__()
        self.graph = graph
        self.layers = nn.ModuleList(module_of(_safely(node, graph.readers)) for node in graph.nodes)
        self._released = _last_reads(graph)

    def forward(self, sample: Tensor, target: Tensor | None = None) -> Tensor:
        """Run every node; a loss compares with `target`."""
        results = {INPUT: sample}
        del sample
        for node, module, released in zip(self.graph.nodes, self.layers, self._released, strict=True):
            operands = [
                _shaped(results[name], shape) for name, shape in zip(node.inputs, node.layer.input_shapes, strict=True)
            ]
            for name in released:
                del results[name]
            if isinstance(node.layer, Loss):
                operands.append(_target(target, node))
            results[node.name] = module(*operands)
        return results[self.graph.nodes[-1].name]


def _safely(node: Node, readers: Mapping[str, int]) -> Layer:
    """The node's layer, out of place where running in place would change what others read."""
    layer = node.layer
    if isinstance(layer, Elementwise) and layer.inplace:
        overwritten = node.inputs[0]
        if overwritten == INPUT or readers[overwritten] > 1:
            return Elementwise(layer.op, layer.shape)
    return layer


def _last_reads(graph: ModelGraph) -> list[set[str]]:
    """For each node, the results that nobody reads after it."""
    last = {name: index for index, node in enumerate(graph.nodes) for name in node.inputs}
    return [{name for name in node.inputs if last[name] == index} for index, node in enumerate(graph.nodes)]


def _shaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    return tensor if tensor.shape[1:] == shape else tensor.reshape(tensor.shape[0], *shape)


def _target(target: Tensor | None, node: Node) -> Tensor:
    if target is None:
        raise BadInput(f"the loss '{node.name}' needs a target")
    return target


def random_batch(graph: ModelGraph, samples: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A random batch and its target: token numbers where an embedding reads the sample, else normal numbers.

    The target is what the last node compares with if it is a loss, else numbers of the shape of its result.
    """
    tables = [n.layer for n in graph.nodes if INPUT in n.inputs and isinstance(n.layer, Embedding)]
    if tables:
        sample = torch.randint(min(t.vocabulary for t in tables), (samples, *graph.sample_shape), device=device)
    else:
        sample = torch.randn(samples, *graph.sample_shape, device=device)
    last = graph.nodes[-1].layer
    if isinstance(last, Loss):
        return sample, random_target(last, samples, device)
    return sample, torch.randn(samples, *last.output_shape, device=device)

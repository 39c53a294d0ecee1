"""Activations, dropout, softmax, and sums and products of two tensors.

An in-place operation that is repeated on its own result must leave sane values. For relu, sigmoid, tanh and a sum it
does; silu, gelu and products would shrink to denormal numbers, which are slow, so they write to a second tensor that is
kept (the same traffic, and as little allocation).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from oracle.errors import BadInput
from oracle.layers import Elementwise
from profiler.micro.base import Builder, Prepared, Result, Run, gradient_like, layer_of, through_autograd

aten = torch.ops.aten

DROPOUT = 0.5

FORWARD: dict[str, Callable[..., Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "dropout": lambda x: functional.dropout(x, DROPOUT, training=True),
    "softmax": lambda x: torch.softmax(x, -1),
    "add": torch.add,
    "mul": torch.mul,
}
"""Operation -> its result as a new tensor."""


def _dropout_into(x: Tensor, kept: Tensor) -> Tensor:
    noise = torch.empty_like(x).bernoulli_(1 - DROPOUT).div_(1 - DROPOUT)  # what `Tensor.dropout_` runs, out of place
    return torch.mul(x, noise, out=kept)


INPLACE: dict[str, Callable[..., Any]] = {
    "relu": lambda kept, x: torch.relu_(x),
    "sigmoid": lambda kept, x: torch.sigmoid_(x),
    "tanh": lambda kept, x: torch.tanh_(x),
    "add": lambda kept, x, other: x.add_(other),
    "silu": lambda kept, x: aten.silu.out(x, out=kept),
    "gelu": lambda kept, x: aten.gelu.out(x, out=kept),
    "softmax": lambda kept, x: torch.softmax(x, -1),  # torch has none in place
    "dropout": lambda kept, x: _dropout_into(x, kept),
    "mul": lambda kept, x, other: torch.mul(x, other, out=kept),
}
"""Operation -> the closure's body, given a kept tensor and the operands."""

BACKWARD: dict[str, Callable[[Tensor, Tensor, Tensor], Result]] = {
    "relu": lambda gradient, x, y: aten.threshold_backward(gradient, y, 0),
    "sigmoid": lambda gradient, x, y: aten.sigmoid_backward(gradient, y),
    "tanh": lambda gradient, x, y: aten.tanh_backward(gradient, y),
    "silu": lambda gradient, x, y: aten.silu_backward(gradient, x),
    "gelu": lambda gradient, x, y: aten.gelu_backward(gradient, x),
    "softmax": lambda gradient, x, y: aten._softmax_backward_data(gradient, y, -1, y.dtype),
}
"""Operation of one operand -> its gradient from that of the result, the operand and the result."""


def prepare(build: Builder) -> Prepared:
    """One phase of an elementwise layer."""
    layer = layer_of(build, Elementwise)
    if build.forward:
        return _forward(build, layer)
    return _backward(build, layer)


def _forward(build: Builder, layer: Elementwise) -> Prepared:
    inputs = build.inputs(grad=not layer.inplace)
    if layer.inplace:
        body, kept = INPLACE[layer.op], torch.empty_like(inputs[0])
        return Prepared(lambda: body(kept, *inputs), inputs)
    operation = FORWARD[layer.op]
    return Prepared(lambda: operation(*inputs), inputs)


def _backward(build: Builder, layer: Elementwise) -> Prepared:
    inputs = build.inputs(grad=layer.op == "dropout")
    y = FORWARD[layer.op](*inputs)
    gradient = gradient_like(lambda: y)
    run: Run
    if layer.op == "dropout":
        run = through_autograd(y, inputs, gradient)
    elif layer.op == "mul":
        first, second = inputs
        run = lambda: (gradient * second, gradient * first)  # noqa: E731 - a closure like the others
    elif layer.op in BACKWARD:
        body, (x,) = BACKWARD[layer.op], inputs
        run = lambda: body(gradient, x, y)  # noqa: E731
    else:
        raise BadInput(f"no backward microbenchmark for '{layer.op}'; there are {', '.join(BACKWARD)}, dropout, mul")
    return Prepared(run, inputs, (), gradient)


MICRO = prepare

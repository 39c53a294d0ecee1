"""Fully connected layers: forward, and both gradients as the products that autograd would run."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from oracle.layer import Phase
from oracle.layers import Linear
from profiler.micro.base import Builder, Prepared, gradient_like, layer_of


def prepare(build: Builder) -> Prepared:
    """One phase of a fully connected layer; the sum for the bias belongs to backward-weight."""
    layer = layer_of(build, Linear)
    (x,) = build.inputs(grad=build.forward)
    params = build.params(grad=build.forward)
    if build.forward:
        return Prepared(lambda: functional.linear(x, *build.weights(params)), (x,), params)
    weight = params[0]
    gradient = gradient_like(lambda: functional.linear(x, *params))
    if build.call.phase is Phase.BACKWARD_DATA:
        return Prepared(lambda: gradient @ weight, (x,), params, gradient)
    rows = x.reshape(-1, layer.in_features)
    gradient_rows = gradient.reshape(-1, layer.out_features)

    def backward_weight() -> tuple[Tensor, ...]:
        of_weight = gradient_rows.t() @ rows
        return build.gradients((of_weight, gradient_rows.sum(0)) if layer.bias else (of_weight,))

    return Prepared(backward_weight, (x,), params, gradient)


MICRO = prepare

"""Scaled dot-product attention, in the implementation that `profiler.precision.switched` has chosen, or torch."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from oracle.layers import Attention
from profiler.micro.base import Builder, Prepared, gradient_like, layer_of, through_autograd


def prepare(build: Builder) -> Prepared:
    """One phase of an attention: backward yields the gradients of queries, keys and values together."""
    layer = layer_of(build, Attention)
    queries, keys, values = inputs = build.inputs(grad=True)

    def forward() -> Tensor:
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=layer.causal)

    if build.forward:
        return Prepared(forward, inputs)
    result = forward()
    gradient = gradient_like(lambda: result)
    return Prepared(through_autograd(result, inputs, gradient), inputs, (), gradient)


MICRO = prepare

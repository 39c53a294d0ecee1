"""Convolutions: forward, and the gradients of input and weight apart through `aten.convolution_backward`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from oracle.layer import Phase
from oracle.windows import Conv
from profiler.micro.base import Builder, Prepared, layer_of

FUNCTIONS: dict[tuple[int, bool], Any] = {
    (1, False): functional.conv1d,
    (2, False): functional.conv2d,
    (3, False): functional.conv3d,
    (1, True): functional.conv_transpose1d,
    (2, True): functional.conv_transpose2d,
    (3, True): functional.conv_transpose3d,
}
"""(spatial axes, transposed) -> torch's function."""


def convolve(layer: Conv, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The layer's result."""
    function = FUNCTIONS[len(layer.extents), layer.transposed]
    # A transposed convolution takes its output padding before the groups, and its dilation last.
    options = {"output_padding": layer.output_padding} if layer.transposed else {}
    result: Tensor = function(
        x,
        weight,
        bias,
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=layer.groups,
        **options,
    )
    return result


def prepare(build: Builder) -> Prepared:
    """One phase of a convolution."""
    layer = layer_of(build, Conv)
    (x,) = build.inputs(grad=build.forward)
    params = build.params(grad=build.forward)
    if build.forward:
        return Prepared(lambda: convolve(layer, x, *build.weights(params)), (x,), params)
    weight = params[0]
    # Its shape is known: running sixteen sets forward first would take as long as measuring them.
    gradient = build.normal((build.call.samples, *layer.output_shape), grad=False)
    wants_data = build.call.phase is Phase.BACKWARD_DATA
    mask = [wants_data, not wants_data, not wants_data and layer.bias]
    rank = len(layer.extents)

    def backward() -> tuple[Tensor | None, ...]:
        gradients: tuple[Tensor | None, ...] = torch.ops.aten.convolution_backward(
            gradient,
            x,
            weight,
            [layer.out_channels] if layer.bias else None,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.transposed,
            layer.output_padding or (0,) * rank,
            layer.groups,
            mask,
        )
        return gradients if wants_data else (None, *build.gradients(tuple(g for g in gradients if g is not None)))

    return Prepared(backward, (x,), params, gradient)


MICRO = prepare

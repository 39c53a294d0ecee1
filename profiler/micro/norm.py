"""Normalisations: forward as in training, and one backward that yields the gradients of input, scale and shift.

Batch normalisation goes through `aten._batch_norm_impl_index` and its backward, which choose cuDNN's or torch's own
kernels as a training step does. Scales and shifts are float32 whatever the activations are, as under autocast.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from oracle.errors import BadInput
from oracle.layers import Norm
from profiler.micro.base import Builder, Prepared, Run, gradient_like, layer_of, through_autograd

EPSILON = 1e-5
MOMENTUM = 0.1
"""Both as in `torch.nn`."""

Affine = tuple[Tensor | None, Tensor | None]


def prepare(build: Builder) -> Prepared:
    """One phase of a normalisation."""
    layer = layer_of(build, Norm)
    per_sample = math.prod(layer.shape[1:])
    values_per_channel = {"batch": build.call.samples * per_sample, "instance": per_sample}
    if values_per_channel.get(layer.op) == 1:
        raise BadInput(f"a {layer.op} normalisation of {layer.shape} has one value per channel: nothing to normalise")
    # Only the instance normalisation's backward runs on a graph that autograd kept.
    grad = build.forward or layer.op == "instance"
    (x,) = build.inputs(grad=grad)
    params = build.params(grad=grad, dtype=torch.float32)
    weight, shift = params if layer.affine else (None, None)
    forward = FORWARD[layer.op](layer, x, (weight, shift))
    if build.forward:
        return Prepared(forward, (x,), params)
    gradient = gradient_like(forward)
    return Prepared(BACKWARD[layer.op](layer, x, (weight, shift), gradient), (x,), params, gradient)


def _running(x: Tensor) -> tuple[Tensor, Tensor]:
    """A mean of zero and a variance of one per channel, which a forward pass updates."""
    channels = x.shape[1]
    return torch.zeros(channels, device=x.device), torch.ones(channels, device=x.device)


def _batch(layer: Norm, x: Tensor, affine: Affine) -> Callable[[], Tensor]:
    mean, variance = _running(x)
    return lambda: functional.batch_norm(x, mean, variance, *affine, True, MOMENTUM, EPSILON)


def _layer(layer: Norm, x: Tensor, affine: Affine) -> Callable[[], Tensor]:
    return lambda: functional.layer_norm(x, (layer.features,), *affine, EPSILON)


def _group(layer: Norm, x: Tensor, affine: Affine) -> Callable[[], Tensor]:
    return lambda: functional.group_norm(x, layer.groups, *affine, EPSILON)


def _instance(layer: Norm, x: Tensor, affine: Affine) -> Callable[[], Tensor]:
    return lambda: functional.instance_norm(x, None, None, *affine, True, MOMENTUM, EPSILON)


def _mask(layer: Norm) -> list[bool]:
    """Which gradients backward returns: of input, scale and shift."""
    return [True, layer.affine, layer.affine]


def _batch_backward(layer: Norm, x: Tensor, affine: Affine, gradient: Tensor) -> Run:
    mean, variance = _running(x)
    cudnn = torch.backends.cudnn.enabled
    _, saved_mean, saved_spread, reserve, choice = torch.ops.aten._batch_norm_impl_index(
        x, *affine, mean, variance, True, MOMENTUM, EPSILON, cudnn
    )

    def backward() -> tuple[Tensor | None, ...]:
        gradients: tuple[Tensor | None, ...] = torch.ops.aten._batch_norm_impl_index_backward(
            choice,
            x,
            gradient,
            affine[0],
            mean,
            variance,
            saved_mean,
            saved_spread,
            True,
            EPSILON,
            _mask(layer),
            reserve,
        )
        return gradients

    return backward


def _layer_backward(layer: Norm, x: Tensor, affine: Affine, gradient: Tensor) -> Run:
    width = [layer.features]
    _, mean, spread = torch.ops.aten.native_layer_norm(x, width, *affine, EPSILON)

    def backward() -> tuple[Tensor | None, ...]:
        gradients: tuple[Tensor | None, ...] = torch.ops.aten.native_layer_norm_backward(
            gradient, x, width, mean, spread, *affine, _mask(layer)
        )
        return gradients

    return backward


def _group_backward(layer: Norm, x: Tensor, affine: Affine, gradient: Tensor) -> Run:
    extents = (x.shape[0], layer.shape[0], math.prod(layer.shape[1:]), layer.groups)
    _, mean, spread = torch.ops.aten.native_group_norm(x, *affine, *extents, EPSILON)

    def backward() -> tuple[Tensor | None, ...]:
        gradients: tuple[Tensor | None, ...] = torch.ops.aten.native_group_norm_backward(
            gradient, x, mean, spread, affine[0], *extents, _mask(layer)
        )
        return gradients

    return backward


def _instance_backward(layer: Norm, x: Tensor, affine: Affine, gradient: Tensor) -> Run:
    wanted = [tensor for tensor in (x, *affine) if tensor is not None]
    return through_autograd(_instance(layer, x, affine)(), wanted, gradient)


FORWARD = {"batch": _batch, "layer": _layer, "group": _group, "instance": _instance}
BACKWARD = {
    "batch": _batch_backward,
    "layer": _layer_backward,
    "group": _group_backward,
    "instance": _instance_backward,
}

MICRO = prepare

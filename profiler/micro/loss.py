"""Losses: their targets are drawn at random, and their gradient starts from one, as in `loss.backward()`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from oracle.layers import Loss
from profiler.micro.base import Builder, Prepared, layer_of, through_autograd


def random_target(layer: Loss, samples: int, device: torch.device) -> Tensor:
    """What the loss compares with: a class per row for a cross entropy, numbers of the input's shape otherwise."""
    if layer.op == "cross_entropy":
        return torch.randint(layer.shape[-1], (samples, *layer.shape[:-1]), device=device)
    return torch.randn(samples, *layer.shape, device=device)


def loss_of(layer: Loss, x: Tensor, target: Tensor) -> Tensor:
    """The scalar loss: the classes of a cross entropy are on the last axis."""
    if layer.op == "cross_entropy":
        return functional.cross_entropy(x.reshape(-1, layer.shape[-1]), target.reshape(-1))
    return functional.mse_loss(x, target)


def prepare(build: Builder) -> Prepared:
    """One phase of a loss; its inputs are the prediction and the target."""
    layer = layer_of(build, Loss)
    (x,) = build.inputs(grad=True)
    target = random_target(layer, build.call.samples, build.device)
    if build.forward:
        return Prepared(lambda: loss_of(layer, x, target), (x, target))
    result = loss_of(layer, x, target)
    gradient = torch.ones_like(result)
    return Prepared(through_autograd(result, (x,), gradient), (x, target), (), gradient)


MICRO = prepare

"""Products of two activations: forward, and the gradients of both operands together, as autograd computes them."""

from __future__ import annotations

import torch

from oracle.operations import Matmul
from profiler.micro.base import Builder, Prepared, gradient_like, layer_of


def prepare(build: Builder) -> Prepared:
    """One phase of a batched product."""
    layer_of(build, Matmul)
    first, second = build.inputs(grad=build.forward)
    if build.forward:
        return Prepared(lambda: torch.matmul(first, second), (first, second))
    gradient = gradient_like(lambda: torch.matmul(first, second))

    def backward() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.matmul(gradient, second.mT), torch.matmul(first.mT, gradient)

    return Prepared(backward, (first, second), (), gradient)


MICRO = prepare

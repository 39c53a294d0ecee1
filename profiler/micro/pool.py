"""Poolings. A maximum keeps the index of each maximum in forward and reads it in backward.

One spatial axis runs as two of which the first is a single row, which is what torch does itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oracle.windows import Pool
from profiler.micro.base import Builder, Prepared, gradient_like, layer_of

aten = torch.ops.aten


def prepare(build: Builder) -> Prepared:
    """One phase of a pooling."""
    layer = layer_of(build, Pool)
    (x,) = build.inputs(grad=build.forward)
    pool = MaxPool(layer) if layer.op == "max" else AveragePool(layer)
    if build.forward:
        return Prepared(lambda: pool.forward(x), (x,))
    gradient = gradient_like(lambda: pool.forward(x))
    return Prepared(pool.backward(x, gradient), (x,), (), gradient)


class _Windows:
    """Kernel, stride and padding on at least two axes."""

    def __init__(self, layer: Pool) -> None:
        self.flat = len(layer.kernel) == 1
        rows = (1,) if self.flat else ()
        self.windows = ((*rows, *layer.kernel), (*rows, *layer.stride), (*((0,) if self.flat else ()), *layer.padding))
        self.ceil_mode = layer.ceil_mode
        self.rank = len(self.windows[0])

    def spread(self, tensor: Tensor) -> Tensor:
        """The tensor on at least two spatial axes."""
        return tensor.unsqueeze(-2) if self.flat else tensor

    def gather(self, tensor: Tensor) -> Tensor:
        """The tensor on the layer's own axes."""
        return tensor.squeeze(-2) if self.flat else tensor


class MaxPool(_Windows):
    """The maximum over windows."""

    def _forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        operation: Any = aten.max_pool2d_with_indices if self.rank == 2 else aten.max_pool3d_with_indices
        result, indices = operation(self.spread(x), *self.windows, (1,) * self.rank, self.ceil_mode)
        return result, indices

    def forward(self, x: Tensor) -> Tensor:
        """The layer's result."""
        return self.gather(self._forward(x)[0])

    def backward(self, x: Tensor, gradient: Tensor) -> Callable[[], Tensor]:
        """A closure for the gradient of the input."""
        operation: Any = (
            aten.max_pool2d_with_indices_backward if self.rank == 2 else aten.max_pool3d_with_indices_backward
        )
        indices, dilation = self._forward(x)[1], (1,) * self.rank
        x, gradient = self.spread(x), self.spread(gradient)
        return lambda: self.gather(operation(gradient, x, *self.windows, dilation, self.ceil_mode, indices))


class AveragePool(_Windows):
    """The average over windows; padding counts, as torch has it by default."""

    def forward(self, x: Tensor) -> Tensor:
        """The layer's result."""
        operation: Any = aten.avg_pool2d if self.rank == 2 else aten.avg_pool3d
        return self.gather(operation(self.spread(x), *self.windows, self.ceil_mode, True, None))

    def backward(self, x: Tensor, gradient: Tensor) -> Callable[[], Tensor]:
        """A closure for the gradient of the input."""
        operation: Any = aten.avg_pool2d_backward if self.rank == 2 else aten.avg_pool3d_backward
        x, gradient = self.spread(x), self.spread(gradient)
        return lambda: self.gather(operation(gradient, x, *self.windows, self.ceil_mode, True, None))


MICRO = prepare

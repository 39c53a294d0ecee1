"""Kernels that run between collectives or beside them: one bound by compute, one a layer's, one bound by memory.

A call is short against the collective that runs beside it, so that many fit into its time: a fraction of a millisecond
on both kinds of device. The size is in the text, which is part of the case: a larger kernel is another case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_MATMUL = {"cpu": 256, "cuda": 2048}
"""Rows and columns of both factors."""

_CONV = {"cpu": (1, 32, 28), "cuda": (32, 128, 56)}
"""Samples, channels in and out, height and width; 3 x 3 filters."""

_COPY = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Items; both tensors together are larger than a cache."""


@dataclass(frozen=True)
class Kernel:
    """A kernel with its inputs.

    Args:
        text: what it is, with its size.
        run: does it once on the current stream; what it gives back is always the same.
    """

    text: str
    run: Callable[[], Tensor]


def open_kernel(name: str, device: torch.device) -> Kernel:
    """Take the inputs of a kernel, random normal numbers.

    Args:
        name: one of `settings.KERNELS`.
        device: where it runs.
    """
    return _OPENERS[name](device)


def _matmul(device: torch.device) -> Kernel:
    width = _MATMUL[device.type]
    a, b = (torch.randn(width, width, device=device) for _ in range(2))
    out = torch.empty(width, width, device=device)
    return Kernel(f"matmul {width}", lambda: torch.mm(a, b, out=out))


def _conv(device: torch.device) -> Kernel:
    samples, channels, width = _CONV[device.type]
    x = torch.randn(samples, channels, width, width, device=device)
    filters = torch.randn(channels, channels, 3, 3, device=device)
    text = f"conv2d {samples}x{channels}x{width}x{width}"
    return Kernel(text, lambda: torch.nn.functional.conv2d(x, filters, padding=1))


def _copy(device: torch.device) -> Kernel:
    source = torch.randn(_COPY[device.type], device=device)
    target = torch.empty_like(source)
    return Kernel(f"copy {source.nbytes}", lambda: target.copy_(source))


_OPENERS: dict[str, Callable[[torch.device], Kernel]] = {"matmul": _matmul, "conv2d": _conv, "copy": _copy}

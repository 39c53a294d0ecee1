"""Layers that slide a window over one to three spatial axes: convolutions and poolings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from oracle.errors import BadInput, OutOfRange, UnknownName
from oracle.layer import (
    WITH_TIED_WEIGHTS,
    WITH_WEIGHTS,
    Layer,
    Phase,
    Shape,
    not_negative,
    own_params,
    positive,
    same_rank,
)


@dataclass(frozen=True)
class Conv(Layer):
    """A convolution in one, two or three dimensions; also grouped, dilated, strided and transposed.

    Args:
        in_channels: C; out_channels: F; extents: the input's spatial extents (H, W for two dimensions).
        kernel, stride, padding, dilation: per axis. output_padding: per axis, transposed convolutions only.
        tied: its filters are another layer's, which holds and updates them; their gradient is computed here too.
    """

    kind: ClassVar[str] = "conv"
    in_channels: int
    out_channels: int
    extents: Shape
    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int = 1
    bias: bool = True
    transposed: bool = False
    output_padding: Shape = ()
    tied: bool = False

    @classmethod
    def of(cls, shape: Shape, filters: int, kernel: int | Shape, **options: Any) -> Conv:
        """Build one from (C, *extents), with a number for every axis where one number is given.

        >>> Conv.of((3, 224, 224), 64, 7, stride=2, padding=3, bias=False).output_shape
        (64, 112, 112)
        """
        rank = len(shape) - 1
        spread = {"kernel": kernel, "stride": 1, "padding": 0, "dilation": 1, "output_padding": 0, **options}
        for name in ("kernel", "stride", "padding", "dilation", "output_padding"):
            value = spread[name]
            spread[name] = (value,) * rank if isinstance(value, int) else tuple(value)
        if not spread.get("transposed"):
            spread["output_padding"] = ()
        return cls(in_channels=shape[0], out_channels=filters, extents=shape[1:], **spread)

    def __post_init__(self) -> None:
        rank = len(self.extents)
        if rank not in (1, 2, 3):
            raise BadInput(f"a convolution has 1 to 3 spatial axes, not {rank}")
        axes = {"kernel": self.kernel, "stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        if self.transposed:
            axes["output_padding"] = self.output_padding
        elif self.output_padding:
            raise BadInput("output_padding belongs to transposed convolutions only")
        same_rank(self, rank, **axes)
        not_negative(self, padding=self.padding, output_padding=self.output_padding)
        positive(self, in_channels=self.in_channels, out_channels=self.out_channels, groups=self.groups)
        positive(self, extents=self.extents, kernel=self.kernel, stride=self.stride, dilation=self.dilation)
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise BadInput(f"{self.groups} groups do not divide {self.in_channels} and {self.out_channels} channels")
        # torch's own limit: a larger output comes from a larger input.
        grown = zip(self.output_padding, self.stride, self.dilation, strict=False)
        if any(extra >= max(stride, dilation) for extra, stride, dilation in grown):
            raise OutOfRange(f"output_padding {self.output_padding} must be below the stride or the dilation")
        if any(extent < 1 for extent in self.output_shape[1:]):
            raise OutOfRange(f"a kernel of {self.kernel} on extents of {self.extents} leaves no output")

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        return ((self.in_channels, *self.extents),)

    @cached_property
    def output_shape(self) -> Shape:
        axes = zip(self.extents, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        if self.transposed:
            grown = ((x - 1) * s - 2 * p + d * (k - 1) + 1 for x, k, s, p, d in axes)
            extents = tuple(x + extra for x, extra in zip(grown, self.output_padding, strict=True))
        else:
            extents = tuple((x + 2 * p - d * (k - 1) - 1) // s + 1 for x, k, s, p, d in axes)
        return (self.out_channels, *extents)

    @property
    def weight_shape(self) -> Shape:
        """The filters, in torch's order, whoever's they are."""
        first, second = self.out_channels, self.in_channels
        if self.transposed:
            first, second = second, first
        return (first, second // self.groups, *self.kernel)

    @property
    def param_shapes(self) -> tuple[Shape, ...]:
        return own_params(self.weight_shape, self.out_channels, self)

    @property
    def phases(self) -> tuple[Phase, ...]:
        return WITH_WEIGHTS if self.params else WITH_TIED_WEIGHTS

    def _flop_and_items(self, phase: Phase, samples: int) -> tuple[float, float]:
        # Each weight meets each position of the smaller-stride side once; the three phases do the same multiply-adds.
        positions = self.extents if self.transposed else self.output_shape[1:]
        weights = math.prod(self.weight_shape)
        flop = 2 * samples * weights * math.prod(positions)
        activations = samples * (self.input_items + self.output_items)
        bias = self.out_channels if self.bias and phase is not Phase.BACKWARD_DATA else 0
        return flop, activations + weights + bias


POOLS = ("max", "avg")


@dataclass(frozen=True)
class Pool(Layer):
    """A maximum or average over windows, in one to three dimensions."""

    kind: ClassVar[str] = "pool"
    op: str
    shape: Shape
    kernel: Shape
    stride: Shape
    padding: Shape
    ceil_mode: bool = False

    @classmethod
    def of(cls, op: str, shape: Shape, kernel: int | Shape, **options: Any) -> Pool:
        """Build one with a number for every axis where one number is given; the stride defaults to the kernel.

        >>> Pool.of("max", (64, 112, 112), 3, stride=2, padding=1).output_shape
        (64, 56, 56)
        """
        rank = len(shape) - 1
        spread = {"kernel": kernel, "stride": kernel, "padding": 0, **options}
        for name in ("kernel", "stride", "padding"):
            value = spread[name]
            spread[name] = (value,) * rank if isinstance(value, int) else tuple(value)
        return cls(op=op, shape=shape, **spread)

    def __post_init__(self) -> None:
        if self.op not in POOLS:
            raise UnknownName("pooling", self.op, POOLS)
        if len(self.shape) not in (2, 3, 4):
            raise BadInput(f"a pooling has 1 to 3 spatial axes, not {len(self.shape) - 1}")
        same_rank(self, len(self.shape) - 1, kernel=self.kernel, stride=self.stride, padding=self.padding)
        positive(self, shape=self.shape, kernel=self.kernel, stride=self.stride)
        not_negative(self, padding=self.padding)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel, strict=True)):
            raise OutOfRange(f"padding of a pooling is at most half its kernel of {self.kernel}, not {self.padding}")
        if any(extent < 1 for extent in self.output_shape[1:]):
            raise OutOfRange(f"a kernel of {self.kernel} on extents of {self.shape[1:]} leaves no output")

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        return (self.shape,)

    @cached_property
    def output_shape(self) -> Shape:
        return (self.shape[0], *map(self._extent, self.shape[1:], self.kernel, self.stride, self.padding))

    def _extent(self, x: int, k: int, s: int, p: int) -> int:
        span = x + 2 * p - k
        windows = (-(-span // s) if self.ceil_mode else span // s) + 1
        # torch drops a last window that would start in the padding on the right.
        return windows - 1 if self.ceil_mode and (windows - 1) * s >= x + p else windows

    def _flop_and_items(self, phase: Phase, samples: int) -> tuple[float, float]:
        flop = samples * self.output_items * math.prod(self.kernel)
        items = samples * (self.input_items + self.output_items)
        # A maximum keeps where it was: an index per output, written forward and read backward.
        return flop, items + (samples * self.output_items if self.op == "max" else 0)

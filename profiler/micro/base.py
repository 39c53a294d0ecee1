"""What every microbenchmark does: build random inputs once, and return a closure that runs one phase's kernels.

Inputs are normal random numbers: zeros and small integers draw less power and run up to 15 % faster on accelerators
(baidu-research/DeepBench#104, NVIDIA/cutlass#2004). Gradients have the memory format that the layer's own output has.

Forward closures run with gradients enabled, as in training, because torch then picks kernels that save what backward
needs (a maximum pooling keeps its indices, attention its log-sum-exp). Backward closures call the aten operation that
autograd would call, with `output_mask` for the half of backward that is asked, so that forward is not timed with it
and gradients are not accumulated; where torch has no stable operation they call `torch.autograd.grad` on a kept graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor

from oracle.errors import BadInput
from oracle.execution import Execution
from oracle.layer import Layer, Phase
from oracle.layers import Attention
from oracle.operations import Matmul
from oracle.pricing import LayerCall
from profiler.micro import MICROS
from profiler.precision import activation_dtype

Result = Tensor | Sequence[Tensor | None]
Run = Callable[[], Result]


PERIOD = 2**20
"""Random numbers that are drawn before they repeat: too many for any kernel to notice."""


@dataclass(frozen=True)
class Prepared:
    """One set of inputs and the closure that is timed on it.

    Args:
        run: runs the phase once and returns what it computed.
        inputs, params: the layer's operands and its trainable tensors.
        gradient: the gradient of the layer's result that backward starts from.
    """

    run: Run
    inputs: tuple[Tensor, ...]
    params: tuple[Tensor, ...] = ()
    gradient: Tensor | None = None


@dataclass(frozen=True)
class Builder:
    """Makes the tensors of one layer call.

    Args:
        call: the layer, its phase and its samples.
        execution: precision, memory format and optimizer.
        device: where the tensors live.
    """

    call: LayerCall
    execution: Execution
    device: torch.device

    @property
    def forward(self) -> bool:
        """Whether the forward pass is timed."""
        return self.call.phase is Phase.FORWARD

    def normal(self, shape: Sequence[int], *, grad: bool, dtype: torch.dtype | None = None) -> Tensor:
        """Normal random numbers; (samples, channels, *extents) comes in the execution's memory format."""
        layer = self.call.layer
        dtype = dtype or activation_dtype(layer, self.execution.precision)
        tensor = random_normal(shape, self.device).to(dtype)
        if not isinstance(layer, Attention | Matmul):  # heads and tokens are no image, though there are four axes
            tensor = in_memory_format(tensor, self.execution)
        return tensor.requires_grad_(grad)

    def inputs(self, *, grad: bool) -> tuple[Tensor, ...]:
        """The layer's operands, with the batch axis in front."""
        return tuple(self.normal((self.call.samples, *shape), grad=grad) for shape in self.call.layer.input_shapes)

    @property
    def casts(self) -> bool:
        """Whether float32 weights are cast to 16 bits inside the time that is taken."""
        return self.execution.autocast and activation_dtype(self.call.layer, self.execution.precision).itemsize == 2

    def weights(self, params: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The tensors that a kernel multiplies with: 16-bit copies, made now, where the execution casts."""
        if not self.casts:
            return params
        return tuple(param.to(activation_dtype(self.call.layer, self.execution.precision)) for param in params)

    def gradients(self, of_params: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The gradients that the optimizer takes: float32 copies, made now, where the execution casts."""
        return tuple(gradient.float() for gradient in of_params) if self.casts else of_params

    def params(self, *, grad: bool, dtype: torch.dtype | None = None) -> tuple[Tensor, ...]:
        """The layer's trainable tensors, scaled by their fan-in so that results stay near one in 16 bits too."""
        if self.casts and self.forward:
            dtype = torch.float32
        tensors = (self.normal(shape, grad=False, dtype=dtype) for shape in self.call.layer.param_shapes)
        return tuple(tensor.div_(math.sqrt(math.prod(tensor.shape[1:]))).requires_grad_(grad) for tensor in tensors)


def random_normal(shape: Sequence[int], device: torch.device) -> Tensor:
    """Normal random numbers that repeat after PERIOD items: drawing costs a CPU far more than copying."""
    items = math.prod(shape)
    drawn = torch.randn(min(items, PERIOD), device=device)
    return drawn.repeat(-(-items // PERIOD))[:items].view(*shape)


class Micro(Protocol):
    """The `MICRO` of each microbenchmark."""

    def __call__(self, build: Builder) -> Prepared:
        """Build the inputs of a layer call and its closure.

        Raises:
            BadInput: the layer is of another kind or cannot run this phase.
        """


def find_micro(call: LayerCall) -> tuple[str, Micro]:
    """The microbenchmark of a layer call, with its name: `optimizer` for updates, else the kind of the layer.

    Raises:
        BadInput: the layer has no such phase, or there is no microbenchmark for it.
    """
    layer = call.layer
    if call.phase not in layer.phases:
        raise BadInput(f"a {layer.kind} layer has no {call.phase} phase; it has {', '.join(layer.phases)}")
    name = "optimizer" if call.phase is Phase.UPDATE else layer.kind
    if name not in MICROS:
        raise BadInput(f"there is no microbenchmark for {name} layers; there are {', '.join(MICROS)}")
    return name, cast(Micro, import_module(f"profiler.micro.{name}").MICRO)


def in_memory_format(tensor: Tensor, execution: Execution) -> Tensor:
    """The tensor with its channels last in memory where that was asked and it has channels (four or five axes)."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if execution.memory_format == "channels_last" and tensor.dim() in formats:
        return tensor.contiguous(memory_format=formats[tensor.dim()])
    return tensor


L = TypeVar("L", bound=Layer)


def layer_of(build: Builder, kind: type[L]) -> L:
    """The call's layer, which must be of this kind.

    Raises:
        BadInput: it is of another.
    """
    layer = build.call.layer
    if not isinstance(layer, kind):
        raise BadInput(f"a {kind.kind} microbenchmark cannot run a {layer.kind} layer")
    return layer


def gradient_like(forward: Callable[[], Tensor]) -> Tensor:
    """Normal random numbers with the shape, type and memory format of what `forward` returns."""
    with torch.no_grad():
        result = forward()
        return torch.empty_like(result).copy_(random_normal(result.shape, result.device))


def through_autograd(result: Tensor, inputs: Sequence[Tensor], gradient: Tensor) -> Run:
    """A closure that runs the kept graph of `result` backward as far as `inputs`."""
    return lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True)

"""What an execution means to torch: its precision policy and its switches, for single kernels and for whole steps.

`bf16` and `fp16` mean mixed precision as `torch.autocast` does it: weights stay float32 for the optimizer;
convolutions, products and what follows them work on 16-bit items; embeddings, layer and group normalisations, softmax
and losses on float32 (https://docs.pytorch.org/docs/stable/amp.html, the op lists of CUDA). `tf32` lets float32
products round their operands to ten mantissa bits; `fp32` forbids that, since cuDNN allows it unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from oracle.errors import BadInput
from oracle.execution import Execution
from oracle.layer import Layer
from oracle.layers import Elementwise, Embedding, Loss, Norm

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def activation_dtype(layer: Layer, precision: str) -> torch.dtype:
    """The type of a layer's activations under a precision policy."""
    match layer:
        case Embedding() | Loss() | Norm(op="layer") | Norm(op="group") | Elementwise(op="softmax"):
            return torch.float32
    return DTYPES[precision]


@contextmanager
def products_in(precision: str, device_type: str) -> Iterator[None]:
    """Let float32 products use TF32 inside this block, or forbid it; torch's own settings come back afterwards.

    Raises:
        BadInput: TF32 on a device that has none.
    """
    if precision == "tf32" and device_type != "cuda":
        raise BadInput(f"a {device_type} device has no tf32; use fp32, bf16 or fp16")
    if device_type != "cuda":
        yield
        return
    value: bool | str
    products: Any = torch.backends.cuda.matmul
    convolutions: Any = torch.backends.cudnn
    switches, name, value = (products, convolutions), "allow_tf32", precision == "tf32"
    if hasattr(products, "fp32_precision"):  # since torch 2.9, which warns of the older switch
        switches, name, value = (products, convolutions.conv), "fp32_precision", "tf32" if value else "ieee"
    before = [getattr(switch, name) for switch in switches]
    try:
        for switch in switches:
            setattr(switch, name, value)
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            setattr(switch, name, value)


_ATTENTIONS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


@contextmanager
def switched(execution: Execution, device_type: str) -> Iterator[None]:
    """Set torch's switches as an execution wants them inside this block; they come back afterwards.

    An attention that cannot be had fails when it is first called, and not here: it depends on the shapes.

    Raises:
        BadInput: TF32 or CUDA graphs on a device that has none.
    """
    if execution.graph and device_type != "cuda":
        raise BadInput(f"a {device_type} device has no CUDA graphs")
    convolutions: Any = torch.backends.cudnn
    with ExitStack() as stack:
        stack.enter_context(products_in(execution.precision, device_type))
        if execution.attention != "any":
            stack.enter_context(sdpa_kernel(_ATTENTIONS[execution.attention]))
        if device_type == "cuda":
            stack.callback(setattr, convolutions, "benchmark", convolutions.benchmark)
            convolutions.benchmark = execution.cudnn_benchmark
        yield

"""Peak arithmetic as a library reaches it: large square products through torch.

The best of a few sizes counts (the best one differs by device; stas00/ml-engineering, "maximum achievable matmul
FLOPS"). Where a kernel of one instruction (`raw`) and a library disagree, the larger of the two is what the device can
do: on Hopper and Blackwell only the library's kernels use the instructions of the full rate in every type.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from oracle.errors import BadInput
from profiler.backends.base import Kernel, Sample
from profiler.backends.torch_device import TorchDevice
from profiler.ceilings.probe import FLOP, Probe
from profiler.micro.base import Result, Run, random_normal
from profiler.precision import products_in

CPU_SIZES = (1024, 2048)
MANY_CORES = 16
"""From as many cores on, a product of 2,048 ends too soon to keep them busy."""

CUDA_SIZES = (4096, 8192)
DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
}


def product_probes(device: TorchDevice) -> list[Probe]:
    """Products in every type that the device may have, in several sizes."""
    if device.name == "cuda":
        plain = [(name, size) for name in DTYPES for size in CUDA_SIZES if name != "fp64" or size == CUDA_SIZES[0]]
        narrow = [("int8", CUDA_SIZES[1]), ("fp8", CUDA_SIZES[1])]
    else:
        largest = (2 * CPU_SIZES[-1],) if (os.cpu_count() or 1) >= MANY_CORES else ()
        plain = [(name, size) for name in ("fp32", "fp64", "bf16") for size in (*CPU_SIZES, *largest)]
        narrow = []
    return [
        Probe(
            group="compute",
            question=f"gemm_{name}",
            unit=FLOP,
            amount=2.0 * size**3,
            prepare=partial(_product, name, size, device),
            case={"size": size},
        )
        for name, size in (*plain, *narrow)
    ]


def _product(name: str, size: int, device: TorchDevice) -> Kernel:
    device.must_fit(4.0 * 8 * size**2, f"a product of {size} rows")
    where = device.torch_device
    if name == "int8":
        return device.kernel([_int8_product(size, where)])
    if name == "fp8":
        return device.kernel([_fp8_product(size, where)])
    a, b = (random_normal((size, size), where).to(DTYPES[name]) for _ in range(2))
    out = torch.empty_like(a)

    def multiply() -> Result:
        return torch.mm(a, b, out=out)

    return _Switched(device.kernel([multiply]), partial(products_in, "tf32" if name == "tf32" else "fp32", device.name))


class _Switched:
    """A kernel whose samples are taken with torch's switches set."""

    def __init__(self, kernel: Kernel, switches: Callable[[], AbstractContextManager[None]]) -> None:
        self._kernel, self._switches = kernel, switches

    def sample(self, inner: int) -> Sample:
        """A sample of the kernel."""
        with self._switches():
            return self._kernel.sample(inner)


def _int8_product(size: int, where: torch.device) -> Run:
    a, b = (torch.randint(-128, 128, (size, size), device=where, dtype=torch.int8) for _ in range(2))
    columns = b.t()  # cuBLAS wants the second operand column by column
    return lambda: torch._int_mm(a, columns)


def _fp8_product(size: int, where: torch.device) -> Run:
    kind, multiply = getattr(torch, "float8_e4m3fn", None), getattr(torch, "_scaled_mm", None)
    if kind is None or multiply is None or torch.cuda.get_device_capability(where) < (8, 9):
        raise BadInput("this device, or this torch, multiplies no fp8")
    product: Any = multiply
    a, b = (random_normal((size, size), where).to(kind) for _ in range(2))
    one, columns = torch.ones((), device=where), b.t()

    def run() -> Result:
        result: Result = product(a, columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        return result

    return run

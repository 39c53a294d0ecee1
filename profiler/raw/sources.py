"""Which raw kernels there are on which architecture, and their CUDA C."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from profiler.raw import mma

FMA_CHAINS = 8
FMA_STEPS = 32
"""What `fma.cu` unrolls: so many multiply-adds stand in a row in its machine code."""

HOPPER = 90


@dataclass(frozen=True)
class Kernel:
    """A kernel that computes in registers.

    Args:
        name: of its function: `fma_`, `mma_` or `wgmma_` and the type.
        source: the text that holds it.
        architecture: what to compile for, such as `80` or `90a`.
        flop_per_round: of one warp, or of one group of four warps where `group` is 128.
        group: threads that work together.
        shared_bytes: of shared memory that each block needs.
        item: NumPy's type of the numbers it starts from.
    """

    name: str
    source: str
    architecture: str
    flop_per_round: int
    group: int = 32
    shared_bytes: int = 0
    item: str = "float16"


def text(name: str) -> str:
    """The CUDA C of one file beside this one: `fma.cu`, `memory.cu` or `hold.cu`."""
    return files("profiler.raw").joinpath(name).read_text(encoding="utf-8")


def fma_kernels(architecture: int) -> list[Kernel]:
    """The chains of multiply-adds that an architecture has.

    >>> [kernel.name for kernel in fma_kernels(75)]
    ['fma_fp32', 'fma_fp64', 'fma_fp16x2']
    """
    rows = [("fma_fp32", 1, "float32"), ("fma_fp64", 1, "float64"), ("fma_fp16x2", 2, "float16")]
    if architecture >= 80:
        rows.append(("fma_bf16x2", 2, "bfloat16"))
    flop, source = 32 * 2 * FMA_CHAINS * FMA_STEPS, text("fma.cu")
    return [Kernel(name, source, str(architecture), flop * lanes, item=item) for name, lanes, item in rows]


def mma_kernels(architecture: int) -> list[Kernel]:
    """The tensor-core kernels that an architecture has.

    >>> [kernel.name for kernel in mma_kernels(89)]
    ['mma_fp16', 'mma_bf16', 'mma_tf32', 'mma_int8', 'mma_fp8']
    """
    kernels = [
        Kernel(
            name=row.name,
            source=mma.mma_kernel(row),
            architecture=str(architecture),
            flop_per_round=row.flop * mma.STEPS * mma.CHAINS,
            item=_ITEMS[row.name.partition("_")[2]],
        )
        for row in _warp_instructions(architecture)
    ]
    if architecture == HOPPER:
        kernels += [
            Kernel(
                name=row.name,
                source=mma.wgmma_kernel(row),
                architecture=f"{architecture}a",
                flop_per_round=row.flop * mma.STEPS,
                group=128,
                shared_bytes=(64 + 256) * 128,
                item=_ITEMS[row.name.partition("_")[2]],
            )
            for row in mma.HOPPER
        ]
    return kernels


_ITEMS = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "tf32": "float32",
    "int8": "int8",
    "fp8": "float8",
    "fp64": "float64",
}


def _warp_instructions(architecture: int) -> tuple[mma.Mma, ...]:
    if architecture < 70:
        return ()
    if architecture < 75:
        return mma.VOLTA
    if architecture < 80:
        return mma.TURING
    # Elsewhere the instruction of a warp converts its operands to fp16 first, in the machine code.
    eight_bits = (mma.FP8,) if architecture in (89, 120, 121) else ()
    # Only the devices of data centres multiply doubles at more than a token rate.
    doubles = {80: (mma.FP64_SMALL,), 90: (mma.FP64_LARGE,), 100: (mma.FP64_SMALL,)}.get(architecture, ())
    return (*mma.AMPERE, *eight_bits, *doubles)

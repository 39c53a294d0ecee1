"""Tensor-core kernels, written out from a table: warps that multiply fragments in registers, and nothing else.

`mma.sync` is the instruction of a warp that every architecture since Volta has, in the largest shape of each. On Hopper
it reaches about two thirds of the tensor cores' peak, and on Blackwell less: their full rate needs instructions of four
warps on operands in shared memory. Hopper's (`wgmma`) are here too; Blackwell's (`tcgen05`) are not, and a large
product through cuBLAS is that device's ceiling in `profiler.ceilings.products`.

CHAINS accumulators per warp are independent, so that the latency of the units is hidden. Operands are normal random
numbers, since zeros draw less power and clock higher (NVIDIA/cutlass#2004).

Source: NVIDIA, PTX ISA, sections "Warp Level Matrix Multiply-Accumulate Instructions" and "Asynchronous Warpgroup Level
Matrix Multiply-Accumulate Instructions".
"""

from __future__ import annotations

from dataclasses import dataclass

CHAINS = 4
STEPS = 8


@dataclass(frozen=True)
class Mma:
    """One tensor-core instruction.

    Args:
        name: of its kernel, `mma_` and the type of the operands.
        instruction: what PTX calls it.
        a, b, d: registers of a thread for the operands and the accumulator.
        flop: of one instruction of one warp, a multiply-add counting two.
        accumulator: `f` (float), `r` (integer) or `d` (double).
        operand: `r` (packed 32 bits) or `d` (double).
    """

    name: str
    instruction: str
    a: int
    b: int
    d: int
    flop: int
    accumulator: str = "f"
    operand: str = "r"


_M16N8 = 2 * 16 * 8

VOLTA = (Mma("mma_fp16", "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", 2, 2, 8, 4 * 2 * 8 * 8 * 4),)
"""A warp multiplies four pairs of fragments at once."""

TURING = (
    Mma("mma_fp16", "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", 2, 1, 4, _M16N8 * 8),
    Mma("mma_int8", "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32", 1, 1, 2, 2 * 8 * 8 * 16, "r"),
)
AMPERE = (
    Mma("mma_fp16", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 4, 2, 4, _M16N8 * 16),
    Mma("mma_bf16", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 4, 2, 4, _M16N8 * 16),
    Mma("mma_tf32", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2, 4, _M16N8 * 8),
    Mma("mma_int8", "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", 4, 2, 4, _M16N8 * 32, "r"),
)
FP8 = Mma("mma_fp8", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", 4, 2, 4, _M16N8 * 32)
FP64_SMALL = Mma("mma_fp64", "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", 1, 1, 2, 2 * 8 * 8 * 4, "d", "d")
FP64_LARGE = Mma("mma_fp64", "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64", 8, 4, 4, _M16N8 * 16, "d", "d")


@dataclass(frozen=True)
class WarpgroupMma:
    """One instruction of four warps, m64n256 and 32 bytes deep, on operands in shared memory (Hopper).

    Args:
        name: of its kernel.
        types: result and operands as PTX writes them.
        depth: items in 32 bytes.
        accumulator: `f` or `r`.
        scales: the immediate operands behind the predicate.
    """

    name: str
    types: str
    depth: int
    accumulator: str = "f"
    scales: str = ", 1, 1"

    @property
    def flop(self) -> int:
        """Of one instruction of one group of four warps."""
        return 2 * 64 * 256 * self.depth


HOPPER = (
    WarpgroupMma("wgmma_fp16", "f32.f16.f16", 16, scales=", 1, 1, 0, 0"),
    WarpgroupMma("wgmma_bf16", "f32.bf16.bf16", 16, scales=", 1, 1, 0, 0"),
    WarpgroupMma("wgmma_tf32", "f32.tf32.tf32", 8),
    WarpgroupMma("wgmma_fp8", "f32.e4m3.e4m3", 32),
    WarpgroupMma("wgmma_int8", "s32.s8.s8", 32, "r", ""),
)

_ITEMS = {"f": "float", "r": "unsigned int", "d": "double"}


def mma_kernel(mma: Mma) -> str:
    """CUDA C of a kernel `NAME(out, start, rounds)`; each warp runs rounds x STEPS x CHAINS instructions."""
    operand, result = _ITEMS[mma.operand], _ITEMS[mma.accumulator]
    d, a, b = (_operands(first, count) for first, count in ((0, mma.d), (mma.d, mma.a), (mma.d + mma.a, mma.b)))
    outputs = ", ".join(f'"+{mma.accumulator}"(d[c][{i}])' for i in range(mma.d))
    inputs = ", ".join(f'"{mma.operand}"({name}[{i}])' for name, n in (("a", mma.a), ("b", mma.b)) for i in range(n))
    return f"""
extern "C" __global__ void {mma.name}({result}* out, const {operand}* start, int rounds)
{{
    {operand} a[{mma.a}], b[{mma.b}];
    {result} d[{CHAINS}][{mma.d}];
    #pragma unroll
    for (int i = 0; i < {mma.a}; ++i) a[i] = start[(threadIdx.x + 32 * i) % 1024];
    #pragma unroll
    for (int i = 0; i < {mma.b}; ++i) b[i] = start[(threadIdx.x + 32 * i + 512) % 1024];
    #pragma unroll
    for (int c = 0; c < {CHAINS}; ++c)
        #pragma unroll
        for (int i = 0; i < {mma.d}; ++i) d[c][i] = 0;
    #pragma unroll 1
    for (int round = 0; round < rounds; ++round) {{
        #pragma unroll
        for (int step = 0; step < {STEPS}; ++step)
            #pragma unroll
            for (int c = 0; c < {CHAINS}; ++c)
                asm volatile("{mma.instruction} {d}, {a}, {b}, {d};"
                             : {outputs} : {inputs});
    }}
    {result} sum = 0;
    #pragma unroll
    for (int c = 0; c < {CHAINS}; ++c)
        #pragma unroll
        for (int i = 0; i < {mma.d}; ++i) sum += d[c][i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}}
"""


def _operands(first: int, count: int) -> str:
    """`{%0, %1}`: the registers of one fragment."""
    return f"{{{', '.join(f'%{first + i}' for i in range(count))}}}"


def wgmma_kernel(mma: WarpgroupMma) -> str:
    """CUDA C of a kernel `NAME(out, start, rounds)`: each group of four warps runs rounds x STEPS instructions.

    Shared memory holds a tile of 64 and one of 256 rows of 128 bytes, in the swizzled layout in which cuBLAS keeps
    them (descriptor: layout 1, 1,024 bytes from one group of eight rows to the next). Successive instructions read
    successive 32 bytes of the rows. What the numbers are does not matter to the rate, so they are not arranged.
    """
    result = _ITEMS[mma.accumulator]
    outputs = ", ".join(f'"+{mma.accumulator}"(d[{i}])' for i in range(128))
    return f"""
extern "C" __global__ void __launch_bounds__(128) {mma.name}({result}* out, const uint4* start, int rounds)
{{
    extern __shared__ __align__(1024) uint4 tiles[];
    for (int i = threadIdx.x; i < (64 + 256) * 8; i += blockDim.x) tiles[i] = start[i % 256];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const unsigned long long address = (unsigned long long)__cvta_generic_to_shared(tiles);
    const unsigned long long layout = (1ull << 62) | (64ull << 32) | (1ull << 16);
    const unsigned long long of_a = layout | ((address & 0x3FFFF) >> 4);
    const unsigned long long of_b = layout | (((address + 64 * 128) & 0x3FFFF) >> 4);
    {result} d[128];
    #pragma unroll
    for (int i = 0; i < 128; ++i) d[i] = 0;
    #pragma unroll 1
    for (int round = 0; round < rounds; ++round) {{
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        #pragma unroll
        for (int step = 0; step < {STEPS}; ++step)
            asm volatile("{{.reg .pred keep; setp.ne.b32 keep, %130, 0; "
                         "wgmma.mma_async.sync.aligned.m64n256k{mma.depth}.{mma.types} "
                         "{_operands(0, 128)}, %128, %129, keep{mma.scales};}}"
                         : {outputs} : "l"(of_a + 2 * (step % 4)), "l"(of_b + 2 * (step % 4)), "r"(1));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }}
    {result} sum = 0;
    #pragma unroll
    for (int i = 0; i < 128; ++i) sum += d[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}}
"""

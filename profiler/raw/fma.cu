// Chains of fused multiply-adds in registers: what the arithmetic units of CUDA cores reach.
//
// CHAINS chains are independent, so that one warp alone hides the latency of the units (4 to 8 cycles). STEPS links are
// unrolled, so that the loop's own instructions are one in a hundred. An assembler statement that is volatile is
// neither removed nor moved out of the loop. With a = -0.9995 the values stay near one and change in every bit.
#define CHAINS 8
#define STEPS 32

#define CHAIN_KERNEL(NAME, ITEM, INSTRUCTION, CONSTRAINT)                                      \
    extern "C" __global__ void NAME(ITEM* out, const ITEM* start, ITEM a, ITEM b, int rounds)  \
    {                                                                                          \
        const int thread = blockIdx.x * blockDim.x + threadIdx.x;                              \
        ITEM x[CHAINS];                                                                        \
        _Pragma("unroll") for (int c = 0; c < CHAINS; ++c)                                     \
            x[c] = start[(threadIdx.x + 32 * c) % 1024];                                       \
        _Pragma("unroll 1") for (int round = 0; round < rounds; ++round) {                     \
            _Pragma("unroll") for (int step = 0; step < STEPS; ++step)                         \
                _Pragma("unroll") for (int c = 0; c < CHAINS; ++c)                             \
                    asm volatile(INSTRUCTION " %0, %0, %1, %2;"                                \
                                 : "+" CONSTRAINT(x[c]) : CONSTRAINT(a), CONSTRAINT(b));       \
        }                                                                                      \
        ITEM sum = x[0];                                                                       \
        _Pragma("unroll") for (int c = 1; c < CHAINS; ++c)                                     \
            asm volatile(INSTRUCTION " %0, %1, %2, %0;"                                        \
                         : "+" CONSTRAINT(sum) : CONSTRAINT(x[c]), CONSTRAINT(a));             \
        out[thread] = sum;                                                                     \
    }

CHAIN_KERNEL(fma_fp32, float, "fma.rn.f32", "f")
CHAIN_KERNEL(fma_fp64, double, "fma.rn.f64", "d")
CHAIN_KERNEL(fma_fp16x2, unsigned int, "fma.rn.f16x2", "r")
#if __CUDA_ARCH__ >= 800
CHAIN_KERNEL(fma_bf16x2, unsigned int, "fma.rn.bf16x2", "r")
#endif

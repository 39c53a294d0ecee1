// Streams over memory, 16 bytes a thread and access, as STREAM (McCalpin, 1995) counts them: operands and result once.
//
// Loads go past the first-level cache (.cg), so that a buffer that fits into the second level measures that one. Four
// loads are in flight per thread before the first is used. `items` counts 16-byte vectors and is a multiple of four
// times the threads of the grid, so that no thread has a remainder.
#define UNROLL 4

__device__ __forceinline__ float4 load(const float4* from)
{
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
    return v;
}

// The sum is stored where it has a value that normal numbers do not reach, which the compiler cannot know.
extern "C" __global__ void read(const float4* from, float* out, long long items, int passes)
{
    const long long threads = (long long)gridDim.x * blockDim.x;
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int pass = 0; pass < passes; ++pass)
        for (long long i = first; i < items; i += UNROLL * threads) {
            float4 v[UNROLL];
            #pragma unroll
            for (int u = 0; u < UNROLL; ++u) v[u] = load(from + i + u * threads);
            #pragma unroll
            for (int u = 0; u < UNROLL; ++u) sum += (v[u].x + v[u].y) + (v[u].z + v[u].w);
        }
    if (sum == 1.0e30f) out[0] = sum;
}

extern "C" __global__ void write(float4* to, float value, long long items)
{
    const long long threads = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < items; i += threads)
        to[i] = make_float4(value, value, value, value);
}

extern "C" __global__ void copy(const float4* from, float4* to, long long items)
{
    const long long threads = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < items; i += UNROLL * threads) {
        float4 v[UNROLL];
        #pragma unroll
        for (int u = 0; u < UNROLL; ++u) v[u] = load(from + i + u * threads);
        #pragma unroll
        for (int u = 0; u < UNROLL; ++u) to[i + u * threads] = v[u];
    }
}

extern "C" __global__ void triad(const float4* b, const float4* c, float4* a, float s, long long items)
{
    const long long threads = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < items; i += UNROLL * threads) {
        float4 v[UNROLL], w[UNROLL];
        #pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            v[u] = load(b + i + u * threads);
            w[u] = load(c + i + u * threads);
        }
        #pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            a[i + u * threads] = make_float4(v[u].x + s * w[u].x, v[u].y + s * w[u].y,
                                             v[u].z + s * w[u].z, v[u].w + s * w[u].w);
    }
}

extern "C" __global__ void empty() {}

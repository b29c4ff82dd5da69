// Definitions shared by all kernels: tensor descriptors, reductions over warps and blocks, 16-bit floats, and
// the error record.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__
#define INF __int_as_float(0x7f800000)

// Starts to load up to 4 KB of memory to the L2 cache, a line of 128 bytes with each lane of a warp. All kernels access
// memory through that cache, so a kernel may call this function before `wait_for_previous_kernels`.
DEVICE void prefetch(const char *from, i64 bytes) {
#if __CUDA_ARCH__ >= 900
    int at = threadIdx.x % 32 * 128;
    if (at < bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
#endif
}

// Waits until the earlier kernels of the stream are done and their writes are visible. Then lets the driver place
// blocks of the next kernel, which also waits here. Must come first in every kernel: if a block returned before this
// wait, the next kernel would not wait for the earlier kernels.
DEVICE void wait_for_previous_kernels() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Tensor descriptor: address of the first byte, strides in bytes, and sizes, innermost dimension first.
struct Tensor {
    char *data;
    i64 nb[4];
    int ne[4];
};

// The first index out of range that a kernel found. `node` identifies the op, starting at 1; 0 if no error
// occurred.
struct Fault {
    u32 node;
    u32 rows;
    i64 row;
};

// Records that `row` is out of range for a table of `rows` rows.
DEVICE void report(Fault *fault, u32 node, i64 row, int rows) {
    if (atomicCAS(&fault->node, 0u, node) == 0u) {
        fault->row = row;
        fault->rows = rows;
    }
}

// Indices of an element, innermost dimension first.
struct Index {
    u32 i[4];
};

// Returns the indices of element number `n` of a shape.
DEVICE Index unravel(u32 n, const int (&ne)[4]) {
    Index at;
    for (int d = 0; d < 3; d++) {
        u32 size = ne[d], next = n / size;
        at.i[d] = n - next * size;
        n = next;
    }
    at.i[3] = n;
    return at;
}

// Returns the byte offset of an element, excluding its index in dimension 0.
DEVICE i64 row_offset(const Tensor &t, const Index &at) {
    return at.i[1] * t.nb[1] + at.i[2] * t.nb[2] + at.i[3] * t.nb[3];
}

// Returns the source indices of an element of the broadcast tensor.
DEVICE Index repeated(const Tensor &t, Index at) {
    for (int d = 0; d < 4; d++) at.i[d] = t.ne[d] == 1 ? 0 : at.i[d] % (u32)t.ne[d];
    return at;
}

// Returns the index of this thread in a one-dimensional grid.
DEVICE u32 thread_number() {
    return blockIdx.x * blockDim.x + threadIdx.x;
}

DEVICE float half_to_float(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

DEVICE u16 float_to_half(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

DEVICE float bfloat_to_float(u16 bits) {
    return __uint_as_float((u32)bits << 16);
}

// Rounds to nearest, ties to even. NaN stays NaN.
DEVICE u16 float_to_bfloat(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

const u32 ALL_LANES = 0xffffffffu;

// Rounds two floats to a pair of f16 values, the first in the low half.
DEVICE u32 pair_of_halves(float low, float high) {
#if __CUDA_ARCH__ >= 800
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return float_to_half(low) | (u32)float_to_half(high) << 16;
#endif
}

// Rounds two floats to a pair of bf16 values, the first in the low half.
DEVICE u32 pair_of_bfloats(float low, float high) {
#if __CUDA_ARCH__ >= 800
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return float_to_bfloat(low) | (u32)float_to_bfloat(high) << 16;
#endif
}

// Returns the minimum and maximum over the lanes of a warp, in every lane.
template <class T> DEVICE T lowest_of_warp(T x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(ALL_LANES, x);
#else
    for (int step = 16; step > 0; step /= 2) x = min(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
#endif
}

template <class T> DEVICE T highest_of_warp(T x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(ALL_LANES, x);
#else
    for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
#endif
}

// Returns the sum over the lanes of a warp, in every lane.
DEVICE float warp_sum(float x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

// Reduces N values over the lanes of a warp: lane `l` gets the sum of value `l * N / 32`. N must be a power of two. The
// results are bit-identical to `warp_sum`. Each step halves the LEFT values. The steps are a recursion, because the
// compiler keeps the values in local memory if it does not unroll a loop.
template <int N, int STEP = 16, int LEFT = N> DEVICE float warp_sums(float (&x)[N]) {
    // Each lane sends half of its values to its partner and receives the other half.
    bool is_upper = threadIdx.x & STEP;
    const int HALF = (LEFT + 1) / 2;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float mine = LEFT > 1 && is_upper ? x[(i + LEFT / 2) % N] : x[i], other = LEFT > 1 && !is_upper ? x[(i + LEFT / 2) % N] : x[i];
        x[i] = mine + __shfl_xor_sync(ALL_LANES, other, STEP);
    }
    if constexpr (STEP > 1) return warp_sums<N, STEP / 2, HALF>(x);
    return x[0];
}

// Returns the maximum over the lanes of a warp, in every lane.
DEVICE float warp_max(float x) {
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

// Reduces a value over the threads of a block; every thread gets the result. `shared` is scratch memory for
// 32 elements.
template <float (*OF_WARP)(float)> DEVICE float block_reduce(float x, float none, float *shared) {
    x = OF_WARP(x);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = OF_WARP(lane < blockDim.x / 32 ? shared[lane] : none);
    __syncthreads();
    return x;
}

// Returns the sum over the threads of a block, whose size is a multiple of 32.
DEVICE float block_sum(float x, float *shared) {
    return block_reduce<warp_sum>(x, 0.0f, shared);
}

// Returns the maximum over the threads of a block.
DEVICE float block_max(float x, float *shared) {
    return block_reduce<warp_max>(x, -INF, shared);
}

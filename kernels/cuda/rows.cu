// Ops over dimension 0, with one block of threads per row.
//
// Parameters of `rms_norm`: W: type of the weight, if any. ADDS: the row is the sum of two operands, which is
// stored if `sum` is set. X4: all rows can be accessed 4 elements at a time. ROUNDS: the result is also
// quantized for matmuls; requires X4.
#include "blocks.cuh"
#include "columns.cuh"

struct Params {
    Tensor x, w, y;
    float c0;
    int i0, i1, padding;
    // Operand to add to `x`, and destination of the sum.
    Tensor b, sum;
    Tile *tiles;
};

__shared__ float shared[32];

// Returns the start of the block's row.
DEVICE char *row_of(const Tensor &t) {
    u32 n = blockIdx.x, i1 = n % t.ne[1], rest = n / t.ne[1];
    return t.data + i1 * t.nb[1] + rest % t.ne[2] * t.nb[2] + rest / t.ne[2] * t.nb[3];
}

// Returns the address of element `i` of a row.
DEVICE const float *element_at(const Tensor &t, const char *row, int i) {
#if X4
    return (const float *)row + i;
#else
    return (const float *)(row + i * t.nb[0]);
#endif
}

DEVICE float x_at(const Params &p, const char *row, int i) {
    return *element_at(p.x, row, i);
}

DEVICE void store(const Params &p, int i, float y) {
    *(float *)(row_of(p.y) + i * p.y.nb[0]) = y;
}

DEVICE void load_4(const float *from, float (&to)[4]) {
    float4 x = *(const float4 *)from;
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

// Returns the sum of `f(x)` over the row.
template <class F> DEVICE float sum_of(const Params &p, const char *row, F f) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < p.x.ne[0]; i += blockDim.x) sum += f(x_at(p, row, i));
    return block_sum(sum, shared);
}

DEVICE float sum_of_squares(const Params &p, const char *row) {
    return sum_of(p, row, [](float x) { return x * x; });
}

// Returns the start of the block's row of the broadcast addend.
DEVICE const char *added_row(const Tensor &b, const Tensor &x) {
    u32 n = blockIdx.x, i1 = n % x.ne[1], rest = n / x.ne[1];
    return b.data + i1 % b.ne[1] * b.nb[1] + rest % x.ne[2] % b.ne[2] * b.nb[2] + rest / x.ne[2] % b.ne[3] * b.nb[3];
}

extern "C" __global__ void rms_norm(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    const char *row = row_of(p.x);
    int n = p.x.ne[0];
#if ADDS
    // Each thread accesses the same elements in every pass, so that the sum or result may overwrite one of the
    // operands.
    extern __shared__ __align__(16) float added[];
    const char *other = added_row(p.b, p.x);
    char *sum_row = p.sum.data ? row_of(p.sum) : nullptr;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float x = x_at(p, row, i) + *element_at(p.b, other, i);
        added[i] = x;
        squares += x * x;
        if (sum_row) *(float *)element_at(p.sum, sum_row, i) = x;
    }
    squares = block_sum(squares, shared);
#else
    float squares = sum_of_squares(p, row);
#endif
    float factor = 1.0f / sqrtf(squares / (float)n + p.c0);
#if X4
    char *to = row_of(p.y);
    // Blocks that share a row each store a part of the result.
    int warp = threadIdx.x / 32 * gridDim.y + blockIdx.y;
    for (int first = warp * 128; first < n; first += 4 * blockDim.x * gridDim.y) {
        int i = first + threadIdx.x % 32 * 4;
        bool is_there = i < n;
        float y[4] = {};
        if (is_there) {
#if ADDS
            load_4(added + i, y);
#else
            load_4((const float *)row + i, y);
#endif
            for (int e = 0; e < 4; e++) y[e] *= factor;
#ifdef W
            float weights[4];
            load_4((const float *)p.w.data + i, weights);
            for (int e = 0; e < 4; e++) y[e] *= weights[e];
#endif
            *(float4 *)(to + 4 * i) = make_float4(y[0], y[1], y[2], y[3]);
        }
#if ROUNDS
        store_rounded(p.tiles, blockIdx.x, n, i, y, is_there);
#endif
    }
#else
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
#if ADDS
        float y = added[i] * factor;
#else
        float y = x_at(p, row, i) * factor;
#endif
#ifdef W
        y *= element<types::W>(p.w, p.w.data, i);
#endif
        store(p, i, y);
    }
#endif
}

extern "C" __global__ void layer_norm(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    const char *row = row_of(p.x);
    float n = (float)p.x.ne[0], mean = sum_of(p, row, [](float x) { return x; }) / n;
    float variance = sum_of(p, row, [=](float x) { return (x - mean) * (x - mean); }) / n;
    float factor = 1.0f / sqrtf(variance + p.c0);
    for (int i = threadIdx.x; i < p.x.ne[0]; i += blockDim.x) store(p, i, (x_at(p, row, i) - mean) * factor);
}

extern "C" __global__ void l2_norm(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    const char *row = row_of(p.x);
    float length = fmaxf(sqrtf(sum_of_squares(p, row)), p.c0);
    for (int i = threadIdx.x; i < p.x.ne[0]; i += blockDim.x) store(p, i, x_at(p, row, i) / length);
}

extern "C" __global__ void soft_max(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    const char *row = row_of(p.x);
    float largest = -INF;
    for (int i = threadIdx.x; i < p.x.ne[0]; i += blockDim.x) largest = fmaxf(largest, x_at(p, row, i) * p.c0);
    largest = block_max(largest, shared);
    float sum = sum_of(p, row, [=](float x) { return expf(x * p.c0 - largest); });
    for (int i = threadIdx.x; i < p.x.ne[0]; i += blockDim.x) store(p, i, expf(x_at(p, row, i) * p.c0 - largest) / sum);
}

extern "C" __global__ void sum_rows(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    float sum = sum_of(p, row_of(p.x), [](float x) { return x; });
    if (threadIdx.x == 0) store(p, 0, sum);
}

extern __shared__ float matrix[];

// Divides each element by the sum of its row or column plus `eps`. `sums` holds `n` floats.
DEVICE void divide(int n, bool columns, float eps, float *sums) {
    for (int a = threadIdx.x; a < n; a += blockDim.x) {
        float sum = 0.0f;
        for (int b = 0; b < n; b++) sum += matrix[columns ? b * n + a : a * n + b];
        sums[a] = sum + eps;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n * n; i += blockDim.x) matrix[i] /= sums[columns ? i % n : i / n];
    __syncthreads();
}

// Sinkhorn normalization of the block's row as an `i0` by `i0` matrix, with `i1` iterations.
extern "C" __global__ void balance(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    const char *row = row_of(p.x);
    int n = p.i0;
    float *sums = matrix + n * n;
    for (int a = threadIdx.x; a < n; a += blockDim.x) {
        float largest = -INF, sum = 0.0f;
        for (int b = 0; b < n; b++) largest = fmaxf(largest, x_at(p, row, a * n + b));
        for (int b = 0; b < n; b++) sum += matrix[a * n + b] = expf(x_at(p, row, a * n + b) - largest);
        for (int b = 0; b < n; b++) matrix[a * n + b] = matrix[a * n + b] / sum + p.c0;
    }
    __syncthreads();
    for (int i = 0; i < p.i1; i++) {
        if (i > 0) divide(n, false, p.c0, sums);
        divide(n, true, p.c0, sums);
    }
    for (int i = threadIdx.x; i < n * n; i += blockDim.x) store(p, i, matrix[i]);
}

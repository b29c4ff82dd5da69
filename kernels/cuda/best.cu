// The largest values of long rows of floats. Blocks search slices of a row, then one block per row searches the results
// of its slices.
#include "select.cuh"

struct Params {
    // Contiguous rows of `n` values.
    const float *x;
    // The largest `k` keys of each slice of each row; 0 for missing keys.
    u64 *keys;
    // Index of the first value of each slice of each row that is NaN or positive infinity, or NONE.
    u32 *invalid;
    // Rows of `2 * k + 2` words: indices and values of the largest values, then index and value of the first invalid
    // one.
    u32 *y;
    int n, k, n_slices, padding;
};

const int VALUES = 16, SLICE_THREADS = 256, ROW_THREADS = 512, SLICE = VALUES * SLICE_THREADS, MAX_K = 256;
const u32 NONE = 0xffffffffu;

__shared__ u32 counts[N_COUNTS];
__shared__ u32 n_chosen, first_invalid;
__shared__ u64 chosen[MAX_K];

// The keys of a thread; 0 for missing keys.
struct Keys {
    u64 keys[VALUES];

    template <class F> DEVICE void each(F f) const {
#pragma unroll
        for (int i = 0; i < VALUES; i++) f(keys[i]);
    }

    // Appends the `k` largest keys of the block to a list, in any order, and counts them in `n_chosen`.
    DEVICE void choose(u32 k, u64 *to) const {
        u64 bound = bound_of(k, *this, counts);
        each([&](u64 key) {
            if (key != 0 && key >= bound) to[atomicAdd(&n_chosen, 1u)] = key;
        });
    }
};

// Finds the keys of a slice, in any order, and its first invalid value. Grid: slices, rows.
extern "C" __global__ void __launch_bounds__(SLICE_THREADS) best_of_slice(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    i64 slice = (i64)blockIdx.y * p.n_slices + blockIdx.x;
    const float *x = p.x + (i64)blockIdx.y * p.n;
    if (threadIdx.x == 0) n_chosen = 0, first_invalid = NONE;
    Keys all;
    u32 invalid = NONE;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        int at = blockIdx.x * SLICE + i * SLICE_THREADS + threadIdx.x;
        float value = at < p.n ? x[at] : 0.0f;
        all.keys[i] = at < p.n ? key_of(value, at) : 0;
        if (!(value < INF)) invalid = min(invalid, (u32)at);
    }
    u64 *to = p.keys + slice * p.k;
    all.choose(p.k, to);
    invalid = lowest_of_warp(invalid);
    if (threadIdx.x % 32 == 0 && invalid != NONE) atomicMin(&first_invalid, invalid);
    __syncthreads();
    for (int i = n_chosen + threadIdx.x; i < p.k; i += blockDim.x) to[i] = 0;
    if (threadIdx.x == 0) p.invalid[slice] = first_invalid;
}

// Orders the largest values of a row. One block per row; its slices have at most VALUES * ROW_THREADS keys.
extern "C" __global__ void __launch_bounds__(ROW_THREADS) best_of_row(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int row = blockIdx.x, n_keys = p.n_slices * p.k;
    const float *x = p.x + (i64)row * p.n;
    u32 *y = p.y + (i64)row * (2 * p.k + 2);
    if (threadIdx.x == 0) n_chosen = 0;
    Keys all;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        int at = i * ROW_THREADS + threadIdx.x;
        all.keys[i] = at < n_keys ? p.keys[(i64)row * n_keys + at] : 0;
    }
    all.choose(p.k, chosen);
    __syncthreads();
    // The keys are in arbitrary order.
    if (threadIdx.x < n_chosen) {
        int rank = rank_of(chosen[threadIdx.x], chosen, n_chosen);
        u32 index = ~(u32)chosen[threadIdx.x];
        y[rank] = index;
        y[p.k + rank] = __float_as_uint(x[index]);
    }
    if (threadIdx.x >= 32) return;
    u32 invalid = NONE;
    for (int i = threadIdx.x; i < p.n_slices; i += 32) invalid = min(invalid, p.invalid[(i64)row * p.n_slices + i]);
    invalid = lowest_of_warp(invalid);
    if (threadIdx.x == 0) {
        y[2 * p.k] = invalid;
        y[2 * p.k + 1] = invalid == NONE ? 0 : __float_as_uint(x[invalid]);
    }
}

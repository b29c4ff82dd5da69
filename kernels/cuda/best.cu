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
    // Rows of `2 * k + 2` words: indices and values of the largest values, then index and value of the first invalid one.
    u32 *y;
    int n, k, n_slices, padding;
};

const int VALUES = 16, SLICE_THREADS = 256, ROW_THREADS = 512, SLICE = VALUES * SLICE_THREADS, MAX_K = 256;
const u32 NONE = 0xffffffffu;

__shared__ u32 counts[N_COUNTS];
__shared__ u32 n_chosen, first_invalid;
__shared__ u64 chosen[MAX_K];

// Returns a bound that exactly `k` of the block's keys reach, or 1 if there are fewer keys. Keys are unique, except for 0
// in place of a missing key. A radix search of 8 bits per pass, which ends once all keys with the same digits are needed.
DEVICE u64 bound_of(const u64 (&keys)[VALUES], u32 k) {
    u64 prefix = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < N_COUNTS; i += blockDim.x) counts[i] = 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            bool fits = shift == 56 || keys[i] >> (shift + 8) == prefix >> (shift + 8);
            if (keys[i] != 0 && fits) atomicAdd(&counts[keys[i] >> shift & 255], 1u);
        }
        __syncthreads();
        if (threadIdx.x < 32) find_digit(counts, k);
        __syncthreads();
        u32 digit = counts[256], left = counts[257], n_same = counts[digit];
        __syncthreads();
        if (left == 0) return 1;
        prefix |= (u64)digit << shift;
        k = left;
        if (n_same == left) break;
    }
    return prefix;
}

// Finds the keys of a slice, in any order, and its first invalid value. Grid: slices, rows.
extern "C" __global__ void __launch_bounds__(SLICE_THREADS) best_of_slice(const __grid_constant__ Params p) {
    i64 slice = (i64)blockIdx.y * p.n_slices + blockIdx.x;
    const float *x = p.x + (i64)blockIdx.y * p.n;
    if (threadIdx.x == 0) n_chosen = 0, first_invalid = NONE;
    float values[VALUES];
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        int at = blockIdx.x * SLICE + i * SLICE_THREADS + threadIdx.x;
        values[i] = at < p.n ? x[at] : 0.0f;
    }
    u64 keys[VALUES];
    u32 invalid = NONE;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        int at = blockIdx.x * SLICE + i * SLICE_THREADS + threadIdx.x;
        keys[i] = at < p.n ? key_of(values[i], at) : 0;
        if (!(values[i] < INF)) invalid = min(invalid, (u32)at);
    }
    u64 bound = bound_of(keys, p.k);
    invalid = __reduce_min_sync(ALL_LANES, invalid);
    if (threadIdx.x % 32 == 0 && invalid != NONE) atomicMin(&first_invalid, invalid);
    u64 *to = p.keys + slice * p.k;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        if (keys[i] != 0 && keys[i] >= bound) to[atomicAdd(&n_chosen, 1u)] = keys[i];
    }
    __syncthreads();
    for (int i = n_chosen + threadIdx.x; i < p.k; i += blockDim.x) to[i] = 0;
    if (threadIdx.x == 0) p.invalid[slice] = first_invalid;
}

// Orders the largest values of a row. One block per row; its slices have at most VALUES * ROW_THREADS keys.
extern "C" __global__ void __launch_bounds__(ROW_THREADS) best_of_row(const __grid_constant__ Params p) {
    int row = blockIdx.x, n_keys = p.n_slices * p.k;
    const float *x = p.x + (i64)row * p.n;
    u32 *y = p.y + (i64)row * (2 * p.k + 2);
    if (threadIdx.x == 0) n_chosen = 0;
    u64 keys[VALUES];
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        int at = i * ROW_THREADS + threadIdx.x;
        keys[i] = at < n_keys ? p.keys[(i64)row * n_keys + at] : 0;
    }
    u64 bound = bound_of(keys, p.k);
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        if (keys[i] != 0 && keys[i] >= bound) chosen[atomicAdd(&n_chosen, 1u)] = keys[i];
    }
    __syncthreads();
    // The keys are in arbitrary order. The rank of a key is the number of larger keys.
    if (threadIdx.x < n_chosen) {
        u64 own = chosen[threadIdx.x];
        int rank = 0;
        for (int i = 0; i < n_chosen; i++) rank += chosen[i] > own;
        u32 index = ~(u32)own;
        y[rank] = index;
        y[p.k + rank] = __float_as_uint(x[index]);
    }
    if (threadIdx.x >= 32) return;
    u32 invalid = NONE;
    for (int i = threadIdx.x; i < p.n_slices; i += 32) invalid = min(invalid, p.invalid[(i64)row * p.n_slices + i]);
    invalid = __reduce_min_sync(ALL_LANES, invalid);
    if (threadIdx.x == 0) {
        y[2 * p.k] = invalid;
        y[2 * p.k + 1] = invalid == NONE ? 0 : __float_as_uint(x[invalid]);
    }
}

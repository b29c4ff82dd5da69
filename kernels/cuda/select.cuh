// Selection of the k largest keys by a block of threads.
#pragma once
#include "common.cuh"

// Maps a float to an integer with the same total order. Negative zero is less than zero.
DEVICE u32 ordered(float x) {
    u32 bits = __float_as_uint(x);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// Returns a unique key that orders floats from the largest down, and equal floats by ascending index.
DEVICE u64 key_of(float x, u32 index) {
    return (u64)ordered(x) << 32 | (u32)~index;
}

// Words of shared memory for the counters of `kth_largest`: one per digit, then the digit found and the
// remaining rank.
const int N_COUNTS = 258;

// Finds the digit of the `k`th largest counted key. Called by the first warp; each lane handles 8 digits,
// starting with the highest.
DEVICE void find_digit(u32 *counts, u32 k) {
    int lane = threadIdx.x, digit = 255 - 8 * lane;
    u32 sum = 0;
    for (int i = 0; i < 8; i++) sum += counts[digit - i];
    u32 up_to = sum;
    for (int step = 1; step < 32; step *= 2) {
        u32 before = __shfl_up_sync(ALL_LANES, up_to, step);
        if (lane >= step) up_to += before;
    }
    if (up_to < k || up_to - sum >= k) return;
    u32 left = k - (up_to - sum);
    while (counts[digit] < left) left -= counts[digit--];
    counts[256] = digit;
    counts[257] = left;
}

// Returns the `k`th largest of the unique keys `key(i)` for i < n, or 1 if there are fewer than `k`. `key`
// returns 0 for an absent key.
//
// A radix search of 8 bits per pass, starting with the highest. `counts` is shared memory, and all threads
// get the result.
template <class F> DEVICE u64 kth_largest(int n, u32 k, F key, u32 (&counts)[N_COUNTS]) {
    u64 prefix = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < N_COUNTS; i += blockDim.x) counts[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            u64 x = key(i);
            bool fits = shift == 56 || x >> (shift + 8) == prefix >> (shift + 8);
            if (x != 0 && fits) atomicAdd(&counts[x >> shift & 255], 1u);
        }
        __syncthreads();
        if (threadIdx.x < 32) find_digit(counts, k);
        __syncthreads();
        prefix |= (u64)counts[256] << shift;
        k = counts[257];
        __syncthreads();
        // The search for the first digit fails only if there are fewer than `k` keys.
        if (k == 0) return 1;
    }
    return prefix;
}

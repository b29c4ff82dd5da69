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

// Words of shared memory for the counters of `bound_of`: one per digit, then the digit found and the remaining
// rank.
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

// Returns the largest bound such that exactly `k` of a block's unique keys are at least this bound, or 1 if there are
// fewer keys. `keys.each(f)` calls `f` with every key of the thread, and with 0 in place of an absent key.
//
// A radix search of 8 bits per pass, starting with the highest, which ends once all keys with the same digits are
// needed. `counts` is shared memory, and all threads get the result.
template <class Keys> DEVICE u64 bound_of(u32 k, const Keys &keys, u32 (&counts)[N_COUNTS]) {
    u64 prefix = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < N_COUNTS; i += blockDim.x) counts[i] = 0;
        __syncthreads();
        keys.each([&](u64 x) {
            bool fits = shift == 56 || x >> (shift + 8) == prefix >> (shift + 8);
            if (x != 0 && fits) atomicAdd(&counts[x >> shift & 255], 1u);
        });
        __syncthreads();
        if (threadIdx.x < 32) find_digit(counts, k);
        __syncthreads();
        u32 digit = counts[256], left = counts[257], n_same = counts[digit];
        __syncthreads();
        // The search for the first digit fails only if there are fewer than `k` keys.
        if (left == 0) return 1;
        prefix |= (u64)digit << shift;
        k = left;
        if (n_same == left) break;
    }
    return prefix;
}

// The keys `key(i)` for i < n.
template <class F> struct Computed {
    int n;
    F key;

    template <class G> DEVICE void each(G g) const {
        for (int i = threadIdx.x; i < n; i += blockDim.x) g(key(i));
    }
};

// Returns the bound of `k` of the keys `key(i)` for i < n.
template <class F> DEVICE u64 bound_of_computed(int n, u32 k, F key, u32 (&counts)[N_COUNTS]) {
    return bound_of(k, Computed<F>{n, key}, counts);
}

// Returns the rank of a key: the number of larger keys.
DEVICE int rank_of(u64 key, const u64 *keys, int n) {
    int rank = 0;
    for (int i = 0; i < n; i++) rank += keys[i] > key;
    return rank;
}

// Partial results of attention: sums of warps and of blocks that share a token, and their combination in a
// fixed order.
//
// DV: size of values. ROUNDS: results are also quantized for matmuls.
#pragma once
#include "attention.cuh"
#include "columns.cuh"

// Returns the partial results of a block.
DEVICE float *part_of(const Params &p, int token, int head, int part) {
    return p.parts + (((i64)token * p.q.ne[1] + head) * p.n_parts + part) * (DV + 2);
}

// Returns the index of a value in shared memory. The padding avoids bank conflicts for strides of 2, 4, 8,
// 16, and 32.
DEVICE constexpr int spread(int d) {
    return d + d / 32;
}

// Sums of N warps for H heads and SIZE values per head: weighted values relative to the maximum score, the
// maximum score, and the sum of weights.
template <int N, int H, int SIZE> struct Partials {
    float values[N][H][spread(SIZE)];
    float largest[N][H], weights[N][H];

    // Adds the sums of value `d` of a head, relative to the larger of `largest` and the maximum score.
    DEVICE float sum(int h, int d, float &total_largest, float &total_weights) const {
        float sum = 0.0f;
        total_weights = 0.0f;
#pragma unroll
        for (int w = 0; w < N; w++) total_largest = fmaxf(total_largest, largest[w][h]);
#pragma unroll
        for (int w = 0; w < N; w++) {
            float factor = weights[w][h] == 0.0f ? 0.0f : expf(largest[w][h] - total_largest);
            total_weights += weights[w][h] * factor;
            sum += values[w][h][spread(d)] * factor;
        }
        return sum;
    }
};

// Returns the initial maximum score of a head.
DEVICE float sink_of(const Params &p, int head) {
#if SINKS
    return *(const float *)(p.sinks.data + head * p.sinks.nb[0]);
#else
    return -INF;
#endif
}

// Returns the weighted mean, including the weight of the sink.
DEVICE float mean(const Params &p, float sum, float weights, float sink, float largest) {
#if SINKS
    weights += expf(sink - largest);
#endif
    return sum == 0.0f && weights == 0.0f ? 0.0f : sum / weights;
}

// Stores results `d` to `d + N - 1` of a head of a token; N is at most 4. If results are quantized, eight lanes
// hold 32 adjacent results.
template <int N> DEVICE void store_results(const Params &p, int token, int head, int d, const float (&x)[N], bool is_there) {
    if (is_there) {
        for (int n = 0; n < N; n++) *(float *)(p.y.data + (d + n) * p.y.nb[0] + head * p.y.nb[1] + token * p.y.nb[2]) = x[n];
    }
#if ROUNDS
    store_rounded((Tile *)p.rounded, token, p.q.ne[1] * DV, head * DV + d, x, is_there);
#endif
}

// Number of results that a thread computes at a time.
#if ROUNDS
const int RESULTS = 4;
#else
const int RESULTS = 1;
#endif

// Adds the warps' sums of values `first_value` to `first_value + SIZE - 1` of some heads, and stores the results,
// or this block's part of them.
template <int N, int H, int SIZE>
DEVICE void combine(const Params &p, const Partials<N, H, SIZE> &partials, int first_head, int n_heads, int token, int first_value) {
    int n = n_heads * SIZE;
#if SPLIT
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        int h = i / SIZE, d = i % SIZE;
        float largest = -INF, weights, *to = part_of(p, token, first_head + h, blockIdx.z);
        to[first_value + d] = partials.sum(h, d, largest, weights);
        if (first_value + d == 0) to[DV] = largest, to[DV + 1] = weights;
    }
#else
    for (int first = threadIdx.x / 32 * 32 * RESULTS; first < n; first += blockDim.x * RESULTS) {
        int i = first + threadIdx.x % 32 * RESULTS, h = i / SIZE, d = i % SIZE;
        bool is_there = i < n;
        float x[RESULTS] = {};
        for (int e = 0; e < RESULTS && is_there; e++) {
            float sink = sink_of(p, first_head + h), largest = sink, weights, sum = partials.sum(h, d + e, largest, weights);
            x[e] = mean(p, sum, weights, sink, largest);
        }
        store_results(p, token, first_head + h, first_value + d, x, is_there);
    }
#endif
}

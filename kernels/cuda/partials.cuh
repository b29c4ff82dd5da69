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

// Sums of N warps for H heads and SIZE values per head. They are weighted values relative to the maximum score, the
// maximum score, and the sum of weights.
template <int N, int H, int SIZE> struct Partials {
    float values[N][H][spread(SIZE)];
    float largest[N][H], weights[N][H];

    // Returns the factors of a head's warps, and computes the larger of `total_largest` and the maximum score, and the
    // sum of weights.
    DEVICE void find_factors(int h, float (&factors)[N], float &total_largest, float &total_weights) const {
        total_weights = 0.0f;
#pragma unroll
        for (int w = 0; w < N; w++) total_largest = fmaxf(total_largest, largest[w][h]);
#pragma unroll
        for (int w = 0; w < N; w++) {
            factors[w] = weights[w][h] == 0.0f ? 0.0f : expf(largest[w][h] - total_largest);
            total_weights += weights[w][h] * factors[w];
        }
    }
    // Adds the sums of value `d` of a head.
    DEVICE float sum(int h, int d, const float (&factors)[N]) const {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < N; w++) sum += values[w][h][spread(d)] * factors[w];
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

// Number of adjacent results that a lane computes at a time, and number of iterations.
#if ROUNDS
const int RESULTS = 4, TIMES = 1;
#else
const int RESULTS = 1, TIMES = 4;
#endif

// Adds the warps' sums of values `first_value` to `first_value + SIZE - 1` of some heads, and stores the results,
// or this block's part of them. A warp adds 128 values of a head at a time.
template <int N, int H, int SIZE>
DEVICE void combine(const Params &p, const Partials<N, H, SIZE> &partials, int first_head, int n_heads, int token, int first_value) {
    const int AT_A_TIME = 128, RANGES = (SIZE + AT_A_TIME - 1) / AT_A_TIME;
    int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < n_heads * RANGES; i += blockDim.x / 32) {
        int h = i / RANGES, first = i % RANGES * AT_A_TIME, head = first_head + h;
        float factors[N], weights;
#if SPLIT
        float largest = -INF, *to = part_of(p, token, head, blockIdx.z) + first_value;
        partials.find_factors(h, factors, largest, weights);
#pragma unroll
        for (int d = first + lane; d < first + AT_A_TIME; d += 32) {
            if (d < SIZE) to[d] = partials.sum(h, d, factors);
        }
        if (first_value + first + lane == 0) to[DV] = largest, to[DV + 1] = weights;
#else
        float sink = sink_of(p, head), largest = sink;
        partials.find_factors(h, factors, largest, weights);
#pragma unroll
        for (int n = 0; n < TIMES; n++) {
            int d = first + 32 * n + lane * RESULTS;
            bool is_there = d < SIZE;
            float x[RESULTS] = {};
            for (int e = 0; e < RESULTS && is_there; e++) x[e] = mean(p, partials.sum(h, d + e, factors), weights, sink, largest);
            store_results(p, token, head, first_value + d, x, is_there);
        }
#endif
    }
}

// Attention with online softmax over the cells in a token's page table. Scores are never stored.
//
// A block computes a token with HEADS query heads of one KV head. Each warp takes every WARPSth page, and the
// lanes hold parts of keys and values. The warps' sums are added in order, so that results depend only on the
// page table.
//
// With few tokens, several blocks share the pages of a token (SPLIT), and `merge` adds their results in
// order.
//
// K, V: types of keys and values. DK, DV: their sizes. HEADS: query heads per block. SELECTS, BIASES, SINKS:
// true if the corresponding operand exists. SPLIT: several blocks per token. ROUNDS: results are also
// quantized for matmuls; DV must then be a multiple of 32.
#include "attention.cuh"
#include "blocks.cuh"
#include "columns.cuh"

using Keys = types::K;
using Values = types::V;

const int WARPS = 4;

// Returns the partial results of a block.
DEVICE float *part_of(const Params &p, int token, int head, int part) {
    return p.parts + (((i64)token * p.q.ne[1] + head) * p.n_parts + part) * (DV + 2);
}

// The chunks of a row of SIZE values that a lane holds.
template <class T, int SIZE> struct Part {
    static const int CHUNKS = SIZE / T::N, PER_LANE = (CHUNKS + 31) / 32;
    // Returns true if the lane holds chunk `i`.
    static DEVICE bool has(int i) { return i * 32 + threadIdx.x % 32 < CHUNKS; }
    static DEVICE int chunk(int i) { return i * 32 + threadIdx.x % 32; }
    // Returns the index within the row of the chunk's first value.
    static DEVICE int first(int i) {
        return chunk(i) / T::CHUNKS * T::QK + chunk_start<T>(chunk(i) % T::CHUNKS);
    }
    static DEVICE void load(const char *row, int i, float (&v)[T::N]) {
        const u8 *block = (const u8 *)row + (i64)(chunk(i) / T::CHUNKS) * T::BYTES;
        T::chunk(block, chunk(i) % T::CHUNKS, v);
    }
};

using KeyPart = Part<Keys, DK>;
using ValuePart = Part<Values, DV>;

// Returns the distance of value `n` of a chunk from the chunk's first value.
template <class T> DEVICE int place_in_chunk(int n) {
    return n / T::RUN * T::GAP + n % T::RUN;
}

// Accumulators of a warp for one head.
struct Sums {
    float largest, weights;
    float values[ValuePart::PER_LANE][Values::N];

    DEVICE void scale_by(float factor) {
        weights *= factor;
        for (int i = 0; i < ValuePart::PER_LANE; i++) {
            for (int n = 0; n < Values::N; n++) values[i][n] *= factor;
        }
    }

    // Raises the maximum to `score` if necessary, and returns the weight of a key with this score. A score of
    // minus infinity has weight 0.
    DEVICE float take(float score) {
        float before = largest;
        largest = fmaxf(largest, score);
        float factor = before == largest ? 1.0f : expf(before - largest), weight = score == -INF ? 0.0f : expf(score - largest);
        scale_by(factor);
        weights += weight;
        return weight;
    }
};

// Returns the index of a value in shared memory. The padding avoids bank conflicts for strides of 2, 4, 8,
// 16, and 32.
DEVICE constexpr int spread(int d) {
    return d + d / 32;
}

__shared__ float warp_values[WARPS][HEADS][spread(DV)];
__shared__ float warp_largest[WARPS][HEADS], warp_weights[WARPS][HEADS];

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

// Stores results `i` to `i + N - 1` of some heads of a token; N is at most 4. If results are quantized, eight
// lanes hold 32 adjacent results.
template <int N> DEVICE void store_results(const Params &p, int token, int first_head, int i, const float (&x)[N], bool is_there) {
    if (is_there) {
        for (int n = 0; n < N; n++) {
            int h = (i + n) / DV, d = (i + n) % DV;
            *(float *)(p.y.data + d * p.y.nb[0] + (first_head + h) * p.y.nb[1] + token * p.y.nb[2]) = x[n];
        }
    }
#if ROUNDS
    store_rounded((Tile *)p.rounded, token, p.q.ne[1] * DV, first_head * DV + i, x, is_there);
#endif
}

// Number of results that a thread computes at a time.
#if ROUNDS
const int RESULTS = 4;
#else
const int RESULTS = 1;
#endif

// Adds the warps' sums of value `d` of a head. Also returns the total maximum and sum of weights.
DEVICE float sum_of_warps(int h, int d, float &largest, float &weights) {
    float sum = 0.0f;
    weights = 0.0f;
    for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, warp_largest[w][h]);
    for (int w = 0; w < WARPS; w++) {
        if (warp_weights[w][h] == 0.0f) continue;
        float factor = expf(warp_largest[w][h] - largest);
        weights += warp_weights[w][h] * factor;
        sum += warp_values[w][h][spread(d)] * factor;
    }
    return sum;
}

// Adds the warps' sums and stores the result, or this block's part of it.
DEVICE void combine(const Params &p, const Sums (&sums)[HEADS], int first_head, int n_heads, int token) {
    int warp = threadIdx.x / 32;
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < ValuePart::PER_LANE; i++) {
            if (!ValuePart::has(i)) continue;
            int at = ValuePart::first(i);
            for (int n = 0; n < Values::N; n++) warp_values[warp][h][spread(at + place_in_chunk<Values>(n))] = sums[h].values[i][n];
        }
        if (threadIdx.x % 32 == 0) {
            warp_largest[warp][h] = sums[h].largest;
            warp_weights[warp][h] = sums[h].weights;
        }
    }
    __syncthreads();
    int n = n_heads * DV;
#if SPLIT
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        int h = i / DV, d = i % DV;
        float largest = -INF, weights, *to = part_of(p, token, first_head + h, blockIdx.z);
        to[d] = sum_of_warps(h, d, largest, weights);
        if (d == 0) to[DV] = largest, to[DV + 1] = weights;
    }
#else
    for (int first = warp * 32 * RESULTS; first < n; first += blockDim.x * RESULTS) {
        int i = first + threadIdx.x % 32 * RESULTS;
        bool is_there = i < n;
        float x[RESULTS] = {};
        for (int e = 0; e < RESULTS && is_there; e++) {
            int h = (i + e) / DV, d = (i + e) % DV;
            float sink = sink_of(p, first_head + h), largest = sink, weights, sum = sum_of_warps(h, d, largest, weights);
            x[e] = mean(p, sum, weights, sink, largest);
        }
        store_results(p, token, first_head, i, x, is_there);
    }
#endif
}

// Adds the results of the blocks of a token. Grid: tokens; heads.
extern "C" __global__ void __launch_bounds__(32 * WARPS) merge(const __grid_constant__ Params p) {
    int token = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / 32;
    float sink = sink_of(p, head), largest = sink;
    for (int i = 0; i < p.n_parts; i++) largest = fmaxf(largest, part_of(p, token, head, i)[DV]);
    for (int first = warp * 32 * RESULTS; first < DV; first += blockDim.x * RESULTS) {
        int at = first + threadIdx.x % 32 * RESULTS;
        bool is_there = at < DV;
        float weights = 0.0f, sums[RESULTS] = {};
        for (int i = 0; i < p.n_parts && is_there; i++) {
            const float *part = part_of(p, token, head, i);
            if (part[DV + 1] == 0.0f) continue;
            float factor = expf(part[DV] - largest);
            weights += part[DV + 1] * factor;
            for (int e = 0; e < RESULTS; e++) sums[e] += part[at + e] * factor;
        }
        for (int e = 0; e < RESULTS; e++) sums[e] = mean(p, sums[e], weights, sink, largest);
        store_results(p, token, head, at, sums, is_there);
    }
}

// Grid: tokens; KV heads times the number of blocks per group of query heads; blocks that share a token.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) attention(const __grid_constant__ Params p) {
    const Visible &visible = p.visible;
    int token = blockIdx.x, group = p.q.ne[1] / p.k.ne[1], per_group = (group + HEADS - 1) / HEADS;
    int head_kv = blockIdx.y / per_group, in_group = blockIdx.y % per_group * HEADS;
    int first_head = head_kv * group + in_group, n_heads = min(HEADS, group - in_group);
    mark_selected(p, token, head_kv);

    float q[HEADS][KeyPart::PER_LANE][Keys::N], slopes[HEADS];
    Sums sums[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        // Heads past the end of the group repeat the last head and are not stored.
        int head = first_head + min(h, n_heads - 1);
        const char *from = p.q.data + head * p.q.nb[1] + token * p.q.nb[2];
        for (int i = 0; i < KeyPart::PER_LANE; i++) {
            for (int n = 0; n < Keys::N; n++) {
                int at = KeyPart::first(i) + place_in_chunk<Keys>(n);
                q[h][i][n] = KeyPart::has(i) ? *(const float *)(from + at * p.q.nb[0]) : 0.0f;
            }
        }
        slopes[h] = slope_of(p, head);
        sums[h] = {};
        sums[h].largest = -INF;
    }

    int q_pos = visible.pos[token];
    int2 entries = entries_of(visible, token);
#if SPLIT
    int share = (entries.y - entries.x + p.n_parts - 1) / p.n_parts;
    entries.x = min(entries.x + (int)blockIdx.z * share, entries.y);
    entries.y = min(entries.x + share, entries.y);
#endif
    for (int entry = entries.x + threadIdx.x / 32; entry < entries.y; entry += WARPS) {
        Page page = page_of(visible, entry);
        for (u64 left = seen_of(p, page, q_pos, q_pos); left; left &= left - 1) {
            int cell = page.first + __ffsll(left) - 1, k_pos = visible.cell_pos[cell];
            const char *key = p.k.data + head_kv * p.k.nb[1] + cell * p.k.nb[2];
            const char *value = p.v.data + head_kv * p.v.nb[1] + cell * p.v.nb[2];
            float products[HEADS] = {}, weights[HEADS];
#pragma unroll
            for (int c = 0; c < KeyPart::PER_LANE; c++) {
                float k[Keys::N] = {};
                if (KeyPart::has(c)) KeyPart::load(key, c, k);
                for (int h = 0; h < HEADS; h++) {
                    for (int n = 0; n < Keys::N; n++) products[h] += q[h][c][n] * k[n];
                }
            }
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                int head = first_head + min(h, n_heads - 1);
                weights[h] = sums[h].take(score_of(p, warp_sum(products[h]), head, slopes[h], k_pos - q_pos));
            }
#pragma unroll
            for (int c = 0; c < ValuePart::PER_LANE; c++) {
                float v[Values::N] = {};
                if (ValuePart::has(c)) ValuePart::load(value, c, v);
                for (int h = 0; h < HEADS; h++) {
                    for (int n = 0; n < Values::N; n++) sums[h].values[c][n] += weights[h] * v[n];
                }
            }
        }
    }
    combine(p, sums, first_head, n_heads, token);
}

// Attention of few tokens on tensor cores, with online softmax over the cells in a token's page table.
//
// A block computes a token with HEADS query heads of one KV head. Keys and values arrive in shared memory in
// tiles of TILE cells, STAGES - 1 tiles ahead of their use. Each warp has 8 heads and a share of a tile's cells.
// Rows 0 to 7 of its matrices are the heads' queries or weights, rounded to 16 bits, and rows 8 to 15 are their
// rounding errors, so that both have nearly the precision of f32. Keys and values are 16-bit floats: bf16 if the
// cache is bf16, otherwise f16. The sums of warps and of blocks are added in order, so that results depend only
// on the page table and on the number of blocks per token.
//
// Queries must be aligned pairs of floats.
//
// K, V: types of keys and values. DK, DV: their sizes, multiples of 16. HEADS: query heads per block. TILE: cells
// per tile. STAGES: tiles in shared memory. PARTS: parts of values, one block each. BIASES, SINKS: true if the
// corresponding operand exists. SPLIT: several blocks per token. ROUNDS: results are also quantized for matmuls.
#define SELECTS 0
#include "blocks.cuh"
#include "halves.cuh"
#include "partials.cuh"

using Keys = types::K;
using Values = types::V;
using KeyHalves = HalvesOf<Keys>;
using ValueHalves = HalvesOf<Values>;

// Heads per warp, and warps with different heads.
const int HEADS_OF_WARP = 8, GROUPS = (HEADS + HEADS_OF_WARP - 1) / HEADS_OF_WARP;
// Warps with different cells of a tile. Each warp takes multiples of 16 cells.
const int SHARES = TILE / 16 >= 4 / GROUPS ? 4 / GROUPS : TILE / 16, WARPS = GROUPS * SHARES, THREADS = 32 * WARPS;
const int CELLS = TILE / SHARES;
// Value elements per part.
const int N_VALUES = DV / PARTS;
const int KEY_STRIDE = DK + 8, VALUE_STRIDE = N_VALUES + 8, STAGE = TILE * (KEY_STRIDE + VALUE_STRIDE);
// Steps of 16 along the key and the results.
const int K_STEPS = DK / 16, V_STEPS = N_VALUES / 16;
// Long queries do not fit in registers along with the sums.
const bool KEEPS_QUERIES = DK <= 128;

extern __shared__ __align__(16) u16 stages[];
__shared__ Listed listed;

// A lane's pairs of a query in global memory, every fourth of them. Short queries are loaded at once.
struct Pairs {
    const float2 *from;

    DEVICE Pairs(const float *row) : from((const float2 *)row + threadIdx.x % 4) {}
    DEVICE float2 operator[](int i) const { return from[4 * i]; }
};

struct LoadedPairs {
    float2 pairs[2 * K_STEPS];

    DEVICE LoadedPairs(const float *row) {
#pragma unroll
        for (int i = 0; i < 2 * K_STEPS; i++) pairs[i] = Pairs(row)[i];
    }
    DEVICE float2 operator[](int i) const { return pairs[i]; }
};

// Returns the first type if `FIRST`, otherwise the second.
template <bool FIRST, class A, class B> struct Choice {
    using Type = A;
};
template <class A, class B> struct Choice<false, A, B> {
    using Type = B;
};

// Queries of a warp's heads as fragments: the rounded queries and their rounding errors.
struct Queries {
    u32 kept[KEEPS_QUERIES ? K_STEPS : 1][4];
    uint4 *stored;
    // Scale of the lane's head. Queries are stored with a magnitude of at most 2.
    float scale;

    // `pairs` are those of the lane: every fourth of the head's. One of the warps with the same heads stores long
    // queries, which can be used after the next barrier of the block.
    template <class Pairs> DEVICE Queries(const Pairs &pairs, uint4 *stored, bool stores) : stored(stored) {
        int lane = threadIdx.x % 32;
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * K_STEPS; i++) largest = fmaxf(largest, fmaxf(fabsf(pairs[i].x), fabsf(pairs[i].y)));
        for (int step = 1; step < 4; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, step));
        // Clamps the scale to powers of two that have an inverse.
        u32 exponent = min(max(__float_as_uint(largest) >> 23, 1u), 253u);
        scale = __uint_as_float(exponent << 23);
        float inverse = __uint_as_float((254 - exponent) << 23);
#pragma unroll KEEPS_QUERIES ? K_STEPS : 1
        for (int i = 0; i < K_STEPS; i++) {
            u32 x[4];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float2 pair = pairs[2 * i + half];
                pair.x *= inverse, pair.y *= inverse;
                x[2 * half] = KeyHalves::pair(pair.x, pair.y);
                x[2 * half + 1] = KeyHalves::rest(x[2 * half], pair.x, pair.y);
            }
            if (KEEPS_QUERIES) {
                for (int n = 0; n < 4; n++) kept[i % K_STEPS][n] = x[n];
            } else if (stores) {
                stored[i * 32 + lane] = make_uint4(x[0], x[1], x[2], x[3]);
            }
        }
    }

    DEVICE void of_step(int i, u32 (&x)[4]) const {
        if (KEEPS_QUERIES) {
            for (int n = 0; n < 4; n++) x[n] = kept[i % K_STEPS][n];
            return;
        }
        uint4 all = stored[i * 32 + threadIdx.x % 32];
        x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
    }
};

// A tile with cells that the token sees: its page among the listed ones, its first cell within the page, and a
// mask of the cells seen.
struct At {
    int entry, first;
    u64 seen;

    DEVICE bool is_end(int n) const { return entry >= n; }
    // Moves to the next tile with cells that the token sees.
    DEVICE void find(int n) {
        const u64 ALL = TILE == 64 ? ~0ull : (1ull << TILE % 64) - 1;
        for (; entry < n; entry++, first = 0) {
            for (; first < PAGE; first += TILE) {
                seen = listed.seen[entry] >> first & ALL;
                if (seen) return;
            }
        }
    }
    DEVICE void advance(int n) {
        first += TILE;
        find(n);
    }
};

// Stores a chunk of quantized values, which has runs of four values.
template <class T> DEVICE void store_chunk(u16 *to, const float (&v)[T::N]) {
    static_assert(T::RUN == 4);
    uint2 runs[T::RUNS];
#pragma unroll
    for (int r = 0; r < T::RUNS; r++) runs[r] = make_uint2(Halves<false>::pair(v[4 * r], v[4 * r + 1]), Halves<false>::pair(v[4 * r + 2], v[4 * r + 3]));
    if constexpr (T::GAP == 4 && T::RUNS == 2) {
        *(uint4 *)to = make_uint4(runs[0].x, runs[0].y, runs[1].x, runs[1].y);
    } else {
        for (int r = 0; r < T::RUNS; r++) *(uint2 *)(to + r * T::GAP) = runs[r];
    }
}

// Starts loading SIZE values of each row of a tile to shared memory. Cells that the token does not see are
// replaced by zeros, whatever they contain.
template <class T, int SIZE> DEVICE void load_rows(const char *from, i64 stride, u64 seen, u16 *to) {
    const int STRIDE = SIZE + 8, CHUNKS = SIZE / T::N;
    if constexpr (IS_HALVES<T> && THREADS % CHUNKS == 0) {
        const int STEP = THREADS / CHUNKS;
        int first = threadIdx.x / CHUNKS, unit = threadIdx.x % CHUNKS * 8;
        from += first * stride + 2 * unit, to += first * STRIDE + unit;
#pragma unroll
        for (int i = 0; i < TILE / STEP; i++, from += STEP * stride) copy_ahead(to + i * STEP * STRIDE, from, seen >> (first + i * STEP) & 1);
    } else {
#pragma unroll 4
        for (int i = threadIdx.x; i < TILE * CHUNKS; i += THREADS) {
            int cell = i / CHUNKS, c = i % CHUNKS;
            const char *row = from + cell * stride + c / T::CHUNKS * T::BYTES;
            u16 *at = to + cell * STRIDE + c / T::CHUNKS * T::QK + chunk_start<T>(c % T::CHUNKS);
            if constexpr (IS_HALVES<T>) {
                copy_ahead(at, row, seen >> cell & 1);
            } else {
                float v[T::N] = {};
                if (seen >> cell & 1) T::chunk((const u8 *)row, c % T::CHUNKS, v);
                store_chunk<T>(at, v);
            }
        }
    }
}

// The heads and values of a block.
struct Block {
    int token, head_kv, first_head, n_heads, part;

    DEVICE Block(const Params &p) {
        int group = p.q.ne[1] / p.k.ne[1], per_group = (group + HEADS - 1) / HEADS, y = blockIdx.y / PARTS;
        int in_group = y % per_group * HEADS;
        token = blockIdx.x, part = blockIdx.y % PARTS;
        head_kv = y / per_group;
        first_head = head_kv * group + in_group;
        n_heads = min(HEADS, group - in_group);
    }

    DEVICE void load(const Params &p, const At &at, u16 *keys) const {
        i64 cell = listed.first[at.entry] + at.first;
        const char *k = p.k.data + head_kv * p.k.nb[1] + cell * p.k.nb[2];
        const char *v = p.v.data + head_kv * p.v.nb[1] + cell * p.v.nb[2] + part * (N_VALUES / Values::QK * Values::BYTES);
        load_rows<Keys, DK>(k, p.k.nb[2], at.seen, keys);
        load_rows<Values, N_VALUES>(v, p.v.nb[2], at.seen, keys + TILE * KEY_STRIDE);
    }
};

// State of the lane's head: the running maximum score (base 2), the sum of weights over the lane's cells, and the
// weighted values, each in two numbers that must be added.
struct Sums {
    float largest = -INF, weights = 0.0f;
    float values[2 * V_STEPS][4] = {};

    // Converts scores (base 2) to weights. A score of minus infinity has weight 0.
    template <int N> DEVICE void take(float (&scores)[N]) {
        float before = largest;
#pragma unroll
        for (int i = 0; i < N; i++) largest = fmaxf(largest, scores[i]);
        for (int step = 1; step < 4; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, step));
        // While a head has seen no cell, all of its weights are 0.
        float shift = largest == -INF ? 0.0f : largest, factor = power_of_2(before - shift);
        if (__any_sync(ALL_LANES, factor != 1.0f)) {
            weights *= factor;
#pragma unroll
            for (int i = 0; i < 2 * V_STEPS; i++) {
                for (int n = 0; n < 4; n++) values[i][n] *= factor;
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            scores[i] = power_of_2(scores[i] - shift);
            weights += scores[i];
        }
    }
};

// Multiplies the warp's queries with 16 keys. The lane gets the products of its head with keys `l % 4 * 2`, the
// next, and the same plus 8.
DEVICE void multiply_keys(const Queries &queries, const u16 *keys, float *products) {
    int lane = threadIdx.x % 32;
    // Two sums each shorten the chains of dependent multiplications.
    float sums[2][2][4] = {};
#pragma unroll KEEPS_QUERIES ? K_STEPS : 4
    for (int i = 0; i < K_STEPS; i++) {
        u32 a[4], b[4];
        queries.of_step(i, a);
        load_matrices(b, keys + (lane / 16 * 8 + lane % 8) * KEY_STRIDE + 16 * i + lane / 8 % 2 * 8);
        for (int half = 0; half < 2; half++) KeyHalves::multiply(sums[i % 2][half], a, b[2 * half], b[2 * half + 1]);
    }
    for (int i = 0; i < 4; i++) {
        products[i] = (sums[0][i / 2][i % 2] + sums[1][i / 2][i % 2]) + (sums[0][i / 2][i % 2 + 2] + sums[1][i / 2][i % 2 + 2]);
    }
}

// Adds 16 weighted values.
DEVICE void add_values(Sums &sums, const u16 *values, const float *weights) {
    int lane = threadIdx.x % 32;
    u32 a[4];
    for (int half = 0; half < 2; half++) {
        a[2 * half] = ValueHalves::pair(weights[2 * half], weights[2 * half + 1]);
        a[2 * half + 1] = ValueHalves::rest(a[2 * half], weights[2 * half], weights[2 * half + 1]);
    }
#pragma unroll
    for (int n = 0; n < V_STEPS; n++) {
        u32 b[4];
        load_transposed(b, values + (lane / 8 % 2 * 8 + lane % 8) * VALUE_STRIDE + 16 * n + lane / 16 * 8);
        for (int half = 0; half < 2; half++) ValueHalves::multiply(sums.values[2 * n + half], a, b[2 * half], b[2 * half + 1]);
    }
}

// Adds the cells of a tile that are the warp's.
DEVICE void add_tile(const Params &p, const Queries &queries, const At &at, int head, float slope, int q_pos, const u16 *keys, Sums &sums) {
    int share = threadIdx.x / 32 % SHARES, lane = threadIdx.x % 32;
    u64 seen = at.seen >> share * CELLS;
    if (CELLS < 64 && !(seen & (1ull << CELLS % 64) - 1)) return;
    keys += share * CELLS * KEY_STRIDE;
    const u16 *values = keys + (TILE - share * CELLS) * KEY_STRIDE + share * CELLS * VALUE_STRIDE;
    float scores[CELLS / 4];
#pragma unroll
    for (int i = 0; i < CELLS / 16; i++) multiply_keys(queries, keys + 16 * i * KEY_STRIDE, scores + 4 * i);
    bool is_plain = !BIASES && p.softcap == 0.0f && p.max_bias == 0.0f;
    float factor = queries.scale * (is_plain ? p.scale * LOG2_E : 1.0f);
#pragma unroll
    for (int i = 0; i < CELLS / 4; i++) {
        int cell = i / 2 * 8 + lane % 4 * 2 + i % 2;
        bool is_seen = seen >> cell & 1;
        scores[i] *= factor;
        if (!is_plain) {
            int ahead = is_seen ? p.visible.cell_pos[listed.first[at.entry] + at.first + share * CELLS + cell] - q_pos : 0;
            scores[i] = LOG2_E * score_of(p, scores[i], head, slope, ahead);
        }
        scores[i] = is_seen ? scores[i] : -INF;
    }
    sums.take(scores);
#pragma unroll
    for (int i = 0; i < CELLS / 16; i++) add_values(sums, values + 16 * i * VALUE_STRIDE, scores + 4 * i);
}

// Stores the warp's sums in shared memory, in place of tiles.
DEVICE void store_sums(const Sums &sums, Partials<SHARES, HEADS, N_VALUES> &partials) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, share = warp % SHARES, head = warp / SHARES * HEADS_OF_WARP + lane / 4;
    float weights = sums.weights;
    for (int step = 1; step < 4; step *= 2) weights += __shfl_xor_sync(ALL_LANES, weights, step);
    __syncthreads();
    if (head < HEADS) {
#pragma unroll
        for (int i = 0; i < 2 * V_STEPS; i++) {
            for (int n = 0; n < 2; n++) partials.values[share][head][spread(8 * i + lane % 4 * 2 + n)] = sums.values[i][n] + sums.values[i][n + 2];
        }
        if (lane % 4 == 0) {
            partials.largest[share][head] = sums.largest * LN_2;
            partials.weights[share][head] = weights;
        }
    }
    __syncthreads();
}

// Grid: tokens; KV heads times the number of blocks per group of query heads times parts of values; blocks that
// share a token.
extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_pages(const __grid_constant__ Params p) {
    Block block(p);
    int group = threadIdx.x / 32 / SHARES, head = block.first_head + min(group * HEADS_OF_WARP + (int)threadIdx.x % 32 / 4, block.n_heads - 1);
    const float *row = (const float *)(p.q.data + head * p.q.nb[1] + block.token * p.q.nb[2]);
    // The loads of queries do not wait for those of the page table.
    Choice<KEEPS_QUERIES, LoadedPairs, Pairs>::Type pairs(row);
    int q_pos = p.visible.pos[block.token];
    int2 entries = share_of(p, block.token, blockIdx.z);
    Queries queries(pairs, (uint4 *)(stages + STAGES * STAGE) + group * 32 * K_STEPS, threadIdx.x / 32 % SHARES == 0);
    float slope = slope_of(p, head);
    Sums sums;
    for (int first = entries.x; first < entries.y; first += MAX_LISTED) {
        int n = min(entries.y - first, MAX_LISTED);
        list_pages(p, listed, first, n, q_pos);
        At ahead = {0, 0, 0}, at = ahead;
        ahead.find(n), at.find(n);
#pragma unroll
        for (int stage = 0; stage < STAGES - 1; stage++) {
            if (!ahead.is_end(n)) {
                block.load(p, ahead, stages + stage * STAGE);
                ahead.advance(n);
            }
            end_group();
        }
        for (int stage = 0; !at.is_end(n); stage = stage + 1 == STAGES ? 0 : stage + 1) {
            wait_for_groups<STAGES - 2>();
            // The tile is complete, and no warp needs the one that is overwritten.
            __syncthreads();
            if (!ahead.is_end(n)) {
                block.load(p, ahead, stages + (stage == 0 ? STAGES - 1 : stage - 1) * STAGE);
                ahead.advance(n);
            }
            end_group();
            add_tile(p, queries, at, head, slope, q_pos, stages + stage * STAGE, sums);
            at.advance(n);
        }
    }
    Partials<SHARES, HEADS, N_VALUES> &partials = *(Partials<SHARES, HEADS, N_VALUES> *)stages;
    store_sums(sums, partials);
    combine(p, partials, block.first_head, block.n_heads, block.token, block.part * N_VALUES);
}

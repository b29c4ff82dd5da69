// Attention of many tokens on tensor cores: tiles of 64 queries by the 64 cells of a page, with online
// softmax.
//
// A block has 64 rows: tokens times HEADS query heads of one KV head, 16 rows per warp. With long keys, a
// block has 32 rows, and long values are divided into PARTS, one block each. Keys and values are 16-bit
// floats in shared memory: bf16 if the cache is bf16, otherwise f16. Each query is split into two such
// floats, so that scores have the precision of the stored keys. Weights are one f16 value, or two bf16
// values. The sums of a row are added in the order of its page table.
//
// K, V: types of keys and values. DK, DV: their sizes. HEADS: query heads per block. PARTS: parts of values.
// BIASES, SINKS: true if the corresponding operand exists.
#define SELECTS 0
#include "attention.cuh"
#include "blocks.cuh"
#include "matrices.cuh"

using Keys = types::K;
using Values = types::V;

// Long queries do not fit in registers along with the sums.
const bool KEEPS_QUERIES = DK <= 128;
const int WARPS = KEEPS_QUERIES ? 4 : 2, THREADS = 32 * WARPS, ROWS = 16 * WARPS, TOKENS = ROWS / HEADS;
// Value elements per part.
const int N_VALUES = DV / PARTS;
const int KEY_STRIDE = DK + 8, VALUE_STRIDE = N_VALUES + 8;
// Steps of 16 along the key, the cells, and the results.
const int K_STEPS = DK / 16, CELL_STEPS = PAGE / 16, V_STEPS = N_VALUES / 16;

// Conversion of pairs of 16-bit floats in a word.
template <bool IS_BFLOAT> struct Halves {
    static DEVICE u32 pair(float low, float high) {
        u32 x;
        if (IS_BFLOAT) {
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
        } else {
            asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
        }
        return x;
    }
    static DEVICE float low(u32 x) { return IS_BFLOAT ? __uint_as_float(x << 16) : half_to_float((u16)x); }
    static DEVICE float high(u32 x) { return IS_BFLOAT ? __uint_as_float(x & 0xffff0000u) : half_to_float((u16)(x >> 16)); }
    // Returns the rounding error of two floats.
    static DEVICE u32 rest(u32 x, float low, float high) { return pair(low - Halves::low(x), high - Halves::high(x)); }
    static DEVICE void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        if (IS_BFLOAT) return ::multiply(sums, a, b0, b1);
        multiply_halves(sums, a, b0, b1);
    }
};

// Types that are used in their stored form.
template <class T> struct Stored {
    static const bool AS_IS = false, IS_BFLOAT = false;
};
template <> struct Stored<types::f16x8> {
    static const bool AS_IS = true, IS_BFLOAT = false;
};
template <> struct Stored<types::bf16x8> {
    static const bool AS_IS = true, IS_BFLOAT = true;
};

using KeyHalves = Halves<Stored<Keys>::IS_BFLOAT>;
using ValueHalves = Halves<Stored<Values>::IS_BFLOAT>;

extern __shared__ __align__(16) u16 shared[];
__shared__ u64 masks[TOKENS];
__shared__ int cell_pos[PAGE];

// A page that some tokens of a block see, with masks of the cells that some and every token sees.
struct Seen {
    int entry;
    Page page;
    u64 some, every;
};

// Tokens of a block with the same page table: `first..end` within the block, and the range of their
// positions.
struct Run {
    int first, end, low, high;
};

// Range of queries and keys that a thread block computes.
struct Tile {
    int first_token, n_tokens, head_kv, first_head, n_heads;

    DEVICE Tile(const Params &p) {
        // The first thread blocks compute the tokens with the most predecessors.
        int group = p.q.ne[1] / p.k.ne[1], per_group = (group + HEADS - 1) / HEADS, in_group = blockIdx.y % per_group * HEADS;
        first_token = (gridDim.x - 1 - blockIdx.x) * TOKENS;
        n_tokens = min(TOKENS, p.q.ne[2] - first_token);
        head_kv = blockIdx.y / per_group;
        first_head = head_kv * group + in_group;
        n_heads = min(HEADS, group - in_group);
    }

    // Token within the block, and head of a row. Rows past the end repeat the last row and are not stored.
    DEVICE int token_of(int row) const { return min(row / HEADS, n_tokens - 1); }
    DEVICE int head_of(int row) const { return first_head + min(row % HEADS, n_heads - 1); }
    DEVICE bool has(int row) const { return row / HEADS < n_tokens && row % HEADS < n_heads; }
};

DEVICE Run run_from(const Params &p, const Tile &tile, int first) {
    const Visible &v = p.visible;
    int table = v.table[tile.first_token + first], lane = threadIdx.x % 32;
    Run run = {first, first, 0x7fffffff, -0x7fffffff - 1};
    for (int at = first; at < tile.n_tokens; at += 32) {
        int token = at + lane;
        bool is_same = token < tile.n_tokens && v.table[tile.first_token + token] == table;
        u32 others = ~__ballot_sync(ALL_LANES, is_same);
        int n = others ? __ffs(others) - 1 : 32;
        if (lane < n) {
            int pos = v.pos[tile.first_token + token];
            run.low = min(run.low, pos), run.high = max(run.high, pos);
        }
        run.end = at + n;
        if (n < 32) break;
    }
    run.low = __reduce_min_sync(ALL_LANES, run.low);
    run.high = __reduce_max_sync(ALL_LANES, run.high);
    return run;
}

// Returns the next page at or after `entry` that some token of a run sees. All warps compute the same result.
DEVICE Seen next_page(const Params &p, const Run &run, int entry, int end) {
    Seen seen = {entry};
    for (; seen.entry < end; seen.entry++) {
        seen.page = page_of(p.visible, seen.entry);
        seen.some = seen_of(p, seen.page, run.low, run.high);
        if (seen.some) break;
    }
    seen.every = seen.entry < end ? seen_of(p, seen.page, run.high, run.low) : 0;
    return seen;
}

// Returns true if the rows of the tile see different cells of a page, or the page has missing cells.
DEVICE bool is_partial(const Tile &tile, const Run &run, const Seen &seen) {
    return seen.every != ~0ull || run.first > 0 || run.end < tile.n_tokens;
}

// Stores a mask of the cells that each token sees.
DEVICE void note_masks(const Params &p, const Tile &tile, const Run &run, const Seen &seen) {
    for (int token = threadIdx.x / 32; token < tile.n_tokens; token += WARPS) {
        u64 mask = 0;
        if (token >= run.first && token < run.end) {
            int pos = p.visible.pos[tile.first_token + token];
            mask = seen_of(p, seen.page, pos, pos);
        }
        if (threadIdx.x % 32 == 0) masks[token] = mask;
    }
    for (int i = threadIdx.x; i < PAGE; i += THREADS) cell_pos[i] = seen.some >> i & 1 ? p.visible.cell_pos[seen.page.first + i] : 0;
}

// Starts loading SIZE values of each row of a page's keys or values to shared memory. Cells that no token
// sees are replaced by zeros, whatever they contain.
template <class T, int SIZE> DEVICE void load_rows(const Tensor &t, int head, int part, const Seen &seen, u16 *to) {
    const char *from = t.data + head * t.nb[1] + part * (SIZE / T::QK * T::BYTES);
    const int STRIDE = SIZE + 8;
    if (Stored<T>::AS_IS) {
        const int UNITS = SIZE / 8;
#pragma unroll 4
        for (int i = threadIdx.x; i < PAGE * UNITS; i += THREADS) {
            int cell = i / UNITS, unit = i % UNITS;
            bool is_there = seen.some >> cell & 1;
            const char *row = from + (is_there ? (seen.page.first + cell) * t.nb[2] + 16 * unit : 0);
            copy_ahead(to + cell * STRIDE + 8 * unit, row, is_there);
        }
        return;
    }
    const int CHUNKS = SIZE / T::N;
    for (int i = threadIdx.x; i < PAGE * CHUNKS; i += THREADS) {
        int cell = i / CHUNKS, c = i % CHUNKS;
        float v[T::N] = {};
        if (seen.some >> cell & 1) T::chunk((const u8 *)from + (seen.page.first + cell) * t.nb[2] + c / T::CHUNKS * T::BYTES, c % T::CHUNKS, v);
        u16 *at = to + cell * STRIDE + c / T::CHUNKS * T::QK + chunk_start<T>(c % T::CHUNKS);
        for (int n = 0; n < T::N; n += 2) *(u32 *)(at + n / T::RUN * T::GAP + n % T::RUN) = Halves<false>::pair(v[n], v[(n + 1) % T::N]);
    }
}

// A lane's part of its warp's queries, in registers or, for long queries, in shared memory.
struct Queries {
    u32 high[KEEPS_QUERIES ? K_STEPS : 1][4], low[KEEPS_QUERIES ? K_STEPS : 1][4];
    u16 *stored;
    // Scale factors of the lane's two rows. Queries are stored with a magnitude of at most 2.
    float factors[2];

    DEVICE Queries(const Params &p, const Tile &tile, u16 *stored) : stored(stored) {
        int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
        const char *rows[2];
        float inverse[2];
        for (int r = 0; r < 2; r++) {
            int row = warp_row + lane / 4 + 8 * r;
            rows[r] = p.q.data + tile.head_of(row) * p.q.nb[1] + (tile.first_token + tile.token_of(row)) * p.q.nb[2];
            float largest = 0.0f;
            for (int i = lane % 4; i < DK; i += 4) largest = fmaxf(largest, fabsf(*(const float *)(rows[r] + i * p.q.nb[0])));
            for (int step = 1; step < 4; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, step));
            // Clamps the scale to powers of two that have an inverse.
            u32 exponent = min(max(__float_as_uint(largest) >> 23, 1u), 253u);
            factors[r] = __uint_as_float(exponent << 23);
            inverse[r] = __uint_as_float((254 - exponent) << 23);
        }
#pragma unroll KEEPS_QUERIES ? K_STEPS : 1
        for (int i = 0; i < K_STEPS; i++) {
#pragma unroll
            for (int n = 0; n < 4; n++) {
                int r = n % 2, at = 16 * i + n / 2 * 8 + lane % 4 * 2;
                float x = *(const float *)(rows[r] + at * p.q.nb[0]) * inverse[r], y = *(const float *)(rows[r] + (at + 1) * p.q.nb[0]) * inverse[r];
                u32 rounded = KeyHalves::pair(x, y), rest = KeyHalves::rest(rounded, x, y);
                if (KEEPS_QUERIES) {
                    high[i % K_STEPS][n] = rounded, low[i % K_STEPS][n] = rest;
                } else {
                    u16 *to = stored + (warp_row + lane / 4 + 8 * r) * KEY_STRIDE + at;
                    *(u32 *)to = rounded;
                    *(u32 *)(to + ROWS * KEY_STRIDE) = rest;
                }
            }
        }
    }

    // Returns the queries for a step along the key.
    DEVICE void of_step(int i, u32 (&rounded)[4], u32 (&rest)[4]) const {
        if (KEEPS_QUERIES) {
            for (int n = 0; n < 4; n++) rounded[n] = high[i % K_STEPS][n], rest[n] = low[i % K_STEPS][n];
            return;
        }
        int lane = threadIdx.x % 32;
        const u16 *row = stored + (threadIdx.x / 32 * 16 + lane % 16) * KEY_STRIDE + 16 * i + lane / 16 * 8;
        load_matrices(rounded, row);
        load_matrices(rest, row + ROWS * KEY_STRIDE);
    }
};

// Multiplies a warp's queries with the keys of a page. A lane gets rows `l / 4` and `l / 4 + 8`, and columns
// `8 n + l % 4 * 2` and the next.
DEVICE void multiply_keys(const Queries &queries, const u16 *keys, float (&products)[PAGE / 8][4]) {
    int lane = threadIdx.x % 32;
#pragma unroll KEEPS_QUERIES ? K_STEPS : 1
    for (int i = 0; i < K_STEPS; i++) {
        u32 rounded[4], rest[4];
        queries.of_step(i, rounded, rest);
#pragma unroll
        for (int n = 0; n < PAGE / 16; n++) {
            u32 b[4];
            load_matrices(b, keys + (16 * n + lane / 16 * 8 + lane % 8) * KEY_STRIDE + 16 * i + lane / 8 % 2 * 8);
            for (int half = 0; half < 2; half++) {
                KeyHalves::multiply(products[2 * n + half], rest, b[2 * half], b[2 * half + 1]);
                KeyHalves::multiply(products[2 * n + half], rounded, b[2 * half], b[2 * half + 1]);
            }
        }
    }
}

const float LOG2_E = 1.4426950408889634f;

DEVICE float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// State of a lane's two rows: the maximum score so far (base 2), and the sum of weights over the lane's
// columns.
struct Rows {
    float largest[2] = {-INF, -INF}, weights[2] = {0.0f, 0.0f};
    float sums[2 * V_STEPS][4] = {};

    // Converts scores (base 2) to weights.
    DEVICE void take(float (&scores)[PAGE / 8][4]) {
        float largest_of_page[2] = {-INF, -INF}, shift[2];
#pragma unroll
        for (int i = 0; i < PAGE / 2; i++) largest_of_page[i / 2 % 2] = fmaxf(largest_of_page[i / 2 % 2], scores[i / 4][i % 4]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            for (int step = 1; step < 4; step *= 2) largest_of_page[r] = fmaxf(largest_of_page[r], __shfl_xor_sync(ALL_LANES, largest_of_page[r], step));
            float before = largest[r];
            largest[r] = fmaxf(before, largest_of_page[r]);
            // While a row has seen no cell, all of its weights are 0.
            shift[r] = largest[r] == -INF ? 0.0f : largest[r];
            float factor = power_of_2(before - shift[r]);
            weights[r] *= factor;
            for (int i = 0; i < 2 * V_STEPS; i++) sums[i][2 * r] *= factor, sums[i][2 * r + 1] *= factor;
        }
#pragma unroll
        for (int i = 0; i < PAGE / 2; i++) {
            float &score = scores[i / 4][i % 4];
            score = power_of_2(score - shift[i / 2 % 2]);
            weights[i / 2 % 2] += score;
        }
    }

    // Adds the weighted values of a page.
    DEVICE void add(const u16 *values, const float (&weights)[PAGE / 8][4]) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < CELL_STEPS; i++) {
            u32 a[4], rest[4];
            for (int n = 0; n < 4; n++) {
                float x = weights[2 * i + n / 2][n % 2 * 2], y = weights[2 * i + n / 2][n % 2 * 2 + 1];
                a[n] = ValueHalves::pair(x, y);
                rest[n] = ValueHalves::rest(a[n], x, y);
            }
#pragma unroll
            for (int n = 0; n < V_STEPS; n++) {
                u32 b[4];
                load_transposed(b, values + (16 * i + lane / 8 % 2 * 8 + lane % 8) * VALUE_STRIDE + 16 * n + lane / 16 * 8);
                for (int half = 0; half < 2; half++) {
                    if (Stored<Values>::IS_BFLOAT) ValueHalves::multiply(sums[2 * n + half], rest, b[2 * half], b[2 * half + 1]);
                    ValueHalves::multiply(sums[2 * n + half], a, b[2 * half], b[2 * half + 1]);
                }
            }
        }
    }
};

// Converts dot products to scores (base 2), and masked cells to minus infinity.
DEVICE void score(const Params &p, const Tile &tile, const Queries &queries, bool is_partial, float (&products)[PAGE / 8][4]) {
    int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
    bool is_plain = !BIASES && p.softcap == 0.0f && p.max_bias == 0.0f;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = warp_row + lane / 4 + 8 * r, token = tile.token_of(row);
        float factor = queries.factors[r];
        if (is_plain) {
            factor *= p.scale * LOG2_E;
#pragma unroll
            for (int i = 0; i < PAGE / 4; i++) products[i / 2][2 * r + i % 2] *= factor;
        } else {
            int head = tile.head_of(row), pos = p.visible.pos[tile.first_token + token];
            float slope = slope_of(p, head);
#pragma unroll
            for (int i = 0; i < PAGE / 4; i++) {
                float &x = products[i / 2][2 * r + i % 2];
                x = LOG2_E * score_of(p, x * factor, head, slope, cell_pos[i / 2 * 8 + lane % 4 * 2 + i % 2] - pos);
            }
        }
        if (is_partial) {
            u64 mask = masks[token] >> lane % 4 * 2;
#pragma unroll
            for (int i = 0; i < PAGE / 4; i++) {
                if (!(mask >> (i / 2 * 8 + i % 2) & 1)) products[i / 2][2 * r + i % 2] = -INF;
            }
        }
    }
}

// Stores a warp's results.
DEVICE void store(const Params &p, const Tile &tile, Rows &rows) {
    int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = warp_row + lane / 4 + 8 * r, head = tile.head_of(row);
        float weights = rows.weights[r], factor = 1.0f;
        for (int step = 1; step < 4; step *= 2) weights += __shfl_xor_sync(ALL_LANES, weights, step);
#if SINKS
        float sink = LOG2_E * *(const float *)(p.sinks.data + head * p.sinks.nb[0]), largest = fmaxf(rows.largest[r], sink);
        factor = power_of_2(rows.largest[r] - largest);
        weights = weights * factor + power_of_2(sink - largest);
#endif
        factor = weights == 0.0f ? 0.0f : factor / weights;
        char *to = p.y.data + head * p.y.nb[1] + (tile.first_token + tile.token_of(row)) * p.y.nb[2];
        if (!tile.has(row)) continue;
#pragma unroll
        for (int i = 0; i < 2 * V_STEPS; i++) {
            float2 pair = make_float2(rows.sums[i][2 * r] * factor, rows.sums[i][2 * r + 1] * factor);
            *(float2 *)(to + 4 * (blockIdx.z * N_VALUES + 8 * i + lane % 4 * 2)) = pair;
        }
    }
}

// Grid: tokens in groups of TOKENS; KV heads times the number of blocks per group of query heads; parts of
// values.
extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_tiles(const __grid_constant__ Params p) {
    Tile tile(p);
    u16 *keys = shared, *values = keys + PAGE * KEY_STRIDE;
    Queries queries(p, tile, values + PAGE * VALUE_STRIDE);
    Rows rows;
    for (int first = 0; first < tile.n_tokens;) {
        Run run = run_from(p, tile, first);
        int2 entries = entries_of(p.visible, tile.first_token + first);
        Seen seen = next_page(p, run, entries.x, entries.y);
        if (seen.entry < entries.y) load_rows<Keys, DK>(p.k, tile.head_kv, 0, seen, keys);
        while (seen.entry < entries.y) {
            note_masks(p, tile, run, seen);
            wait_for_copies();
            __syncthreads();
            load_rows<Values, N_VALUES>(p.v, tile.head_kv, blockIdx.z, seen, values);
            float scores[PAGE / 8][4] = {};
            multiply_keys(queries, keys, scores);
            score(p, tile, queries, is_partial(tile, run, seen), scores);
            rows.take(scores);
            Seen next = next_page(p, run, seen.entry + 1, entries.y);
            wait_for_copies();
            __syncthreads();
            if (next.entry < entries.y) load_rows<Keys, DK>(p.k, tile.head_kv, 0, next, keys);
            rows.add(values, scores);
            seen = next;
        }
        first = run.end;
    }
    store(p, tile, rows);
}

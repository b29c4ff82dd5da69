// Attention of many tokens on tensor cores: tiles of 64 queries by the 64 cells of a page, with online
// softmax.
//
// A block has 64 rows: tokens times HEADS query heads of one KV head, 16 rows per warp. With long bf16 keys, a block
// has 32 rows, and long values are divided into PARTS, one block each. Long keys are loaded in KEY_PARTS. Keys and
// values are 16-bit floats in shared memory: bf16 if the cache is bf16, otherwise f16. Queries and weights are one f16
// value, or two bf16 values. The sums of a row are added in the order of its page table.
//
// K, V: types of keys and values. DK, DV: their sizes. HEADS: query heads per block. PARTS, KEY_PARTS: parts of values
// and keys.
// BIASES, SINKS: true if the corresponding operand exists.
#define SELECTS 0
#include "attention.cuh"
#include "halves.cuh"

using Keys = types::K;
using Values = types::V;

// Elements per part of keys and values.
const int N_KEYS = DK / KEY_PARTS, N_VALUES = DV / PARTS;
const int QUERY_STRIDE = DK + 8, KEY_STRIDE = N_KEYS + 8, VALUE_STRIDE = N_VALUES + 8;
// Steps of 16 along the query, a part of the key, the cells, and the results.
const int Q_STEPS = DK / 16, K_STEPS = N_KEYS / 16, CELL_STEPS = PAGE / 16, V_STEPS = N_VALUES / 16;

using KeyHalves = HalvesOf<Keys>;
using ValueHalves = HalvesOf<Values>;

// True if queries, or weights, are stored as the sum of two numbers.
const bool SPLITS_QUERIES = KeyHalves::IS_BF16, SPLITS_WEIGHTS = ValueHalves::IS_BF16;
// Long queries do not fit in registers along with the sums.
const bool KEEPS_QUERIES = DK <= (SPLITS_QUERIES ? 128 : 192);
const int WARPS = KEEPS_QUERIES || !SPLITS_QUERIES && DK <= 256 ? 4 : 2, THREADS = 32 * WARPS, ROWS = 16 * WARPS, TOKENS = ROWS / HEADS;

extern __shared__ __align__(16) u16 shared[];
__shared__ u64 masks[TOKENS];
__shared__ int cell_pos[PAGE];

// A page with cells that are visible to some tokens of a block, and the mask of these cells.
struct Seen {
    Page page;
    u64 some;
    // True if all cells of the page are visible to all tokens.
    bool is_whole;
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
    run.low = lowest_of_warp(run.low);
    run.high = highest_of_warp(run.high);
    return run;
}

// Pages whose visibility the warps of a block have computed: two batches of one page per warp.
__shared__ Seen looked_at[2][WARPS];

// Cells of a page that a lane tests.
struct TwoCells {
    int cell[2], pos[2];
    bool is_listed[2];

    DEVICE TwoCells(const Params &p, const Page &page) {
        for (int half = 0; half < 2; half++) {
            int i = 32 * half + threadIdx.x % 32;
            pos[half] = 0;
            cell[half] = page.first + i;
            is_listed[half] = lists(p.visible, page, i, pos[half]);
        }
    }

    // Returns a mask of the cells that are visible to some query with a position in `low..=high`; see `key_range`.
    DEVICE u64 seen(const Params &p, int low, int high) const {
        KeyRange keys = key_range(p, low, high);
        u32 halves[2];
        for (int half = 0; half < 2; half++) {
            halves[half] = __ballot_sync(ALL_LANES, is_listed[half] && sees(p, keys, cell[half], pos[half]));
        }
        return halves[0] | (u64)halves[1] << 32;
    }
};

// The pages of a run with cells visible to some token, in order. All warps get the same pages.
struct Pages {
    int start, end, entry, n_batches = 0;

    DEVICE Pages(int2 entries) : start(entries.x), end(entries.y), entry(entries.x - 1) {}

    // Computes the visibility of the next batch of pages, one page per warp.
    DEVICE void look(const Params &p, const Run &run) {
        int warp = threadIdx.x / 32, mine = start + n_batches * WARPS + warp;
        if (mine < end) {
            Page page = page_of(p.visible, mine);
            TwoCells cells(p, page);
            Seen seen = {page, cells.seen(p, run.low, run.high), cells.seen(p, run.high, run.low) == ~0ull};
            if (threadIdx.x % 32 == 0) looked_at[n_batches % 2][warp] = seen;
        }
        n_batches++;
    }

    // Computes the visibility of the next batch of pages, unless another warp has done so. Must be called after a
    // barrier that follows the selection of the current page.
    DEVICE void look_ahead(const Params &p, const Run &run) {
        if ((entry - start) / WARPS + 1 < n_batches || start + n_batches * WARPS >= end) return;
        look(p, run);
        __syncthreads();
    }

    // Returns the next page, or null at the end. The page is valid until `look_ahead` is called for the page after it.
    DEVICE const Seen *next(const Params &p, const Run &run) {
        for (entry++; entry < end; entry++) {
            int i = entry - start;
            if (i / WARPS == n_batches) {
                __syncthreads();
                look(p, run);
                __syncthreads();
            }
            const Seen *seen = &looked_at[i / WARPS % 2][i % WARPS];
            if (seen->some) return seen;
        }
        return nullptr;
    }
};

// Returns true if the rows of the tile see different cells of a page, or the page has missing cells.
DEVICE bool is_partial(const Tile &tile, const Run &run, const Seen &seen) {
    return !seen.is_whole || run.first > 0 || run.end < tile.n_tokens;
}

// Stores a mask of the cells that each token sees, and the positions of the cells.
DEVICE void note_masks(const Params &p, const Tile &tile, const Run &run, const Seen &seen) {
    TwoCells cells(p, seen.page);
    for (int token = threadIdx.x / 32; token < tile.n_tokens; token += WARPS) {
        u64 mask = 0;
        if (token >= run.first && token < run.end) {
            int pos = p.visible.pos[tile.first_token + token];
            mask = cells.seen(p, pos, pos);
        }
        if (threadIdx.x % 32 == 0) masks[token] = mask;
    }
    if (threadIdx.x >= 32) return;
    for (int half = 0; half < 2; half++) cell_pos[32 * half + threadIdx.x] = cells.pos[half];
}

// Largest power of two that divides `n`.
__device__ constexpr int power_in(int n) {
    return n & -n;
}

// Starts to load SIZE values of each row of a page's keys or values to shared memory. Cells that no token sees become
// zeros, regardless of their content.
template <class T, int SIZE> DEVICE void load_rows(const Tensor &t, int head, int part, const Seen &seen, u16 *to) {
    const char *from = t.data + head * t.nb[1] + part * (SIZE / T::QK * T::BYTES);
    const int STRIDE = SIZE + 8;
    if (IS_HALVES<T>) {
        // Each thread copies the same units of 16 bytes of every ROWS_AT_ONCEth row.
        const int UNITS = SIZE / 8, WIDTH = power_in(UNITS) < 32 ? power_in(UNITS) : 32, ROWS_AT_ONCE = THREADS / WIDTH;
        int cell = threadIdx.x / WIDTH, unit = threadIdx.x % WIDTH;
        const char *row = from + (seen.page.first + cell) * t.nb[2] + 16 * unit;
        i64 stride = ROWS_AT_ONCE * t.nb[2];
        to += cell * STRIDE + 8 * unit;
        u64 some = seen.some >> cell;
        u32 halves[2] = {(u32)some, (u32)(some >> 32)};
#pragma unroll
        for (int i = 0; i < PAGE / ROWS_AT_ONCE; i++, row += stride) {
            bool is_seen = halves[i * ROWS_AT_ONCE / 32] >> i * ROWS_AT_ONCE % 32 & 1;
#pragma unroll
            for (int j = 0; j < UNITS; j += WIDTH) copy_ahead(to + i * ROWS_AT_ONCE * STRIDE + 8 * j, row + 16 * j, is_seen);
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
    u32 high[KEEPS_QUERIES ? Q_STEPS : 1][4], low[KEEPS_QUERIES && SPLITS_QUERIES ? Q_STEPS : 1][4];
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
#pragma unroll KEEPS_QUERIES ? Q_STEPS : 1
        for (int i = 0; i < Q_STEPS; i++) {
#pragma unroll
            for (int n = 0; n < 4; n++) {
                int r = n % 2, at = 16 * i + n / 2 * 8 + lane % 4 * 2;
                float x = *(const float *)(rows[r] + at * p.q.nb[0]) * inverse[r], y = *(const float *)(rows[r] + (at + 1) * p.q.nb[0]) * inverse[r];
                u32 rounded = KeyHalves::pair(x, y), rest = KeyHalves::rest(rounded, x, y);
                if (KEEPS_QUERIES) {
                    high[i % Q_STEPS][n] = rounded;
                    if (SPLITS_QUERIES) low[i % Q_STEPS][n] = rest;
                } else {
                    u16 *to = stored + (warp_row + lane / 4 + 8 * r) * QUERY_STRIDE + at;
                    *(u32 *)to = rounded;
                    if (SPLITS_QUERIES) *(u32 *)(to + ROWS * QUERY_STRIDE) = rest;
                }
            }
        }
    }

    // Returns the queries for a step along the key.
    DEVICE void of_step(int i, u32 (&rounded)[4], u32 (&rest)[4]) const {
        if (KEEPS_QUERIES) {
            for (int n = 0; n < 4; n++) {
                rounded[n] = high[i % Q_STEPS][n];
                if (SPLITS_QUERIES) rest[n] = low[i % Q_STEPS][n];
            }
            return;
        }
        int lane = threadIdx.x % 32;
        const u16 *row = stored + (threadIdx.x / 32 * 16 + lane % 16) * QUERY_STRIDE + 16 * i + lane / 16 * 8;
        load_matrices(rounded, row);
        if (SPLITS_QUERIES) load_matrices(rest, row + ROWS * QUERY_STRIDE);
    }
};

// Adds the products of a warp's queries with a part of the keys of a page. A lane gets rows `l / 4` and `l / 4 + 8`,
// and columns `8 n + l % 4 * 2` and the next.
DEVICE void multiply_keys(const Queries &queries, int part, const u16 *keys, float (&products)[PAGE / 8][4]) {
    int lane = threadIdx.x % 32;
#pragma unroll KEEPS_QUERIES ? K_STEPS : 1
    for (int i = 0; i < K_STEPS; i++) {
        u32 rounded[4], rest[4];
        queries.of_step(part * K_STEPS + i, rounded, rest);
#pragma unroll
        for (int n = 0; n < PAGE / 16; n++) {
            u32 b[4];
            load_matrices(b, keys + (16 * n + lane / 16 * 8 + lane % 8) * KEY_STRIDE + 16 * i + lane / 8 % 2 * 8);
            for (int half = 0; half < 2; half++) {
                if (SPLITS_QUERIES) KeyHalves::multiply(products[2 * n + half], rest, b[2 * half], b[2 * half + 1]);
                KeyHalves::multiply(products[2 * n + half], rounded, b[2 * half], b[2 * half + 1]);
            }
        }
    }
}

// Smallest normal float.
const float LEAST = 1.17549435e-38f;

// State of a lane's two rows: the maximum score so far (base 2), and the sum of weights over the lane's
// columns.
struct Rows {
    float largest[2] = {-INF, -INF}, weights[2] = {0.0f, 0.0f};
    float sums[2 * V_STEPS][4] = {};

    // Converts scores to weights. The scores (base 2) are the products of `scores` and the factors of the rows, which
    // are positive.
    DEVICE void take(float (&scores)[PAGE / 8][4], const float (&factors)[2]) {
        float largest_of_page[2] = {-INF, -INF}, shift[2], fade[2];
#pragma unroll
        for (int i = 0; i < PAGE / 2; i++) largest_of_page[i / 2 % 2] = fmaxf(largest_of_page[i / 2 % 2], scores[i / 4][i % 4]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            for (int step = 1; step < 4; step *= 2) largest_of_page[r] = fmaxf(largest_of_page[r], __shfl_xor_sync(ALL_LANES, largest_of_page[r], step));
            float before = largest[r];
            largest[r] = fmaxf(before, largest_of_page[r] * factors[r]);
            // While a row has seen no cell, all of its weights are 0.
            shift[r] = largest[r] == -INF ? 0.0f : largest[r];
            fade[r] = power_of_2(before - shift[r]);
            weights[r] *= fade[r];
        }
        if (__any_sync(ALL_LANES, fade[0] != 1.0f || fade[1] != 1.0f)) {
#pragma unroll
            for (int i = 0; i < 2 * V_STEPS; i++) {
                for (int n = 0; n < 4; n++) sums[i][n] *= fade[n / 2];
            }
        }
#pragma unroll
        for (int i = 0; i < PAGE / 2; i++) {
            float &score = scores[i / 4][i % 4];
            score = power_of_2(fmaf(score, factors[i / 2 % 2], -shift[i / 2 % 2]));
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
                    if (SPLITS_WEIGHTS) ValueHalves::multiply(sums[2 * n + half], rest, b[2 * half], b[2 * half + 1]);
                    ValueHalves::multiply(sums[2 * n + half], a, b[2 * half], b[2 * half + 1]);
                }
            }
        }
    }
};

// Returns true if scores are multiples of the dot products.
DEVICE bool is_plain(const Params &p) {
    return !BIASES && p.softcap == 0.0f && p.max_bias == 0.0f && p.scale > 0.0f;
}

// Converts dot products to scores, except for the factors of the rows (see `Rows::take`), and masked cells to minus
// infinity.
DEVICE void score(const Params &p, const Tile &tile, const Queries &queries, bool is_partial, float (&products)[PAGE / 8][4], float (&factors)[2]) {
    int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = warp_row + lane / 4 + 8 * r, token = tile.token_of(row);
        if (is_plain(p)) {
            // A factor of 0 times minus infinity would be NaN.
            factors[r] = fmaxf(queries.factors[r] * (p.scale * LOG2_E), LEAST);
        } else {
            factors[r] = 1.0f;
            int head = tile.head_of(row), pos = p.visible.pos[tile.first_token + token];
            float slope = slope_of(p, head);
#pragma unroll
            for (int i = 0; i < PAGE / 4; i++) {
                float &x = products[i / 2][2 * r + i % 2];
                x = LOG2_E * score_of(p, x * queries.factors[r], head, slope, cell_pos[i / 2 * 8 + lane % 4 * 2 + i % 2] - pos);
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
    wait_for_previous_kernels();
    Tile tile(p);
    // Parts of keys alternate between two buffers.
    u16 *keys = shared, *values = keys + min(KEY_PARTS, 2) * PAGE * KEY_STRIDE;
    Queries queries(p, tile, values + PAGE * VALUE_STRIDE);
    Rows rows;
    for (int first = 0; first < tile.n_tokens;) {
        Run run = run_from(p, tile, first);
        int2 entries = entries_of(p.visible, tile.first_token + first);
        Pages pages(entries);
        const Seen *seen = pages.next(p, run);
        if (seen) load_rows<Keys, N_KEYS>(p.k, tile.head_kv, 0, *seen, keys);
        while (seen) {
            bool has_masks = is_partial(tile, run, *seen);
            if (has_masks || !is_plain(p)) note_masks(p, tile, run, *seen);
            float scores[PAGE / 8][4] = {}, factors[2];
#pragma unroll 1
            for (int part = 0; part < KEY_PARTS; part++) {
                wait_for_copies();
                __syncthreads();
                u16 *next_keys = keys + (part + 1) % 2 * PAGE * KEY_STRIDE;
                if (part + 1 < KEY_PARTS) load_rows<Keys, N_KEYS>(p.k, tile.head_kv, part + 1, *seen, next_keys);
                if (part + 1 == KEY_PARTS) load_rows<Values, N_VALUES>(p.v, tile.head_kv, blockIdx.z, *seen, values);
                multiply_keys(queries, part, keys + part % 2 * PAGE * KEY_STRIDE, scores);
            }
            score(p, tile, queries, has_masks, scores, factors);
            rows.take(scores, factors);
            pages.look_ahead(p, run);
            const Seen *next = pages.next(p, run);
            wait_for_copies();
            __syncthreads();
            if (next) load_rows<Keys, N_KEYS>(p.k, tile.head_kv, 0, *next, keys);
            rows.add(values, scores);
            seen = next;
        }
        first = run.end;
    }
    store(p, tile, rows);
}

// Attention of few tokens on tensor cores, with online softmax over the cells in a token's page table.
//
// A block computes a token with HEADS query heads of one KV head. Keys and values arrive in shared memory in
// tiles of TILE cells, STAGES - 1 tiles ahead of their use. Each warp has 8 heads and a share of a tile's cells.
// Rows 0 to 7 of its matrices are the heads' queries or weights, rounded to 16 bits, and rows 8 to 15 are their
// rounding errors. Both thus have nearly the precision of f32. Keys and values are multiplied as 16-bit floats: bf16
// if the cache is bf16, otherwise f16. Packed rows stay quantized in shared memory, and each warp converts its cells.
// The sums of warps and of blocks are added in order. Results thus depend only on the page table and on the number of
// blocks per token.
//
// Queries must be aligned pairs of floats.
//
// K, V: types of keys and values. DK, DV: their sizes, multiples of 16. K_UNIT, V_UNIT: bytes per copy of packed
// rows, or 0. V_IN_K: values are the first elements of the keys, which are loaded once. HEADS: query heads per block.
// TILE: cells per tile. STAGES: tiles in shared memory. PARTS: parts of values, one block each, or with V_IN_K, one
// warp each. BIASES, SINKS: true if the corresponding operand exists. SPLIT: several blocks per token. ROUNDS:
// results are also quantized for matmuls.
#define SELECTS 0
#include "blocks.cuh"
#include "halves.cuh"
#include "packed.cuh"
#include "partials.cuh"

using Keys = types::K;
using Values = types::V;
using KeyHalves = HalvesOf<Keys>;
using ValueHalves = HalvesOf<Values>;

// Heads per warp, and warps with different heads.
const int HEADS_OF_WARP = 8, GROUPS = (HEADS + HEADS_OF_WARP - 1) / HEADS_OF_WARP;
// Warps with different values, and blocks with different values.
const int WARP_PARTS = V_IN_K ? PARTS : 1, BLOCK_PARTS = PARTS / WARP_PARTS;
// Warps with different cells of a tile. Each warp takes multiples of 16 cells.
const int MAX_SHARES = 4 / (GROUPS * WARP_PARTS), SHARES = TILE / 16 >= MAX_SHARES ? MAX_SHARES : TILE / 16;
const int WARPS = GROUPS * SHARES * WARP_PARTS, THREADS = 32 * WARPS;
const int CELLS = TILE / SHARES;
// Value elements per part.
const int N_VALUES = DV / PARTS, VALUES_OF_BLOCK = N_VALUES * WARP_PARTS;
using KeyRows = Rows<Keys, DK, K_UNIT>;
using ValueRows = Rows<Values, N_VALUES, V_UNIT>;
// Bytes of a stage, and distance between the values of adjacent cells.
const int STAGE = TILE * (KeyRows::STRIDE + (V_IN_K ? 0 : ValueRows::STRIDE));
const int VALUE_STRIDE = V_IN_K ? KeyRows::STRIDE : ValueRows::STRIDE;
// Steps of 16 along the key and the results.
const int K_STEPS = DK / 16, V_STEPS = N_VALUES / 16;
// Long queries do not fit in registers along with the sums.
const bool KEEPS_QUERIES = DK <= 128;
// Parts of keys, one for each of the warps with different values.
const int KEY_PARTS = (KeyRows::IS_PACKED || K_STEPS % WARP_PARTS == 0) && !KEEPS_QUERIES ? WARP_PARTS : 1;

// Stages, long queries, and products of parts of keys.
extern __shared__ __align__(16) u8 stages[];
const int QUERIES = KEEPS_QUERIES ? 0 : GROUPS * 32 * K_STEPS * 16;
__shared__ Listed listed;

// The heads, the values, and the cells of a warp.
struct Place {
    int group, part, share;

    DEVICE Place() {
        int warp = threadIdx.x / 32;
        share = warp % SHARES, part = warp / SHARES % WARP_PARTS, group = warp / SHARES / WARP_PARTS;
    }
};

// A lane's pairs of a query in global memory: every fourth pair, or two of every eight pairs for packed keys. Short
// queries are loaded in one step.
struct Pairs {
    const float2 *from;

    DEVICE Pairs(const float *row) : from((const float2 *)row + threadIdx.x % 4 * (KeyRows::IS_PACKED ? 2 : 1)) {}
    DEVICE float2 operator[](int i) const { return from[KeyRows::IS_PACKED ? i / 2 * 8 + i % 2 : 4 * i]; }
};

struct LoadedPairs {
    float2 pairs[2 * K_STEPS];

    DEVICE LoadedPairs(const float *row) {
#pragma unroll
        for (int i = 0; i < 2 * K_STEPS; i++) pairs[i] = Pairs(row)[i];
    }
    DEVICE float2 operator[](int i) const { return pairs[i]; }
};

// Selects the first type if `FIRST` is true, otherwise the second.
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

    // `pairs` are the pairs of the lane. The warps with the same heads share the steps of long queries, which can be
    // used after the next barrier of the block. `warp` is the number of this warp among them.
    template <class Pairs> DEVICE Queries(const Pairs &pairs, uint4 *stored, int warp) : stored(stored) {
        int lane = threadIdx.x % 32;
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * K_STEPS; i++) largest = fmaxf(largest, fmaxf(fabsf(pairs[i].x), fabsf(pairs[i].y)));
        for (int step = 1; step < 4; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, step));
        // Clamps the scale to powers of two that have an inverse.
        u32 exponent = min(max(__float_as_uint(largest) >> 23, 1u), 253u);
        scale = __uint_as_float(exponent << 23);
        float inverse = __uint_as_float((254 - exponent) << 23);
        // Several steps of long queries are loaded together.
#pragma unroll KEEPS_QUERIES ? K_STEPS : 6
        for (int i = KEEPS_QUERIES ? 0 : warp; i < K_STEPS; i += KEEPS_QUERIES ? 1 : WARPS / GROUPS) {
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
            } else {
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

// A tile with visible cells: the index of its page in the list, its first cell within the page, and a mask of the
// visible cells.
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

// Starts to load units FIRST to FIRST + LEFT - 1 of the rows of a tile. Each step loads a power of two of units per
// row, so that threads need no division.
template <class Layout, int FIRST, int LEFT> DEVICE void copy_rows(const char *from, i64 stride, u64 seen, u8 *to) {
    const int UNITS = power_of_two_below(LEFT < THREADS ? LEFT : THREADS), STEP = THREADS / UNITS, UNIT = Layout::UNIT;
    int first = threadIdx.x / UNITS, at = (FIRST + threadIdx.x % UNITS) * UNIT;
    const char *row = from + first * stride + at;
    u8 *place = to + first * Layout::STRIDE + at;
#pragma unroll
    for (int i = 0; i < TILE; i += STEP, row += STEP * stride) {
        if (STEP <= TILE || first < TILE) copy_unit<UNIT>(place + i * Layout::STRIDE, row, seen >> (first + i) & 1);
    }
    if constexpr (LEFT > UNITS) copy_rows<Layout, FIRST + UNITS, LEFT - UNITS>(from, stride, seen, to);
}

// Starts to load the rows of a tile to shared memory. Cells that the token does not see are replaced by zeros,
// regardless of their content.
template <class T, class Layout> DEVICE void load_rows(const char *from, i64 stride, u64 seen, u8 *to) {
    if constexpr (Layout::IS_PACKED || IS_HALVES<T>) {
        copy_rows<Layout, 0, Layout::BYTES / Layout::UNIT>(from, stride, seen, to);
    } else {
        const int CHUNKS = Layout::SIZE / T::N;
#pragma unroll 4
        for (int i = threadIdx.x; i < TILE * CHUNKS; i += THREADS) {
            int cell = i / CHUNKS, c = i % CHUNKS;
            const char *row = from + cell * stride + c / T::CHUNKS * T::BYTES;
            u16 *at = (u16 *)(to + cell * Layout::STRIDE) + c / T::CHUNKS * T::QK + chunk_start<T>(c % T::CHUNKS);
            float v[T::N] = {};
            if (seen >> cell & 1) T::chunk((const u8 *)row, c % T::CHUNKS, v);
            store_chunk<T>(at, v);
        }
    }
}

// The heads and values of a block.
struct Block {
    int token, head_kv, first_head, n_heads, part;

    DEVICE Block(const Params &p) {
        int group = p.q.ne[1] / p.k.ne[1], per_group = (group + HEADS - 1) / HEADS, y = blockIdx.y / BLOCK_PARTS;
        int in_group = y % per_group * HEADS;
        token = blockIdx.x, part = blockIdx.y % BLOCK_PARTS;
        head_kv = y / per_group;
        first_head = head_kv * group + in_group;
        n_heads = min(HEADS, group - in_group);
    }

    DEVICE void load(const Params &p, const At &at, u8 *keys) const {
        i64 cell = listed.first[at.entry] + at.first;
        const char *k = p.k.data + head_kv * p.k.nb[1] + cell * p.k.nb[2];
        load_rows<Keys, KeyRows>(k, p.k.nb[2], at.seen, keys);
        if (V_IN_K) return;
        const char *v = p.v.data + head_kv * p.v.nb[1] + cell * p.v.nb[2] + part * (N_VALUES / Values::QK * Values::BYTES);
        load_rows<Values, ValueRows>(v, p.v.nb[2], at.seen, keys + TILE * KeyRows::STRIDE);
    }
};

// State of the lane's head: the running maximum score (base 2), the sum of weights of the lane's cells, and two
// weighted values for each number.
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

// Adds the products of the warp's queries with 16 keys of a packed type to two sums each.
template <class T> DEVICE void multiply_packed_keys(const Queries &queries, int part, const u8 *keys, float (&sums)[2][2][4]) {
    using Row = PackedRow<T>;
    const int PAIRS = DK / 64;
    int lane = threadIdx.x % 32, end = PAIRS * (part + 1) / KEY_PARTS * 2;
#pragma unroll KEEPS_QUERIES ? PAIRS : 1
    for (int first = PAIRS * part / KEY_PARTS * 2; first < end; first += 2) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            int block = first + n / 4, step = n / 2 % 2, half = n % 2;
            Row row(keys + (half * 8 + lane / 4) * KeyRows::STRIDE);
            u32 a[4], bytes = row.quad(block, n / 4, 4 * step + lane % 4), scales = row.scale(block) * 0x10001;
            queries.of_step(2 * block + step, a);
            u32 low = Row::scaled(halves::bytes<0, 1>(bytes), scales), high = Row::scaled(halves::bytes<2, 3>(bytes), scales);
            KeyHalves::multiply(sums[step][half], a, low, high);
        }
    }
}

// Multiplies a part of the warp's queries with a part of 16 keys. The lane gets the products of its head with keys
// `k`, `k + 1`, `k + 8`, and `k + 9`, where `k = lane % 4 * 2`.
DEVICE void multiply_keys(const Queries &queries, int part, const u8 *keys, float *products) {
    int lane = threadIdx.x % 32;
    // Two sums each shorten the chains of dependent multiplications.
    float sums[2][2][4] = {};
    if constexpr (KeyRows::IS_PACKED) {
        multiply_packed_keys<Keys>(queries, part, keys, sums);
    } else {
        const int STEPS = K_STEPS / KEY_PARTS;
        const u16 *rows = (const u16 *)(keys + (lane / 16 * 8 + lane % 8) * KeyRows::STRIDE) + lane / 8 % 2 * 8;
        auto multiply = [&](int step, float(&to)[2][4]) {
            u32 a[4], b[4];
            queries.of_step(step, a);
            load_matrices(b, rows + 16 * step);
            for (int half = 0; half < 2; half++) KeyHalves::multiply(to[half], a, b[2 * half], b[2 * half + 1]);
        };
#pragma unroll KEEPS_QUERIES ? K_STEPS : 2
        for (int i = part * STEPS; i + 1 < (part + 1) * STEPS; i += 2) multiply(i, sums[0]), multiply(i + 1, sums[1]);
        if (STEPS % 2) multiply((part + 1) * STEPS - 1, sums[0]);
    }
    for (int i = 0; i < 4; i++) {
        products[i] = (sums[0][i / 2][i % 2] + sums[1][i / 2][i % 2]) + (sums[0][i / 2][i % 2 + 2] + sums[1][i / 2][i % 2 + 2]);
    }
}

// Adds the products of all parts of keys, which different warps have computed. All warps of the block take part.
template <int N> DEVICE void add_parts(const Place &place, float (&products)[N]) {
    float *all = (float *)(stages + STAGES * STAGE + QUERIES) + threadIdx.x % 32;
    for (int i = 0; i < N; i++) all[(threadIdx.x / 32 * N + i) * 32] = products[i];
    __syncthreads();
    for (int i = 0; i < N; i++) {
        products[i] = 0.0f;
        for (int part = 0; part < WARP_PARTS; part++) products[i] += all[(((place.group * WARP_PARTS + part) * SHARES + place.share) * N + i) * 32];
    }
}

// Adds 16 values of a packed type with the weights of a fragment. Column `c` of fragment `n` of a block is its value
// `4 * c + n`.
template <class T> DEVICE void add_packed_values(Sums &sums, const u8 *values, const u32 (&weights)[4]) {
    using Row = PackedRow<T>;
    int lane = threadIdx.x % 32;
    values += lane % 4 * 2 * VALUE_STRIDE;
#pragma unroll
    for (int block = 0; block < N_VALUES / 32; block++) {
        // Pairs of values and their scales: two cells of each half of the 16.
        u32 pairs[2][2], scales[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            Row row(values + half * 8 * VALUE_STRIDE), next(values + (half * 8 + 1) * VALUE_STRIDE);
            u32 x = row.quad(block, block % 2, lane / 4), y = next.quad(block, block % 2, lane / 4);
            pairs[0][half] = __byte_perm(x, y, 0x5140), pairs[1][half] = __byte_perm(x, y, 0x7362);
            scales[half] = row.scale(block) | next.scale(block) << 16;
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            u32 b[2];
            for (int half = 0; half < 2; half++) {
                u32 pair = pairs[n / 2][half];
                b[half] = Row::scaled(n % 2 ? halves::bytes<2, 3>(pair) : halves::bytes<0, 1>(pair), scales[half]);
            }
            ValueHalves::multiply(sums.values[4 * block + n], weights, b[0], b[1]);
        }
    }
}

// Adds 16 weighted values.
DEVICE void add_values(Sums &sums, const u8 *values, const float *weights) {
    int lane = threadIdx.x % 32;
    u32 a[4];
    for (int half = 0; half < 2; half++) {
        a[2 * half] = ValueHalves::pair(weights[2 * half], weights[2 * half + 1]);
        a[2 * half + 1] = ValueHalves::rest(a[2 * half], weights[2 * half], weights[2 * half + 1]);
    }
    if constexpr (ValueRows::IS_PACKED) {
        add_packed_values<Values>(sums, values, a);
    } else {
#pragma unroll
        for (int n = 0; n < V_STEPS; n++) {
            u32 b[4];
            load_transposed(b, (const u16 *)(values + (lane / 8 % 2 * 8 + lane % 8) * VALUE_STRIDE) + 16 * n + lane / 16 * 8);
            for (int half = 0; half < 2; half++) ValueHalves::multiply(sums.values[2 * n + half], a, b[2 * half], b[2 * half + 1]);
        }
    }
}

// Returns the index of a lane's first value in fragment `i` of the sums. Writes the distance to the second value to
// `step`.
DEVICE int value_of(int i, int &step) {
    int lane = threadIdx.x % 32;
    step = ValueRows::IS_PACKED ? 4 : 1;
    return ValueRows::IS_PACKED ? i / 4 * 32 + i % 4 + lane % 4 * 8 : 8 * i + lane % 4 * 2;
}

// Adds the cells of a tile that belong to the warp. `tile` is the tile in shared memory.
DEVICE void add_tile(const Params &p, const Place &place, const Queries &queries, const At &at, int head, float slope, int q_pos, const u8 *tile, Sums &sums) {
    int share = place.share, lane = threadIdx.x % 32;
    u64 seen = at.seen >> share * CELLS;
    bool sees_some = CELLS == 64 || (seen & (1ull << CELLS % 64) - 1);
    const u8 *keys = tile + share * CELLS * KeyRows::STRIDE;
    const u8 *values = (V_IN_K ? tile + place.part * ValueRows::BYTES : tile + TILE * KeyRows::STRIDE) + share * CELLS * VALUE_STRIDE;
    float scores[CELLS / 4] = {};
    if (sees_some) {
#pragma unroll
        for (int i = 0; i < CELLS / 16; i++) multiply_keys(queries, KEY_PARTS == 1 ? 0 : place.part, keys + 16 * i * KeyRows::STRIDE, scores + 4 * i);
    }
    if (KEY_PARTS > 1) add_parts(place, scores);
    if (!sees_some) return;
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
DEVICE void store_sums(const Sums &sums, const Place &place, Partials<SHARES, HEADS, VALUES_OF_BLOCK> &partials) {
    int lane = threadIdx.x % 32, share = place.share, head = place.group * HEADS_OF_WARP + lane / 4;
    float weights = sums.weights;
    for (int step = 1; step < 4; step *= 2) weights += __shfl_xor_sync(ALL_LANES, weights, step);
    __syncthreads();
    if (head < HEADS) {
#pragma unroll
        for (int i = 0; i < 2 * V_STEPS; i++) {
            int step, first = value_of(i, step);
            for (int n = 0; n < 2; n++) partials.values[share][head][spread(place.part * N_VALUES + first + n * step)] = sums.values[i][n] + sums.values[i][n + 2];
        }
        if (lane % 4 == 0 && place.part == 0) {
            partials.largest[share][head] = sums.largest * LN_2;
            partials.weights[share][head] = weights;
        }
    }
    __syncthreads();
}

// Blocks per multiprocessor for the register limit. Without the limit, the assembler uses a few registers too many for
// three blocks. With the limit, other kernels would spill.
const int BLOCKS_AT_ONCE = KEEPS_QUERIES && GROUPS == 1 && N_VALUES <= 128 && IS_HALVES<Keys> && IS_HALVES<Values> ? 3 : 1;

// Grid: tokens; KV heads times the number of blocks per group of query heads times blocks with different values;
// blocks that share a token.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) attention_pages(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    Block block(p);
    Place place;
    int head = block.first_head + min(place.group * HEADS_OF_WARP + (int)threadIdx.x % 32 / 4, block.n_heads - 1);
    const float *row = (const float *)(p.q.data + head * p.q.nb[1] + block.token * p.q.nb[2]);
    // The loads of queries do not wait for the loads of the page table.
    Choice<KEEPS_QUERIES, LoadedPairs, Pairs>::Type pairs(row);
    int q_pos = p.visible.pos[block.token];
    int2 entries = share_of(p, block.token, blockIdx.z);
    Queries queries(pairs, (uint4 *)(stages + STAGES * STAGE) + place.group * 32 * K_STEPS, threadIdx.x / 32 % (WARPS / GROUPS));
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
            // The tile is complete, and no warp still reads the tile that is overwritten next.
            __syncthreads();
            if (!ahead.is_end(n)) {
                block.load(p, ahead, stages + (stage == 0 ? STAGES - 1 : stage - 1) * STAGE);
                ahead.advance(n);
            }
            end_group();
            add_tile(p, place, queries, at, head, slope, q_pos, stages + stage * STAGE, sums);
            at.advance(n);
        }
    }
    Partials<SHARES, HEADS, VALUES_OF_BLOCK> &partials = *(Partials<SHARES, HEADS, VALUES_OF_BLOCK> *)stages;
    store_sums(sums, place, partials);
    combine(p, partials, block.first_head, block.n_heads, block.token, block.part * N_VALUES);
}

// Linear attention of many tokens on tensor cores, in chunks of up to 32 tokens of a sequence.
//
// The delta rule in a chunk is a triangular system (Yang et al., arXiv 2406.06484). For keys `k`, queries `q`, values
// `v`, the state `S` before the chunk, and the decay `D(i, j)` from token `j` to token `i`:
//
//     (I + L) u = beta (v - D(i, -1) S k),    L[i][j] = beta[i] D(i, j) k[i] k[j]  for j < i
//     y = D(i, -1) S q + P u,                 P[i][j] = D(i, j) q[i] k[j]          for j <= i
//     S' = D(31, -1) S + sum of D(31, j) k[j] u[j]
//
// Decays of rows are diagonal matrices, which are multiplied into keys and queries.
//
// Without the delta rule, `u` is `beta v`. A warp keeps the state of 16 columns in registers, as sums of matrix
// products. The 16 x 16 blocks of `I + L` on the diagonal are inverted. Factors are the sums of two bf16 numbers, so
// that products have nearly the precision of f32.
//
// Vectors must be aligned runs of 4 floats.
//
// ROWS: rows of the state, a multiple of 16 up to 128. WARPS: warps per block, with 16 columns each. DECAY: origin of
// the decays. DELTA, BETA: properties of linear attention.
#define SPREADS 0
#include "cells.cuh"
#include "halves.cuh"

enum Decay { CONSTANT, BY_COLUMN, BY_ROW };
enum Vector { KEY, QUERY, LOG };
enum OwnValue { VALUE, STEP_SIZE };

const int THREADS = 32 * WARPS, CHUNK = 32, STEP = 16, N_BLOCKS = CHUNK / STEP;
// Runs of 4 floats of a vector, one per lane.
const int RUNS = ROWS / 4;
static_assert(CHUNK % WARPS == 0 && RUNS <= 32);
const int N_VECTORS = DECAY == BY_ROW ? 3 : 2;
const int N_VALUES = 1 + (DECAY == BY_COLUMN) + BETA;
// Strides of rows in shared memory that avoid bank conflicts.
const int STRIDE = ROWS + 8, BLOCK_STRIDE = STEP + 8, CHUNK_STRIDE = CHUNK + 8, NEXT_STRIDE = DECAY == BY_ROW ? STRIDE : ROWS;
// Floats of a block on the diagonal, padded to avoid bank conflicts.
const int LOWER = STEP * STEP + 4;
// Decays are at least e^-60, so that the difference of two sums of logarithms is precise.
const float LEAST_LOG = -60.0f;
// SUBCHUNK: number of tokens whose row decays are relative to the same token. MIDDLE: index of that token.
// LEAST_ROW_LOG: minimum logarithm (base 2) of a decay. Factors of keys and queries are between 2^-96 and 2^96. Their
// products and rounding errors thus stay in the range of f32.
const int SUBCHUNK = 8, MIDDLE = 3, N_SUBCHUNKS = CHUNK / SUBCHUNK;
const float LEAST_ROW_LOG = -24.0f;

// The parameters are the same as in `scan.cu`.
struct Params {
    States states;
    Tensor y, vectors[5], values[3];
    Tensor rates;
    float scale, slope;
    int heads_of_group, tiled;
};

// A matrix as two bf16 numbers per element: the rounded elements and their rounding errors.
template <int N> struct Pair {
    u16 high[N], low[N];

    DEVICE u32 address(int i) const { return (u32)__cvta_generic_to_shared(high) + 2 * i; }

    // Stores two neighbors.
    DEVICE void store(int i, float a, float b) {
        u32 x = Halves<true>::pair(a, b);
        *(u32 *)(high + i) = x;
        *(u32 *)(low + i) = Halves<true>::rest(x, a, b);
    }
};

struct Shared {
    Pair<CHUNK * STRIDE> vectors[2];
    // Vectors of the next chunk. Decays of rows need the vectors of this chunk in f32, until its keys are converted
    // for the update.
    float next[N_VECTORS][CHUNK * NEXT_STRIDE];
    // Blocks of L on the diagonal, inverses of these blocks of I + L, and the block below the diagonal.
    float lower[N_BLOCKS][LOWER];
    Pair<STEP * BLOCK_STRIDE> inverse[N_BLOCKS], below;
    // P of the system.
    Pair<CHUNK * CHUNK_STRIDE> weights;
    // Logarithms of the decays from the start of the chunk to each token, and factors of values.
    // With decays of rows, logarithms (base 2) of the decays of the chunk.
    float logs[DECAY == BY_ROW ? ROWS : CHUNK], betas[CHUNK];
};

extern __shared__ __align__(16) char memory[];

// A fragment of a matrix as two numbers per element: 4 words of matrix A, or 2 words for each of two matrices B.
struct Fragment {
    u32 high[4], low[4];

    DEVICE void set(int i, float a, float b) {
        high[i] = Halves<true>::pair(a, b);
        low[i] = Halves<true>::rest(high[i], a, b);
    }

    // Sets the fragment to the sums of two adjacent 16 x 8 matrices.
    DEVICE void set_sums(const float (&left)[4], const float (&right)[4]) {
        set(0, left[0], left[1]);
        set(1, left[2], left[3]);
        set(2, right[0], right[1]);
        set(3, right[2], right[3]);
    }

    // Loads a 16 x 16 matrix A, whose rows are in shared memory.
    template <int N> DEVICE void load_rows(const Pair<N> &from, int stride, int row, int column) {
        int lane = threadIdx.x % 32;
        u32 at = from.address(lane % 16 * stride + lane / 16 * 8) + 2 * (row * stride + column);
        load_matrices(high, at);
        load_matrices(low, at + 2 * N);
    }

    // Loads two 16 x 8 matrices B, which are transposed in shared memory.
    template <int N> DEVICE void load_columns(const Pair<N> &from, int stride, int row, int column) {
        int lane = threadIdx.x % 32;
        u32 at = from.address((lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8) + 2 * (row * stride + column);
        load_matrices(high, at);
        load_matrices(low, at + 2 * N);
    }

    // Loads two 16 x 8 matrices B, which are not transposed in shared memory.
    template <int N> DEVICE void load_across(const Pair<N> &from, int stride, int row, int column) {
        int lane = threadIdx.x % 32;
        u32 at = from.address((lane / 8 % 2 * 8 + lane % 8) * stride + lane / 16 * 8) + 2 * (row * stride + column);
        load_transposed(high, at);
        load_transposed(low, at + 2 * N);
    }
};

// Adds the product of a matrix A with two matrices B to the sums.
DEVICE void add_products(float (&left)[4], float (&right)[4], const Fragment &a, const Fragment &b) {
    multiply(left, a.low, b.high[0], b.high[1]);
    multiply(right, a.low, b.high[2], b.high[3]);
    multiply(left, a.high, b.low[0], b.low[1]);
    multiply(right, a.high, b.low[2], b.low[3]);
    multiply(left, a.high, b.high[0], b.high[1]);
    multiply(right, a.high, b.high[2], b.high[3]);
}

// Inputs of a chunk that a thread prefetches. They are the cells, the log decay and beta of a token (`l` or the last),
// and two columns of values for pairs of tokens.
struct Ahead {
    Neighbors cells;
    float log, beta, values[CHUNK / 8][4];

    DEVICE Ahead(const Params &p, int head, int column, int first, int n) : cells(p.states, min(first + (int)threadIdx.x % 32, n - 1), n) {
        int lane = threadIdx.x % 32, token = min(first + lane, n - 1), width = p.y.ne[0];
        auto value_at = [&](int v) { return *(const float *)(p.values[v].data + head * p.values[v].nb[1] + token * p.values[v].nb[2]); };
        log = DECAY == BY_ROW ? 0.0f : DECAY == BY_COLUMN ? value_at(STEP_SIZE) : -p.slope * exp2f(-8.0f * (float)(head + 1) / (float)p.y.ne[1]);
        beta = BETA ? value_at(N_VALUES - 1) : 1.0f;
        const Tensor &v = p.values[VALUE];
        int t = first + lane % 4 * 2, c = column + lane / 4;
        const char *from = v.data + c * v.nb[0] + head * v.nb[1] + t * v.nb[2];
        bool has[2] = {c < width, c + 8 < width};
#pragma unroll
        for (int i = 0; i < CHUNK / 8; i++, t += 8, from += 8 * v.nb[2]) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const char *at = from + e % 2 * v.nb[2] + e / 2 * 8 * v.nb[0];
                values[i][e] = t + e % 2 < n && has[e / 2] ? *(const float *)at : 0.0f;
            }
        }
    }
};

// Starts to load the vectors of tokens, beginning with token `first`. Stores zeros after the last of `n` tokens. A warp
// loads whole vectors.
DEVICE void load_vectors(const Params &p, Shared &s, int group, int first, int n) {
    int warp = threadIdx.x / 32, run = threadIdx.x % 32;
    if (run >= RUNS) return;
#pragma unroll
    for (int v = 0; v < N_VECTORS; v++) {
        const Tensor &vector = p.vectors[v];
        const char *from = vector.data + 16 * run + (v == LOG ? blockIdx.y : group) * vector.nb[1] + (first + warp) * vector.nb[2];
        u16 *to = (u16 *)(s.next[v] + warp * NEXT_STRIDE + 4 * run);
#pragma unroll
        for (int t = 0; t < CHUNK; t += WARPS, from += WARPS * vector.nb[2]) {
            bool is_there = first + warp + t < n;
            copy_ahead(to + 2 * t * NEXT_STRIDE, is_there ? from : vector.data, is_there);
        }
    }
}

// Stores 4 floats of a vector as pairs.
DEVICE void store_run(Shared &s, int vector, int token, float4 x) {
    int run = threadIdx.x % 32, to = token * STRIDE + 4 * run;
    u32 first = Halves<true>::pair(x.x, x.y), second = Halves<true>::pair(x.z, x.w);
    *(uint2 *)(s.vectors[vector].high + to) = make_uint2(first, second);
    *(uint2 *)(s.vectors[vector].low + to) = make_uint2(Halves<true>::rest(first, x.x, x.y), Halves<true>::rest(second, x.z, x.w));
}

// Converts the vectors of `n` tokens, and pads the chunk with zeros.
DEVICE void convert_vectors(Shared &s, int n) {
    int warp = threadIdx.x / 32, run = threadIdx.x % 32;
    if (run >= RUNS) return;
#pragma unroll
    for (int v = 0; v < 2; v++) {
#pragma unroll
        for (int t = 0; t < CHUNK; t += WARPS) {
            float4 x = *(const float4 *)(s.next[v] + (warp + t) * ROWS + 4 * run);
            if (warp + t >= n) x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            store_run(s, v, warp + t, x);
        }
    }
}

// Replaces the logarithms of the decays of rows by their sums (base 2) from the start of each subchunk. Stores the sums
// of the chunk of `n` tokens.
DEVICE void sum_row_logs(Shared &s, int n) {
    for (int row = threadIdx.x; row < ROWS; row += THREADS) {
        float total = 0.0f;
        for (int subchunk = 0; subchunk < N_SUBCHUNKS; subchunk++) {
            float sum = 0.0f;
#pragma unroll
            for (int t = 0; t < SUBCHUNK; t++) {
                float &log = s.next[LOG][(SUBCHUNK * subchunk + t) * NEXT_STRIDE + row];
                sum += SUBCHUNK * subchunk + t < n ? fmaxf(LOG2_E * log, LEAST_ROW_LOG) : 0.0f;
                log = sum;
            }
            total += sum;
        }
        s.logs[row] = total;
    }
}

// Returns floats of a vector in shared memory.
template <class T> DEVICE T next_at(const Shared &s, int vector, int token, int row) {
    return *(const T *)(s.next[vector] + token * NEXT_STRIDE + row);
}

DEVICE float4 sum(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

DEVICE float4 scaled(float4 x, float4 log) {
    return make_float4(x.x * power_of_2(log.x), x.y * power_of_2(log.y), x.z * power_of_2(log.z), x.w * power_of_2(log.w));
}

// Converts vectors of `n` tokens, times the decays of rows. With IS_UPDATE, these are keys with the decays to the end
// of the chunk, otherwise keys and queries with the decays from its start. Tokens with index `n` or higher become
// zeros.
template <bool IS_UPDATE> DEVICE void convert_faded_vectors(Shared &s, int n) {
    const float4 ZERO = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    int warp = threadIdx.x / 32, row = threadIdx.x % 32 * 4;
    if (row >= ROWS) return;
    // Decays of the subchunks between this one and the start or end of the chunk.
    float4 others = ZERO;
    for (int i = 0; i < N_SUBCHUNKS; i++) {
        int subchunk = IS_UPDATE ? N_SUBCHUNKS - 1 - i : i;
        float4 whole = next_at<float4>(s, LOG, SUBCHUNK * subchunk + SUBCHUNK - 1, row);
#pragma unroll
        for (int t = 0; t < SUBCHUNK; t += WARPS) {
            int token = SUBCHUNK * subchunk + warp + t;
            bool is_there = token < n;
            float4 log = next_at<float4>(s, LOG, token, row);
            if (IS_UPDATE) log = make_float4(whole.x - log.x, whole.y - log.y, whole.z - log.z, whole.w - log.w);
            log = sum(log, others);
            store_run(s, KEY, token, is_there ? scaled(next_at<float4>(s, KEY, token, row), log) : ZERO);
            if (!IS_UPDATE) store_run(s, QUERY, token, is_there ? scaled(next_at<float4>(s, QUERY, token, row), log) : ZERO);
        }
        others = sum(others, whole);
    }
}

// Stores the logarithms and betas of `n` tokens.
DEVICE void store_gates(Shared &s, const Ahead &ahead, int n) {
    int lane = threadIdx.x % 32;
    s.betas[lane] = lane < n ? ahead.beta : 0.0f;
    if (DECAY == BY_ROW) return;
    float log = lane < n ? fmaxf(ahead.log, LEAST_LOG) : 0.0f;
    for (int step = 1; step < 32; step *= 2) {
        float before = __shfl_up_sync(ALL_LANES, log, step);
        if (lane >= step) log += before;
    }
    s.logs[lane] = log;
}

// Multiplies 16 keys or queries with all keys up to the same tokens, and stores a block of rows of L or P.
template <int V, int BLOCK> DEVICE void multiply_tokens(Shared &s) {
    const int N = 2 * (BLOCK + 1);
    // Two sums per element shorten the chains of dependent multiplications.
    float sums[N][4] = {}, rests[N][4] = {};
#pragma unroll
    for (int k = 0; k < ROWS; k += STEP) {
        Fragment a;
        a.load_rows(s.vectors[V], STRIDE, STEP * BLOCK, k);
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            Fragment b;
            b.load_columns(s.vectors[KEY], STRIDE, 8 * j, k);
            for (int half = 0; half < 2; half++) {
                multiply(rests[j + half], a.low, b.high[2 * half], b.high[2 * half + 1]);
                multiply(sums[j + half], a.high, b.high[2 * half], b.high[2 * half + 1]);
                multiply(rests[j + half], a.high, b.low[2 * half], b.low[2 * half + 1]);
            }
        }
    }
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = lane / 4 + 8 * half, token = STEP * BLOCK + row;
        float log = s.logs[token], beta = V == KEY ? s.betas[token] : 1.0f;
#pragma unroll
        for (int j = 0; j < N; j++) {
            int other = 8 * j + lane % 4 * 2;
            float x[2];
            for (int e = 0; e < 2; e++) {
                bool is_seen = V == KEY ? other + e < token : other + e <= token;
                x[e] = is_seen ? beta * expf(log - s.logs[other + e]) * (sums[j][2 * half + e] + rests[j][2 * half + e]) : 0.0f;
            }
            if (V == QUERY) {
                s.weights.store(token * CHUNK_STRIDE + other, x[0], x[1]);
            } else if (j / 2 < BLOCK) {
                s.below.store(row * BLOCK_STRIDE + other, x[0], x[1]);
            } else {
                *(float2 *)(s.lower[BLOCK] + row * STEP + other % STEP) = make_float2(x[0], x[1]);
            }
        }
    }
}

// Multiplies the keys and queries of a subchunk of `n` tokens by all keys up to the same tokens. Stores the subchunk's
// rows of L and P. The decay between two tokens is a product of two factors, relative to the middle of the subchunk.
template <int SUBCHUNK_INDEX> DEVICE void multiply_faded_tokens(Shared &s, int n) {
    const int FIRST = SUBCHUNK * SUBCHUNK_INDEX, N = SUBCHUNK_INDEX + 1;
    int lane = threadIdx.x % 32, own = FIRST + lane / 4;
    float sums[N][4] = {}, rests[N][4] = {};
#pragma unroll 1
    for (int k = lane % 4 * 2; k < ROWS; k += STEP) {
        // Rows 0 to 7 of the matrix are keys, and rows 8 to 15 are queries.
        Fragment a;
        float2 base[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = k + 8 * half;
            base[half] = next_at<float2>(s, LOG, FIRST + MIDDLE, row);
            float2 log = next_at<float2>(s, LOG, own, row), key = next_at<float2>(s, KEY, own, row), query = next_at<float2>(s, QUERY, own, row);
            float x = power_of_2(log.x - base[half].x), y = power_of_2(log.y - base[half].y);
            a.set(2 * half, key.x * x, key.y * y);
            a.set(2 * half + 1, query.x * x, query.y * y);
        }
#pragma unroll
        for (int j = N - 1; j >= 0; j--) {
            int other = SUBCHUNK * j + lane / 4;
            Fragment b;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = k + 8 * half;
                if (j < SUBCHUNK_INDEX) {
                    float2 whole = next_at<float2>(s, LOG, SUBCHUNK * j + SUBCHUNK - 1, row);
                    base[half].x += whole.x, base[half].y += whole.y;
                }
                float2 log = next_at<float2>(s, LOG, other, row), key = next_at<float2>(s, KEY, other, row);
                b.set(half, key.x * power_of_2(base[half].x - log.x), key.y * power_of_2(base[half].y - log.y));
            }
            multiply(rests[j], a.low, b.high[0], b.high[1]);
            multiply(sums[j], a.high, b.high[0], b.high[1]);
            multiply(rests[j], a.high, b.low[0], b.low[1]);
        }
    }
    const int BLOCK = FIRST / STEP;
    float beta = s.betas[own];
#pragma unroll
    for (int j = 0; j < 2 * (BLOCK + 1); j++) {
        int other = SUBCHUNK * j + lane % 4 * 2;
        float x[4];
        for (int e = 0; e < 4; e++) {
            bool is_seen = own < n && (e < 2 ? other + e < own : other + e % 2 <= own);
            x[e] = is_seen && j < N ? (e < 2 ? beta : 1.0f) * (sums[j < N ? j : 0][e] + rests[j < N ? j : 0][e]) : 0.0f;
        }
        s.weights.store(own * CHUNK_STRIDE + other, x[2], x[3]);
        if (!DELTA) continue;
        if (j / 2 < BLOCK) {
            s.below.store(own % STEP * BLOCK_STRIDE + other, x[0], x[1]);
        } else {
            *(float2 *)(s.lower[BLOCK] + own % STEP * STEP + other % STEP) = make_float2(x[0], x[1]);
        }
    }
}

// Inverts the blocks of I + L on the diagonal. A lane of the warp computes a column of an inverse.
DEVICE void invert(Shared &s) {
    int block = threadIdx.x % 32 / STEP, column = threadIdx.x % STEP;
    float x[STEP];
#pragma unroll
    for (int i = 0; i < STEP; i++) {
        const float *row = s.lower[block] + i * STEP;
        float sums[4] = {i == column ? 1.0f : 0.0f};
#pragma unroll
        for (int j = 0; j < i; j++) sums[j % 4] -= row[j] * x[j];
        x[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        u32 high = Halves<true>::pair(x[i], 0.0f);
        s.inverse[block].high[i * BLOCK_STRIDE + column] = (u16)high;
        s.inverse[block].low[i * BLOCK_STRIDE + column] = (u16)Halves<true>::rest(high, x[i], 0.0f);
    }
}

// Transposed state of 16 columns. Lane `l` has columns `l / 4` and `l / 4 + 8`, and the rows `l % 4 * 2` and
// `l % 4 * 2 + 1` of every 8 rows.
struct StateColumns {
    float rows[ROWS / 8][4];
    i64 first;
    int width;
    bool has[2];

    DEVICE StateColumns(const Params &p, int head, int column) : width(p.y.ne[0]) {
        int own = column + threadIdx.x % 32 / 4;
        first = (i64)head * width * ROWS + own;
        has[0] = own < width, has[1] = own + 8 < width;
    }

    DEVICE i64 offset(int i, int e) const { return first + (i64)(8 * i + threadIdx.x % 4 * 2 + e % 2) * width + e / 2 * 8; }

    // Loads the state of a cell, or zeros if `cell` is null.
    DEVICE void load(const float *cell) {
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) rows[i][e] = cell && has[e / 2] ? cell[offset(i, e)] : 0.0f;
        }
    }

    DEVICE void store(float *cell) const {
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (has[e / 2]) cell[offset(i, e)] = rows[i][e];
            }
        }
    }

    // Adds the products of the state with keys and queries.
    DEVICE void multiply_vectors(const Shared &s, float (&known)[CHUNK / 8][4], float (&results)[CHUNK / 8][4]) const {
#pragma unroll
        for (int k = 0; k < ROWS; k += STEP) {
            Fragment a;
            a.set_sums(rows[k / 8], rows[k / 8 + 1]);
#pragma unroll
            for (int i = 0; i < CHUNK / 8; i += 2) {
                Fragment b;
                if (DELTA) {
                    b.load_columns(s.vectors[KEY], STRIDE, 8 * i, k);
                    add_products(known[i], known[i + 1], a, b);
                }
                b.load_columns(s.vectors[QUERY], STRIDE, 8 * i, k);
                add_products(results[i], results[i + 1], a, b);
            }
        }
    }

    // Adds keys times `updates`, after the decay of the chunk.
    DEVICE void update(const Shared &s, const float (&updates)[CHUNK / 8][4]) {
        float last = DECAY == BY_ROW ? 0.0f : s.logs[CHUNK - 1], keep = expf(last);
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++) {
            float keeps[2] = {keep, keep};
            if (DECAY == BY_ROW) {
                float2 logs = *(const float2 *)(s.logs + 8 * i + threadIdx.x % 4 * 2);
                keeps[0] = power_of_2(logs.x), keeps[1] = power_of_2(logs.y);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) rows[i][e] *= keeps[e % 2];
        }
#pragma unroll
        for (int block = 0; block < N_BLOCKS; block++) {
            float faded[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float factors[2] = {1.0f, 1.0f};
                if (DECAY != BY_ROW) {
                    float2 logs = *(const float2 *)(s.logs + STEP * block + 8 * i + threadIdx.x % 4 * 2);
                    factors[0] = expf(last - logs.x), factors[1] = expf(last - logs.y);
                }
                for (int e = 0; e < 4; e++) faded[i][e] = updates[2 * block + i][e] * factors[e % 2];
            }
            Fragment a;
            a.set_sums(faded[0], faded[1]);
#pragma unroll
            for (int k = 0; k < ROWS; k += STEP) {
                Fragment b;
                b.load_across(s.vectors[KEY], STRIDE, STEP * block, k);
                add_products(rows[k / 8], rows[k / 8 + 1], a, b);
            }
        }
    }
};

// Solves the system for the warp's columns: replaces its right side by the solution.
DEVICE void solve(const Shared &s, float (&x)[CHUNK / 8][4]) {
#pragma unroll
    for (int block = 0; block < N_BLOCKS; block++) {
        float *left = x[2 * block], *right = x[2 * block + 1];
        Fragment a, b;
        if (block > 0) {
            float negative[2][4];
            for (int e = 0; e < 4; e++) negative[0][e] = -x[0][e], negative[1][e] = -x[1][e];
            a.set_sums(negative[0], negative[1]);
            b.load_columns(s.below, BLOCK_STRIDE, 0, 0);
            add_products(x[2], x[3], a, b);
        }
        a.set_sums(x[2 * block], x[2 * block + 1]);
        b.load_columns(s.inverse[block], BLOCK_STRIDE, 0, 0);
        for (int e = 0; e < 4; e++) left[e] = 0.0f, right[e] = 0.0f;
        add_products(x[2 * block], x[2 * block + 1], a, b);
    }
}

// Adds the products of the updates with P.
DEVICE void add_updates(const Shared &s, const float (&updates)[CHUNK / 8][4], float (&results)[CHUNK / 8][4]) {
#pragma unroll
    for (int from = 0; from < N_BLOCKS; from++) {
        Fragment a, b;
        a.set_sums(updates[2 * from], updates[2 * from + 1]);
#pragma unroll
        for (int to = from; to < N_BLOCKS; to++) {
            b.load_columns(s.weights, CHUNK_STRIDE, STEP * to, STEP * from);
            add_products(results[2 * to], results[2 * to + 1], a, b);
        }
    }
}

// Multiplies the results of the state by the decays. Replaces the values by the right-hand side of the system or,
// without the delta rule, by the updates.
DEVICE void apply_gates(const Shared &s, const float (&known)[CHUNK / 8][4], float (&values)[CHUNK / 8][4], float (&results)[CHUNK / 8][4], int n) {
#pragma unroll
    for (int i = 0; i < CHUNK / 8; i++) {
        int token = 8 * i + threadIdx.x % 4 * 2;
        float2 betas = *(const float2 *)(s.betas + token);
        float keep[2] = {1.0f, 1.0f}, beta[2] = {betas.x, betas.y};
        if (DECAY != BY_ROW) {
            float2 logs = *(const float2 *)(s.logs + token);
            keep[0] = expf(logs.x), keep[1] = expf(logs.y);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            results[i][e] *= keep[e % 2];
            float right = DELTA ? values[i][e] - keep[e % 2] * known[i][e] : values[i][e];
            values[i][e] = token + e % 2 < n ? beta[e % 2] * right : 0.0f;
        }
    }
}

// Stores the results of `n` tokens.
DEVICE void store_results(const Params &p, const StateColumns &state, int head, int column, int first, int n, const float (&results)[CHUNK / 8][4]) {
    int lane = threadIdx.x % 32;
    int token = lane % 4 * 2;
    char *to = p.y.data + (column + lane / 4) * p.y.nb[0] + head * p.y.nb[1] + (first + token) * p.y.nb[2];
#pragma unroll
    for (int i = 0; i < CHUNK / 8; i++, token += 8, to += 8 * p.y.nb[2]) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            char *at = to + e % 2 * p.y.nb[2] + e / 2 * 8 * p.y.nb[0];
            if (token + e % 2 < n && state.has[e / 2]) *(float *)at = results[i][e] * p.scale;
        }
    }
}

// Stores the matrices of the system of `n` tokens, and converts vectors with decays of rows.
DEVICE void multiply_all_tokens(Shared &s, int n) {
    for (int part = threadIdx.x / 32; part < 4; part += WARPS) {
        if (DECAY == BY_ROW) {
            static_assert(N_SUBCHUNKS == 4);
            if (part == 0) multiply_faded_tokens<0>(s, n);
            if (part == 1) multiply_faded_tokens<1>(s, n);
            if (part == 2) multiply_faded_tokens<2>(s, n);
            if (part == 3) multiply_faded_tokens<3>(s, n);
        } else {
            if (part == 0 && DELTA) multiply_tokens<KEY, 0>(s);
            if (part == 1 && DELTA) multiply_tokens<KEY, 1>(s);
            if (part == 2) multiply_tokens<QUERY, 0>(s);
            if (part == 3) multiply_tokens<QUERY, 1>(s);
        }
    }
    if (DECAY == BY_ROW) convert_faded_vectors<false>(s, n);
}

// Grid: blocks of 16 WARPS columns; heads.
extern "C" __global__ void __launch_bounds__(THREADS) scan_chunks(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    Shared &s = *(Shared *)memory;
    int warp = threadIdx.x / 32, head = blockIdx.y, column = (blockIdx.x * WARPS + warp) * STEP, n = p.states.n_tokens;
    int n_groups = p.vectors[KEY].ne[1], group = p.tiled ? head % n_groups : head / (gridDim.y / n_groups);
    StateColumns state(p, head, column);
    load_vectors(p, s, group, 0, n);
    Ahead ahead(p, head, column, 0, n);
    for (int first = 0; first < n;) {
        // A chunk ends with the first token whose state is stored. This is the case for the last token.
        TokenCells cells = ahead.cells.own_cells(p.states);
        u32 ends = __ballot_sync(ALL_LANES, cells.to != NOWHERE);
        int n_tokens = ends ? __ffs(ends) : CHUNK;
        int from = __shfl_sync(ALL_LANES, cells.from, 0), to = __shfl_sync(ALL_LANES, cells.to, n_tokens - 1);
        if (to == INVALID) return;
        wait_for_copies();
        __syncthreads();
        if (DECAY == BY_ROW) {
            sum_row_logs(s, n_tokens);
        } else {
            convert_vectors(s, n_tokens);
        }
        if (warp == 0) store_gates(s, ahead, n_tokens);
        __syncthreads();
        if (from != KEPT) state.load(from == ZEROS ? nullptr : cell_at(p.states, from));
        float values[CHUNK / 8][4];
        for (int i = 0; i < CHUNK / 8; i++) {
            for (int e = 0; e < 4; e++) values[i][e] = ahead.values[i][e];
        }
        if (DECAY != BY_ROW) load_vectors(p, s, group, first + n_tokens, n);
        ahead = Ahead(p, head, column, first + n_tokens, n);
        multiply_all_tokens(s, n_tokens);
        __syncthreads();
        // Warp 0 computed the fewest products.
        if (warp == 0 && DELTA) invert(s);
        float known[CHUNK / 8][4] = {}, results[CHUNK / 8][4] = {};
        state.multiply_vectors(s, known, results);
        apply_gates(s, known, values, results, n_tokens);
        if (DELTA || DECAY == BY_ROW) __syncthreads();
        if (DECAY == BY_ROW) {
            convert_faded_vectors<true>(s, n_tokens);
            __syncthreads();
            load_vectors(p, s, group, first + n_tokens, n);
        }
        if (DELTA) solve(s, values);
        add_updates(s, values, results);
        store_results(p, state, head, column, first, n_tokens, results);
        state.update(s, values);
        if (to != NOWHERE) state.store(cell_at(p.states, to));
        first += n_tokens;
    }
    wait_for_copies();
}

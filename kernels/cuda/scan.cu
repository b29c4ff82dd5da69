// Recurrences with a matrix of states for each head: linear attention, selective scans, and RWKV's time mixing.
//
// Each element of the result needs a column of the state matrix, which LANES lanes keep in registers: each lane holds
// runs of 4 rows. A block computes columns that multiply the same vectors (keys and queries), and loads the operands
// of several tokens ahead to shared memory.
//
// RULE: the recurrence. ROWS: rows of the matrix. DECAY: origin of the decays. DELTA, BETA: properties of linear
// attention. X4: runs of vectors and states can be loaded at once. SPREADS: see `cells.cuh`.
#include "async.cuh"
#include "cells.cuh"

enum Rule { LINEAR_ATTENTION, SSM_SCAN, WKV6, WKV7 };
// The decay is constant, an operand of a column or of a row, or a rate of a row times the step of a column.
enum Decay { CONSTANT, BY_COLUMN, BY_ROW, BY_RATE };
// Vectors of a token: RWKV 7 removes the value at `REMOVED` from the state, and adds the value at `ADDED`.
enum Vector { KEY, QUERY, KEEP, REMOVED, ADDED };
// Values of a column: `STEP_SIZE` is a decay or the step of a scan. The last is the beta, if any.
enum OwnValue { VALUE, STEP_SIZE };

const int MAX_VECTORS = 5, MAX_VALUES = 3;
const int N_VECTORS = RULE == WKV7 ? 5 : DECAY == BY_ROW ? 3 : 2;
const int N_VALUES = 1 + (DECAY == BY_COLUMN || DECAY == BY_RATE) + BETA;

const int THREADS = 128, COLUMNS = THREADS / LANES;
const int RUN = 4, STRIDE = RUN * LANES, N_RUNS = (ROWS + STRIDE - 1) / STRIDE;
// Rows of a lane, and of a vector in shared memory, where the rows past the end are zeros.
const int HELD = RUN * N_RUNS, ALL_ROWS = STRIDE * N_RUNS;
// Number of decay rates that a lane holds: one for each of its rows, or one in all.
const int N_RATES = DECAY == BY_RATE || RULE == WKV6 ? HELD : 1;
// Operands of a token in shared memory, and number of tokens that are loaded together.
const int FLOATS = N_VECTORS * ALL_ROWS + N_VALUES * COLUMNS;
const int TOKENS = FLOATS <= 640 ? 8 : FLOATS <= 1280 ? 4 : FLOATS <= 2560 ? 2 : 1;
// True if operands are converted in shared memory.
const bool CONVERTS = RULE == SSM_SCAN || RULE == LINEAR_ATTENTION && DECAY != CONSTANT;

struct Params {
    States states;
    Tensor y, vectors[MAX_VECTORS], values[MAX_VALUES];
    // Constants of rows and heads: decay rates, or the bonus of RWKV 6.
    Tensor rates;
    float scale, slope;
    // Number of heads that share vectors; `tiled` is true if heads `g`, `g + n`, ... share one of `n` vectors.
    int heads_of_group, tiled;
};

__shared__ __align__(16) float operands[2][TOKENS * FLOATS];

// Element and head of a column of this block.
struct Column {
    int element, head;
    bool is_there;

    DEVICE Column(const Params &p, int column) {
        int width = p.y.ne[0], number = blockIdx.x * COLUMNS + column;
        is_there = number < width * p.heads_of_group;
        element = number % width;
        head = is_there ? blockIdx.y * p.heads_of_group + number / width : 0;
    }
};

// Starts a copy of BYTES bytes to shared memory. Stores zeros if the source does not exist.
template <int BYTES> DEVICE void start_copy(float *to, const char *from, bool is_there) {
    start_copy<BYTES>((u32)__cvta_generic_to_shared(to), from, is_there);
}

// Starts to load the operands of a chunk of `n` tokens: up to TOKENS tokens, starting with token `first`. A warp loads
// whole tokens. `group` is the index of keys and queries.
DEVICE void load_ahead(const Params &p, const Column &column, int group, int first, int n, float *chunk) {
    const int UNIT = X4 ? RUN : 1;
    int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < min(TOKENS, n - first); i += THREADS / 32) {
        int token = token_at(first + i);
        float *to = chunk + i * FLOATS;
#pragma unroll
        for (int v = 0; v < N_VECTORS; v++) {
            const Tensor &t = p.vectors[v];
            const char *from = t.data + (v < KEEP ? group : blockIdx.y) * t.nb[1] + token * t.nb[2];
            for (int row = lane * UNIT; row < ALL_ROWS; row += 32 * UNIT) {
                bool is_there = ROWS == ALL_ROWS || row < ROWS;
                start_copy<4 * UNIT>(to + v * ALL_ROWS + row, is_there ? from + row * t.nb[0] : from, is_there);
            }
        }
        if (lane >= COLUMNS) continue;
#pragma unroll
        for (int v = 0; v < N_VALUES; v++) {
            const Tensor &t = p.values[v];
            const char *from = t.data + column.element * t.nb[0] + column.head * t.nb[1] + token * t.nb[2];
            start_copy<4>(to + N_VECTORS * ALL_ROWS + v * COLUMNS + lane, column.is_there ? from : t.data, column.is_there);
        }
    }
    end_group();
}

// Converts logarithms of decays to decays, and the input of a scan to its product with the step, for `n` tokens. `rate`
// is the decay rate of column `threadIdx.x % COLUMNS`.
DEVICE void convert(float *chunk, int n, float rate) {
    if (DECAY == BY_ROW) {
        for (int i = threadIdx.x; i < n * ALL_ROWS; i += THREADS) {
            float &decay = chunk[i / ALL_ROWS * FLOATS + KEEP * ALL_ROWS + i % ALL_ROWS];
            decay = expf(decay);
        }
        return;
    }
    for (int i = threadIdx.x; i < n * COLUMNS; i += THREADS) {
        float *values = chunk + i / COLUMNS * FLOATS + N_VECTORS * ALL_ROWS + i % COLUMNS;
        float &step = values[STEP_SIZE * COLUMNS];
        if (RULE == SSM_SCAN) values[VALUE * COLUMNS] *= step;
        if (DECAY == BY_COLUMN) step = expf(step * rate);
    }
}

// Returns the sum over the lanes of a column, in each of them.
DEVICE float column_sum(const float (&parts)[RUN]) {
    float sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    return sum;
}

// A lane's rows of a column.
struct Rows {
    int lane, step;
    i64 first;
    bool is_there;
    float state[HELD], rates[N_RATES], decay, scale;

    DEVICE Rows(const Params &p, const Column &column) : lane(threadIdx.x % LANES), is_there(column.is_there), scale(p.scale) {
        int width = p.y.ne[0];
        bool has_rows_of_columns = RULE == LINEAR_ATTENTION;
        step = has_rows_of_columns ? width : 1;
        first = (i64)column.head * width * ROWS + (has_rows_of_columns ? column.element : column.element * ROWS);
        if (N_RATES > 1) {
#pragma unroll
            for (int i = 0; i < N_RATES; i++) rates[i] = has(i) ? *(const float *)(p.rates.data + row(i) * p.rates.nb[0] + column.head * p.rates.nb[1]) : 0.0f;
        }
        decay = expf(-p.slope * exp2f(-8.0f * (float)(column.head + 1) / (float)p.y.ne[1]));
    }

    DEVICE int row(int i) const { return i / RUN * STRIDE + lane * RUN + i % RUN; }
    DEVICE bool has(int i) const { return is_there && (ROWS % STRIDE == 0 || row(i) < ROWS); }

    // Loads the state of a cell, or zeros if `cell` is null.
    DEVICE void load(const float *cell) {
        const float *from = cell + first;
#pragma unroll
        for (int i = 0; i < HELD; i += RUN) {
            if (X4 && RULE != LINEAR_ATTENTION) {
                float4 x = cell && has(i) ? *(const float4 *)(from + row(i)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                state[i] = x.x, state[i + 1] = x.y, state[i + 2] = x.z, state[i + 3] = x.w;
            } else {
#pragma unroll
                for (int e = 0; e < RUN; e++) state[i + e] = cell && has(i + e) ? from[(i64)row(i + e) * step] : 0.0f;
            }
        }
    }

    DEVICE void store(float *cell) const {
        float *to = cell + first;
#pragma unroll
        for (int i = 0; i < HELD; i += RUN) {
            if (X4 && RULE != LINEAR_ATTENTION) {
                if (has(i)) *(float4 *)(to + row(i)) = make_float4(state[i], state[i + 1], state[i + 2], state[i + 3]);
            } else {
#pragma unroll
                for (int e = 0; e < RUN; e++) {
                    if (has(i + e)) to[(i64)row(i + e) * step] = state[i + e];
                }
            }
        }
    }

    // Loads a lane's run of a vector.
    DEVICE void run_of(const float *token, int vector, int i, float (&to)[RUN]) const {
        float4 x = *(const float4 *)(token + vector * ALL_ROWS + i / RUN * STRIDE + lane * RUN);
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }

    // Multiplies a run of rows with the decays.
    DEVICE void fade(const float *token, int i, float keep, float step) {
        float decays[RUN];
        if (DECAY == BY_ROW) run_of(token, KEEP, i, decays);
#pragma unroll
        for (int e = 0; e < RUN; e++) {
            state[i + e] *= DECAY == BY_ROW ? decays[e] : DECAY == BY_RATE ? expf(step * rates[(i + e) % N_RATES]) : keep;
        }
    }

    // Returns the value that the state has for a vector.
    DEVICE float known(const float *token, int vector) const {
        float sums[RUN] = {}, x[RUN];
#pragma unroll
        for (int i = 0; i < HELD; i += RUN) {
            run_of(token, vector, i, x);
#pragma unroll
            for (int e = 0; e < RUN; e++) sums[e] += state[i + e] * x[e];
        }
        return column_sum(sums);
    }

    // Adds `d` times the key to the state, and returns the result of a token.
    DEVICE float advance(const float *token, const float *values) {
        float d = values[VALUE * COLUMNS], step = N_VALUES > 1 ? values[STEP_SIZE * COLUMNS] : 0.0f;
        float keep = DECAY == BY_COLUMN ? step : decay, removed = 0.0f, sums[RUN] = {};
        if (RULE == WKV7) removed = known(token, REMOVED);
        if (RULE != WKV6) {
#pragma unroll
            for (int i = 0; i < HELD; i += RUN) fade(token, i, keep, step);
        }
        if (DELTA) d -= known(token, KEY);
        if (BETA) d *= values[(N_VALUES - 1) * COLUMNS];
#pragma unroll
        for (int i = 0; i < HELD; i += RUN) {
            float key[RUN], query[RUN], added[RUN], before[RUN];
            run_of(token, KEY, i, key);
            run_of(token, QUERY, i, query);
            if (RULE == WKV7) run_of(token, ADDED, i, added);
#pragma unroll
            for (int e = 0; e < RUN; e++) before[e] = state[i + e];
            if (RULE == WKV6) fade(token, i, keep, step);
#pragma unroll
            for (int e = 0; e < RUN; e++) {
                float &now = state[i + e];
                now += key[e] * d;
                if (RULE == WKV7) now += added[e] * removed;
                sums[e] += query[e] * (RULE == WKV6 ? before[e] + rates[(i + e) % N_RATES] * (key[e] * d) : now);
            }
        }
        return column_sum(sums) * scale;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) scan(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int n = count_tokens(p.states);
    if (n == 0) return;
    // A thread loads the values of one column, and computes rows of another.
    int own = threadIdx.x / LANES;
    Column loaded(p, threadIdx.x % COLUMNS), column(p, own);
    char *to = p.y.data + column.element * p.y.nb[0] + column.head * p.y.nb[1];
    Rows rows(p, column);
    float rate = RULE == SSM_SCAN && DECAY == BY_COLUMN ? *(const float *)(p.rates.data + loaded.head * p.rates.nb[1]) : 1.0f;
    int n_groups = p.vectors[KEY].ne[1], group = p.tiled ? blockIdx.y % n_groups : blockIdx.y / (gridDim.y / n_groups);
    load_ahead(p, loaded, group, 0, n, operands[0]);
    for (int first = 0; first < n; first += TOKENS) {
        float *chunk = operands[first / TOKENS % 2];
        int n_tokens = min(TOKENS, n - first);
        if (first % PREPARED == 0) prepare_cells(p.states, first, n);
        load_ahead(p, loaded, group, first + TOKENS, n, operands[(first / TOKENS + 1) % 2]);
        wait_for_groups<1>();
        __syncthreads();
        if (CONVERTS) {
            convert(chunk, n_tokens, rate);
            __syncthreads();
        }
        for (int i = 0; i < n_tokens; i++) {
            TokenCells cells = prepared_cells[(first + i) % PREPARED];
            if (cells.to == INVALID) return;
            if (cells.from != KEPT) rows.load(cells.from == ZEROS ? nullptr : cell_at(p.states, cells.from));
            const float *token = chunk + i * FLOATS;
            float y = rows.advance(token, token + N_VECTORS * ALL_ROWS + own);
            if (rows.lane == 0 && column.is_there) *(float *)(to + cells.token * p.y.nb[2]) = y;
            if (cells.to != NOWHERE) rows.store(cell_at(p.states, cells.to));
        }
        __syncthreads();
    }
}

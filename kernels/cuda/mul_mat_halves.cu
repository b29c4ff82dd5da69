// Matmuls with many columns on GPUs whose tensor cores sum products in f32 at half the rate of f16. The products of 32
// values are summed in f16, and these sums in f32. Columns are so small that no sum overflows (see `half_tiles.rs`).
//
// A block multiplies ROWS rows by COLUMNS columns. Weights stream through shared memory in steps of 256 values (floats: 128),
// and columns in groups of 32, several groups ahead. Warps convert weights to fragments directly, without a copy in shared
// memory.
//
// WARP_COLUMNS: columns of a warp, which has 32 rows. STAGES: groups of columns in shared memory, at most 8.
// Other definitions: see `half_products.cuh`.
#include "half_products.cuh"

const int WARP_ROWS = 32, WARPS_OF_COLUMNS = COLUMNS / WARP_COLUMNS, THREADS = 32 * WARPS_OF_COLUMNS * (ROWS / WARP_ROWS);
// Number of `mma` tiles per warp, of 16 rows by 8 columns.
const int M = WARP_ROWS / 16, N = WARP_COLUMNS / 8;

// Shared memory: weights of two steps, the groups of columns, and the sums of two steps.
const int OF_ROWS = ROWS * Weights::STRIDE, STAGE = COLUMNS * OF_GROUP, OF_STEP_SUMS = COLUMNS * OF_SUMS;
const int GROUPS_AT = 2 * OF_ROWS, SUMS_AT = GROUPS_AT + STAGES * STAGE;

extern __shared__ __align__(16) u8 shared[];

// Copies of a thread: the same chunk of rows that are PASS apart, and parts of columns.
struct Copies {
    static const int PASS = THREADS / Weights::CHUNKS, PASSES = (ROWS + PASS - 1) / PASS;
    static const int COPIES = STAGE / 16 / THREADS, SUM_COPIES = (OF_STEP_SUMS / 16 + THREADS - 1) / THREADS;
    static_assert(COPIES * 16 * THREADS == STAGE, "threads must copy equal parts of columns");
    const Params &p;
    const char *w;
    // Places of parts of columns in the first step, in units of 16 bytes, or MISSING.
    static const u32 MISSING = ~0u;
    u32 values[COPIES], sums[SUM_COPIES];
    int row, chunk, n_rows, n_groups;

    // `first_row` is the address of the block's first row.
    DEVICE Copies(const Params &p, const char *first_row, int n_rows, const TileColumns &columns) : p(p), n_rows(min(n_rows, ROWS)) {
        row = threadIdx.x / Weights::CHUNKS, chunk = threadIdx.x % Weights::CHUNKS;
        // Groups are multiplied in pairs.
        n_groups = (p.w.ne[0] / 32 + 1) / 2 * 2;
        // The last threads have no chunk.
        if (row == PASS) row = ROWS;
        w = first_row + row * p.w.nb[1];
#pragma unroll
        for (int i = 0; i < COPIES; i++) values[i] = part(columns, i, OF_GROUP, 0);
#pragma unroll
        for (int i = 0; i < SUM_COPIES; i++) sums[i] = part(columns, i, OF_SUMS, sizeof(Step::values));
    }

    // Returns the place of the thread's `i`-th part of columns that have `bytes` each, from byte `first` of a step on.
    static DEVICE u32 part(const TileColumns &columns, int i, int bytes, int first) {
        int at = (threadIdx.x + i * THREADS) * 16, c = at / bytes;
        if (c >= columns.n) return MISSING;
        int number = columns.number(c);
        return number / Step::N * columns.p.n_steps * (u32)(sizeof(Step) / 16) + (first + number % Step::N * bytes + at % bytes) / 16;
    }

    // Starts the copy of a part of a column.
    DEVICE void start(int at, u32 part, u32 step) const {
        bool is_there = part != MISSING;
        start_copy<16>((u32)__cvta_generic_to_shared(shared) + at, (const uint4 *)p.columns + (is_there ? part + step : 0u), is_there);
    }

    // Loads a group of columns to a stage, and the weights of a step with the first group.
    DEVICE void load(int stage, int step, int group) const {
        int number = step * Weights::GROUPS + group;
        if (number >= n_groups) return;
        u32 at = number / 8 * (u32)(sizeof(Step) / 16);
        if (group == 0) load_step(step, at);
        at += number % 8 * (Step::N * OF_GROUP / 16);
#pragma unroll
        for (int i = 0; i < COPIES; i++) start(GROUPS_AT + stage + (threadIdx.x + i * THREADS) * 16, values[i], at);
    }

    DEVICE void load_step(int step, u32 at) const {
        u32 rows = (u32)__cvta_generic_to_shared(shared) + step % 2 * OF_ROWS + row * Weights::STRIDE + chunk * 16;
        i64 offset = Weights::offset(step, chunk);
        const char *from = w + offset;
        int end = offset < p.row_bytes ? n_rows : 0;
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            if (row + i * PASS < ROWS) start_copy<16>(rows + i * PASS * Weights::STRIDE, from, row + i * PASS < end);
            from += PASS * p.w.nb[1];
        }
        if constexpr (Weights::HAS_MIN) {
#pragma unroll
            for (int i = 0; i < SUM_COPIES; i++) {
                int in = (threadIdx.x + i * THREADS) * 16;
                if (OF_STEP_SUMS % (16 * THREADS) == 0 || in < OF_STEP_SUMS) start(SUMS_AT + step % 2 * OF_STEP_SUMS + in, sums[i], at);
            }
        }
    }
};

// The stages of the groups of columns.
struct Stages {
    // Offset of the current group in bytes.
    int current = (STAGES - 1) * STAGE;

    // Waits for a group of a step, starts the copies of a later group, and returns the stage of the group.
    DEVICE const u8 *advance(const Copies &copies, int step, int group) {
        int before = current;
        current = current == (STAGES - 1) * STAGE ? 0 : current + STAGE;
        wait_for_groups<STAGES - 2>();
        // All warps can now read each other's copies, and none still reads the stage before, which is overwritten next.
        __syncthreads();
        int ahead = group + STAGES - 1;
        copies.load(before, step + ahead / Weights::GROUPS, ahead % Weights::GROUPS);
        end_group();
        return shared + GROUPS_AT + current;
    }
};

// Multiplies a group of the warp's rows by the columns and adds to the total. `columns` is the address of the lane's values
// of its first column, and `scales` are those of the rows of a lane.
DEVICE void add_group(float (&total)[M][N][4], const u32 (&a)[2 * M][4], const u8 *columns, const float (&scales)[2 * M]) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        uint4 b = *(const uint4 *)(columns + n * 8 * OF_GROUP);
#pragma unroll
        for (int m = 0; m < M; m++) {
            u32 first[4], second[4];
            fragment_of(first, a[2 * m], a[2 * m + 1], 0);
            fragment_of(second, a[2 * m], a[2 * m + 1], 1);
            u32 sums[2] = {};
            multiply_halves(sums, first, b.x, b.y);
            multiply_halves(sums, second, b.z, b.w);
            for (int i = 0; i < 4; i++) total[m][n][i] += scales[2 * m + i / 2] * half_to_float((u16)(sums[i / 2] >> 16 * (i % 2)));
        }
    }
}

// Adds the products of the minimums of rows and the sums of columns.
DEVICE void add_mins(float (&total)[M][N][4], const Weights (&weights)[2 * M], const float (&scales)[2 * M], const u8 *sums_of_columns) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        float sums[M][4] = {};
#pragma unroll
        for (int set = 0; set < SUMS / 8; set++) {
            uint2 b = *(const uint2 *)(sums_of_columns + n * 8 * OF_SUMS + set * 8);
            for (int m = 0; m < M; m++) {
                // The minimums multiply the sums and their remainders.
                u32 first = weights[2 * m].mins(set), second = weights[2 * m + 1].mins(set);
                const u32 fragment[4] = {first, second, first, second};
                multiply_halves(sums[m], fragment, b.x, b.y);
            }
        }
        for (int m = 0; m < M; m++) {
            for (int i = 0; i < 4; i++) total[m][n][i] -= scales[2 * m + i / 2] * sums[m][i];
        }
    }
}

// Multiplies a step of the rows and adds to the total. `row` and `column` are the lane's first ones in the tile.
DEVICE void multiply_step(Stages &stages, const Copies &copies, int number, int row, int column, float (&total)[M][N][4]) {
    int t = threadIdx.x % 4;
    const u8 *columns = stages.advance(copies, number, 0) + column * OF_GROUP + t * 16;
    const u8 *rows = shared + number % 2 * OF_ROWS + row * Weights::STRIDE + Weights::start(number);
    const int EIGHT = 8 * Weights::STRIDE;
    Weights weights[2 * M] = {{rows, t, number}, {rows + EIGHT, t, number}, {rows + 2 * EIGHT, t, number}, {rows + 3 * EIGHT, t, number}};
    float scales[2 * M];
    // One pair of groups at a time: several would need too many registers.
    int end = min(copies.n_groups - Weights::GROUPS * number, Weights::GROUPS);
#pragma unroll 1
    for (int g = 0; g < end; g += 2) {
        if (g > 0) columns = stages.advance(copies, number, g) + column * OF_GROUP + t * 16;
        u32 a[2][2 * M][4];
#pragma unroll
        for (int r = 0; r < 2 * M; r++) weights[r].groups(rows + r * EIGHT, t, g, a[0][r], a[1][r]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (i > 0) columns = stages.advance(copies, number, g + i) + column * OF_GROUP + t * 16;
            for (int r = 0; r < 2 * M; r++) scales[r] = weights[r].scale(rows + r * EIGHT, g + i, number);
            add_group(total, a[i], columns, scales);
        }
    }
    if constexpr (Weights::HAS_MIN) {
        for (int r = 0; r < 2 * M; r++) scales[r] = Weights::min(rows + r * EIGHT);
        add_mins(total, weights, scales, shared + SUMS_AT + number % 2 * OF_STEP_SUMS + column * OF_SUMS + t * (OF_SUMS / 4));
    }
}

// Grid: columns in groups of COLUMNS, or tiles of groups; rows in groups of ROWS; outer dimensions. Blocks that run at
// the same time then compute all columns of some rows, so that weights are read from memory once.
extern "C" __global__ void __launch_bounds__(THREADS, 1) mul_mat_halves(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int first_row = blockIdx.y * ROWS, n_rows = p.w.ne[1] - first_row;
#if IDS
    const int *of_tile = p.tiles + 3 * blockIdx.x;
    if (of_tile[0] < 0) return;
    const char *w = p.w.data + of_tile[0] * p.w.nb[2];
    TileColumns columns = {p, of_tile[1], of_tile[2] - of_tile[1], 0};
#else
    const char *w = matrix_of(p, blockIdx.z);
    TileColumns columns = {p, (int)blockIdx.x * COLUMNS, p.x.ne[1] - (int)blockIdx.x * COLUMNS, (int)blockIdx.z};
#endif
    Copies copies(p, w + first_row * p.w.nb[1], n_rows, columns);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        copies.load(i * STAGE, 0, i);
        end_group();
    }
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int row = warp / WARPS_OF_COLUMNS * WARP_ROWS + lane / 4, column = warp % WARPS_OF_COLUMNS * WARP_COLUMNS;
    float total[M][N][4] = {};
    Stages stages;
    for (int step = 0; step * Weights::GROUPS < copies.n_groups; step++) multiply_step(stages, copies, step, row, column + lane / 4, total);
    store_sums(p, columns, first_row, n_rows, row, column + lane % 4 * 2, total);
}

// Matmuls with 5 to 128 columns on tensor cores, in f16 with f32 accumulation. A block multiplies ROWS rows by all columns
// of a tile, and streams weights and columns through shared memory, several steps of 256 values ahead. Weights are
// converted from shared memory to fragments directly. Blocks share long rows: the last block of a tile to finish adds the
// parts in order.
//
// COLUMNS: 16 or 32. STAGES: steps in shared memory. Other definitions: see `half_products.cuh`.
#include "half_products.cuh"

const int WARPS = 4, WARP_ROWS = 32, ROWS = WARPS * WARP_ROWS, THREADS = 32 * WARPS, M = WARP_ROWS / 16, N = COLUMNS / 8;
const int OF_ROWS = ROWS * Weights::STRIDE, STAGE = OF_ROWS + sizeof(Step);
// Bytes of the values of a step's columns.
const int OF_VALUES = sizeof(Step::values);

extern __shared__ __align__(16) u8 stages[];
__shared__ bool is_last;

// Copies of a thread: the same chunk of rows that are PASS apart, and parts of the same columns.
struct Copies {
    static const int PASS = THREADS / Weights::CHUNKS, PASSES = (ROWS + PASS - 1) / PASS;
    const char *w, *values, *sums;
    i64 stride;
    u32 stages;
    int row, chunk, n_rows, row_bytes;
    bool has_values, has_sums;

    // `first_row` is the address of the block's first row.
    DEVICE Copies(const char *first_row, i64 nb, int n_rows, const TileColumns &columns) : n_rows(min(n_rows, ROWS)), row_bytes(columns.p.row_bytes) {
        row = threadIdx.x / Weights::CHUNKS, chunk = threadIdx.x % Weights::CHUNKS;
        // The last threads have no chunk.
        if (row == PASS) row = ROWS;
        w = first_row + row * nb;
        stride = PASS * nb;
        stages = (u32)__cvta_generic_to_shared(::stages);
#if IDS
        // All values that a thread copies belong to one column, and all sums, too.
        values = moved(columns, threadIdx.x / 4 % COLUMNS, OF_GROUP, has_values);
        sums = moved(columns, threadIdx.x * 16 / OF_SUMS, OF_SUMS, has_sums) + OF_VALUES;
#else
        has_values = has_sums = true;
        values = columns.steps(columns.number(0));
        sums = values + OF_VALUES;
#endif
        values += threadIdx.x * 16, sums += threadIdx.x * 16;
    }

    // Returns the address of the first step of a column, minus the column's offset within the tile. Columns of a step are
    // `apart` bytes apart.
    static DEVICE const char *moved(const TileColumns &columns, int c, int apart, bool &is_there) {
        is_there = c < min(columns.n, COLUMNS);
        int number = is_there ? columns.number(c) : c;
        return columns.steps(number) + (number % Step::N - c) * apart;
    }

    // Loads the weights and columns of a step.
    DEVICE void load(int stage, int step) const {
        u32 to = stages + stage + row * Weights::STRIDE + chunk * 16;
        i64 at = Weights::offset(step, chunk);
        const char *from = w + at;
        int end = at < row_bytes ? n_rows : 0;
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            if (row + i * PASS < ROWS) start_copy<16>(to + i * PASS * Weights::STRIDE, from, row + i * PASS < end);
            from += stride;
        }
        to = stages + stage + OF_ROWS + threadIdx.x * 16;
        at = (i64)step * sizeof(Step);
#pragma unroll
        for (int i = 0; i < OF_VALUES; i += THREADS * 16) start_copy<16>(to + i, values + at + i, has_values);
        if (threadIdx.x * 16 < COLUMNS * OF_SUMS) start_copy<16>(to + OF_VALUES, sums + at, has_sums);
    }
};

// Multiplies a group of the warp's rows by the columns.
DEVICE void multiply_group(float (&sums)[M][N][4], const u32 (&a)[2 * M][4], const u32 (&b)[N][4]) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 fragment[4];
            fragment_of(fragment, a[2 * m], a[2 * m + 1], i);
            for (int n = 0; n < N; n++) multiply_halves(sums[m][n], fragment, b[n][2 * i], b[n][2 * i + 1]);
        }
    }
}

// Adds sums times the scales of rows to the total, and clears the sums.
DEVICE void add_scaled(float (&total)[M][N][4], float (&sums)[M][N][4], const float (&scales)[2 * M]) {
#pragma unroll
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 4; i++) {
                total[m][n][i] += scales[2 * m + i / 2] * sums[m][n][i];
                sums[m][n][i] = 0.0f;
            }
        }
    }
}

DEVICE void load_fragments(u32 (&b)[N][4], const Step &columns, int group, int lane) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        uint4 x = *(const uint4 *)columns.values[group][8 * n + lane / 4][lane % 4];
        b[n][0] = x.x, b[n][1] = x.y, b[n][2] = x.z, b[n][3] = x.w;
    }
}

// Multiplies step `number` of the rows and adds to the total.
DEVICE void multiply_step(const u8 *stage, int number, float (&total)[M][N][4]) {
    int lane = threadIdx.x % 32, t = lane % 4;
    const u8 *rows = stage + (threadIdx.x / 32 * WARP_ROWS + lane / 4) * Weights::STRIDE + Weights::start(number);
    const Step &columns = *(const Step *)(stage + OF_ROWS);
    float sums[M][N][4] = {}, scales[2 * M];
    const int EIGHT = 8 * Weights::STRIDE;
    Weights weights[2 * M] = {{rows, t, number}, {rows + EIGHT, t, number}, {rows + 2 * EIGHT, t, number}, {rows + 3 * EIGHT, t, number}};
#pragma unroll
    for (int g = 0; g < 8; g += 2) {
        // Otherwise, the assembler loads too far ahead for sm_120, and spills registers.
        if (IDS && COLUMNS > 16) __syncwarp();
        u32 a[2][2 * M][4], b[N][4];
#pragma unroll
        for (int r = 0; r < 2 * M; r++) weights[r].groups(rows + 8 * r * Weights::STRIDE, t, g, a[0][r], a[1][r]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            load_fragments(b, columns, g + i, lane);
            multiply_group(sums, a[i], b);
            if ((g + i + 1) % Weights::SCALED != 0) continue;
            for (int r = 0; r < 2 * M; r++) scales[r] = Weights::scale(rows + 8 * r * Weights::STRIDE, g + i, number);
            add_scaled(total, sums, scales);
        }
    }
    if constexpr (Weights::HAS_MIN) {
        for (int r = 0; r < 2 * M; r++) scales[r] = -Weights::min(rows + 8 * r * Weights::STRIDE);
#pragma unroll
        for (int i = 0; i < N * (SUMS / 8); i++) {
            int n = i / (SUMS / 8), set = i % (SUMS / 8);
            uint2 b = *(const uint2 *)columns.sums[8 * n + lane / 4][t][set];
            for (int m = 0; m < M; m++) {
                // The minimums multiply the sums and their remainders.
                u32 first = weights[2 * m].mins(set), second = weights[2 * m + 1].mins(set);
                const u32 fragment[4] = {first, second, first, second};
                multiply_halves(sums[m][n], fragment, b.x, b.y);
            }
        }
        add_scaled(total, sums, scales);
    }
}

// Number of sums of a lane.
const int SUMS_OF_LANE = M * N * 4;

// Stores the block's sums. The last block of a tile adds the sums of all blocks, in the order of the parts. Returns true in
// this block.
DEVICE bool add_parts(const Params &p, int number, int part, int n_parts, float (&sums)[SUMS_OF_LANE]) {
    float *parts = p.parts + (i64)number * n_parts * (SUMS_OF_LANE * THREADS) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < SUMS_OF_LANE; i++) __stcg(parts + (part * SUMS_OF_LANE + i) * THREADS, sums[i]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(&p.counters[number], 1u) == n_parts - 1;
    __syncthreads();
    if (!is_last) return false;
    __threadfence();
    // The next matmul with the same columns uses the counter again.
    if (threadIdx.x == 0) p.counters[number] = 0;
#pragma unroll
    for (int i = 0; i < SUMS_OF_LANE; i++) sums[i] = 0.0f;
    for (int n = 0; n < n_parts; n++) {
#pragma unroll
        for (int i = 0; i < SUMS_OF_LANE; i++) sums[i] += __ldcg(parts + (n * SUMS_OF_LANE + i) * THREADS);
    }
    return true;
}

// Grid: rows in groups of ROWS times parts of a row; tiles of columns; outer dimensions.
extern "C" __global__ void __launch_bounds__(THREADS, COLUMNS > 16 ? 0 : 2) mul_stream(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int n_steps = steps_of(p.w.ne[0]), n_parts = (n_steps + p.n_steps - 1) / p.n_steps;
    int first_row = blockIdx.x / n_parts * ROWS, part = blockIdx.x % n_parts, n_rows = p.w.ne[1] - first_row;
#if IDS
    const int *of_tile = p.tiles + 3 * blockIdx.y;
    if (of_tile[0] < 0) return;
    const char *w = p.w.data + of_tile[0] * p.w.nb[2];
    TileColumns columns = {p, of_tile[1], of_tile[2] - of_tile[1], 0};
#else
    const char *w = matrix_of(p, blockIdx.z);
    TileColumns columns = {p, (int)blockIdx.y * COLUMNS, p.x.ne[1] - (int)blockIdx.y * COLUMNS, (int)blockIdx.z};
#endif
    Copies copies(w + first_row * p.w.nb[1], p.w.nb[1], n_rows, columns);
    int step = part * p.n_steps, end = min(step + p.n_steps, n_steps);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (step + i < end) copies.load(i * STAGE, step + i);
        end_group();
    }
    float total[M][N][4] = {};
    int stage = 0, next = STAGES - 1;
    for (; step < end; step++) {
        wait_for_groups<STAGES - 2>();
        // All warps can now read each other's loads, and none still reads the stage to be overwritten next.
        __syncthreads();
        if (step + STAGES - 1 < end) copies.load(next * STAGE, step + STAGES - 1);
        end_group();
        multiply_step(stages + stage * STAGE, step, total);
        stage = stage + 1 == STAGES ? 0 : stage + 1, next = next + 1 == STAGES ? 0 : next + 1;
    }
    int number = (blockIdx.z * gridDim.y + blockIdx.y) * (gridDim.x / n_parts) + blockIdx.x / n_parts;
    if (n_parts > 1 && !add_parts(p, number, part, n_parts, (float (&)[SUMS_OF_LANE])total)) return;
    int row = threadIdx.x / 32 * WARP_ROWS + threadIdx.x % 32 / 4;
    store_sums(p, columns, first_row, n_rows, row, threadIdx.x % 4 * 2, total);
}

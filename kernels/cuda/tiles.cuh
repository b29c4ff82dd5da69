// Tiles of matmuls with many columns on tensor cores, in bf16 with f32 accumulation: the work of a thread block, and
// steps of a tile in shared memory. Weights are decoded to shared memory. Columns are already bf16 in global memory, in
// the order of `round_columns.cu`.
//
// TYPE: type of the weights. ALIGNED: see `pieces.cuh`. ROWS, COLUMNS: size of a tile. WARP_ROWS,
// WARP_COLUMNS: size of a warp's part of the tile. IDS: columns are grouped by expert (see `group.cu`), and a
// tile contains columns of one group. LOADERS: number of adjacent threads that load a step; by default all.
#pragma once
#include "matrices.cuh"
#include "pieces.cuh"
#include "tiled.cuh"

using Weights = Piece<types::TYPE>;

const int WARPS_OF_COLUMNS = COLUMNS / WARP_COLUMNS, THREADS = 32 * WARPS_OF_COLUMNS * (ROWS / WARP_ROWS);
// Number of `mma` tiles per warp, of 16 rows by 8 columns.
const int M = WARP_ROWS / 16, N = WARP_COLUMNS / 8;
#ifndef LOADERS
#define LOADERS THREADS
#endif
// Pieces that a thread decodes per step, and 16-byte copies of columns.
const int PIECES = ROWS * STEP / 32 / LOADERS, COPIES = COLUMNS * STEP / 8 / LOADERS;
static_assert(PIECES * 32 * LOADERS == ROWS * STEP && COPIES * 8 * LOADERS == COLUMNS * STEP, "threads must have equal amounts of work");

// Size of a step in shared memory, in values.
const int STAGE = (ROWS + COLUMNS) * STEP;

struct Params {
    Tensor w, x, y;
    // Columns as bf16.
    const char *columns;
    // For each tile: its matrix (-1 for none), its first column, and the end of its group in `order`. `order`
    // lists the columns by group.
    const int *tiles, *order;
    int n_used;
    // Number of columns of a step of all outer dimensions, and of one, with padding.
    int n_total, n_padded;
};

// Weights and columns of several steps.
extern __shared__ __align__(128) u16 shared[];
#if IDS
// For each column of the tile: its index in `columns` and in the lists of ids; -1 for missing columns. Indices need
// less space than addresses, so the largest tile fits on GPUs with 99 KB.
__shared__ int from[COLUMNS], pairs[COLUMNS];
#endif

// Rows and columns that a thread block computes.
struct Work {
    // Address of the matrix, or null if there is no work.
    const char *w;
    int first_row;
    char *y;
    // Number of the thread block's first column in all outer dimensions, and number of columns.
    int first_column, n_columns;

    // Returns the number of columns with padding.
    DEVICE int columns_of_step() const {
        return min((n_columns + ALIGNED_COLUMNS - 1) / ALIGNED_COLUMNS * ALIGNED_COLUMNS, COLUMNS);
    }
};

// Grid: columns in groups of COLUMNS, or tiles of groups; rows in groups of ROWS; outer dimensions. Blocks that run at
// the same time then compute all columns of some rows, so that weights are read from memory once.
DEVICE Work find_work(const Params &p) {
    int tile = blockIdx.x, first_row = blockIdx.y * ROWS;
#if IDS
    int c = threadIdx.x, matrix = p.tiles[3 * tile];
    if (matrix < 0) return {};
    int first = p.tiles[3 * tile + 1], end = p.tiles[3 * tile + 2];
    if (c < COLUMNS) {
        int pair = first + c < end ? p.order[first + c] : -1, place = pair % p.n_used, token = pair / p.n_used;
        from[c] = pair < 0 ? -1 : token * p.x.ne[1] + place % p.x.ne[1];
        pairs[c] = pair;
    }
    __syncthreads();
    return {p.w.data + matrix * p.w.nb[2], first_row, p.y.data, 0, 0};
#else
    int i2 = blockIdx.z % p.x.ne[2], i3 = blockIdx.z / p.x.ne[2], first = tile * COLUMNS;
    return {
        p.w.data + i2 / (p.x.ne[2] / p.w.ne[2]) * p.w.nb[2] + i3 / (p.x.ne[3] / p.w.ne[3]) * p.w.nb[3],
        first_row,
        p.y.data + first * p.y.nb[1] + i2 * p.y.nb[2] + i3 * p.y.nb[3],
        (int)blockIdx.z * p.n_padded + first,
        min(p.x.ne[1] - first, COLUMNS),
    };
#endif
}

// Returns the location of the `unit`-th group of 8 values of a row of a step. Units are swizzled by row, so
// that neither matrix loads nor stores to several rows cause bank conflicts. This is the swizzle of 128 bytes that
// `wgmma` reads.
DEVICE u16 *place_of_weights(u16 *step, int row, int unit) {
    return step + row * STEP + (unit ^ (row & 7)) * 8;
}

DEVICE u16 *place_of_columns(u16 *step, int column, int unit) {
    return step + (ROWS + column) * STEP + (unit ^ (column & 7)) * 8;
}

// Returns the address of values `k` to `k + STEP - 1` of a column. Adjacent columns are adjacent in memory.
DEVICE const char *address_of_column(const Params &p, int column, int k) {
    return p.columns + (i64)(k / STEP * p.n_total + column) * (2 * STEP);
}

// Copies values `k` to `k + STEP - 1` of the tile's columns, and zeros for missing columns.
DEVICE void load_columns(const Params &p, const Work &work, u16 *step, int k) {
    // Columns of a thread are a multiple of the swizzle's period apart.
    const int APART = LOADERS / (STEP / 8);
    static_assert(APART % ALIGNED_COLUMNS == 0, "all columns of a thread have the same swizzle");
    int thread = threadIdx.x % LOADERS, unit = thread % (STEP / 8), column = thread / (STEP / 8);
    u16 *to = place_of_columns(step, column, unit);
#if IDS
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        int number = from[column + i * APART];
        copy_ahead(to + i * APART * STEP, address_of_column(p, number, k) + place_in_column(number, unit), number >= 0);
    }
#else
    // The number of the first column is a multiple of the period, too.
    const char *first = address_of_column(p, work.first_column + column, k) + place_in_column(column, unit);
#pragma unroll
    for (int i = 0; i < COPIES; i++) copy_ahead(to + i * APART * STEP, first + i * APART * STEP * 2, column + i * APART < work.n_columns);
#endif
}

// Returns the row of a tile to which a piece belongs. Eight threads store units 2 apart of four rows if pieces are
// apart, and units 4 apart otherwise. Rows that differ in bits 0 and 2, or 0 and 1, then use different banks.
DEVICE int row_of_piece(int n) {
    int row = n / 2;
    return Weights::APART ? (row & ~6) | (row & 2) << 1 | (row & 4) >> 1 : row;
}

DEVICE void fetch_weights(const Params &p, const Work &work, int k, Weights (&pieces)[PIECES]) {
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        // Rows past the end repeat the last row; their results are not stored.
        int n = threadIdx.x % LOADERS + i * LOADERS, row = min(work.first_row + row_of_piece(n), p.w.ne[1] - 1);
        pieces[i].fetch(p.w, work.w + row * p.w.nb[1], k / 32 + n % 2);
    }
}

DEVICE void store_weights(u16 *step, const Weights (&pieces)[PIECES]) {
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        int n = threadIdx.x % LOADERS + i * LOADERS;
        u32 x[16];
        pieces[i].decode(x);
#pragma unroll
        for (int u = 0; u < 4; u++) {
            int unit = Weights::APART ? u / 2 * 4 + n % 2 * 2 + u % 2 : n % 2 * 4 + u;
            *(uint4 *)place_of_weights(step, row_of_piece(n), unit) = make_uint4(x[4 * u], x[4 * u + 1], x[4 * u + 2], x[4 * u + 3]);
        }
    }
}

// Stores the sums of a warp, given its first row and column in the tile.
DEVICE void store_sums(const Params &p, const Work &work, int row, int column, const float (&sums)[M][N][4]) {
    int lane = threadIdx.x % 32;
    // Process one column at a time: the addresses of all columns would exceed the available registers.
    int first = work.first_row + row + lane / 4;
#pragma unroll
    for (int i = 0; i < 2 * N; i++) {
        int c = column + i / 2 * 8 + lane % 4 * 2 + i % 2;
#if IDS
        int pair = pairs[c];
        if (pair < 0) continue;
        char *at = work.y + pair % p.n_used * p.y.nb[1] + pair / p.n_used * p.y.nb[2];
#else
        if (c >= work.n_columns) continue;
        char *at = work.y + c * p.y.nb[1];
#endif
#pragma unroll
        for (int m = 0; m < 2 * M; m++) {
            int r = first + 8 * m;
            if (r < p.w.ne[1]) *(float *)(at + r * p.y.nb[0]) = sums[m / 2][i / 2][m % 2 * 2 + i % 2];
        }
    }
}

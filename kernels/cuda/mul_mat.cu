// Matmuls with many columns, in f32. Tiles of both operands are decoded to shared memory, and each thread
// computes 4 rows by 2 columns of the result.
//
// TYPE: type of the weights. IDS: columns are grouped by expert (see `group.cu`), and a tile contains columns
// of one group.
#include "blocks.cuh"

using W = types::TYPE;

const int ROWS = 32, COLUMNS = 32, THREADS = 128;
// Values of a row to decode at a time: whole groups of runs.
const int STEP = W::GAP * W::RUNS > 32 ? W::GAP * W::RUNS : 32;
// Number of products that are summed separately before they are added to the total. In a single chain of additions,
// each product would be rounded to the precision of the total.
const int CHAIN = 8;
// The padding avoids bank conflicts between rows and keeps vectors aligned.
const int ROW_STRIDE = ROWS + 4, COLUMN_STRIDE = COLUMNS + 2;

struct Params {
    Tensor w, x, y;
    // For each tile: its matrix (-1 for none), its first column, and the end of its group in `order`. `order`
    // lists the columns by group.
    const int *tiles, *order;
    int n_used, padding;
};

__shared__ __align__(16) float weights[STEP * ROW_STRIDE];
__shared__ __align__(16) float columns[STEP * COLUMN_STRIDE];

// Decodes values `k` to `k + STEP - 1` of the tile's rows.
DEVICE void load_weights(const Params &p, const char *w, int first_row, int k) {
    const i64 block_bytes = W::QK == 1 ? p.w.nb[0] : (i64)W::BYTES;
    const int n_chunks = p.w.ne[0] / W::QK * W::CHUNKS, per_row = STEP / W::N;
    for (int i = threadIdx.x; i < ROWS * per_row; i += THREADS) {
        int row = i / per_row, c = k / W::N + i % per_row, block = c / W::CHUNKS, in = c % W::CHUNKS;
        float v[W::N] = {};
        if (c < n_chunks && first_row + row < p.w.ne[1]) {
            W::chunk((const u8 *)w + (first_row + row) * p.w.nb[1] + block * block_bytes, in, v);
        }
        float *to = weights + (block * W::QK + chunk_start<W>(in) - k) * ROW_STRIDE + row;
        for (int n = 0; n < W::N; n++) to[(n / W::RUN * W::GAP + n % W::RUN) * ROW_STRIDE] = v[n];
    }
}

// Addresses of the tile's columns and of their results; null for missing columns.
__shared__ const char *from[COLUMNS];
__shared__ char *to[COLUMNS];

// Finds the tile's columns, and returns the address of its matrix, or null if the tile is empty.
DEVICE const char *find_columns(const Params &p) {
    int c = threadIdx.x;
#if IDS
    int matrix = p.tiles[3 * blockIdx.y];
    if (matrix < 0) return nullptr;
    int first = p.tiles[3 * blockIdx.y + 1], end = p.tiles[3 * blockIdx.y + 2];
    if (c < COLUMNS) {
        int pair = first + c < end ? p.order[first + c] : -1, place = pair % p.n_used, token = pair / p.n_used;
        from[c] = pair < 0 ? nullptr : p.x.data + place % p.x.ne[1] * p.x.nb[1] + token * p.x.nb[2];
        to[c] = pair < 0 ? nullptr : p.y.data + place * p.y.nb[1] + token * p.y.nb[2];
    }
    return p.w.data + matrix * p.w.nb[2];
#else
    int i2 = blockIdx.z % p.x.ne[2], i3 = blockIdx.z / p.x.ne[2], column = blockIdx.y * COLUMNS + c;
    if (c < COLUMNS) {
        bool there = column < p.x.ne[1];
        from[c] = there ? p.x.data + column * p.x.nb[1] + i2 * p.x.nb[2] + i3 * p.x.nb[3] : nullptr;
        to[c] = there ? p.y.data + column * p.y.nb[1] + i2 * p.y.nb[2] + i3 * p.y.nb[3] : nullptr;
    }
    return p.w.data + i2 / (p.x.ne[2] / p.w.ne[2]) * p.w.nb[2] + i3 / (p.x.ne[3] / p.w.ne[3]) * p.w.nb[3];
#endif
}

// Loads values `k` to `k + STEP - 1` of the tile's columns.
DEVICE void load_columns(const Params &p, int k) {
    for (int i = threadIdx.x; i < COLUMNS * STEP; i += THREADS) {
        int column = i / STEP, at = i % STEP;
        bool there = k + at < p.x.ne[0] && from[column];
        columns[at * COLUMN_STRIDE + column] = there ? *(const float *)(from[column] + (k + at) * p.x.nb[0]) : 0.0f;
    }
}

// Grid: rows in groups of ROWS; columns in groups of COLUMNS, or tiles of groups; outer dimensions.
extern "C" __global__ void __launch_bounds__(THREADS) mul_mat(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int first_row = blockIdx.x * ROWS, row = threadIdx.x % 8 * 4, column = threadIdx.x / 8 * 2;
    const char *w = find_columns(p);
    if (!w) return;
    __syncthreads();
    float sums[2][4] = {};
    for (int k = 0; k < p.w.ne[0]; k += STEP) {
        load_weights(p, w, first_row, k);
        load_columns(p, k);
        __syncthreads();
        float of_step[2][4] = {};
        for (int first = 0; first < STEP; first += CHAIN) {
            float of_chain[2][4] = {};
#pragma unroll
            for (int i = first; i < first + CHAIN; i++) {
                float4 a = *(const float4 *)(weights + i * ROW_STRIDE + row);
                float2 b = *(const float2 *)(columns + i * COLUMN_STRIDE + column);
                const float rows[4] = {a.x, a.y, a.z, a.w}, two[2] = {b.x, b.y};
                for (int n = 0; n < 8; n++) of_chain[n / 4][n % 4] += rows[n % 4] * two[n / 4];
            }
            for (int n = 0; n < 8; n++) of_step[n / 4][n % 4] += of_chain[n / 4][n % 4];
        }
        for (int n = 0; n < 8; n++) sums[n / 4][n % 4] += of_step[n / 4][n % 4];
        __syncthreads();
    }
    for (int n = 0; n < 8; n++) {
        int r = first_row + row + n % 4, c = column + n / 4;
        if (r < p.w.ne[1] && to[c]) *(float *)(to[c] + r * p.y.nb[0]) = sums[n / 4][n % 4];
    }
}

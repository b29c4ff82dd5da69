// Products of a matrix with many columns on tensor cores: weights and columns rounded to bf16, sums of f32. Weights are decoded to shared memory,
// columns lie in memory as bf16 already. A warp computes WARP_ROWS rows by 32 columns of a tile.
//
// TYPE: type of the weights. STEP: values of a row that are decoded at a time. COLUMNS: columns of a tile, 32 or 128. IDS: columns were grouped by
// the matrix that their numbers choose (see `group.cu`), and a tile has columns of one group.
#include "blocks.cuh"

using W = types::TYPE;

const int ROWS = 128, WARPS = 8, THREADS = 32 * WARPS;
const int WARPS_OF_COLUMNS = COLUMNS / 32, WARP_ROWS = ROWS / (WARPS / WARPS_OF_COLUMNS);
// Tiles of `mma` of a warp: 16 rows by 8 columns.
const int M = WARP_ROWS / 16, N = 4;
static_assert(STEP % (W::GAP * W::RUNS) == 0 && STEP % W::N == 0, "a step has whole groups of runs");
// Padding keeps the rows that a matrix is loaded from in different banks.
const int STRIDE = STEP + 8;

struct Params {
    Tensor w, x, y;
    // Columns as bf16, and bytes from one to the next.
    const char *columns;
    // Of each tile its matrix, -1 for none, and its first column and the end of its group in `order`; then columns by group.
    const int *tiles, *order;
    int n_used, stride;
};

// Weights of a step, then columns.
extern __shared__ __align__(16) u16 shared[];
__shared__ const char *from[COLUMNS];
__shared__ char *to[COLUMNS];

// Finds the tile's columns. Address of its matrix; null if there are none.
DEVICE const char *find_columns(const Params &p) {
    int c = threadIdx.x;
#if IDS
    int matrix = p.tiles[3 * blockIdx.y], first = p.tiles[3 * blockIdx.y + 1], end = p.tiles[3 * blockIdx.y + 2];
    if (matrix < 0) return nullptr;
    if (c < COLUMNS) {
        int pair = first + c < end ? p.order[first + c] : -1, place = pair % p.n_used, token = pair / p.n_used;
        from[c] = pair < 0 ? nullptr : p.columns + ((i64)token * p.x.ne[1] + place % p.x.ne[1]) * p.stride;
        to[c] = pair < 0 ? nullptr : p.y.data + place * p.y.nb[1] + token * p.y.nb[2];
    }
    return p.w.data + matrix * p.w.nb[2];
#else
    int i2 = blockIdx.z % p.x.ne[2], i3 = blockIdx.z / p.x.ne[2], column = blockIdx.y * COLUMNS + c;
    if (c < COLUMNS) {
        bool there = column < p.x.ne[1];
        from[c] = there ? p.columns + ((i64)blockIdx.z * p.x.ne[1] + column) * p.stride : nullptr;
        to[c] = there ? p.y.data + column * p.y.nb[1] + i2 * p.y.nb[2] + i3 * p.y.nb[3] : nullptr;
    }
    return p.w.data + i2 / (p.x.ne[2] / p.w.ne[2]) * p.w.nb[2] + i3 / (p.x.ne[3] / p.w.ne[3]) * p.w.nb[3];
#endif
}

// Two floats as bf16, rounded to nearest, the first in the low half.
DEVICE u32 pair_of(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// The row that the `n`-th `STEP / W::N` threads decode: rows whose threads store together are so far apart that one's runs lie between the other's gaps in
// other banks.
DEVICE int row_of(int n) {
    const int APART = W::RUN == 4 && W::GAP > 8 ? W::GAP / 8 : 1;
    return n - n % (2 * APART) + n % 2 * APART + n % (2 * APART) / 2;
}

// Decodes values `k` to `k + STEP - 1` of the tile's rows; zeros where there are none.
DEVICE void load_weights(const Params &p, const char *w, int first_row, int k) {
    const i64 block_bytes = W::QK == 1 ? p.w.nb[0] : (i64)W::BYTES;
    const int n_chunks = p.w.ne[0] / W::QK * W::CHUNKS, per_row = STEP / W::N;
    // A chunk whose values lie together is stored at once. More than two chunks at a time would spill.
    const bool is_whole = W::GAP == W::RUN && W::N == 8;
#pragma unroll 2
    for (int i = threadIdx.x; i < ROWS * per_row; i += THREADS) {
        int row = row_of(i / per_row), c = k / W::N + i % per_row, block = c / W::CHUNKS, in = c % W::CHUNKS;
        float v[W::N] = {};
        if (c < n_chunks && first_row + row < p.w.ne[1]) {
            W::chunk((const u8 *)w + (first_row + row) * p.w.nb[1] + block * block_bytes, in, v);
        }
        u16 *at = shared + row * STRIDE + block * W::QK + chunk_start<W>(in) - k;
        if (is_whole) {
            u32 x[4];
            for (int n = 0; n < 4; n++) x[n] = pair_of(v[2 * n % W::N], v[(2 * n + 1) % W::N]);
            *(uint4 *)at = make_uint4(x[0], x[1], x[2], x[3]);
            continue;
        }
        for (int r = 0; r < W::RUNS; r++) {
            if (W::RUN % 4 == 0) {
                for (int n = 0; n < W::RUN; n += 4) {
                    const float *x = v + r * W::RUN + n;
                    *(uint2 *)(at + r * W::GAP + n) = make_uint2(pair_of(x[0], x[1]), pair_of(x[2], x[3]));
                }
            } else {
                for (int n = 0; n < W::RUN; n++) at[r * W::GAP + n] = float_to_bfloat(v[r * W::RUN + n]);
            }
        }
    }
}

// Fetches values `k` to `k + STEP - 1` of the tile's columns; zeros where there are none.
DEVICE void load_columns(const Params &p, int k) {
    const int per_column = STEP / 8;
    for (int i = threadIdx.x; i < COLUMNS * per_column; i += THREADS) {
        int column = i / per_column, at = i % per_column * 8;
        u16 *here = shared + (ROWS + column) * STRIDE + at;
        if (from[column] && 2 * (k + at) < p.stride) {
            u32 address = (u32)__cvta_generic_to_shared(here);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from[column] + 2 * (i64)(k + at)) : "memory");
        } else {
            *(uint4 *)here = make_uint4(0, 0, 0, 0);
        }
    }
}

// Four matrices of 8 by 8, of whose rows lane `l` points to row `l % 8` of matrix `l / 8`.
DEVICE void load_matrices(u32 (&x)[4], const u16 *row) {
    u32 address = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

DEVICE void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Grid: rows by ROWS; columns by COLUMNS, or tiles of groups; outer dimensions.
extern "C" __global__ void __launch_bounds__(THREADS) mul_mat_tensor(const __grid_constant__ Params p) {
    int first_row = blockIdx.x * ROWS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int row = warp / WARPS_OF_COLUMNS * WARP_ROWS, column = warp % WARPS_OF_COLUMNS * 32;
    const char *w = find_columns(p);
    if (!w) return;
    __syncthreads();
    float sums[M][N][4] = {};
    for (int k = 0; k < p.w.ne[0]; k += STEP) {
        load_columns(p, k);
        load_weights(p, w, first_row, k);
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
#pragma unroll
        for (int i = 0; i < STEP; i += 16) {
            u32 a[4], b[N / 2][4];
            for (int n = 0; n < N / 2; n++) {
                load_matrices(b[n], shared + (ROWS + column + 16 * n + lane / 16 * 8 + lane % 8) * STRIDE + i + lane / 8 % 2 * 8);
            }
            for (int m = 0; m < M; m++) {
                load_matrices(a, shared + (row + 16 * m + lane % 16) * STRIDE + i + lane / 16 * 8);
                for (int n = 0; n < N; n++) multiply(sums[m][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < M * N * 4; i++) {
        int m = i / (4 * N), n = i / 4 % N, r = first_row + row + 16 * m + lane / 4 + i % 4 / 2 * 8;
        char *at = to[column + 8 * n + lane % 4 * 2 + i % 2];
        if (r < p.w.ne[1] && at) *(float *)(at + r * p.y.nb[0]) = sums[m][n][i % 4];
    }
}

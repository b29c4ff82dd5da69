// Matmuls with few columns. A warp computes COLS elements of a row of the result, so that each byte of the
// weights is read once for all columns.
//
// TYPE: type of the weights. COLS: columns per warp. X4: columns are read 4 values at a time. PARTS, GLU,
// IDS: see `few.cuh`.
#include "blocks.cuh"
#include "few.cuh"

using W = types::TYPE;

const int WARPS = 4;

// Loads values `i` to `i + RUN - 1` of a column.
DEVICE void load_run(const Tensor &x, const char *column, int i, float (&v)[W::RUN]) {
#if X4
    float4 run = *(const float4 *)(column + 4 * (i64)i);
    v[0] = run.x, v[1] = run.y, v[2] = run.z, v[3] = run.w;
#else
    for (int n = 0; n < W::RUN; n++) v[n] = *(const float *)(column + (i + n) * x.nb[0]);
#endif
}

DEVICE void add_chunk(const Tensor &x, const char *column, int first, const float (&w)[W::N], float &sum) {
    for (int r = 0; r < W::RUNS; r++) {
        float run[W::RUN];
        load_run(x, column, first + r * W::GAP, run);
        for (int i = 0; i < W::RUN; i++) sum += w[r * W::RUN + i] * run[i];
    }
}

// Computes the dot products of a row of weights with the columns, in every lane.
DEVICE void dot(const Tensor &w, const char *row, const Tensor &x, const char *const (&columns)[COLS], float (&sums)[COLS]) {
    const i64 block_bytes = W::QK == 1 ? w.nb[0] : (i64)W::BYTES;
    const int n_chunks = w.ne[0] / W::QK * W::CHUNKS;
    for (int c = threadIdx.x % 32; c < n_chunks; c += 32) {
        int block = c / W::CHUNKS, in = c % W::CHUNKS;
        float values[W::N];
        W::chunk((const u8 *)row + block * block_bytes, in, values);
        int first = block * W::QK + chunk_start<W>(in);
        for (int n = 0; n < COLS; n++) add_chunk(x, columns[n], first, values, sums[n]);
    }
    for (int n = 0; n < COLS; n++) sums[n] = warp_sum(sums[n]);
}

// Grid: x covers rows in groups of WARPS, one matrix after the other. y covers columns in groups of COLS, or
// slots of `ids`. z covers outer dimensions, or tokens.
extern "C" __global__ void __launch_bounds__(32 * WARPS) mul_vec(const __grid_constant__ Params p) {
    int block;
    // NVRTC 12.9 crashes for compute capability 12.1 if the matrix is a copy.
    const Part &part = part_of(p, block);
    int row = block * WARPS + threadIdx.x / 32;
#if !IDS
    // Elements of views may be far apart.
    bool is_contiguous = part.w.nb[0] == W::BYTES;
    if (is_contiguous && row < part.w.ne[1]) prefetch_rows(p, part, outer_offset(p, part, blockIdx.z % p.x.ne[2], blockIdx.z / p.x.ne[2]), row, row + 1);
#endif
    wait_for_previous_kernels();
    if (row >= part.w.ne[1]) return;
    const char *columns[COLS];
#if IDS
    int first = blockIdx.y, n = first + 1, i2 = blockIdx.z, i3 = 0, id = chosen(p, first, i2);
    if (id < 0) return;
    i64 outer = id * part.w.nb[2];
    columns[0] = p.x.data + first % p.x.ne[1] * p.x.nb[1] + i2 * p.x.nb[2];
#else
    int first = blockIdx.y * COLS, n = p.x.ne[1], i2 = blockIdx.z % p.x.ne[2], i3 = blockIdx.z / p.x.ne[2];
    i64 outer = outer_offset(p, part, i2, i3);
    for (int c = 0; c < COLS; c++) columns[c] = p.x.data + i2 * p.x.nb[2] + i3 * p.x.nb[3] + min(first + c, n - 1) * p.x.nb[1];
#endif
    i64 at = outer + row * part.w.nb[1];
    float sums[COLS] = {};
    dot(part.w, part.w.data + at, p.x, columns, sums);
#ifdef GLU
    float others[COLS] = {};
    dot(part.w, p.parts[1].w.data + at, p.x, columns, others);
    for (int c = 0; c < COLS; c++) sums[c] = __fmul_rn(GLU(sums[c]), others[c]);
#endif
    for (int c = 0; c < COLS; c++) {
        if (threadIdx.x % 32 == c && first + c < n) Output(part, first + c, i2, i3).store(row, sums[c]);
    }
}

// Products of a matrix with a few columns. A warp computes COLS elements of a row of the result, so that each byte of the weights is read once
// for all of them.
//
// TYPE: type of the weights. COLS: columns of a warp. X4: columns are read 4 values at a time. IDS: the matrix of each column is chosen
// by a list of numbers.
#include "blocks.cuh"

using W = types::TYPE;

const int WARPS = 4;

struct Params {
    Tensor w, x, y, ids;
    Fault *fault;
    u32 node;
};

// Values `i` to `i + RUN - 1` of a column.
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

// The products of a row of weights with columns, in every lane.
DEVICE void dot(const Params &p, const char *row, const char *const (&columns)[COLS], float (&sums)[COLS]) {
    const i64 block_bytes = W::QK == 1 ? p.w.nb[0] : (i64)W::BYTES;
    const int n_chunks = p.w.ne[0] / W::QK * W::CHUNKS;
    for (int c = threadIdx.x % 32; c < n_chunks; c += 32) {
        int block = c / W::CHUNKS, in = c % W::CHUNKS;
        float w[W::N];
        W::chunk((const u8 *)row + block * block_bytes, in, w);
        int first = block * W::QK + chunk_start<W>(in);
        for (int n = 0; n < COLS; n++) add_chunk(p.x, columns[n], first, w, sums[n]);
    }
    for (int n = 0; n < COLS; n++) sums[n] = warp_sum(sums[n]);
}

// Grid: rows by WARPS; columns by COLS, or places of `ids`; outer dimensions, or tokens.
extern "C" __global__ void __launch_bounds__(32 * WARPS) mul_vec(const __grid_constant__ Params p) {
    int row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= p.w.ne[1]) return;
    const char *w = p.w.data + row * p.w.nb[1], *columns[COLS];
    char *y = p.y.data + row * p.y.nb[0];
    float sums[COLS] = {};
#if IDS
    int place = blockIdx.y, token = blockIdx.z;
    int id = *(const int *)(p.ids.data + place * p.ids.nb[0] + token * p.ids.nb[1]);
    if ((u32)id >= (u32)p.w.ne[2]) {
        report(p.fault, p.node, id, p.w.ne[2]);
        return;
    }
    w += id * p.w.nb[2];
    columns[0] = p.x.data + place % p.x.ne[1] * p.x.nb[1] + token * p.x.nb[2];
    dot(p, w, columns, sums);
    if (threadIdx.x % 32 == 0) *(float *)(y + place * p.y.nb[1] + token * p.y.nb[2]) = sums[0];
#else
    int first = blockIdx.y * COLS, i2 = blockIdx.z % p.x.ne[2], i3 = blockIdx.z / p.x.ne[2], n = p.x.ne[1];
    w += i2 / (p.x.ne[2] / p.w.ne[2]) * p.w.nb[2] + i3 / (p.x.ne[3] / p.w.ne[3]) * p.w.nb[3];
    const char *x = p.x.data + i2 * p.x.nb[2] + i3 * p.x.nb[3];
    y += i2 * p.y.nb[2] + i3 * p.y.nb[3];
    for (int c = 0; c < COLS; c++) columns[c] = x + min(first + c, n - 1) * p.x.nb[1];
    dot(p, w, columns, sums);
    for (int c = 0; c < COLS; c++) {
        if (threadIdx.x % 32 == c && first + c < n) *(float *)(y + (first + c) * p.y.nb[1]) = sums[c];
    }
#endif
}

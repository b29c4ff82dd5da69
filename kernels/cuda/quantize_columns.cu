// Quantizes columns of floats to 16-bit integers, split into two 8-bit parts, for integer matmuls. A value is
// `scale * (254 * high + low)`, with an error of at most 1/64516 of the largest magnitude in its group of 32.
#include "common.cuh"
#include "columns.cuh"

struct Params {
    Tensor x;
    // Destination of the quantized columns.
    Tile *tiles;
    int n_groups;
    // True if 4 values can be loaded at a time.
    int is_dense;
};

// Grid: groups of 32 values of all columns, 4 per warp.
extern "C" __global__ void __launch_bounds__(256) quantize_columns(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int per_column = p.x.ne[0] / 32, group = thread_number() / 8;
    bool is_there = group < p.n_groups;
    group = min(group, p.n_groups - 1);
    int column = group / per_column, at = group % per_column * 32 + threadIdx.x % 8 * 4;
    const int ne[4] = {1, p.x.ne[1], p.x.ne[2], p.x.ne[3]};
    const char *from = p.x.data + row_offset(p.x, unravel(column, ne)) + at * p.x.nb[0];
    float x[4];
    if (p.is_dense) {
        float4 values = *(const float4 *)from;
        x[0] = values.x, x[1] = values.y, x[2] = values.z, x[3] = values.w;
    } else {
        for (int i = 0; i < 4; i++) x[i] = *(const float *)(from + i * p.x.nb[0]);
    }
    store_rounded(p.tiles, column, p.x.ne[0], at, x, is_there);
}

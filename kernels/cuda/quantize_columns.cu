// Columns of floats as integers of 16 bits in two parts of 8, for products with weights that are integers. A value of a column is
// `scale * (254 * high + low)`, off by at most 1/64516 of the largest magnitude of its 32.
#include "common.cuh"
#include "columns.cuh"

struct Params {
    Tensor x;
    // Those of all columns.
    Tile *tiles;
    int n_groups, padding;
};

// Grid: groups of 32 values of all columns, one to a warp.
extern "C" __global__ void __launch_bounds__(256) quantize_columns(const __grid_constant__ Params p) {
    int per_column = p.x.ne[0] / 32, group = thread_number() / 32, lane = threadIdx.x % 32;
    if (group >= p.n_groups) return;
    int column = group / per_column, at = group % per_column * 32 + lane;
    const int ne[4] = {1, p.x.ne[1], p.x.ne[2], p.x.ne[3]};
    float x = *(const float *)(p.x.data + row_offset(p.x, unravel(column, ne)) + at * p.x.nb[0]);
    store_rounded(p.tiles, column, p.x.ne[0], at, x);
}

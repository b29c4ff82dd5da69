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
    float largest = warp_max(fabsf(x));
    // What is too small for a reciprocal is as good as nothing; what is no number makes the scale no number.
    float inverse = largest > 1e-36f ? 127.0f / largest : 0.0f, steps = x * inverse;
    float high = rintf(steps), low = rintf((steps - high) * 254.0f);
    int value = 254 * (int)high + (int)low;
    for (int step = 8; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
    int n_tiles = (p.x.ne[0] + Tile::N - 1) / Tile::N, in = at / 32 % (Tile::N / 32);
    Tile &to = p.tiles[(i64)column * n_tiles + at / Tile::N];
    float scale = (x == x ? largest : x) * (1.0f / (127.0f * 254.0f));
    int place = place_of(2 * in + lane / 16) + lane % 16;
    to.high[place] = (i8)(int)high;
    to.low[place] = (i8)(int)low;
    if (lane == 0) to.scale[in] = scale;
    if (lane % 16 == 0) to.sums[lane / 16][in] = (float)value * scale;
}

// Rounds columns of floats to bf16, for matmuls on tensor cores. For the order, see `tiled.cuh`.
#include "tiled.cuh"

struct Params {
    Tensor x;
    char *columns;
    // Columns of an outer dimension without and with padding, columns of a step, number of steps, and number of pairs
    // of values. Missing values and columns become zeros.
    int per_outer, n_padded, n_total, n_steps, n;
};

// Grid: pairs of values of all columns, one per thread. A warp writes a step of a column.
extern "C" __global__ void __launch_bounds__(256) round_columns(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int number = thread_number();
    if (number >= p.n) return;
    int pair = number % (STEP / 2), step = number / (STEP / 2) % p.n_steps, column = number / (STEP / 2) / p.n_steps;
    int at = step * STEP + 2 * pair, outer = column / p.n_padded, place = column % p.n_padded;
    const int ne[4] = {1, p.x.ne[1], p.x.ne[2], p.x.ne[3]};
    u32 halves[2] = {};
    if (place < p.per_outer) {
        const char *x = p.x.data + row_offset(p.x, unravel(outer * p.per_outer + place, ne));
        for (int i = 0; i < 2; i++) halves[i] = at + i < p.x.ne[0] ? float_to_bfloat(*(const float *)(x + (at + i) * p.x.nb[0])) : 0;
    }
    char *to = p.columns + ((i64)step * p.n_total + column) * (2 * STEP) + place_in_column(column, pair / 4) + pair % 4 * 4;
    *(u32 *)to = halves[0] | halves[1] << 16;
}

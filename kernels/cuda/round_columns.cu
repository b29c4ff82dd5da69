// Rounds columns of floats to bf16, for matmuls on tensor cores.
#include "common.cuh"

struct Params {
    Tensor x;
    // Destination of the columns, and the distance between columns in bytes. The rest of each column is
    // filled with zeros.
    char *columns;
    int stride, n;
};

// Grid: pairs of values of all columns, one per thread.
extern "C" __global__ void __launch_bounds__(256) round_columns(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int per_column = p.stride / 4, number = thread_number();
    if (number >= p.n) return;
    int column = number / per_column, at = number % per_column * 2;
    const int ne[4] = {1, p.x.ne[1], p.x.ne[2], p.x.ne[3]};
    const char *x = p.x.data + row_offset(p.x, unravel(column, ne));
    u32 halves[2];
    for (int i = 0; i < 2; i++) halves[i] = at + i < p.x.ne[0] ? float_to_bfloat(*(const float *)(x + (at + i) * p.x.nb[0])) : 0;
    *(u32 *)(p.columns + (i64)column * p.stride + 2 * at) = halves[0] | halves[1] << 16;
}

// Writes rows of floats into a table of any type with a quantizer.
//
// TYPE: type of the table.
#include "encode.cuh"

struct Params {
    Tensor x, table, ids;
    Fault *fault;
    i64 no_row;
    u32 node, n_blocks;
};

// Grid: x covers the blocks of a row, one per thread; y is the row.
extern "C" __global__ void set_rows(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    using T = types::TYPE;
    u32 block = thread_number();
    int t = blockIdx.y;
    if (block >= p.n_blocks) return;
    i64 row = *(const i64 *)(p.ids.data + t * p.ids.nb[0]);
    if (row == p.no_row) return;
    if (row < 0 || row >= p.table.ne[1]) {
        report(p.fault, p.node, row, p.table.ne[1]);
        return;
    }
    float x[T::QK];
    const char *from = p.x.data + t * p.x.nb[1] + block * (i64)T::QK * p.x.nb[0];
    for (int i = 0; i < T::QK; i++) x[i] = *(const float *)(from + i * p.x.nb[0]);
    T::encode(x, (u8 *)p.table.data + row * p.table.nb[1] + block * (i64)T::BYTES);
}

// Ops that move elements, and ops on integers.
//
// A: type of the first operand.
#include "blocks.cuh"

struct Params {
    Tensor a, b, ids, y;
    Fault *fault;
    u32 node, n;
    int i0, i1;
    float c0, c1;
};

DEVICE char *place(const Tensor &t, const Index &at) {
    return t.data + row_offset(t, at) + at.i[0] * t.nb[0];
}

DEVICE float &float_at(const Tensor &t, const Index &at) {
    return *(float *)place(t, at);
}

DEVICE int &int_at(const Tensor &t, const Index &at) {
    return *(int *)place(t, at);
}

// Returns an element of any type.
DEVICE float value(const Tensor &t, const Index &at) {
    return element<types::A>(t, t.data + row_offset(t, at), at.i[0]);
}

// Returns the row that an element of a list selects. If the row is out of range, records an error and returns
// -1.
DEVICE int row_of(const Params &p, int i0, int i1, int i2, int rows) {
    int row = *(const int *)(p.ids.data + i0 * p.ids.nb[0] + i1 * p.ids.nb[1] + i2 * p.ids.nb[2]);
    if ((u32)row < (u32)rows) return row;
    report(p.fault, p.node, row, rows);
    return -1;
}

// Copies the elements of `a` in order to a tensor of a different shape.
extern "C" __global__ void cont(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    u32 n = thread_number();
    if (n < p.n) float_at(p.y, unravel(n, p.y.ne)) = value(p.a, unravel(n, p.a.ne));
}

// Concatenates `a` and `b` along dimension `i0`.
extern "C" __global__ void concat(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    u32 n = thread_number();
    if (n >= p.n) return;
    Index at = unravel(n, p.y.ne), from = at;
    bool second = false;
    for (int d = 0; d < 4; d++) {
        if (d == p.i0 && from.i[d] >= (u32)p.a.ne[d]) {
            from.i[d] -= p.a.ne[d];
            second = true;
        }
    }
    float_at(p.y, at) = float_at(second ? p.b : p.a, from);
}

// Adds to each row of `a` the row of `b` selected by `ids`.
extern "C" __global__ void add_id(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    u32 n = thread_number();
    if (n >= p.n) return;
    Index at = unravel(n, p.y.ne);
    int row = row_of(p, at.i[1], at.i[2], 0, p.b.ne[1]);
    if (row < 0) return;
    float b = element<types::A>(p.b, p.b.data + row * p.b.nb[1], at.i[0]);
    float_at(p.y, at) = float_at(p.a, at) + b;
}

// Gathers rows of `a`. Each thread decodes a chunk. Grid: chunks of a row, rows, outer dimensions.
extern "C" __global__ void get_rows(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    using T = types::A;
    u32 c = thread_number();
    if (c >= p.n) return;
    int t = blockIdx.y, i2 = blockIdx.z % p.ids.ne[1], i3 = blockIdx.z / p.ids.ne[1];
    int row = row_of(p, t, i2, i3, p.a.ne[1]);
    if (row < 0) return;
    const i64 block_bytes = T::QK == 1 ? p.a.nb[0] : (i64)T::BYTES;
    int block = c / T::CHUNKS, in = c % T::CHUNKS;
    float v[T::N];
    const char *from = p.a.data + row * p.a.nb[1] + i2 * p.a.nb[2] + i3 * p.a.nb[3] + block * block_bytes;
    T::chunk((const u8 *)from, in, v);
    char *to = p.y.data + t * p.y.nb[1] + i2 * p.y.nb[2] + i3 * p.y.nb[3];
    int first = block * T::QK + chunk_start<T>(in);
    for (int n = 0; n < T::N; n++) {
        *(float *)(to + (first + n / T::RUN * T::GAP + n % T::RUN) * p.y.nb[0]) = v[n];
    }
}

// Gathers rows of integers, with one thread per element.
extern "C" __global__ void get_int_rows(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    u32 n = thread_number();
    if (n >= p.n) return;
    Index at = unravel(n, p.y.ne), from = at;
    int row = row_of(p, at.i[1], at.i[2], at.i[3], p.a.ne[1]);
    if (row < 0) return;
    from.i[1] = row;
    int_at(p.y, at) = int_at(p.a, from);
}

extern "C" __global__ void div_ids(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    u32 n = thread_number();
    if (n < p.n) int_at(p.y, unravel(n, p.y.ne)) = int_at(p.a, unravel(n, p.a.ne)) / p.i0;
}

extern "C" __global__ void to_floats(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    u32 n = thread_number();
    if (n < p.n) float_at(p.y, unravel(n, p.y.ne)) = (float)int_at(p.a, unravel(n, p.a.ne));
}

// Subtracts `i0` from the positions, for each axis.
extern "C" __global__ void earlier_positions(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    u32 n = thread_number();
    if (n >= p.n) return;
    Index at = unravel(n, p.y.ne);
    i64 pos = (i64)*(const int *)(p.a.data + at.i[0] * p.a.nb[0]) - p.i0;
    int_at(p.y, at) = (int)max(pos, (i64)-2147483647 - 1);
}

// Computes 1 + c0 ln(floor((position + c1) / i0) + 1).
extern "C" __global__ void attention_temperature(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    u32 n = thread_number();
    if (n >= p.n) return;
    float position = (float)*(const int *)(p.a.data + n * p.a.nb[0]);
    float steps = floorf((position + p.c1) / (float)p.i0);
    *(float *)(p.y.data + n * p.y.nb[2]) = 1.0f + p.c0 * logf(steps + 1.0f);
}

// Ops that compute each element from the elements at the same position.
//
// OP: one of the functions below. GATED: OP is applied to `a`, and the result is multiplied by `b`. B: type
// of `b`, for ops with two operands.
#include "blocks.cuh"
#include "unary.cuh"

struct Params {
    Tensor a, b, y;
    float c0, c1;
    u32 n;
};

// Elementwise functions of two operands.
DEVICE float add(float a, float b) { return a + b; }
DEVICE float sub(float a, float b) { return a - b; }
DEVICE float mul(float a, float b) { return a * b; }
DEVICE float div(float a, float b) { return a / b; }

// Elementwise functions of one operand and constants.
DEVICE float scale(float x, const Params &p) { return x * p.c0 + p.c1; }
DEVICE float clamp(float x, const Params &p) { return fminf(fmaxf(x, p.c0), p.c1); }
DEVICE float repeat(float x, const Params &) { return x; }

DEVICE const float *float_at(const Tensor &t, const Index &at) {
    return (const float *)(t.data + row_offset(t, at) + at.i[0] * t.nb[0]);
}

DEVICE void store(const Params &p, const Index &at, float x) {
    *(float *)(p.y.data + row_offset(p.y, at) + at.i[0] * p.y.nb[0]) = x;
}

#ifdef B
extern "C" __global__ void binary(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    u32 n = thread_number();
    if (n >= p.n) return;
    Index at = unravel(n, p.y.ne), in_b = repeated(p.b, at);
    float a = *float_at(p.a, at), b = element<types::B>(p.b, p.b.data + row_offset(p.b, in_b), in_b.i[0]);
#if GATED
    store(p, at, OP(a) * b);
#else
    store(p, at, OP(a, b));
#endif
}
#else
// Broadcasts `a` to the shape of the result.
extern "C" __global__ void unary(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    u32 n = thread_number();
    if (n >= p.n) return;
    Index at = unravel(n, p.y.ne);
#if CONSTANTS
    store(p, at, OP(*float_at(p.a, repeated(p.a, at)), p));
#else
    store(p, at, OP(*float_at(p.a, repeated(p.a, at))));
#endif
}
#endif

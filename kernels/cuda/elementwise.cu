// Ops that compute each element from the elements at its place.
//
// OP: the function below. GATED: it is one of `a`, and `b` multiplies the result. B: type of `b`, of ops that have one.
#include "blocks.cuh"

struct Params {
    Tensor a, b, y;
    float c0, c1;
    u32 n;
};

DEVICE float sigmoid_of(float x) {
    return 1.0f / (1.0f + expf(-x));
}

// Of two operands.
DEVICE float add(float a, float b) { return a + b; }
DEVICE float sub(float a, float b) { return a - b; }
DEVICE float mul(float a, float b) { return a * b; }
DEVICE float div(float a, float b) { return a / b; }

// Of one.
DEVICE float neg(float x) { return -x; }
DEVICE float abs_of(float x) { return fabsf(x); }
DEVICE float sqr(float x) { return x * x; }
DEVICE float sqrt_of(float x) { return sqrtf(x); }
DEVICE float exp_of(float x) { return expf(x); }
DEVICE float tanh_of(float x) { return tanhf(x); }
DEVICE float sigmoid(float x) { return sigmoid_of(x); }
DEVICE float relu(float x) { return fmaxf(x, 0.0f); }
DEVICE float relu_sqr(float x) { return relu(x) * relu(x); }
DEVICE float silu(float x) { return x * sigmoid_of(x); }
// tanh(z) is 2 sigmoid(2 z) - 1, which makes of 0.5 (1 + tanh(z)) a sigmoid that keeps its precision where it is small.
DEVICE float gelu(float x) { return x * sigmoid_of(1.5957691216057308f * (x + 0.044715f * x * x * x)); }
DEVICE float gelu_erf(float x) { return 0.5f * x * erfcf(-0.7071067811865476f * x); }
DEVICE float gelu_quick(float x) { return x * sigmoid_of(1.702f * x); }
DEVICE float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// Of one and the constants.
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
// `a` is repeated to the shape of the result.
extern "C" __global__ void unary(const __grid_constant__ Params p) {
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

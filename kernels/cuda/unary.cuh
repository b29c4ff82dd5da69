// Activation functions.
#pragma once
#include "common.cuh"

DEVICE float sigmoid_of(float x) {
    return 1.0f / (1.0f + expf(-x));
}

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
// 0.5 (1 + tanh(z)) equals sigmoid(2 z), which keeps its precision for small results.
DEVICE float gelu(float x) { return x * sigmoid_of(1.5957691216057308f * (x + 0.044715f * x * x * x)); }
DEVICE float gelu_erf(float x) { return 0.5f * x * erfcf(-0.7071067811865476f * x); }
DEVICE float gelu_quick(float x) { return x * sigmoid_of(1.702f * x); }
DEVICE float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// Angles of rotary position embeddings.
//
// NEIGHBORS: the elements of a pair are adjacent; otherwise they are half the rotated dimensions apart.
#pragma once
#include "common.cuh"

struct Rope {
    Tensor positions, factors;
    float step, freq_scale, ext_factor, magnitude, low, high;
    int n_dims, n_axes, every, inverse, sections[4], interleaved, padding;
    // The results of `rotation_of` for all tokens (see `angles.cu`), or null.
    float2 *table;
};

DEVICE int axis_of(const Rope &p, int pair) {
    int t = p.sections[0], h = p.sections[1], w = p.sections[2];
    if (p.n_axes == 1) return 0;
    int at = pair % max(t + h + w + p.sections[3], 1);
    if (p.interleaved) {
        int axis = at % 3;
        if (at < 3 * (axis == 0 ? t : axis == 1 ? h : w)) return axis;
        return at >= t + h + w ? 3 : 0;
    }
    return (at >= t) + (at >= t + h) + (at >= t + h + w);
}

// Returns the position from which the angle of a pair is computed.
DEVICE float place(const Rope &p, int token, int axis) {
    i64 pos = *(const int *)(p.positions.data + token * p.positions.nb[0] + axis * p.positions.nb[1]);
    i64 down = pos >= 0 ? pos / p.every : -((p.every - 1 - pos) / p.every);
    pos = max(min(down * p.every, 2147483647ll), -2147483648ll);
    return (float)(p.inverse ? min(-pos, 2147483647ll) : pos);
}

// Returns the sine and cosine of a pair's angle, times the magnitude.
DEVICE float2 rotation(const Rope &p, float extrapolated, int pair) {
    float angle = p.freq_scale * extrapolated;
    if (p.ext_factor != 0.0f) {
        float ramp = ((float)pair - p.low) / fmaxf(p.high - p.low, 0.001f);
        float mix = (1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f)) * p.ext_factor;
        // Two products and a sum, without fused multiply-add, so that angles of any size are bit-exact.
        angle = __fadd_rn(__fmul_rn(angle, 1.0f - mix), __fmul_rn(extrapolated, mix));
    }
    // Convert the angle to half turns and remove whole turns. Double precision retains the digits of large angles.
    double half_turns = (double)angle * 0.31830988618379067154;
    half_turns -= 2.0 * rint(0.5 * half_turns);
    float sine, cosine;
    sincospif((float)half_turns, &sine, &cosine);
    return make_float2(sine * p.magnitude, cosine * p.magnitude);
}

// Computes the sine and cosine for a pair of a token's heads.
DEVICE float2 computed_rotation(const Rope &p, int token, int pair) {
    // Each pair's angle is computed in f32 from the previous pair's angle, as in training and in other
    // engines.
    float theta = place(p, token, axis_of(p, pair));
    for (int i = 0; i < pair; i++) theta = __fmul_rn(theta, p.step);
    if (p.factors.data) theta /= *(const float *)(p.factors.data + pair * p.factors.nb[0]);
    return rotation(p, theta, pair);
}

// Returns the sine and cosine for a pair of a token's heads.
DEVICE float2 rotation_of(const Rope &p, int token, int pair) {
    return p.table ? p.table[(i64)token * (p.n_dims / 2) + pair] : computed_rotation(p, token, pair);
}

// Returns the indices of a pair's elements.
DEVICE int2 elements_of(const Rope &p, int pair) {
#if NEIGHBORS
    return make_int2(2 * pair, 2 * pair + 1);
#else
    return make_int2(pair, pair + p.n_dims / 2);
#endif
}

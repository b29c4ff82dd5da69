// Rotary positions. A block has a token, a thread some pairs of all its heads.
//
// NEIGHBOURS: pairs are neighbouring elements; else they lie half the rotated elements apart.
#include "common.cuh"

struct Params {
    Tensor x, positions, factors, y;
    float step, freq_scale, ext_factor, magnitude, low, high;
    int n_dims, n_axes, every, inverse, sections[4], interleaved;
};

DEVICE int axis_of(const Params &p, int pair) {
    int t = p.sections[0], h = p.sections[1], w = p.sections[2];
    if (p.n_axes == 1) return 0;
    int at = pair % max(t + h + w + p.sections[3], 1);
    if (p.interleaved) {
        int axis = at % 3;
        return at < 3 * (axis == 0 ? t : axis == 1 ? h : w) ? axis : 3;
    }
    return (at >= t) + (at >= t + h) + (at >= t + h + w);
}

// The position that the angle of a pair is computed from.
DEVICE float place(const Params &p, int token, int axis) {
    i64 pos = *(const int *)(p.positions.data + token * p.positions.nb[0] + axis * p.positions.nb[1]);
    i64 down = pos >= 0 ? pos / p.every : -((p.every - 1 - pos) / p.every);
    pos = max(min(down * p.every, 2147483647ll), -2147483648ll);
    return (float)(p.inverse ? min(-pos, 2147483647ll) : pos);
}

// Sine and cosine of a pair's angle, times the magnitude.
DEVICE float2 rotation(const Params &p, float extrapolated, int pair) {
    float angle = p.freq_scale * extrapolated;
    if (p.ext_factor != 0.0f) {
        float ramp = ((float)pair - p.low) / fmaxf(p.high - p.low, 0.001f);
        float mix = (1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f)) * p.ext_factor;
        // As two products and a sum: an angle is exact to the last bit, whatever its size.
        angle = __fadd_rn(__fmul_rn(angle, 1.0f - mix), __fmul_rn(extrapolated, mix));
    }
    // Half turns, whole turns left out, in double precision: large angles keep their digits.
    double half_turns = (double)angle * 0.31830988618379067154;
    half_turns -= 2.0 * rint(0.5 * half_turns);
    float sine, cosine;
    sincospif((float)half_turns, &sine, &cosine);
    return make_float2(sine * p.magnitude, cosine * p.magnitude);
}

extern "C" __global__ void rope(const __grid_constant__ Params p) {
    int token = blockIdx.x;
    const char *x = p.x.data + token * p.x.nb[2];
    char *y = p.y.data + token * p.y.nb[2];
    for (int pair = threadIdx.x; pair < p.n_dims / 2; pair += blockDim.x) {
        // In floats, each pair's angle from the one before: models are trained and served with these very angles.
        float theta = place(p, token, axis_of(p, pair));
        for (int i = 0; i < pair; i++) theta = __fmul_rn(theta, p.step);
        if (p.factors.data) theta /= *(const float *)(p.factors.data + pair * p.factors.nb[0]);
        float2 r = rotation(p, theta, pair);
#if NEIGHBOURS
        int a = 2 * pair, b = 2 * pair + 1;
#else
        int a = pair, b = pair + p.n_dims / 2;
#endif
        for (int head = 0; head < p.x.ne[1]; head++) {
            const char *from = x + head * p.x.nb[1];
            char *to = y + head * p.y.nb[1];
            float xa = *(const float *)(from + a * p.x.nb[0]), xb = *(const float *)(from + b * p.x.nb[0]);
            *(float *)(to + a * p.y.nb[0]) = xa * r.y - xb * r.x;
            *(float *)(to + b * p.y.nb[0]) = xa * r.x + xb * r.y;
        }
    }
    int n_rest = p.x.ne[0] - p.n_dims;
    for (int i = threadIdx.x; i < n_rest * p.x.ne[1]; i += blockDim.x) {
        int at = p.n_dims + i % n_rest, head = i / n_rest;
        float rest = *(const float *)(x + head * p.x.nb[1] + at * p.x.nb[0]);
        *(float *)(y + head * p.y.nb[1] + at * p.y.nb[0]) = rest;
    }
}

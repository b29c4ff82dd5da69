// Quantization of floats to every type that has a quantizer. The results are bit-identical to
// `kernels/src/quants`, since floats are summed in the same order. Must be compiled without fused
// multiply-add.
#pragma once
#include "common.cuh"

DEVICE void put_half(u8 *p, float x) {
    *(u16 *)p = float_to_half(x);
}

// Returns 1 / x, or 0 for 0.
DEVICE float inverse(float x) {
    return x == 0.0f ? 0.0f : 1.0f / x;
}

// Rounds to the nearest integer in 0..=most.
DEVICE u32 round_to(float x, float most) {
    return (u32)fminf(fmaxf(rintf(x), 0.0f), most);
}

// Returns the element with the largest magnitude, including its sign.
DEVICE float signed_max(const float (&x)[32]) {
    float largest = 0.0f;
    for (int i = 0; i < 32; i++) largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
    return largest;
}

// Searches the scales that map the element with the largest magnitude to given values; keeps the scale with the
// smallest squared error.
struct BestScale {
    float scale, gain;

    template <class V> DEVICE void take(const float (&x)[32], float largest, float end, V value) {
        float inv = end / largest, sum_xv = 0.0f, sum_vv = 0.0f;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            float v = value(x[i] * inv);
            sum_xv += x[i] * v;
            sum_vv += v * v;
        }
        float found = sum_xv * sum_xv / sum_vv;
        if (found > gain) {
            scale = sum_xv / sum_vv;
            gain = found;
        }
    }
};

// Fits a line through the elements over their quantized indices, and returns the reduction of the squared
// error.
DEVICE float fit_line(const float (&x)[32], float &scale, float &base, float most) {
    float inv = inverse(scale), mean_x = 0.0f, mean_q = 0.0f, sum_xq = 0.0f, sum_qq = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; i++) mean_x += x[i];
#pragma unroll
    for (int i = 0; i < 32; i++) mean_q += (float)round_to((x[i] - base) * inv, most);
    mean_x /= 32.0f, mean_q /= 32.0f;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        float q = (float)round_to((x[i] - base) * inv, most) - mean_q;
        sum_xq += (x[i] - mean_x) * q;
        sum_qq += q * q;
    }
    scale = sum_xq / sum_qq;
    base = mean_x - scale * mean_q;
    return sum_xq * scale;
}

// Returns the scale and minimum with the smallest squared error, found by alternating rounding and fitting from
// slightly narrowed ranges.
DEVICE float2 best_line(const float (&x)[32], float most) {
    float low = INF, high = -INF;
    for (int i = 0; i < 32; i++) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
    float2 best = make_float2((high - low) / most, low);
    float best_gain = 0.0f;
#pragma unroll 1
    for (int i = 0; i < 25; i++) {
        float narrow_low = (float)(i % 5) * 0.4f, narrow_high = (float)(i / 5) * 0.4f;
        float scale = (high - low) / (most - narrow_low - narrow_high), base = low + narrow_low * scale;
#pragma unroll 1
        for (int round = 0; round < 3; round++) {
            float gain = fit_line(x, scale, base, most);
            if (gain > best_gain) {
                best = make_float2(scale, base);
                best_gain = gain;
            }
        }
    }
    return best;
}

// Stores 32 values of 4 or 5 bits: low nibbles for the first 16, high nibbles for the rest, and the fifth
// bits at `qh`.
template <class Q> DEVICE void put_values(u8 *qs, u8 *qh, Q q) {
    u32 high = 0;
    for (int j = 0; j < 16; j++) {
        u32 a = q(j), b = q(j + 16);
        qs[j] = (u8)((a & 15) | (b & 15) << 4);
        high |= a >> 4 << j | b >> 4 << (j + 16);
    }
    if (qh) {
        for (int i = 0; i < 4; i++) qh[i] = (u8)(high >> 8 * i);
    }
}

// Returns a scale for values in `-zero..=zero - 1`. The largest element usually maps to the end with the larger
// magnitude.
DEVICE float scale_around(const float (&x)[32], float zero) {
    float largest = signed_max(x);
    BestScale best = {0.0f, 0.0f};
    if (largest != 0.0f) {
#pragma unroll 1
        for (int i = 0; i < 10; i++) {
            float end = i < 8 ? 0.25f * (float)i - zero - 0.75f : zero - 1.0f + 0.5f * (float)(i - 8);
            best.take(x, largest, end, [=](float v) { return fminf(fmaxf(rintf(v), -zero), zero - 1.0f); });
        }
    }
    return best.scale;
}

__constant__ const i8 IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Returns the index of the nearest value in the table.
DEVICE u32 nearest_iq4(float x) {
    int above = 0;
    for (int i = 0; i < 16; i++) above += (float)IQ4_VALUES[i] < x;
    above = min(max(above, 1), 15);
    return (float)IQ4_VALUES[above] - x < x - (float)IQ4_VALUES[above - 1] ? above : above - 1;
}

namespace types {

struct f32 {
    static const int QK = 1, BYTES = 4;
    static DEVICE void encode(const float (&x)[1], u8 *b) { *(float *)b = x[0]; }
};

struct f16 {
    static const int QK = 1, BYTES = 2;
    static DEVICE void encode(const float (&x)[1], u8 *b) { put_half(b, x[0]); }
};

struct bf16 {
    static const int QK = 1, BYTES = 2;
    static DEVICE void encode(const float (&x)[1], u8 *b) { *(u16 *)b = float_to_bfloat(x[0]); }
};

struct q4_0 {
    static const int QK = 32, BYTES = 18;
    static DEVICE void encode(const float (&x)[32], u8 *b) {
        put_half(b, scale_around(x, 8.0f));
        float inv = inverse(half_to_float(*(u16 *)b));
        put_values(b + 2, nullptr, [&](int j) { return round_to(x[j] * inv + 8.0f, 15.0f); });
    }
};

struct q5_0 {
    static const int QK = 32, BYTES = 22;
    static DEVICE void encode(const float (&x)[32], u8 *b) {
        put_half(b, scale_around(x, 16.0f));
        float inv = inverse(half_to_float(*(u16 *)b));
        put_values(b + 6, b + 2, [&](int j) { return round_to(x[j] * inv + 16.0f, 31.0f); });
    }
};

struct q4_1 {
    static const int QK = 32, BYTES = 20;
    static DEVICE void encode(const float (&x)[32], u8 *b) {
        float2 line = best_line(x, 15.0f);
        put_half(b, line.x), put_half(b + 2, line.y);
        float inv = inverse(half_to_float(*(u16 *)b)), base = half_to_float(*(u16 *)(b + 2));
        put_values(b + 4, nullptr, [&](int j) { return round_to((x[j] - base) * inv, 15.0f); });
    }
};

struct q5_1 {
    static const int QK = 32, BYTES = 24;
    static DEVICE void encode(const float (&x)[32], u8 *b) {
        float2 line = best_line(x, 31.0f);
        put_half(b, line.x), put_half(b + 2, line.y);
        float inv = inverse(half_to_float(*(u16 *)b)), base = half_to_float(*(u16 *)(b + 2));
        put_values(b + 8, b + 4, [&](int j) { return round_to((x[j] - base) * inv, 31.0f); });
    }
};

struct q8_0 {
    static const int QK = 32, BYTES = 34;
    static DEVICE void encode(const float (&x)[32], u8 *b) {
        put_half(b, fabsf(signed_max(x)) / 127.0f);
        float inv = inverse(half_to_float(*(u16 *)b));
        for (int i = 0; i < 32; i++) b[2 + i] = (u8)(i8)fminf(fmaxf(rintf(x[i] * inv), -127.0f), 127.0f);
    }
};

struct iq4_nl {
    static const int QK = 32, BYTES = 18;
    static DEVICE void encode(const float (&x)[32], u8 *b) {
        float largest = signed_max(x);
        BestScale best = {0.0f, 0.0f};
        if (largest != 0.0f) {
            // Maps the largest element close to either end of the table.
#pragma unroll 1
            for (int i = 0; i < 20; i++) {
                float end = (float)(i < 11 ? 4 * i - 140 : 4 * (i - 11) + 96);
                best.take(x, largest, end, [](float v) { return (float)IQ4_VALUES[nearest_iq4(v)]; });
            }
        }
        put_half(b, best.scale);
        float inv = inverse(half_to_float(*(u16 *)b));
        put_values(b + 2, nullptr, [&](int j) { return nearest_iq4(x[j] * inv); });
    }
};

} // namespace types

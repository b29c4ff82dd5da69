// What blocks mean as integers of 8 bits, for products with activations that are integers, too. A type gives a unit of a block at a time: RUNS runs
// of 16 neighbouring values, GAP values apart, so that the bytes that hold bits of several values are read once. A value is its integer times the
// run's scale, plus the run's minimum. Blocks lie in shared memory, at any address.
#pragma once
#include "blocks.cuh"

// The words from byte `at` of shared memory on.
template <int ALIGN, int N> DEVICE void words(const u8 *shared, int at, u32 (&out)[N]) {
    if (ALIGN >= 16) {
        for (int i = 0; i < N; i += 4) {
            uint4 x = *(const uint4 *)(shared + at + 4 * i);
            out[i] = x.x, out[i + 1] = x.y, out[i + 2] = x.z, out[i + 3] = x.w;
        }
        return;
    }
    const u32 *from = (const u32 *)(shared + (at & ~3));
    if (ALIGN >= 4) {
        for (int i = 0; i < N; i++) out[i] = from[i];
        return;
    }
    // A word that lies across two is put together from both. Where none does, nothing behind the last one is read.
    int shift = 8 * (at & 3);
    u32 low = from[0];
    for (int i = 0; i < N; i++) {
        u32 high = i + 1 < N || shift ? from[i + 1] : 0;
        out[i] = __funnelshift_r(low, high, shift);
        low = high;
    }
}

// The half float at an even address of shared memory.
DEVICE float shared_half(const u8 *shared, int at) {
    return half_to_float(*(const u16 *)(shared + at));
}

// The values of a table of 16 bytes that the low and the high halves of the bytes of a word stand for.
DEVICE void of_table(const u32 (&table)[4], u32 w, u32 &low, u32 &high) {
    u32 parts[2];
    for (int i = 0; i < 2; i++, w >>= 16) {
        u32 small = __byte_perm(table[0], table[1], w & 0x7777), large = __byte_perm(table[2], table[3], w & 0x7777);
        parts[i] = __byte_perm(small, large, 0x3210 | (w & 0x8888) >> 1);
    }
    low = __byte_perm(parts[0], parts[1], 0x6420);
    high = __byte_perm(parts[0], parts[1], 0x7531);
}

// The lowest four bits of `bits`, one to a byte.
DEVICE u32 spread(u32 bits) {
    return (bits & 15) * 0x00204081u & 0x01010101u;
}

// Runs of a unit.
template <int RUNS> struct Unit {
    u32 q[RUNS][4];
    float scale[RUNS], min[RUNS];
};

#define DOTS(units, runs, gap, has_min)                                                                          \
    static const int UNITS = units, RUNS = runs, GAP = gap;                                                          \
    static const bool HAS_MIN = has_min;                                                                             \
    typedef ::Unit<runs> Unit;

namespace dots {

// Blocks of 32 whose bytes hold a value of the first half and one of the second.
struct q4_0 : types::q4_0 {
    DOTS(1, 2, 16, true)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int b, int, Unit &to) {
        u32 w[4];
        words<2>(s, b + 2, w);
        for (int i = 0; i < 4; i++) to.q[0][i] = w[i] & 0x0f0f0f0fu, to.q[1][i] = w[i] >> 4 & 0x0f0f0f0fu;
        to.scale[0] = to.scale[1] = shared_half(s, b);
        to.min[0] = to.min[1] = -8.0f * to.scale[0];
    }
};

struct q4_1 : types::q4_1 {
    DOTS(1, 2, 16, true)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int b, int, Unit &to) {
        u32 w[4];
        words<4>(s, b + 4, w);
        for (int i = 0; i < 4; i++) to.q[0][i] = w[i] & 0x0f0f0f0fu, to.q[1][i] = w[i] >> 4 & 0x0f0f0f0fu;
        to.scale[0] = to.scale[1] = shared_half(s, b);
        to.min[0] = to.min[1] = shared_half(s, b + 2);
    }
};

template <class UNIT> DEVICE void add_fifth_bits(u32 qh, const u32 (&w)[4], UNIT &to) {
    for (int i = 0; i < 4; i++) {
        to.q[0][i] = (w[i] & 0x0f0f0f0fu) | spread(qh >> 4 * i) << 4;
        to.q[1][i] = (w[i] >> 4 & 0x0f0f0f0fu) | spread(qh >> (16 + 4 * i)) << 4;
    }
}

struct q5_0 : types::q5_0 {
    DOTS(1, 2, 16, true)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int b, int, Unit &to) {
        u32 w[4], qh[1];
        words<2>(s, b + 2, qh);
        words<2>(s, b + 6, w);
        add_fifth_bits(qh[0], w, to);
        to.scale[0] = to.scale[1] = shared_half(s, b);
        to.min[0] = to.min[1] = -16.0f * to.scale[0];
    }
};

struct q5_1 : types::q5_1 {
    DOTS(1, 2, 16, true)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int b, int, Unit &to) {
        u32 w[4], qh[1];
        words<4>(s, b + 4, qh);
        words<4>(s, b + 8, w);
        add_fifth_bits(qh[0], w, to);
        to.scale[0] = to.scale[1] = shared_half(s, b);
        to.min[0] = to.min[1] = shared_half(s, b + 2);
    }
};

struct q8_0 : types::q8_0 {
    DOTS(1, 2, 16, false)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int b, int, Unit &to) {
        u32 w[8];
        words<2>(s, b + 2, w);
        for (int i = 0; i < 8; i++) to.q[i / 4][i % 4] = w[i];
        to.scale[0] = to.scale[1] = shared_half(s, b);
        to.min[0] = to.min[1] = 0.0f;
    }
};

// Blocks of 256 in two halves of four groups of 32, whose bits lie in the same bytes: a unit has 16 values of each group of a half.
struct q2_K : types::q2_K {
    DOTS(4, 4, 32, true)
    static DEVICE int first(int u) { return u / 2 * 128 + u % 2 * 16; }
    static DEVICE void unit(const u8 *s, int b, int u, Unit &to) {
        u32 w[4];
        words<4>(s, b + 16 + 16 * u, w);
        float d = shared_half(s, b + 80), dmin = shared_half(s, b + 82);
        for (int r = 0; r < 4; r++) {
            u32 packed = s[b + u / 2 * 8 + r * 2 + u % 2];
            for (int i = 0; i < 4; i++) to.q[r][i] = w[i] >> 2 * r & 0x03030303u;
            to.scale[r] = d * (float)(packed & 15);
            to.min[r] = -dmin * (float)(packed >> 4);
        }
    }
};

struct q3_K : types::q3_K {
    DOTS(4, 4, 32, true)
    static DEVICE int first(int u) { return u / 2 * 128 + u % 2 * 16; }
    static DEVICE void unit(const u8 *s, int b, int u, Unit &to) {
        u32 w[4], high[4];
        words<2>(s, b + 32 + 16 * u, w);
        words<2>(s, b + u % 2 * 16, high);
        float d = shared_half(s, b + 108);
        for (int r = 0; r < 4; r++) {
            int bit = u / 2 * 4 + r, g = u / 2 * 8 + r * 2 + u % 2;
            for (int i = 0; i < 4; i++) {
                to.q[r][i] = (w[i] >> 2 * r & 0x03030303u) | (high[i] >> bit & 0x01010101u) << 2;
            }
            u32 scale = (s[b + 96 + g % 8] >> g / 8 * 4 & 15) | (s[b + 104 + g % 4] >> g / 4 * 2 & 3) << 4;
            to.scale[r] = d * (float)((int)scale - 32);
            to.min[r] = -4.0f * to.scale[r];
        }
    }
};

// Scales and minimums of a pair of groups of Q4_K and Q5_K, each of two runs.
template <class UNIT> DEVICE void scales_of_pair(const u8 *s, int b, int pair, UNIT &to) {
    u32 w[4];
    words<16>(s, b, w);
    float d = half_to_float((u16)w[0]), dmin = half_to_float((u16)(w[0] >> 16));
    // Bits of both groups next to each other.
    int shift = pair % 2 * 16;
    u32 low = w[1] >> shift, mid = w[2] >> shift, high = w[3] >> shift;
    u32 scales = pair < 2 ? low & 0x3f3fu : (high & 0x0f0fu) | (low & 0xc0c0u) >> 2;
    u32 mins = pair < 2 ? mid & 0x3f3fu : (high >> 4 & 0x0f0fu) | (mid & 0xc0c0u) >> 2;
    for (int r = 0; r < 4; r++) {
        to.scale[r] = d * (float)byte_of(scales, r / 2);
        to.min[r] = -dmin * (float)byte_of(mins, r / 2);
    }
}

struct q4_K : types::q4_K {
    DOTS(4, 4, 16, true)
    static DEVICE int first(int u) { return 64 * u; }
    static DEVICE void unit(const u8 *s, int b, int u, Unit &to) {
        u32 w[8];
        words<16>(s, b + 16 + 32 * u, w);
        for (int i = 0; i < 8; i++) to.q[i / 4][i % 4] = w[i] & 0x0f0f0f0fu, to.q[2 + i / 4][i % 4] = w[i] >> 4 & 0x0f0f0f0fu;
        scales_of_pair(s, b, u, to);
    }
};

struct q5_K : types::q5_K {
    DOTS(4, 4, 16, true)
    static DEVICE int first(int u) { return 64 * u; }
    static DEVICE void unit(const u8 *s, int b, int u, Unit &to) {
        u32 w[8], high[8];
        words<16>(s, b + 48 + 32 * u, w);
        words<16>(s, b + 16, high);
        for (int i = 0; i < 8; i++) {
            u32 bits = high[i] >> 2 * u;
            to.q[i / 4][i % 4] = (w[i] & 0x0f0f0f0fu) | (bits & 0x01010101u) << 4;
            to.q[2 + i / 4][i % 4] = (w[i] >> 4 & 0x0f0f0f0fu) | (bits & 0x02020202u) << 3;
        }
        scales_of_pair(s, b, u, to);
    }
};

struct q6_K : types::q6_K {
    DOTS(4, 4, 32, true)
    static DEVICE int first(int u) { return u / 2 * 128 + u % 2 * 16; }
    static DEVICE void unit(const u8 *s, int b, int u, Unit &to) {
        u32 low[2][4], high[4];
        words<2>(s, b + u / 2 * 64 + u % 2 * 16, low[0]);
        words<2>(s, b + u / 2 * 64 + u % 2 * 16 + 32, low[1]);
        words<2>(s, b + 128 + 16 * u, high);
        float d = shared_half(s, b + 208);
        for (int r = 0; r < 4; r++) {
            for (int i = 0; i < 4; i++) {
                to.q[r][i] = (low[r % 2][i] >> r / 2 * 4 & 0x0f0f0f0fu) | (high[i] >> 2 * r & 0x03030303u) << 4;
            }
            to.scale[r] = d * (float)(i8)s[b + 192 + u / 2 * 8 + r * 2 + u % 2];
            to.min[r] = -32.0f * to.scale[r];
        }
    }
};

// As `iq4_value`.
DEVICE void iq4_values(u32 w, u32 &low, u32 &high) {
    const u32 table[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
    of_table(table, w, low, high);
}

struct iq4_nl : types::iq4_nl {
    DOTS(1, 2, 16, false)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int b, int, Unit &to) {
        u32 w[4];
        words<2>(s, b + 2, w);
        for (int i = 0; i < 4; i++) iq4_values(w[i], to.q[0][i], to.q[1][i]);
        to.scale[0] = to.scale[1] = shared_half(s, b);
        to.min[0] = to.min[1] = 0.0f;
    }
};

struct iq4_xs : types::iq4_xs {
    DOTS(8, 2, 16, false)
    static DEVICE int first(int u) { return 32 * u; }
    static DEVICE void unit(const u8 *s, int b, int u, Unit &to) {
        u32 w[4], header[2];
        words<4>(s, b, header);
        words<4>(s, b + 8 + 16 * u, w);
        for (int i = 0; i < 4; i++) iq4_values(w[i], to.q[0][i], to.q[1][i]);
        u32 scale = (header[1] >> 4 * u & 15) | (header[0] >> (16 + 2 * u) & 3) << 4;
        to.scale[0] = to.scale[1] = half_to_float((u16)header[0]) * (float)((int)scale - 32);
        to.min[0] = to.min[1] = 0.0f;
    }
};

struct mxfp4 : types::mxfp4 {
    DOTS(1, 2, 16, false)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int b, int, Unit &to) {
        const u32 table[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
        u32 w[4], e = s[b];
        words<1>(s, b + 1, w);
        for (int i = 0; i < 4; i++) of_table(table, w[i], to.q[0][i], to.q[1][i]);
        to.scale[0] = to.scale[1] = __uint_as_float(e < 2 ? 0x00200000u << e : e - 1 << 23);
        to.min[0] = to.min[1] = 0.0f;
    }
};

} // namespace dots

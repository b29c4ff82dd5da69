// What blocks mean as integers of 8 bits, for products with activations that are integers, too. A type gives a unit of a block at a time: RUNS runs
// of 16 neighbouring values, GAP values apart, so that the bytes that hold bits of several values are read once. Runs next to each other are halves of a
// group of 32 with one scale. A value is its group's scale times its integer and OFFSET, plus the group's minimum. Blocks lie in shared memory: `s` is
// a block's address, rounded down to a multiple of 4 by `odd` bytes.
#pragma once
#include "blocks.cuh"

// Words that begin `shift` bits behind an address. `last`: the word that the last one ends in.
template <int N> DEVICE void shifted_words(const u32 *from, const u32 *last, int shift, u32 (&out)[N]) {
    u32 low = from[0];
    for (int i = 0; i < N; i++) {
        u32 high = i + 1 < N ? from[i + 1] : *last;
        out[i] = __funnelshift_r(low, high, shift);
        low = high;
    }
}

// The words from `at` bytes behind `s` on.
template <int ALIGN, int N> DEVICE void words(const u8 *s, int at, u32 (&out)[N]) {
    if (ALIGN >= 16) {
        for (int i = 0; i < N; i += 4) {
            uint4 x = *(const uint4 *)(s + at + 4 * i);
            out[i] = x.x, out[i + 1] = x.y, out[i + 2] = x.z, out[i + 3] = x.w;
        }
    } else if (ALIGN >= 4) {
        for (int i = 0; i < N; i++) out[i] = *(const u32 *)(s + at + 4 * i);
    } else {
        // A word that lies across two is put together from both. Where none does, nothing behind the last one is read.
        const u32 *from = (const u32 *)(s + (at & ~3));
        shifted_words(from, from + (at & 3 ? N : N - 1), 8 * (at & 3), out);
    }
}

// The words that begin `odd` bytes behind `s`, whose word behind the last one is part of the block, too.
template <int N> DEVICE void words_within(const u8 *s, int odd, u32 (&out)[N]) {
    const u32 *from = (const u32 *)s;
    shifted_words(from, from + N, 8 * odd, out);
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

// The low halves of the bytes of one word, the high ones of another.
DEVICE u32 halves(u32 low, u32 high) {
    u32 out;
    asm("lop3.b32 %0, %1, %2, 0x0f0f0f0f, 0xe4;" : "=r"(out) : "r"(low), "r"(high));
    return out;
}

// A byte of a word as a float, and 2^23 more.
DEVICE float byte_and_2_23(u32 word, int i) {
    return __uint_as_float(__byte_perm(word, 0x4b000000, 0x7440 | i));
}

// Groups of a unit, of one or two runs.
template <int RUNS, int GROUPS> struct Unit {
    u32 q[RUNS][4];
    float scale[GROUPS], min[GROUPS];
};

#define DOTS(units, runs, gap, is_signed, offset, has_min)                                                                                     \
    static const int UNITS = units, RUNS = runs, GAP = gap, GROUPS = runs * gap / 32, OFFSET = offset;                                            \
    static const bool SIGNED = is_signed, HAS_MIN = has_min;                                                                                   \
    typedef ::Unit<runs, runs * gap / 32> Unit;

namespace dots {

// Blocks of 32 whose bytes hold a value of the first half and one of the second.
struct q4_0 : types::q4_0 {
    DOTS(1, 2, 16, false, -8, false)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int odd, int, Unit &to) {
        u32 w[4];
        words<2>(s, odd + 2, w);
        for (int i = 0; i < 4; i++) to.q[0][i] = w[i] & 0x0f0f0f0fu, to.q[1][i] = w[i] >> 4 & 0x0f0f0f0fu;
        to.scale[0] = shared_half(s + odd, 0);
    }
};

struct q4_1 : types::q4_1 {
    DOTS(1, 2, 16, false, 0, true)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int, int, Unit &to) {
        u32 w[4];
        words<4>(s, 4, w);
        for (int i = 0; i < 4; i++) to.q[0][i] = w[i] & 0x0f0f0f0fu, to.q[1][i] = w[i] >> 4 & 0x0f0f0f0fu;
        to.scale[0] = shared_half(s, 0);
        to.min[0] = shared_half(s, 2);
    }
};

template <class UNIT> DEVICE void add_fifth_bits(u32 qh, const u32 (&w)[4], UNIT &to) {
    for (int i = 0; i < 4; i++) {
        to.q[0][i] = (w[i] & 0x0f0f0f0fu) | spread(qh >> 4 * i) << 4;
        to.q[1][i] = (w[i] >> 4 & 0x0f0f0f0fu) | spread(qh >> (16 + 4 * i)) << 4;
    }
}

struct q5_0 : types::q5_0 {
    DOTS(1, 2, 16, false, -16, false)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int odd, int, Unit &to) {
        u32 w[4], qh[1];
        words<2>(s, odd + 2, qh);
        words<2>(s, odd + 6, w);
        add_fifth_bits(qh[0], w, to);
        to.scale[0] = shared_half(s + odd, 0);
    }
};

struct q5_1 : types::q5_1 {
    DOTS(1, 2, 16, false, 0, true)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int, int, Unit &to) {
        u32 w[4], qh[1];
        words<4>(s, 4, qh);
        words<4>(s, 8, w);
        add_fifth_bits(qh[0], w, to);
        to.scale[0] = shared_half(s, 0);
        to.min[0] = shared_half(s, 2);
    }
};

struct q8_0 : types::q8_0 {
    DOTS(1, 2, 16, true, 0, false)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int odd, int, Unit &to) {
        u32 w[8];
        words<2>(s, odd + 2, w);
        for (int i = 0; i < 8; i++) to.q[i / 4][i % 4] = w[i];
        to.scale[0] = shared_half(s + odd, 0);
    }
};

// Blocks of 256 in two halves of four groups of 32, whose bits lie in the same bytes: a unit has 16 values of each group of a half.
struct q2_K : types::q2_K {
    DOTS(4, 4, 32, false, 0, true)
    static DEVICE int first(int u) { return u / 2 * 128 + u % 2 * 16; }
    static DEVICE void unit(const u8 *s, int, int u, Unit &to) {
        u32 w[4];
        words<4>(s, 16 + 16 * u, w);
        float d = shared_half(s, 80), dmin = shared_half(s, 82);
        for (int r = 0; r < 4; r++) {
            u32 packed = s[u / 2 * 8 + r * 2 + u % 2];
            for (int i = 0; i < 4; i++) to.q[r][i] = w[i] >> 2 * r & 0x03030303u;
            to.scale[r] = d * (float)(packed & 15);
            to.min[r] = -dmin * (float)(packed >> 4);
        }
    }
};

struct q3_K : types::q3_K {
    DOTS(4, 4, 32, false, -4, false)
    static DEVICE int first(int u) { return u / 2 * 128 + u % 2 * 16; }
    static DEVICE void unit(const u8 *s, int odd, int u, Unit &to) {
        u32 w[4], high[4];
        words_within(s + 32 + 16 * u, odd, w);
        words_within(s + u % 2 * 16, odd, high);
        s += odd;
        float d = shared_half(s, 108);
        for (int r = 0; r < 4; r++) {
            int bit = u / 2 * 4 + r, g = u / 2 * 8 + r * 2 + u % 2;
            for (int i = 0; i < 4; i++) {
                to.q[r][i] = (w[i] >> 2 * r & 0x03030303u) | (high[i] >> bit & 0x01010101u) << 2;
            }
            u32 scale = (s[96 + g % 8] >> g / 8 * 4 & 15) | (s[104 + g % 4] >> g / 4 * 2 & 3) << 4;
            to.scale[r] = d * (float)((int)scale - 32);
        }
    }
};

// Scales and minimums of a pair of groups of Q4_K and Q5_K. The high halves of bytes of the second group are left where they are by Q4_K: they count 16
// times.
template <class UNIT> DEVICE void scales_of_pair(const u8 *s, int pair, float of_second, UNIT &to) {
    u32 w[4];
    words<16>(s, 0, w);
    float d = half_to_float((u16)w[0]), dmin = half_to_float((u16)(w[0] >> 16));
    // Bytes of both groups: two of scales, two of minimums. Those of the last two pairs have their low four bits elsewhere.
    u32 at = pair % 2 ? 0x7632 : 0x5410, bytes = __byte_perm(w[1], w[2], at);
    u32 low = __byte_perm(w[3], w[3] >> 4, at);
    bytes = (pair < 2 ? bytes : halves(low, bytes >> 2)) & 0x3f3f3f3fu;
    // Products of bytes are exact before 2^23 of them are taken away.
    float less = d * -8388608.0f, less_min = dmin * 8388608.0f;
    to.scale[0] = __fmaf_rn(d, byte_and_2_23(bytes, 0), less);
    to.scale[1] = of_second * __fmaf_rn(d, byte_and_2_23(bytes, 1), less);
    to.min[0] = __fmaf_rn(-dmin, byte_and_2_23(bytes, 2), less_min);
    to.min[1] = __fmaf_rn(-dmin, byte_and_2_23(bytes, 3), less_min);
}

struct q4_K : types::q4_K {
    DOTS(4, 4, 16, false, 0, true)
    static DEVICE int first(int u) { return 64 * u; }
    static DEVICE void unit(const u8 *s, int, int u, Unit &to) {
        u32 w[8];
        words<16>(s, 16 + 32 * u, w);
        for (int i = 0; i < 8; i++) to.q[i / 4][i % 4] = w[i] & 0x0f0f0f0fu, to.q[2 + i / 4][i % 4] = w[i] & 0xf0f0f0f0u;
        scales_of_pair(s, u, 1.0f / 16.0f, to);
    }
};

struct q5_K : types::q5_K {
    DOTS(4, 4, 16, false, 0, true)
    static DEVICE int first(int u) { return 64 * u; }
    static DEVICE void unit(const u8 *s, int, int u, Unit &to) {
        u32 w[8], high[8];
        words<16>(s, 48 + 32 * u, w);
        words<16>(s, 16, high);
        for (int i = 0; i < 8; i++) {
            u32 bits = high[i] >> 2 * u;
            to.q[i / 4][i % 4] = (w[i] & 0x0f0f0f0fu) | (bits & 0x01010101u) << 4;
            to.q[2 + i / 4][i % 4] = (w[i] >> 4 & 0x0f0f0f0fu) | (bits & 0x02020202u) << 3;
        }
        scales_of_pair(s, u, 1.0f, to);
    }
};

struct q6_K : types::q6_K {
    DOTS(4, 4, 32, false, -32, false)
    static DEVICE int first(int u) { return u / 2 * 128 + u % 2 * 16; }
    static DEVICE void unit(const u8 *s, int odd, int u, Unit &to) {
        u32 low[2][4], high[4];
        const u8 *lows = s + (u / 2 * 64 + u % 2 * 16);
        words_within(lows, odd, low[0]);
        words_within(lows + 32, odd, low[1]);
        words_within(s + (128 + 16 * u), odd, high);
        for (int i = 0; i < 4; i++) {
            // Bits of every other run, so that what is shifted across bytes is no half that is wanted.
            u32 even = high[i] & 0x33333333u, uneven = high[i] & 0xccccccccu;
            to.q[0][i] = halves(low[0][i], even << 4);
            to.q[1][i] = halves(low[1][i], uneven << 2);
            to.q[2][i] = halves(low[0][i] >> 4, even);
            to.q[3][i] = halves(low[1][i] >> 4, uneven >> 2);
        }
        const u8 *scales = s + (odd + 192 + u / 2 * 8 + u % 2);
        float d = shared_half(s + odd, 208);
        for (int r = 0; r < 4; r++) to.scale[r] = d * (float)(i8)scales[2 * r];
    }
};

// As `iq4_value`.
DEVICE void iq4_values(u32 w, u32 &low, u32 &high) {
    const u32 table[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
    of_table(table, w, low, high);
}

struct iq4_nl : types::iq4_nl {
    DOTS(1, 2, 16, true, 0, false)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int odd, int, Unit &to) {
        u32 w[4];
        words<2>(s, odd + 2, w);
        for (int i = 0; i < 4; i++) iq4_values(w[i], to.q[0][i], to.q[1][i]);
        to.scale[0] = shared_half(s + odd, 0);
    }
};

struct iq4_xs : types::iq4_xs {
    DOTS(8, 2, 16, true, 0, false)
    static DEVICE int first(int u) { return 32 * u; }
    static DEVICE void unit(const u8 *s, int, int u, Unit &to) {
        u32 w[4], header[2];
        words<4>(s, 0, header);
        words<4>(s, 8 + 16 * u, w);
        for (int i = 0; i < 4; i++) iq4_values(w[i], to.q[0][i], to.q[1][i]);
        u32 scale = (header[1] >> 4 * u & 15) | (header[0] >> (16 + 2 * u) & 3) << 4;
        to.scale[0] = half_to_float((u16)header[0]) * (float)((int)scale - 32);
    }
};

struct mxfp4 : types::mxfp4 {
    DOTS(1, 2, 16, true, 0, false)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int odd, int, Unit &to) {
        const u32 table[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
        u32 w[4], e = s[odd];
        words<1>(s, odd + 1, w);
        for (int i = 0; i < 4; i++) of_table(table, w[i], to.q[0][i], to.q[1][i]);
        to.scale[0] = __uint_as_float(e < 2 ? 0x00200000u << e : e - 1 << 23);
    }
};

} // namespace dots

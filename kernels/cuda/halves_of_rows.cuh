// Rows of weights as f16 integers, for matmuls with 9 to 32 columns. Weights are in shared memory, 256 values of a row
// at a time.
//
// A type converts 32 adjacent values of a row, a group, for the four lanes of a quad. Lane `t` gets values `4 * t` to
// `4 * t + 3` of each half of the group as four pairs: values 0 and 2, 1 and 3 of the first half, then of the second. The
// order of values is that of the columns (see `halve_columns.cu`), so tensor cores need no other order. SCALED groups
// have a common scale, which is applied to the sums of products. Integers of up to 2048 are exact in f16.
#pragma once
#include "common.cuh"

namespace halves {

// Pairs of equal f16 constants.
const u32 MINUS_1024 = 0xe400e400u, MINUS_1032 = 0xe408e408u, MINUS_1056 = 0xe420e420u, MINUS_1152 = 0xe480e480u;
const u32 MINUS_64 = 0xd400d400u, MINUS_72 = 0xd480d480u, SIXTEENTH = 0x2c002c00u;

DEVICE u32 sum(u32 a, u32 b) {
    u32 x;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
    return x;
}

DEVICE u32 product(u32 a, u32 b) {
    u32 x;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
    return x;
}

DEVICE u32 product_and_sum(u32 a, u32 b, u32 c) {
    u32 x;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(a), "r"(b), "r"(c));
    return x;
}

// Returns 1024 plus the masked bits of each half. The bits are below 2^10.
template <u32 MASK> DEVICE u32 masked(u32 word) {
    u32 x;
    asm("lop3.b32 %0, %1, %2, 0x64006400, 0xea;" : "=r"(x) : "r"(word), "n"(MASK));
    return x;
}

// Returns 1024 plus bytes A and B of a word.
template <int A, int B> DEVICE u32 bytes(u32 word) {
    return __byte_perm(word, 0x64646464u, 0x4040 + A + B * 256);
}

// Returns 1024 plus a byte of a word, twice.
DEVICE u32 twice(u32 word, int byte) {
    return __byte_perm(word, 0x64646464u, 0x4040 + byte * 0x101);
}

DEVICE u32 word_at(const u8 *s, int at) {
    return *(const u32 *)(s + at);
}

// Returns the word at an even offset.
DEVICE u32 unaligned_word(const u8 *s, int at) {
    if (at % 4 == 0) return word_at(s, at);
    return __byte_perm(word_at(s, at - 2), word_at(s, at + 2), 0x5432);
}

DEVICE float float_at(const u8 *s, int at) {
    return half_to_float(*(const u16 *)(s + at));
}

// CHUNKS: 16-byte loads per 256 values. STRIDE: distance between rows in bytes, an odd multiple of 16, so that the rows of
// a warp have different banks. SCALED: groups with a common scale. HAS_MIN: groups also have minimums.
#define HALVES(chunks, stride, scaled, has_min)                                                                            \
    static const int CHUNKS = chunks, STRIDE = stride, SCALED = scaled;                                                    \
    static const bool HAS_MIN = has_min;

struct WithoutMins {
    static DEVICE u32 mins() { return 0; }
    static DEVICE float min(const u8 *) { return 0.0f; }
};

struct q4_0 : WithoutMins {
    HALVES(9, 144, 1, false)
    static DEVICE i64 offset(int step, int chunk) { return step * 144 + chunk * 16; }

    DEVICE q4_0(const u8 *, int) {}

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        group(s + 4 * t, g, first);
        group(s + 4 * t, g + 1, second);
    }

    static DEVICE void group(const u8 *s, int g, u32 (&x)[4]) {
        u32 w = unaligned_word(s, 18 * g + 2), odd = w >> 8;
        x[0] = sum(masked<0x000f000f>(w), MINUS_1032), x[1] = sum(masked<0x000f000f>(odd), MINUS_1032);
        x[2] = product_and_sum(masked<0x00f000f0>(w), SIXTEENTH, MINUS_72);
        x[3] = product_and_sum(masked<0x00f000f0>(odd), SIXTEENTH, MINUS_72);
    }

    static DEVICE float scale(const u8 *s, int g, int) { return float_at(s, 18 * g); }
};

struct q8_0 : WithoutMins {
    HALVES(17, 272, 1, false)
    static DEVICE i64 offset(int step, int chunk) { return step * 272 + chunk * 16; }

    DEVICE q8_0(const u8 *, int) {}

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        group(s + 4 * t, g, first);
        group(s + 4 * t, g + 1, second);
    }

    static DEVICE void group(const u8 *s, int g, u32 (&x)[4]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 w = unaligned_word(s, 34 * g + 2 + 16 * i) ^ 0x80808080u;
            x[2 * i] = sum(bytes<0, 2>(w), MINUS_1152), x[2 * i + 1] = sum(bytes<1, 3>(w), MINUS_1152);
        }
    }

    static DEVICE float scale(const u8 *s, int g, int) { return float_at(s, 34 * g); }
};

struct q4_K {
    HALVES(9, 144, 8, true)
    static DEVICE i64 offset(int step, int chunk) { return step * 144 + chunk * 16; }

    // Scales of the groups, and the minimums of groups `2 * t` and `2 * t + 1`.
    u32 scales[2], of_lane;

    DEVICE q4_K(const u8 *s, int t) {
        u32 a = word_at(s, 4), b = word_at(s, 8), c = word_at(s, 12);
        scales[0] = a & 0x3f3f3f3fu, scales[1] = (c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u);
        u32 low = b & 0x3f3f3f3fu, high = (c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u);
        u32 both = (t < 2 ? low : high) >> t % 2 * 16;
        of_lane = sum(bytes<0, 1>(both), MINUS_1024);
    }

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        u32 scale = scale_of(g), offset = product(scale, MINUS_1024);
        u32 other = product(scale_of(g + 1), SIXTEENTH), other_offset = product(other, MINUS_1024);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 w = word_at(s + 4 * t, 16 + 16 * g + 16 * i), odd = w >> 8;
            first[2 * i] = product_and_sum(masked<0x000f000f>(w), scale, offset);
            first[2 * i + 1] = product_and_sum(masked<0x000f000f>(odd), scale, offset);
            second[2 * i] = product_and_sum(masked<0x00f000f0>(w), other, other_offset);
            second[2 * i + 1] = product_and_sum(masked<0x00f000f0>(odd), other, other_offset);
        }
    }

    // Returns the scale of a group, twice.
    DEVICE u32 scale_of(int g) const { return sum(twice(scales[g / 4], g % 4), MINUS_1024); }

    static DEVICE float scale(const u8 *s, int, int) { return float_at(s, 0); }
    static DEVICE float min(const u8 *s) { return float_at(s, 2); }
    DEVICE u32 mins() const { return of_lane; }
};

struct q5_K {
    HALVES(11, 176, 8, true)
    static DEVICE i64 offset(int step, int chunk) { return step * 176 + chunk * 16; }

    q4_K base;

    DEVICE q5_K(const u8 *s, int t) : base(s, t) {}

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        u32 scale = base.scale_of(g), offset = product(scale, MINUS_1024), other = base.scale_of(g + 1), other_offset = product(other, MINUS_1024);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 w = word_at(s + 4 * t, 48 + 16 * g + 16 * i), high = word_at(s + 4 * t, 16 + 16 * i) >> g;
            u32 low_q = (w & 0x0f0f0f0fu) | (high << 4 & 0x10101010u), high_q = (w >> 4 & 0x0f0f0f0fu) | (high << 3 & 0x10101010u);
            first[2 * i] = product_and_sum(bytes<0, 2>(low_q), scale, offset);
            first[2 * i + 1] = product_and_sum(bytes<1, 3>(low_q), scale, offset);
            second[2 * i] = product_and_sum(bytes<0, 2>(high_q), other, other_offset);
            second[2 * i + 1] = product_and_sum(bytes<1, 3>(high_q), other, other_offset);
        }
    }

    static DEVICE float scale(const u8 *s, int, int) { return float_at(s, 0); }
    static DEVICE float min(const u8 *s) { return float_at(s, 2); }
    DEVICE u32 mins() const { return base.mins(); }
};

struct q6_K_x8 : WithoutMins {
    HALVES(14, 240, 8, false)
    // Low bits of both kinds, high bits, and scales of a block, then the scales of all eight blocks.
    static DEVICE i64 offset(int step, int chunk) {
        int block = step % 8;
        i64 at = chunk < 12 ? chunk / 4 * 512 + block * 64 + chunk % 4 * 16 : chunk < 13 ? 1536 + block * 16 : 1664;
        return step / 8 * 1680 + at;
    }

    DEVICE q6_K_x8(const u8 *, int) {}

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        int of_half = g / 4 * 32, is_high = g % 4 / 2;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u8 *at = s + 4 * t + of_half + 16 * i;
            u32 even = word_at(at, 0) >> 4 * is_high, uneven = word_at(at, 64) >> 4 * is_high, high = word_at(at, 128) >> 4 * is_high;
            of_word((even & 0x0f0f0f0fu) | (high << 4 & 0x30303030u), s, 2 * g + i, first[2 * i], first[2 * i + 1]);
            of_word((uneven & 0x0f0f0f0fu) | (high << 2 & 0x30303030u), s, 2 * g + 2 + i, second[2 * i], second[2 * i + 1]);
        }
    }

    static DEVICE float scale(const u8 *s, int, int step) { return float_at(s, 208 + step % 8 * 2); }

    // Products with the scale exceed the integers that f16 represents, and are rounded.
    static DEVICE void of_word(u32 q, const u8 *s, int place, u32 &even, u32 &odd) {
        u32 scale = sum(twice(word_at(s, 192 + place / 4 * 4) ^ 0x80808080u, place % 4), MINUS_1152);
        even = product(sum(bytes<0, 2>(q), MINUS_1056), scale);
        odd = product(sum(bytes<1, 3>(q), MINUS_1056), scale);
    }
};

}

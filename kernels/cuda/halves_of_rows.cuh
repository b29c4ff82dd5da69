// Rows of weights as f16 integers, or as f16 values with a power of two per group. Weights are in shared memory, a step of
// GROUPS groups of a row at a time.
//
// A type converts 32 adjacent values of a row, a group, for the four lanes of a quad. Lane `t` gets values `4 * t` to
// `4 * t + 3` of each half of the group as four pairs. The pairs are values 0 and 2, 1 and 3 of the first half, then
// of the second. The columns have the same order of values (see `halve_columns.cu`), so tensor cores need no other
// order. SCALED groups have a common scale, which is applied to the sums of products. Integers of up to 2048 are exact
// in f16.
#pragma once
#include "common.cuh"

namespace halves {

// Pairs of equal f16 constants.
const u32 MINUS_1024 = 0xe400e400u, MINUS_1028 = 0xe404e404u, MINUS_1032 = 0xe408e408u, MINUS_1040 = 0xe410e410u, MINUS_1056 = 0xe420e420u;
const u32 MINUS_1152 = 0xe480e480u, MINUS_64 = 0xd400d400u, MINUS_72 = 0xd480d480u, SIXTEENTH = 0x2c002c00u;

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

// Returns the word at an offset.
DEVICE u32 unaligned_word(const u8 *s, int at) {
    int odd = at % 4;
    if (odd == 0) return word_at(s, at);
    return __byte_perm(word_at(s, at - odd), word_at(s, at - odd + 4), 0x3210 + 0x1111 * odd);
}

// Returns two f16 values as a pair.
DEVICE u32 pair_at(const u8 *s, int low, int high) {
    return *(const u16 *)(s + low) | (u32) * (const u16 *)(s + high) << 16;
}

DEVICE float float_at(const u8 *s, int at) {
    return half_to_float(*(const u16 *)(s + at));
}

// CHUNKS: 16-byte loads per step. STRIDE: distance between rows in bytes, an odd multiple of 16, so that the rows of a warp
// have different banks. SCALED: groups with a common scale. HAS_MIN: values also have minimums, one for each of the
// sums of `steps.cuh`.
#define HALVES(chunks, stride, scaled, has_min)                                                                            \
    static const int CHUNKS = chunks, STRIDE = stride, SCALED = scaled;                                                    \
    static const bool HAS_MIN = has_min;

struct Base {
    static const int GROUPS = 8;
    // Returns the distance from the first chunk to a step.
    static DEVICE int start(int) { return 0; }
    // Returns the factor of all products.
    static DEVICE float factor() { return 1.0f; }
};

struct WithoutMins : Base {
    static DEVICE u32 mins(int) { return 0; }
    static DEVICE float min(const u8 *) { return 0.0f; }
};

struct q4_0 : WithoutMins {
    HALVES(9, 144, 1, false)
    static DEVICE i64 offset(int step, int chunk) { return step * 144 + chunk * 16; }

    DEVICE q4_0(const u8 *, int, int) {}

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

struct q4_1 : Base {
    HALVES(10, 176, 1, true)
    static DEVICE i64 offset(int step, int chunk) { return step * 160 + chunk * 16; }

    // Minimums of groups `2 * t` and `2 * t + 1`.
    u32 of_lane;

    DEVICE q4_1(const u8 *s, int t, int) : of_lane(pair_at(s + 40 * t, 2, 22)) {}

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        group(s + 4 * t, g, first);
        group(s + 4 * t, g + 1, second);
    }

    static DEVICE void group(const u8 *s, int g, u32 (&x)[4]) {
        u32 w = word_at(s, 20 * g + 4), odd = w >> 8;
        x[0] = sum(masked<0x000f000f>(w), MINUS_1024), x[1] = sum(masked<0x000f000f>(odd), MINUS_1024);
        x[2] = product_and_sum(masked<0x00f000f0>(w), SIXTEENTH, MINUS_64);
        x[3] = product_and_sum(masked<0x00f000f0>(odd), SIXTEENTH, MINUS_64);
    }

    static DEVICE float scale(const u8 *s, int g, int) { return float_at(s, 20 * g); }
    // Minimums are added.
    static DEVICE float min(const u8 *) { return -1.0f; }
    DEVICE u32 mins(int) const { return of_lane; }
};

// Converts a lane's values of five bits, given the low bits and the fifth bits of a group. MINUS is the negative of 1024
// plus an offset.
template <u32 MINUS> DEVICE void five_bits(u32 low, u32 fifth, int t, u32 (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        // The product has each of the four bits in its own byte.
        u32 bits = (fifth >> (16 * i + 4 * t) & 15) * 0x02040810u, q = (low >> 4 * i & 0x0f0f0f0fu) | (bits & 0x10101010u);
        x[2 * i] = sum(bytes<0, 2>(q), MINUS), x[2 * i + 1] = sum(bytes<1, 3>(q), MINUS);
    }
}

struct q5_0 : WithoutMins {
    HALVES(11, 176, 1, false)
    static DEVICE i64 offset(int step, int chunk) { return step * 176 + chunk * 16; }

    DEVICE q5_0(const u8 *, int, int) {}

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        five_bits<MINUS_1040>(unaligned_word(s + 4 * t, 22 * g + 6), unaligned_word(s, 22 * g + 2), t, first);
        five_bits<MINUS_1040>(unaligned_word(s + 4 * t, 22 * g + 28), unaligned_word(s, 22 * g + 24), t, second);
    }

    static DEVICE float scale(const u8 *s, int g, int) { return float_at(s, 22 * g); }
};

struct q5_0_x8 : WithoutMins {
    HALVES(11, 176, 1, false)
    static DEVICE i64 offset(int step, int chunk) { return step * 176 + chunk * 16; }

    DEVICE q5_0_x8(const u8 *, int, int) {}

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        five_bits<MINUS_1040>(word_at(s + 4 * t, 16 * g), word_at(s, 128 + 4 * g), t, first);
        five_bits<MINUS_1040>(word_at(s + 4 * t, 16 * g + 16), word_at(s, 132 + 4 * g), t, second);
    }

    static DEVICE float scale(const u8 *s, int g, int) { return float_at(s, 160 + 2 * g); }
};

struct q5_1 : Base {
    HALVES(12, 208, 1, true)
    static DEVICE i64 offset(int step, int chunk) { return step * 192 + chunk * 16; }

    // Minimums of groups `2 * t` and `2 * t + 1`.
    u32 of_lane;

    DEVICE q5_1(const u8 *s, int t, int) : of_lane(pair_at(s + 48 * t, 2, 26)) {}

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        five_bits<MINUS_1024>(word_at(s + 4 * t, 24 * g + 8), word_at(s, 24 * g + 4), t, first);
        five_bits<MINUS_1024>(word_at(s + 4 * t, 24 * g + 32), word_at(s, 24 * g + 28), t, second);
    }

    static DEVICE float scale(const u8 *s, int g, int) { return float_at(s, 24 * g); }
    // Minimums are added.
    static DEVICE float min(const u8 *) { return -1.0f; }
    DEVICE u32 mins(int) const { return of_lane; }
};

struct q8_0 : WithoutMins {
    HALVES(17, 272, 1, false)
    static DEVICE i64 offset(int step, int chunk) { return step * 272 + chunk * 16; }

    DEVICE q8_0(const u8 *, int, int) {}

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

// A scale and a minimum per 16 values.
struct q2_K : Base {
    HALVES(6, 112, 8, true)
    // Four steps span whole chunks.
    static DEVICE i64 offset(int step, int chunk) { return (step * 84 & ~15) + chunk * 16; }
    static DEVICE int start(int step) { return step % 4 * 4; }

    // Minimums of halves of groups `2 * t`, `2 * t + 1`, `2 * t + 8`, and `2 * t + 9`.
    u32 of_lane[2];

    DEVICE q2_K(const u8 *s, int t, int) {
        for (int i = 0; i < 2; i++) of_lane[i] = sum(bytes<0, 1>(word_at(s, 8 * i + t / 2 * 4) >> (16 * (t % 2) + 4) & 0x0f0fu), MINUS_1024);
    }

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        u32 scales = word_at(s, 2 * g) & 0x0f0f0f0fu;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 w = word_at(s + 4 * t, 16 + g / 4 * 32 + 16 * i);
            if (g % 4 == 0) {
                pair<0x00030003, 0x3c003c00>(w, scales, i, first + 2 * i);
                pair<0x000c000c, 0x34003400>(w, scales, 2 + i, second + 2 * i);
            } else {
                pair<0x00300030, 0x2c002c00>(w, scales, i, first + 2 * i);
                pair<0x00c000c0, 0x24002400>(w, scales, 2 + i, second + 2 * i);
            }
        }
    }

    // Converts masked bits of four values. INVERSE is the inverse of the mask's lowest bit, twice.
    template <u32 MASK, u32 INVERSE> static DEVICE void pair(u32 w, u32 scales, int place, u32 *x) {
        u32 scale = product(sum(twice(scales, place), MINUS_1024), INVERSE), offset = product(scale, MINUS_1024);
        x[0] = product_and_sum(masked<MASK>(w), scale, offset);
        x[1] = product_and_sum(masked<MASK>(w >> 8), scale, offset);
    }

    static DEVICE float scale(const u8 *s, int, int) { return float_at(s, 80); }
    static DEVICE float min(const u8 *s) { return float_at(s, 82); }
    DEVICE u32 mins(int set) const { return of_lane[set]; }
};

// Blocks of an even number of bytes. Eight steps span whole chunks.
template <int BYTES> struct Unaligned : WithoutMins {
    static DEVICE i64 offset(int step, int chunk) { return (step * BYTES & ~15) + chunk * 16; }
    static DEVICE int start(int step) { return step * BYTES & 15; }

    // Offset of the block in words of shared memory.
    int odd;

    DEVICE Unaligned(int step) : odd(step * BYTES & 3) {}

    // Returns the word at an offset of the block. Reads up to two bytes before the word and four after it.
    DEVICE u32 word(const u8 *s, int at) const { return __funnelshift_r(word_at(s - odd, at), word_at(s - odd, at + 4), 8 * odd); }
};

// Converts words of Q3_K. `low` are scales of four halves of groups, and `high` their high bits. `w` and `third` are the low
// and high bits of values of both halves.
DEVICE void three_bits(int g, u32 low, u32 high, const u32 (&w)[2], const u32 (&third)[2], u32 (&first)[4], u32 (&second)[4]) {
    u32 scales = (low >> g / 4 * 4 & 0x0f0f0f0fu) | (high >> g << 4 & 0x30303030u);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 q = (w[i % 2] >> (g % 4 * 2 + i / 2 * 2) & 0x03030303u) | (third[i % 2] >> g << (i < 2 ? 2 : 1) & 0x04040404u);
        u32 scale = sum(twice(scales, i), MINUS_1056), *x = (i < 2 ? first : second) + i % 2 * 2;
        x[0] = product(sum(bytes<0, 2>(q), MINUS_1028), scale);
        x[1] = product(sum(bytes<1, 3>(q), MINUS_1028), scale);
    }
}

struct q3_K : Unaligned<110> {
    HALVES(8, 144, 8, false)

    DEVICE q3_K(const u8 *, int, int step) : Unaligned(step) {}

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        int at = 32 + 4 * t + g / 4 * 32;
        const u32 w[2] = {word(s, at), word(s, at + 16)}, third[2] = {word(s, 4 * t), word(s, 4 * t + 16)};
        three_bits(g, word(s, 96 + g % 4 * 2), word(s, 104), w, third, first, second);
    }

    static DEVICE float scale(const u8 *s, int, int) { return float_at(s, 108); }
};

struct q3_K_x8 : WithoutMins {
    HALVES(9, 144, 8, false)
    // Low bits and third bits of a block, two chunks with its scales, then the scales of all eight blocks.
    static DEVICE i64 offset(int step, int chunk) {
        int block = step % 8;
        int at = chunk < 4 ? block * 64 : chunk < 6 ? 512 - 64 + block * 32 : chunk < 8 ? 768 - 96 + (block * 12 & ~15) : 864 - 128;
        return step / 8 * 880 + at + chunk * 16;
    }

    // Location of the scales.
    int scales;

    DEVICE q3_K_x8(const u8 *, int, int step) : scales(96 + step % 4 * 12 % 16) {}

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        const u8 *at = s + 4 * t;
        const u32 w[2] = {word_at(at, g / 4 * 32), word_at(at, g / 4 * 32 + 16)}, third[2] = {word_at(at, 64), word_at(at, 80)};
        three_bits(g, word_at(s + scales, g % 4 * 2), word_at(s + scales, 8), w, third, first, second);
    }

    static DEVICE float scale(const u8 *s, int, int step) { return float_at(s, 128 + step % 8 * 2); }
};

struct q4_K : Base {
    HALVES(9, 144, 8, true)
    static DEVICE i64 offset(int step, int chunk) { return step * 144 + chunk * 16; }

    // Scales of the groups, and the minimums of groups `2 * t` and `2 * t + 1`.
    u32 scales[2], of_lane;

    DEVICE q4_K(const u8 *s, int t, int) {
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
    DEVICE u32 scale_of(int g) const { return sum(twice(g < 4 ? scales[0] : scales[1], g % 4), MINUS_1024); }

    static DEVICE float scale(const u8 *s, int, int) { return float_at(s, 0); }
    static DEVICE float min(const u8 *s) { return float_at(s, 2); }
    DEVICE u32 mins(int) const { return of_lane; }
};

struct q5_K : Base {
    HALVES(11, 176, 8, true)
    static DEVICE i64 offset(int step, int chunk) { return step * 176 + chunk * 16; }

    q4_K base;

    DEVICE q5_K(const u8 *s, int t, int step) : base(s, t, step) {}

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
    DEVICE u32 mins(int set) const { return base.mins(set); }
};

// Converts a word of Q6_K. `scale` is 1024 + 128 plus the scale, twice. Products with the scale exceed the integers that f16
// represents, and are rounded.
DEVICE void scaled_word(u32 q, u32 scale, u32 &even, u32 &odd) {
    scale = sum(scale, MINUS_1152);
    even = product(sum(bytes<0, 2>(q), MINUS_1056), scale);
    odd = product(sum(bytes<1, 3>(q), MINUS_1056), scale);
}

struct q6_K : Unaligned<210> {
    HALVES(14, 240, 8, false)

    DEVICE q6_K(const u8 *, int, int step) : Unaligned(step) {}

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        int half = g / 4, is_high = g % 4 / 2;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int at = 4 * t + 16 * i;
            u32 low = word(s, 64 * half + at) >> 4 * is_high, other = word(s, 64 * half + 32 + at) >> 4 * is_high;
            u32 high = word(s, 128 + 32 * half + at) >> 4 * is_high;
            scaled_word((low & 0x0f0f0f0fu) | (high << 4 & 0x30303030u), scale_at(s, 2 * g + i), first[2 * i], first[2 * i + 1]);
            scaled_word((other & 0x0f0f0f0fu) | (high << 2 & 0x30303030u), scale_at(s, 2 * g + 2 + i), second[2 * i], second[2 * i + 1]);
        }
    }

    static DEVICE u32 scale_at(const u8 *s, int place) { return twice(s[192 + place] ^ 0x80u, 0); }
    static DEVICE float scale(const u8 *s, int, int) { return float_at(s, 208); }
};

struct q6_K_x8 : WithoutMins {
    HALVES(14, 240, 8, false)
    // Low bits of both kinds, high bits, and scales of a block, then the scales of all eight blocks.
    static DEVICE i64 offset(int step, int chunk) {
        int block = step % 8;
        i64 at = chunk < 12 ? chunk / 4 * 512 + block * 64 + chunk % 4 * 16 : chunk < 13 ? 1536 + block * 16 : 1664;
        return step / 8 * 1680 + at;
    }

    DEVICE q6_K_x8(const u8 *, int, int) {}

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        int of_half = g / 4 * 32, is_high = g % 4 / 2;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u8 *at = s + 4 * t + of_half + 16 * i;
            u32 even = word_at(at, 0) >> 4 * is_high, uneven = word_at(at, 64) >> 4 * is_high, high = word_at(at, 128) >> 4 * is_high;
            scaled_word((even & 0x0f0f0f0fu) | (high << 4 & 0x30303030u), scale_at(s, 2 * g + i), first[2 * i], first[2 * i + 1]);
            scaled_word((uneven & 0x0f0f0f0fu) | (high << 2 & 0x30303030u), scale_at(s, 2 * g + 2 + i), second[2 * i], second[2 * i + 1]);
        }
    }

    static DEVICE float scale(const u8 *s, int, int step) { return float_at(s, 208 + step % 8 * 2); }
    static DEVICE u32 scale_at(const u8 *s, int place) { return twice(word_at(s, 192 + place / 4 * 4) ^ 0x80808080u, place % 4); }
};

// Looks up four-bit indices in the table of `iq4_value` (see `blocks.cuh`). The lane's values are the low bits of the word,
// then the high bits.
DEVICE void iq4_values(u32 w, u32 (&x)[4]) {
    // The table plus 128.
    const u32 table[4] = {0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u};
    u32 parts[2];
#pragma unroll
    for (int i = 0; i < 2; i++, w >>= 16) {
        u32 small = __byte_perm(table[0], table[1], w & 0x7777), large = __byte_perm(table[2], table[3], w & 0x7777);
        parts[i] = __byte_perm(small, large, 0x3210 | (w & 0x8888) >> 1);
    }
    // Each part has the values of two bytes: low, high, low, high.
    u32 low = __byte_perm(parts[0], parts[1], 0x6420), high = __byte_perm(parts[0], parts[1], 0x7531);
    x[0] = sum(bytes<0, 2>(low), MINUS_1152), x[1] = sum(bytes<1, 3>(low), MINUS_1152);
    x[2] = sum(bytes<0, 2>(high), MINUS_1152), x[3] = sum(bytes<1, 3>(high), MINUS_1152);
}

struct iq4_nl : WithoutMins {
    HALVES(9, 144, 1, false)
    static DEVICE i64 offset(int step, int chunk) { return step * 144 + chunk * 16; }

    DEVICE iq4_nl(const u8 *, int, int) {}

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        iq4_values(unaligned_word(s + 4 * t, 18 * g + 2), first);
        iq4_values(unaligned_word(s + 4 * t, 18 * g + 20), second);
    }

    static DEVICE float scale(const u8 *s, int g, int) { return float_at(s, 18 * g); }
};

struct iq4_xs : WithoutMins {
    HALVES(9, 144, 8, false)
    // Two steps span whole chunks.
    static DEVICE i64 offset(int step, int chunk) { return (step * 136 & ~15) + chunk * 16; }
    static DEVICE int start(int step) { return step % 2 * 8; }

    // Scales of even and odd groups.
    u32 even, uneven;

    DEVICE iq4_xs(const u8 *s, int, int) {
        u32 low = word_at(s, 4), high = *(const u16 *)(s + 2);
        // Two bits of each group, spread to four bits per byte.
        high = (high | high << 8) & 0x00ff00ffu;
        high = (high | high << 4) & 0x0f0f0f0fu;
        even = (low & 0x0f0f0f0fu) | (high << 4 & 0x30303030u), uneven = (low >> 4 & 0x0f0f0f0fu) | (high << 2 & 0x30303030u);
    }

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        group(s + 4 * t, g, even, first);
        group(s + 4 * t, g + 1, uneven, second);
    }

    // Products with the scale exceed the integers that f16 represents, and are rounded.
    static DEVICE void group(const u8 *s, int g, u32 scales, u32 (&x)[4]) {
        u32 scale = sum(twice(scales, g / 2), MINUS_1056);
        iq4_values(word_at(s, 8 + 16 * g), x);
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = product(x[i], scale);
    }

    static DEVICE float scale(const u8 *s, int, int) { return float_at(s, 0); }
};

// The bits of a value are the sign, the lowest exponent bits, and the highest mantissa bit of an f16 value. The f16
// value is 2^-14 times the value.
struct mxfp4 : WithoutMins {
    HALVES(9, 144, 1, false)
    // Two steps span whole chunks.
    static DEVICE i64 offset(int step, int chunk) { return (step * 136 & ~15) + chunk * 16; }
    static DEVICE int start(int step) { return step % 2 * 8; }
    static DEVICE float factor() { return 16384.0f; }

    DEVICE mxfp4(const u8 *, int, int) {}

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) const {
        group(unaligned_word(s + 4 * t, 17 * g + 1), first);
        group(unaligned_word(s + 4 * t, 17 * g + 18), second);
    }

    static DEVICE void group(u32 w, u32 (&x)[4]) {
        const u32 SIGNS = 0x80008000u, OTHERS = 0x0e000e00u;
        x[0] = (w << 12 & SIGNS) | (w << 9 & OTHERS);
        x[1] = (w << 4 & SIGNS) | (w << 1 & OTHERS);
        x[2] = (w << 8 & SIGNS) | (w << 5 & OTHERS);
        x[3] = (w & SIGNS) | (w >> 3 & OTHERS);
    }

    // Returns 2^(e - 127).
    static DEVICE float scale(const u8 *s, int g, int) {
        u32 e = s[17 * g];
        return __uint_as_float(e == 0 ? 0x00400000u : e << 23);
    }
};

// Floats of 16 bits. Each group of a row is divided by a power of two, so that its largest value is below 4096. Values above
// 2^-26 of the largest value are exact.
template <class T> struct Floats : WithoutMins {
    HALVES(16, 288, 1, false)
    static const int GROUPS = 4;
    static DEVICE i64 offset(int step, int chunk) { return step * 256 + chunk * 16; }

    // Powers of two of the groups.
    float powers[2];

    DEVICE void groups(const u8 *s, int t, int g, u32 (&first)[4], u32 (&second)[4]) {
        powers[0] = group(s + 64 * g + 8 * t, first), powers[1] = group(s + 64 * g + 64 + 8 * t, second);
    }

    static DEVICE float group(const u8 *s, u32 (&x)[4]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint2 w = *(const uint2 *)(s + 32 * half);
            x[2 * half] = __byte_perm(w.x, w.y, 0x5410), x[2 * half + 1] = __byte_perm(w.x, w.y, 0x7632);
        }
        u32 most = larger(larger(x[0], x[1]), larger(x[2], x[3]));
        // The quad has all values of the group.
        for (int lane = 1; lane < 4; lane *= 2) most = larger(most, __shfl_xor_sync(ALL_LANES, most, lane));
        return T::divide(x, max(most & 0xffff, most >> 16));
    }

    // Returns the larger magnitudes of two pairs.
    static DEVICE u32 larger(u32 a, u32 b) {
        a &= 0x7fff7fffu, b &= 0x7fff7fffu;
#if __CUDA_ARCH__ >= 800
        return T::maximum(a, b);
#else
        return __vmaxu2(a, b);
#endif
    }

    DEVICE float scale(const u8 *, int g, int) const { return powers[g % 2]; }
};

struct f16x8 : Floats<f16x8> {
    DEVICE f16x8(const u8 *, int, int) {}

    static DEVICE u32 maximum(u32 a, u32 b) {
        u32 x;
        asm("max.f16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
        return x;
    }

    // Divides values by a power of two, so that `largest` becomes less than 4096, and returns the power. Values below
    // 2^-4 are multiplied by 2^15, the largest power of f16.
    static DEVICE float divide(u32 (&x)[4], u32 largest) {
        u32 exponent = ::min(41 - (largest >> 10), 30u);
        for (int i = 0; i < 4; i++) x[i] = product(x[i], exponent * 0x04000400u);
        return __uint_as_float((142 - exponent) << 23);
    }
};

struct bf16x8 : Floats<bf16x8> {
    DEVICE bf16x8(const u8 *, int, int) {}

    static DEVICE u32 maximum(u32 a, u32 b) {
        u32 x;
        asm("max.bf16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
        return x;
    }

    // Power and inverse are normal numbers.
    static DEVICE float divide(u32 (&x)[4], u32 largest) {
        u32 exponent = max(largest >> 7, 12u);
        float inverse = __uint_as_float((265 - exponent) << 23);
        for (int i = 0; i < 4; i++) x[i] = pair_of_halves(__uint_as_float(x[i] << 16) * inverse, __uint_as_float(x[i] & 0xffff0000u) * inverse);
        return __uint_as_float((exponent - 11) << 23);
    }
};

}

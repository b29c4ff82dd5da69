// Blocks as 8-bit integers, for matmuls with integer activations.
//
// A type decodes a unit of a block at a time: RUNS runs of 16 adjacent values, GAP values apart. Bytes with bits of
// several values are thus read once. Adjacent runs are halves of a group of 32 values with one scale. A value is the
// group's scale times (integer + OFFSET), plus the group's minimum. Blocks are in shared memory: `s` is the address of
// a block, rounded down to a multiple of 4 by `odd` bytes.
#pragma once
#include "blocks.cuh"

// Returns words that start `shift` bits after an address. `last` is the word that contains the end of the
// last result.
template <int N> DEVICE void shifted_words(const u32 *from, const u32 *last, int shift, u32 (&out)[N]) {
    u32 low = from[0];
    for (int i = 0; i < N; i++) {
        u32 high = i + 1 < N ? from[i + 1] : *last;
        out[i] = __funnelshift_r(low, high, shift);
        low = high;
    }
}

// Loads words starting at `s + at`.
template <int ALIGN, int N> DEVICE void words(const u8 *s, int at, u32 (&out)[N]) {
    if (ALIGN >= 16) {
        for (int i = 0; i < N; i += 4) {
            uint4 x = *(const uint4 *)(s + at + 4 * i);
            out[i] = x.x, out[i + 1] = x.y, out[i + 2] = x.z, out[i + 3] = x.w;
        }
    } else if (ALIGN >= 8) {
        for (int i = 0; i < N; i += 2) {
            uint2 x = *(const uint2 *)(s + at + 4 * i);
            out[i] = x.x, out[i + 1] = x.y;
        }
    } else if (ALIGN >= 4) {
        for (int i = 0; i < N; i++) out[i] = *(const u32 *)(s + at + 4 * i);
    } else {
        // Combines each unaligned word from two aligned words. If the address is aligned, nothing past the
        // last word is read.
        const u32 *from = (const u32 *)(s + (at & ~3));
        shifted_words(from, from + (at & 3 ? N : N - 1), 8 * (at & 3), out);
    }
}

// Loads words starting at `s + odd`. The word after the last loaded word must also be part of the block.
template <int N> DEVICE void words_within(const u8 *s, int odd, u32 (&out)[N]) {
    const u32 *from = (const u32 *)s;
    shifted_words(from, from + N, 8 * odd, out);
}

// Loads words starting at `s + at`, where `at` is at most 4, with the requirement of `words_within`. `first`
// is the word at `s`. All lanes read the same words of their blocks, for any `at`.
template <int N> DEVICE void words_behind(const u8 *s, int at, u32 &first, u32 (&out)[N]) {
    const u32 *from = (const u32 *)s;
    u32 low = first = from[0];
    for (int i = 0; i < N; i++) {
        u32 high = from[i + 1];
        out[i] = __funnelshift_rc(low, high, 8 * at);
        low = high;
    }
}

// Loads an f16 value from an even address in shared memory.
DEVICE float shared_half(const u8 *shared, int at) {
    return half_to_float(*(const u16 *)(shared + at));
}

// Looks up the low and high nibbles of the bytes of a word in a table of 16 bytes.
DEVICE void of_table(const u32 (&table)[4], u32 w, u32 &low, u32 &high) {
    u32 parts[2];
    for (int i = 0; i < 2; i++, w >>= 16) {
        u32 small = __byte_perm(table[0], table[1], w & 0x7777), large = __byte_perm(table[2], table[3], w & 0x7777);
        parts[i] = __byte_perm(small, large, 0x3210 | (w & 0x8888) >> 1);
    }
    low = __byte_perm(parts[0], parts[1], 0x6420);
    high = __byte_perm(parts[0], parts[1], 0x7531);
}

// Spreads the lowest four bits to one bit per byte.
DEVICE u32 spread(u32 bits) {
    return (bits & 15) * 0x00204081u & 0x01010101u;
}

// Combines the low nibbles of one word with the high nibbles of another.
DEVICE u32 halves(u32 low, u32 high) {
    u32 out;
    asm("lop3.b32 %0, %1, %2, 0x0f0f0f0f, 0xe4;" : "=r"(out) : "r"(low), "r"(high));
    return out;
}

// Returns a byte of a word as a float, plus 2^23.
DEVICE float byte_and_2_23(u32 word, int i) {
    return __uint_as_float(__byte_perm(word, 0x4b000000, 0x7440 | i));
}

// The groups of a unit, with one or two runs each.
template <int RUNS, int GROUPS> struct Unit {
    u32 q[RUNS][4];
    float scale[GROUPS], min[GROUPS];
};

// In shared memory, PAD bytes follow every PAD_BLOCKS blocks, which end at a multiple of 16 bytes. Lanes then
// access different banks.
#define PADDED(blocks, bytes) static const int PAD_BLOCKS = blocks, PAD = bytes;
#define NOT_PADDED PADDED(32, 0)

#define DOTS(units, runs, gap, is_signed, offset, has_min)                                                                                     \
    static const int UNITS = units, RUNS = runs, GAP = gap, GROUPS = runs * gap / 32, OFFSET = offset;                                            \
    static const bool SIGNED = is_signed, HAS_MIN = has_min;                                                                                   \
    typedef ::Unit<runs, runs * gap / 32> Unit;

namespace dots {

// Blocks of 32 values. Each byte holds a value of the first half and a value of the second half.
struct q4_0 : types::q4_0 {
    DOTS(1, 2, 16, false, -8, false)
    PADDED(8, 16)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int odd, int, Unit &to) {
        u32 first, w[4];
        words_behind(s, odd + 2, first, w);
        for (int i = 0; i < 4; i++) to.q[0][i] = w[i] & 0x0f0f0f0fu, to.q[1][i] = w[i] >> 4 & 0x0f0f0f0fu;
        to.scale[0] = half_to_float((u16)(first >> 8 * odd));
    }
};

struct q4_1 : types::q4_1 {
    DOTS(1, 2, 16, false, 0, true)
    NOT_PADDED
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
    NOT_PADDED
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int odd, int, Unit &to) {
        u32 w[4], qh[1];
        words<2>(s, odd + 2, qh);
        words<2>(s, odd + 6, w);
        add_fifth_bits(qh[0], w, to);
        to.scale[0] = shared_half(s + odd, 0);
    }
};

struct q5_0_x8 : types::q5_0_x8 {
    DOTS(8, 2, 16, false, -16, false)
    PADDED(1, 48)
    static DEVICE int first(int u) { return 32 * u; }
    static DEVICE void unit(const u8 *s, int, int u, Unit &to) {
        u32 w[4], qh[1];
        words<16>(s, 16 * u, w);
        words<4>(s, HIGH + 4 * u, qh);
        add_fifth_bits(qh[0], w, to);
        to.scale[0] = shared_half(s, SCALES + 2 * u);
    }
};

struct q5_1 : types::q5_1 {
    DOTS(1, 2, 16, false, 0, true)
    NOT_PADDED
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int, int, Unit &to) {
        u32 header[2], w[4];
        words<8>(s, 0, header);
        words<8>(s, 8, w);
        add_fifth_bits(header[1], w, to);
        to.scale[0] = half_to_float((u16)header[0]);
        to.min[0] = half_to_float((u16)(header[0] >> 16));
    }
};

struct q8_0 : types::q8_0 {
    DOTS(1, 2, 16, true, 0, false)
    PADDED(16, 32)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int odd, int, Unit &to) {
        u32 first, w[8];
        words_behind(s, odd + 2, first, w);
        for (int i = 0; i < 8; i++) to.q[i / 4][i % 4] = w[i];
        to.scale[0] = half_to_float((u16)(first >> 8 * odd));
    }
};

// Blocks of 256 values in two halves of four groups of 32 values; the groups of a half are packed into the same bytes.
// A unit holds 16 values of each group of a half.
struct q2_K : types::q2_K {
    DOTS(4, 4, 32, false, 0, true)
    PADDED(4, 112)
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

// Assembles run `r` of a unit. The third bit of a value is bit `bit` of a byte.
DEVICE void add_third_bits(const u32 (&w)[4], const u32 (&high)[4], int r, int bit, u32 (&q)[4]) {
    for (int i = 0; i < 4; i++) q[i] = (w[i] >> 2 * r & 0x03030303u) | (high[i] >> bit & 0x01010101u) << 2;
}

struct q3_K : types::q3_K {
    DOTS(4, 4, 32, false, -4, false)
    NOT_PADDED
    static DEVICE int first(int u) { return u / 2 * 128 + u % 2 * 16; }
    static DEVICE void unit(const u8 *s, int odd, int u, Unit &to) {
        u32 w[4], high[4];
        words_within(s + 32 + 16 * u, odd, w);
        words_within(s + u % 2 * 16, odd, high);
        s += odd;
        float d = shared_half(s, 108);
        const u8 *scales = s + (96 + u % 2);
        int half = u / 2 * 4;
        for (int i = 0; i < 4; i++) high[i] >>= half;
        for (int r = 0; r < 4; r++) {
            add_third_bits(w, high, r, r, to.q[r]);
            u32 scale = (scales[2 * r] >> half & 15) | (scales[8 + 2 * (r % 2)] >> (half + r / 2 * 2) & 3) << 4;
            to.scale[r] = d * (float)((int)scale - 32);
        }
    }
};

struct q3_K_x8 : types::q3_K_x8 {
    DOTS(32, 4, 32, false, -4, false)
    NOT_PADDED
    static DEVICE int first(int u) { return u / 2 * 128 + u % 2 * 16; }
    static DEVICE void unit(const u8 *s, int, int u, Unit &to) {
        u32 w[4], high[4], scales[3];
        int block = u / 4, half = u % 4 / 2;
        words<16>(s, 16 * u, w);
        words<16>(s, HIGH + 32 * block + u % 2 * 16, high);
        words<4>(s, SCALES + 12 * block, scales);
        float d = shared_half(s, OF_ALL + 2 * block);
        for (int r = 0; r < 4; r++) {
            int at = r % 2 * 16 + u % 2 * 8;
            add_third_bits(w, high, r, half * 4 + r, to.q[r]);
            u32 scale = (scales[r / 2] >> (at + half * 4) & 15) | (scales[2] >> (at + half * 4 + r / 2 * 2) & 3) << 4;
            to.scale[r] = d * (float)((int)scale - 32);
        }
    }
};

// Decodes the scales and minimums of a pair of groups of Q4_K and Q5_K. Q4_K leaves the second group's values
// in the high nibbles, where they count 16 times, and adjusts the scale with `of_second`.
template <class UNIT> DEVICE void scales_of_pair(const u8 *s, int pair, float of_second, UNIT &to) {
    u32 w[4];
    words<16>(s, 0, w);
    float d = half_to_float((u16)w[0]), dmin = half_to_float((u16)(w[0] >> 16));
    // Bytes of both groups: two scales and two minimums. The last two pairs store their low four bits
    // elsewhere.
    u32 at = pair % 2 ? 0x7632 : 0x5410, bytes = __byte_perm(w[1], w[2], at);
    u32 low = __byte_perm(w[3], w[3] >> 4, at);
    bytes = (pair < 2 ? bytes : halves(low, bytes >> 2)) & 0x3f3f3f3fu;
    // The products are exact before 2^23 times the scale is subtracted.
    float less = d * -8388608.0f, less_min = dmin * 8388608.0f;
    to.scale[0] = __fmaf_rn(d, byte_and_2_23(bytes, 0), less);
    to.scale[1] = of_second * __fmaf_rn(d, byte_and_2_23(bytes, 1), less);
    to.min[0] = __fmaf_rn(-dmin, byte_and_2_23(bytes, 2), less_min);
    to.min[1] = __fmaf_rn(-dmin, byte_and_2_23(bytes, 3), less_min);
}

struct q4_K : types::q4_K {
    DOTS(4, 4, 16, false, 0, true)
    NOT_PADDED
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
    NOT_PADDED
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

template <class UNIT> DEVICE void add_high_bits(const u32 (&low)[2][4], const u32 (&high)[4], UNIT &to) {
    for (int i = 0; i < 4; i++) {
        // Masks alternate bit pairs, so that bits shifted across bytes never reach a selected nibble.
        u32 even = high[i] & 0x33333333u, uneven = high[i] & 0xccccccccu;
        to.q[0][i] = halves(low[0][i], even << 4);
        to.q[1][i] = halves(low[1][i], uneven << 2);
        to.q[2][i] = halves(low[0][i] >> 4, even);
        to.q[3][i] = halves(low[1][i] >> 4, uneven >> 2);
    }
}

struct q6_K : types::q6_K {
    DOTS(4, 4, 32, false, -32, false)
    NOT_PADDED
    static DEVICE int first(int u) { return u / 2 * 128 + u % 2 * 16; }
    static DEVICE void unit(const u8 *s, int odd, int u, Unit &to) {
        u32 low[2][4], high[4];
        const u8 *lows = s + (u / 2 * 64 + u % 2 * 16);
        words_within(lows, odd, low[0]);
        words_within(lows + 32, odd, low[1]);
        words_within(s + (128 + 16 * u), odd, high);
        add_high_bits(low, high, to);
        const u8 *scales = s + (odd + 192 + u / 2 * 8 + u % 2);
        float d = shared_half(s + odd, 208);
        for (int r = 0; r < 4; r++) to.scale[r] = d * (float)(i8)scales[2 * r];
    }
};

struct q6_K_x8 : types::q6_K_x8 {
    DOTS(32, 4, 32, false, -32, false)
    NOT_PADDED
    static DEVICE int first(int u) { return u / 2 * 128 + u % 2 * 16; }
    static DEVICE void unit(const u8 *s, int, int u, Unit &to) {
        u32 low[2][4], high[4], scales[2];
        words<16>(s, 16 * u, low[0]);
        words<16>(s, UNEVEN + 16 * u, low[1]);
        words<16>(s, HIGH + 16 * u, high);
        words<8>(s, SCALES + u / 2 * 8, scales);
        add_high_bits(low, high, to);
        float d = shared_half(s, OF_ALL + u / 4 * 2);
        for (int r = 0; r < 4; r++) to.scale[r] = d * (float)(i8)(scales[r / 2] >> (r % 2 * 16 + u % 2 * 8));
    }
};

// Looks up 4-bit indices in the table of `iq4_value`.
DEVICE void iq4_values(u32 w, u32 &low, u32 &high) {
    const u32 table[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
    of_table(table, w, low, high);
}

struct iq4_nl : types::iq4_nl {
    DOTS(1, 2, 16, true, 0, false)
    PADDED(8, 16)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int odd, int, Unit &to) {
        u32 first, w[4];
        words_behind(s, odd + 2, first, w);
        for (int i = 0; i < 4; i++) iq4_values(w[i], to.q[0][i], to.q[1][i]);
        to.scale[0] = half_to_float((u16)(first >> 8 * odd));
    }
};

struct iq4_xs : types::iq4_xs {
    DOTS(8, 2, 16, true, 0, false)
    NOT_PADDED
    static DEVICE int first(int u) { return 32 * u; }
    static DEVICE void unit(const u8 *s, int, int u, Unit &to) {
        u32 w[4], header[2];
        words<8>(s, 0, header);
        words<8>(s, 8 + 16 * u, w);
        for (int i = 0; i < 4; i++) iq4_values(w[i], to.q[0][i], to.q[1][i]);
        u32 scale = (header[1] >> 4 * u & 15) | (header[0] >> (16 + 2 * u) & 3) << 4;
        to.scale[0] = half_to_float((u16)header[0]) * (float)((int)scale - 32);
    }
};

// Units of IQ4_K, IQ5_K, and IQ6_K are halves of two adjacent groups of 32 values. Shifts become minimums.
DEVICE int half_of_pair(int u) { return u / 2 * 64 + u % 2 * 16; }

template <class UNIT> DEVICE void shift_halves(const u8 *s, int u, float shift, UNIT &to) {
    for (int r = 0; r < 2; r++) to.min[r] = to.scale[r] * types::shift_of(s, u / 2 * 4 + 2 * r + u % 2, shift);
}

// Combines bytes of `b` where the lowest bit of the byte of `bits` is set with bytes of `a`.
DEVICE u32 select_bytes(u32 bits, u32 a, u32 b) {
    u32 mask = (bits & 0x01010101u) * 255;
    return (a & ~mask) | (b & mask);
}

struct iq4_k : types::iq4_k {
    DOTS(8, 2, 32, true, 0, true)
    NOT_PADDED
    static DEVICE int first(int u) { return half_of_pair(u); }
    static DEVICE void unit(const u8 *s, int, int u, Unit &to) {
        u32 w[8];
        words<16>(s, 16 + u / 2 * 32, w);
        for (int i = 0; i < 8; i++) {
            u32 low, high;
            iq4_values(w[i], low, high);
            to.q[i / 4][i % 4] = u % 2 ? high : low;
        }
        float d = shared_half(s, 0);
        for (int r = 0; r < 2; r++) to.scale[r] = d * types::six_bit_scale(s, u / 2 * 4 + 2 * r + u % 2);
        shift_halves(s, u, 4.0f, to);
    }
};

// Looks up 5-bit indices in the table of IQ5_K. The fifth bits of the low nibbles are bit `shift` of the bytes of
// `fifth`.
template <class UNIT> DEVICE void iq5_values(const u32 (&w)[4], const u32 (&fifth)[4], int shift, UNIT &to) {
    const u32 table[2][4] = IQ5_K_TABLE;
    for (int i = 0; i < 4; i++) {
        u32 of_low[2], of_high[2];
        for (int part = 0; part < 2; part++) of_table(table[part], w[i], of_low[part], of_high[part]);
        u32 bits = fifth[i] >> shift;
        to.q[0][i] = select_bytes(bits, of_low[0], of_low[1]);
        to.q[1][i] = select_bytes(bits >> 1, of_high[0], of_high[1]);
    }
}

struct iq5_k : types::iq5_k {
    DOTS(8, 2, 32, true, 0, true)
    NOT_PADDED
    static DEVICE int first(int u) { return half_of_pair(u); }
    static DEVICE void unit(const u8 *s, int, int u, Unit &to) {
        u32 w[4], fifth[4];
        words<16>(s, 16 + 16 * u, w);
        words<16>(s, 144 + u % 2 * 16, fifth);
        iq5_values(w, fifth, u / 2 * 2, to);
        float d = shared_half(s, 0);
        for (int r = 0; r < 2; r++) to.scale[r] = d * types::six_bit_scale(s, u / 2 * 4 + 2 * r + u % 2);
        shift_halves(s, u, 2.0f, to);
    }
};

struct iq6_k : types::iq6_k {
    DOTS(8, 2, 32, true, 0, true)
    NOT_PADDED
    static DEVICE int first(int u) { return half_of_pair(u); }
    // Selects from values of each part of the table.
    static DEVICE u32 select(u32 bits, const u32 (&v)[4]) {
        return select_bytes(bits >> 1, select_bytes(bits, v[0], v[1]), select_bytes(bits, v[2], v[3]));
    }
    static DEVICE void unit(const u8 *s, int, int u, Unit &to) {
        const u32 table[4][4] = IQ6_K_TABLE;
        u32 w[4], top[4];
        words<4>(s, 20 + 16 * u, w);
        words<4>(s, 148 + u / 4 * 32 + u % 2 * 16, top);
        for (int i = 0; i < 4; i++) {
            u32 of_low[4], of_high[4];
            for (int part = 0; part < 4; part++) of_table(table[part], w[i], of_low[part], of_high[part]);
            u32 bits = top[i] >> u / 2 % 2 * 4;
            to.q[0][i] = select(bits, of_low);
            to.q[1][i] = select(bits >> 2, of_high);
        }
        float d = shared_half(s, 0);
        for (int r = 0; r < 2; r++) to.scale[r] = d * (float)(i8)s[4 + u / 2 * 4 + 2 * r + u % 2];
        shift_halves(s, u, 1.0f, to);
    }
};

struct iq4_ks_d : types::iq4_ks_d {
    DOTS(8, 2, 16, true, 0, true)
    NOT_PADDED
    static DEVICE int first(int u) { return 32 * u; }
    static DEVICE void unit(const u8 *s, int, int u, Unit &to) {
        u32 w[4];
        words<4>(s, 12 + 16 * u, w);
        for (int i = 0; i < 4; i++) iq4_values(w[i], to.q[0][i], to.q[1][i]);
        to.scale[0] = types::scale_of_row(s, u);
        to.min[0] = to.scale[0] * types::shift_in_row(s, u, 4.0f);
    }
};

struct iq5_ks_d : types::iq5_ks_d {
    DOTS(8, 2, 32, true, 0, true)
    NOT_PADDED
    static DEVICE int first(int u) { return half_of_pair(u); }
    static DEVICE void unit(const u8 *s, int, int u, Unit &to) {
        u32 w[4], fifth[4];
        words<4>(s, 12 + 16 * u, w);
        words<4>(s, 140 + u % 2 * 16, fifth);
        iq5_values(w, fifth, u / 2 * 2, to);
        for (int r = 0; r < 2; r++) {
            int g = u / 2 * 2 + r;
            to.scale[r] = types::scale_of_row(s, g);
            to.min[r] = to.scale[r] * types::shift_in_row(s, g, 2.0f);
        }
    }
};

// Looks up 4-bit indices in the table of `fp4_value`.
DEVICE void fp4_values(u32 w, u32 &low, u32 &high) {
    const u32 table[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
    of_table(table, w, low, high);
}

struct mxfp4 : types::mxfp4 {
    DOTS(1, 2, 16, true, 0, false)
    PADDED(16, 48)
    static DEVICE int first(int) { return 0; }
    static DEVICE void unit(const u8 *s, int odd, int, Unit &to) {
        u32 first, w[4];
        words_behind(s, odd + 1, first, w);
        u32 e = first >> 8 * odd & 255;
        for (int i = 0; i < 4; i++) fp4_values(w[i], to.q[0][i], to.q[1][i]);
        to.scale[0] = __uint_as_float(e < 2 ? 0x00200000u << e : e - 1 << 23);
    }
};

// Blocks of 64 values with a scale per 16 values. A unit holds 16 values of each half.
struct nvfp4 : types::nvfp4 {
    DOTS(2, 2, 32, true, 0, false)
    NOT_PADDED
    static DEVICE int first(int u) { return 16 * u; }
    static DEVICE void unit(const u8 *s, int, int u, Unit &to) {
        for (int r = 0; r < 2; r++) {
            u32 w[2];
            words<4>(s, 4 + 16 * r + 8 * u, w);
            for (int i = 0; i < 2; i++) fp4_values(w[i], to.q[r][i], to.q[r][2 + i]);
            to.scale[r] = types::nvfp4::scale(s[2 * r + u]);
        }
    }
};

// A unit has two groups, so that a piece consists of whole memory sectors.
struct q1_0 : types::q1_0 {
    DOTS(2, 4, 16, true, 0, false)
    NOT_PADDED
    static DEVICE int first(int u) { return 64 * u; }
    static DEVICE void unit(const u8 *s, int odd, int u, Unit &to) {
        u32 first, bits[2];
        words_behind(s + 8 * u, odd + 2, first, bits);
        // Each bit encodes 1 or -1.
        for (int i = 0; i < 16; i++) to.q[i / 4][i % 4] = 0xffffffffu ^ spread(bits[i / 8] >> 4 * (i % 8)) * 0xfe;
        to.scale[0] = to.scale[1] = shared_half(s + odd, 0);
    }
};

struct q2_0 : types::q2_0 {
    DOTS(2, 2, 16, false, -1, false)
    NOT_PADDED
    static DEVICE int first(int u) { return 32 * u; }
    static DEVICE void unit(const u8 *s, int odd, int u, Unit &to) {
        u32 first, w[2];
        words_behind(s + 8 * u, odd + 2, first, w);
        for (int i = 0; i < 8; i++) {
            // Spreads four pairs of bits to one pair per byte.
            u32 bits = w[i / 4] >> i % 4 * 8 & 255, apart = (bits | bits << 12) & 0x000f000fu;
            to.q[i / 4][i % 4] = (apart | apart << 6) & 0x03030303u;
        }
        to.scale[0] = shared_half(s + odd, 0);
    }
};

struct tq2_0 : types::tq2_0 {
    DOTS(4, 4, 32, false, -1, false)
    NOT_PADDED
    static DEVICE int first(int u) { return u / 2 * 128 + u % 2 * 16; }
    static DEVICE void unit(const u8 *s, int odd, int u, Unit &to) {
        u32 w[4];
        words_within(s + 16 * u, odd, w);
        float d = shared_half(s + odd, 64);
        for (int r = 0; r < 4; r++) {
            for (int i = 0; i < 4; i++) to.q[r][i] = w[i] >> 2 * r & 0x03030303u;
            to.scale[r] = d;
        }
    }
};

// Returns the leading base-3 digit of each byte after a multiplication by a power of 3 modulo 256.
DEVICE u32 digits(u32 word, u32 power) {
    u32 even = ((word & 0x00ff00ffu) * power & 0x00ff00ffu) * 3 >> 8 & 0x00ff00ffu;
    u32 uneven = ((word >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu) * 3 & 0xff00ff00u;
    return even | uneven;
}

// Each run of 16 values is one digit of 16 bytes: ten runs in the first 32 bytes and five in the next 16. The
// last run is four digits of the last four bytes.
struct tq1_0 : types::tq1_0 {
    DOTS(4, 4, 16, false, -1, false)
    NOT_PADDED
    static DEVICE int first(int u) { return 64 * u; }
    static DEVICE u32 power(int digit) { return digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81; }
    static DEVICE void unit(const u8 *s, int odd, int u, Unit &to) {
        for (int r = 0; r < 4; r++) {
            int run = 4 * u + r;
            u32 w[4];
            words_within(s + (run < 10 ? run % 2 * 16 : 32), odd, w);
            u32 of_run = power(run < 10 ? run / 2 : run - 10);
            for (int i = 0; i < 4; i++) to.q[r][i] = digits(w[i], of_run);
        }
        if (u == 3) {
            u32 last[1];
            words_within(s + 48, odd, last);
            for (int i = 0; i < 4; i++) to.q[3][i] = digits(last[0], power(i));
        }
        to.scale[0] = to.scale[1] = shared_half(s + odd, 52);
    }
};

#ifdef POINTS
// Negates the nonzero bytes of a word where a bit of `signs` is set.
DEVICE u32 negated(u32 word, u32 signs) {
    u32 ones = spread(signs);
    return (word ^ ones * 255) + ones;
}

// Loads the word at `s + odd + 2`.
DEVICE u32 word_behind(const u8 *s, int odd) {
    u32 first, w[1];
    words_behind(s, odd + 2, first, w);
    return w[0];
}

#if POINTS_BITS == 64
// Decodes eight values of a run: a codebook point with signs.
DEVICE void signed_values(u64 point, u32 signs, u32 *to) {
    to[0] = negated((u32)point, signs);
    to[1] = negated((u32)(point >> 32), signs >> 4);
}

// Decodes eight values of a run: eight times (point - 1), plus 1, or minus 1 if `down`.
DEVICE void shifted_values(u64 point, bool down, u32 *to) {
    u32 shift = down ? 0x77777777u : 0x79797979u;
    to[0] = ((u32)point * 8 + shift) ^ 0x80808080u;
    to[1] = ((u32)(point >> 32) * 8 + shift) ^ 0x80808080u;
}

struct iq2_xxs : types::iq2_xxs {
    DOTS(4, 4, 16, true, 0, false)
    NOT_PADDED
    static DEVICE int first(int u) { return 64 * u; }
    static DEVICE void unit(const u8 *s, int odd, int u, Unit &to) {
        u32 first, w[4];
        words_behind(s + 16 * u, odd + 2, first, w);
        float d = shared_half(s + odd, 0);
        for (int g = 0; g < 2; g++) {
            u32 rest = w[2 * g + 1];
            for (int l = 0; l < 4; l++) {
                u64 point = POINTS[byte_of(w[2 * g], l)];
                signed_values(point, types::even_signs(rest >> 7 * l & 127), to.q[2 * g + l / 2] + l % 2 * 2);
            }
            to.scale[g] = d * (((float)(rest >> 28) + 0.5f) * 0.25f);
        }
    }
};

// A scale per 16 values. A unit holds 16 values of each of four groups of 32.
struct iq2_xs : types::iq2_xs {
    DOTS(4, 4, 32, true, 0, false)
    NOT_PADDED
    static DEVICE int first(int u) { return u / 2 * 128 + u % 2 * 16; }
    static DEVICE void unit(const u8 *s, int odd, int u, Unit &to) {
        u32 scales = word_behind(s + 64 + u / 2 * 4, odd) >> u % 2 * 4;
        float d = shared_half(s + odd, 0);
        for (int r = 0; r < 4; r++) {
            u32 w = word_behind(s + u / 2 * 32 + 8 * r + u % 2 * 4, odd);
            for (int l = 0; l < 2; l++, w >>= 16) signed_values(POINTS[w & 511], types::even_signs(w >> 9 & 127), to.q[r] + 2 * l);
            to.scale[r] = d * (((float)(scales >> 8 * r & 15) + 0.5f) * 0.25f);
        }
    }
};

struct iq2_s : types::iq2_s {
    DOTS(4, 4, 32, true, 0, false)
    NOT_PADDED
    static DEVICE int first(int u) { return u / 2 * 128 + u % 2 * 16; }
    static DEVICE void unit(const u8 *s, int odd, int u, Unit &to) {
        u32 first, low[4], signs[4];
        words_behind(s + u / 2 * 16, odd + 2, first, low);
        words_behind(s + 32 + u / 2 * 16, odd + 2, first, signs);
        u32 high = word_behind(s + 64 + u / 2 * 4, odd) >> u % 2 * 4, scales = word_behind(s + 72 + u / 2 * 4, odd) >> u % 2 * 4;
        float d = shared_half(s + odd, 0);
        for (int r = 0; r < 4; r++) {
            u32 q = low[r] >> u % 2 * 16, of_q = signs[r] >> u % 2 * 16, of_group = high >> 8 * r;
            for (int l = 0; l < 2; l++) {
                u32 index = byte_of(q, l) | (of_group >> 2 * l & 3) << 8;
                signed_values(POINTS[index], byte_of(of_q, l), to.q[r] + 2 * l);
            }
            to.scale[r] = d * (((float)(scales >> 8 * r & 15) + 0.5f) * 0.25f);
        }
    }
};

struct iq1_s : types::iq1_s {
    DOTS(4, 4, 16, true, 0, false)
    NOT_PADDED
    static DEVICE int first(int u) { return 64 * u; }
    static DEVICE void unit(const u8 *s, int odd, int u, Unit &to) {
        u32 first, w[2], highs = word_behind(s + 32 + 4 * u, odd);
        words_behind(s + 8 * u, odd + 2, first, w);
        float d = shared_half(s + odd, 0);
        for (int g = 0; g < 2; g++) {
            u32 high = highs >> 16 * g & 0xffff;
            for (int l = 0; l < 4; l++) {
                u32 index = byte_of(w[g], l) | (high >> 3 * l & 7) << 8;
                shifted_values(POINTS[index], high >> 15, to.q[2 * g + l / 2] + l % 2 * 2);
            }
            to.scale[g] = d * (((float)(high >> 12 & 7) + 0.5f) * 0.25f);
        }
    }
};

struct iq1_m : types::iq1_m {
    DOTS(4, 4, 32, true, 0, false)
    NOT_PADDED
    static DEVICE int first(int u) { return u / 2 * 128 + u % 2 * 16; }
    static DEVICE void unit(const u8 *s, int, int u, Unit &to) {
        u32 low[4], high[2], scales[2];
        words<8>(s, u / 2 * 16, low);
        words<8>(s, 32 + u / 2 * 8, high);
        words<8>(s, 48, scales);
        u32 bits = (scales[0] >> 12 & 15) | scales[0] >> 28 << 4 | (scales[1] >> 12 & 15) << 8 | scales[1] >> 28 << 12;
        float d = half_to_float((u16)bits);
        u32 of_half = (u / 2 ? scales[1] : scales[0]) >> u % 2 * 3;
        for (int r = 0; r < 4; r++) {
            u32 q = low[r] >> u % 2 * 16, of_q = high[r / 2] >> (r % 2 * 16 + u % 2 * 8);
            for (int l = 0; l < 2; l++) {
                u32 nibble = of_q >> 4 * l & 15;
                shifted_values(POINTS[byte_of(q, l) | (nibble & 7) << 8], nibble >> 3, to.q[r] + 2 * l);
            }
            to.scale[r] = d * (((float)(of_half >> (r / 2 * 16 + r % 2 * 6) & 7) + 0.5f) * 0.25f);
        }
    }
};
#else
// Decodes four values with the first or second half of `signs`.
DEVICE u32 signed_values(u32 point, u32 signs, int half) {
    return negated(point, signs >> 4 * half);
}

struct iq3_xxs : types::iq3_xxs {
    DOTS(4, 4, 16, true, 0, false)
    NOT_PADDED
    static DEVICE int first(int u) { return 64 * u; }
    static DEVICE void unit(const u8 *s, int odd, int u, Unit &to) {
        u32 first, w[4], rest[2];
        words_behind(s + 16 * u, odd + 2, first, w);
        words_behind(s + 64 + 8 * u, odd + 2, first, rest);
        float d = shared_half(s + odd, 0);
        for (int g = 0; g < 2; g++) {
            for (int i = 0; i < 8; i++) {
                u32 signs = types::even_signs(rest[g] >> i / 2 * 7 & 127);
                to.q[2 * g + i / 4][i % 4] = signed_values(POINTS[byte_of(w[2 * g + i / 4], i % 4)], signs, i % 2);
            }
            to.scale[g] = d * (((float)(rest[g] >> 28) + 0.5f) * 0.5f);
        }
    }
};

struct iq3_s : types::iq3_s {
    DOTS(4, 4, 16, true, 0, false)
    NOT_PADDED
    static DEVICE int first(int u) { return 64 * u; }
    static DEVICE void unit(const u8 *s, int odd, int u, Unit &to) {
        u32 first, w[4], signs[2];
        words_behind(s + 16 * u, odd + 2, first, w);
        words_behind(s + 72 + 8 * u, odd + 2, first, signs);
        u32 packed = s[odd + 106 + u];
        float d = shared_half(s + odd, 0);
        for (int g = 0; g < 2; g++) {
            u32 high = s[odd + 66 + 2 * u + g];
            for (int i = 0; i < 8; i++) {
                u32 index = byte_of(w[2 * g + i / 4], i % 4) | (high >> i & 1) << 8;
                to.q[2 * g + i / 4][i % 4] = signed_values(POINTS[index], byte_of(signs[g], i / 2), i % 2);
            }
            to.scale[g] = d * (((float)(packed >> 4 * g & 15) + 0.5f) * 2.0f);
        }
    }
};
#endif
#endif

} // namespace dots

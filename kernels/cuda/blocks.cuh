// Dequantization of each tensor type. A type decodes a chunk at a time: RUNS runs of RUN adjacent values, GAP values
// apart. Bytes with bits of several values are thus read once. The values are bit-identical to those of
// `kernels/src/quants`, except for the rounding of sums.
#pragma once
#include "common.cuh"
#include "codebooks.cuh"

// Loads four bytes from an address that is a multiple of ALIGN.
template <int ALIGN> DEVICE u32 word(const u8 *p) {
    if (ALIGN >= 4) return *(const u32 *)p;
    if (ALIGN == 2) return *(const u16 *)p | (u32) * (const u16 *)(p + 2) << 16;
    return p[0] | p[1] << 8 | p[2] << 16 | (u32)p[3] << 24;
}

DEVICE u16 half_word(const u8 *p) {
    return *(const u16 *)p;
}

// Loads an f16 value.
DEVICE float half_at(const u8 *p) {
    return half_to_float(half_word(p));
}

DEVICE u32 byte_of(u32 word, int i) {
    return word >> 8 * i & 255;
}

// Returns element `n` of a table of 16 bytes.
DEVICE float of_table(const u32 (&table)[4], u32 n) {
    u32 low = __byte_perm(table[0], table[1], n & 7), high = __byte_perm(table[2], table[3], n & 7);
    return (float)(i8)(n & 8 ? high : low);
}

// -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
DEVICE float iq4_value(u32 n) {
    const u32 table[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
    return of_table(table, n);
}

// 0, 1, 2, 3, 4, 6, 8, 12, and their negatives
DEVICE float fp4_value(u32 n) {
    const u32 table[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
    return of_table(table, n);
}

// Tables of IQ5_K and IQ6_K, in parts of 16 bytes.
#define IQ5_K_TABLE                                                                                                    \
    {                                                                                                                  \
        {0xa4998e82u, 0xc7bfb6adu, 0xe2dcd5ceu, 0xfaf4eee8u}, {0x110b05ffu, 0x2b241d17u, 0x4d443b33u, 0x796d6157u}     \
    }
#define IQ6_K_TABLE                                                                                                    \
    {                                                                                                                  \
        {0x938d8781u, 0xa8a39e98u, 0xbab6b1acu, 0xcac6c2beu}, {0xd8d4d1cdu, 0xe4e1dedbu, 0xf0edeae7u, 0xfbf8f5f3u},    \
        {0x060300feu, 0x110e0c09u, 0x1e1b1714u, 0x2c282421u}, {0x3b37332fu, 0x4d48443fu, 0x625c5752u, 0x79736d67u}     \
    }

// Returns element `n` of a table in parts of 16 bytes.
template <int TABLES> DEVICE float of_parts(const u32 (&table)[TABLES][4], u32 n) {
    float value = of_table(table[0], n & 15);
    for (int part = 1; part < TABLES; part++) {
        float other = of_table(table[part], n & 15);
        value = (int)(n >> 4) == part ? other : value;
    }
    return value;
}

// Defines the chunk layout of a block type.
#define BLOCK(qk, bytes, run, runs, gap)                                                                               \
    static const int QK = qk, BYTES = bytes, RUN = run, RUNS = runs, GAP = gap, N = run * runs;                        \
    static const int CHUNKS = qk / N;

namespace types {

struct f32 {
    BLOCK(1, 4, 1, 1, 1)
    static DEVICE void chunk(const u8 *b, int, float (&v)[N]) { v[0] = *(const float *)b; }
};

struct f16 {
    BLOCK(1, 2, 1, 1, 1)
    static DEVICE void chunk(const u8 *b, int, float (&v)[N]) { v[0] = half_at(b); }
};

struct bf16 {
    BLOCK(1, 2, 1, 1, 1)
    static DEVICE void chunk(const u8 *b, int, float (&v)[N]) { v[0] = bfloat_to_float(half_word(b)); }
};

// Several floats as one block, for contiguous and aligned rows.
struct f32x4 {
    BLOCK(4, 16, 4, 1, 4)
    static DEVICE void chunk(const u8 *b, int, float (&v)[N]) {
        float4 x = *(const float4 *)b;
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    }
};

template <float (*VALUE)(u16)> DEVICE void eight_of_16_bits(const u8 *b, float (&v)[8]) {
    uint4 x = *(const uint4 *)b;
    const u32 words[4] = {x.x, x.y, x.z, x.w};
    for (int i = 0; i < 4; i++) {
        v[2 * i] = VALUE((u16)words[i]);
        v[2 * i + 1] = VALUE((u16)(words[i] >> 16));
    }
}

struct f16x2 {
    BLOCK(2, 4, 2, 1, 2)
    static DEVICE void chunk(const u8 *b, int, float (&v)[N]) {
        u32 x = *(const u32 *)b;
        v[0] = half_to_float((u16)x), v[1] = half_to_float((u16)(x >> 16));
    }
};

struct bf16x2 {
    BLOCK(2, 4, 2, 1, 2)
    static DEVICE void chunk(const u8 *b, int, float (&v)[N]) {
        u32 x = *(const u32 *)b;
        v[0] = bfloat_to_float((u16)x), v[1] = bfloat_to_float((u16)(x >> 16));
    }
};

struct f16x8 {
    BLOCK(8, 16, 4, 2, 4)
    static DEVICE void chunk(const u8 *b, int, float (&v)[N]) { eight_of_16_bits<half_to_float>(b, v); }
};

struct bf16x8 {
    BLOCK(8, 16, 4, 2, 4)
    static DEVICE void chunk(const u8 *b, int, float (&v)[N]) { eight_of_16_bits<bfloat_to_float>(b, v); }
};

struct q4_0 {
    BLOCK(32, 18, 4, 2, 16)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        float d = half_at(b);
        u32 w = word<2>(b + 2 + 4 * c);
        for (int i = 0; i < 4; i++) {
            v[i] = (float)((int)(byte_of(w, i) & 15) - 8) * d;
            v[4 + i] = (float)((int)(byte_of(w, i) >> 4) - 8) * d;
        }
    }
};

struct q4_1 {
    BLOCK(32, 20, 4, 2, 16)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        float d = half_at(b), m = half_at(b + 2);
        u32 w = word<4>(b + 4 + 4 * c);
        for (int i = 0; i < 4; i++) {
            v[i] = (float)(byte_of(w, i) & 15) * d + m;
            v[4 + i] = (float)(byte_of(w, i) >> 4) * d + m;
        }
    }
};

// Returns the 5 bits of value `4 c + i` or `4 c + i + 16`, given the low bits of these values and the fifth
// bits of all values.
DEVICE u32 five_bits(u32 w, u32 qh, int c, int i, int high) {
    return (byte_of(w, i) >> 4 * high & 15) | (qh >> (4 * c + i + 16 * high) & 1) << 4;
}

struct q5_0 {
    BLOCK(32, 22, 4, 2, 16)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) { of_parts<2>(b + 6 + 4 * c, b + 2, b, c, v); }
    // Decodes a chunk from the words with the low bits and the fifth bits, which are aligned to ALIGN bytes,
    // and the scale.
    template <int ALIGN> static DEVICE void of_parts(const u8 *low, const u8 *high, const u8 *scale, int c, float (&v)[N]) {
        float d = half_at(scale);
        u32 qh = word<ALIGN>(high), w = word<ALIGN>(low);
        for (int i = 0; i < 4; i++) {
            v[i] = (float)((int)five_bits(w, qh, c, i, 0) - 16) * d;
            v[4 + i] = (float)((int)five_bits(w, qh, c, i, 1) - 16) * d;
        }
    }
};

// Eight blocks stored in parts, as arranged by `engine/src/backend/cuda/parts.rs`. The lanes of a warp read
// adjacent, aligned addresses.
struct q5_0_x8 {
    BLOCK(256, 176, 4, 2, 16)
    static const int HIGH = 128, SCALES = 160;
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) { q5_0::of_parts<4>(b + 4 * c, b + HIGH + c / 4 * 4, b + SCALES + c / 4 * 2, c % 4, v); }
};

struct q5_1 {
    BLOCK(32, 24, 4, 2, 16)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        float d = half_at(b), m = half_at(b + 2);
        u32 qh = word<4>(b + 4), w = word<4>(b + 8 + 4 * c);
        for (int i = 0; i < 4; i++) {
            v[i] = (float)five_bits(w, qh, c, i, 0) * d + m;
            v[4 + i] = (float)five_bits(w, qh, c, i, 1) * d + m;
        }
    }
};

struct q8_0 {
    BLOCK(32, 34, 4, 2, 4)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        float d = half_at(b);
        u32 w[2] = {word<2>(b + 2 + 8 * c), word<2>(b + 6 + 8 * c)};
        for (int i = 0; i < 8; i++) v[i] = (float)(i8)byte_of(w[i / 4], i % 4) * d;
    }
};

struct q2_K {
    BLOCK(256, 84, 4, 4, 32)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        float d = half_at(b + 80), dmin = half_at(b + 82);
        int half = c / 8, l = c % 8 * 4;
        u32 w = word<4>(b + 16 + half * 32 + l);
        for (int r = 0; r < 4; r++) {
            u32 packed = b[half * 8 + r * 2 + l / 16];
            float scale = d * (float)(packed & 15), min = dmin * (float)(packed >> 4);
            for (int i = 0; i < 4; i++) v[4 * r + i] = scale * (float)(byte_of(w, i) >> 2 * r & 3) - min;
        }
    }
};

struct q3_K {
    BLOCK(256, 110, 4, 4, 32)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) { of_parts<2>(b + 32 + 4 * c, b + c % 8 * 4, b + 96, b + 108, c, v); }
    // Decodes a chunk from the words with the low two bits and the third bits, and the scales of the block. The words
    // are aligned to ALIGN bytes.
    template <int ALIGN> static DEVICE void of_parts(const u8 *low, const u8 *third, const u8 *scales, const u8 *of_all, int c, float (&v)[N]) {
        float d = half_at(of_all);
        int half = c / 8;
        u32 w = word<ALIGN>(low), high = word<ALIGN>(third);
        for (int r = 0; r < 4; r++) {
            int g = half * 8 + r * 2 + c % 8 / 4;
            u32 scale = (scales[g % 8] >> g / 8 * 4 & 15) | (scales[8 + g % 4] >> g / 4 * 2 & 3) << 4;
            float factor = d * (float)((int)scale - 32);
            for (int i = 0; i < 4; i++) {
                u32 q = (byte_of(w, i) >> 2 * r & 3) | (byte_of(high, i) >> (half * 4 + r) & 1) << 2;
                v[4 * r + i] = factor * (float)((int)q - 4);
            }
        }
    }
};

struct q3_K_x8 {
    BLOCK(2048, 880, 4, 4, 32)
    static const int HIGH = 512, SCALES = 768, OF_ALL = 864;
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        int block = c / 16;
        q3_K::of_parts<4>(b + 4 * c, b + HIGH + 32 * block + c % 8 * 4, b + SCALES + 12 * block, b + OF_ALL + 2 * block, c % 16, v);
    }
};

// Returns the 6-bit scale and minimum of group `g` of Q4_K and Q5_K, which are packed into 12 bytes.
DEVICE uint2 scale_and_min(const u8 *s, int g) {
    if (g < 4) return make_uint2(s[g] & 63, s[g + 4] & 63);
    return make_uint2((s[g + 4] & 15) | s[g - 4] >> 6 << 4, s[g + 4] >> 4 | s[g] >> 6 << 4);
}

struct q4_K {
    BLOCK(256, 144, 4, 2, 32)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        float d = half_at(b), dmin = half_at(b + 2);
        int pair = c / 8, l = c % 8 * 4;
        u32 w = word<4>(b + 16 + pair * 32 + l);
        for (int r = 0; r < 2; r++) {
            uint2 s = scale_and_min(b + 4, 2 * pair + r);
            float scale = d * (float)s.x, min = dmin * (float)s.y;
            for (int i = 0; i < 4; i++) v[4 * r + i] = scale * (float)(byte_of(w, i) >> 4 * r & 15) - min;
        }
    }
};

struct q5_K {
    BLOCK(256, 176, 4, 2, 32)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        float d = half_at(b), dmin = half_at(b + 2);
        int pair = c / 8, l = c % 8 * 4;
        u32 w = word<4>(b + 48 + pair * 32 + l), high = word<4>(b + 16 + l);
        for (int r = 0; r < 2; r++) {
            uint2 s = scale_and_min(b + 4, 2 * pair + r);
            float scale = d * (float)s.x, min = dmin * (float)s.y;
            for (int i = 0; i < 4; i++) {
                u32 q = (byte_of(w, i) >> 4 * r & 15) | (byte_of(high, i) >> (2 * pair + r) & 1) << 4;
                v[4 * r + i] = scale * (float)q - min;
            }
        }
    }
};

struct q6_K {
    BLOCK(256, 210, 4, 4, 32)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        int half = c / 8, l = c % 8 * 4;
        const u8 *low = b + half * 64 + l;
        of_parts<2>(low, low + 32, b + 128 + 4 * c, b + 192 + half * 8 + l / 16, b + 208, v);
    }
    // Decodes a chunk. `even` and `uneven` contain the low bits of even and odd runs, and `top` the high bits, all
    // aligned to ALIGN bytes. `scales` is the first of the runs' scales, which are two bytes apart, and `of_all` the
    // scale of the block.
    template <int ALIGN> static DEVICE void of_parts(const u8 *even, const u8 *uneven, const u8 *top, const u8 *scales, const u8 *of_all, float (&v)[N]) {
        float d = half_at(of_all);
        const u32 low[2] = {word<ALIGN>(even), word<ALIGN>(uneven)};
        u32 high = word<ALIGN>(top);
        for (int r = 0; r < 4; r++) {
            float scale = d * (float)(i8)scales[2 * r];
            for (int i = 0; i < 4; i++) {
                u32 q = (byte_of(low[r % 2], i) >> r / 2 * 4 & 15) | (byte_of(high, i) >> 2 * r & 3) << 4;
                v[4 * r + i] = scale * (float)((int)q - 32);
            }
        }
    }
};

struct q6_K_x8 {
    BLOCK(2048, 1680, 4, 4, 32)
    static const int UNEVEN = 512, HIGH = 1024, SCALES = 1536, OF_ALL = 1664;
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        const u8 *even = b + 4 * c;
        q6_K::of_parts<4>(even, even + UNEVEN, even + HIGH, b + SCALES + c / 8 * 8 + c % 8 / 4, b + OF_ALL + c / 16 * 2, v);
    }
};

struct iq4_nl {
    BLOCK(32, 18, 4, 2, 16)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        float d = half_at(b);
        u32 w = word<2>(b + 2 + 4 * c);
        for (int i = 0; i < 4; i++) {
            v[i] = d * iq4_value(byte_of(w, i) & 15);
            v[4 + i] = d * iq4_value(byte_of(w, i) >> 4);
        }
    }
};

struct iq4_xs {
    BLOCK(256, 136, 4, 2, 16)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        int g = c / 4;
        u32 scale = (b[4 + g / 2] >> g % 2 * 4 & 15) | (half_word(b + 2) >> 2 * g & 3) << 4;
        float d = half_at(b) * (float)((int)scale - 32);
        u32 w = word<4>(b + 8 + 4 * c);
        for (int i = 0; i < 4; i++) {
            v[i] = d * iq4_value(byte_of(w, i) & 15);
            v[4 + i] = d * iq4_value(byte_of(w, i) >> 4);
        }
    }
};

// Returns a 6-bit scale of IQ4_K or IQ5_K, minus 32. The header of a block ends with the scales.
DEVICE float six_bit_scale(const u8 *b, int g) {
    u32 scale = (b[8 + g / 2] >> g % 2 * 4 & 15) | (b[4 + g / 4] >> g % 4 * 2 & 3) << 4;
    return (float)((int)scale - 32);
}

// Returns the constant that is added to the values of group `g` in IQ4_K, IQ5_K, and IQ6_K.
DEVICE float shift_of(const u8 *b, int g, float shift) {
    return half_word(b + 2) >> g & 1 ? shift : 0.0f;
}

struct iq4_k {
    BLOCK(256, 144, 4, 2, 16)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        u32 w = word<4>(b + 16 + 4 * c);
        for (int r = 0; r < 2; r++) {
            int g = c / 4 * 2 + r;
            float scale = half_at(b) * six_bit_scale(b, g), shift = shift_of(b, g, 4.0f);
            for (int i = 0; i < 4; i++) v[4 * r + i] = scale * (iq4_value(byte_of(w, i) >> 4 * r & 15) + shift);
        }
    }
};

// Writes 4 values of IQ5_K and IQ5_KS. The indices are bits `4 r` to `4 r + 3` of the bytes of `w`, and bit `fifth` of
// the bytes of `high`.
DEVICE void iq5_chunk(u32 w, int r, u32 high, int fifth, float scale, float shift, float *v) {
    const u32 table[2][4] = IQ5_K_TABLE;
    for (int i = 0; i < 4; i++) {
        u32 q = (byte_of(w, i) >> 4 * r & 15) | (byte_of(high, i) >> fifth & 1) << 4;
        v[i] = scale * (of_parts(table, q) + shift);
    }
}

struct iq5_k {
    BLOCK(256, 176, 4, 2, 32)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        int pair = c / 8, l = c % 8 * 4;
        u32 w = word<4>(b + 16 + 4 * c), high = word<4>(b + 144 + l);
        for (int r = 0; r < 2; r++) {
            int g = 4 * pair + 2 * r + l / 16;
            iq5_chunk(w, r, high, 2 * pair + r, half_at(b) * six_bit_scale(b, g), shift_of(b, g, 2.0f), v + 4 * r);
        }
    }
};

struct iq6_k {
    BLOCK(256, 212, 4, 2, 32)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        const u32 table[4][4] = IQ6_K_TABLE;
        int pair = c / 8, l = c % 8 * 4;
        u32 w = word<4>(b + 20 + 4 * c), high = word<4>(b + 148 + pair / 2 * 32 + l);
        for (int r = 0; r < 2; r++) {
            int g = 4 * pair + 2 * r + l / 16;
            float scale = half_at(b) * (float)(i8)b[4 + g], shift = shift_of(b, g, 1.0f);
            for (int i = 0; i < 4; i++) {
                u32 q = (byte_of(w, i) >> 4 * r & 15) | (byte_of(high, i) >> (pair % 2 * 4 + 2 * r) & 3) << 4;
                v[4 * r + i] = scale * (of_parts(table, q) + shift);
            }
        }
    }
};

// Returns the scale of group `g` in IQ4_KS and IQ5_KS: an odd multiple of the f32 scale of the row. Each block in
// memory starts with the scale of the row.
DEVICE float scale_of_row(const u8 *b, int g) {
    return *(const float *)b * (float)((int)(b[4 + g] & 254) - 127);
}

// Returns the constant that is added to the values of group `g` in IQ4_KS and IQ5_KS.
DEVICE float shift_in_row(const u8 *b, int g, float shift) { return b[4 + g] & 1 ? shift : 0.0f; }

struct iq4_ks_d {
    BLOCK(256, 140, 4, 2, 16)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        int g = c / 4;
        u32 w = word<4>(b + 12 + 4 * c);
        float scale = scale_of_row(b, g), shift = shift_in_row(b, g, 4.0f);
        for (int i = 0; i < 4; i++) {
            v[i] = scale * (iq4_value(byte_of(w, i) & 15) + shift);
            v[4 + i] = scale * (iq4_value(byte_of(w, i) >> 4) + shift);
        }
    }
};

struct iq5_ks_d {
    BLOCK(256, 172, 4, 2, 32)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        u32 w = word<4>(b + 12 + 4 * c), high = word<4>(b + 140 + c % 8 * 4);
        for (int r = 0; r < 2; r++) {
            int g = c / 8 * 2 + r;
            iq5_chunk(w, r, high, g, scale_of_row(b, g), shift_in_row(b, g, 2.0f), v + 4 * r);
        }
    }
};

struct mxfp4 {
    BLOCK(32, 17, 4, 2, 16)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        u32 e = b[0];
        // The scale is half of 2^(e - 127), since the values in the table are doubled.
        float d = __uint_as_float(e < 2 ? 0x00200000u << e : e - 1 << 23);
        u32 w = word<1>(b + 1 + 4 * c);
        for (int i = 0; i < 4; i++) {
            v[i] = fp4_value(byte_of(w, i) & 15) * d;
            v[4 + i] = fp4_value(byte_of(w, i) >> 4) * d;
        }
    }
};

struct nvfp4 {
    BLOCK(64, 36, 4, 2, 8)
    static DEVICE float scale(u32 byte) {
        u32 bits = byte & 0x7f;
        // Interpreted as a float, the bits of the scale are too small by 2^120. The result is halved, since
        // the values in the table are doubled.
        return bits == 0x7f ? 0.0f : __uint_as_float(bits << 20) * __uint_as_float((127u + 119) << 23);
    }
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        float d = scale(b[c / 2]);
        u32 w = word<4>(b + 4 + 4 * c);
        for (int i = 0; i < 4; i++) {
            v[i] = fp4_value(byte_of(w, i) & 15) * d;
            v[4 + i] = fp4_value(byte_of(w, i) >> 4) * d;
        }
    }
};

struct q1_0 {
    BLOCK(128, 18, 4, 2, 4)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        float d = half_at(b);
        u32 bits = b[2 + c];
        for (int i = 0; i < 8; i++) v[i] = bits >> i & 1 ? d : -d;
    }
};

struct q2_0 {
    BLOCK(64, 18, 4, 2, 4)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        float d = half_at(b);
        u32 bits = half_word(b + 2 + 2 * c);
        for (int i = 0; i < 8; i++) v[i] = ((float)(bits >> 2 * i & 3) - 1.0f) * d;
    }
};

struct tq2_0 {
    BLOCK(256, 66, 4, 4, 32)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        float d = half_at(b + 64);
        u32 w = word<2>(b + c / 8 * 32 + c % 8 * 4);
        for (int r = 0; r < 4; r++) {
            for (int i = 0; i < 4; i++) v[4 * r + i] = ((float)(byte_of(w, i) >> 2 * r & 3) - 1.0f) * d;
        }
    }
};

struct tq1_0 {
    BLOCK(256, 54, 4, 2, 4)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        float d = half_at(b + 52);
        // Eight values are one base-3 digit of each of eight bytes of a run, or two digits of each of the
        // last four bytes.
        int first = 8 * c, run = first < 160 ? 0 : first < 240 ? 32 : 48, len = first < 160 ? 32 : first < 240 ? 16 : 4;
        int at = first < 160 ? first : first < 240 ? first - 160 : first - 240;
        for (int i = 0; i < 8; i++) {
            int digit = (at + i) / len;
            u32 power = digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
            u32 rest = b[run + (at + i) % len] * power & 255;
            v[i] = ((float)(rest * 3 >> 8) - 1.0f) * d;
        }
    }
};

// Decodes eight elements of a codebook point, the first in the lowest byte, negated where a bit of `signs` is
// set.
DEVICE void signed_point(u64 point, u32 signs, float scale, float (&v)[8]) {
    for (int i = 0; i < 8; i++) {
        float x = (float)byte_of((u32)(point >> (i < 4 ? 0 : 32)), i % 4);
        v[i] = scale * (signs >> i & 1 ? -x : x);
    }
}

// Decodes eight elements of an IQ1 codebook point, which is shifted by an eighth instead of signed.
DEVICE void shifted_point(u64 point, bool down, float scale, float (&v)[8]) {
    for (int i = 0; i < 8; i++) {
        float x = (float)byte_of((u32)(point >> (i < 4 ? 0 : 32)), i % 4);
        v[i] = scale * (x - (down ? 1.125f : 0.875f));
    }
}

// Adds the eighth sign, which makes the number of negative elements even.
DEVICE u32 even_signs(u32 seven) {
    return seven | (__popc(seven) & 1) << 7;
}

#ifdef POINTS
#if POINTS_BITS == 64
struct iq2_xxs {
    BLOCK(256, 66, 4, 2, 4)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        int g = c / 4, l = c % 4;
        u32 rest = word<2>(b + 2 + 8 * g + 4);
        float scale = half_at(b) * (((float)(rest >> 28) + 0.5f) * 0.25f);
        signed_point(POINTS[b[2 + 8 * g + l]], even_signs(rest >> 7 * l & 127), scale, v);
    }
};

struct iq2_xs {
    BLOCK(256, 74, 4, 2, 4)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        u32 q = half_word(b + 2 + 2 * c), packed = b[66 + c / 4] >> c / 2 % 2 * 4 & 15;
        float scale = half_at(b) * (((float)packed + 0.5f) * 0.25f);
        signed_point(POINTS[q & 511], even_signs(q >> 9), scale, v);
    }
};

struct iq2_s {
    BLOCK(256, 82, 4, 2, 4)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        int g = c / 4, l = c % 4;
        u32 index = b[2 + c] | (b[66 + g] >> 2 * l & 3) << 8, packed = b[74 + g] >> l / 2 * 4 & 15;
        float scale = half_at(b) * (((float)packed + 0.5f) * 0.25f);
        signed_point(POINTS[index], b[34 + c], scale, v);
    }
};

struct iq1_s {
    BLOCK(256, 50, 4, 2, 4)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        int g = c / 4, l = c % 4;
        u32 high = half_word(b + 34 + 2 * g);
        float scale = half_at(b) * (((float)(high >> 12 & 7) + 0.5f) * 2.0f);
        shifted_point(POINTS[b[2 + c] | (high >> 3 * l & 7) << 8], high >> 15, scale, v);
    }
};

struct iq1_m {
    BLOCK(256, 56, 4, 2, 4)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        int g = c / 4, l = c % 4, i = c / 2;
        u16 d = 0;
        for (int part = 0; part < 4; part++) d |= half_word(b + 48 + 2 * part) >> 12 << 4 * part;
        u32 high = half_word(b + 32 + 2 * g) >> 4 * l & 15, packed = half_word(b + 48 + 2 * (i / 4)) >> 3 * (i % 4) & 7;
        float scale = half_to_float(d) * (((float)packed + 0.5f) * 2.0f);
        shifted_point(POINTS[b[c] | (high & 7) << 8], high >> 3, scale, v);
    }
};
#else
struct iq3_xxs {
    BLOCK(256, 98, 4, 2, 4)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        int g = c / 4, l = c % 4;
        u32 rest = word<2>(b + 66 + 4 * g);
        u64 point = POINTS[b[2 + 2 * c]] | (u64)POINTS[b[3 + 2 * c]] << 32;
        float scale = half_at(b) * (((float)(rest >> 28) + 0.5f) * 0.5f);
        signed_point(point, even_signs(rest >> 7 * l & 127), scale, v);
    }
};

struct iq3_s {
    BLOCK(256, 110, 4, 2, 4)
    static DEVICE void chunk(const u8 *b, int c, float (&v)[N]) {
        int g = c / 4, l = c % 4;
        u32 high = b[66 + g] >> 2 * l & 3, packed = b[106 + g / 2] >> g % 2 * 4 & 15;
        u64 point = POINTS[b[2 + 2 * c] | (high & 1) << 8] | (u64)POINTS[b[3 + 2 * c] | (high >> 1) << 8] << 32;
        float scale = half_at(b) * (((float)packed + 0.5f) * 2.0f);
        signed_point(point, b[74 + c], scale, v);
    }
};
#endif
#endif

} // namespace types

// Returns the index within the block of the first value of a chunk.
template <class T> DEVICE int chunk_start(int c) {
    const int per_group = T::GAP / T::RUN;
    return c / per_group * (T::GAP * T::RUNS) + c % per_group * T::RUN;
}

// Returns value `i` of a row of contiguous blocks.
template <class T> DEVICE float element(const char *row, u32 i) {
    const u8 *block = (const u8 *)row + (i64)(i / T::QK) * T::BYTES;
    if (T::QK == 1) {
        float one[T::N];
        T::chunk(block, 0, one);
        return one[0];
    }
    u32 at = i % T::QK, in_group = at % (T::GAP * T::RUNS);
    int c = at / (T::GAP * T::RUNS) * (T::GAP / T::RUN) + in_group % T::GAP / T::RUN;
    int place = in_group / T::GAP * T::RUN + in_group % T::RUN;
    float v[T::N], x = 0.0f;
    T::chunk(block, c, v);
    for (int n = 0; n < T::N; n++) x = n == place ? v[n] : x;
    return x;
}

// Returns value `i` of a row of a tensor. Only unquantized types may have gaps between elements.
template <class T> DEVICE float element(const Tensor &t, const char *row, u32 i) {
    return T::QK == 1 ? element<T>(row + i * t.nb[0], 0) : element<T>(row, i);
}

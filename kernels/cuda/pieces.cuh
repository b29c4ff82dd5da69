// Weights for tensor cores, processed in pieces: two runs of 16 values as bf16. Loading (`fetch`) and
// conversion (`decode`) are separate, so that matrix instructions can run in between.
//
// ALIGNED: alignment of the rows in bytes.
#pragma once
#include "dots.cuh"

// A float with this exponent stores an integer below 2^23 in its low bits; subtracting the constant gives the
// integer.
const float BITS = 8388608.0f;

// Returns the masked bits as a float, plus BITS.
template <u32 MASK> DEVICE float masked(u32 word) {
    u32 bits;
    asm("lop3.b32 %0, %1, %2, 0x4b000000, 0xea;" : "=r"(bits) : "r"(word), "n"(MASK));
    return __uint_as_float(bits);
}

// Loads words from an address that is a multiple of A (16, 4, or 2). With A = 2, reads up to 2 bytes before
// the first word and nothing after the last.
template <int A, int N> DEVICE void words_at(const u8 *p, u32 (&out)[N]) {
    if (A == 16) {
        for (int i = 0; i < N; i += 4) {
            uint4 x = *(const uint4 *)(p + 4 * i);
            out[i] = x.x, out[i + 1] = x.y, out[i + 2] = x.z, out[i + 3] = x.w;
        }
    } else if (A == 4) {
        for (int i = 0; i < N; i++) out[i] = *(const u32 *)(p + 4 * i);
    } else {
        int odd = (u64)p & 2;
        const u32 *from = (const u32 *)(p - odd);
        u32 low = from[0];
        for (int i = 0; i < N; i++) {
            u32 high = i + 1 < N ? from[i + 1] : odd ? half_word(p + 4 * N - 2) : 0;
            out[i] = __funnelshift_r(low, high, 8 * odd);
            low = high;
        }
    }
}

// Decodes sixteen values: (byte - OFFSET) * scale - min.
template <int OFFSET> DEVICE void scaled_bytes(const u32 (&q)[4], float scale, float min, u32 *out) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float low = byte_and_2_23(q[i / 2], i % 2 * 2) - (BITS + OFFSET), high = byte_and_2_23(q[i / 2], i % 2 * 2 + 1) - (BITS + OFFSET);
        out[i] = pair_of_bfloats(low * scale - min, high * scale - min);
    }
}

// Decodes the low and high nibbles of 16 bytes.
DEVICE void scaled_halves(const u32 (&w)[4], float low, float low_min, float high, float high_min, int offset, u32 (&out)[16]) {
    const float sixteenth = 1.0f / 16, by_256 = 1.0f / 256;
    float scales[4] = {low, high * sixteenth, low * by_256, high * (sixteenth * by_256)};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 x = w[i / 2] >> 16 * (i % 2);
        float first = masked<0xf>(x) - (BITS + offset), second = masked<0xf00>(x) - (BITS + 256 * offset);
        out[i] = pair_of_bfloats(first * scales[0] - low_min, second * scales[2] - low_min);
        first = masked<0xf0>(x) - (BITS + 16 * offset), second = masked<0xf000>(x) - (BITS + 4096 * offset);
        out[8 + i] = pair_of_bfloats(first * scales[1] - high_min, second * scales[3] - high_min);
    }
}

// The values of a run are contiguous. Runs at a distance of 32 values belong to two pieces, which together cover 64
// values.
#define PIECE(apart, n)                                                                                                                        \
    static const bool APART = apart;                                                                                                           \
    u32 x[n];

// Decodes a type by its chunks. Pieces past the end of a row are zeros.
template <class T> struct Piece {
    PIECE((T::GAP > 16), 16)

    DEVICE void fetch(const Tensor &w, const char *row, int piece) {
        const i64 block_bytes = T::QK == 1 ? w.nb[0] : (i64)T::BYTES;
        const int PER_PIECE = 32 / T::N < 1 ? 1 : 32 / T::N, n_chunks = w.ne[0] / T::QK * T::CHUNKS;
        float v[32];
        if (T::RUNS == 4) {
            // Chunks of 128 values contain runs of both halves.
            bool is_second = piece / 2 % 2;
#pragma unroll
            for (int n = 0; n < 4; n++) {
                int c = piece / 4 * 8 + piece % 2 * 4 + n;
                float four[T::N] = {};
                if (c < n_chunks) T::chunk((const u8 *)row + c / T::CHUNKS * block_bytes, c % T::CHUNKS, four);
                for (int i = 0; i < 8; i++) v[i / 4 * 16 + 4 * n + i % 4] = is_second ? four[(8 + i) % T::N] : four[i % T::N];
            }
        } else {
#pragma unroll
            for (int n = 0; n < PER_PIECE; n++) {
                int c = APART ? piece / 2 * 8 + piece % 2 * 4 + n : piece * PER_PIECE + n;
                float some[T::N] = {};
                if (c < n_chunks) T::chunk((const u8 *)row + c / T::CHUNKS * block_bytes, c % T::CHUNKS, some);
                for (int i = 0; i < T::N; i++) {
                    int run = i / T::RUN, first = APART ? 16 * run + 4 * n : n / (T::GAP / T::RUN) * (T::GAP * T::RUNS) + n % (T::GAP / T::RUN) * T::RUN + run * T::GAP;
                    v[(first + i % T::RUN) % 32] = some[i];
                }
            }
        }
        for (int i = 0; i < 16; i++) x[i] = pair_of_bfloats(v[2 * i], v[2 * i + 1]);
    }

    DEVICE void decode(u32 (&out)[16]) const {
        for (int i = 0; i < 16; i++) out[i] = x[i];
    }
};

template <> struct Piece<types::bf16x8> {
    PIECE(false, 16)
    DEVICE void fetch(const Tensor &w, const char *row, int piece) {
        for (int i = 0; i < 4; i++) {
            uint4 v = 32 * piece + 8 * i < w.ne[0] ? *(const uint4 *)(row + 64 * piece + 16 * i) : make_uint4(0, 0, 0, 0);
            x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
        }
    }
    DEVICE void decode(u32 (&out)[16]) const {
        for (int i = 0; i < 16; i++) out[i] = x[i];
    }
};

// Returns true if a row contains this piece. Blocks are loaded as a whole, and rows consist of whole blocks.
DEVICE bool has_piece(const Tensor &w, int piece) {
    return 32 * piece < w.ne[0];
}

template <> struct Piece<types::q4_0> {
    PIECE(false, 5)
    DEVICE void fetch(const Tensor &w, const char *row, int piece) {
        for (int i = 0; i < 5; i++) x[i] = 0;
        if (!has_piece(w, piece)) return;
        const u8 *b = (const u8 *)row + 18 * piece;
        u32 q[4];
        words_at<2>(b + 2, q);
        for (int i = 0; i < 4; i++) x[i] = q[i];
        x[4] = half_word(b);
    }
    DEVICE void decode(u32 (&out)[16]) const {
        float d = half_to_float((u16)x[4]);
        const u32 q[4] = {x[0], x[1], x[2], x[3]};
        scaled_halves(q, d, 0.0f, d, 0.0f, 8, out);
    }
};

template <> struct Piece<types::q8_0> {
    PIECE(false, 9)
    DEVICE void fetch(const Tensor &w, const char *row, int piece) {
        for (int i = 0; i < 9; i++) x[i] = 0;
        if (!has_piece(w, piece)) return;
        const u8 *b = (const u8 *)row + 34 * piece;
        u32 q[8];
        words_at<2>(b + 2, q);
        for (int i = 0; i < 8; i++) x[i] = q[i];
        x[8] = half_word(b);
    }
    DEVICE void decode(u32 (&out)[16]) const {
        float d = half_to_float((u16)x[8]);
        for (int half = 0; half < 2; half++) {
            u32 q[4];
            for (int i = 0; i < 4; i++) q[i] = x[4 * half + i] ^ 0x80808080u;
            scaled_bytes<128>(q, d, 0.0f, out + 8 * half);
        }
    }
};

// Decodes the common part of Q4_K and Q5_K: the 6-bit scales and minimums of groups `2 pair` and `2 pair +
// 1`, as floats.
DEVICE void scales_and_mins(const u32 (&header)[4], int pair, float (&scale)[2], float (&min)[2]) {
    const u32 shift = pair % 2 * 16;
    u32 a = header[1] >> shift, b = header[2] >> shift, c = header[3] >> shift;
    bool is_late = pair >= 2;
    u32 s = is_late ? (c & 0x0f0f) | (a & 0xc0c0) >> 2 : a & 0x3f3f, m = is_late ? (c >> 4 & 0x0f0f) | (b & 0xc0c0) >> 2 : b & 0x3f3f;
    float d = half_to_float((u16)header[0]), dmin = half_to_float((u16)(header[0] >> 16));
    for (int r = 0; r < 2; r++) {
        scale[r] = d * (byte_and_2_23(s, r) - BITS);
        min[r] = dmin * (byte_and_2_23(m, r) - BITS);
    }
}

template <> struct Piece<types::q4_K> {
    PIECE(true, 9)
    DEVICE void fetch(const Tensor &w, const char *row, int piece) {
        const u8 *b = (const u8 *)row + piece / 8 * 144;
        u32 header[4], q[4];
        words_at<ALIGNED>(b, header);
        words_at<ALIGNED>(b + 16 + piece % 8 * 16, q);
        for (int i = 0; i < 4; i++) x[i] = header[i], x[4 + i] = q[i];
        x[8] = piece % 8 / 2;
    }
    DEVICE void decode(u32 (&out)[16]) const {
        const u32 header[4] = {x[0], x[1], x[2], x[3]}, q[4] = {x[4], x[5], x[6], x[7]};
        float scale[2], min[2];
        scales_and_mins(header, x[8], scale, min);
        scaled_halves(q, scale[0], min[0], scale[1], min[1], 0, out);
    }
};

template <> struct Piece<types::q5_K> {
    PIECE(true, 13)
    DEVICE void fetch(const Tensor &w, const char *row, int piece) {
        const u8 *b = (const u8 *)row + piece / 8 * 176;
        u32 header[4], high[4], q[4];
        words_at<ALIGNED>(b, header);
        words_at<ALIGNED>(b + 16 + piece % 2 * 16, high);
        words_at<ALIGNED>(b + 48 + piece % 8 * 16, q);
        for (int i = 0; i < 4; i++) x[i] = header[i], x[4 + i] = q[i], x[8 + i] = high[i];
        x[12] = piece % 8 / 2;
    }
    DEVICE void decode(u32 (&out)[16]) const {
        const u32 header[4] = {x[0], x[1], x[2], x[3]};
        float scale[2], min[2];
        scales_and_mins(header, x[12], scale, min);
        for (int r = 0; r < 2; r++) {
            u32 q[4];
            for (int i = 0; i < 4; i++) q[i] = (x[4 + i] >> 4 * r & 0x0f0f0f0fu) | (x[8 + i] >> (2 * x[12] + r) & 0x01010101u) << 4;
            scaled_bytes<0>(q, scale[r], min[r], out + 8 * r);
        }
    }
};

template <> struct Piece<types::q6_K> {
    PIECE(true, 15)
    DEVICE void fetch(const Tensor &w, const char *row, int piece) {
        const u8 *b = (const u8 *)row + piece / 8 * 210;
        int half = piece % 8 / 4, l = piece % 2 * 16, second = piece / 2 % 2;
        u32 q[2][4], high[4];
        for (int r = 0; r < 2; r++) words_at<2>(b + 64 * half + 32 * r + l, q[r]);
        words_at<2>(b + 128 + 32 * half + l, high);
        for (int i = 0; i < 4; i++) x[i] = q[0][i], x[4 + i] = q[1][i], x[8 + i] = high[i];
        const u8 *scales = b + 192 + 8 * half + 4 * second + piece % 2;
        x[12] = scales[0] | scales[2] << 8;
        x[13] = half_word(b + 208);
        x[14] = second;
    }
    DEVICE void decode(u32 (&out)[16]) const {
        float d = half_to_float((u16)x[13]);
        for (int r = 0; r < 2; r++) {
            u32 q[4];
            for (int i = 0; i < 4; i++) q[i] = (x[4 * r + i] >> 4 * x[14] & 0x0f0f0f0fu) | (x[8 + i] >> (4 * x[14] + 2 * r) & 0x03030303u) << 4;
            scaled_bytes<32>(q, d * (float)(i8)(x[12] >> 8 * r), 0.0f, out + 8 * r);
        }
    }
};

template <> struct Piece<types::q6_K_x8> : Piece<types::q6_K> {
    DEVICE void fetch(const Tensor &w, const char *row, int piece) {
        const u8 *b = (const u8 *)row + piece / 64 * 1680;
        int block = piece % 64 / 8, second = piece / 2 % 2;
        const u8 *even = b + 16 * (4 * block + piece % 8 / 4 * 2 + piece % 2);
        u32 q[2][4], high[4];
        words_at<16>(even, q[0]);
        words_at<16>(even + types::q6_K_x8::UNEVEN, q[1]);
        words_at<16>(even + types::q6_K_x8::HIGH, high);
        for (int i = 0; i < 4; i++) x[i] = q[0][i], x[4 + i] = q[1][i], x[8 + i] = high[i];
        const u8 *scales = b + types::q6_K_x8::SCALES + 16 * block + piece % 8 / 4 * 8 + 4 * second + piece % 2;
        x[12] = scales[0] | scales[2] << 8;
        x[13] = half_word(b + types::q6_K_x8::OF_ALL + 2 * block);
        x[14] = second;
    }
};

// Rows of keys and values in shared memory, and quantized rows as fragments for tensor cores.
//
// A packed row has the bytes of the cache, and pairs of blocks whose second block has aligned quads of values.
// Integers of up to 2048 are exact in f16, so that values are rounded once, by the multiplication with the scale.
#pragma once
#include "blocks.cuh"
#include "halves_of_rows.cuh"

// SIZE elements per row: packed if PACKED_UNIT is not 0, otherwise as 16-bit floats. UNIT: bytes per asynchronous copy.
template <class T, int N, int PACKED_UNIT> struct Rows {
    static const bool IS_PACKED = PACKED_UNIT != 0;
    static const int SIZE = N, UNIT = IS_PACKED ? PACKED_UNIT : 16, BYTES = IS_PACKED ? N / T::QK * T::BYTES : 2 * N;
    // Distance between rows, an odd multiple of 16, so that the rows that a warp reads have different banks.
    static const int STRIDE = (BYTES + 15) / 32 * 32 + 16;
};

// Integers of a quantized type: `bytes` converts the word of a quad to bytes, to which MINUS must be added as f16.
template <class T> struct Integers;

template <> struct Integers<types::q8_0> {
    static const u32 MINUS = halves::MINUS_1152;
    static DEVICE int offset(int quad) { return 4 * quad; }
    static DEVICE u32 bytes(u32 word, int) { return word ^ 0x80808080u; }
};

template <> struct Integers<types::q4_0> {
    static const u32 MINUS = halves::MINUS_1032;
    static DEVICE int offset(int quad) { return quad % 4 * 4; }
    static DEVICE u32 bytes(u32 word, int quad) { return word >> quad / 4 * 4 & 0x0f0f0f0fu; }
};

// A packed row.
template <class T> struct PackedRow {
    const u8 *blocks;

    DEVICE PackedRow(const u8 *blocks) : blocks(blocks) {}

    // Returns quad `quad` of eight of a block as bytes. `is_odd` is a constant. The values of even blocks are two bytes
    // after an aligned word.
    DEVICE u32 quad(int block, bool is_odd, int quad) const {
        const u8 *at = blocks + block * T::BYTES + Integers<T>::offset(quad);
        u32 bytes = is_odd ? word<4>(at + 2) : __byte_perm(word<4>(at), word<4>(at + 4), 0x5432);
        return Integers<T>::bytes(bytes, quad);
    }
    // Returns the f16 scale of a block.
    DEVICE u32 scale(int block) const { return half_word(blocks + block * T::BYTES); }
    // Converts two bytes, each stored as the f16 number 1024 + byte, to values with the given scales.
    static DEVICE u32 scaled(u32 bytes, u32 scales) { return halves::product(halves::sum(bytes, Integers<T>::MINUS), scales); }
};

// Returns the largest power of two that is at most `n`.
DEVICE constexpr int power_of_two_below(int n) {
    return n < 2 ? 1 : 2 * power_of_two_below(n / 2);
}

// Starts an asynchronous copy of N bytes to shared memory. Stores zeros if the source does not exist.
template <int N> DEVICE void copy_unit(u8 *to, const char *from, bool is_there) {
    start_copy<N>((u32)__cvta_generic_to_shared(to), from, is_there);
}

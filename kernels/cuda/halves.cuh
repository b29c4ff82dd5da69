// Pairs of 16-bit floats in a word, and powers of two, for attention on tensor cores.
#pragma once
#include "blocks.cuh"
#include "matrices.cuh"

// Conversion of pairs of 16-bit floats in a word.
template <bool IS_BFLOAT> struct Halves {
    static const bool IS_BF16 = IS_BFLOAT;

    static DEVICE u32 pair(float low, float high) {
        return IS_BFLOAT ? pair_of_bfloats(low, high) : pair_of_halves(low, high);
    }
    static DEVICE float low(u32 x) { return IS_BFLOAT ? __uint_as_float(x << 16) : half_to_float((u16)x); }
    static DEVICE float high(u32 x) { return IS_BFLOAT ? __uint_as_float(x & 0xffff0000u) : half_to_float((u16)(x >> 16)); }
    // Returns the rounding error of two floats.
    static DEVICE u32 rest(u32 x, float low, float high) { return pair(low - Halves::low(x), high - Halves::high(x)); }
    static DEVICE void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        if (IS_BFLOAT) return ::multiply(sums, a, b0, b1);
        multiply_halves(sums, a, b0, b1);
    }
};

// True for types that are used in their stored form.
template <class T> const bool IS_HALVES = false;
template <> const bool IS_HALVES<types::f16x8> = true;
template <> const bool IS_HALVES<types::bf16x8> = true;

// The 16-bit floats that keys or values of a type are used as.
template <class T> struct HalvesOf : Halves<false> {};
template <> struct HalvesOf<types::bf16x8> : Halves<true> {};

const float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

DEVICE float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

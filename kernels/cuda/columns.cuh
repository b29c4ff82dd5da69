// Columns quantized to 16-bit integers, split into two 8-bit parts; see `quantize_columns.cu`.
#pragma once
#include "common.cuh"

// 1024 values of a column; the last tile of a column may be partially filled. Value `i` is `scale[i / 32] *
// (254 * high + low)`. Its parts are byte `i % 16` of the run at `place_of(i / 16)`. `sums[h][g]` is the sum
// of half `h` of the quantized values of group `g`, and `sums[2][g]` the sum of both halves.
struct __align__(128) Tile {
    static const int N = 1024;
    i8 high[N], low[N];
    float scale[N / 32], sums[3][N / 32];
};

// Returns the offset of run `n` (16 values) of a tile. Every eighth run is adjacent. Eight lanes thus read 128
// contiguous bytes, whether a lane takes one run, two, four, or halves of groups of four.
DEVICE int place_of(int n) {
    return (n % 8 * 8 + n / 8) * 16;
}

// Adding this constant to a float of magnitude up to 2^22 rounds it to an integer, stored in the low bits in
// two's complement.
const float TO_INTEGER = 12582912.0f;

// Returns the lowest bytes of four words.
DEVICE u32 low_bytes(const float (&x)[4]) {
    u32 first = __byte_perm(__float_as_uint(x[0]), __float_as_uint(x[1]), 0x0040);
    return __byte_perm(first, __byte_perm(__float_as_uint(x[2]), __float_as_uint(x[3]), 0x0040), 0x5410);
}

// Quantizes and stores values `at` to `at + 3` of a column of `n` values. Must be called by all lanes of a
// warp. Each group of eight lanes holds 32 adjacent values, all of them either present or absent.
DEVICE void store_rounded(Tile *tiles, i64 column, u32 n, u32 at, const float (&x)[4], bool is_there) {
    float largest = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
    for (int step = 4; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, step));
    // Values too small for a reciprocal are flushed to zero. NaN makes the scale NaN.
    float inverse = largest > 1e-36f ? 127.0f / largest : 0.0f, scale = largest * (1.0f / (127.0f * 254.0f));
    bool is_number = x[0] == x[0] && x[1] == x[1] && x[2] == x[2] && x[3] == x[3];
    if (__ballot_sync(ALL_LANES, !is_number) >> (threadIdx.x & 24) & 255) scale = __uint_as_float(0x7fc00000);
    float high[4], low[4], sum = 0.0f;
    for (int i = 0; i < 4; i++) {
        float steps = __fmul_rn(x[i], inverse);
        high[i] = __fadd_rn(steps, TO_INTEGER);
        float whole = __fsub_rn(high[i], TO_INTEGER);
        low[i] = __fadd_rn(__fmul_rn(__fsub_rn(steps, whole), 254.0f), TO_INTEGER);
        // The conversion is exact, since the integers are less than 2^24.
        sum += __fmaf_rn(254.0f, whole, __fsub_rn(low[i], TO_INTEGER));
    }
    for (int step = 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    float of_half = __fmul_rn(sum, scale), of_other = __shfl_xor_sync(ALL_LANES, of_half, 4);
    if (!is_there) return;
    u32 n_tiles = (n + Tile::N - 1) / Tile::N, in = at / 32 % (Tile::N / 32), of_group = at / 4 % 8;
    Tile &to = tiles[column * n_tiles + at / Tile::N];
    int place = place_of(2 * in + of_group / 4) + of_group % 4 * 4;
    *(u32 *)(to.high + place) = low_bytes(high);
    *(u32 *)(to.low + place) = low_bytes(low);
    if (of_group == 0) to.scale[in] = scale, to.sums[2][in] = __fadd_rn(of_half, of_other);
    if (of_group % 4 == 0) to.sums[of_group / 4][in] = of_half;
}

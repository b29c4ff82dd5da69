// Columns as integers of 16 bits in two parts of 8: see `quantize_columns.cu`.
#pragma once
#include "common.cuh"

// 1024 values of a column, of which the last tile of a column may have fewer. Value `i` is `scale[i / 32] * (254 * high + low)`. Its parts are byte
// `i % 16` of those of the run at `place_of(i / 16)`. `sums[h][g]` is the sum of half `h` of the values of scale `g`, as they are rounded.
struct __align__(128) Tile {
    static const int N = 1024;
    i8 high[N], low[N];
    float scale[N / 32], sums[2][N / 32];
};

// Where the 16 values of run `n` of a tile begin. Every eighth run is next to the other: whether lanes of a warp take runs of 16 values in turn, of
// two, or of four, or halves of groups of four, 8 of them find theirs in 128 bytes.
DEVICE int place_of(int n) {
    return (n % 8 * 8 + n / 8) * 16;
}

// Stores value `at` of a column, of which every lane of a warp has one, 32 neighbouring ones together. A column has `n` values.
DEVICE void store_rounded(Tile *tiles, i64 column, int n, int at, float x) {
    float largest = warp_max(fabsf(x));
    // What is too small for a reciprocal is as good as nothing; what is no number makes the scale no number.
    float inverse = largest > 1e-36f ? 127.0f / largest : 0.0f, steps = x * inverse;
    float high = rintf(steps), low = rintf((steps - high) * 254.0f);
    int lane = at % 32, value = 254 * (int)high + (int)low;
    for (int step = 8; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
    int n_tiles = (n + Tile::N - 1) / Tile::N, in = at / 32 % (Tile::N / 32);
    Tile &to = tiles[column * n_tiles + at / Tile::N];
    float scale = (x == x ? largest : x) * (1.0f / (127.0f * 254.0f));
    int place = place_of(2 * in + lane / 16) + lane % 16;
    to.high[place] = (i8)(int)high;
    to.low[place] = (i8)(int)low;
    if (lane == 0) to.scale[in] = scale;
    if (lane % 16 == 0) to.sums[lane / 16][in] = (float)value * scale;
}

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

// Columns as integers of 16 bits in two parts of 8: see `quantize_columns.cu`.
#pragma once
#include "common.cuh"

// 32 values of a column: each is `scale * (254 * high + low)`. `sums` has those of 16 values each, as they are rounded.
struct __align__(16) Group {
    i8 high[32], low[32];
    float scale, sums[2], padding;
};

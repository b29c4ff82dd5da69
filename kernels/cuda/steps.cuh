// Columns rounded to f16, in the order of fragments of tensor cores.
#pragma once
#include "common.cuh"

// 256 values of up to 64 columns of a tile. `values[g][c][t]` are the values of group `g` (32 adjacent values) of column
// `c` for lane `t` of a quad, in the order of `halves_of_rows.cuh`. `sums[c][t][i]` contains sums `8 * i + 2 * t` and
// `8 * i + 2 * t + 1`, each as an f16 value and its rounding error in f16.
//
// COLUMNS: columns of a tile. SUMS: number of sums, of groups or of their halves: 8 or 16.
struct __align__(16) Step {
    // Values of a column, and number of columns.
    static const int K = 256, N = COLUMNS < 64 ? COLUMNS : 64;
    u16 values[8][N][4][8], sums[N][4][SUMS / 8][2][2];
};

// Returns the number of steps of `k` values.
DEVICE int steps_of(int k) {
    return (k + Step::K - 1) / Step::K;
}

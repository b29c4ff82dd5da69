// Products of weights as f16 integers and columns as f16, for `mul_stream.cu` and `mul_mat_halves.cu`: parameters, columns
// of a tile, and parts of the multiplication of a warp.
//
// TYPE: type of the weights; rows must start at multiples of 16 bytes and consist of whole groups. Zeros complete the last
// step. COLUMNS: columns of a tile. SUMS: see `steps.cuh`. IDS: columns are grouped by expert (see `group.cu`), and a tile
// contains columns of one group.
#pragma once
#include "halves_of_rows.cuh"
#include "matrices.cuh"
#include "steps.cuh"

using Weights = halves::TYPE;

struct Params {
    Tensor w, x, y;
    const Step *columns;
    const float *factors;
    // Number of finished blocks of each tile, zero between launches, and the sums of all blocks.
    u32 *counters;
    float *parts;
    // For each tile: its matrix (-1 for none), its first column, and the end of its group in `order`. `order`
    // lists the columns by group.
    const int *tiles, *order;
    // Steps per block, and matrices per token.
    int n_steps, n_used;
    // Bytes of a row that may be loaded: a multiple of 16.
    int row_bytes;
};

// Bytes of a group of a column's values, and of the sums of a column and step.
const int OF_GROUP = sizeof(Step::values) / (8 * Step::N), OF_SUMS = sizeof(Step::sums) / Step::N;

// The columns of a tile.
struct TileColumns {
    const Params &p;
    // First column of the tile, and the number of remaining columns. With IDS, `first` is an index into `order`.
    int first, n;
    // Number of the tile's matmul in the outer dimensions.
    int outer;

    // Returns the number of a column of the tile, in `p.columns`.
    DEVICE int number(int c) const {
#if IDS
        int pair = p.order[first + c], token = pair / p.n_used;
        return token * p.x.ne[1] + pair % p.n_used % p.x.ne[1];
#else
        return outer * ((p.x.ne[1] + Step::N - 1) / Step::N * Step::N) + first + c;
#endif
    }

    DEVICE float factor(int c) const { return p.factors[number(c)]; }

    // Returns the address of the first step that contains a column.
    DEVICE const char *steps(int number) const { return (const char *)(p.columns + (i64)(number / Step::N) * steps_of(p.x.ne[0])); }

    // Returns the address of a column of the result.
    DEVICE char *result(int c) const {
#if IDS
        int pair = p.order[first + c];
        return p.y.data + pair % p.n_used * p.y.nb[1] + pair / p.n_used * p.y.nb[2];
#else
        int i2 = outer % p.x.ne[2], i3 = outer / p.x.ne[2];
        return p.y.data + i2 * p.y.nb[2] + i3 * p.y.nb[3] + (first + c) * p.y.nb[1];
#endif
    }
};

// Returns the address of the matrix that multiplies the columns of an outer dimension.
DEVICE const char *matrix_of(const Params &p, int outer) {
    int i2 = outer % p.x.ne[2], i3 = outer / p.x.ne[2];
    return p.w.data + i2 / (p.x.ne[2] / p.w.ne[2]) * p.w.nb[2] + i3 / (p.x.ne[3] / p.w.ne[3]) * p.w.nb[3];
}

// Returns the fragment of 16 rows and 16 values of a group. `rows` are the values of a lane's first and second row.
DEVICE void fragment_of(u32 (&fragment)[4], const u32 (&first)[4], const u32 (&second)[4], int half) {
    fragment[0] = first[2 * half], fragment[1] = second[2 * half], fragment[2] = first[2 * half + 1], fragment[3] = second[2 * half + 1];
}

// Stores the sums of a warp. `row` and `column` are the lane's first ones in the tile, which begins at row `first_row` and has
// `n_rows` rows.
template <int M, int N>
DEVICE void store_sums(const Params &p, const TileColumns &columns, int first_row, int n_rows, int row, int column, const float (&sums)[M][N][4]) {
    // Process one column at a time: the addresses of all columns would exceed the available registers.
#pragma unroll
    for (int i = 0; i < 2 * N; i++) {
        int c = column + i / 2 * 8 + i % 2;
        if (c >= columns.n) continue;
        float factor = columns.factor(c) * Weights::factor();
        char *y = columns.result(c) + first_row * p.y.nb[0];
#pragma unroll
        for (int m = 0; m < 2 * M; m++) {
            int r = row + 8 * m;
            if (r < n_rows) *(float *)(y + r * p.y.nb[0]) = sums[m / 2][i / 2][m % 2 * 2 + i % 2] * factor;
        }
    }
}

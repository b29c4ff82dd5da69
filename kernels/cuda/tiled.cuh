// Columns of floats rounded to bf16, in the order of `tiles.cuh`: for each step of 64 values, all columns with 128
// bytes each. Units of 16 bytes are swizzled by the number of the column. The columns of a tile are therefore
// contiguous, in the layout of shared memory.
#pragma once
#include "common.cuh"

// Values of a step.
const int STEP = 64;

// Columns of an outer dimension start at a multiple of this number, which is the period of the swizzle.
const int ALIGNED_COLUMNS = 8;

// Returns the offset in bytes of a unit in a step of a column.
DEVICE int place_in_column(int column, int unit) {
    return (unit ^ column % ALIGNED_COLUMNS) * 16;
}

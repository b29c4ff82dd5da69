// Where the parts of a column of integers lie: see `quantize_columns.cu`.
#pragma once
#include "common.cuh"

struct Column {
    i8 *high, *low;
    // Of each 32 values.
    float *scales;
    // Sums of each 16 values, as they are rounded.
    float *sums;
};

// A column of `n` values.
DEVICE Column column_at(u8 *bytes, int n) {
    Column c;
    c.high = (i8 *)bytes;
    c.low = c.high + n;
    c.scales = (float *)(c.low + n);
    c.sums = c.scales + n / 32;
    return c;
}

// Matrix fragments for tensor cores, and the layout of 16-bit tiles in shared memory.
#pragma once
#include "async.cuh"

// Loads four 8 x 8 matrices. Lane `l` provides the address of row `l % 8` of matrix `l / 8`, in shared memory.
DEVICE void load_matrices(u32 (&x)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

DEVICE void load_matrices(u32 (&x)[4], const u16 *row) {
    load_matrices(x, (u32)__cvta_generic_to_shared(row));
}

// Loads four 8 x 8 matrices, each transposed.
DEVICE void load_transposed(u32 (&x)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

DEVICE void load_transposed(u32 (&x)[4], const u16 *row) {
    load_transposed(x, (u32)__cvta_generic_to_shared(row));
}

#if __CUDA_ARCH__ >= 800
// Multiplies a 16 x 16 by a 16 x 8 f16 matrix and adds the result to the 16 x 8 sums, which are pairs of f16.
DEVICE void multiply_halves(u32 (&sums)[2], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
        : "+r"(sums[0]), "+r"(sums[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Multiplies a 16 x 16 by a 16 x 8 f16 matrix and adds the result to the 16 x 8 sums.
DEVICE void multiply_halves(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Multiplies a 16 x 16 by a 16 x 8 bf16 matrix and adds the result to the 16 x 8 sums.
DEVICE void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
// Multiplies a 16 x 8 by an 8 x 8 f16 matrix and adds the result to the 16 x 8 sums.
DEVICE void multiply_eight(float (&sums)[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(b));
}

DEVICE void multiply_eight(u32 (&sums)[2], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};" : "+r"(sums[0]), "+r"(sums[1]) : "r"(a0), "r"(a1), "r"(b));
}

template <class T> DEVICE void multiply_halves(T &sums, const u32 (&a)[4], u32 b0, u32 b1) {
    multiply_eight(sums, a[0], a[1], b0);
    multiply_eight(sums, a[2], a[3], b1);
}

// Converts four bf16 values of a row or column, which four lanes hold, to f16 in units of the returned power of two.
// The largest value of the row becomes 2^14 to 2^15, so that rounding errors are at most 2^-39 of it.
DEVICE float to_halves(u32 &first, u32 &second) {
    float x[4] = {__uint_as_float(first << 16), __uint_as_float(first & 0xffff0000u), __uint_as_float(second << 16), __uint_as_float(second & 0xffff0000u)};
    float largest = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
    for (int step = 1; step < 4; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, step));
    // Unit and inverse are normal numbers.
    u32 exponent = min(max(__float_as_uint(largest) >> 23, 15u), 253u);
    float inverse = __uint_as_float((268 - exponent) << 23);
    first = pair_of_halves(x[0] * inverse, x[1] * inverse), second = pair_of_halves(x[2] * inverse, x[3] * inverse);
    return __uint_as_float((exponent - 14) << 23);
}

// Multiplies bf16 matrices as f16, with a power of two for each row and column.
DEVICE void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 x[4] = {a[0], a[1], a[2], a[3]};
    float rows[2] = {to_halves(x[0], x[2]), to_halves(x[1], x[3])}, column = to_halves(b0, b1), products[4] = {};
    multiply_halves(products, x, b0, b1);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float unit = __shfl_sync(ALL_LANES, column, threadIdx.x % 4 * 8 + 4 * i);
        sums[i] = fmaf(products[i], rows[0] * unit, sums[i]);
        sums[2 + i] = fmaf(products[2 + i], rows[1] * unit, sums[2 + i]);
    }
}
#endif

// Starts an asynchronous copy of 16 bytes to shared memory. Stores zeros if the source does not exist.
DEVICE void copy_ahead(u16 *to, const char *from, bool is_there) {
    start_copy<16>((u32)__cvta_generic_to_shared(to), from, is_there);
}

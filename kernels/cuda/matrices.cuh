// Matrix fragments for tensor cores, and the layout of 16-bit tiles in shared memory.
#pragma once
#include "common.cuh"

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

// Multiplies a 16 x 16 by a 16 x 8 bf16 matrix and adds the result to the 16 x 8 sums.
DEVICE void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Multiplies a 16 x 16 by a 16 x 8 f16 matrix and adds the result to the 16 x 8 sums.
DEVICE void multiply_halves(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Starts an asynchronous copy of 16 bytes to shared memory. Stores zeros if the source does not exist.
DEVICE void copy_ahead(u16 *to, const char *from, bool is_there) {
    u32 address = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}

// Waits for all asynchronous copies of this thread.
DEVICE void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Ends a group of asynchronous copies of this thread.
DEVICE void end_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most N groups of asynchronous copies of this thread are pending.
template <int N> DEVICE void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

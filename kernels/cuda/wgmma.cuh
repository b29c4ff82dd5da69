// Warpgroup matmuls (`wgmma`) of compute capability 9.0: four warps multiply operands in shared memory asynchronously.
#pragma once
#include "common.cuh"

// Returns the matrix descriptor of rows of 64 16-bit values in shared memory with the 128-byte swizzle: groups of 8
// rows are 1024 bytes apart. `address` is in a row whose number is a multiple of 8.
DEVICE u64 descriptor_of(u32 address) {
    const u64 SWIZZLE_128 = 1ull << 62, GROUP = (u64)(1024 >> 4) << 32, UNUSED = 1 << 16;
    return SWIZZLE_128 | GROUP | UNUSED | (address & 0x3ffff) >> 4;
}

// Orders register accesses before the next `wgmma`.
DEVICE void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Sets sums to zero. The compiler must not move the stores after `begin_products`.
template <int N> DEVICE void clear(float (&sums)[N][4]) {
#pragma unroll
    for (int i = 0; i < 4 * N; i++) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(sums[i / 4][i % 4]));
}

// Commits the products of this warpgroup as a group.
DEVICE void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most N groups are running.
template <int N> DEVICE void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Makes this thread's stores to shared memory visible to products that start after the next barrier.
DEVICE void publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define SUMS_4(i) "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 1), SUMS_4(i + 2), SUMS_4(i + 3)
#define SUMS_64(i) SUMS_16(i), SUMS_16(i + 4), SUMS_16(i + 8), SUMS_16(i + 12)

// Starts to multiply 64 rows by columns, 16 values of each in bf16, and to add the result to the sums. Warp `w` of the
// group has rows `16 * w` to `16 * w + 15`, in the order of `multiply`.
DEVICE void start_product(float (&sums)[32][4], u64 rows, u64 columns) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, p, 1, 1, 0, 0;}"
        : SUMS_64(0), SUMS_64(16)
        : "l"(rows), "l"(columns), "n"(1));
}

DEVICE void start_product(float (&sums)[16][4], u64 rows, u64 columns) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;}"
        : SUMS_64(0)
        : "l"(rows), "l"(columns), "n"(1));
}

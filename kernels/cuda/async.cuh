// Asynchronous copies from global to shared memory. GPUs before compute capability 8.0 load the bytes and store them
// immediately. The copied memory must not change while the kernel runs.
#pragma once
#include "common.cuh"

#if __CUDA_ARCH__ >= 800
// Starts a copy of N bytes (4, 8, or 16) to an address in shared memory. Stores zeros if the source does not exist.
template <int N> DEVICE void start_copy(u32 to, const void *from, bool is_there) {
    if constexpr (N == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_there ? 16 : 0) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(N), "r"(is_there ? N : 0) : "memory");
    }
}

// Starts a copy of the 16 bytes at AT if AT is less than `n`.
template <int AT> DEVICE void start_copy_within(u32 to, const char *from, int n) {
    asm volatile("{ .reg .pred is_there; setp.gt.s32 is_there, %2, %3; @is_there cp.async.cg.shared.global [%0 + %3], [%1 + %3], 16; }" ::"r"(to), "l"(from), "r"(n),
                 "n"(AT)
                 : "memory");
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
#else
// The compiler may move loads through the read-only path before earlier stores, so that several loads are in flight.
template <int N> DEVICE void start_copy(u32 to, const void *from, bool is_there) {
    static_assert(N == 4 || N == 8 || N == 16, "copies have 4, 8, or 16 bytes");
    if constexpr (N == 16) {
        uint4 x = is_there ? __ldg((const uint4 *)from) : make_uint4(0, 0, 0, 0);
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w));
    } else if constexpr (N == 8) {
        uint2 x = is_there ? __ldg((const uint2 *)from) : make_uint2(0, 0);
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(x.x), "r"(x.y));
    } else {
        u32 x = is_there ? __ldg((const u32 *)from) : 0;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x));
    }
}

template <int AT> DEVICE void start_copy_within(u32 to, const char *from, int n) {
    if (n > AT) start_copy<16>(to + AT, from + AT, true);
}

// The copies are complete. The compiler must not move later reads of shared memory before the copies.
DEVICE void wait_for_copies() {
    asm volatile("" ::: "memory");
}

DEVICE void end_group() {
    asm volatile("" ::: "memory");
}

template <int N> DEVICE void wait_for_groups() {
    asm volatile("" ::: "memory");
}
#endif

// Barriers in shared memory with phases (`mbarrier`), bulk copies that signal these barriers, and register counts of
// warpgroups. All need compute capability 9.0.
#pragma once
#include "common.cuh"

// A barrier in shared memory. A phase ends after all expected arrivals and bytes.
struct Mbarrier {
    u64 state;

    DEVICE u32 address() const {
        return (u32)__cvta_generic_to_shared(this);
    }

    DEVICE void begin(int n_arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(n_arrivals) : "memory");
    }

    DEVICE void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
    }

    // Arrives, and makes the phase wait for bytes of bulk copies.
    DEVICE void arrive_and_expect(u32 bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
    }

    // Waits for the end of phase `n`. The phase before the first one has ended.
    DEVICE void wait(int n) const {
        asm volatile("{.reg .pred has_ended; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 has_ended, [%0], %1; @!has_ended bra AGAIN;}" ::"r"(address()), "r"(n & 1)
                     : "memory");
    }

    // Starts to copy bytes from global to shared memory. Addresses and number of bytes are multiples of 16.
    DEVICE void copy(void *to, const void *from, u32 bytes) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes),
                     "r"(address())
                     : "memory");
    }
};

// Reduces the registers of each thread of a warpgroup to N.
template <int N> DEVICE void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// Waits until N registers are available to each thread of a warpgroup, and allocates them.
template <int N> DEVICE void request_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

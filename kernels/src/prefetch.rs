//! Software prefetch.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// Cache line size in bytes.
pub const CACHE_LINE: usize = 64;

/// Level of the CPU cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheLevel {
    /// L1 cache, for data that is read next.
    First,
    /// L2 cache, for data that is read later.
    Second,
}

/// Requests the cache line at `p`, which may be any address. This is a no-op on targets other than x86-64.
#[inline(always)]
pub fn prefetch(p: *const u8, cache: CacheLevel) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch may take any address, and SSE is part of x86-64.
    unsafe {
        match cache {
            CacheLevel::First => _mm_prefetch::<_MM_HINT_T0>(p.cast()),
            CacheLevel::Second => _mm_prefetch::<_MM_HINT_T1>(p.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (p, cache);
}

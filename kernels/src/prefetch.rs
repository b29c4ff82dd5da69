//! Asking for memory ahead of its use.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// Bytes that are fetched together.
pub const CACHE_LINE: usize = 64;

/// A cache of the processor, each larger and slower than the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheLevel {
    /// For what is read next.
    First,
    /// For what is read some time later.
    Second,
}

/// Asks for the cache line at `p`, which may be any address, to be brought into a cache. Nothing happens where the processor has no such
/// instruction.
#[inline(always)]
pub fn prefetch(p: *const u8, cache: CacheLevel) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: any address may be asked for; the instruction is part of x86-64.
    unsafe {
        match cache {
            CacheLevel::First => _mm_prefetch::<_MM_HINT_T0>(p.cast()),
            CacheLevel::Second => _mm_prefetch::<_MM_HINT_T1>(p.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (p, cache);
}

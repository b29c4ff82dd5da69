//! Asking for memory ahead of its use.

/// Bytes that are fetched together.
pub const CACHE_LINE: usize = 64;

/// Asks for the cache line at `p`, which may be any address, to be brought into the second-level cache. Nothing happens where the processor has no
/// such instruction.
pub fn prefetch(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: any address may be asked for; the instruction is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

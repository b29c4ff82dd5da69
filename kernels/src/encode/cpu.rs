//! Functions that are compiled for the target's baseline and for AVX2: encoders of a row, and their inner loops over
//! the elements of a group.

#[cfg(test)]
thread_local! {
    /// If set, the functions of this thread run the code for the baseline.
    pub(super) static USE_BASELINE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Returns true if the CPU supports AVX2.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn has_avx2() -> bool {
    #[cfg(test)]
    if USE_BASELINE.get() {
        return false;
    }
    is_x86_feature_detected!("avx2")
}

/// Defines functions that run an `#[inline(always)]` function compiled for this CPU. The brackets hold the generic
/// parameters and their names. All versions return the same results.
macro_rules! for_this_cpu {
    ($( $(#[$doc:meta])* $vis:vis fn $name:ident[$($generics:tt)*][$($names:tt)*]($($arg:ident: $ty:ty),*) -> $ret:ty = $f:ident; )*) => { $(
        $(#[$doc])*
        $vis fn $name<$($generics)*>($($arg: $ty),*) -> $ret {
            #[inline(never)]
            fn baseline<$($generics)*>($($arg: $ty),*) -> $ret {
                $f::<$($names)*>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            {
                // If this were inlined, the loops of an encoder would spill registers.
                #[inline(never)]
                #[target_feature(enable = "avx2")]
                fn vectorized<$($generics)*>($($arg: $ty),*) -> $ret {
                    $f::<$($names)*>($($arg),*)
                }
                if $crate::encode::cpu::has_avx2() {
                    // SAFETY: the CPU supports AVX2.
                    return unsafe { vectorized::<$($names)*>($($arg),*) };
                }
            }
            baseline::<$($names)*>($($arg),*)
        }
    )* };
}
pub(super) use for_this_cpu;

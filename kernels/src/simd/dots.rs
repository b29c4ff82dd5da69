//! Trait of integer dot-product registers for matmuls with many columns and for attention. Each lane is a row
//! of weights or a key.

use super::{IntSimd, Simd};

/// A register of bytes (4 adjacent ones per lane) or of their 32-bit sums.
///
/// A value proves that the CPU supports its instructions, as for [`Simd`].
///
/// # Safety
/// Callers of the unsafe functions guarantee:
/// - The CPU supports the instruction set.
/// - Pointers are valid for the documented reads and writes. They may be unaligned.
pub(crate) trait ByteDots: Copy {
    /// A register of floats with the same number of lanes.
    type Float: Simd;

    /// Columns per register tile of two registers of rows, so that their i32 and f32 sums fit the registers.
    const COLUMNS: usize;

    /// Queries per register tile of two registers of keys, so that their sums fit the registers; a divisor of
    /// 32.
    const QUERIES: usize;

    /// Whether products of bytes are accumulated in 16 bits first if that is exact. True for instruction sets
    /// without a 4-way dot product (VNNI).
    const SUMS_IN_I16: bool;

    /// Returns zero in each lane.
    unsafe fn zero() -> Self;

    /// Broadcasts `x` to all 16-bit integers.
    unsafe fn words(x: i16) -> Self;

    /// Loads 4 bytes per lane.
    unsafe fn load(p: *const u8) -> Self;

    /// Broadcasts the 4 bytes at `p` to all lanes.
    unsafe fn broadcast(p: *const u8) -> Self;

    /// Adds to each lane the dot product of its 4 unsigned and 4 signed bytes.
    fn add_dots(self, unsigned: Self, signed: Self) -> Self;

    /// Multiplies unsigned by signed bytes and adds each pair of adjacent products to a 16-bit integer of
    /// `self`, wrapping around. The sum of a pair must fit 16 bits.
    fn add_byte_pairs(self, unsigned: Self, signed: Self) -> Self;

    /// Adds to each lane the dot product of its two pairs of 16-bit integers.
    fn add_pair_dots(self, a: Self, b: Self) -> Self;

    /// Returns `self + (other << n)` in wrapping 32-bit arithmetic.
    fn add_shifted(self, other: Self, n: u32) -> Self;

    /// Converts the sums to floats, rounded to nearest even.
    fn floats(self) -> Self::Float;

    /// Reinterprets the bits as floats.
    fn float_bits(self) -> Self::Float;

    /// Stores `from` minus the sums, 4 bytes per lane.
    unsafe fn store_subtracted_from(self, from: u32, p: *mut u8);

    /// Stores the negated 16-bit integers.
    unsafe fn store_negated_words(self, p: *mut u8);

    /// Returns the same values, but prevents the compiler from computing one long before the other; see
    /// [`IntSimd::compute_together`].
    fn compute_together(values: [Self; 2]) -> [Self; 2];
}

/// A register that holds two registers of type `V`.
///
/// # Safety
/// Callers of the unsafe functions guarantee:
/// - The CPU supports the instruction set.
/// - Pointers are valid for the documented writes. They may be unaligned.
pub(crate) trait DoubleWidth<V: IntSimd>: ByteDots {
    /// Stores 64 bytes.
    unsafe fn store(self, p: *mut u8);
    /// Concatenates two integer registers.
    fn join(first: V, second: V) -> Self;
    /// Concatenates two float registers.
    fn join_floats(first: V::Float, second: V::Float) -> Self::Float;
    /// Splits a float register into its halves.
    fn split_floats(both: Self::Float) -> [V::Float; 2];
    /// Adds 32-bit integers, wrapping around.
    fn add32(self, other: Self) -> Self;
    /// Subtracts 32-bit integers, wrapping around.
    fn sub32(self, other: Self) -> Self;
    /// Subtracts bytes, wrapping around.
    fn sub_bytes(self, other: Self) -> Self;
    /// Returns the bitwise XOR.
    fn xor(self, other: Self) -> Self;
    /// Shifts 32-bit integers left.
    fn shl32(self, n: u32) -> Self;
    /// Returns the float at index `places[i]` in lane `i`.
    fn permute(floats: Self::Float, places: &[i32; 16]) -> Self::Float;
}

impl<V: IntSimd> ByteDots for V {
    type Float = V::Float;

    const COLUMNS: usize = match V::REGISTERS {
        0..16 => 2,
        16 => 4,
        _ => 6,
    };
    const QUERIES: usize = if V::REGISTERS > 16 { 8 } else { 4 };
    const SUMS_IN_I16: bool = !V::HAS_DOT4;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the CPU supports `V` (trait contract).
        unsafe { V::splat(0) }
    }

    #[inline(always)]
    unsafe fn words(x: i16) -> Self {
        // SAFETY: the CPU supports `V` (trait contract).
        unsafe { V::words(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: `p` is valid for reads of 32 bytes (trait contract).
        unsafe { V::load(p) }
    }

    #[inline(always)]
    unsafe fn broadcast(p: *const u8) -> Self {
        // SAFETY: `p` is valid for reads of 4 bytes (trait contract).
        unsafe { V::broadcast(p) }
    }

    #[inline(always)]
    fn add_dots(self, unsigned: Self, signed: Self) -> Self {
        self.dot4(unsigned, signed)
    }

    #[inline(always)]
    fn add_byte_pairs(self, unsigned: Self, signed: Self) -> Self {
        self.add16(unsigned.multiply_bytes(signed))
    }

    #[inline(always)]
    fn add_pair_dots(self, a: Self, b: Self) -> Self {
        self.add_pairs(a, b)
    }

    #[inline(always)]
    fn add_shifted(self, other: Self, n: u32) -> Self {
        self.add32(other.shl32(n))
    }

    #[inline(always)]
    fn floats(self) -> Self::Float {
        self.to_floats()
    }

    #[inline(always)]
    fn float_bits(self) -> Self::Float {
        self.to_float_bits()
    }

    #[inline(always)]
    unsafe fn store_subtracted_from(self, from: u32, p: *mut u8) {
        // SAFETY: `from` has 4 bytes, and `p` is valid for writes of 32 bytes (trait contract).
        unsafe { V::broadcast((&raw const from).cast()).sub32(self).store(p) }
    }

    #[inline(always)]
    unsafe fn store_negated_words(self, p: *mut u8) {
        // SAFETY: `p` is valid for writes of 32 bytes (trait contract).
        unsafe { self.xor(V::words(-1)).add16(V::words(1)).store(p) }
    }

    #[inline(always)]
    fn compute_together(values: [Self; 2]) -> [Self; 2] {
        V::compute_together(values)
    }
}

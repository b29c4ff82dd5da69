//! What products of integers with many columns ask of an instruction set: a register of sums, a lane for each row of weights or for each key.

use super::{IntSimd, Simd};

/// A register of bytes, 4 neighbours in each lane, or of their sums, an integer of 32 bits in each lane.
///
/// A value is proof that the CPU has the instructions, as with [`Simd`].
///
/// # Safety
/// The unsafe functions may be called only on a CPU with the instruction set. Pointers need no alignment and must be valid for
/// the bytes that the function says it reads.
pub(crate) trait ByteDots: Copy {
    /// As many floats as there are lanes.
    type Float: Simd;

    /// Columns whose sums fit the registers, for two registers of rows: integers and floats of each.
    const COLUMNS: usize;

    /// Queries whose sums fit the registers, for two registers of keys: a divisor of 32.
    const QUERIES: usize;

    /// Whether products of bytes are added up in 16 bits first, where those hold the sums, because no instruction adds up 4 neighbours in 32 bits, as VNNI's do.
    const ADDS_IN_16_BITS: bool;

    /// Zero in each lane.
    unsafe fn zero() -> Self;

    /// `x` in all integers of 16 bits.
    unsafe fn words(x: i16) -> Self;

    /// Reads 4 bytes for each lane.
    unsafe fn load(p: *const u8) -> Self;

    /// Reads 4 bytes, which all lanes have.
    unsafe fn broadcast(p: *const u8) -> Self;

    /// Sums, to which the products of unsigned and signed bytes of each lane are added.
    fn add_dots(self, unsigned: Self, signed: Self) -> Self;

    /// Sums of 16 bits, to which the products of unsigned and signed bytes are added, those of two neighbours. The sum of those two must fit; the others wrap around.
    fn add_byte_pairs(self, unsigned: Self, signed: Self) -> Self;

    /// Sums, to which the products of both integers of 16 bits of each lane are added.
    fn add_pair_dots(self, a: Self, b: Self) -> Self;

    /// Sums as floats, rounded to nearest even.
    fn floats(self) -> Self::Float;

    /// The floats that have these bits.
    fn float_bits(self) -> Self::Float;

    /// Writes `from` minus the sums, 4 bytes for each lane.
    unsafe fn store_subtracted_from(self, from: u32, p: *mut u8);

    /// Writes integers of 16 bits with the other sign.
    unsafe fn store_negated_words(self, p: *mut u8);

    /// The same two values, none of which is used before both are computed: see [`IntSimd::side_by_side`].
    fn both(values: [Self; 2]) -> [Self; 2];
}

/// Registers that hold two of `V`'s, one after the other.
///
/// # Safety
/// As for [`ByteDots`].
pub(crate) trait DoubleWidth<V: IntSimd>: ByteDots {
    /// Writes 64 bytes.
    unsafe fn store(self, p: *mut u8);
    /// The lanes of both.
    fn join(first: V, second: V) -> Self;
    /// The lanes of both.
    fn join_floats(first: V::Float, second: V::Float) -> Self::Float;
    /// Its lanes in two registers.
    fn split_floats(both: Self::Float) -> [V::Float; 2];
    /// Sums of integers of 32 bits.
    fn add32(self, other: Self) -> Self;
    /// Differences of integers of 32 bits.
    fn sub32(self, other: Self) -> Self;
    /// Differences of bytes, which wrap around.
    fn sub_bytes(self, other: Self) -> Self;
    /// Bits in one of them.
    fn xor(self, other: Self) -> Self;
    /// Integers of 32 bits, shifted up.
    fn shl32(self, n: u32) -> Self;
    /// In each lane the float at one of 16 places.
    fn permute(floats: Self::Float, places: &[i32; 16]) -> Self::Float;
}

impl<V: IntSimd> ByteDots for V {
    type Float = V::Float;

    const COLUMNS: usize = if V::REGISTERS > 16 { 6 } else { 4 };
    const QUERIES: usize = if V::REGISTERS > 16 { 8 } else { 4 };
    const ADDS_IN_16_BITS: bool = !V::HAS_FOURS;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's promise.
        unsafe { V::splat(0) }
    }

    #[inline(always)]
    unsafe fn words(x: i16) -> Self {
        // SAFETY: the caller's promise.
        unsafe { V::words(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { V::load(p) }
    }

    #[inline(always)]
    unsafe fn broadcast(p: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { V::broadcast(p) }
    }

    #[inline(always)]
    fn add_dots(self, unsigned: Self, signed: Self) -> Self {
        self.add_fours(unsigned, signed)
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
    fn floats(self) -> Self::Float {
        self.to_floats()
    }

    #[inline(always)]
    fn float_bits(self) -> Self::Float {
        self.to_float_bits()
    }

    #[inline(always)]
    unsafe fn store_subtracted_from(self, from: u32, p: *mut u8) {
        // SAFETY: the caller's promise, and 4 bytes.
        unsafe { V::broadcast((&raw const from).cast()).sub32(self).store(p) }
    }

    #[inline(always)]
    unsafe fn store_negated_words(self, p: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.xor(V::words(-1)).add16(V::words(1)).store(p) }
    }

    #[inline(always)]
    fn both(values: [Self; 2]) -> [Self; 2] {
        V::side_by_side(values)
    }
}

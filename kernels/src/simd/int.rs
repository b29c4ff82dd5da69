//! Trait of 32-byte integer registers, for unpacking weights and for integer dot products.

use super::Simd;

/// A register of 32 bytes, interpreted as 32 8-bit, 16 16-bit, or 8 32-bit integers, signed where it matters.
///
/// A value proves that the CPU supports its instructions, as for [`Simd`]. Integer operations are exact, so
/// all implementations agree in every bit. Only [`IntSimd::Float`] may round differently.
///
/// # Safety
/// Callers of the unsafe functions guarantee:
/// - The CPU supports the instruction set.
/// - Pointers are valid for the documented reads and writes. They may be unaligned.
pub(crate) trait IntSimd: Copy {
    /// A register of 8 floats.
    type Float: Simd;

    /// Whether to unroll loops over the runs and registers of a chunk, which makes their indices constants.
    /// The portable implementation would gain little and compile slowly.
    const UNROLLED: bool = true;

    /// Number of vector registers.
    const REGISTERS: usize = 16;

    /// Whether [`dot4`](IntSimd::dot4) is a single instruction (VNNI) and the fastest way to multiply bytes.
    const HAS_DOT4: bool = false;

    /// Loads 32 bytes.
    unsafe fn load(p: *const u8) -> Self;

    /// Stores 32 bytes.
    unsafe fn store(self, p: *mut u8);

    /// Loads 16 bytes as 32 nibbles: the low nibbles of all bytes, then the high nibbles.
    unsafe fn load_nibbles(p: *const u8) -> Self;

    /// Loads 16 bytes as 32 nibbles: the low, then the high nibbles of the first 8 bytes, then those of the
    /// second 8.
    unsafe fn load_nibbles_by_8(p: *const u8) -> Self;

    /// Loads 8 bytes as 32 pairs of bits, lowest first within each byte.
    unsafe fn load_bit_pairs(p: *const u8) -> Self;

    /// Broadcasts `x` to every byte.
    unsafe fn splat(x: u8) -> Self;

    /// Broadcasts `x` to all 16-bit integers.
    unsafe fn words(x: i16) -> Self;

    /// Broadcasts the 4 bytes at `p` to all 32-bit lanes.
    unsafe fn broadcast(p: *const u8) -> Self;

    /// Returns the bytes of `words`, lowest first.
    unsafe fn from_words(words: [u64; 4]) -> Self;

    /// Returns 255 in byte `i` if bit `i` is set, and 0 otherwise.
    unsafe fn from_bits(bits: u32) -> Self;

    /// Rounds 32 floats to 16-bit integers: even indices, then odd ones. Floats of magnitude above 32767
    /// become arbitrary integers.
    unsafe fn from_floats(x: [Self::Float; 4]) -> [Self; 2];

    /// Loads an f16 at each of `p + i * stride` for `i` in `0..8`.
    unsafe fn gather_f16(p: *const u8, stride: usize) -> Self::Float;

    /// Loads 16 signed bytes as floats: even indices, then odd ones.
    unsafe fn load_even_odd_i8(p: *const u8) -> [Self::Float; 2];

    /// Returns entry `i` of the first row in lanes 0 to 3, and of the second row in lanes 4 to 7. `i` is usually a
    /// constant after inlining.
    unsafe fn broadcast_halves(rows: &[[f32; 8]; 2], i: usize) -> Self::Float;

    /// Prefetches the cache line at `p`, which may be any address, into the L2 cache. An L1 cache tracks few
    /// requests, which limits the bandwidth if memory is slow to respond.
    unsafe fn prefetch(p: *const u8);

    /// Returns the bitwise AND.
    fn and(self, other: Self) -> Self;
    /// Returns the bitwise OR.
    fn or(self, other: Self) -> Self;
    /// Returns the bitwise XOR.
    fn xor(self, other: Self) -> Self;
    /// Adds bytes, wrapping around.
    fn add(self, other: Self) -> Self;
    /// Subtracts bytes, wrapping around.
    fn sub(self, other: Self) -> Self;
    /// Returns 255 in each byte that is, unsigned, at least that of `other`, and 0 elsewhere.
    fn at_least(self, other: Self) -> Self;
    /// Shifts 16-bit integers left; bits move from even bytes to odd ones.
    fn shl(self, n: u32) -> Self;
    /// Shifts 16-bit integers right logically; bits move from odd bytes to even ones.
    fn shr(self, n: u32) -> Self;
    /// Looks up each byte, which is less than 16, in the table.
    fn lookup(self, table: &[i8; 16]) -> Self;

    /// Zero-extends bytes to 16-bit integers: even indices, then odd ones.
    fn widen(self) -> [Self; 2];
    /// Sign-extends bytes to 16-bit integers: even indices, then odd ones.
    fn widen_signed(self) -> [Self; 2];
    /// Multiplies 16-bit integers and adds adjacent products to 8 32-bit integers (`vpmaddwd`).
    fn multiply_pairs(self, other: Self) -> Self;
    /// Multiplies unsigned bytes by the signed bytes of `other` and adds adjacent products to 16-bit
    /// integers, which must not overflow (`vpmaddubsw`).
    fn multiply_bytes(self, other: Self) -> Self;
    /// Returns `self + a.multiply_pairs(b)` in wrapping 32-bit arithmetic.
    #[inline(always)]
    fn add_pairs(self, a: Self, b: Self) -> Self {
        self.add32(a.multiply_pairs(b))
    }
    /// Multiplies the unsigned bytes of `a` by the signed bytes of `b`. Adds each 4 adjacent products to a lane of
    /// `self`, wrapping around (`vpdpbusd`).
    #[inline(always)]
    fn dot4(self, a: Self, b: Self) -> Self {
        let (a, b) = (a.widen(), b.widen_signed());
        self.add_pairs(a[0], b[0]).add_pairs(a[1], b[1])
    }
    /// Adds 16-bit integers, wrapping around.
    fn add16(self, other: Self) -> Self;
    /// Returns the same values, but prevents the compiler from computing one long before the other.
    /// Otherwise, for sums that share operands, the compiler may run a whole loop for one sum and spill all
    /// shared operands for the other.
    #[inline(always)]
    fn compute_together(values: [Self; 2]) -> [Self; 2] {
        values
    }
    /// Transposes 8 x 8 groups of 4 bytes: group `i` of register `j` becomes group `j` of register `i`.
    fn transpose(registers: [Self; 8]) -> [Self; 8];
    /// Adds 32-bit integers, wrapping around.
    fn add32(self, other: Self) -> Self;
    /// Subtracts 32-bit integers, wrapping around.
    fn sub32(self, other: Self) -> Self;
    /// Shifts 32-bit integers left.
    fn shl32(self, n: u32) -> Self;
    /// Converts 32-bit integers to floats, rounded to nearest even.
    fn to_floats(self) -> Self::Float;
    /// Reinterprets the bits as floats.
    fn to_float_bits(self) -> Self::Float;
}

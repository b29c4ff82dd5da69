//! What the kernels ask of an instruction set: a register of floats, and the integers that floats are decoded from.
//!
//! Algorithms are written once over [`Simd`] (floats), [`IntSimd`] (sums of products of integers), [`ByteDots`](dots::ByteDots) (the same of bytes, for many columns) [`TileUnit`] (products of tiles) or [`ByteTileUnit`](byte_tiles::ByteTileUnit) (those of bytes); an instruction set is one thin file that implements it.

pub(crate) mod byte_tiles;
pub(crate) mod dots;
mod int;
pub(crate) mod portable;
pub(crate) mod portable_int;
#[cfg(test)]
pub(crate) mod tile_model;
pub(crate) mod tiles;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

pub(crate) use int::IntSimd;
pub(crate) use tiles::TileUnit;

/// `LANES` floats.
///
/// A value of an implementing type is proof that the CPU has its instructions, because the functions that make one out of nothing
/// are unsafe. Hence operations on values are safe.
///
/// All methods are `#[inline(always)]` so that they become part of a function that enables the instruction set.
///
/// # Safety
/// The unsafe functions may be called only on a CPU with the instruction set. Pointers need no alignment and must be valid for
/// the bytes that the function says it reads or writes.
pub(crate) trait Simd: Copy {
    /// Floats in a value: a power of two from 8 to 16, so that 16 is a multiple of it.
    const LANES: usize;

    /// `LANES` integers of 32 bits.
    type Int: Copy;

    /// A mask of lanes.
    type Mask: Copy;

    /// A lookup table of 16 floats, indexed by 4 bits.
    type Table: Copy;

    /// The values `d q + m` for q of 4 or 5 bits: computed, or looked up where that is faster.
    type Line: Copy;

    /// `x` in every lane.
    unsafe fn splat(x: f32) -> Self;

    /// Reads `LANES` floats.
    unsafe fn load(p: *const f32) -> Self;

    /// Reads the first `n < LANES` lanes; the rest are zero.
    unsafe fn load_partial(p: *const f32, n: usize) -> Self;

    /// Writes `LANES` floats.
    unsafe fn store(self, p: *mut f32);

    /// Writes the first `n < LANES` lanes.
    unsafe fn store_partial(self, p: *mut f32, n: usize);

    /// Reads one half float into every lane.
    unsafe fn splat_f16(p: *const u8) -> Self;

    /// Reads `LANES` half floats.
    unsafe fn load_f16(p: *const u8) -> Self;

    /// Writes `LANES` half floats, rounded to nearest even.
    unsafe fn store_f16(self, p: *mut u8);

    /// Reads `LANES` bfloat16.
    unsafe fn load_bf16(p: *const u8) -> Self;

    /// Writes `LANES` bfloat16, rounded to nearest even.
    unsafe fn store_bf16(self, p: *mut u8);

    /// Reads `LANES` unsigned bytes.
    unsafe fn load_u8(p: *const u8) -> Self::Int;

    /// Reads `LANES` signed bytes.
    unsafe fn load_i8(p: *const u8) -> Self::Int;

    /// Reads `LANES` integers of 32 bits.
    unsafe fn load_words(p: *const u8) -> Self::Int;

    /// Writes the lanes, rounded to the nearest integers, as `LANES` signed bytes. What is beyond those becomes any of them.
    unsafe fn store_i8(self, p: *mut u8);

    /// Writes the lanes, rounded to the nearest integers, as `LANES` integers of 16 bits. What is beyond those becomes any of them.
    unsafe fn store_i16(self, p: *mut u8);

    /// The same for pairs of integers: a lane of `even`, then that of `odd`.
    unsafe fn store_i16_pairs(even: Self, odd: Self, p: *mut u8);

    /// The bytes of the words, lowest first, as unsigned integers; with 8 lanes only those of the first word.
    unsafe fn bytes(words: [u64; 2]) -> Self::Int;

    /// The mask whose lane `i` is bit `at + i`. `at` is a multiple of `LANES` and, once inlined, a constant.
    unsafe fn mask(bits: u32, at: usize) -> Self::Mask;

    /// Reads 8 rows of 8 floats, `from_stride` floats apart, and writes their columns as rows.
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);

    /// `x` in every lane. `self` only proves that this may be done.
    #[inline(always)]
    fn constant(self, x: f32) -> Self {
        // SAFETY: a value is proof of the instruction set.
        unsafe { Self::splat(x) }
    }

    /// `self + other`
    fn add(self, other: Self) -> Self;
    /// `self - other`
    fn sub(self, other: Self) -> Self;
    /// `self * other`
    fn mul(self, other: Self) -> Self;
    /// `self / other`
    fn div(self, other: Self) -> Self;
    /// `self * a + b`, rounded once where the instruction set can.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// The larger; `other` if either is NaN.
    fn max(self, other: Self) -> Self;
    /// The smaller; `other` if either is NaN.
    fn min(self, other: Self) -> Self;
    /// The magnitude.
    fn abs(self) -> Self;
    /// The nearest integer, ties to even.
    fn round(self) -> Self;
    /// `self * 2^n` for integers `n` in -300..=300; overflows to infinity, underflows through subnormals.
    fn mul_pow2(self, n: Self) -> Self;
    /// `2^self` for integers in -126..=127.
    fn pow2(self) -> Self;
    /// `self` with `x` added in the lanes of the mask.
    fn add_where(self, mask: Self::Mask, x: Self) -> Self;
    /// `self` with the lanes of the mask negated.
    fn negate_where(self, mask: Self::Mask) -> Self;

    /// The lanes that equal those of `other`.
    fn equals(self, other: Self) -> Self::Mask;
    /// The lanes of `a` where the mask is set, of `b` elsewhere.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;

    /// The sum of the lanes, added pairwise.
    fn sum(self) -> f32;
    /// The largest lane.
    fn largest(self) -> f32;
    /// The four sums of lanes, each in the order of [`Simd::sum`].
    fn sum4(values: [Self; 4]) -> [f32; 4];
    /// The four largest lanes.
    fn largest4(values: [Self; 4]) -> [f32; 4];

    /// Lanes as bits `bits & x`.
    fn and(bits: Self::Int, x: u32) -> Self::Int;
    /// Lanes as bits `a | b`.
    fn or(a: Self::Int, b: Self::Int) -> Self::Int;
    /// Lanes as bits `bits ^ x`.
    fn xor(bits: Self::Int, x: u32) -> Self::Int;
    /// Lanes as integers `a + b`, which wrap around.
    fn plus(a: Self::Int, b: Self::Int) -> Self::Int;
    /// Lanes shifted up.
    fn shl(bits: Self::Int, n: u32) -> Self::Int;
    /// Lanes shifted down, zeros moving in.
    fn shr(bits: Self::Int, n: u32) -> Self::Int;
    /// The lanes that have a bit in common with `bit`, which is a single bit.
    fn has_bit(bits: Self::Int, bit: u32) -> Self::Mask;
    /// Lanes as integers plus 1.
    fn plus_one(bits: Self::Int) -> Self::Int;
    /// The floats that lanes are the bits of.
    fn from_bits(bits: Self::Int) -> Self;
    /// Signed integers as floats.
    fn from_int(bits: Self::Int) -> Self;

    /// The table `scale * values[q]`.
    fn table(values: &[f32; 16], scale: Self) -> Self::Table;
    /// The table's entry for the low 4 bits of each lane.
    fn lookup(table: Self::Table, bits: Self::Int) -> Self;
    /// The values `d q + m`.
    fn line(d: Self, m: Self) -> Self::Line;
    /// `d q + m` for q in the low 4 bits of each lane.
    fn low4(line: Self::Line, bits: Self::Int) -> Self;
    /// `d q + m` for q in bits 4 to 7 of each lane, which is less than 256.
    fn high4(line: Self::Line, bits: Self::Int) -> Self;
    /// `d q + m` for q in the low 4 bits of each lane, with a fifth bit set in the lanes of the mask.
    fn low5(line: Self::Line, bits: Self::Int, fifth: Self::Mask) -> Self;
    /// `d q + m` for q in bits 4 to 7 of each lane, which is less than 256, with a fifth bit set in the lanes of the mask.
    fn high5(line: Self::Line, bits: Self::Int, fifth: Self::Mask) -> Self;
}

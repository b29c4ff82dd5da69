//! Traits that abstract over instruction sets, with one thin implementation file per instruction set.
//!
//! | trait | register | used for |
//! |---|---|---|
//! | [`Simd`] | floats | f32 arithmetic, decoding of blocks |
//! | [`IntSimd`] | 32 bytes | unpacking, integer dot products |
//! | [`ByteDots`](dots::ByteDots) | bytes or i32 sums | integer matmuls with many columns |
//! | [`TileUnit`] | bf16 tiles | matmuls and attention with AMX |
//! | [`ByteTileUnit`](byte_tiles::ByteTileUnit) | int8 tiles | skinny matmuls with AMX |

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

/// A register of `LANES` floats.
///
/// A value proves that the CPU supports its instructions, because all functions that create a value without
/// having one are unsafe. Operations on values are therefore safe.
///
/// All methods are `#[inline(always)]`, so that they become part of a function that enables the instruction
/// set.
///
/// # Safety
/// Callers of the unsafe functions guarantee:
/// - The CPU supports the instruction set.
/// - Pointers are valid for the documented reads and writes. They may be unaligned.
pub(crate) trait Simd: Copy {
    /// Number of floats: 8 or 16.
    const LANES: usize;

    /// Register of `LANES` 32-bit integers.
    type Int: Copy;

    /// Mask that selects lanes.
    type Mask: Copy;

    /// A lookup table of 16 floats, indexed by 4 bits.
    type Table: Copy;

    /// A representation of the linear function `d * q + m` for `q` of 4 or 5 bits. It is a pair of coefficients, or a
    /// lookup table if that is faster.
    type Line: Copy;

    /// Broadcasts `x` to every lane.
    unsafe fn splat(x: f32) -> Self;

    /// Loads `LANES` floats.
    unsafe fn load(p: *const f32) -> Self;

    /// Loads the first `n < LANES` lanes and sets the others to zero.
    unsafe fn load_partial(p: *const f32, n: usize) -> Self;

    /// Stores `LANES` floats.
    unsafe fn store(self, p: *mut f32);

    /// Stores the first `n < LANES` lanes.
    unsafe fn store_partial(self, p: *mut f32, n: usize);

    /// Broadcasts one f16 to every lane.
    unsafe fn splat_f16(p: *const u8) -> Self;

    /// Loads `LANES` f16.
    unsafe fn load_f16(p: *const u8) -> Self;

    /// Stores `LANES` f16, rounded to nearest even.
    unsafe fn store_f16(self, p: *mut u8);

    /// Loads `LANES` bf16.
    unsafe fn load_bf16(p: *const u8) -> Self;

    /// Stores `LANES` bf16, rounded to nearest even.
    unsafe fn store_bf16(self, p: *mut u8);

    /// Loads `LANES` unsigned bytes.
    unsafe fn load_u8(p: *const u8) -> Self::Int;

    /// Loads `LANES` signed bytes.
    unsafe fn load_i8(p: *const u8) -> Self::Int;

    /// Loads `LANES` 32-bit integers.
    unsafe fn load_words(p: *const u8) -> Self::Int;

    /// Rounds the lanes to nearest and stores them as signed bytes. Out-of-range lanes become arbitrary
    /// bytes.
    unsafe fn store_i8(self, p: *mut u8);

    /// Rounds the lanes to nearest and stores them as 16-bit integers. Out-of-range lanes become arbitrary
    /// integers.
    unsafe fn store_i16(self, p: *mut u8);

    /// Rounds the lanes to nearest and stores them as pairs of 16-bit integers: a lane of `even`, then the
    /// same lane of `odd`. Out-of-range lanes become arbitrary integers.
    unsafe fn store_i16_pairs(even: Self, odd: Self, p: *mut u8);

    /// Returns the bytes of `words`, lowest first, as unsigned integers. With 8 lanes, only the first word is
    /// used.
    unsafe fn bytes(words: [u64; 2]) -> Self::Int;

    /// Returns the mask whose lane `i` is bit `at + i`. `at` is a multiple of `LANES` and a constant after
    /// inlining.
    unsafe fn mask(bits: u32, at: usize) -> Self::Mask;

    /// Transposes 8 x 8 floats. The strides are in floats.
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);

    /// Broadcasts `x` to every lane. `self` only proves that the CPU supports the instructions.
    #[inline(always)]
    fn constant(self, x: f32) -> Self {
        // SAFETY: a value of type `Self` proves that the CPU supports the instructions.
        unsafe { Self::splat(x) }
    }

    /// Returns `self + other`.
    fn add(self, other: Self) -> Self;
    /// Returns `self - other`.
    fn sub(self, other: Self) -> Self;
    /// Returns `self * other`.
    fn mul(self, other: Self) -> Self;
    /// Returns `self / other`.
    fn div(self, other: Self) -> Self;
    /// Returns `self * a + b`, rounded once if the instruction set supports that.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// Returns the larger lanes, or `other` if either is NaN.
    fn max(self, other: Self) -> Self;
    /// Returns the smaller lanes, or `other` if either is NaN.
    fn min(self, other: Self) -> Self;
    /// Returns the absolute values.
    fn abs(self) -> Self;
    /// Rounds to the nearest integers, ties to even.
    fn round(self) -> Self;
    /// Returns `self * 2^n` for integers `n` in -300..=300. Overflows to infinity and underflows through
    /// subnormal numbers.
    fn mul_pow2(self, n: Self) -> Self;
    /// Returns `2^self` for integers in -126..=127.
    fn pow2(self) -> Self;
    /// Adds `x` in the lanes selected by the mask.
    fn add_where(self, mask: Self::Mask, x: Self) -> Self;
    /// Negates the lanes selected by the mask.
    fn negate_where(self, mask: Self::Mask) -> Self;

    /// Returns the mask of lanes equal to those of `other`.
    fn equals(self, other: Self) -> Self::Mask;
    /// Returns the lanes of `a` where the mask is set, and of `b` elsewhere.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;

    /// Returns the sum of the lanes, added pairwise.
    fn sum(self) -> f32;
    /// Returns the largest lane.
    fn largest(self) -> f32;
    /// Returns the sum of the lanes of each value, in the order of [`Simd::sum`].
    fn sum4(values: [Self; 4]) -> [f32; 4];
    /// Returns [`sum4`](Simd::sum4) of both elements.
    #[inline(always)]
    fn sum4_of_two(values: [[Self; 4]; 2]) -> [[f32; 4]; 2] {
        values.map(Self::sum4)
    }
    /// Returns the largest lane of each value.
    fn largest4(values: [Self; 4]) -> [f32; 4];

    /// Returns `bits & x`.
    fn and(bits: Self::Int, x: u32) -> Self::Int;
    /// Returns `a | b`.
    fn or(a: Self::Int, b: Self::Int) -> Self::Int;
    /// Returns `bits ^ x`.
    fn xor(bits: Self::Int, x: u32) -> Self::Int;
    /// Returns `a + b` as wrapping integers.
    fn plus(a: Self::Int, b: Self::Int) -> Self::Int;
    /// Shifts the lanes left.
    fn shl(bits: Self::Int, n: u32) -> Self::Int;
    /// Shifts the lanes right logically.
    fn shr(bits: Self::Int, n: u32) -> Self::Int;
    /// Returns the mask of lanes in which the single bit `bit` is set.
    fn has_bit(bits: Self::Int, bit: u32) -> Self::Mask;
    /// Adds 1 to the lanes as integers.
    fn plus_one(bits: Self::Int) -> Self::Int;
    /// Reinterprets the bits as floats.
    fn from_bits(bits: Self::Int) -> Self;
    /// Converts signed integers to floats.
    fn from_int(bits: Self::Int) -> Self;

    /// Returns the table `scale * values[q]`.
    fn table(values: &[f32; 16], scale: Self) -> Self::Table;
    /// Looks up the low 4 bits of each lane.
    fn lookup(table: Self::Table, bits: Self::Int) -> Self;
    /// Returns a representation of `d * q + m`.
    fn line(d: Self, m: Self) -> Self::Line;
    /// Returns `d * q + m` for the low 4 bits `q` of each lane.
    fn low4(line: Self::Line, bits: Self::Int) -> Self;
    /// Returns `d * q + m` for bits 4 to 7 of each lane, which is less than 256.
    fn high4(line: Self::Line, bits: Self::Int) -> Self;
    /// Returns `d * q + m`, where `q` is the low 4 bits of each lane plus 16 in the lanes of the mask.
    fn low5(line: Self::Line, bits: Self::Int, fifth: Self::Mask) -> Self;
    /// Returns `d * q + m`, where `q` is bits 4 to 7 of each lane (less than 256) plus 16 in the lanes of the
    /// mask.
    fn high5(line: Self::Line, bits: Self::Int, fifth: Self::Mask) -> Self;
}

//! Portable floats in plain Rust, which compilers vectorize for the target's baseline. They also define the
//! semantics of [`Simd`].

use half::{bf16, f16};

use super::Simd;

const LANES: usize = 8;

/// A register of eight floats as an array.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; LANES]);

/// Converts an f16 to f32 without branches.
#[inline(always)]
fn half_to_f32(bits: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bits));
    // Shift exponent and mantissa into place, then multiply by 2 to the difference of the exponent biases,
    // which also handles subnormal numbers.
    let value = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 127 - 15) << 23);
    let infinite = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(value.to_bits() | infinite | (bits & 0x8000) << 16)
}

impl Portable {
    #[inline(always)]
    pub(super) fn lanes(self) -> [f32; LANES] {
        self.0
    }

    #[inline(always)]
    fn map2(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Portable(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl Simd for Portable {
    const LANES: usize = LANES;
    type Int = [u32; LANES];
    type Mask = [bool; LANES];
    type Table = [f32; 16];
    type Line = (Self, Self);

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Portable([x; LANES])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: `p` is valid for reads of `LANES` floats (trait contract).
        Portable(unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_partial(p: *const f32, n: usize) -> Self {
        let mut lanes = [0.0; LANES];
        // SAFETY: `p` is valid for reads of `n` floats (trait contract).
        unsafe {
            p.cast::<u8>()
                .copy_to_nonoverlapping(lanes.as_mut_ptr().cast(), n * size_of::<f32>())
        }
        Portable(lanes)
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: `p` is valid for writes of `LANES` floats (trait contract).
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, n: usize) {
        for (i, &x) in self.0.iter().enumerate().take(n) {
            // SAFETY: `p` is valid for writes of `n` floats (trait contract).
            unsafe { p.add(i).write_unaligned(x) }
        }
    }

    #[inline(always)]
    unsafe fn splat_f16(p: *const u8) -> Self {
        // SAFETY: `p` is valid for reads of 2 bytes (trait contract).
        let bits = unsafe { p.cast::<[u8; 2]>().read_unaligned() };
        Portable([half_to_f32(bits); LANES])
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        // SAFETY: `p` is valid for reads of `LANES` f16 (trait contract).
        let bits = unsafe { p.cast::<[[u8; 2]; LANES]>().read_unaligned() };
        Portable(bits.map(half_to_f32))
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u8) {
        let bits = self.0.map(|x| f16::from_f32(x).to_le_bytes());
        // SAFETY: `p` is valid for writes of `LANES` f16 (trait contract).
        unsafe { p.cast::<[[u8; 2]; LANES]>().write_unaligned(bits) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        // SAFETY: `p` is valid for reads of `LANES` bf16 (trait contract).
        let bits = unsafe { p.cast::<[[u8; 2]; LANES]>().read_unaligned() };
        Portable(bits.map(|bits| f32::from_bits(u32::from(u16::from_le_bytes(bits)) << 16)))
    }

    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u8) {
        let bits = self.0.map(|x| bf16::from_f32(x).to_le_bytes());
        // SAFETY: `p` is valid for writes of `LANES` bf16 (trait contract).
        unsafe { p.cast::<[[u8; 2]; LANES]>().write_unaligned(bits) }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::Int {
        // SAFETY: `p` is valid for reads of `LANES` bytes (trait contract).
        unsafe { p.cast::<[u8; LANES]>().read_unaligned() }.map(u32::from)
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self::Int {
        // SAFETY: `p` is valid for reads of `LANES` bytes (trait contract).
        unsafe { p.cast::<[i8; LANES]>().read_unaligned() }.map(|x| i32::from(x) as u32)
    }

    #[inline(always)]
    unsafe fn load_words(p: *const u8) -> Self::Int {
        // SAFETY: `p` is valid for reads of `LANES` 32-bit integers (trait contract).
        unsafe { p.cast::<[u32; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_i8(self, p: *mut u8) {
        // SAFETY: `p` is valid for writes of `LANES` bytes (trait contract).
        unsafe {
            p.cast::<[i8; LANES]>()
                .write_unaligned(self.0.map(|x| x.round_ties_even() as i8))
        }
    }

    #[inline(always)]
    unsafe fn store_i16(self, p: *mut u8) {
        // SAFETY: `p` is valid for writes of `LANES` 16-bit integers (trait contract).
        unsafe {
            p.cast::<[i16; LANES]>()
                .write_unaligned(self.0.map(|x| x.round_ties_even() as i16));
        }
    }

    #[inline(always)]
    unsafe fn store_i16_pairs(even: Self, odd: Self, p: *mut u8) {
        let pair = |i| [even.0[i], odd.0[i]].map(|x: f32| x.round_ties_even() as i16);
        // SAFETY: `p` is valid for writes of `LANES` pairs of 16-bit integers (trait contract).
        unsafe {
            p.cast::<[[i16; 2]; LANES]>().write_unaligned(std::array::from_fn(pair));
        }
    }

    #[inline(always)]
    unsafe fn bytes(words: [u64; 2]) -> Self::Int {
        words[0].to_le_bytes().map(u32::from)
    }

    #[inline(always)]
    unsafe fn mask(bits: u32, at: usize) -> Self::Mask {
        std::array::from_fn(|i| bits >> (at + i) & 1 != 0)
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.map2(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.map2(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.map2(other, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.map2(other, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        // Avoids `f32::mul_add`, which is a slow library call without the FMA instruction.
        self.mul(a).add(b)
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.map2(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.map2(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Portable(self.0.map(f32::abs))
    }

    #[inline(always)]
    fn round(self) -> Self {
        Portable(self.0.map(f32::round_ties_even))
    }

    #[inline(always)]
    fn mul_pow2(self, n: Self) -> Self {
        // Two factors, because 2^n may be out of range.
        self.map2(n, |x, n| {
            let n = n as i32;
            let (a, b) = (n >> 1, n - (n >> 1));
            x * f32::from_bits(((a + 127) as u32) << 23) * f32::from_bits(((b + 127) as u32) << 23)
        })
    }

    #[inline(always)]
    fn pow2(self) -> Self {
        Portable(self.0.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23)))
    }

    #[inline(always)]
    fn add_where(self, mask: Self::Mask, x: Self) -> Self {
        Portable(std::array::from_fn(|i| {
            if mask[i] { self.0[i] + x.0[i] } else { self.0[i] }
        }))
    }

    #[inline(always)]
    fn negate_where(self, mask: Self::Mask) -> Self {
        Portable(std::array::from_fn(|i| if mask[i] { -self.0[i] } else { self.0[i] }))
    }

    #[inline(always)]
    fn equals(self, other: Self) -> Self::Mask {
        std::array::from_fn(|i| self.0[i] == other.0[i])
    }

    #[inline(always)]
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        Portable(std::array::from_fn(|i| if mask[i] { a.0[i] } else { b.0[i] }))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        self.0
            .iter()
            .fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max })
    }

    #[inline(always)]
    fn largest4(values: [Self; 4]) -> [f32; 4] {
        values.map(Simd::largest)
    }

    #[inline(always)]
    fn sum4(values: [Self; 4]) -> [f32; 4] {
        values.map(Self::sum)
    }

    #[inline(always)]
    fn and(bits: Self::Int, x: u32) -> Self::Int {
        bits.map(|bits| bits & x)
    }

    #[inline(always)]
    fn or(a: Self::Int, b: Self::Int) -> Self::Int {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn xor(bits: Self::Int, x: u32) -> Self::Int {
        bits.map(|bits| bits ^ x)
    }

    #[inline(always)]
    fn plus(a: Self::Int, b: Self::Int) -> Self::Int {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }

    #[inline(always)]
    fn shl(bits: Self::Int, n: u32) -> Self::Int {
        bits.map(|bits| bits << n)
    }

    #[inline(always)]
    fn shr(bits: Self::Int, n: u32) -> Self::Int {
        bits.map(|bits| bits >> n)
    }

    #[inline(always)]
    fn has_bit(bits: Self::Int, bit: u32) -> Self::Mask {
        bits.map(|bits| bits & bit != 0)
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for row in 0..8 {
            for column in 0..8 {
                // SAFETY: `row` and `column` are within the 8 x 8 squares, which are valid (trait contract).
                unsafe {
                    to.add(column * to_stride + row)
                        .write(*from.add(row * from_stride + column))
                }
            }
        }
    }

    #[inline(always)]
    fn plus_one(bits: Self::Int) -> Self::Int {
        bits.map(|bits| bits.wrapping_add(1))
    }

    #[inline(always)]
    fn from_bits(bits: Self::Int) -> Self {
        Portable(bits.map(f32::from_bits))
    }

    #[inline(always)]
    fn from_int(bits: Self::Int) -> Self {
        Portable(bits.map(|bits| bits as i32 as f32))
    }

    #[inline(always)]
    fn table(values: &[f32; 16], scale: Self) -> Self::Table {
        values.map(|value| value * scale.0[0])
    }

    #[inline(always)]
    fn lookup(table: Self::Table, bits: Self::Int) -> Self {
        Portable(bits.map(|bits| table[(bits & 15) as usize]))
    }

    #[inline(always)]
    fn line(d: Self, m: Self) -> Self::Line {
        (d, m)
    }

    #[inline(always)]
    fn low4((d, m): Self::Line, bits: Self::Int) -> Self {
        Self::from_int(Self::and(bits, 15)).mul_add(d, m)
    }

    #[inline(always)]
    fn high4((d, m): Self::Line, bits: Self::Int) -> Self {
        Self::from_int(Self::shr(bits, 4)).mul_add(d, m)
    }

    #[inline(always)]
    fn low5((d, m): Self::Line, bits: Self::Int, fifth: Self::Mask) -> Self {
        let fifth = fifth.map(|fifth| u32::from(fifth) << 4);
        Self::from_int(Self::or(Self::and(bits, 15), fifth)).mul_add(d, m)
    }

    #[inline(always)]
    fn high5(line: Self::Line, bits: Self::Int, fifth: Self::Mask) -> Self {
        Self::low5(line, Self::shr(bits, 4), fifth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_converts_every_value() {
        for bits in 0..=u16::MAX {
            let (got, expected) = (half_to_f32(bits.to_le_bytes()), f16::from_bits(bits).to_f32());
            assert!(
                got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(),
                "{bits:#x}: {got}"
            );
        }
    }
}

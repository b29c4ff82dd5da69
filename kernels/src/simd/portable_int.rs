//! Portable integers in plain Rust, which also define the semantics of [`IntSimd`].

use super::IntSimd;
use super::portable::Portable;

/// A register of 32 bytes as an array.
#[derive(Clone, Copy)]
pub(crate) struct PortableInt([u8; 32]);

impl PortableInt {
    #[inline(always)]
    fn map2(self, other: Self, f: impl Fn(u8, u8) -> u8) -> Self {
        PortableInt(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    #[inline(always)]
    fn from_i16(x: [i16; 16]) -> Self {
        PortableInt(std::array::from_fn(|i| x[i / 2].to_le_bytes()[i % 2]))
    }

    #[inline(always)]
    fn to_i16(self) -> [i16; 16] {
        std::array::from_fn(|i| i16::from_le_bytes([self.0[2 * i], self.0[2 * i + 1]]))
    }

    #[inline(always)]
    fn from_i32(x: [i32; 8]) -> Self {
        PortableInt(std::array::from_fn(|i| x[i / 4].to_le_bytes()[i % 4]))
    }

    #[inline(always)]
    fn to_i32(self) -> [i32; 8] {
        std::array::from_fn(|i| i32::from_le_bytes(std::array::from_fn(|j| self.0[4 * i + j])))
    }
}

impl IntSimd for PortableInt {
    type Float = Portable;
    const UNROLLED: bool = false;
    // Each takes two of the 16 registers of the baseline.
    const REGISTERS: usize = 8;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: `p` is valid for reads of 32 bytes (trait contract).
        PortableInt(unsafe { p.cast::<[u8; 32]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut u8) {
        // SAFETY: `p` is valid for writes of 32 bytes (trait contract).
        unsafe { p.cast::<[u8; 32]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn load_nibbles(p: *const u8) -> Self {
        // SAFETY: `p` is valid for reads of 16 bytes (trait contract).
        let bytes = unsafe { p.cast::<[u8; 16]>().read_unaligned() };
        PortableInt(std::array::from_fn(|i| bytes[i % 16] >> (i / 16 * 4) & 15))
    }

    #[inline(always)]
    unsafe fn load_nibbles_by_8(p: *const u8) -> Self {
        // SAFETY: `p` is valid for reads of 16 bytes (trait contract).
        let bytes = unsafe { p.cast::<[u8; 16]>().read_unaligned() };
        PortableInt(std::array::from_fn(|i| {
            bytes[i / 16 * 8 + i % 8] >> (i / 8 % 2 * 4) & 15
        }))
    }

    #[inline(always)]
    unsafe fn load_bit_pairs(p: *const u8) -> Self {
        // SAFETY: `p` is valid for reads of 8 bytes (trait contract).
        let bytes = unsafe { p.cast::<[u8; 8]>().read_unaligned() };
        PortableInt(std::array::from_fn(|i| bytes[i / 4] >> (i % 4 * 2) & 3))
    }

    #[inline(always)]
    unsafe fn splat(x: u8) -> Self {
        PortableInt([x; 32])
    }

    #[inline(always)]
    unsafe fn words(x: i16) -> Self {
        Self::from_i16([x; 16])
    }

    #[inline(always)]
    unsafe fn broadcast(p: *const u8) -> Self {
        // SAFETY: `p` is valid for reads of 4 bytes (trait contract).
        let bytes = unsafe { p.cast::<[u8; 4]>().read_unaligned() };
        PortableInt(std::array::from_fn(|i| bytes[i % 4]))
    }

    #[inline(always)]
    unsafe fn from_words(words: [u64; 4]) -> Self {
        PortableInt(std::array::from_fn(|i| words[i / 8].to_le_bytes()[i % 8]))
    }

    #[inline(always)]
    unsafe fn from_bits(bits: u32) -> Self {
        PortableInt(std::array::from_fn(|i| if bits >> i & 1 != 0 { 255 } else { 0 }))
    }

    #[inline(always)]
    unsafe fn from_floats(x: [Portable; 4]) -> [Self; 2] {
        let rounded = |i: usize| x[i / 8].lanes()[i % 8].round_ties_even() as i16;
        [0, 1].map(|odd| Self::from_i16(std::array::from_fn(|i| rounded(2 * i + odd))))
    }

    #[inline(always)]
    unsafe fn gather_f16(p: *const u8, stride: usize) -> Portable {
        // SAFETY: two bytes at each of the 8 addresses are readable (trait contract).
        unsafe {
            let halves: [[u8; 2]; 8] = std::array::from_fn(|i| p.add(i * stride).cast::<[u8; 2]>().read_unaligned());
            <Portable as super::Simd>::load_f16(halves.as_ptr().cast())
        }
    }

    #[inline(always)]
    unsafe fn load_even_odd_i8(p: *const u8) -> [Portable; 2] {
        // SAFETY: `p` is valid for reads of 16 bytes (trait contract), and each array has 8 floats.
        unsafe {
            let bytes = p.cast::<[i8; 16]>().read_unaligned();
            [0, 1].map(|odd| {
                let lanes: [f32; 8] = std::array::from_fn(|i| f32::from(bytes[2 * i + odd]));
                <Portable as super::Simd>::load(lanes.as_ptr())
            })
        }
    }

    #[inline(always)]
    unsafe fn broadcast_halves(rows: &[[f32; 8]; 2], i: usize) -> Portable {
        let lanes: [f32; 8] = std::array::from_fn(|lane| rows[lane / 4][i]);
        // SAFETY: `lanes` has 8 floats.
        unsafe { <Portable as super::Simd>::load(lanes.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        self.map2(other, |a, b| a & b)
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        self.map2(other, |a, b| a | b)
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self.map2(other, |a, b| a ^ b)
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.map2(other, u8::wrapping_add)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.map2(other, u8::wrapping_sub)
    }

    #[inline(always)]
    fn at_least(self, other: Self) -> Self {
        self.map2(other, |a, b| if a >= b { 255 } else { 0 })
    }

    #[inline(always)]
    fn shl(self, n: u32) -> Self {
        Self::from_i16(self.to_i16().map(|x| x << n))
    }

    #[inline(always)]
    fn shr(self, n: u32) -> Self {
        Self::from_i16(self.to_i16().map(|x| (x as u16 >> n) as i16))
    }

    #[inline(always)]
    fn lookup(self, table: &[i8; 16]) -> Self {
        PortableInt(self.0.map(|i| table[usize::from(i & 15)] as u8))
    }

    #[inline(always)]
    fn widen(self) -> [Self; 2] {
        [0, 1].map(|odd| Self::from_i16(std::array::from_fn(|i| i16::from(self.0[2 * i + odd]))))
    }

    #[inline(always)]
    fn widen_signed(self) -> [Self; 2] {
        [0, 1].map(|odd| Self::from_i16(std::array::from_fn(|i| i16::from(self.0[2 * i + odd] as i8))))
    }

    #[inline(always)]
    fn multiply_pairs(self, other: Self) -> Self {
        let (a, b) = (self.to_i16(), other.to_i16());
        let product = |i: usize| i32::from(a[i]) * i32::from(b[i]);
        Self::from_i32(std::array::from_fn(|i| product(2 * i).wrapping_add(product(2 * i + 1))))
    }

    #[inline(always)]
    fn multiply_bytes(self, other: Self) -> Self {
        let product = |i: usize| i16::from(self.0[i]) * i16::from(other.0[i] as i8);
        Self::from_i16(std::array::from_fn(|i| {
            product(2 * i).saturating_add(product(2 * i + 1))
        }))
    }

    #[inline(always)]
    fn add16(self, other: Self) -> Self {
        let (a, b) = (self.to_i16(), other.to_i16());
        Self::from_i16(std::array::from_fn(|i| a[i].wrapping_add(b[i])))
    }

    #[inline(always)]
    fn transpose(registers: [Self; 8]) -> [Self; 8] {
        std::array::from_fn(|i| PortableInt(std::array::from_fn(|at| registers[at / 4].0[4 * i + at % 4])))
    }

    #[inline(always)]
    fn add32(self, other: Self) -> Self {
        let (a, b) = (self.to_i32(), other.to_i32());
        Self::from_i32(std::array::from_fn(|i| a[i].wrapping_add(b[i])))
    }

    #[inline(always)]
    fn sub32(self, other: Self) -> Self {
        let (a, b) = (self.to_i32(), other.to_i32());
        Self::from_i32(std::array::from_fn(|i| a[i].wrapping_sub(b[i])))
    }

    #[inline(always)]
    fn shl32(self, n: u32) -> Self {
        Self::from_i32(self.to_i32().map(|x| x << n))
    }

    #[inline(always)]
    fn to_floats(self) -> Portable {
        let lanes = self.to_i32().map(|x| x as f32);
        // SAFETY: `lanes` has 8 floats.
        unsafe { <Portable as super::Simd>::load(lanes.as_ptr()) }
    }

    #[inline(always)]
    fn to_float_bits(self) -> Portable {
        let lanes = self.to_i32().map(|x| f32::from_bits(x as u32));
        // SAFETY: `lanes` has 8 floats.
        unsafe { <Portable as super::Simd>::load(lanes.as_ptr()) }
    }
}

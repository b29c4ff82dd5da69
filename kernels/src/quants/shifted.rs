//! Parts shared by IQ4_K, IQ5_K, and IQ6_K, which have a scale for each 16 values, and IQ4_KS and IQ5_KS, which have
//! one for each 32. A flag next to the scale shifts the table of the values.

use crate::layout::groups::{GroupScales, load_group_bytes};
use crate::layout::runs::{RUNS, Scales};
use crate::simd::{IntSimd, Simd};

/// Number of groups of 16 values in a block.
pub(super) const GROUPS: usize = 16;

/// Splits 16 6-bit scales of IQ4_K and IQ5_K by even and odd groups. The low 4 bits of group `g` are nibble
/// `g` of `low`, and the high 2 bits are bits `2 g` and `2 g + 1` of `high`.
#[inline(always)]
pub(super) fn even_and_odd_scales(low: [u8; 8], high: [u8; 4]) -> [[u8; RUNS]; 2] {
    const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    let low = u64::from_le_bytes(low);
    // Moves nibble `i` to byte `i`.
    let mut bits = u64::from(u32::from_le_bytes(high));
    for (shift, mask) in [(16, 0x0000_ffff_0000_ffff), (8, 0x00ff_00ff_00ff_00ff), (4, LOW)] {
        bits = (bits | bits << shift) & mask;
    }
    let even = low & LOW | (bits & (LOW / 15 * 3)) << 4;
    let odd = low >> 4 & LOW | (bits & (LOW / 15 * 12)) << 2;
    [even.to_le_bytes(), odd.to_le_bytes()]
}

/// Returns the 6-bit scales minus 32 in the order of the groups.
pub(super) fn six_bit_scales(low: [u8; 8], high: [u8; 4]) -> [i8; GROUPS] {
    let halves = even_and_odd_scales(low, high);
    std::array::from_fn(|g| halves[g % 2][g / 2] as i8 - 32)
}

/// Packs scales of at least -32 and at most 31 into low 4 and high 2 bits.
pub(super) fn packed_scales(scales: &[i8; GROUPS]) -> ([u8; 8], [u8; 4]) {
    let scale = |g: usize| (scales[g] + 32) as u8;
    (
        std::array::from_fn(|i| scale(2 * i) & 15 | (scale(2 * i + 1) & 15) << 4),
        std::array::from_fn(|i| (0..4).fold(0, |byte, j| byte | (scale(4 * i + j) >> 4) << (2 * j))),
    )
}

/// Stores the 6-bit scales minus 32, times `d`, as [`set_shifted_scales`] does.
///
/// # Safety
/// The CPU supports `V`.
#[inline(always)]
pub(super) unsafe fn set_six_bit_scales<V: Simd>(
    d: V,
    (low, high): (&[u8; 8], &[u8; 4]),
    flags: [u8; 2],
    shift: f32,
    to: &mut Scales,
) {
    let halves = even_and_odd_scales(*low, *high);
    // SAFETY: each half has 8 bytes, and callers use registers of 8 floats.
    unsafe {
        let scales = halves.map(|half| V::from_int(V::load_u8(half.as_ptr())).sub(V::splat(32.0)).mul(d));
        set_shifted_scales(scales, u16::from_le_bytes(flags), shift, to);
    }
}

/// Stores the scales of even and of odd groups. Values of groups whose bit in `flags` is set are larger by `shift`
/// scales, which become minimums.
///
/// # Safety
/// The CPU supports `V`.
#[inline(always)]
pub(super) unsafe fn set_shifted_scales<V: Simd>(scales: [V; 2], flags: u16, shift: f32, to: &mut Scales) {
    for (half, scales) in scales.into_iter().enumerate() {
        // SAFETY: `to` has 8 floats for each half, and callers use registers of 8 floats.
        unsafe {
            scales.store(to.scales[half].as_mut_ptr());
            let is_shifted = V::mask(every_second_bit(flags >> half), 0);
            let mins = V::splat(0.0).add_where(is_shifted, scales.mul(V::splat(shift)));
            mins.store(to.mins[half].as_mut_ptr());
        }
    }
}

/// Splits the 8-bit scale of IQ4_KS and IQ5_KS: an odd multiple of the row's scale, and the flag.
#[inline(always)]
pub(super) fn scale_and_flag(byte: u8) -> (i8, bool) {
    (((byte & 254) ^ 128) as i8 + 1, byte & 1 != 0)
}

/// Packs an odd multiple of the row's scale and the flag, as [`scale_and_flag`] splits them.
#[inline(always)]
pub(super) fn byte_of(scale: i8, is_shifted: bool) -> u8 {
    (scale - 1) as u8 ^ 128 | u8::from(is_shifted)
}

/// Decodes 8-bit scales: returns the scales, and as minimums `shift` times the scales where the flag is set.
///
/// # Safety
/// The CPU supports `V`.
#[inline(always)]
unsafe fn scales_and_mins<V: Simd>(d: V, bits: V::Int, shift: f32) -> [V; 2] {
    // SAFETY: the CPU supports `V` (function contract).
    unsafe {
        let scales = V::from_int(V::and(bits, 254)).sub(V::splat(127.0)).mul(d);
        let mins = V::splat(0.0).add_where(V::has_bit(bits, 1), scales.mul(V::splat(shift)));
        [scales, mins]
    }
}

/// Stores the scales and minimums of a block of IQ4_KS or IQ5_KS in a row with scale `d`.
///
/// # Safety
/// The CPU supports `V`.
#[inline(always)]
pub(super) unsafe fn set_scales_of_row<V: Simd>(d: [u8; 4], bytes: &[u8; RUNS], shift: f32, to: &mut Scales) {
    // SAFETY: `bytes`, `scales[0]`, and `mins[0]` have 8 elements, and callers use registers of 8 floats.
    unsafe {
        let d = V::splat(f32::from_le_bytes(d));
        let [scales, mins] = scales_and_mins(d, V::load_u8(bytes.as_ptr()), shift);
        scales.store(to.scales[0].as_mut_ptr());
        mins.store(to.mins[0].as_mut_ptr());
    }
}

/// Stores the scales and minimums of a block of a row group. `at` is the offset of the 8-bit scales.
///
/// # Safety
/// - The CPU supports `V`, and `to` is valid for writes.
/// - `p` points to a block of a row group that starts with an f32 and has at least `at + 8` bytes per row.
#[inline(always)]
pub(super) unsafe fn set_group_scales_of_row<V: Simd>(p: *const u8, at: usize, shift: f32, to: *mut GroupScales) {
    // SAFETY: the block starts with the f32 of 8 rows, and byte `at + g` is part of it (function contract).
    unsafe {
        let d = V::load(p.cast());
        for g in 0..RUNS {
            let [scales, mins] = scales_and_mins(d, load_group_bytes::<V>(p, at + g), shift);
            GroupScales::set(to, g, scales);
            GroupScales::set_min(to, g, mins);
        }
    }
}

/// Moves bit `2 i` to bit `i`.
#[inline(always)]
fn every_second_bit(bits: u16) -> u32 {
    let bits = u32::from(bits) & 0x5555;
    let bits = (bits | bits >> 1) & 0x3333;
    let bits = (bits | bits >> 2) & 0x0f0f;
    (bits | bits >> 4) & 0xff
}

/// Returns the XOR of two tables. A further index bit selects between the tables by combining lookups.
pub(super) const fn xor(a: [i8; 16], b: [i8; 16]) -> [i8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = a[i] ^ b[i];
        i += 1;
    }
    table
}

/// Returns entries `16 part..16 part + 16` of a table.
pub(super) const fn part<const N: usize>(values: &[i8; N], part: usize) -> [i8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = values[16 * part + i];
        i += 1;
    }
    table
}

/// Returns 255 for each byte whose low nibble has bit `bit` set, and 0 elsewhere.
#[inline(always)]
pub(super) fn nibble_has_bit<V: IntSimd>(nibbles: V, bit: u32) -> V {
    const MASKS: [[i8; 16]; 2] = [
        [0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1],
        [0, 0, -1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0, -1, -1],
    ];
    nibbles.lookup(&MASKS[bit as usize])
}

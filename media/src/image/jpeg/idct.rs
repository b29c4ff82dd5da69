//! Inverse cosine transform of 8 x 8 blocks: the accurate integer transform of libjpeg (Loeffler, Ligtenberg, and
//! Moschytz with 13 fractional bits), bit for bit.

/// Fractional bits of the constants.
const CONST_BITS: u32 = 13;
/// Fractional bits of the results of the first pass.
const PASS_BITS: u32 = 2;

/// Transforms 8 values. Results have [`CONST_BITS`] more fractional bits.
#[inline(always)]
fn transform(x: [i32; 8]) -> [i32; 8] {
    let times = i32::wrapping_mul;
    let z = times(x[2].wrapping_add(x[6]), 4433);
    let (even2, even3) = (z.wrapping_sub(times(x[6], 15137)), z.wrapping_add(times(x[2], 6270)));
    let (even0, even1) = (
        x[0].wrapping_add(x[4]).wrapping_shl(CONST_BITS),
        x[0].wrapping_sub(x[4]).wrapping_shl(CONST_BITS),
    );
    let even = [
        even0.wrapping_add(even3),
        even1.wrapping_add(even2),
        even1.wrapping_sub(even2),
        even0.wrapping_sub(even3),
    ];
    let (z1, z2) = (x[7].wrapping_add(x[1]), x[5].wrapping_add(x[3]));
    let (z3, z4) = (x[7].wrapping_add(x[3]), x[5].wrapping_add(x[1]));
    let z5 = times(z3.wrapping_add(z4), 9633);
    let (z1, z2) = (times(z1, -7373), times(z2, -20995));
    let (z3, z4) = (times(z3, -16069).wrapping_add(z5), times(z4, -3196).wrapping_add(z5));
    let odd = [
        times(x[1], 12299).wrapping_add(z1).wrapping_add(z4),
        times(x[3], 25172).wrapping_add(z2).wrapping_add(z3),
        times(x[5], 16819).wrapping_add(z2).wrapping_add(z4),
        times(x[7], 2446).wrapping_add(z1).wrapping_add(z3),
    ];
    [
        even[0].wrapping_add(odd[0]),
        even[1].wrapping_add(odd[1]),
        even[2].wrapping_add(odd[2]),
        even[3].wrapping_add(odd[3]),
        even[3].wrapping_sub(odd[3]),
        even[2].wrapping_sub(odd[2]),
        even[1].wrapping_sub(odd[1]),
        even[0].wrapping_sub(odd[0]),
    ]
}

/// Computes the samples of a block from its coefficients, and writes them to `out`, whose rows are `stride` bytes.
pub(super) fn samples(coefficients: &[i16; 64], quantizers: &[u16; 64], out: &mut [u8], stride: usize) {
    if coefficients[1..] == [0; 63] {
        let value = i32::from(coefficients[0]).wrapping_mul(i32::from(quantizers[0]));
        return fill(out, stride, sample(value.wrapping_shl(PASS_BITS), PASS_BITS + 3));
    }
    let mut columns = [0_i32; 64];
    for x in 0..8 {
        let value = |y: usize| i32::from(coefficients[8 * y + x]).wrapping_mul(i32::from(quantizers[8 * y + x]));
        let column: [i32; 8] = std::array::from_fn(value);
        let results = if column[1..] == [0; 7] {
            [column[0].wrapping_shl(PASS_BITS); 8]
        } else {
            const SHIFT: u32 = CONST_BITS - PASS_BITS;
            transform(column).map(|value| value.wrapping_add(1 << (SHIFT - 1)) >> SHIFT)
        };
        for (y, value) in results.into_iter().enumerate() {
            columns[8 * y + x] = value;
        }
    }
    let (rows, _) = columns.as_chunks::<8>();
    for (row, target) in rows.iter().zip(out.chunks_mut(stride)) {
        let values = transform(*row).map(|value| sample(value, CONST_BITS + PASS_BITS + 3));
        target[..8].copy_from_slice(&values);
    }
}

/// Writes a block of one value.
pub(super) fn fill(out: &mut [u8], stride: usize, value: u8) {
    out.chunks_mut(stride).take(8).for_each(|row| row[..8].fill(value));
}

/// Rounds a value to a sample. Samples are centered at 128.
#[inline(always)]
fn sample(value: i32, shift: u32) -> u8 {
    let rounded = value.wrapping_add(1 << (shift - 1)) >> shift;
    rounded.saturating_add(128).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_close_to_the_definition() {
        let mut coefficients = [0_i16; 64];
        for (i, value) in coefficients.iter_mut().enumerate() {
            *value = ((i * i * 31 + 7 * i) % 41) as i16 - 20;
        }
        let mut quantizers = [3; 64];
        quantizers[0] = 16;
        let mut out = [0; 80];
        samples(&coefficients, &quantizers, &mut out, 10);
        let basis = |x: usize, u: usize| {
            let scale = if u == 0 { 0.5_f64.sqrt() } else { 1.0 };
            scale * ((2 * x + 1) as f64 * u as f64 * std::f64::consts::PI / 16.0).cos() / 2.0
        };
        for y in 0..8 {
            for x in 0..8 {
                let term = |i: usize| {
                    let value = f64::from(coefficients[i]) * f64::from(quantizers[i]);
                    value * basis(x, i % 8) * basis(y, i / 8)
                };
                let expected: f64 = 128.0 + (0..64).map(term).sum::<f64>();
                let found = f64::from(out[10 * y + x]);
                assert!(
                    (found - expected.clamp(0.0, 255.0)).abs() <= 1.0,
                    "{x}, {y}: {found} {expected}"
                );
            }
        }
        samples(&[0; 64], &quantizers, &mut out, 10);
        assert_eq!((out[0], out[77], out[8]), (128, 128, 0));
    }
}

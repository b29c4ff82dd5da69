//! Inverse cosine transform of 8 x 8 blocks: the accurate integer transform of libjpeg (Loeffler, Ligtenberg, and
//! Moschytz with 13 fractional bits), bit for bit.

/// Fractional bits of the constants.
const CONST_BITS: u32 = 13;
/// Fractional bits of the results of the first pass.
const PASS_BITS: u32 = 2;

/// Transforms the columns of a block. Results are rounded, with `shift` less fractional bits.
///
/// All factors are products of 16-bit numbers, which compilers turn into vectors of columns.
#[inline(always)]
fn transform(x: &[[i16; 8]; 8], shift: u32) -> [[i16; 8]; 8] {
    let mut out = [[0; 8]; 8];
    for i in 0..8 {
        let times = |value: i16, factor: i16| i32::from(value) * i32::from(factor);
        let scaled = |value: i16| i32::from(value) << CONST_BITS;
        let even2 = times(x[2][i], 4433) + times(x[6][i], 4433 - 15137);
        let even3 = times(x[2][i], 4433 + 6270) + times(x[6][i], 4433);
        let (sum, difference) = (x[0][i].wrapping_add(x[4][i]), x[0][i].wrapping_sub(x[4][i]));
        let even = [
            scaled(sum).wrapping_add(even3),
            scaled(difference).wrapping_add(even2),
            scaled(difference).wrapping_sub(even2),
            scaled(sum).wrapping_sub(even3),
        ];
        let [z3, z4] = [x[7][i].wrapping_add(x[3][i]), x[5][i].wrapping_add(x[1][i])];
        let both3 = times(z3, 9633 - 16069) + times(z4, 9633);
        let both4 = times(z3, 9633) + times(z4, 9633 - 3196);
        let odd = [
            (times(x[1][i], 12299 - 7373) + times(x[7][i], -7373)).wrapping_add(both4),
            (times(x[3][i], 25172 - 20995) + times(x[5][i], -20995)).wrapping_add(both3),
            (times(x[5][i], 16819 - 20995) + times(x[3][i], -20995)).wrapping_add(both4),
            (times(x[7][i], 2446 - 7373) + times(x[1][i], -7373)).wrapping_add(both3),
        ];
        for k in 0..4 {
            let rounded = |value: i32| (value.wrapping_add(1 << (shift - 1)) >> shift).clamp(-32768, 32767) as i16;
            out[k][i] = rounded(even[k].wrapping_add(odd[k]));
            out[7 - k][i] = rounded(even[k].wrapping_sub(odd[k]));
        }
    }
    out
}

#[inline(always)]
fn transposed(x: &[[i16; 8]; 8]) -> [[i16; 8]; 8] {
    let mut out = [[0; 8]; 8];
    for (i, row) in x.iter().enumerate() {
        for (j, &value) in row.iter().enumerate() {
            out[j][i] = value;
        }
    }
    out
}

/// Computes the samples of a block from its coefficients, and writes them to `out`, whose rows are `stride` bytes.
pub(super) fn samples(coefficients: &[i16; 64], quantizers: &[u16; 64], out: &mut [u8], stride: usize) {
    if coefficients[1..] == [0; 63] {
        let value = coefficients[0].wrapping_mul(quantizers[0] as i16);
        return fill(out, stride, sample((i32::from(value) + 4) >> 3));
    }
    let mut block = [[0; 8]; 8];
    let pairs = coefficients
        .as_chunks::<8>()
        .0
        .iter()
        .zip(quantizers.as_chunks::<8>().0);
    for (row, (values, factors)) in block.iter_mut().zip(pairs) {
        for i in 0..8 {
            row[i] = values[i].wrapping_mul(factors[i] as i16);
        }
    }
    let rows = if is_low(coefficients) {
        low_samples(&block)
    } else {
        all_samples(&block)
    };
    for (row, target) in rows.iter().zip(out.chunks_mut(stride)) {
        target[..8].copy_from_slice(&row.map(|value| sample(value.into())));
    }
}

/// Returns true if all coefficients but the 4 x 4 of the lowest frequencies are 0.
fn is_low(coefficients: &[i16; 64]) -> bool {
    let (rows, _) = coefficients.as_chunks::<8>();
    let upper = rows[..4]
        .iter()
        .fold(0, |all, row| row[4..].iter().fold(all, |all, value| all | value));
    rows[4..].iter().flatten().fold(upper, |all, value| all | value) == 0
}

fn all_samples(block: &[[i16; 8]; 8]) -> [[i16; 8]; 8] {
    let columns = transform(block, CONST_BITS - PASS_BITS);
    transposed(&transform(&transposed(&columns), CONST_BITS + PASS_BITS + 3))
}

/// Like [`all_samples`] for a block of [low](is_low) coefficients. Products with zeros are skipped.
fn low_samples(block: &[[i16; 8]; 8]) -> [[i16; 8]; 8] {
    let low = |x: &[[i16; 8]; 8]| [x[0], x[1], x[2], x[3], [0; 8], [0; 8], [0; 8], [0; 8]];
    let columns = transform(&low(block), CONST_BITS - PASS_BITS);
    transposed(&transform(&low(&transposed(&columns)), CONST_BITS + PASS_BITS + 3))
}

/// Writes a block of one value.
pub(super) fn fill(out: &mut [u8], stride: usize, value: u8) {
    out.chunks_mut(stride).take(8).for_each(|row| row[..8].fill(value));
}

/// Limits a value to a sample. Samples are centered at 128.
#[inline(always)]
fn sample(value: i32) -> u8 {
    (value + 128).clamp(0, 255) as u8
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

    #[test]
    fn low_blocks_have_the_samples_of_all_blocks() {
        let mut coefficients = [0; 64];
        for i in 0..16 {
            coefficients[8 * (i / 4) + i % 4] = (i as i16 * 977 % 601) - 300;
        }
        let block: [[i16; 8]; 8] = std::array::from_fn(|i| std::array::from_fn(|j| coefficients[8 * i + j]));
        assert!(is_low(&coefficients));
        assert_eq!(low_samples(&block), all_samples(&block));
        for at in [4, 31, 32, 63] {
            let mut other = coefficients;
            other[at] = -1;
            assert!(!is_low(&other), "{at}");
        }
    }
}

//! Random quantized blocks of every type. Random bytes are valid codes in all types; scales are set to obtain
//! the desired magnitude.

use kernels::{GgmlType, dequantize_row, quantize_row};

use crate::random::SplitMix64;

/// Location and format of a scale in a block.
#[derive(Clone, Copy)]
enum Scale {
    /// f32 at the start.
    Single,
    /// f16 at a byte offset; stores the scale times the factor.
    Half(usize, f32),
    /// Power of two, stored as a float exponent (MXFP4).
    Exponent(usize),
    /// Four 8-bit floats with 4 exponent and 3 mantissa bits (NVFP4).
    Small(usize),
    /// f16 in the high nibbles of four words (IQ1_M).
    Nibbles(usize),
}

/// Returns the scales of a type's blocks. Minimums are set together with scales such that values are centered
/// at 0. Empty for float types and types without scales.
fn scales(ty: GgmlType) -> &'static [Scale] {
    use GgmlType::*;
    use Scale::*;
    match ty {
        Q4_0 | Q5_0 | Q8_0 | Q1_0 | Q2_0 => &[Half(0, 1.0)],
        IQ1_S | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_NL | IQ4_XS => &[Half(0, 1.0)],
        IQ4_K | IQ5_K | IQ6_K => &[Half(0, 1.0)],
        IQ4_KS_D | IQ5_KS_D => &[Single],
        Q4_1 => &[Half(0, 1.0), Half(2, -7.5)],
        Q5_1 => &[Half(0, 1.0), Half(2, -15.5)],
        Q2_K => &[Half(80, 1.0), Half(82, 1.5)],
        Q3_K => &[Half(108, 1.0)],
        Q4_K => &[Half(0, 1.0), Half(2, 7.5)],
        Q5_K => &[Half(0, 1.0), Half(2, 15.5)],
        Q6_K => &[Half(208, 1.0)],
        IQ1_M => &[Nibbles(48)],
        TQ1_0 => &[Half(52, 1.0)],
        TQ2_0 => &[Half(64, 1.0)],
        MXFP4 => &[Exponent(0)],
        NVFP4 => &[Small(0)],
        _ => &[],
    }
}

impl Scale {
    fn put(self, block: &mut [u8], scale: f32) {
        match self {
            Scale::Single => block[..4].copy_from_slice(&scale.to_le_bytes()),
            Scale::Half(at, times) => block[at..at + 2].copy_from_slice(&half(scale * times).to_le_bytes()),
            Scale::Exponent(at) => block[at] = (scale.to_bits() >> 23) as u8,
            Scale::Small(at) => block[at..at + 4].fill(small_float(scale)),
            Scale::Nibbles(at) => {
                let bits = half(scale);
                for i in 0..4 {
                    let high = &mut block[at + 2 * i + 1];
                    *high = *high & 0x0f | (bits >> (4 * i) << 4) as u8;
                }
            }
        }
    }
}

/// Returns the bits of the nearest f16.
fn half(x: f32) -> u16 {
    let mut bytes = [0; 2];
    quantize_row(GgmlType::F16, &[x], &mut bytes);
    u16::from_le_bytes(bytes)
}

/// Returns the greatest positive 8-bit float (4 exponent bits with bias 7, 3 mantissa bits) not above a
/// value, but at least the smallest one.
fn small_float(x: f32) -> u8 {
    let smallest_normal = 2f32.powi(-6);
    if x < smallest_normal {
        return (x * 512.0).clamp(1.0, 7.0) as u8;
    }
    // f32 exponents have a bias of 127.
    ((x.min(256.0).to_bits() >> 20) - ((127 - 7) << 3)) as u8
}

/// Blocks per piece. Each piece has its own generator state, so that pieces can be generated in any order.
const BLOCKS: usize = 64;

/// Generator of random rows of one type.
#[derive(Clone, Copy, Debug)]
pub(super) struct RandomBlocks {
    ty: GgmlType,
    seed: u64,
    /// Largest magnitude of floats; scale of quantized blocks.
    size: f32,
}

impl RandomBlocks {
    /// Creates a generator of values with mean 0 and the given standard deviation, determined by type and
    /// seed.
    pub fn new(ty: GgmlType, seed: u64, deviation: f32) -> RandomBlocks {
        let mut random = RandomBlocks { ty, seed, size: 1.0 };
        let mut bytes = vec![0; BLOCKS * ty.block_bytes()];
        random.fill(0, &mut bytes);
        let mut values = vec![0.0; BLOCKS * ty.block_size()];
        dequantize_row(ty, &bytes, &mut values);
        let square = values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32;
        random.size = match scales(ty) {
            [] => deviation * 3f32.sqrt(),
            _ => deviation / square.sqrt(),
        };
        random
    }

    /// Returns the size in bytes of a piece of [`RandomBlocks::fill`].
    pub fn piece_bytes(&self) -> usize {
        BLOCKS * self.ty.block_bytes()
    }

    /// Fills whole blocks, starting at piece number `first`.
    pub fn fill(&self, first: usize, out: &mut [u8]) {
        for (i, piece) in out.chunks_mut(self.piece_bytes()).enumerate() {
            let mut random = SplitMix64(self.seed.wrapping_add(((first + i) as u64) << 32));
            match scales(self.ty) {
                [] => self.floats(&mut random, piece),
                scales => self.blocks(scales, &mut random, piece),
            }
        }
    }

    fn blocks(&self, scales: &[Scale], random: &mut SplitMix64, out: &mut [u8]) {
        let (words, rest) = out.as_chunks_mut::<8>();
        words.iter_mut().for_each(|w| *w = random.next_u64().to_le_bytes());
        let last = random.next_u64().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
        for block in out.chunks_exact_mut(self.ty.block_bytes()) {
            scales.iter().for_each(|scale| scale.put(block, self.size));
        }
    }

    fn floats(&self, random: &mut SplitMix64, out: &mut [u8]) {
        let mut values = [0.0; BLOCKS];
        let values = &mut values[..out.len() / self.ty.block_bytes()];
        values
            .iter_mut()
            .for_each(|v| *v = random.uniform(-self.size, self.size));
        quantize_row(self.ty, values, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(ty: GgmlType, deviation: f32) -> Vec<f32> {
        let n = 256 * 256;
        let mut bytes = vec![0; ty.row_bytes(n).unwrap()];
        RandomBlocks::new(ty, 7, deviation).fill(0, &mut bytes);
        let mut values = vec![f32::NAN; n];
        dequantize_row(ty, &bytes, &mut values);
        values
    }

    #[test]
    fn random_blocks_are_finite_with_expected_deviation() {
        for &ty in GgmlType::ALL.iter().filter(|&&ty| kernels::can_dequantize(ty)) {
            for deviation in [0.01, 0.1] {
                let values = values(ty, deviation);
                assert!(values.iter().all(|x| x.is_finite()), "{ty}");
                let mean = values.iter().sum::<f32>() / values.len() as f32;
                let square = values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32;
                // 8-bit scales are powers of two, or floats with few mantissa bits.
                let (low, high) = match ty {
                    GgmlType::MXFP4 | GgmlType::NVFP4 => (0.3, 1.1),
                    _ => (0.9, 1.1),
                };
                let ratio = square.sqrt() / deviation;
                assert!(
                    (low..high).contains(&ratio),
                    "{ty}: ratio {ratio} to deviation {deviation}"
                );
                // 2-bit codes represent -1 to 2, whose mean is half a scale, or 0.41 deviations.
                let limit = match ty {
                    GgmlType::TQ2_0 | GgmlType::Q2_0 => 0.45,
                    _ => 0.3,
                };
                assert!(
                    mean.abs() < limit * deviation,
                    "{ty}: mean {mean}, deviation {deviation}"
                );
            }
        }
    }

    #[test]
    fn pieces_equal_parts_of_the_whole() {
        for ty in [GgmlType::Q4_K, GgmlType::F16, GgmlType::Q6_K] {
            let random = RandomBlocks::new(ty, 3, 0.1);
            let n = random.piece_bytes();
            let mut whole = vec![0; 5 * n / 2 / ty.block_bytes() * ty.block_bytes()];
            random.fill(0, &mut whole);
            let mut second = vec![0; n];
            random.fill(1, &mut second);
            assert_eq!(whole[n..2 * n], second, "{ty}");
        }
    }
}

//! Blocks of quantized checkpoints that a GGUF type holds exactly, in a different order of their bits.

use super::packed::PackedData;
use super::view::View;

/// Exponent of MXFP4 blocks without a number.
const E8M0_NAN: u8 = 255;

/// Elements of a block of MXFP4.
pub const MXFP4_BLOCK: usize = 32;

/// Data of the blocks, in addition to the elements.
pub enum Repacked<'a> {
    /// An exponent for each block of 16 bytes.
    Mxfp4 { exponents: &'a [u8] },
    /// Blocks of the exact type of a matrix, of this many bytes.
    Packed(PackedData<'a>, usize),
}

impl Repacked<'_> {
    /// Writes consecutive blocks of a view of `bytes`. Returns the first scale that a block cannot hold, with the index
    /// of the block in `out`.
    pub fn fill(&self, view: &View, bytes: &[u8], start: usize, out: &mut [u8]) -> Option<(usize, f64)> {
        let (mut at, mut fault) = (0, None);
        let mut note = |scale: Option<f64>| {
            fault = fault.or(scale.map(|scale| (at, scale)));
            at += 1;
        };
        match self {
            Repacked::Mxfp4 { exponents } => {
                let mut blocks = out.as_chunks_mut::<17>().0.iter_mut();
                view.each(start..start + blocks.len(), |run| {
                    for (i, block) in run.indices().zip(&mut blocks) {
                        mxfp4(&bytes[i * 16..(i + 1) * 16], exponents[i], block);
                        note((exponents[i] == E8M0_NAN).then_some(f64::NAN));
                    }
                });
            }
            Repacked::Packed(data, n_bytes) => {
                let mut blocks = out.chunks_exact_mut(*n_bytes);
                view.each(start..start + blocks.len(), |run| {
                    for (i, block) in run.indices().zip(&mut blocks) {
                        data.block(i, block);
                        note(data.bad_scale(i));
                    }
                });
            }
        }
        fault
    }
}

/// Neighbors share a byte in the checkpoint; elements `i` and `i + 16` do in GGUF.
fn mxfp4(quants: &[u8], exponent: u8, block: &mut [u8; 17]) {
    let nibble = |i: usize| (quants[i / 2] >> (4 * (i % 2))) & 15;
    block[0] = exponent;
    for (i, byte) in block[1..].iter_mut().enumerate() {
        *byte = nibble(i) | nibble(i + 16) << 4;
    }
}

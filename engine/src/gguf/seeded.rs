//! Tiny models whose weights are a function of a seed and the tensor name. A GGUF header is enough to
//! regenerate the whole file.
//!
//! The function matches the generator of the conformance data, so recorded logits are comparable. All
//! arithmetic is f32, in the order written here.
//!
//! Default-sized weights make some graphs amplify rounding errors. A header can scale all weights by the
//! factor [`KEY_SCALE`].

use std::io::{self, Write};

use kernels::GgmlType;

use super::{Gguf, GgufError, GgufWriter, Metadata};
use crate::random::splitmix64;

/// Maximum size of a model from [`seeded_model`] in bytes. The models of the test suite take a few MB.
pub const MAX_BYTES: usize = 1 << 30;

/// Metadata key (f32): factor applied to every weight; default 1.
pub const KEY_SCALE: &str = "fixture.weight_scale";

/// Elements generated per step while streaming.
const CHUNK: usize = 4096;

/// Fills `out` with the leading `out.len()` weights of the tensor `name`, in file order.
pub fn fill_f32(name: &str, seed: u64, out: &mut [f32]) {
    Weights::new(name, seed, 1.0).fill(0, out);
}

/// Returns all weights of the tensor `name`, in file order, scaled by [`KEY_SCALE`] of `metadata`.
///
/// # Errors
/// Returns [`GgufError::WrongType`] if the value of [`KEY_SCALE`] is not a number.
pub fn weights_of(metadata: &Metadata, name: &str, n_elements: usize, seed: u64) -> Result<Vec<f32>, GgufError> {
    let mut values = vec![0.0; n_elements];
    Weights::new(name, seed, scale(metadata)?).fill(0, &mut values);
    Ok(values)
}

/// Returns [`KEY_SCALE`], or 1 if the key is missing.
fn scale(metadata: &Metadata) -> Result<f32, GgufError> {
    Ok(metadata.optional(KEY_SCALE)?.unwrap_or(1.0))
}

/// Writes a complete model for `header` and returns its length in bytes. Tensors must be F32, or I32 for
/// expert tables.
///
/// # Errors
/// Returns a [`GgufError`] if a tensor has an unsupported type, a key of the experts is missing, or `out` returns an
/// error.
pub fn write_seeded_model(header: &Gguf, seed: u64, out: &mut dyn Write) -> Result<u64, GgufError> {
    let mut writer = GgufWriter::with_metadata(header.metadata.clone());
    let scale = scale(&header.metadata)?;
    for t in header.tensors() {
        match t.ty {
            GgmlType::F32 => {
                let (weights, n) = (Weights::new(&t.name, seed, scale), t.n_elements());
                writer.add_tensor_with(t.name.clone(), t.ty, t.shape(), move |out| weights.write(n, out))?;
            }
            GgmlType::I32 => {
                writer.add_tensor(
                    t.name.clone(),
                    t.ty,
                    t.shape(),
                    experts_of_tokens(&header.metadata, t.shape())?,
                )?;
            }
            found => {
                return Err(GgufError::TensorType {
                    name: t.name.clone(),
                    expected: GgmlType::F32,
                    found,
                });
            }
        }
    }
    writer.write(out)
}

/// Generates the expert ids of each token as I32 (`ne[0]` distinct ids per token, shifted from token to
/// token). No other tensor of a model is an integer.
pub(crate) fn experts_of_tokens(metadata: &Metadata, ne: &[usize]) -> Result<Vec<u8>, GgufError> {
    let arch: String = metadata.require("general.architecture")?;
    let n_expert: u32 = metadata.require(&format!("{arch}.expert_count"))?;
    let n_used = ne.first().copied().unwrap_or(1).max(1);
    let number = |i: usize| ((i % n_used + i / n_used) % n_expert.max(1) as usize) as i32;
    Ok((0..ne.iter().product()).flat_map(|i| number(i).to_le_bytes()).collect())
}

/// Returns a complete model in memory, of at most [`MAX_BYTES`] bytes.
///
/// # Errors
/// Returns [`GgufError::ModelTooLarge`] for a larger model, or the errors of [`write_seeded_model`].
pub fn seeded_model(header: &Gguf, seed: u64) -> Result<Vec<u8>, GgufError> {
    let needed = header.required_len().map_or(0, |(_, len)| len);
    if needed > MAX_BYTES {
        return Err(GgufError::ModelTooLarge {
            needed,
            limit: MAX_BYTES,
        });
    }
    let mut out = Vec::with_capacity(needed);
    write_seeded_model(header, seed, &mut out)?;
    Ok(out)
}

/// Weight generator for one tensor.
#[derive(Clone, Copy)]
struct Weights {
    base: u64,
    is_ssm_a: bool,
    is_norm: bool,
    is_variance: bool,
    scale: f32,
}

impl Weights {
    fn new(name: &str, seed: u64, scale: f32) -> Self {
        Weights {
            base: hash_of_name(name) ^ seed,
            is_ssm_a: name.contains("ssm_a"),
            is_norm: name.contains("norm") && name.contains(".weight"),
            is_variance: name.ends_with("_var"),
            scale,
        }
    }

    /// Returns weight `i` in file order.
    fn at(self, i: u64) -> f32 {
        let r = splitmix64(self.base.wrapping_add(i));
        let u = (r >> 40) as f32 * (1.0 / 16_777_216.0);
        // Uniform with standard deviation 0.1.
        let mut v = (2.0 * u - 1.0) * 0.1 * 1.732_050_8;
        if self.is_ssm_a {
            v = -v.abs();
        }
        if self.is_norm {
            v += 1.0;
        }
        if self.is_variance {
            v = 1.0 + v.abs();
        }
        v * self.scale
    }

    fn fill(self, first: u64, out: &mut [f32]) {
        for (i, v) in out.iter_mut().enumerate() {
            *v = self.at(first.wrapping_add(i as u64));
        }
    }

    fn write(self, n: usize, out: &mut dyn Write) -> io::Result<()> {
        let mut chunk = [0; 4 * CHUNK];
        for first in (0..n).step_by(CHUNK) {
            let bytes = &mut chunk[..4 * CHUNK.min(n - first)];
            for (i, b) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
                *b = self.at((first + i) as u64).to_le_bytes();
            }
            out.write_all(bytes)?;
        }
        Ok(())
    }
}

/// Derives a seed from a tensor name (FNV-1a).
pub(crate) fn hash_of_name(name: &str) -> u64 {
    fnv1a64(name.as_bytes())
}

fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeded_weights_have_known_values() {
        let mut v = [0.0; 1];
        fill_f32("output.weight", 1, &mut v);
        assert_eq!(v[0], 0.090_198_6);
        // FNV-1a test vector.
        assert_eq!(fnv1a64(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn tensor_name_determines_sign_and_mean() {
        let mut v = [0.0; 1000];
        fill_f32("blk.0.ssm_a", 1, &mut v);
        assert!(v.iter().all(|&v| (-0.1733..=0.0).contains(&v)));
        fill_f32("blk.0.attn_norm.weight", 1, &mut v);
        assert!(v.iter().all(|&v| (0.8267..1.1733).contains(&v)));
        fill_f32("blk.0.attn_norm.bias", 1, &mut v);
        assert!(v.iter().all(|&v| v.abs() < 0.1733) && v.iter().any(|&v| v < 0.0));
    }

    #[test]
    fn weight_scale_key_scales_weights() {
        let mut metadata = Metadata::default();
        let mut v = [0.0; 3];
        fill_f32("a_norm.weight", 1, &mut v);
        assert_eq!(weights_of(&metadata, "a_norm.weight", 3, 1).unwrap(), v);
        metadata.insert(KEY_SCALE, 0.25f32);
        assert_eq!(
            weights_of(&metadata, "a_norm.weight", 3, 1).unwrap(),
            v.map(|v| v / 4.0)
        );
    }

    #[test]
    fn streamed_weights_match_filled_weights() {
        let n = 2 * CHUNK + 7;
        let mut filled = vec![0.0; n];
        fill_f32("token_embd.weight", 3, &mut filled);
        let mut streamed = Vec::new();
        Weights::new("token_embd.weight", 3, 1.0)
            .write(n, &mut streamed)
            .unwrap();
        let expected: Vec<u8> = filled.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(streamed, expected);
    }
}

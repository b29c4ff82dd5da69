//! Merging of low-rank adapters into the weights of a model file.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::PathBuf;

use kernels::GgmlType;
use rayon::prelude::*;

use super::AdapterError;
use super::error::check_file_kind;
use super::lora::{SUFFIX_A, SUFFIX_B};
use crate::finite::check_finite;
use crate::gguf::{FileKind, GgufError, GgufFile, GgufSet, GgufWriter, Metadata, TensorInfo};

/// Elements decoded at a time.
const BATCH: usize = 1 << 22;

/// Embedding table. The rows of its first factor belong to tokens.
const EMBEDDING: &str = "token_embd.weight";

/// Reason why an adapter cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A file cannot be read or written.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file is not an adapter for the model.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A factor does not match the model.
    #[error("{}: tensor {tensor}: {problem}", .path.display())]
    Factor {
        /// File of the adapter.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Problem of the tensor.
        problem: String,
    },
    /// The caller stopped the operation.
    #[error("stopped")]
    Stopped,
}

/// Adapters whose factors match the weights of a model file.
pub struct Merge<'a> {
    model: &'a GgufSet,
    terms: BTreeMap<&'a str, Vec<Term>>,
}

/// Low-rank term of a weight, with decoded factors.
struct Term {
    a: Vec<f32>,
    b: Vec<f32>,
    rank: usize,
    scale: f32,
    is_embedding: bool,
}

/// Adapter file with its scale.
#[derive(Debug)]
pub struct ScaledFactors<'a> {
    /// File of the model.
    pub file: &'a GgufFile,
    /// Scale of the adapter, multiplied by the `alpha / rank` of its file.
    pub scale: f32,
}

impl<'a> Merge<'a> {
    /// Matches adapters with the weights of a model.
    ///
    /// # Errors
    /// Returns an error if a file is not an adapter for the model's architecture, or a factor does not fit its weight.
    pub fn new(model: &'a GgufSet, adapters: &[ScaledFactors<'_>]) -> Result<Merge<'a>, MergeError> {
        let mut merge = Merge {
            model,
            terms: BTreeMap::new(),
        };
        for adapter in adapters {
            merge.add(adapter)?;
        }
        Ok(merge)
    }

    fn add(&mut self, adapter: &ScaledFactors<'_>) -> Result<(), MergeError> {
        let file = adapter.file;
        check_file_kind(file, FileKind::Adapter)?;
        let failed = |tensor: &str, problem: String| MergeError::Factor {
            path: file.path().to_owned(),
            tensor: tensor.to_owned(),
            problem,
        };
        let arch: &str = self.model.require("general.architecture")?;
        let of_adapter: &str = file.require("general.architecture")?;
        if arch != of_adapter {
            let problem = format!("the adapter is for architecture {of_adapter}, but the model is {arch}");
            return Err(failed("general.architecture", problem));
        }
        let alpha: f32 = file.optional("adapter.lora.alpha")?.unwrap_or(0.0);
        let weight = |info: &'_ TensorInfo| {
            let name = info
                .name
                .strip_suffix(SUFFIX_A)
                .or_else(|| info.name.strip_suffix(SUFFIX_B));
            name.map(str::to_owned).ok_or_else(|| info.name.clone())
        };
        let names: Result<BTreeSet<String>, String> = file.tensors().iter().map(weight).collect();
        let names = names.map_err(|name| failed(&name, "not a factor of a low-rank adapter".to_owned()))?;
        for name in &names {
            let factor = |suffix: &str| {
                let full = format!("{name}{suffix}");
                let info = file.tensor(&full);
                info.ok_or_else(|| failed(&full, "the tensor is missing".to_owned()))
            };
            let (a, b) = (factor(SUFFIX_A)?, factor(SUFFIX_B)?);
            let Some((_, info)) = self.model.tensor(name) else {
                return Err(failed(&a.name, format!("the model has no weight {name}")));
            };
            for info in [info, a, b] {
                if !kernels::can_decode(info.ty) {
                    return Err(failed(&info.name, format!("type {} cannot be decoded", info.ty)));
                }
            }
            let term = term(file, info, (a, b)).ok_or_else(|| {
                let (a, b, weight) = (a.shape(), b.shape(), info.shape());
                failed(
                    name,
                    format!("factors of shapes {a:?} and {b:?} do not fit a weight of shape {weight:?}"),
                )
            })?;
            for (info, values) in [(a, &term.a), (b, &term.b)] {
                check_finite(values)
                    .map_err(|error| failed(&info.name, format!("value {} is not a finite number", error.index)))?;
            }
            let own = if alpha == 0.0 { 1.0 } else { alpha / term.rank as f32 };
            let scale = adapter.scale * own;
            if !scale.is_finite() {
                return Err(failed(name, "the scale is not a finite number".to_owned()));
            }
            self.terms
                .entry(info.name.as_str())
                .or_default()
                .push(Term { scale, ..term });
        }
        Ok(())
    }

    /// Returns the number of changed weights.
    pub fn n_weights(&self) -> usize {
        self.terms.len()
    }

    /// Returns the number of elements of the model.
    pub fn n_elements(&self) -> usize {
        self.model.tensors().map(|(_, info)| info.n_elements()).sum()
    }

    /// Writes the model with changed weights. Changed weights of a quantized type become F16. `progress` is called with
    /// the number of elements written and stops the operation by returning false.
    ///
    /// # Errors
    /// Returns an error if writing fails, or `progress` stops the operation.
    pub fn write(&self, out: &mut dyn Write, progress: &dyn Fn(usize) -> bool) -> Result<u64, MergeError> {
        let kept = self
            .model
            .metadata()
            .iter()
            .filter(|(key, _)| !key.starts_with("split."));
        let metadata: Metadata = kept.map(|(key, value)| (key, value.clone())).collect();
        let (stopped, done) = (RefCell::new(false), RefCell::new(0));
        let mut writer = GgufWriter::with_metadata(metadata);
        for (_, info) in self.model.tensors() {
            let terms = self.terms.get(info.name.as_str()).map_or(&[][..], Vec::as_slice);
            let ty = output_type(info.ty, !terms.is_empty());
            let data = self.model.tensor_data(&info.name).unwrap_or_default();
            let (stopped, done) = (&stopped, &done);
            writer.add_tensor_with(info.name.as_str(), ty, info.shape(), move |out| {
                let mut step = |n: usize| {
                    *done.borrow_mut() += n;
                    let goes_on = progress(*done.borrow());
                    *stopped.borrow_mut() |= !goes_on;
                    if goes_on {
                        Ok(())
                    } else {
                        Err(io::Error::other("stopped"))
                    }
                };
                if terms.is_empty() {
                    out.write_all(data)?;
                    return step(info.n_elements());
                }
                merge(info, data, terms, ty, out, &mut step)
            })?;
        }
        let written = writer.write(out);
        if stopped.into_inner() {
            return Err(MergeError::Stopped);
        }
        Ok(written?)
    }
}

/// Returns the type of a weight in the output.
fn output_type(ty: GgmlType, is_changed: bool) -> GgmlType {
    if is_changed && ty.is_quantized() {
        GgmlType::F16
    } else {
        ty
    }
}

/// Decodes the factors of a weight; `None` if their shapes do not fit.
fn term(file: &GgufFile, weight: &TensorInfo, (a, b): (&TensorInfo, &TensorInfo)) -> Option<Term> {
    let [n_in, n_out, n_matrices, one] = weight.ne;
    let is_embedding = weight.name == EMBEDDING;
    let rank = if is_embedding { a.ne[0] } else { a.ne[1] };
    let expected = if is_embedding {
        [[rank, n_out, 1, 1], [rank, n_in, 1, 1]]
    } else {
        [[n_in, rank, n_matrices, 1], [rank, n_out, n_matrices, 1]]
    };
    if [a.ne, b.ne] != expected || one != 1 {
        return None;
    }
    let decode = |info: &TensorInfo| {
        let n = info.ne[0];
        let mut floats = vec![0.0; info.n_elements()];
        let rows = file.tensor_data(info).chunks_exact(info.ty.row_bytes(n)?);
        for (row, floats) in rows.zip(floats.chunks_exact_mut(n)) {
            kernels::dequantize_row(info.ty, row, floats);
        }
        Some(floats)
    };
    Some(Term {
        a: decode(a)?,
        b: decode(b)?,
        rank,
        scale: 1.0,
        is_embedding,
    })
}

/// Writes the rows of a weight with all terms added.
fn merge(
    info: &TensorInfo,
    data: &[u8],
    terms: &[Term],
    ty: GgmlType,
    out: &mut dyn Write,
    step: &mut dyn FnMut(usize) -> io::Result<()>,
) -> io::Result<()> {
    let n_in = info.ne[0];
    let (Some(from), Some(to)) = (info.ty.row_bytes(n_in), ty.row_bytes(n_in)) else {
        return Err(io::Error::other("rows are not whole blocks"));
    };
    let rows_per_batch = (BATCH / n_in.max(1)).max(1);
    let mut encoded = Vec::new();
    for (batch, data) in data.chunks(rows_per_batch * from).enumerate() {
        let n_rows = data.len() / from;
        encoded.resize(n_rows * to, 0);
        encoded
            .par_chunks_exact_mut(to)
            .zip(data.par_chunks_exact(from))
            .enumerate()
            .for_each_init(
                || vec![0.0f32; n_in],
                |floats, (i, (encoded, data))| {
                    kernels::dequantize_row(info.ty, data, floats);
                    let row = batch * rows_per_batch + i;
                    terms.iter().for_each(|term| term.add(info, row, floats));
                    kernels::encode_row(ty, floats, None, encoded);
                },
            );
        out.write_all(&encoded)?;
        step(n_rows * n_in)?;
    }
    Ok(())
}

impl Term {
    /// Adds the term to a row of the weight.
    fn add(&self, info: &TensorInfo, row: usize, floats: &mut [f32]) {
        let [n_in, n_out, ..] = info.ne;
        let rank = self.rank;
        if self.is_embedding {
            let a = &self.a[row * rank..(row + 1) * rank];
            for (x, b) in floats.iter_mut().zip(self.b.chunks_exact(rank)) {
                let sum: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                *x += self.scale * sum;
            }
            return;
        }
        let (matrix, row) = (row / n_out, row % n_out);
        let b = &self.b[(matrix * n_out + row) * rank..][..rank];
        let a = &self.a[matrix * rank * n_in..][..rank * n_in];
        for (b, a) in b.iter().zip(a.chunks_exact(n_in)) {
            for (x, a) in floats.iter_mut().zip(a) {
                *x += self.scale * b * a;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::GgmlType::F32;

    fn file(tensors: &[(&str, &[usize], Vec<f32>)], is_adapter: bool) -> GgufFile {
        let mut writer = GgufWriter::new();
        writer.set("general.architecture", "llama");
        if is_adapter {
            writer.set("general.type", "adapter").set("adapter.type", "lora");
            writer.set("adapter.lora.alpha", 4.0f32);
        }
        for (name, shape, values) in tensors {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            writer.add_tensor(*name, F32, shape, bytes).unwrap();
        }
        GgufFile::from_bytes("file.gguf", &writer.to_bytes().unwrap()).unwrap()
    }

    fn model() -> GgufSet {
        let tensors: [(&str, &[usize], Vec<f32>); 4] = [
            ("token_embd.weight", &[2, 3], vec![0.0; 6]),
            ("blk.0.attn_q.weight", &[2, 3], vec![1.0; 6]),
            ("blk.0.ffn_up_exps.weight", &[2, 1, 2], vec![0.0; 4]),
            ("output_norm.weight", &[2], vec![7.0; 2]),
        ];
        GgufSet::from_file(file(&tensors, false)).unwrap()
    }

    #[test]
    fn merge_adds_scaled_factors_to_weights() {
        let adapter = file(
            &[
                ("token_embd.weight.lora_a", &[1, 3], vec![1.0, 2.0, 3.0]),
                ("token_embd.weight.lora_b", &[1, 2], vec![5.0, 7.0]),
                ("blk.0.attn_q.weight.lora_a", &[2, 2], vec![1.0, 2.0, 3.0, 4.0]),
                (
                    "blk.0.attn_q.weight.lora_b",
                    &[2, 3],
                    vec![1.0, 0.0, 0.0, 1.0, 1.0, 1.0],
                ),
                ("blk.0.ffn_up_exps.weight.lora_a", &[2, 1, 2], vec![1.0, 2.0, 3.0, 4.0]),
                ("blk.0.ffn_up_exps.weight.lora_b", &[1, 1, 2], vec![1.0, 10.0]),
            ],
            true,
        );
        let model = model();
        let adapters = [ScaledFactors {
            file: &adapter,
            scale: 0.5,
        }];
        let merge = Merge::new(&model, &adapters).unwrap();
        assert_eq!(merge.n_weights(), 3);
        let mut bytes = Vec::new();
        merge.write(&mut bytes, &|_| true).unwrap();
        let merged = GgufFile::from_bytes("merged.gguf", &bytes).unwrap();
        let floats = |name: &str| -> Vec<f32> {
            let bytes = merged.tensor_data(merged.tensor(name).unwrap()).chunks_exact(4);
            bytes.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        };
        // The scale is 0.5 * 4 / rank: 2 for rank 1, and 1 for rank 2.
        assert_eq!(floats("token_embd.weight"), [10.0, 14.0, 20.0, 28.0, 30.0, 42.0]);
        assert_eq!(floats("blk.0.attn_q.weight"), [2.0, 3.0, 4.0, 5.0, 5.0, 7.0]);
        assert_eq!(floats("blk.0.ffn_up_exps.weight"), [2.0, 4.0, 60.0, 80.0]);
        assert_eq!(floats("output_norm.weight"), [7.0, 7.0]);
        assert!(matches!(
            merge.write(&mut io::sink(), &|_| false),
            Err(MergeError::Stopped)
        ));
    }

    #[test]
    fn merge_rejects_factors_that_do_not_fit() {
        let refused = |tensors: &[(&str, &[usize], Vec<f32>)]| {
            let (model, adapter) = (model(), file(tensors, true));
            let adapters = [ScaledFactors {
                file: &adapter,
                scale: 1.0,
            }];
            Merge::new(&model, &adapters)
                .err()
                .map(|error| error.to_string())
                .unwrap()
        };
        let error = refused(&[("blk.0.attn_q.weight.lora_a", &[2, 1], vec![0.0; 2])]);
        assert!(error.contains("attn_q.weight.lora_b: the tensor is missing"), "{error}");
        let error = refused(&[
            ("blk.0.attn_q.weight.lora_a", &[2, 1], vec![0.0; 2]),
            ("blk.0.attn_q.weight.lora_b", &[1, 2], vec![0.0; 2]),
        ]);
        assert!(
            error.contains("shapes [2, 1] and [1, 2] do not fit a weight of shape [2, 3]"),
            "{error}"
        );
        let error = refused(&[
            ("blk.9.attn_q.weight.lora_a", &[2, 1], vec![0.0; 2]),
            ("blk.9.attn_q.weight.lora_b", &[1, 3], vec![0.0; 3]),
        ]);
        assert!(error.contains("the model has no weight blk.9.attn_q.weight"), "{error}");
        let error = refused(&[
            ("blk.0.attn_q.weight.lora_a", &[2, 1], vec![0.0; 2]),
            ("blk.0.attn_q.weight.lora_b", &[1, 3], vec![0.0, 0.0, f32::NAN]),
        ]);
        assert!(
            error.contains("attn_q.weight.lora_b: value 2 is not a finite number"),
            "{error}"
        );
        let error = refused(&[("other", &[2], vec![0.0; 2])]);
        assert!(error.contains("other: not a factor"), "{error}");
    }
}

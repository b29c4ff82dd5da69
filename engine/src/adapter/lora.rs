//! LoRA adapters: GGUF files with two factors per weight `name`.
//!
//! - Matrices: `name.lora_a` `[n_in, rank]` and `name.lora_b` `[rank, n_out]`, with a third dimension for
//!   stacks of experts.
//! - Embedding tables: `name.lora_a` `[rank, n_rows]` and `name.lora_b` `[rank, n_embd]`, so that rows of the
//!   first factor can be looked up by token.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use kernels::GgmlType;

use crate::backend::{BackendError, Buffer};
use crate::builder::{AdaptedUse, WeightId};
use crate::digest::Digest;
use crate::finite::check_finite;
use crate::gguf::{FileKind, GgufFile, TensorInfo};
use crate::graph::{Layout, dense_bytes};
use crate::model::{Consumer, Model, TableRow};

use super::error::check_file_kind;
use super::place::{PendingLeaf, PlacedLeaf, PlacedLeaves, place};
use super::{AdapterError, AdapterMismatch};

pub(super) const SUFFIX_A: &str = ".lora_a";
pub(super) const SUFFIX_B: &str = ".lora_b";
/// Suffix of modified norms, which some converters include. llama.cpp also ignores these norms.
const IGNORED_SUFFIX: &str = "_norm.weight";

/// Low-rank adapter (LoRA; Hu et al., arXiv 2106.09685), stored in the same memories as the weights of its
/// model.
pub struct LoraAdapter {
    path: PathBuf,
    model: Weak<Model>,
    alpha: f32,
    terms: Vec<Term>,
    buffers: Vec<Arc<dyn Buffer>>,
    ignored: Vec<String>,
    digest: u64,
}

/// Pair of factors for a single weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Term {
    pub weight: WeightId,
    pub applies_to: AdaptedUse,
    pub a: PlacedLeaf,
    pub b: PlacedLeaf,
    pub rank: usize,
}

impl std::fmt::Debug for LoraAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoraAdapter({})", self.path.display())
    }
}

impl LoraAdapter {
    /// Loads an adapter for a model.
    ///
    /// # Errors
    /// Returns an [`AdapterError`] if the file is not a LoRA adapter for this architecture, or its tensors do not match
    /// the model.
    pub fn load(path: impl AsRef<Path>, model: &Arc<Model>) -> Result<LoraAdapter, AdapterError> {
        Self::from_file(&GgufFile::open(path)?, model)
    }

    /// Loads an adapter from an open file, which may be in memory.
    ///
    /// # Errors
    /// Returns an [`AdapterError`] under the conditions of [`LoraAdapter::load`].
    pub fn from_file(file: &GgufFile, model: &Arc<Model>) -> Result<LoraAdapter, AdapterError> {
        let path = file.path().to_owned();
        check_file_kind(file, FileKind::Adapter)?;
        check_kind(file, "adapter.type", "lora")?;
        let arch: String = model.metadata().require("general.architecture")?;
        check_kind(file, "general.architecture", &arch)?;
        let alpha: f32 = file.optional("adapter.lora.alpha")?.unwrap_or(0.0);
        if !alpha.is_finite() {
            let (key, found) = ("adapter.lora.alpha", alpha);
            return Err(AdapterError::NotFinite { path, key, found });
        }
        let mut matcher = Matcher::new(file, model);
        matcher.run();
        let Matcher {
            pairs,
            problems,
            ignored,
            ..
        } = matcher;
        if !problems.is_empty() {
            return Err(AdapterError::Tensors { path, problems });
        }
        if pairs.is_empty() {
            let expected = "*.lora_a and *.lora_b";
            return Err(AdapterError::Empty { path, expected });
        }
        let placed = place_pairs(file, model, &pairs).map_err(|source| AdapterError::Backend {
            path: path.clone(),
            source,
        })?;
        let digest = digest(file, alpha, &pairs);
        file.mapping().check_unchanged()?;
        tracing::debug!(path = %path.display(), n_terms = pairs.len(), alpha, "loaded a LoRA adapter");
        Ok(LoraAdapter {
            path,
            model: Arc::downgrade(model),
            alpha,
            terms: terms(&pairs, &placed.leafs),
            buffers: placed.buffers,
            ignored,
            digest,
        })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns alpha, the numerator of the adapter's scale (`alpha / rank`); 0 if the file has none.
    pub fn alpha(&self) -> f32 {
        self.alpha
    }

    /// Returns the number of adapted weights; parts of fused tensors count separately.
    pub fn n_weights(&self) -> usize {
        self.terms.len()
    }

    /// Returns the size in memory in bytes.
    pub fn n_bytes(&self) -> usize {
        self.buffers.iter().map(|b| b.size()).sum()
    }

    /// Returns the names of tensors that are ignored (modified norms).
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Returns a digest of the contents, independent of the path.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns true if the adapter was loaded for this model.
    pub(crate) fn is_of(&self, model: &Arc<Model>) -> bool {
        std::ptr::eq(self.model.as_ptr(), Arc::as_ptr(model))
    }

    pub(crate) fn terms(&self) -> &[Term] {
        &self.terms
    }

    pub(crate) fn buffers(&self) -> &[Arc<dyn Buffer>] {
        &self.buffers
    }

    /// Returns the effective factor of a term for a user scale: `scale * alpha / rank`, or `scale` without
    /// alpha.
    pub(crate) fn factor(&self, term: &Term, scale: f32) -> f32 {
        if self.alpha == 0.0 {
            scale
        } else {
            scale * self.alpha / term.rank as f32
        }
    }
}

/// Checks that `key` has the expected value.
fn check_kind(file: &GgufFile, key: &'static str, expected: &str) -> Result<(), AdapterError> {
    let found: String = file.require(key)?;
    if found == expected {
        return Ok(());
    }
    Err(AdapterError::Kind {
        path: file.path().to_owned(),
        key,
        expected: expected.to_owned(),
        found,
    })
}

/// Matched pair of LoRA factors A and B.
struct Pair<'a> {
    weight: WeightId,
    applies_to: AdaptedUse,
    a: &'a TensorInfo,
    b: &'a TensorInfo,
    /// First of the rows of `b` that belong to the weight; 0 unless the weight is part of a fused tensor.
    first_row: usize,
    n_rows: usize,
}

/// Matches adapter tensors to weights and collects all mismatches.
struct Matcher<'a> {
    file: &'a GgufFile,
    model: &'a Model,
    pairs: Vec<Pair<'a>>,
    problems: Vec<AdapterMismatch>,
    ignored: Vec<String>,
}

impl<'a> Matcher<'a> {
    fn new(file: &'a GgufFile, model: &'a Model) -> Matcher<'a> {
        Matcher {
            file,
            model,
            pairs: Vec::new(),
            problems: Vec::new(),
            ignored: Vec::new(),
        }
    }

    fn run(&mut self) {
        let mut factors: BTreeMap<&str, [Option<&TensorInfo>; 2]> = BTreeMap::new();
        for t in self.file.tensors() {
            if let Some(weight) = t.name.strip_suffix(SUFFIX_A) {
                factors.entry(weight).or_default()[0] = Some(t);
            } else if let Some(weight) = t.name.strip_suffix(SUFFIX_B) {
                factors.entry(weight).or_default()[1] = Some(t);
            } else if t.name.ends_with(IGNORED_SUFFIX) {
                self.ignored.push(t.name.clone());
            } else {
                let (name, expected) = (t.name.clone(), "`<weight>.lora_a` or `<weight>.lora_b`");
                self.problems.push(AdapterMismatch::Name { name, expected });
            }
        }
        let mut rows: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (i, row) in self.model.tensors().iter().enumerate() {
            rows.entry(&row.name).or_default().push(i);
        }
        for (weight, factors) in factors {
            match factors {
                [Some(a), Some(b)] => self.pair(weight, a, b, rows.get(weight).map_or(&[], |r| r)),
                [a, _] => {
                    let suffix = if a.is_none() { SUFFIX_A } else { SUFFIX_B };
                    let missing = format!("{weight}{suffix}");
                    self.problems.push(AdapterMismatch::Half { missing });
                }
            }
        }
    }

    /// Checks the values of the factors and records the pairs for a weight of the file, which may be several rows of the
    /// tensor table.
    fn pair(&mut self, weight: &str, a: &'a TensorInfo, b: &'a TensorInfo, rows: &[usize]) {
        if rows.is_empty() {
            let (name, expected) = (a.name.clone(), format!("weight `{weight}`"));
            return self.problems.push(AdapterMismatch::Unknown { name, expected });
        }
        for t in [a, b] {
            if !kernels::can_decode(t.ty) {
                let (name, found) = (t.name.clone(), t.ty);
                let expected = "a type with kernels";
                return self.problems.push(AdapterMismatch::Type { name, expected, found });
            }
            if let Some(index) = first_not_finite(t, self.file.tensor_data(t)) {
                let name = t.name.clone();
                return self.problems.push(AdapterMismatch::NotFinite { name, index });
            }
        }
        let table = self.model.tensors();
        let n_rows_all = rows.iter().map(|&i| first_row(&table[i]) + table[i].ne[1]).max();
        for &i in rows {
            let row = &table[i];
            let applies_to = match row.consumer {
                Consumer::MulMat | Consumer::MulMatId => AdaptedUse::Product,
                Consumer::GetRows => AdaptedUse::Rows,
                Consumer::Elementwise => {
                    let name = weight.to_owned();
                    return self.problems.push(AdapterMismatch::NotAMatrix { name });
                }
            };
            if !self.shapes_fit(row, applies_to, n_rows_all.unwrap_or(0), a, b) {
                return;
            }
            self.pairs.push(Pair {
                weight: WeightId(i as u32),
                applies_to,
                a,
                b,
                first_row: first_row(row),
                n_rows: if applies_to == AdaptedUse::Rows {
                    b.ne[1]
                } else {
                    row.ne[1]
                },
            });
        }
    }

    /// Checks the shapes of the factors and records a mismatch. `n_out` is the number of rows of the whole
    /// tensor.
    fn shapes_fit(
        &mut self,
        row: &TableRow,
        applies_to: AdaptedUse,
        n_out: usize,
        a: &TensorInfo,
        b: &TensorInfo,
    ) -> bool {
        let n_expert = row.ne[2];
        let (a_expected, b_expected, rank) = match applies_to {
            AdaptedUse::Product => (
                [row.ne[0], a.ne[1], n_expert, 1],
                [a.ne[1], n_out, n_expert, 1],
                a.ne[1],
            ),
            AdaptedUse::Rows => ([a.ne[0], row.ne[1], 1, 1], [a.ne[0], row.ne[0], 1, 1], a.ne[0]),
        };
        let show = |ne: [usize; 4], rank_at: usize| {
            let n = if n_expert > 1 { 3 } else { 2 };
            let dims: Vec<String> = (0..n)
                .map(|d| {
                    if d == rank_at {
                        "rank".to_owned()
                    } else {
                        ne[d].to_string()
                    }
                })
                .collect();
            format!("[{}]", dims.join(", "))
        };
        if a.ne != a_expected {
            let rank_at = (applies_to == AdaptedUse::Product) as usize;
            self.wrong_shape(a, show(a_expected, rank_at));
        } else if b.ne != b_expected {
            let expected = show(b_expected, 0).replace("rank", &rank.to_string());
            self.wrong_shape(b, expected);
        } else {
            return true;
        }
        false
    }

    fn wrong_shape(&mut self, t: &TensorInfo, expected: String) {
        let (name, found) = (t.name.clone(), t.shape().to_vec());
        self.problems.push(AdapterMismatch::Shape { name, expected, found });
    }
}

/// Returns the first row within the tensor of the file; nonzero for parts of fused tensors.
fn first_row(row: &TableRow) -> usize {
    row.ty.row_bytes(row.ne[0]).map_or(0, |bytes| row.offset / bytes)
}

/// Returns the index of the first value that is NaN or infinite.
fn first_not_finite(t: &TensorInfo, data: &[u8]) -> Option<usize> {
    let n_rows = t.n_elements() / t.ne[0];
    let mut values = vec![0.0; t.ne[0]];
    data.chunks_exact(t.bytes / n_rows).enumerate().find_map(|(i, row)| {
        kernels::dequantize_row(t.ty, row, &mut values);
        let error = check_finite(&values).err()?;
        Some(i * t.ne[0] + error.index)
    })
}

/// Hashes all data that affects the results of an adapter.
fn digest(file: &GgufFile, alpha: f32, pairs: &[Pair<'_>]) -> u64 {
    let mut digest = Digest::default();
    digest.update(&alpha.to_le_bytes());
    for pair in pairs {
        digest.update(&pair.weight.0.to_le_bytes());
        for t in [pair.a, pair.b] {
            digest.update(&t.ty.id().to_le_bytes());
            digest.update(file.tensor_data(t));
        }
    }
    digest.finish()
}

/// Copies the factors to the memories of their weights.
fn place_pairs(file: &GgufFile, model: &Model, pairs: &[Pair<'_>]) -> Result<PlacedLeaves, BackendError> {
    let mut tensors = Vec::with_capacity(2 * pairs.len());
    for pair in pairs {
        let home = model.leafs()[pair.weight.0 as usize].home;
        let memory = model.buffers()[home.buffer.0 as usize].buffer_type();
        let row_bytes = pair.b.bytes / (pair.b.ne[1] * pair.b.ne[2]);
        let whole = file.tensor_data(pair.b);
        // A part of a fused tensor needs only its rows of `b`.
        let part = match pair.b.ne[2] {
            1 => &whole[pair.first_row * row_bytes..][..pair.n_rows * row_bytes],
            _ => whole,
        };
        let [rank, _, n_expert, _] = pair.b.ne;
        for (t, ne, data) in [
            (pair.a, pair.a.ne, file.tensor_data(pair.a)),
            (pair.b, [rank, pair.n_rows, n_expert, 1], part),
        ] {
            tensors.push(PendingLeaf {
                memory: memory.clone(),
                ty: t.ty.in_memory(),
                ne,
                data: in_memory(t.ty, ne, data),
            });
        }
    }
    place(&tensors)
}

/// Converts the rows of a factor to the type in memory.
fn in_memory(ty: GgmlType, ne: [usize; 4], rows: &[u8]) -> Cow<'_, [u8]> {
    if ty.in_memory() == ty {
        return Cow::Borrowed(rows);
    }
    let mut blocks = vec![0; dense_bytes(ty.in_memory(), ne, Layout::Plain)];
    kernels::rows_in_memory(ty, ne[0], rows, &mut blocks);
    Cow::Owned(blocks)
}

/// Combines the pairs with their placed factors.
fn terms(pairs: &[Pair<'_>], leafs: &[PlacedLeaf]) -> Vec<Term> {
    let factors = leafs.as_chunks::<2>().0;
    let term = |(pair, &[a, b]): (&Pair<'_>, &[PlacedLeaf; 2])| Term {
        weight: pair.weight,
        applies_to: pair.applies_to,
        a,
        b,
        rank: b.ne[0],
    };
    pairs.iter().zip(factors).map(term).collect()
}

//! LoRA adapters as GGUF files: for a weight `name` the factors `name.lora_a` `[n_in, rank]` and `name.lora_b`
//! `[rank, n_out]`, with a third dimension for stacks of experts. The factors of an embedding table come the other way
//! round, `[rank, n_rows]` and `[rank, n_embd]`, so that rows of the first can be read by token.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use crate::backend::{BackendError, Buffer};
use crate::builder::{AdaptedUse, WeightId};
use crate::digest::Digest;
use crate::gguf::{GgufFile, TensorInfo};
use crate::model::{Consumer, Model, TableRow};

use super::place::{Placed, PlacedLeaf, ToPlace, place};
use super::{AdapterError, AdapterFlaw};

const SUFFIX_A: &str = ".lora_a";
const SUFFIX_B: &str = ".lora_b";
/// Some converters leave changed norms in the file; no engine of the field applies them.
const IGNORED_SUFFIX: &str = "_norm.weight";

/// A low-rank adapter (Hu et al., arXiv 2106.09685), in memory beside the weights of its model.
pub struct LoraAdapter {
    path: PathBuf,
    model: Weak<Model>,
    alpha: f32,
    terms: Vec<Term>,
    buffers: Vec<Arc<dyn Buffer>>,
    ignored: Vec<String>,
    digest: u64,
}

/// One pair of factors for one weight.
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
    /// Loads a file for a model.
    pub fn load(path: impl AsRef<Path>, model: &Arc<Model>) -> Result<LoraAdapter, AdapterError> {
        Self::from_file(&GgufFile::open(path)?, model)
    }

    /// Loads an opened file, which may be in memory.
    pub fn from_file(file: &GgufFile, model: &Arc<Model>) -> Result<LoraAdapter, AdapterError> {
        let path = file.path().to_owned();
        check_kind(file, "general.type", "adapter")?;
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
            pairs, flaws, ignored, ..
        } = matcher;
        if !flaws.is_empty() {
            return Err(AdapterError::Tensors { path, flaws });
        }
        if pairs.is_empty() {
            let expected = "*.lora_a and *.lora_b";
            return Err(AdapterError::Empty { path, expected });
        }
        let placed = place_pairs(file, model, &pairs).map_err(|source| AdapterError::Backend {
            path: path.clone(),
            source,
        })?;
        Ok(LoraAdapter {
            path,
            model: Arc::downgrade(model),
            alpha,
            terms: terms(&pairs, &placed.leafs),
            buffers: placed.buffers,
            ignored,
            digest: digest(file, alpha, &pairs),
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The numerator of the adapter's own scale; 0 if the file has none.
    pub fn alpha(&self) -> f32 {
        self.alpha
    }

    /// Number of adapted weights, parts of fused ones counted each.
    pub fn n_weights(&self) -> usize {
        self.terms.len()
    }

    /// Bytes held on devices.
    pub fn n_bytes(&self) -> usize {
        self.buffers.iter().map(|b| b.size()).sum()
    }

    /// Tensors of the file that are not applied: changed norms.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Digest of its contents, independent of the file's path.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// True if it was loaded for this model.
    pub(crate) fn is_of(&self, model: &Arc<Model>) -> bool {
        std::ptr::eq(self.model.as_ptr(), Arc::as_ptr(model))
    }

    pub(crate) fn terms(&self) -> &[Term] {
        &self.terms
    }

    pub(crate) fn buffers(&self) -> &[Arc<dyn Buffer>] {
        &self.buffers
    }

    /// What a pair's product is multiplied by when the user asks for `scale`.
    pub(crate) fn factor(&self, term: &Term, scale: f32) -> f32 {
        if self.alpha == 0.0 {
            scale
        } else {
            scale * self.alpha / term.rank as f32
        }
    }
}

/// An error unless `key` has this value.
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

/// Two factors that fit a weight.
struct Pair<'a> {
    weight: WeightId,
    applies_to: AdaptedUse,
    a: &'a TensorInfo,
    b: &'a TensorInfo,
    /// Rows of `b` that belong to the weight: all of them unless the weight is part of a fused tensor.
    first_row: usize,
    n_rows: usize,
}

/// Finds the weights of an adapter's tensors, noting all that does not fit.
struct Matcher<'a> {
    file: &'a GgufFile,
    model: &'a Model,
    pairs: Vec<Pair<'a>>,
    flaws: Vec<AdapterFlaw>,
    ignored: Vec<String>,
}

impl<'a> Matcher<'a> {
    fn new(file: &'a GgufFile, model: &'a Model) -> Matcher<'a> {
        Matcher {
            file,
            model,
            pairs: Vec::new(),
            flaws: Vec::new(),
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
                self.flaws.push(AdapterFlaw::Name { name, expected });
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
                    self.flaws.push(AdapterFlaw::Half { missing });
                }
            }
        }
    }

    /// Notes the pairs of one tensor of the model's file, which may be several rows of the table.
    fn pair(&mut self, weight: &str, a: &'a TensorInfo, b: &'a TensorInfo, rows: &[usize]) {
        if rows.is_empty() {
            let (name, expected) = (a.name.clone(), format!("weight `{weight}`"));
            return self.flaws.push(AdapterFlaw::Unknown { name, expected });
        }
        for t in [a, b] {
            if !kernels::can_dequantize(t.ty) {
                let (name, found) = (t.name.clone(), t.ty);
                let expected = "one that can be computed with";
                return self.flaws.push(AdapterFlaw::Type { name, expected, found });
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
                    return self.flaws.push(AdapterFlaw::NotAMatrix { name });
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

    /// Notes a flaw unless the factors have the shapes that the weight asks for. `n_out` counts the rows of the whole tensor.
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
        self.flaws.push(AdapterFlaw::Shape { name, expected, found });
    }
}

/// The row of the file's tensor at which a row of the table begins: not 0 for parts of fused tensors.
fn first_row(row: &TableRow) -> usize {
    row.ty.row_bytes(row.ne[0]).map_or(0, |bytes| row.offset / bytes)
}

/// Digest of all that an adapter changes in a result.
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

/// Copies the factors to where the weights are.
fn place_pairs(file: &GgufFile, model: &Model, pairs: &[Pair<'_>]) -> Result<Placed, BackendError> {
    let mut tensors = Vec::with_capacity(2 * pairs.len());
    for pair in pairs {
        let home = model.leafs()[pair.weight.0 as usize].home;
        let memory = model.buffers()[home.buffer.0 as usize].buffer_type();
        let row_bytes = pair.b.bytes / (pair.b.ne[1] * pair.b.ne[2]);
        let whole = file.tensor_data(pair.b);
        // A part of a fused tensor takes its own rows of `b` only.
        let part = match pair.b.ne[2] {
            1 => &whole[pair.first_row * row_bytes..][..pair.n_rows * row_bytes],
            _ => whole,
        };
        let [rank, _, n_expert, _] = pair.b.ne;
        for (t, ne, data) in [
            (pair.a, pair.a.ne, file.tensor_data(pair.a)),
            (pair.b, [rank, pair.n_rows, n_expert, 1], part),
        ] {
            tensors.push(ToPlace {
                memory: memory.clone(),
                ty: t.ty,
                ne,
                data,
            });
        }
    }
    place(&tensors)
}

/// The pairs with their factors where they were placed.
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

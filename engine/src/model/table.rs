//! Tensor table: matches the tensors declared by an architecture against those in the file.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use kernels::GgmlType;

use crate::gguf::{Gguf, GgufSet, TensorInfo};
use crate::graph::{Layout, dense_bytes};

use crate::builder::{Embed, Experts, Linear, Norm, PerHead, Vector, WeightId};

use super::{Medium, bounds};

/// Op that reads a tensor, which determines its possible placements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consumer {
    /// Row lookup.
    GetRows,
    /// Matmul.
    MulMat,
    /// Matmul with a stack of experts.
    MulMatId,
    /// Elementwise op.
    Elementwise,
}

/// Declared tensor that is present in the file.
#[derive(Clone, PartialEq, Debug)]
pub struct TableRow {
    /// GGUF name.
    pub name: String,
    /// Declared name without layer and suffix, shown in messages about graphs.
    pub base: &'static str,
    /// Layer index, if the tensor belongs to a layer.
    pub layer: Option<u32>,
    /// Shape, innermost dimension first.
    pub ne: [usize; 4],
    /// Element type in the file.
    pub ty: GgmlType,
    /// Op that reads the tensor.
    pub consumer: Consumer,
    /// Index of the shard; 0 for models in a single file.
    pub shard: usize,
    /// Index in the list of all tensors of all shards.
    pub file_index: usize,
    /// Byte offset within the tensor of the file; nonzero for parts of fused tensors.
    pub offset: usize,
}

impl TableRow {
    /// Returns the size in memory in bytes.
    pub fn bytes(&self) -> usize {
        dense_bytes(self.stored_type(), self.ne, Layout::Plain)
    }

    /// Returns the size in the file in bytes.
    pub fn file_bytes(&self) -> usize {
        dense_bytes(self.ty, self.ne, Layout::Plain)
    }

    /// Returns the size of a row of `ne[0]` elements in the file in bytes.
    pub(super) fn row_bytes(&self) -> usize {
        dense_bytes(self.ty, [self.ne[0], 1, 1, 1], Layout::Plain)
    }

    /// Returns the byte range in the file [`TableRow::shard`].
    pub(super) fn file_range(&self, set: &GgufSet) -> Range<usize> {
        let file = &set.shards()[self.shard];
        let info = file
            .tensor(&self.name)
            .expect("TensorTable::finish matched every row against this file");
        let begin = file.tensor_offset(info) + self.offset;
        begin..begin + self.file_bytes()
    }

    /// Returns the type in memory. Elementwise tensors are few and small and are always stored as f32. Other tensors
    /// keep their type, but without row headers, which kernels do not read.
    pub fn stored_type(&self) -> GgmlType {
        if self.consumer == Consumer::Elementwise {
            GgmlType::F32
        } else {
            self.ty.in_memory()
        }
    }

    /// Returns true if the bytes in the file are those that kernels read.
    pub(super) fn can_map(&self) -> bool {
        self.stored_type() == self.ty
    }

    /// Returns true if the weights stay quantized as in the file.
    pub(super) fn keeps_weights(&self) -> bool {
        self.stored_type() == self.ty.in_memory()
    }
}

/// Tensor list of a file, or of all shards of a model.
struct Directory<'a> {
    tensors: Vec<(usize, &'a TensorInfo)>,
    index: HashMap<&'a str, usize>,
}

impl<'a> Directory<'a> {
    fn new(tensors: impl Iterator<Item = (usize, &'a TensorInfo)>) -> Directory<'a> {
        let tensors: Vec<_> = tensors.collect();
        let index = tensors
            .iter()
            .enumerate()
            .map(|(i, (_, t))| (t.name.as_str(), i))
            .collect();
        Directory { tensors, index }
    }
}

/// Mismatch between the tensors of a file and the declaration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TensorError {
    /// A declared tensor is missing.
    Missing {
        /// GGUF name.
        name: String,
        /// Alternative name of the tensor in GGUF files.
        other: Option<String>,
        /// Declared shape.
        shape: Vec<usize>,
    },
    /// A tensor has the wrong shape.
    WrongShape {
        /// GGUF name.
        name: String,
        /// Declared shape.
        expected: Vec<usize>,
        /// Shape of the tensor in the file.
        found: Vec<usize>,
    },
    /// The file has a tensor that the architecture does not declare.
    Unexpected {
        /// GGUF name.
        name: String,
        /// Shape of the tensor in the file.
        found: Vec<usize>,
        /// Missing tensor of the same layer without which this tensor is unused.
        without: Option<String>,
    },
}

impl TensorError {
    /// Returns the name of a tensor that the architecture does not declare.
    pub fn unexpected(&self) -> Option<&str> {
        match self {
            TensorError::Unexpected { name, .. } => Some(name),
            _ => None,
        }
    }
}

impl fmt::Display for TensorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // GGUF tensors are never empty, so a size in the metadata must be wrong.
            TensorError::Missing { name, shape, .. } if shape.contains(&0) => write!(
                f,
                "tensor `{name}` is missing, and the metadata implies an empty shape: {shape:?}"
            ),
            TensorError::WrongShape { name, expected, found } if expected.contains(&0) => write!(
                f,
                "tensor `{name}` has shape {found:?}, but the metadata implies an empty shape: {expected:?}"
            ),
            TensorError::Missing { name, other, shape } => {
                write!(f, "tensor `{name}` {shape:?} is missing")?;
                let Some(other) = other else { return Ok(()) };
                write!(f, ", and so is its alternative `{other}`")
            }
            TensorError::WrongShape { name, expected, found } => {
                write!(f, "tensor `{name}` has shape {found:?}, expected {expected:?}")
            }
            TensorError::Unexpected { name, found, without } => {
                write!(f, "tensor `{name}` {found:?} is not part of the architecture")?;
                let Some(without) = without else { return Ok(()) };
                write!(f, " if `{without}` is missing")
            }
        }
    }
}

/// Unused tensors written by older converters for any architecture.
const IGNORED_SUFFIXES: &[&str] = &[".attn_rot_embd", ".attn.masked_bias", ".rope_freqs"];
/// Fused tensors, and the projections that they store as consecutive row ranges.
const FUSED: &[(&str, &[&str])] = &[
    ("attn_qkv", &["attn_q", "attn_k", "attn_v"]),
    ("ffn_up", &["ffn_gate", "ffn_up"]),
];

/// Collects declared tensors (see the module). Methods never fail: errors are recorded and reported together.
pub struct TensorTable<'a> {
    file: Directory<'a>,
    rows: Vec<TableRow>,
    used: HashSet<usize>,
    ignored: Vec<&'static str>,
    ignored_layers: Range<usize>,
    /// Medium of another encoder in the file, whose tensors are ignored.
    ignored_medium: Option<Medium>,
    prefix: String,
    layer: Option<u32>,
    /// Fused tensors of the current layer: index in the file, and number of rows already assigned to
    /// projections.
    fused: Vec<(usize, usize)>,
    /// Missing tensors that others depend on, with the prefix of their layer.
    lacking: Vec<(String, String)>,
    /// Tensors with an alternative name.
    other_names: Vec<(&'static str, &'static str)>,
    errors: Vec<TensorError>,
}

impl<'a> TensorTable<'a> {
    /// Creates an empty table for the tensors of a file.
    pub fn new(file: &'a Gguf) -> TensorTable<'a> {
        Self::over(Directory::new(file.tensors().iter().map(|t| (0, t))))
    }

    /// Creates an empty table for the tensors of all shards of a model.
    pub fn of_set(set: &'a GgufSet) -> TensorTable<'a> {
        Self::over(Directory::new(set.tensors()))
    }

    fn over(file: Directory<'a>) -> TensorTable<'a> {
        TensorTable {
            file,
            rows: Vec::new(),
            used: HashSet::new(),
            ignored: Vec::new(),
            ignored_layers: 0..0,
            ignored_medium: None,
            prefix: String::new(),
            layer: None,
            fused: Vec::new(),
            lacking: Vec::new(),
            other_names: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Starts layer `il` of a group such as `blk`; it contains the tensors declared next.
    pub fn layer(&mut self, group: &str, il: usize) {
        self.end_fused();
        self.prefix = format!("{group}.{il}.");
        self.layer = Some(il as u32);
    }

    /// Returns the number of layers to declare for a layer count `n`. A bogus count is capped at one more
    /// than the number of tensors, so that the missing tensors are reported only once.
    pub fn n_layers(&self, n: usize) -> usize {
        n.min(self.file.tensors.len() + 1)
    }

    /// Ends the current layer; tensors declared next are global.
    pub fn global(&mut self) {
        self.end_fused();
        self.prefix.clear();
        self.layer = None;
    }

    /// Ignores tensors with this name (any suffix, any layer) if the file has them.
    pub fn ignore(&mut self, name: &'static str) {
        self.ignored.push(name);
    }

    /// Ignores all tensors of these layers.
    pub fn ignore_layers(&mut self, layers: Range<usize>) {
        self.ignored_layers = layers;
    }

    /// Ignores the tensors of the encoder of another medium, if any.
    pub(super) fn ignore_medium(&mut self, other: Option<Medium>) {
        self.ignored_medium = other;
    }

    /// Returns the name under which the file has a tensor: `name`, or `other` if only that exists.
    pub fn named(&mut self, name: &'static str, other: &'static str) -> &'static str {
        let is_present = |name| ["weight", ""].iter().any(|suffix| self.find(name, suffix).is_some());
        if !is_present(name) && is_present(other) {
            return other;
        }
        self.other_names.push((name, other));
        name
    }

    /// Records whether a tensor that others depend on is present.
    pub fn decides(&mut self, name: &'static str, is_present: bool) {
        if !is_present {
            let full = self.full_name(name, "");
            self.lacking.push((self.prefix.clone(), full));
        }
    }

    /// Declares an embedding table of shape `[n, rows]`.
    pub fn embed(&mut self, name: &'static str, ne: &[usize]) -> Embed {
        Embed(self.required(name, "weight", ne, Consumer::GetRows))
    }

    /// Like [`TensorTable::embed`], but the table in the file may have more rows.
    pub fn embed_or_more(&mut self, name: &'static str, ne: &[usize; 2]) -> Embed {
        let rows = self.find(name, "weight").map_or(0, |(_, info)| info.ne[1]);
        self.embed(name, &[ne[0], ne[1].max(rows)])
    }

    /// Like [`TensorTable::embed`], but returns `None` if the tensor is missing.
    pub fn embed_opt(&mut self, name: &'static str, ne: &[usize]) -> Option<Embed> {
        self.optional(name, "weight", ne, Consumer::GetRows).map(Embed)
    }

    /// Declares an elementwise tensor.
    pub fn vector(&mut self, name: &'static str, ne: &[usize]) -> Vector {
        Vector(self.required(name, "weight", ne, Consumer::Elementwise))
    }

    /// Like [`TensorTable::vector`], but returns `None` if the tensor is missing.
    pub fn vector_opt(&mut self, name: &'static str, ne: &[usize]) -> Option<Vector> {
        self.optional(name, "weight", ne, Consumer::Elementwise).map(Vector)
    }

    /// Declares an elementwise tensor by its full GGUF name.
    pub fn raw(&mut self, name: &'static str, ne: &[usize]) -> Vector {
        Vector(self.required(name, "", ne, Consumer::Elementwise))
    }

    /// Like [`TensorTable::raw`], but returns `None` if the tensor is missing.
    pub fn raw_opt(&mut self, name: &'static str, ne: &[usize]) -> Option<Vector> {
        self.optional(name, "", ne, Consumer::Elementwise).map(Vector)
    }

    /// Declares the weight of a norm, with an optional bias.
    pub fn norm(&mut self, name: &'static str, ne: &[usize]) -> Norm {
        let weight = self.required(name, "weight", ne, Consumer::Elementwise);
        Norm {
            weight,
            bias: self.optional(name, "bias", ne, Consumer::Elementwise),
        }
    }

    /// Like [`TensorTable::norm`], but returns `None` if the weight is missing.
    pub fn norm_opt(&mut self, name: &'static str, ne: &[usize]) -> Option<Norm> {
        let weight = self.optional(name, "weight", ne, Consumer::Elementwise)?;
        Some(Norm {
            weight,
            bias: self.optional(name, "bias", ne, Consumer::Elementwise),
        })
    }

    /// Returns the number of rows of a matrix in the file, by its full name; 0 if the file lacks the matrix. `{}` is
    /// replaced by the number of the first layer that has the matrix.
    pub fn file_rows(&self, name: &str) -> usize {
        let rows = |name: &str| Some(rows_of(self.file.tensors[*self.file.index.get(name)?].1.ne));
        let found = match name.split_once("{}") {
            Some((before, after)) => (0..self.file.tensors.len()).find_map(|il| rows(&format!("{before}{il}{after}"))),
            None => rows(name),
        };
        found.unwrap_or(0)
    }

    /// Declares a matrix from `n_in` to `n_out`, with an optional bias and scale. The file may provide the
    /// matrix as part of a fused tensor.
    pub fn linear(&mut self, name: &'static str, n_in: usize, n_out: usize) -> Linear {
        if let Some(fused) = self.fused_part(name, n_in, n_out) {
            return fused;
        }
        let weight = self.required(name, "weight", &[n_in, n_out], Consumer::MulMat);
        self.with_companions(name, n_out, weight)
    }

    /// Like [`TensorTable::linear`], but returns `None` if the matrix is missing.
    pub fn linear_opt(&mut self, name: &'static str, n_in: usize, n_out: usize) -> Option<Linear> {
        if let Some(fused) = self.fused_part(name, n_in, n_out) {
            return Some(fused);
        }
        let weight = self.optional(name, "weight", &[n_in, n_out], Consumer::MulMat)?;
        Some(self.with_companions(name, n_out, weight))
    }

    /// Like [`TensorTable::linear_opt`], but also returns `None` if the shape differs, to select between
    /// alternative forms of a tensor.
    pub fn linear_form(&mut self, name: &'static str, n_in: usize, n_out: usize) -> Option<Linear> {
        let (_, info) = self.find(name, "weight")?;
        if info.ne != [n_in, n_out, 1, 1] {
            return None;
        }
        self.linear_opt(name, n_in, n_out)
    }

    /// Like [`TensorTable::linear`], but falls back to the embedding table. The fallback is a separate row
    /// over the same bytes, because matmuls and row lookups may run on different devices.
    pub fn linear_tied(&mut self, name: &'static str, n_in: usize, n_out: usize, tied: Embed) -> Linear {
        let weight = self
            .optional(name, "weight", &[n_in, n_out], Consumer::MulMat)
            .unwrap_or_else(|| {
                // A missing embedding was already recorded; there is no row to copy.
                let Some(embed) = self.rows.get(tied.0.0 as usize) else {
                    return tied.0;
                };
                let row = TableRow {
                    consumer: Consumer::MulMat,
                    ..embed.clone()
                };
                self.rows.push(row);
                WeightId(self.rows.len() as u32 - 1)
            });
        self.with_companions(name, n_out, weight)
    }

    /// Declares a stack of `n` matrices from `n_in` to `n_out`, with optional biases and scales.
    pub fn experts(&mut self, name: &'static str, n_in: usize, n_out: usize, n: usize) -> Experts {
        let weight = self.required(name, "weight", &[n_in, n_out, n], Consumer::MulMatId);
        self.with_expert_companions(name, n_out, n, weight)
    }

    /// Like [`TensorTable::experts`], but returns `None` if the stack is missing.
    pub fn experts_opt(&mut self, name: &'static str, n_in: usize, n_out: usize, n: usize) -> Option<Experts> {
        let weight = self.optional(name, "weight", &[n_in, n_out, n], Consumer::MulMatId)?;
        Some(self.with_expert_companions(name, n_out, n, weight))
    }

    /// Declares a stack of `n_head` matrices from `n_in` to `n_out`.
    pub fn per_head(&mut self, name: &'static str, n_in: usize, n_out: usize, n_head: usize) -> PerHead {
        PerHead(self.required(name, "weight", &[n_in, n_out, n_head], Consumer::MulMat))
    }

    /// Like [`TensorTable::per_head`], but returns `None` if the stack is missing.
    pub fn per_head_opt(&mut self, name: &'static str, n_in: usize, n_out: usize, n_head: usize) -> Option<PerHead> {
        self.optional(name, "weight", &[n_in, n_out, n_head], Consumer::MulMat)
            .map(PerHead)
    }

    /// Returns the table.
    ///
    /// # Errors
    /// Returns all mismatches between the declaration and the file, in order.
    pub fn finish(mut self) -> Result<Vec<TableRow>, Vec<TensorError>> {
        self.end_fused();
        for (i, (_, t)) in self.file.tensors.iter().enumerate() {
            if !self.used.contains(&i) && !self.is_ignored(&t.name) {
                let mut lacking = self.lacking.iter().filter(|(prefix, _)| t.name.starts_with(prefix));
                self.errors.push(TensorError::Unexpected {
                    name: t.name.clone(),
                    found: t.shape().to_vec(),
                    without: lacking.next().map(|(_, name)| name.clone()),
                });
            }
        }
        if self.errors.is_empty() {
            Ok(self.rows)
        } else {
            Err(self.errors)
        }
    }

    fn with_companions(&mut self, name: &'static str, n_out: usize, weight: WeightId) -> Linear {
        Linear {
            weight,
            bias: self.companion(name, "bias", &[n_out]),
            scale: self.companion(name, "scale", &[1]),
            bounds: self.bounds(name),
        }
    }

    /// Declares the bounds of a matrix's inputs and results if the file has all of them.
    fn bounds(&mut self, name: &'static str) -> Option<[WeightId; 4]> {
        let is_value = |(_, t): (usize, &TensorInfo)| t.ne == [1; 4] && t.ty == GgmlType::F32;
        if !bounds::SUFFIXES
            .iter()
            .all(|suffix| self.find(name, suffix).is_some_and(is_value))
        {
            return None;
        }
        let [a, b, c, d] = bounds::SUFFIXES.map(|suffix| self.companion(name, suffix, &[1]));
        Some([a?, b?, c?, d?])
    }

    fn with_expert_companions(&mut self, name: &'static str, n_out: usize, n: usize, weight: WeightId) -> Experts {
        Experts {
            weight,
            bias: self.companion(name, "bias", &[n_out, n]),
            scale: self.companion(name, "scale", &[n]),
        }
    }

    /// Declares an optional bias or scale, unless the architecture ignores its full name (`ignore
    /// "attn_output.bias"`).
    fn companion(&mut self, name: &'static str, suffix: &str, ne: &[usize]) -> Option<WeightId> {
        // The tensor was already declared as a separate weight.
        let taken = self
            .find(name, suffix)
            .is_some_and(|(index, _)| self.used.contains(&index));
        if taken || self.ignores(name, suffix) {
            return None;
        }
        self.optional(name, suffix, ne, Consumer::Elementwise)
    }

    fn ignores(&self, name: &str, suffix: &str) -> bool {
        let full = format!(".{suffix}");
        self.ignored.iter().any(|i| i.strip_prefix(name) == Some(&full[..]))
    }

    /// Returns the rows of a fused tensor if the file has no separate tensor for the projection.
    fn fused_part(&mut self, name: &'static str, n_in: usize, n_out: usize) -> Option<Linear> {
        let (fused, parts) = FUSED.iter().find(|(_, parts)| parts.contains(&name))?;
        let (index, info) = self.find(fused, "weight")?;
        let is_present = |part: &&str| part != fused && self.find(part, "weight").is_some();
        // A tensor named like one of its parts is fused if it has the rows of all parts: equal parts, in any
        // order.
        let equal = parts.contains(fused);
        if is_present(&name)
            || (equal && (parts.iter().any(is_present) || n_out.checked_mul(parts.len()) != Some(info.ne[1])))
        {
            return None;
        }
        let taken = match self.fused.iter().position(|&(i, _)| i == index) {
            Some(begun) => &mut self.fused[begun].1,
            None => {
                self.fused.push((index, 0));
                &mut self.fused.last_mut()?.1
            }
        };
        let before = parts.iter().take_while(|part| **part != name).count();
        let first = if equal { before * n_out } else { *taken };
        *taken = taken.saturating_add(n_out);
        let mut sound = true;
        if info.ne[0] != n_in || info.ne[2..] != [1, 1] || first.saturating_add(n_out) > info.ne[1] {
            self.wrong_shape(info, &[n_in, first.saturating_add(n_out)]);
            sound = false;
        }
        let bias = if self.ignores(fused, "bias") {
            None
        } else {
            self.find(fused, "bias")
        };
        if let Some((_, b)) = bias
            && b.ne != [info.ne[1], 1, 1, 1]
        {
            self.wrong_shape(b, &[info.ne[1]]);
            sound = false;
        }
        // Offsets are only computed for valid shapes; otherwise nothing is read.
        let offset = |t: &TensorInfo, n: usize, rows: usize| Some(t.ty.row_bytes(n)? * rows);
        let (weight_offset, bias_offset) = if sound {
            (
                offset(info, n_in, first)?,
                bias.map_or(Some(0), |(_, b)| offset(b, first, 1)),
            )
        } else {
            (0, Some(0))
        };
        let weight = self.push(fused, "weight", &[n_in, n_out], Consumer::MulMat, weight_offset)?;
        // A quantized bias can only be split at block boundaries.
        let bias_offset = bias_offset.unwrap_or_else(|| {
            if let Some((_, b)) = bias {
                self.wrong_shape(b, &[first]);
            }
            0
        });
        let bias = bias.and_then(|_| self.push(fused, "bias", &[n_out], Consumer::Elementwise, bias_offset));
        Some(Linear {
            weight,
            bias,
            scale: None,
            bounds: None,
        })
    }

    /// Ends a layer. Its projections must cover all rows of its fused tensors unless the architecture ignores
    /// some of them.
    fn end_fused(&mut self) {
        let mut parts = FUSED.iter().flat_map(|(_, parts)| parts.iter());
        let ignored = parts.any(|part| self.ignored.contains(part));
        for (index, rows) in std::mem::take(&mut self.fused) {
            let info = self.file.tensors[index].1;
            if info.ne[1] > rows && !ignored {
                self.wrong_shape(info, &[info.ne[0], rows]);
            }
        }
    }

    fn wrong_shape(&mut self, info: &TensorInfo, expected: &[usize]) {
        self.errors.push(TensorError::WrongShape {
            name: info.name.clone(),
            expected: expected.to_vec(),
            found: info.shape().to_vec(),
        });
    }

    fn required(&mut self, name: &'static str, suffix: &str, ne: &[usize], consumer: Consumer) -> WeightId {
        self.optional(name, suffix, ne, consumer).unwrap_or_else(|| {
            let mut other_names = self.other_names.iter().filter(|(of, _)| *of == name);
            self.errors.push(TensorError::Missing {
                name: self.full_name(name, suffix),
                other: other_names.next().map(|(_, other)| self.full_name(other, suffix)),
                shape: ne.to_vec(),
            });
            WeightId(0)
        })
    }

    fn optional(&mut self, name: &'static str, suffix: &str, ne: &[usize], consumer: Consumer) -> Option<WeightId> {
        let (index, info) = self.find(name, suffix)?;
        let mut shape = [1; 4];
        shape[..ne.len()].copy_from_slice(ne);
        // A stack of per-head matrices may be stored as a single matrix.
        let stacked = matches!((consumer, ne), (Consumer::MulMat, &[k, m, n]) if m.checked_mul(n).is_some_and(|rows| info.ne == [k, rows, 1, 1]));
        // Elementwise tensors may be stored flat, regardless of their dimensions.
        let n = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let is_flat = info.ne.iter().filter(|n| **n != 1).count() <= 1;
        let is_list = consumer == Consumer::Elementwise && is_flat && n == Some(info.ne.iter().product());
        // The kernels of a convolution over patches or frames are the rows of a matrix.
        let unfolded = matches!((consumer, ne), (Consumer::MulMat | Consumer::Elementwise, &[n_in, n_out]) if n_out > 1 && is_kernels(info.ne, n_in, n_out));
        if info.ne != shape && !stacked && !is_list && !unfolded {
            self.wrong_shape(info, ne);
        }
        // Two declarations of one tensor (a table shared by all layers) share a row.
        if let Some(i) = self
            .rows
            .iter()
            .position(|r| r.file_index == index && r.offset == 0 && r.ne == shape && r.consumer == consumer)
        {
            return Some(WeightId(i as u32));
        }
        self.push(name, suffix, ne, consumer, 0)
    }

    fn push(
        &mut self,
        name: &'static str,
        suffix: &str,
        ne: &[usize],
        consumer: Consumer,
        offset: usize,
    ) -> Option<WeightId> {
        let (file_index, info) = self.find(name, suffix)?;
        let mut shape = [1; 4];
        shape[..ne.len()].copy_from_slice(ne);
        // Parts of a row lack its header, and concatenated rows have several.
        if info.ty.row_header() > 0 && info.ne[0] != shape[0] {
            self.wrong_shape(info, ne);
        }
        let row = TableRow {
            name: info.name.clone(),
            base: name,
            layer: self.layer,
            ne: shape,
            ty: info.ty,
            consumer,
            shard: self.file.tensors[file_index].0,
            file_index,
            offset,
        };
        self.used.insert(file_index);
        self.rows.push(row);
        Some(WeightId(self.rows.len() as u32 - 1))
    }

    fn find(&self, name: &str, suffix: &str) -> Option<(usize, &'a TensorInfo)> {
        let index = *self.file.index.get(self.full_name(name, suffix).as_str())?;
        Some((index, self.file.tensors[index].1))
    }

    fn full_name(&self, name: &str, suffix: &str) -> String {
        let name = match name.strip_prefix('/') {
            // The whole name, with `{}` in place of the layer number.
            Some(whole) => whole.replace("{}", &self.layer.unwrap_or(0).to_string()),
            None => format!("{}{name}", self.prefix),
        };
        match suffix {
            "" => name,
            _ => format!("{name}.{suffix}"),
        }
    }

    fn is_ignored(&self, name: &str) -> bool {
        if self.ignored_medium.is_some_and(|medium| medium.has_tensor(name)) {
            return true;
        }
        let bare = name.rsplit_once('.').map_or(name, |(bare, _)| bare);
        let layer = name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split('.').next()?.parse().ok());
        if layer.is_some_and(|il: usize| self.ignored_layers.contains(&il)) {
            return true;
        }
        // Returns the part of the name after the layer number.
        let in_layer = |name: &'_ str| -> String {
            let mut parts = name.split('.');
            let numbered = parts.any(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
            if numbered {
                parts.collect::<Vec<_>>().join(".")
            } else {
                name.to_owned()
            }
        };
        let (whole, without_suffix) = (in_layer(name), in_layer(bare));
        self.ignored
            .iter()
            .any(|&i| i == name || i == bare || i == whole || i == without_suffix)
            || IGNORED_SUFFIXES.iter().any(|s| bare.ends_with(s))
    }
}

/// Returns true for `n_out` kernels of `n_in` values: `[.., .., .., n_out]`, or `[.., .., n_out]`.
fn is_kernels(ne: [usize; 4], n_in: usize, n_out: usize) -> bool {
    let dim = if ne[3] == 1 { 2 } else { 3 };
    let n_values = ne[..dim].iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    ne[dim] == n_out && n_values == Some(n_in)
}

/// Returns the number of rows of a matrix. The kernel of a 2-D convolution has a row for each result.
fn rows_of(ne: [usize; 4]) -> usize {
    if ne[3] > 1 { ne[3] } else { ne[1] }
}

#[cfg(test)]
mod tests {
    use super::rows_of;

    #[test]
    fn kernels_have_a_row_for_each_result() {
        assert_eq!(rows_of([640, 2560, 1, 1]), 2560);
        // Tables of positions for both axes.
        assert_eq!(rows_of([768, 128, 2, 1]), 128);
        assert_eq!(rows_of([14, 14, 3, 1152]), 1152);
    }
}

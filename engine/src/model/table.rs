//! The tensor table: every tensor an architecture declares for a file's hyper-parameters, matched against the file's own list.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use kernels::GgmlType;

use crate::gguf::{Gguf, GgufSet, TensorInfo};
use crate::graph::{Layout, dense_bytes};

use crate::builder::{Embed, Experts, Linear, Norm, PerHead, Vector, WeightId};

/// The op that consumes a tensor; decides where it may be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consumer {
    /// Rows are read by token.
    GetRows,
    /// A matrix product.
    MulMat,
    /// A matrix product with a stack of experts.
    MulMatId,
    /// Element-wise use.
    Elementwise,
}

/// One declared tensor that the file has.
#[derive(Clone, PartialEq, Debug)]
pub struct TableRow {
    /// GGUF name.
    pub name: String,
    /// Declared name without layer and suffix, for messages of graphs.
    pub base: &'static str,
    /// The layer it belongs to.
    pub layer: Option<u32>,
    /// Shape, innermost first.
    pub ne: [usize; 4],
    /// Element type in the file.
    pub ty: GgmlType,
    /// What it is used for.
    pub consumer: Consumer,
    /// Index of the shard that holds it; 0 for models in one file.
    pub shard: usize,
    /// Index in the list of all shards' tensors.
    pub file_index: usize,
    /// First byte within the file's tensor: not 0 for parts of fused tensors.
    pub offset: usize,
}

impl TableRow {
    /// Bytes as stored.
    pub fn bytes(&self) -> usize {
        dense_bytes(self.stored_type(), self.ne, Layout::Plain)
    }

    /// Bytes in the file.
    pub fn file_bytes(&self) -> usize {
        dense_bytes(self.ty, self.ne, Layout::Plain)
    }

    /// Bytes of a row of `ne[0]` elements in the file.
    pub(super) fn row_bytes(&self) -> usize {
        dense_bytes(self.ty, [self.ne[0], 1, 1, 1], Layout::Plain)
    }

    /// Where its bytes lie in its file, [`TableRow::shard`] of the set.
    pub(super) fn file_range(&self, set: &GgufSet) -> Range<usize> {
        let file = &set.shards()[self.shard];
        let info = file
            .tensor(&self.name)
            .expect("the table was matched against this file");
        let begin = file.tensor_offset(info) + self.offset;
        begin..begin + self.file_bytes()
    }

    /// Tensors used element by element are few and small: they are kept as f32 whatever the file holds.
    pub fn stored_type(&self) -> GgmlType {
        if self.consumer == Consumer::Elementwise {
            GgmlType::F32
        } else {
            self.ty
        }
    }
}

/// The tensors of a file or of all shards of a model.
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

/// How a file's tensors differ from the declaration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TensorError {
    /// A declared tensor is not in the file.
    Missing {
        /// GGUF name.
        name: String,
        /// Name under which the file might have it instead.
        other: Option<String>,
        /// Declared shape.
        shape: Vec<usize>,
    },
    /// A tensor has another shape.
    WrongShape {
        /// GGUF name.
        name: String,
        /// Declared shape.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A tensor of the file is not declared.
    Unexpected {
        /// GGUF name.
        name: String,
        /// Shape in the file.
        found: Vec<usize>,
        /// A tensor of the same layer that the file lacks and that this one would go with.
        without: Option<String>,
    },
}

impl fmt::Display for TensorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // No file has a tensor without elements: it is a size that is wrong.
            TensorError::Missing { name, shape, .. } if shape.contains(&0) => write!(
                f,
                "tensor `{name}` is missing, and by the sizes of the metadata it would be empty: {shape:?}"
            ),
            TensorError::WrongShape { name, expected, found } if expected.contains(&0) => write!(
                f,
                "tensor `{name}` has shape {found:?}, but by the sizes of the metadata it would be empty: {expected:?}"
            ),
            TensorError::Missing { name, other, shape } => {
                write!(f, "tensor `{name}` {shape:?} is missing")?;
                let Some(other) = other else { return Ok(()) };
                write!(f, ", and so is `{other}` that could stand for it")
            }
            TensorError::WrongShape { name, expected, found } => {
                write!(f, "tensor `{name}` has shape {found:?}, expected {expected:?}")
            }
            TensorError::Unexpected { name, found, without } => {
                write!(
                    f,
                    "tensor `{name}` {found:?} is in the file but not in the architecture"
                )?;
                let Some(without) = without else { return Ok(()) };
                write!(f, " where `{without}` is missing")
            }
        }
    }
}

/// Tensors that older converters wrote into files of any architecture although no graph needs them.
const IGNORED_SUFFIXES: &[&str] = &[".attn_rot_embd", ".attn.masked_bias", ".rope_freqs"];
/// Separate projections that a file may hold as row ranges of one tensor, in this order.
const FUSED: &[(&str, &[&str])] = &[
    ("attn_qkv", &["attn_q", "attn_k", "attn_v"]),
    ("ffn_up", &["ffn_gate", "ffn_up"]),
];

/// Collects declared tensors; see the module. Methods never fail: errors are noted and reported together.
pub struct TensorTable<'a> {
    file: Directory<'a>,
    rows: Vec<TableRow>,
    used: HashSet<usize>,
    ignored: Vec<&'static str>,
    ignored_layers: Range<usize>,
    prefix: String,
    layer: Option<u32>,
    /// The layer's fused tensors in the file's list, and how many of their rows projections took so far.
    fused: Vec<(usize, usize)>,
    /// Absent tensors on which others depend, with the prefix of their layer.
    lacking: Vec<(String, String)>,
    /// Names of tensors that go by either of two.
    other_names: Vec<(&'static str, &'static str)>,
    errors: Vec<TensorError>,
}

impl<'a> TensorTable<'a> {
    /// An empty table over a file's tensor list.
    pub fn new(file: &'a Gguf) -> TensorTable<'a> {
        Self::over(Directory::new(file.tensors().iter().map(|t| (0, t))))
    }

    /// An empty table over the tensors of all shards of a model.
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
            prefix: String::new(),
            layer: None,
            fused: Vec::new(),
            lacking: Vec::new(),
            other_names: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Tensors declared from here belong to layer `il` of a group such as `blk`.
    pub fn layer(&mut self, group: &str, il: usize) {
        self.end_fused();
        self.prefix = format!("{group}.{il}.");
        self.layer = Some(il as u32);
    }

    /// The number of layers of a group that a file counts as `n`. A file lacks the tensors of a layer beyond as many as it has
    /// tensors, and says so once.
    pub fn n_layers(&self, n: usize) -> usize {
        n.min(self.file.tensors.len() + 1)
    }

    /// Tensors declared from here belong to no layer.
    pub fn global(&mut self) {
        self.end_fused();
        self.prefix.clear();
        self.layer = None;
    }

    /// Tensors of this name (any suffix, any layer) may be in the file and are not used.
    pub fn ignore(&mut self, name: &'static str) {
        self.ignored.push(name);
    }

    /// Whatever tensors these layers have are not used.
    pub fn ignore_layers(&mut self, layers: Range<usize>) {
        self.ignored_layers = layers;
    }

    /// The name by which the file has a tensor that goes by either: `name`, unless only `other` is there.
    pub fn named(&mut self, name: &'static str, other: &'static str) -> &'static str {
        let is_there = |name| ["weight", ""].iter().any(|suffix| self.find(name, suffix).is_some());
        match !is_there(name) && is_there(other) {
            true => other,
            false => {
                self.other_names.push((name, other));
                name
            }
        }
    }

    /// Notes whether a tensor is there on which others depend.
    pub fn decides(&mut self, name: &'static str, is_there: bool) {
        if !is_there {
            let full = self.full_name(name, "");
            self.lacking.push((self.prefix.clone(), full));
        }
    }

    /// A table of rows `[n, rows]`.
    pub fn embed(&mut self, name: &'static str, ne: &[usize]) -> Embed {
        Embed(self.required(name, "weight", ne, Consumer::GetRows))
    }

    /// As [`TensorTable::embed`]; the file's table may have more rows.
    pub fn embed_or_more(&mut self, name: &'static str, ne: &[usize; 2]) -> Embed {
        let rows = self.find(name, "weight").map_or(0, |(_, info)| info.ne[1]);
        self.embed(name, &[ne[0], ne[1].max(rows)])
    }

    /// As [`TensorTable::embed`], `None` if the file lacks it.
    pub fn embed_opt(&mut self, name: &'static str, ne: &[usize]) -> Option<Embed> {
        self.optional(name, "weight", ne, Consumer::GetRows).map(Embed)
    }

    /// A tensor used element by element.
    pub fn vector(&mut self, name: &'static str, ne: &[usize]) -> Vector {
        Vector(self.required(name, "weight", ne, Consumer::Elementwise))
    }

    /// As [`TensorTable::vector`], `None` if the file lacks it.
    pub fn vector_opt(&mut self, name: &'static str, ne: &[usize]) -> Option<Vector> {
        self.optional(name, "weight", ne, Consumer::Elementwise).map(Vector)
    }

    /// A tensor with its whole GGUF name given, element by element.
    pub fn raw(&mut self, name: &'static str, ne: &[usize]) -> Vector {
        Vector(self.required(name, "", ne, Consumer::Elementwise))
    }

    /// As [`TensorTable::raw`], `None` if the file lacks it.
    pub fn raw_opt(&mut self, name: &'static str, ne: &[usize]) -> Option<Vector> {
        self.optional(name, "", ne, Consumer::Elementwise).map(Vector)
    }

    /// A norm's weight, and its bias if there.
    pub fn norm(&mut self, name: &'static str, ne: &[usize]) -> Norm {
        let weight = self.required(name, "weight", ne, Consumer::Elementwise);
        Norm {
            weight,
            bias: self.optional(name, "bias", ne, Consumer::Elementwise),
        }
    }

    /// As [`TensorTable::norm`], `None` if the file lacks it.
    pub fn norm_opt(&mut self, name: &'static str, ne: &[usize]) -> Option<Norm> {
        let weight = self.optional(name, "weight", ne, Consumer::Elementwise)?;
        Some(Norm {
            weight,
            bias: self.optional(name, "bias", ne, Consumer::Elementwise),
        })
    }

    /// A matrix from `n_in` to `n_out`, with its bias and scale if there. A part of a fused tensor stands in for it.
    pub fn linear(&mut self, name: &'static str, n_in: usize, n_out: usize) -> Linear {
        if let Some(fused) = self.fused_part(name, n_in, n_out) {
            return fused;
        }
        let weight = self.required(name, "weight", &[n_in, n_out], Consumer::MulMat);
        self.with_companions(name, n_out, weight)
    }

    /// As [`TensorTable::linear`], `None` if the file lacks it.
    pub fn linear_opt(&mut self, name: &'static str, n_in: usize, n_out: usize) -> Option<Linear> {
        if let Some(fused) = self.fused_part(name, n_in, n_out) {
            return Some(fused);
        }
        let weight = self.optional(name, "weight", &[n_in, n_out], Consumer::MulMat)?;
        Some(self.with_companions(name, n_out, weight))
    }

    /// As [`TensorTable::linear_opt`], for one of several forms of a tensor: `None` also where the file's has another shape.
    pub fn linear_form(&mut self, name: &'static str, n_in: usize, n_out: usize) -> Option<Linear> {
        let (_, info) = self.find(name, "weight")?;
        (info.ne == [n_in, n_out, 1, 1]).then(|| self.linear_opt(name, n_in, n_out))?
    }

    /// As [`TensorTable::linear`], the embedding table if the file lacks it: then a row of its own over the same bytes, since a product
    /// may be computed on another device than the reading of rows.
    pub fn linear_tied(&mut self, name: &'static str, n_in: usize, n_out: usize, tied: Embed) -> Linear {
        let weight = self
            .optional(name, "weight", &[n_in, n_out], Consumer::MulMat)
            .unwrap_or_else(|| {
                // A missing embedding has been noted; there is no row to take bytes from.
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

    /// A stack of `n` matrices from `n_in` to `n_out`, with biases and scales if there.
    pub fn experts(&mut self, name: &'static str, n_in: usize, n_out: usize, n: usize) -> Experts {
        let weight = self.required(name, "weight", &[n_in, n_out, n], Consumer::MulMatId);
        self.with_expert_companions(name, n_out, n, weight)
    }

    /// As [`TensorTable::experts`], `None` if the file lacks it.
    pub fn experts_opt(&mut self, name: &'static str, n_in: usize, n_out: usize, n: usize) -> Option<Experts> {
        let weight = self.optional(name, "weight", &[n_in, n_out, n], Consumer::MulMatId)?;
        Some(self.with_expert_companions(name, n_out, n, weight))
    }

    /// A stack of `n_head` matrices from `n_in` to `n_out`.
    pub fn per_head(&mut self, name: &'static str, n_in: usize, n_out: usize, n_head: usize) -> PerHead {
        PerHead(self.required(name, "weight", &[n_in, n_out, n_head], Consumer::MulMat))
    }

    /// As [`TensorTable::per_head`], `None` if the file lacks it.
    pub fn per_head_opt(&mut self, name: &'static str, n_in: usize, n_out: usize, n_head: usize) -> Option<PerHead> {
        self.optional(name, "weight", &[n_in, n_out, n_head], Consumer::MulMat)
            .map(PerHead)
    }

    /// The table, or all differences between the declaration and the file, in order.
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
        }
    }

    fn with_expert_companions(&mut self, name: &'static str, n_out: usize, n: usize, weight: WeightId) -> Experts {
        Experts {
            weight,
            bias: self.companion(name, "bias", &[n_out, n]),
            scale: self.companion(name, "scale", &[n]),
        }
    }

    /// A bias or scale, unless the architecture ignores it by its full name (`ignore "attn_output.bias"`).
    fn companion(&mut self, name: &'static str, suffix: &str, ne: &[usize]) -> Option<WeightId> {
        // Declared before as a tensor of its own, it is one.
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

    /// Rows of a fused tensor, if the file has that instead of the projection itself.
    fn fused_part(&mut self, name: &'static str, n_in: usize, n_out: usize) -> Option<Linear> {
        let (fused, parts) = FUSED.iter().find(|(_, parts)| parts.contains(&name))?;
        let (index, info) = self.find(fused, "weight")?;
        let is_there = |part: &&str| part != fused && self.find(part, "weight").is_some();
        // A tensor that bears the name of one of its parts is fused if it has the rows of all: equal parts, in any order.
        let equal = parts.contains(fused);
        if is_there(&name)
            || (equal && (parts.iter().any(is_there) || n_out.checked_mul(parts.len()) != Some(info.ne[1])))
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
        let bias = self.find(fused, "bias").filter(|_| !self.ignores(fused, "bias"));
        if let Some((_, b)) = bias
            && b.ne != [info.ne[1], 1, 1, 1]
        {
            self.wrong_shape(b, &[info.ne[1]]);
            sound = false;
        }
        // Offsets are inside the tensors if the shapes are right; else nothing will be read.
        let offset = |t: &TensorInfo, n: usize, rows: usize| Some(t.ty.row_bytes(n)? * rows);
        let (weight_offset, bias_offset) = match sound {
            true => (
                offset(info, n_in, first)?,
                bias.map_or(Some(0), |(_, b)| offset(b, first, 1)),
            ),
            false => (0, Some(0)),
        };
        let weight = self.push(fused, "weight", &[n_in, n_out], Consumer::MulMat, weight_offset)?;
        // A bias in blocks that do not end where the parts do cannot be taken apart.
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
        })
    }

    /// Ends a layer: its projections must have taken all rows of its fused tensors, unless the architecture ignores some of them.
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
        // Matrices of heads may be written as one, one after another.
        let stacked = matches!((consumer, ne), (Consumer::MulMat, &[k, m, n]) if m.checked_mul(n).is_some_and(|rows| info.ne == [k, rows, 1, 1]));
        // Values that are used one by one may be written as one list, whatever their dimensions.
        let n = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let is_list = consumer == Consumer::Elementwise && info.ne[1..] == [1; 3] && n == Some(info.ne[0]);
        if info.ne != shape && !stacked && !is_list {
            self.wrong_shape(info, ne);
        }
        // A tensor read by two declarations (a table shared by all layers) is one row.
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
        match suffix {
            "" => format!("{}{name}", self.prefix),
            _ => format!("{}{name}.{suffix}", self.prefix),
        }
    }

    fn is_ignored(&self, name: &str) -> bool {
        let bare = name.rsplit_once('.').map_or(name, |(bare, _)| bare);
        let layer = name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split('.').next()?.parse().ok());
        if layer.is_some_and(|il: usize| self.ignored_layers.contains(&il)) {
            return true;
        }
        // What follows the number of a layer.
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

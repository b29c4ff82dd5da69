//! Plans a conversion: keys and tensors of the file, checked against the architecture before any data is written.

mod tensors;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::GgmlType;

use super::config::{Config, Evaluator, Setting};
use super::data::{BadElement, DataChange, Piece, TensorData};
use super::decode::Scales;
use super::packed::PackedMatrix;
use super::packing::packed_matrices;
use super::repack::Repacked;
use super::safetensors::{SourceTensor, SourceType};
use super::setting::{paths, typed};
use super::shards::Shards;
use super::view::View;
use super::{CheckpointError, rope, tokenizer, unread};
use crate::gguf::{Array, Gguf, Metadata, Value};
use crate::graph::ROPE_AXES;
use crate::model::{
    Architecture, Checkpoint, CheckpointSource, ModelError, Registered, TensorError, declare_header,
    declare_mtp_header, did_you_mean, graph_functions, nearest_names,
};
use crate::vocab::Vocab;

/// Maximum number of matrices in a stack.
const MAX_STACK: usize = 1 << 14;
/// Maximum number of layers in a group.
const MAX_LAYERS: usize = 1024;
/// Suffixes of scales of the inputs of a weight and of caches, which the engine computes itself.
const INPUT_SCALES: [&str; 4] = [".input_scale", ".input_global_scale", ".k_scale", ".v_scale"];
/// Suffixes of the scales of 8-bit floats.
const FLOAT_SCALES: [&str; 2] = ["_scale_inv", "_scale"];
/// Suffixes of tensors of packed matrices, in addition to their data.
const PACKED_PARTS: [&str; 4] = ["_scale_2", "_global_scale", ".weight_shape", ".g_idx"];
/// Unused tensors that a message lists.
const MAX_LISTED: usize = 4;

/// Type of the matrices of the output. Vectors are always F32.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OutputType {
    /// The type of each source matrix; BF16 for 8-bit floats.
    #[default]
    Auto,
    /// 32 bits.
    F32,
    /// 16 bits, with a narrow range.
    F16,
    /// 16 bits, with the range of F32.
    Bf16,
}

/// Planned tensor of the output.
pub struct ConvertedTensor {
    /// GGUF name.
    pub name: String,
    /// Names in the checkpoint; several for a stack.
    pub from: Vec<String>,
    /// Sizes, innermost dimension first.
    pub shape: Vec<usize>,
    /// Element type.
    pub ty: GgmlType,
    /// Elements of each source.
    parts: Vec<TensorPart>,
    /// Values that follow from the configuration.
    computed: Vec<f32>,
}

/// Elements of a source, and the changes of their values.
#[derive(Clone)]
pub(super) struct TensorPart {
    pub view: View,
    pub changes: Arc<[DataChange]>,
}

/// A checkpoint whose settings and tensors match an architecture.
pub struct Conversion {
    /// Architecture of the output.
    pub arch: &'static Architecture,
    /// Class of the checkpoint.
    pub class: String,
    /// Keys of the output.
    pub metadata: Metadata,
    /// Tensors of the output, in its order.
    pub tensors: Vec<ConvertedTensor>,
    shards: Shards,
    config: Config,
}

impl Conversion {
    /// Reads a checkpoint and checks that its settings and tensors match an architecture. `path` is a directory, or a
    /// safetensors file next to its `config.json`.
    pub fn open(path: &Path, archs: &[Registered], ty: OutputType) -> Result<Conversion, CheckpointError> {
        let directory = directory(path)?;
        let config = Config::read(&directory.join("config.json"))?;
        let (arch, section, class) = find_section(&config, archs)?;
        let mut shards = Shards::open(path)?;
        let packed = packed_matrices(&config, &shards)?;
        shards.pack(packed);
        let mut planner = Planner {
            arch,
            section,
            config: &config,
            shards: &shards,
            values: Evaluator::new(&config, section),
            ty,
            used: HashSet::new(),
            tensors: Vec::new(),
            has_rows_only: false,
            n_layer: 0,
            n_mtp: 0,
        };
        planner.check_quantization()?;
        let mut metadata = planner.settings(&directory)?;
        planner.all_tensors()?;
        planner.count_layers(&mut metadata);
        planner.check_unused()?;
        planner.rope(&mut metadata)?;
        let tensors = planner.tensors;
        let rows = tensors.iter().find(|t| t.name == "token_embd.weight");
        let rows = rows.and_then(|t| t.shape.get(1)).copied().unwrap_or(0);
        tokenizer::convert(&directory, &config, rows, &mut metadata)?;
        let mut plan = Conversion {
            arch,
            class,
            metadata,
            tensors,
            shards,
            config,
        };
        plan.check(section)?;
        Ok(plan)
    }

    /// Checks keys, shapes, and vocabulary with the loader of models. Removes tensors that the architecture does not
    /// have with these settings, if other tensors use their sources.
    fn check(&mut self, section: &Checkpoint) -> Result<(), CheckpointError> {
        let mut header = self.header()?;
        let nextn = format!("{}.nextn_predict_layers", self.arch.name);
        let declare = if header.metadata.contains(&nextn) {
            declare_mtp_header
        } else {
            declare_header
        };
        let (path, arch) = (self.config.path(), self.arch);
        let declared = |header: &Gguf| declare(header, path, arch, arch.name);
        let mut checked = declared(&header);
        if let Err(ModelError::Tensors { errors, .. }) = &checked {
            let surplus: HashSet<&str> = errors.iter().filter_map(TensorError::unexpected).collect();
            let kept = self.tensors.iter().filter(|t| !surplus.contains(&*t.name));
            let used: HashSet<&String> = kept.flat_map(|t| &t.from).collect();
            let is_double = |t: &ConvertedTensor| {
                let is_read = !t.from.is_empty() && t.from.iter().all(|name| used.contains(name));
                surplus.contains(&*t.name) && is_read
            };
            let double: HashSet<String> = self
                .tensors
                .iter()
                .filter(|t| is_double(t))
                .map(|t| t.name.clone())
                .collect();
            if !double.is_empty() {
                // Also remove the scale of the matrix.
                let is_of_double = |name: &str| {
                    let base = name.strip_suffix(".scale");
                    base.is_some_and(|base| double.contains(&format!("{base}.weight")))
                };
                self.tensors
                    .retain(|t| !double.contains(&t.name) && !is_of_double(&t.name));
                header = self.header()?;
                checked = declared(&header);
            }
        }
        let (base, graph, rows) = checked?;
        let functions = graph_functions(arch, &base, graph.as_ref(), &rows);
        unread::check_activation(&self.config, section, arch.name, &functions)?;
        Vocab::load(&header).map_err(|e| CheckpointError::tokenizer(self.config.path(), e.to_string()))?;
        Ok(())
    }

    /// Returns the tensors of the checkpoint.
    pub(super) fn shards(&self) -> &Shards {
        &self.shards
    }

    /// Returns the file of a tensor of the checkpoint.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.shards.path(name).to_owned()
    }

    /// Returns the data of a tensor that has sources.
    pub(super) fn data<'a>(&'a self, t: &'a ConvertedTensor) -> TensorData<'a> {
        let pieces = t.from.iter().zip(&t.parts).filter_map(|(name, part)| {
            let source = self.shards.get(name)?;
            let packed = self
                .shards
                .packed(name)
                .map(|matrix| matrix.data(|part| self.shards.data(part)));
            let (blocks, packed) = match (t.ty, packed) {
                (GgmlType::MXFP4, _) => {
                    let exponents = self.shards.data(&mxfp4_scales(name));
                    (Some(Repacked::Mxfp4 { exponents }), None)
                }
                (ty, Some(packed)) if ty.block_size() > 1 => (Some(Repacked::Packed(packed, ty.block_bytes())), None),
                (_, packed) => (None, packed),
            };
            Some(Piece {
                name: name.clone(),
                ty: source.ty,
                bytes: self.shards.data(name),
                view: part.view.clone(),
                scales: scales(&self.shards, source),
                blocks,
                packed,
                changes: &part.changes,
            })
        });
        TensorData {
            ty: t.ty,
            pieces: pieces.collect(),
            row: t.shape.first().copied().unwrap_or(1),
        }
    }

    /// Writes the bytes of a tensor to `out`, starting at byte `start`.
    pub(super) fn fill(&self, t: &ConvertedTensor, start: usize, out: &mut [u8]) -> Result<(), CheckpointError> {
        if !t.computed.is_empty() {
            let bytes = t.computed.iter().flat_map(|x| x.to_le_bytes()).skip(start);
            out.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
            return Ok(());
        }
        let (data, unit) = (self.data(t), t.ty.block_bytes());
        let units = start / unit..(start + out.len()).div_ceil(unit);
        let filled = if start.is_multiple_of(unit) && out.len().is_multiple_of(unit) {
            data.fill(units.start, out)
        } else {
            let mut whole = vec![0; units.len() * unit];
            let filled = data.fill(units.start, &mut whole);
            out.copy_from_slice(&whole[start - units.start * unit..][..out.len()]);
            filled
        };
        filled.map_err(|bad| self.bad_element(&bad))
    }

    /// Converts the error of a value.
    pub(super) fn bad_element(&self, bad: &BadElement) -> CheckpointError {
        CheckpointError::tensor(&self.path_of(&bad.name), &bad.name, bad.text())
    }
}

impl ConvertedTensor {
    /// Returns the values that follow from the configuration; empty for other tensors.
    pub(super) fn computed(&self) -> &[f32] {
        &self.computed
    }

    /// Returns the elements of each source.
    pub(super) fn parts(&self) -> &[TensorPart] {
        &self.parts
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        let n: usize = self.shape.iter().product();
        n / self.ty.block_size() * self.ty.block_bytes()
    }
}

/// Returns the directory of a checkpoint.
fn directory(path: &Path) -> Result<PathBuf, CheckpointError> {
    let found = fs::metadata(path).map_err(|error| CheckpointError::Io {
        path: path.to_owned(),
        error,
    })?;
    if found.is_dir() {
        return Ok(path.to_owned());
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    if directory.join("config.json").is_file() {
        return Ok(directory);
    }
    let expected = "expected the directory of a checkpoint, or a safetensors file next to its config.json";
    Err(CheckpointError::file(path, expected))
}

type Found = (&'static Architecture, &'static Checkpoint, String);

fn find_section(config: &Config, archs: &[Registered]) -> Result<Found, CheckpointError> {
    let classes = config.classes();
    let Some(&class) = classes.first() else {
        return Err(CheckpointError::config(
            config.path(),
            "`architectures` is missing; add the class of the model, such as [\"LlamaForCausalLM\"]",
        ));
    };
    let all = || {
        archs
            .iter()
            .flat_map(|r| r.arch.checkpoints.iter().map(|c| (r.arch, c)))
    };
    for class in &classes {
        if let Some((arch, section)) = all().find(|(_, c)| c.classes.contains(class)) {
            return Ok((arch, section, (*class).to_owned()));
        }
    }
    let known = all().flat_map(|(_, c)| c.classes.iter().copied());
    Err(CheckpointError::UnknownClass {
        path: config.path().to_owned(),
        class: class.to_owned(),
        hint: match archs {
            [one] => format!(
                "; add `checkpoint {class:?} {{ … }}` to the declaration of `{}` (docs/checkpoints.md)",
                one.arch.name
            ),
            _ => did_you_mean(&nearest_names(class, known)),
        },
    })
}

/// Returns the name of the exponents of MXFP4 blocks.
fn mxfp4_scales(blocks: &str) -> String {
    format!("{}_scales", blocks.trim_end_matches("_blocks"))
}

/// Returns the scales of a matrix of 8-bit floats; `None` without scales, or if they do not fit the matrix.
fn scales<'a>(shards: &'a Shards, source: &SourceTensor) -> Option<Scales<'a>> {
    if !matches!(source.ty, SourceType::F8E4m3 | SourceType::F8E5m2) {
        return None;
    }
    let names = [format!("{}_scale_inv", source.name), format!("{}_scale", source.name)];
    let scale = names.iter().find_map(|name| shards.get(name))?;
    let columns = *source.shape.last()?;
    let rows = source.shape.iter().product::<usize>().checked_div(columns)?;
    let (scale_rows, per_row) = match scale.shape[..] {
        [] | [1] => (1, 1),
        [n] => (n, 1),
        [ref outer @ .., last] => (outer.iter().product(), last),
    };
    if scale_rows == 0 || per_row == 0 {
        return None;
    }
    // The last block of published files may be partial; blocks are powers of two.
    let block = |n: usize, parts: usize| match n.div_ceil(parts) {
        size if parts == 1 || size == 1 => size,
        size => size.next_power_of_two(),
    };
    let block = [block(rows, scale_rows).max(1), block(columns, per_row).max(1)];
    let fits = rows.div_ceil(block[0]) <= scale_rows && columns.div_ceil(block[1]) <= per_row;
    fits.then(|| Scales {
        ty: scale.ty,
        bytes: shards.data(&scale.name),
        block,
        columns,
        per_row,
    })
}

/// Collects the parts of a [`Conversion`].
struct Planner<'a> {
    arch: &'static Architecture,
    section: &'static Checkpoint,
    config: &'a Config,
    shards: &'a Shards,
    values: Evaluator<'a>,
    ty: OutputType,
    /// Tensors of the checkpoint that are converted.
    used: HashSet<String>,
    tensors: Vec<ConvertedTensor>,
    /// Whether steps other than selecting, reordering, and scaling rows are errors.
    has_rows_only: bool,
    /// Number of layers, excluding the multi-token prediction layers that follow.
    n_layer: usize,
    n_mtp: usize,
}

/// Plans the conversion of matrices whose rows correspond to rows of the weights, such as the second factors of a
/// low-rank adapter.
pub(super) fn of_rows(
    config: &Config,
    shards: &Shards,
    archs: &[Registered],
) -> Result<(&'static Architecture, Vec<ConvertedTensor>), CheckpointError> {
    let (arch, section, _) = find_section(config, archs)?;
    let mut planner = Planner {
        arch,
        section,
        config,
        shards,
        values: Evaluator::new(config, section),
        ty: OutputType::Auto,
        used: HashSet::new(),
        tensors: Vec::new(),
        has_rows_only: true,
        n_layer: 0,
        n_mtp: 0,
    };
    // The settings determine the sizes of steps.
    planner.settings(Path::new("."))?;
    planner.all_tensors()?;
    planner.check_unused()?;
    let is_made = |name: &&String| planner.tensors.iter().any(|t| t.from.contains(name));
    if let Some(lost) = planner.used.iter().find(|name| !is_made(name)) {
        return Err(planner.tensor_error(lost, "is part of another tensor of the model, and cannot be adapted"));
    }
    Ok((arch, planner.tensors))
}

impl Planner<'_> {
    fn config_error(&self, text: impl Into<String>) -> CheckpointError {
        CheckpointError::config(self.config.path(), text)
    }

    fn check_quantization(&self) -> Result<(), CheckpointError> {
        let method = self.config.text("quantization_config.quant_method");
        match method {
            None | Some("fp8" | "mxfp4" | "gptq" | "awq" | "modelopt") => Ok(()),
            Some("compressed-tensors")
                if matches!(
                    self.config.text("quantization_config.format"),
                    Some("float-quantized" | "nvfp4-pack-quantized")
                ) =>
            {
                Ok(())
            }
            Some(other) => Err(self.config_error(format!(
                "weights quantized with `{other}` cannot be converted; convert the original checkpoint"
            ))),
        }
    }

    /// Evaluates the checks and settings.
    fn settings(&mut self, directory: &Path) -> Result<Metadata, CheckpointError> {
        for (cond, text) in self.section.checks {
            if self.values.term(cond)?.is_some_and(|value| value.is_false()) {
                return Err(self.config_error(*text));
            }
        }
        unread::check_settings(self.config, self.section, self.arch.name)?;
        let mut metadata = Metadata::default();
        metadata.insert("general.architecture", self.arch.name);
        metadata.insert("general.type", "model");
        let name = directory.canonicalize().ok();
        if let Some(name) = name.as_deref().and_then(Path::file_name).and_then(|n| n.to_str()) {
            metadata.insert("general.name", name);
        }
        for setting in self.section.settings {
            let value = match setting.symbol {
                "" => self.values.first(setting.value)?,
                symbol => self.values.symbol(symbol)?,
            };
            let key = match setting.key.strip_prefix('/') {
                Some(key) => key.to_owned(),
                None => format!("{}.{}", self.arch.name, setting.key),
            };
            match value {
                Some(value) => {
                    let value = typed(&value, setting.ty).ok_or_else(|| {
                        self.config_error(format!("`{key}` would be {value:?}, expected {:?}", setting.ty))
                    })?;
                    metadata.insert(key, value);
                }
                None if setting.required => {
                    let paths = paths(setting.value);
                    let text = format!("{paths} is missing, which `{key}` follows from");
                    return Err(self.config_error(text));
                }
                None => {}
            }
        }
        Ok(metadata)
    }

    fn all_tensors(&mut self) -> Result<(), CheckpointError> {
        let n_layer = self.values.n_layer()?;
        self.n_layer = n_layer;
        self.n_mtp = self.count_mtp();
        let mut groups: Vec<Option<&str>> = Vec::new();
        for source in self.section.sources {
            if !groups.contains(&source.group) {
                groups.push(source.group);
            }
        }
        for group in groups {
            let sources = || self.section.sources.iter().filter(move |s| s.group == group);
            match group {
                None => {
                    for source in sources() {
                        self.source(source, None)?;
                    }
                }
                Some(prefix) => {
                    let n = if prefix == "blk" {
                        n_layer + self.n_mtp
                    } else {
                        MAX_LAYERS
                    };
                    for il in 0..n {
                        let before = self.tensors.len();
                        for source in sources().filter(|s| !s.mtp || il >= n_layer) {
                            self.source(source, Some(il))?;
                        }
                        if self.tensors.len() == before && prefix != "blk" {
                            break;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the number of layers of multi-token prediction that the checkpoint has and the section maps.
    fn count_mtp(&self) -> usize {
        let has = |il, mtp| {
            let mut sources = self.section.sources.iter();
            sources.any(|s| {
                let is_of_layer = s.group == Some("blk") && s.mtp == mtp;
                let mut origins = s.origins.iter();
                is_of_layer && origins.any(|o| self.chain(o, Some(il), "weight", s.part == "weight").is_some())
            })
        };
        let layers = self.n_layer..MAX_LAYERS;
        layers.take_while(|&il| has(il, true) && has(il, false)).count()
    }

    /// Adds the layers of multi-token prediction to the number of layers.
    fn count_layers(&self, metadata: &mut Metadata) {
        if self.n_mtp > 0 {
            let key = |name: &str| format!("{}.{name}", self.arch.name);
            metadata.insert(key("block_count"), (self.n_layer + self.n_mtp) as u32);
            metadata.insert(key("nextn_predict_layers"), self.n_mtp as u32);
        }
    }

    /// Plans the tensors of one source, if the checkpoint has them.
    fn source(&mut self, source: &CheckpointSource, layer: Option<usize>) -> Result<(), CheckpointError> {
        let is_tied = self
            .config
            .get("tie_word_embeddings")
            .and_then(serde_json::Value::as_bool)
            == Some(true);
        let is_copy = source.tied && is_tied;
        let has_parts = matches!(source.kind, "linear" | "experts" | "norm");
        let bias_apart = self
            .section
            .sources
            .iter()
            .any(|s| s.field == source.field && s.part == "bias");
        let parts: &[&str] = match source.part {
            "" if has_parts && !bias_apart => &["weight", "bias"],
            "" => &["weight"],
            part => &[part],
        };
        for part in parts {
            let is_own = source.part == *part;
            let mut found = source.origins.iter().filter_map(|o| self.chain(o, layer, part, is_own));
            let Some(chain) = found.next() else { continue };
            self.used.extend(chain.iter().flat_map(|(_, names)| names).cloned());
            if is_copy && chain.iter().all(|(origin, _)| origin.steps.is_empty()) {
                continue;
            }
            let prefix = match (source.group, layer) {
                (Some(group), Some(il)) => format!("{group}.{il}."),
                _ => String::new(),
            };
            let suffix = if source.kind == "raw" {
                String::new()
            } else {
                format!(".{part}")
            };
            let name = format!("{prefix}{}{suffix}", source.gguf);
            if self
                .tensors
                .iter()
                .rev()
                .take(self.section.sources.len() * 2)
                .any(|t| t.name == name)
            {
                continue;
            }
            let is_vector = matches!(source.kind, "vector" | "norm" | "raw") || *part != "weight";
            let has_scale = matches!(source.kind, "linear" | "experts");
            self.tensor(name.clone(), &chain, layer, is_vector, has_scale, *part != "weight")?;
            self.factors(&name);
        }
        Ok(())
    }

    /// Returns an error if the checkpoint has tensors that nothing reads.
    fn check_unused(&mut self) -> Result<(), CheckpointError> {
        let is_ignored = |name: &str| {
            self.section
                .ignored
                .iter()
                .any(|pattern| match pattern.strip_suffix('.') {
                    Some(_) => name.starts_with(pattern) || name.contains(&format!(".{pattern}")),
                    None if pattern.starts_with('.') => name.ends_with(pattern),
                    None => name == *pattern,
                })
        };
        // Without sources for them, layers of multi-token prediction are skipped, as the classes of transformers do.
        let n_layer = self.n_layer;
        let n_mtp = if self.section.sources.iter().any(|s| s.mtp) {
            0
        } else {
            self.config.number("num_nextn_predict_layers").unwrap_or(0.0) as usize
        };
        let is_mtp = |name: &str| {
            let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
            let layer = layer.and_then(|(il, _)| il.parse::<usize>().ok());
            layer.is_some_and(|il| (n_layer..n_layer.saturating_add(n_mtp)).contains(&il))
        };
        let is_f8 = |name: &str| {
            let ty = self.shards.get(name).map(|source| source.ty);
            matches!(ty, Some(SourceType::F8E4m3 | SourceType::F8E5m2))
        };
        let is_packed = |name: &str| self.shards.packed(name).is_some();
        // A scale of other weights would be lost.
        let belongs = |name: &str, suffixes: &[&str], to: &dyn Fn(&str) -> bool| {
            let bases = suffixes.iter().filter_map(|suffix| name.strip_suffix(suffix));
            bases
                .flat_map(|base| [base.to_owned(), format!("{base}.weight")])
                .any(|base| self.used.contains(&base) && to(&base))
        };
        let is_scale = |name: &str| {
            belongs(name, &INPUT_SCALES, &|_| true)
                || belongs(name, &FLOAT_SCALES, &is_f8)
                || belongs(name, &PACKED_PARTS, &is_packed)
        };
        let packed = self.used.iter().filter_map(|name| self.shards.packed(name));
        let packed: HashSet<&String> = packed.flat_map(PackedMatrix::names).collect();
        let unused = self.shards.iter().map(|t| t.name.as_str());
        let unused: Vec<&str> = unused
            .filter(|n| !self.used.contains(*n) && !packed.contains(&(*n).to_owned()))
            .filter(|n| !is_ignored(n) && !is_scale(n) && !is_mtp(n))
            .collect();
        let Some(first) = unused.first() else { return Ok(()) };
        let listed: Vec<String> = unused.iter().take(MAX_LISTED).map(|n| format!("`{n}`")).collect();
        let more = unused.len().saturating_sub(MAX_LISTED);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let text = format!(
            "architecture `{}` does not read {}{more}, which would be lost; add sources or `ignore` to its `checkpoint` section",
            self.arch.name,
            listed.join(", ")
        );
        Err(CheckpointError::file(self.shards.path(first), text))
    }

    /// Adds the keys and factors of a rotary scaling.
    fn rope(&mut self, metadata: &mut Metadata) -> Result<(), CheckpointError> {
        if self.arch.rope.is_none() {
            return Ok(());
        }
        let mut size = |name| match self.values.symbol(name) {
            Ok(Some(Setting::Int(n))) => usize::try_from(n).unwrap_or(0),
            _ => 0,
        };
        let (head_dim, n_rot) = (size("head_dim"), size("n_rot"));
        let n_rot = if n_rot > 0 { n_rot } else { head_dim };
        let base = match self.values.symbol("rope_freq_base")? {
            Some(Setting::Float(x)) => x,
            Some(Setting::Int(n)) => n as f64,
            _ => 10000.0,
        };
        let section = ["rope_parameters.mrope_section", "rope_scaling.mrope_section"];
        let section = section.iter().find_map(|path| self.config.get(path)?.as_array());
        if let Some(section) = section {
            let mut sizes: Vec<i32> = section
                .iter()
                .map(|n| n.as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(-1))
                .collect();
            sizes.resize(ROPE_AXES, 0);
            let key = format!("{}.rope.dimension_sections", self.arch.name);
            metadata.insert(key, Value::Array(Array::I32(sizes)));
        }
        let has_own_mscale = unread::reads(self.section, "mscale_all_dim");
        let factors = rope::scaling(self.config, self.arch.name, n_rot, base, has_own_mscale, metadata)?;
        for (name, values) in factors {
            if !self.arch.tensors.iter().any(|t| t.gguf == name) {
                return Err(self.config_error(format!(
                    "architecture `{}` does not support this rotary scaling, which needs the tensor `{name}`",
                    self.arch.name
                )));
            }
            self.tensors.push(ConvertedTensor {
                name: format!("{name}.weight"),
                from: Vec::new(),
                shape: vec![values.len()],
                ty: GgmlType::F32,
                parts: Vec::new(),
                computed: values,
            });
        }
        Ok(())
    }
}

//! Model loading: architecture, hyperparameters, vocabulary, and tensors, in this order.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{BackendError, Buffer, Device};
use crate::builder::{
    AudioRules, BuildError, BuildGraph, BuildParams, Builder, Built, ImageRules, KvSpec, MemorySpecs, RowCount,
    WeightLeaf,
};
use crate::gguf::{FileKind, Gguf, GgufFile, GgufSet, Metadata, Value};
use crate::graph::{Layout, dense_bytes};
use crate::vocab::{Token, Vocab, VocabSource};

use super::bounds;
use super::find::load_arch;
use super::fit::ModelOutline;
use super::leaf::stored_parts;
use super::lock::LockedMemory;
use super::params::LoadParams;
use super::placement::{Placement, PlacementSummary, RowPart};
use super::probe::{needs, probe};
use super::upload::{check_types, check_values, upload};
use super::{
    Architecture, Base, Fingerprint, HparamReader, Medium, ModelError, Registered, TableRow, TensorTable,
    projector_types,
};

/// Loaded model, shareable by any number of [contexts](crate::context::Context).
pub struct Model {
    path: PathBuf,
    arch: &'static Architecture,
    metadata: Metadata,
    base: Base,
    vocab: Arc<Vocab>,
    graph: Box<dyn BuildGraph>,
    rows: Vec<TableRow>,
    leafs: Vec<WeightLeaf>,
    buffers: Vec<Arc<dyn Buffer>>,
    placement: Placement,
    memory: MemorySpecs,
    max_positions: Option<usize>,
    max_side: Option<usize>,
    result_shape: [usize; 2],
    row_count: RowCount,
    n_features: usize,
    max_encoded: Option<usize>,
    frame_width: Option<usize>,
    fingerprint: Fingerprint,
    warnings: Vec<String>,
    _locked: Option<LockedMemory>,
}

/// Placement and memory requirements of a model, computed without loading weights.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// Architecture of the model.
    pub arch: &'static Architecture,
    /// Common hyperparameters.
    pub base: Base,
    /// Tensor table.
    pub rows: Vec<TableRow>,
    /// Width and number of the rows of a graph of one token, of the largest square image, or of one chunk of audio.
    pub result_shape: [usize; 2],
    /// Number of rows of an image.
    pub row_count: RowCount,
    /// Image preprocessing; `None` if the model is not an image encoder.
    pub image: Option<ImageRules>,
    /// Audio preprocessing; `None` if the model is not an audio encoder.
    pub audio: Option<AudioRules>,
    /// Location of each row of the tensor table.
    pub places: Vec<TensorPlacement>,
    /// Number of layers and bytes in each memory.
    pub summary: PlacementSummary,
    /// Specifications of the KV caches and recurrent states.
    pub specs: MemorySpecs,
    /// Context length in tokens that the plan assumes.
    pub n_ctx: usize,
    /// Size of the KV cache in bytes by memory.
    pub kv_bytes: Vec<(String, usize)>,
    /// Size of the recurrent states in bytes by memory.
    pub state_bytes: Vec<(String, usize)>,
    /// Size of the compute buffers in bytes by memory, for the largest graphs of a context.
    pub compute_bytes: Vec<(String, usize)>,
}

/// Location of a tensor. For tensors split by rows, the memories and layouts of the parts are joined by `+`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPlacement {
    /// Name of the memory.
    pub memory: String,
    /// Name of the row layout.
    pub layout: String,
    /// Size of the weights in bytes.
    pub bytes: usize,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Model({}, {})", self.arch.name, self.path.display())
    }
}

impl Model {
    /// Loads a model from its only or first file, with a registered architecture.
    ///
    /// # Errors
    /// Returns a [`ModelError`] if a file is invalid, the architecture is not registered, or memory is insufficient.
    pub fn load(path: impl AsRef<Path>, archs: &[Registered], params: &LoadParams) -> Result<Model, ModelError> {
        Self::from_set(GgufSet::open(path)?, archs, params)
    }

    /// Loads a model from an open file, which may be in memory; see [`Model::load`].
    pub fn from_file(file: GgufFile, archs: &[Registered], params: &LoadParams) -> Result<Model, ModelError> {
        Self::from_set(GgufSet::from_file(file)?, archs, params)
    }

    /// Loads a model from open shards; see [`Model::load`].
    pub fn from_set(mut set: GgufSet, archs: &[Registered], params: &LoadParams) -> Result<Model, ModelError> {
        let start = Instant::now();
        let path = set.first().path().to_owned();
        apply_overrides(set.metadata_mut(), &params.overrides);
        params.report(&path, 0.0)?;
        check_kind(set.metadata(), set.n_tensors(), &path, archs)?;
        let (arch, prefix) = load_arch(set.metadata(), &path, archs, params)?;
        let table = TensorTable::of_set(&set);
        let declared = declare(set.metadata(), table, &path, arch, &prefix, params.mtp)?;
        let ((base, graph, rows), of_keys) = declared;
        let vocab = Arc::new(load_vocab(set.first().header(), arch, &path)?);
        if let Some(hook) = &params.on_vocab {
            hook(&vocab, base.n_vocab());
        }
        check_types(&path, &rows)?;
        let needs = probe(arch, &base, graph.as_ref(), &rows, &path)?;
        let outline = ModelOutline::new(arch, &base, graph.as_ref(), &rows, &needs);
        let placement = outline.place(params).map_err(|source| ModelError::Placement {
            path: path.clone(),
            source,
        })?;
        log_placement(&placement, &rows);
        if params.check_tensors {
            check_values(&set, &rows, params)?;
        }
        let of_vocab = vocab.warnings().iter().filter(|warning| !warning.is_corrected());
        let mut warnings: Vec<_> = of_vocab.map(ToString::to_string).chain(of_keys).collect();
        if params.placement.repack && !placement.repacks() {
            warnings.push(NO_ROOM.to_owned());
        }
        let fingerprint = Fingerprint::of(&set, arch, &prefix, &rows).map_err(|e| e.in_file(&path))?;
        let (mut leafs, buffers) = upload(&set, &rows, &placement, params)?;
        bounds::read(&set, &rows, &mut leafs, params)?;
        let locked = if params.mlock {
            Some(LockedMemory::all(&path, &leafs, &buffers, &mut warnings))
        } else {
            None
        };
        params.report(&path, 1.0)?;
        let metadata = set.metadata().clone();
        let model = Model {
            path,
            arch,
            metadata,
            base,
            vocab,
            graph,
            rows,
            leafs,
            buffers,
            placement,
            memory: needs.memory,
            max_positions: needs.max_positions,
            max_side: needs.max_side,
            result_shape: needs.result,
            row_count: needs.row_count,
            n_features: needs.n_features,
            max_encoded: needs.max_encoded,
            frame_width: needs.frame_width,
            fingerprint,
            warnings,
            _locked: locked,
        };
        model.log_load(start.elapsed());
        Ok(model)
    }

    fn log_load(&self, time: Duration) {
        let path = self.path.display();
        for warning in &self.warnings {
            tracing::warn!(%path, "{warning}");
        }
        tracing::info!(
            %path,
            arch = self.arch.name,
            n_params = self.n_params(),
            bytes = self.n_bytes(),
            seconds = time.as_secs_f64(),
            "loaded a model"
        );
    }

    /// Returns the number of rows of the smallest table that is indexed by the row or the column of a patch.
    pub(crate) fn max_side(&self) -> Option<usize> {
        self.max_side
    }

    /// Returns the path of the first file.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Returns the architecture.
    pub fn arch(&self) -> &'static Architecture {
        self.arch
    }
    /// Returns the metadata of the first file.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    /// Returns the common hyperparameters.
    pub fn base(&self) -> &Base {
        &self.base
    }
    /// Returns the vocabulary.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }
    /// Returns the tensor table.
    pub fn tensors(&self) -> &[TableRow] {
        &self.rows
    }
    /// Returns the size of all weights in the file in bytes; a tied output counts once.
    pub fn n_bytes(&self) -> usize {
        self.distinct_rows().map(TableRow::file_bytes).sum()
    }
    /// Returns the number of parameters.
    pub fn n_params(&self) -> usize {
        self.distinct_rows().map(|r| r.ne.iter().product::<usize>()).sum()
    }
    /// Returns the placement of layers and tensors.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }
    /// Returns layers and bytes by memory.
    pub fn placement_summary(&self) -> PlacementSummary {
        self.placement.summary(&self.rows)
    }
    /// Returns the first device of the placement, for messages.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.placement.devices[0]
    }
    /// Returns warnings about possible quality or speed problems. Vocabulary problems that were corrected are
    /// only in [`Vocab::warnings`].
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
    /// Returns the KV caches and recurrent states that the graph needs.
    pub fn memory_specs(&self) -> &MemorySpecs {
        &self.memory
    }
    /// Returns the cache row of every attention call in the graph.
    pub fn kv_specs(&self) -> &[KvSpec] {
        &self.memory.kv
    }
    /// Returns the number of learned positions, if the model looks up positions in a table.
    pub fn max_positions(&self) -> Option<usize> {
        self.max_positions
    }
    /// Returns the number of learned positions of the encoder, if it looks them up in a table.
    pub(crate) fn max_encoded(&self) -> Option<usize> {
        self.max_encoded
    }
    /// Returns the width of the rows that [`Context::encode_frames`](crate::context::Context::encode_frames)
    /// takes; `None` if the model does not encode frames of audio.
    pub fn frame_width(&self) -> Option<usize> {
        self.frame_width
    }
    /// Returns the fingerprint of the model, for saved states.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }
    /// Returns true if attention is bidirectional, by architecture or by `attention.causal`.
    pub fn bidirectional(&self) -> bool {
        self.arch.bidirectional || !self.base.causal
    }
    /// Returns true if an MTP layer is loaded.
    pub fn has_mtp(&self) -> bool {
        self.base.n_layer_loaded() > self.base.n_layer()
    }
    /// Returns the image preprocessing; `None` if the model is not an image encoder.
    pub fn image_rules(&self) -> Option<ImageRules> {
        let has = |name: &str| self.rows.iter().any(|row| row.name == name);
        image_rules(self.graph.as_ref(), &self.metadata, has)?.ok()
    }
    /// Returns the audio preprocessing; `None` if no encoder of the model reads audio.
    pub fn audio_rules(&self) -> Option<AudioRules> {
        self.graph.audio()
    }
    /// Returns the number of rows that a media encoder returns for `n` positions; `None` if `n` is too small.
    pub fn rows_of(&self, n: usize) -> Option<usize> {
        let n_tokens = self.audio_rules().map_or(n, |rules| rules.read_positions(n));
        let params = BuildParams {
            n_tokens,
            n_outputs: n_tokens,
            n_encoded: n,
            ..self.build_params()
        };
        let needs = needs(self.arch, self.graph.as_ref(), &self.leafs, params).ok()?;
        Some(needs.result[1])
    }
    /// Returns the number of values in a media row that the model takes: an embedding, and features for some layers.
    pub fn media_width(&self) -> usize {
        self.base.n_embd().saturating_mul(self.n_features.saturating_add(1))
    }
    /// Returns the width and number of the rows of a graph of one token, of the largest square image, or of one chunk
    /// of audio.
    pub fn result_shape(&self) -> [usize; 2] {
        self.result_shape
    }
    /// Returns the number of rows of an image.
    pub fn row_count(&self) -> RowCount {
        self.row_count
    }
    /// Returns build parameters for a graph of one token in one sequence, of the largest square image, or of one chunk
    /// of audio.
    pub(crate) fn build_params(&self) -> BuildParams {
        self.arch.build_params(&self.base, self.graph.as_ref())
    }
    /// Builds the main graph or the MTP graph, ending in the output that the builder's parameters select.
    pub fn build(&self, b: &mut Builder<'_>) -> Built {
        b.whole(self.arch.results(), self.graph.as_ref())
    }
    /// Returns the token that starts decoding after a prompt was encoded: `decoder_start_token_id`, or BOS if
    /// the key is missing.
    pub fn decoder_start(&self) -> Option<Token> {
        let prefix: Option<String> = self.metadata.optional("general.architecture").ok().flatten();
        let key = format!("{}.decoder_start_token_id", prefix.as_deref().unwrap_or(self.arch.name));
        let id: Option<i64> = self.metadata.optional(&key).ok().flatten();
        let known = id.and_then(|id| Token::try_from(id).ok());
        known
            .filter(|&id| (id as usize) < self.base.n_vocab())
            .or(self.vocab.bos())
    }
    /// Replaces the graph builder and keeps the weights.
    pub(crate) fn map_graph(self, map: impl FnOnce(Box<dyn BuildGraph>) -> Box<dyn BuildGraph>) -> Model {
        Model {
            graph: map(self.graph),
            ..self
        }
    }
    /// Adds the encoder graph to a builder, if the model has an encoder.
    pub fn encode(&self, b: &mut Builder<'_>) -> Option<crate::graph::TensorId> {
        self.graph.encode(b)
    }
    /// Adds the graph that stores the keys and values of cross attention.
    pub(crate) fn store_cross(&self, b: &mut Builder<'_>) {
        b.store_cross(self.graph.as_ref());
    }
    /// Returns [`Model::memory_specs`] for a context; rotations depend on its settings.
    pub(crate) fn memory_specs_in(&self, params: BuildParams) -> Result<MemorySpecs, BuildError> {
        needs(self.arch, self.graph.as_ref(), &self.leafs, params).map(|needs| needs.memory)
    }
    /// Reads back row `index` of the tensor table in the plain layout and in its [stored
    /// type](TableRow::stored_type).
    ///
    /// # Errors
    /// Returns a [`BackendError`] if a device fails.
    pub fn tensor_data(&self, index: usize) -> Result<Vec<u8>, BackendError> {
        let mut data = Vec::new();
        for (buffer, stored) in stored_parts(&self.leafs[index]) {
            let start = data.len();
            data.resize(start + dense_bytes(stored.ty, stored.ne, Layout::Plain), 0);
            let buffer = &self.buffers[buffer.0 as usize];
            buffer.get_tensor(&stored, 0..stored.n_rows(), &mut data[start..])?;
        }
        Ok(data)
    }
    /// Returns the memory allocated for weights in bytes, excluding mapped pages.
    pub fn own_bytes(&self) -> usize {
        let own = self.buffers.iter().filter(|buffer| !buffer.is_read_only());
        own.map(|buffer| buffer.size()).sum()
    }
    pub(crate) fn leafs(&self) -> &[WeightLeaf] {
        &self.leafs
    }
    /// Returns the weight buffers. A context registers them first and in order, so that the buffer ids of the
    /// weights stay valid.
    pub(crate) fn buffers(&self) -> &[Arc<dyn Buffer>] {
        &self.buffers
    }

    fn distinct_rows(&self) -> impl Iterator<Item = &TableRow> {
        let is_first = |i: usize| {
            let key = |r: &TableRow| (r.file_index, r.offset);
            !self.rows[..i].iter().any(|r| key(r) == key(&self.rows[i]))
        };
        self.rows
            .iter()
            .enumerate()
            .filter(move |(i, _)| is_first(*i))
            .map(|(_, r)| r)
    }
}

/// Reads hyperparameters and declares tensors from a header; tensor data may be missing. Intended for checks
/// of headers.
///
/// # Errors
/// Returns a [`ModelError`] if the header does not match the declaration.
pub fn declare_header(
    header: &Gguf,
    path: &Path,
    arch: &'static Architecture,
    prefix: &str,
) -> Result<DeclaredModel, ModelError> {
    let declared = declare(&header.metadata, TensorTable::new(header), path, arch, prefix, false)?;
    Ok(declared.0)
}

/// Like [`declare_header`], with the first layer of multi-token prediction (MTP), if the file has one.
///
/// # Errors
/// Returns a [`ModelError`] if the header does not match the declaration.
pub fn declare_mtp_header(
    header: &Gguf,
    path: &Path,
    arch: &'static Architecture,
    prefix: &str,
) -> Result<DeclaredModel, ModelError> {
    let declared = declare(&header.metadata, TensorTable::new(header), path, arch, prefix, true)?;
    Ok(declared.0)
}

/// Plans the placement of a model given its header; tensor data may be missing.
///
/// # Errors
/// Returns a [`ModelError`] if the header is invalid, the architecture is not registered, or the placement is not
/// possible.
pub fn plan(header: &Gguf, path: &Path, archs: &[Registered], params: &LoadParams) -> Result<LoadPlan, ModelError> {
    // A header without tensors may be a draft. The caller then adds the missing tensors.
    check_kind(&header.metadata, header.tensors().len().max(1), path, archs)?;
    plan_table(&header.metadata, TensorTable::new(header), path, archs, params)
}

/// Like [`plan`], for a complete model in one or more files.
pub fn plan_set(set: &GgufSet, archs: &[Registered], params: &LoadParams) -> Result<LoadPlan, ModelError> {
    let (table, path) = (TensorTable::of_set(set), set.first().path());
    check_kind(set.metadata(), set.n_tensors(), path, archs)?;
    plan_table(set.metadata(), table, path, archs, params)
}

fn plan_table(
    metadata: &Metadata,
    table: TensorTable<'_>,
    path: &Path,
    archs: &[Registered],
    params: &LoadParams,
) -> Result<LoadPlan, ModelError> {
    let mut metadata = metadata.clone();
    apply_overrides(&mut metadata, &params.overrides);
    let (arch, prefix) = load_arch(&metadata, path, archs, params)?;
    let ((base, graph, rows), _) = declare(&metadata, table, path, arch, &prefix, params.mtp)?;
    let needs = probe(arch, &base, graph.as_ref(), &rows, path)?;
    let outline = ModelOutline::new(arch, &base, graph.as_ref(), &rows, &needs);
    let impossible = |source| ModelError::Placement {
        path: path.to_owned(),
        source,
    };
    let placement = outline.place(params).map_err(impossible)?;
    let memory = outline.memory(&params.placement);
    let compute_bytes = outline.compute_bytes(&placement, memory).map_err(impossible)?;
    let places = rows.iter().zip(&placement.parts);
    let places = places
        .map(|(row, parts)| tensor_placement(row, parts, &placement))
        .collect();
    let summary = placement.summary(&rows);
    let kept = outline.cache_specs();
    let kv = kept.kv.iter().map(|spec| (spec.layer, memory.kv_bytes(spec)));
    let kv = kv.chain(kept.cross.iter().map(|spec| (spec.layer, memory.cross_bytes(spec))));
    let states = kept.states.iter().map(|spec| (spec.layer, memory.state_bytes(spec)));
    let (kv_bytes, state_bytes) = (by_memory(&placement, kv), by_memory(&placement, states));
    let has = |name: &str| rows.iter().any(|row| row.name == name);
    let image = image_rules(graph.as_ref(), &metadata, has).and_then(Result::ok);
    Ok(LoadPlan {
        arch,
        base,
        rows,
        places,
        summary,
        n_ctx: memory.n_ctx,
        kv_bytes,
        state_bytes,
        compute_bytes,
        result_shape: needs.result,
        row_count: needs.row_count,
        image,
        audio: graph.audio(),
        specs: needs.memory,
    })
}

/// Returns the image preprocessing with lists of the file, or a description of an invalid list.
fn image_rules(
    graph: &dyn BuildGraph,
    metadata: &Metadata,
    has_tensor: impl FnOnce(&str) -> bool,
) -> Option<Result<ImageRules, String>> {
    let list = |key: &str| {
        let array = metadata.get(&format!("clip.vision.{key}"))?.as_array()?;
        let side = |i: usize| array.get(i)?.as_u64().and_then(|side| usize::try_from(side).ok());
        Some((0..array.len()).map(|i| side(i).unwrap_or(0)).collect())
    };
    graph.image().map(|rules| rules.with_list(list, has_tensor))
}

fn log_placement(placement: &Placement, rows: &[TableRow]) {
    let summary = placement.summary(rows);
    tracing::info!(
        n_offloaded = summary.n_offloaded,
        n_layers = summary.n_layers,
        repacks = placement.repacks(),
        "placed the layers"
    );
    for (memory, bytes) in &summary.bytes {
        tracing::debug!(memory, bytes, "placed weights");
    }
}

/// Sums the bytes of layers by the memory of their device.
fn by_memory(placement: &Placement, kept: impl Iterator<Item = (usize, usize)>) -> Vec<(String, usize)> {
    let mut sums: Vec<(String, usize)> = Vec::new();
    for (layer, bytes) in kept {
        let ty = placement.kv_device(layer).buffer_type();
        match sums.iter_mut().find(|(name, _)| name == ty.name()) {
            Some((_, sum)) => *sum = sum.saturating_add(bytes),
            None => sums.push((ty.name().to_owned(), bytes)),
        }
    }
    sums
}

fn tensor_placement(row: &TableRow, parts: &[RowPart], placement: &Placement) -> TensorPlacement {
    let memory: Vec<_> = parts.iter().map(|part| placement.types[part.memory].name()).collect();
    let layout: Vec<_> = parts.iter().map(|part| part.layout.name()).collect();
    TensorPlacement {
        memory: memory.join("+"),
        layout: layout.join("+"),
        bytes: parts.iter().map(|part| part.bytes(row)).sum(),
    }
}

/// Common hyperparameters, graph builder, and tensor table.
pub type DeclaredModel = (Base, Box<dyn BuildGraph>, Vec<TableRow>);

/// Reads the hyperparameters and matches the tensors. Also returns warnings about keys that the file lacks.
fn declare(
    metadata: &Metadata,
    mut table: TensorTable<'_>,
    path: &Path,
    arch: &'static Architecture,
    prefix: &str,
    mtp: bool,
) -> Result<(DeclaredModel, Vec<String>), ModelError> {
    let mut reader = HparamReader::with_mtp(metadata, prefix, mtp && arch.mtp);
    let base = reader.base();
    if arch.needs_sections() || (arch.rope_with_sections.is_some() && base.has_sections()) {
        reader.check_sections(base.head_dim());
    }
    table.ignore_layers(base.n_layer_loaded()..base.n_layer_file());
    let own = arch.media.map(|media| media.medium);
    let is_other = |medium: &Medium| own.is_some_and(|own| own != *medium);
    let mut media = projector_types(metadata).into_iter().filter_map(|(medium, _)| medium);
    table.ignore_medium(media.find(is_other));
    // After errors, the reader returns placeholder values, from which tensors cannot be declared.
    let graph = if reader.failed() {
        None
    } else {
        arch.load.load(&mut reader, &mut table)
    };
    let image = graph
        .as_ref()
        .and_then(|graph| image_rules(graph.as_ref(), metadata, |_| true));
    let audio = graph.as_ref().and_then(|graph| graph.audio());
    let image = image.map(|rules| rules.and_then(|rules| rules.check()));
    let checks = [image, audio.map(|rules| rules.check())];
    for error in checks.into_iter().flatten().filter_map(Result::err) {
        reader.contradiction(error);
    }
    let warnings = std::mem::take(&mut reader.warnings);
    let errors = reader.into_errors();
    let graph = match graph {
        Some(graph) if errors.is_empty() => graph,
        _ => {
            let path = path.to_owned();
            return Err(ModelError::Hparams { path, errors });
        }
    };
    match table.finish() {
        Ok(rows) => {
            tracing::debug!(
                path = %path.display(),
                arch = arch.name,
                n_layer = base.n_layer(),
                n_tensors = rows.len(),
                "read the hyperparameters and tensors of a model"
            );
            Ok(((base, graph, rows), warnings))
        }
        Err(errors) => Err(ModelError::Tensors {
            path: path.to_owned(),
            arch: arch.name,
            errors,
        }),
    }
}

fn apply_overrides(metadata: &mut Metadata, overrides: &[(String, Value)]) {
    for (key, value) in overrides {
        metadata.insert(key.as_str(), value.clone());
    }
}

/// Rejects adapters, projectors, and other files that belong to a model, whose keys and tensors would be reported as
/// missing. Only a list of encoders accepts projectors.
fn check_kind(metadata: &Metadata, n_tensors: usize, path: &Path, archs: &[Registered]) -> Result<(), ModelError> {
    let is_for_encoders = archs.first().is_some_and(|r| r.arch.media.is_some());
    let path = || path.to_owned();
    match FileKind::of(metadata, n_tensors) {
        FileKind::Projector if is_for_encoders => Ok(()),
        kind if is_for_encoders => Err(ModelError::NotAnEncoder { path: path(), kind }),
        FileKind::Model => Ok(()),
        kind => Err(ModelError::NotAModel { path: path(), kind }),
    }
}

/// Loads the vocabulary; empty for a media encoder.
fn load_vocab(header: &Gguf, arch: &Architecture, path: &Path) -> Result<Vocab, ModelError> {
    let vocab = match arch.media {
        None => Vocab::load(header),
        Some(_) => Vocab::from_source(&VocabSource {
            model: "none",
            vocab_size: Some(1),
            ..VocabSource::default()
        }),
    };
    vocab.map_err(|source| ModelError::Vocab {
        path: path.to_owned(),
        source,
    })
}

/// Warning shown if weights were not repacked for lack of memory.
const NO_ROOM: &str = "not enough free memory to repack the weights; using the layout of the file, which is slower";

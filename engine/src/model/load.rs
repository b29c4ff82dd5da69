//! Loading: architecture, hyper-parameters, vocabulary, tensors, in this order.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::{BackendError, Buffer, Device};
use crate::builder::{
    BuildError, BuildGraph, BuildParams, BuildTables, Builder, Built, GraphOutput, GraphPart, HiddenRows, Inputs,
    KvSpec, MemorySpecs, WeightLeaf,
};
use crate::gguf::{Gguf, GgufFile, GgufSet, Metadata, Value};
use crate::graph::{BufferId, Graph, Home, Layout, Name, Op, TensorId, dense_bytes};
use crate::vocab::{Token, Vocab};

use super::fit::Outline;
use super::lock::Locked;
use super::nearest::nearest_names;
use super::params::LoadParams;
use super::placement::{Needs, Placement, PlacementSummary, RowPart};
use super::upload::{check_types, check_values, stored_parts, upload};
use super::{Architecture, Base, Fingerprint, HparamReader, ModelError, Registered, TableRow, TensorTable};

/// A model ready to be run by any number of [contexts](crate::context::Context).
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
    fingerprint: Fingerprint,
    warnings: Vec<String>,
    _locked: Option<Locked>,
}

/// What would go where, found out without loading any weight.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The architecture that the file is loaded with.
    pub arch: &'static Architecture,
    /// Its shared hyper-parameters.
    pub base: Base,
    /// The tensor table.
    pub rows: Vec<TableRow>,
    /// Where each row of it goes.
    pub places: Vec<Place>,
    /// Layers and bytes.
    pub summary: PlacementSummary,
    /// What attention and recurrences keep.
    pub specs: MemorySpecs,
    /// Tokens of the context that the model was planned with.
    pub n_ctx: usize,
    /// Bytes of its keys and values by memory, those that have any.
    pub kv_bytes: Vec<(String, usize)>,
    /// Bytes of its recurrent states by memory, those that have any.
    pub state_bytes: Vec<(String, usize)>,
    /// Bytes of its intermediate results by memory: what a context reserves for its largest graphs.
    pub compute_bytes: Vec<(String, usize)>,
}

/// Where a tensor goes. Of one that is divided, memories and layouts are joined by `+`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the memory.
    pub memory: String,
    /// Name of the arrangement of its rows there.
    pub layout: String,
    /// Bytes that it takes there.
    pub bytes: usize,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Model({}, {})", self.arch.name, self.path.display())
    }
}

impl Model {
    /// Loads a file, or the shards that belong to it, with one of the declared architectures.
    pub fn load(path: impl AsRef<Path>, archs: &[Registered], params: &LoadParams) -> Result<Model, ModelError> {
        Self::from_set(GgufSet::open(path)?, archs, params)
    }

    /// Loads an opened file, which may be in memory.
    pub fn from_file(file: GgufFile, archs: &[Registered], params: &LoadParams) -> Result<Model, ModelError> {
        Self::from_set(GgufSet::from_file(file)?, archs, params)
    }

    /// Loads opened shards.
    pub fn from_set(mut set: GgufSet, archs: &[Registered], params: &LoadParams) -> Result<Model, ModelError> {
        let path = set.first().path().to_owned();
        apply_overrides(set.metadata_mut(), &params.overrides);
        params.report(&path, 0.0)?;
        let (arch, prefix) = load_arch(set.metadata(), &path, archs, params.arch.as_deref())?;
        let table = TensorTable::of_set(&set);
        let (base, graph, rows) = declare(set.metadata(), table, &path, arch, &prefix, params.mtp)?;
        let vocab = Arc::new(load_vocab(set.first().header(), &path)?);
        if let Some(hook) = &params.on_vocab {
            hook(&vocab, base.n_vocab());
        }
        check_types(&path, &rows)?;
        let needs = probe(arch, &base, graph.as_ref(), &rows, &path)?;
        let outline = Outline::new(arch, &base, graph.as_ref(), &rows, &needs);
        let placement = outline.place(params).map_err(|source| ModelError::Placement {
            path: path.clone(),
            source,
        })?;
        if params.check_tensors {
            check_values(&set, &rows, params)?;
        }
        let of_vocab = vocab.warnings().iter().filter(|warning| !warning.is_put_right());
        let mut warnings: Vec<_> = of_vocab.map(ToString::to_string).collect();
        if params.placement.repack && !placement.repacks() {
            warnings.push(NO_ROOM.to_owned());
        }
        let fingerprint = Fingerprint::of(&set, arch, &prefix, &rows).map_err(|e| e.in_file(&path))?;
        let (leafs, buffers) = upload(&set, &rows, &placement, params)?;
        let locked = (params.mlock).then(|| Locked::all(&path, &leafs, &buffers, &mut warnings));
        params.report(&path, 1.0)?;
        let metadata = set.metadata().clone();
        Ok(Model {
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
            fingerprint,
            warnings,
            _locked: locked,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The architecture it was loaded as.
    pub fn arch(&self) -> &'static Architecture {
        self.arch
    }
    /// The file's metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    /// Shared hyper-parameters.
    pub fn base(&self) -> &Base {
        &self.base
    }
    /// Text to tokens and back.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }
    /// The tensor table.
    pub fn tensors(&self) -> &[TableRow] {
        &self.rows
    }
    /// Bytes of all weights; a tied output counts once.
    pub fn n_bytes(&self) -> usize {
        self.distinct_rows().map(TableRow::file_bytes).sum()
    }
    /// Number of parameters.
    pub fn n_params(&self) -> usize {
        self.distinct_rows().map(|r| r.ne.iter().product::<usize>()).sum()
    }
    /// Where everything is.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }
    /// Layers and bytes by memory.
    pub fn placement_summary(&self) -> PlacementSummary {
        self.placement.summary(&self.rows)
    }
    /// The device of the most layers, for messages.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.placement.devices[0]
    }
    /// What may make answers worse, in sentences. Of the vocabulary, what was put right is left out ([`Vocab::warnings`] has it).
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
    /// Caches and states that the graph needs.
    pub fn memory_specs(&self) -> &MemorySpecs {
        &self.memory
    }
    /// The KV cache row of each attention call of the graph.
    pub fn kv_specs(&self) -> &[KvSpec] {
        &self.memory.kv
    }
    /// Positions that the model has learned, from 0 on, if it looks them up in a table.
    pub fn max_positions(&self) -> Option<usize> {
        self.max_positions
    }
    /// Identifies the model, for saved states.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }
    /// Every token sees all of its sequence: the architecture or the file (`attention.causal`) says so.
    pub fn bidirectional(&self) -> bool {
        self.arch.bidirectional || !self.base.causal
    }
    /// The layer of multi-token prediction is loaded.
    pub fn has_mtp(&self) -> bool {
        self.base.n_layer_loaded() > self.base.n_layer()
    }
    /// What the graph of one token of one sequence is built for.
    pub(crate) fn build_params(&self) -> BuildParams {
        build_params(self.arch, &self.base)
    }
    /// Builds the model's whole graph, or that of its layer of multi-token prediction, with the result that the builder's parameters ask for.
    pub fn build(&self, b: &mut Builder<'_>) -> Built {
        b.whole(self.arch.results(), self.graph.as_ref())
    }
    /// The token that decoding starts with after a prompt was encoded: what the file says, else the one that begins texts.
    pub fn decoder_start(&self) -> Option<Token> {
        let prefix: Option<String> = self.metadata.optional("general.architecture").ok().flatten();
        let key = format!("{}.decoder_start_token_id", prefix.as_deref().unwrap_or(self.arch.name));
        let id: Option<i64> = self.metadata.optional(&key).ok().flatten();
        let known = id.and_then(|id| Token::try_from(id).ok());
        known
            .filter(|&id| (id as usize) < self.base.n_vocab())
            .or(self.vocab.bos())
    }
    /// The same weights under a graph made of this one.
    pub(crate) fn map_graph(self, map: impl FnOnce(Box<dyn BuildGraph>) -> Box<dyn BuildGraph>) -> Model {
        Model {
            graph: map(self.graph),
            ..self
        }
    }
    /// Adds the graph of the model's encoder, if it has one, to a builder.
    pub fn encode(&self, b: &mut Builder<'_>) -> Option<crate::graph::TensorId> {
        self.graph.encode(b)
    }
    /// As [`Model::memory_specs`], for the graphs of one context: rotations depend on its settings.
    pub(crate) fn memory_specs_in(&self, params: BuildParams) -> Result<MemorySpecs, BuildError> {
        needs(self.arch, self.graph.as_ref(), &self.leafs, params).map(|needs| needs.memory)
    }
    /// The bytes of row `index` of the tensor table, read back from where they lie, in the arrangement of a file and in the
    /// [type](TableRow::stored_type) they are stored in.
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
    /// Bytes of memory that the weights take beside a mapped file's pages.
    pub fn own_bytes(&self) -> usize {
        let own = self.buffers.iter().filter(|buffer| !buffer.is_read_only());
        own.map(|buffer| buffer.size()).sum()
    }
    pub(crate) fn leafs(&self) -> &[WeightLeaf] {
        &self.leafs
    }
    /// The buffers of the weights; a context registers them first and in order, so that the homes of the weights hold there.
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

/// Reads hyper-parameters and declares tensors for a header, whether or not the data is there.
/// Returns the table and the graph; used by checks over headers.
pub fn declare_header(
    header: &Gguf,
    path: &Path,
    arch: &'static Architecture,
    prefix: &str,
) -> Result<Declared, ModelError> {
    declare(&header.metadata, TensorTable::new(header), path, arch, prefix, false)
}

/// What would go where if the file were loaded. The tensors' data need not be there.
pub fn plan(header: &Gguf, path: &Path, archs: &[Registered], params: &LoadParams) -> Result<Plan, ModelError> {
    plan_table(&header.metadata, TensorTable::new(header), path, archs, params)
}

/// Like [`plan`], for a model in one file or several, all of them whole.
pub fn plan_set(set: &GgufSet, archs: &[Registered], params: &LoadParams) -> Result<Plan, ModelError> {
    let (table, path) = (TensorTable::of_set(set), set.first().path());
    plan_table(set.metadata(), table, path, archs, params)
}

fn plan_table(
    metadata: &Metadata,
    table: TensorTable<'_>,
    path: &Path,
    archs: &[Registered],
    params: &LoadParams,
) -> Result<Plan, ModelError> {
    let mut metadata = metadata.clone();
    apply_overrides(&mut metadata, &params.overrides);
    let (arch, prefix) = load_arch(&metadata, path, archs, params.arch.as_deref())?;
    let (base, graph, rows) = declare(&metadata, table, path, arch, &prefix, params.mtp)?;
    let needs = probe(arch, &base, graph.as_ref(), &rows, path)?;
    let outline = Outline::new(arch, &base, graph.as_ref(), &rows, &needs);
    let impossible = |source| ModelError::Placement {
        path: path.to_owned(),
        source,
    };
    let placement = outline.place(params).map_err(impossible)?;
    let memory = outline.memory(&params.placement);
    let compute_bytes = outline.compute_bytes(&placement, memory).map_err(impossible)?;
    let places = rows.iter().zip(&placement.parts);
    let places = places.map(|(row, parts)| place_of(row, parts, &placement)).collect();
    let summary = placement.summary(&rows);
    let kept = outline.kept();
    let kv = kept.kv.iter().map(|spec| (spec.layer, memory.kv_bytes(spec)));
    let states = kept.states.iter().map(|spec| (spec.layer, memory.state_bytes(spec)));
    let (kv_bytes, state_bytes) = (by_memory(&placement, kv), by_memory(&placement, states));
    Ok(Plan {
        arch,
        base,
        rows,
        places,
        summary,
        n_ctx: memory.n_ctx,
        kv_bytes,
        state_bytes,
        compute_bytes,
        specs: needs.memory,
    })
}

/// Adds up what layers keep, by the memory that they keep it in.
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

fn place_of(row: &TableRow, parts: &[RowPart], placement: &Placement) -> Place {
    let memory: Vec<_> = parts.iter().map(|part| placement.types[part.memory].name()).collect();
    let layout: Vec<_> = parts.iter().map(|part| part.layout.name()).collect();
    Place {
        memory: memory.join("+"),
        layout: layout.join("+"),
        bytes: parts.iter().map(|part| part.bytes(row)).sum(),
    }
}

/// Shared hyper-parameters, the graph and the tensor table.
pub type Declared = (Base, Box<dyn BuildGraph>, Vec<TableRow>);

fn declare(
    metadata: &Metadata,
    mut table: TensorTable<'_>,
    path: &Path,
    arch: &'static Architecture,
    prefix: &str,
    mtp: bool,
) -> Result<Declared, ModelError> {
    let mut reader = HparamReader::with_mtp(metadata, prefix, mtp && arch.mtp);
    let base = reader.base();
    if arch.needs_sections() || (arch.rope_with_sections.is_some() && base.has_sections()) {
        reader.check_sections(base.head_dim());
    }
    table.ignore_layers(base.n_layer_loaded()..base.n_layer_file());
    // Tensors cannot be declared from hyper-parameters that are dummies.
    let graph = if reader.failed() {
        None
    } else {
        (arch.load)(&mut reader, &mut table)
    };
    let errors = reader.into_errors();
    let Some(graph) = graph.filter(|_| errors.is_empty()) else {
        return Err(ModelError::Hparams {
            path: path.to_owned(),
            errors,
        });
    };
    match table.finish() {
        Ok(rows) => Ok((base, graph, rows)),
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

/// The architecture to load as, and the prefix of the file's keys.
fn load_arch(
    metadata: &Metadata,
    path: &Path,
    archs: &[Registered],
    wanted: Option<&str>,
) -> Result<(&'static Architecture, String), ModelError> {
    let prefix: String = metadata.require("general.architecture").map_err(|e| e.in_file(path))?;
    let name = wanted.unwrap_or(&prefix);
    match archs.iter().find(|r| r.arch.name == name) {
        Some(r) => Ok((r.arch, prefix)),
        None => Err(ModelError::UnknownArchitecture {
            path: path.to_owned(),
            found: name.to_owned(),
            nearest: nearest_names(name, archs.iter().map(|r| r.arch.name)),
        }),
    }
}

fn load_vocab(header: &Gguf, path: &Path) -> Result<Vocab, ModelError> {
    Vocab::load(header).map_err(|source| ModelError::Vocab {
        path: path.to_owned(),
        source,
    })
}

/// Said of a model that was not repacked because there is no room for it.
const NO_ROOM: &str =
    "there is not enough free memory to repack the weights: they stay as in the file, which is slower to compute with";

/// Builds the graph once without a memory, to learn what it needs and that all shapes agree.
fn probe(
    arch: &'static Architecture,
    base: &Base,
    graph: &dyn BuildGraph,
    rows: &[TableRow],
    path: &Path,
) -> Result<Needs, ModelError> {
    // Nothing is computed: the weights need shapes, not bytes.
    let nowhere = Home {
        buffer: BufferId(0),
        offset: 0,
    };
    let leaf = |r: &TableRow| WeightLeaf {
        ty: r.stored_type(),
        ne: r.ne,
        home: nowhere,
        layout: Layout::Plain,
        name: Name {
            base: r.base,
            layer: r.layer,
        },
        parts: Vec::new(),
    };
    let leafs: Vec<_> = rows.iter().map(leaf).collect();
    let params = BuildParams {
        causal: !arch.bidirectional,
        ..build_params(arch, base)
    };
    let fault = |source| ModelError::Graph {
        path: path.to_owned(),
        source,
    };
    // The shapes behind pooling must agree too; a model without hidden states gives logits only.
    let embedding = GraphOutput::Embedding {
        n_means: 1,
        rank: false,
    };
    let params = BuildParams {
        output: embedding,
        ..params
    };
    match needs(arch, graph, &leafs, params) {
        Ok(_) | Err(BuildError::NoHidden) => {}
        Err(e) => return Err(fault(e)),
    }
    let params = BuildParams {
        output: GraphOutput::Result,
        ..params
    };
    let has_mtp = base.n_layer_loaded() > base.n_layer();
    needs_of_all(arch, graph, &leafs, params, has_mtp).map_err(fault)
}

/// What the graph of one token of one sequence is built for.
pub(super) fn build_params(arch: &Architecture, base: &Base) -> BuildParams {
    BuildParams {
        n_tokens: 1,
        n_outputs: 1,
        n_seq_max: 1,
        part: GraphPart::Graph,
        hidden: HiddenRows::None,
        // The number of rows makes no difference to what memory a graph needs.
        n_encoded: 1,
        n_embd: base.n_embd(),
        n_ctx: 0,
        rope_kind: arch.rope_kind(base),
        rope: base.rope,
        rope_sections: base.rope_sections,
        n_rot: base.n_rot(),
        causal: !arch.bidirectional && base.causal,
        output: GraphOutput::Result,
    }
}

/// What the graph of these parameters needs, where the architecture's other graphs use the same weights.
fn needs_of_all(
    arch: &Architecture,
    graph: &dyn BuildGraph,
    leafs: &[WeightLeaf],
    params: BuildParams,
    has_mtp: bool,
) -> Result<Needs, BuildError> {
    let mut all = needs(arch, graph, leafs, params)?;
    // An encoder keeps nothing, but uses weights too.
    let encoder = BuildParams {
        part: GraphPart::Encoder,
        causal: false,
        ..params
    };
    all.use_also(&needs(arch, graph, leafs, encoder)?);
    // What a layer of multi-token prediction keeps lies in a context of its own.
    if has_mtp {
        let part = GraphPart::Mtp;
        all.use_also(&needs(arch, graph, leafs, BuildParams { part, ..params })?);
    }
    Ok(all)
}

/// What the graph of these parameters needs. An encoder that is not there needs nothing.
fn needs(
    arch: &Architecture,
    graph: &dyn BuildGraph,
    leafs: &[WeightLeaf],
    params: BuildParams,
) -> Result<Needs, BuildError> {
    let mut g = Graph::new();
    let (mut tables, mut inputs, mut memory) = (BuildTables::default(), Inputs::default(), MemorySpecs::default());
    let mut b = Builder::probe(&mut g, leafs, &mut tables, &mut inputs, params, &mut memory);
    match params.part {
        GraphPart::Encoder => _ = graph.encode(&mut b),
        GraphPart::Graph | GraphPart::Mtp => _ = b.whole(arch.results(), graph),
    }
    b.finish()?;
    Ok(Needs {
        memory,
        max_positions: inputs.max_positions,
        // Products have leafs of their own in a probe.
        divisible: tables.leafs.iter().map(Option::is_none).collect(),
        read_by_rows: read_by_rows(&g, &tables.leafs),
    })
}

/// By weight: nothing but products and look-ups use it, as their matrix or table, whole. `leafs` are those of the weights that have other uses
/// than plain products, which have leafs of their own.
fn read_by_rows(g: &Graph, leafs: &[Option<TensorId>]) -> Vec<bool> {
    let mut otherwise = vec![false; g.len()];
    for id in g.ids() {
        let t = g.tensor(id);
        let matrix = matches!(t.op, Op::MulMat | Op::MulMatId | Op::GetRows).then_some(0);
        for (i, source) in t.sources().enumerate() {
            otherwise[source.index()] |= matrix != Some(i);
        }
    }
    leafs
        .iter()
        .map(|leaf| leaf.is_none_or(|leaf| !otherwise[leaf.index()]))
        .collect()
}

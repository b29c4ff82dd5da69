//! Static description of an architecture, as generated from an architecture file by `arch!`.

use std::fmt;
use std::sync::Arc;

use crate::builder::{
    BatchMedia, BuildGraph, BuildParams, GraphOutput, GraphPart, HiddenRows, PatchGrid, Pooling, Results,
};
use crate::graph::RopeKind;

use super::{Base, Checkpoint, ENCODER_ARCH, HparamReader, MediaDecl, MediaUse, TensorTable};

/// Declared architecture, emitted by `arch!`. The engine has no other knowledge of an architecture.
#[derive(Debug)]
pub struct Architecture {
    /// Value of `general.architecture` in GGUF files.
    pub name: &'static str,
    /// Ancestors in the `like` chain, nearest first.
    pub like: &'static [&'static str],
    /// RoPE kind, or `None` for models without RoPE.
    pub rope: Option<RopeKind>,
    /// RoPE kind for files with `rope.dimension_sections` (several position axes), if different.
    pub rope_with_sections: Option<RopeKind>,
    /// Attention is bidirectional (encoders, diffusion models). There is no KV cache; every batch is computed
    /// as a whole.
    pub bidirectional: bool,
    /// The model has an encoder, and the decoder graph attends to its output. A sequence must be encoded
    /// before it is decoded.
    pub encoder: bool,
    /// The architecture declares a multi-token prediction (MTP) graph.
    pub mtp: bool,
    /// The output is the hidden state before the final projection (embedding models that share the graph of a
    /// language model).
    pub embeddings: bool,
    /// The graph ends in logits `[n_vocab, T]` rather than in embeddings `[n_embd, T]`.
    pub projects: bool,
    /// Default pooling before [`BuildGraph::rank`], used if the file declares none.
    pub rank_pooling: Option<Pooling>,
    /// Published models that their sizes identify: name and condition.
    pub models: &'static [(&'static str, &'static str)],
    /// Declared hyperparameters.
    pub hparams: &'static [HparamDecl],
    /// Builtin size symbols and the metadata keys that [`Base`] reads them from.
    pub symbols: &'static [(&'static str, &'static str)],
    /// Declared tensors.
    pub tensors: &'static [TensorDecl],
    /// Sources of keys and tensors in published checkpoints.
    pub checkpoints: &'static [Checkpoint],
    /// Hyperparameters of a tiny test model with random weights, by symbol; booleans are 0 and 1.
    pub test: &'static [(&'static str, f64)],
    /// Description of the medium, if the architecture is a media encoder.
    pub media: Option<MediaDecl>,
    /// Treatment of media rows by the graph.
    pub media_use: MediaUse,
    /// Reader of hyperparameters and tensors.
    pub load: Loader,
}

/// Generated function that reads the hyperparameters, declares the tensors, and returns the graph builder; `None` if
/// the reader recorded errors.
pub type LoadCode = fn(&mut HparamReader<'_>, &mut TensorTable<'_>) -> Option<Box<dyn BuildGraph>>;

/// Declaration that was read at run time.
pub trait LoadProgram: fmt::Debug + Send + Sync {
    /// Returns a digest of the declaration.
    fn digest(&self) -> u64;

    /// Reads the hyperparameters, declares the tensors, and returns the graph builder; see [`LoadCode`].
    fn load(self: Arc<Self>, r: &mut HparamReader<'_>, t: &mut TensorTable<'_>) -> Option<Box<dyn BuildGraph>>;
}

/// Reader of the hyperparameters and tensors of an architecture.
#[derive(Clone, Debug)]
pub enum Loader {
    /// Code that `arch!` generated.
    Code(LoadCode),
    /// Declaration that was read at run time.
    Program(Arc<dyn LoadProgram>),
}

impl Loader {
    /// Reads the hyperparameters, declares the tensors, and returns the graph builder; `None` if the reader recorded
    /// errors.
    pub fn load(&self, r: &mut HparamReader<'_>, t: &mut TensorTable<'_>) -> Option<Box<dyn BuildGraph>> {
        match self {
            Loader::Code(code) => code(r, t),
            Loader::Program(program) => program.clone().load(r, t),
        }
    }

    /// Returns a digest of a declaration that was read at run time. For generated code, the name of the architecture
    /// suffices.
    pub(super) fn digest(&self) -> Option<u64> {
        match self {
            Loader::Code(_) => None,
            Loader::Program(program) => Some(program.digest()),
        }
    }
}

impl Architecture {
    /// Returns the RoPE kind for a file with these hyperparameters, or `None` for models without RoPE.
    pub fn rope_kind(&self, base: &Base) -> Option<RopeKind> {
        match self.rope_with_sections {
            Some(kind) if base.has_sections() => Some(kind),
            _ => self.rope,
        }
    }

    /// Returns the value of `general.architecture` in the files of this architecture.
    pub fn file_arch(&self) -> &'static str {
        if self.media.is_some() { ENCODER_ARCH } else { self.name }
    }

    /// Returns the prefix of the metadata keys in files with `general.architecture = arch`.
    pub fn key_prefix<'a>(&self, arch: &'a str) -> &'a str {
        self.media.map_or(arch, |media| media.medium.key_prefix())
    }

    /// Returns the metadata key (without the architecture prefix) of a builtin size symbol.
    pub(crate) fn key_of_symbol(&self, symbol: &str) -> Option<&'static str> {
        let mut symbols = self.symbols.iter();
        symbols.find(|(name, _)| *name == symbol).map(|&(_, key)| key)
    }

    /// Returns the kind of output of the graphs.
    pub(super) fn results(&self) -> Results {
        Results {
            embeddings: self.embeddings,
            projects: self.projects,
        }
    }

    /// Returns build parameters for a graph of one token in one sequence, of the largest square image, or of one chunk
    /// of audio.
    pub(super) fn build_params(&self, base: &Base, graph: &dyn BuildGraph) -> BuildParams {
        let grid = graph.image().map_or_else(PatchGrid::default, |rules| rules.largest());
        let n_tokens = match self.media {
            None => 1,
            Some(_) => {
                let n_columns = graph.image().map(|rules| rules.n_columns(grid.n_patches()));
                n_columns.or(graph.audio().map(|rules| rules.chunk)).unwrap_or(1)
            }
        };
        BuildParams {
            n_tokens,
            n_outputs: n_tokens,
            n_seq_max: 1,
            part: GraphPart::Graph,
            hidden: HiddenRows::None,
            // The number of encoded rows does not affect the cache specifications.
            n_encoded: if self.media.is_some() { n_tokens } else { 1 },
            n_embd: base.n_embd(),
            n_ctx: 0,
            rope_kind: self.rope_kind(base),
            rope: base.rope,
            rope_sections: base.rope_sections,
            n_rot: base.n_rot(),
            causal: !self.bidirectional && base.causal,
            output: GraphOutput::Result,
            media: BatchMedia::None,
            grid,
        }
    }

    /// Returns true if the file must provide M-RoPE sections.
    pub(crate) fn needs_sections(&self) -> bool {
        self.rope.is_some_and(|kind| kind.n_axes() > 1)
    }
}

/// Registry entry, generated for every architecture file.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    /// Declaration of the architecture.
    pub arch: &'static Architecture,
    /// Description from the first lines of the architecture file.
    pub about: &'static str,
}

/// Declared hyperparameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HparamDecl {
    /// Name of the field in the architecture file.
    pub name: &'static str,
    /// GGUF key without the architecture prefix; empty for derived values.
    pub key: &'static str,
    /// Type of the field, as written in the source.
    pub ty: &'static str,
    /// Default value or defining expression as written; `None` if the key is required.
    pub default: Option<&'static str>,
}

/// Declared tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorDecl {
    /// Name of the field in the architecture file.
    pub field: &'static str,
    /// GGUF name without the layer prefix and `.weight`.
    pub gguf: &'static str,
    /// Kind: `embed`, `vector`, `norm`, `linear`, `experts`, or `raw`.
    pub kind: &'static str,
    /// Symbolic shape as written, such as `[n_embd -> n_head * head_dim]`.
    pub shape: &'static str,
    /// Prefix of the layer group, such as `blk`.
    pub group: Option<&'static str>,
    /// True if files may omit the tensor.
    pub optional: bool,
    /// Field used if the tensor is missing (tied weights).
    pub tied: Option<&'static str>,
    /// Alternative tensor name in GGUF files.
    pub other_name: Option<&'static str>,
    /// Condition under which the tensor is declared.
    pub condition: Option<&'static str>,
}

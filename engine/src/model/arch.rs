//! What an architecture file becomes: static descriptions, and the function that declares its tensors.

use crate::builder::{BuildGraph, GraphPart, Pooling, Results};
use crate::graph::RopeKind;

use super::{Base, HparamReader, TensorTable};

/// One declared architecture. Emitted by `arch!`; everything the engine knows of an architecture is in here.
#[derive(Debug)]
pub struct Architecture {
    /// Value of `general.architecture` in GGUF files.
    pub name: &'static str,
    /// What its declaration is `like`, nearest first.
    pub like: &'static [&'static str],
    /// RoPE kind; `None` for models without RoPE.
    pub rope: Option<RopeKind>,
    /// RoPE kind for files with several position axes (`rope.dimension_sections`), if it differs.
    pub rope_with_sections: Option<RopeKind>,
    /// Every token sees all of its sequence, earlier and later ones (encoders, diffusion models). There is no KV memory: a batch is
    /// computed whole and on its own.
    pub bidirectional: bool,
    /// There is an encoder, whose result the graph attends to: a sequence is encoded before it is decoded.
    pub encoder: bool,
    /// There is a graph for layers of multi-token prediction.
    pub mtp: bool,
    /// The result is the hidden state before the graph's last projection: an embedding model that shares the graph of a language model.
    pub embeddings: bool,
    /// The graph ends in logits `[n_vocab, T]`, not in embeddings `[n_embd, T]`.
    pub projects: bool,
    /// Pooling before [`BuildGraph::rank`] if the file has none.
    pub rank_pooling: Option<Pooling>,
    /// The declared hyper-parameters.
    pub hparams: &'static [HparamDecl],
    /// Sizes that every declaration has without declaring them, with the keys that [`Base`] reads them from.
    pub symbols: &'static [(&'static str, &'static str)],
    /// The declared tensors.
    pub tensors: &'static [TensorDecl],
    /// Sizes and other values of hyper-parameters for a tiny model with random weights, by symbol; switches are 0 and 1.
    pub test: &'static [(&'static str, f64)],
    /// The graph's values and their operands, for drawings.
    pub flow: &'static [FlowNode],
    /// Reads the hyper-parameters, declares the tensors and gives the graph builder; `None` if the reader noted errors.
    pub load: fn(&mut HparamReader<'_>, &mut TensorTable<'_>) -> Option<Box<dyn BuildGraph>>,
}

impl Architecture {
    /// RoPE kind for a file with these hyper-parameters; `None` for models without RoPE.
    pub fn rope_kind(&self, base: &Base) -> Option<RopeKind> {
        self.rope_with_sections.filter(|_| base.has_sections()).or(self.rope)
    }

    /// The key, without the architecture's name, that a size is read from which every declaration has.
    pub(crate) fn key_of_symbol(&self, symbol: &str) -> Option<&'static str> {
        let mut symbols = self.symbols.iter();
        symbols.find(|(name, _)| *name == symbol).map(|&(_, key)| key)
    }

    /// What its graphs end in.
    pub(super) fn results(&self) -> Results {
        Results {
            embeddings: self.embeddings,
            projects: self.projects,
        }
    }

    /// Whether the file must give M-RoPE sections.
    pub(crate) fn needs_sections(&self) -> bool {
        self.rope.is_some_and(|kind| kind.n_axes() > 1)
    }
}

/// An architecture in the registry that the presence of its file makes.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    /// The declaration.
    pub arch: &'static Architecture,
    /// What the file says of the model in its first lines.
    pub about: &'static str,
}

/// A hyper-parameter as declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HparamDecl {
    /// Name in the architecture file.
    pub name: &'static str,
    /// GGUF key without the architecture's prefix; empty for derived values.
    pub key: &'static str,
    /// Type as written.
    pub ty: &'static str,
    /// Default or defining expression as written; `None` if the key is required.
    pub default: Option<&'static str>,
}

/// A tensor as declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorDecl {
    /// Name in the architecture file.
    pub field: &'static str,
    /// GGUF name without the layer's prefix and without `.weight`.
    pub gguf: &'static str,
    /// `embed`, `vector`, `norm`, `linear`, `experts` or `raw`.
    pub kind: &'static str,
    /// Symbolic shape as written, such as `[n_embd -> n_head * head_dim]`.
    pub shape: &'static str,
    /// Prefix of its layer group, such as `blk`.
    pub group: Option<&'static str>,
    /// May be absent.
    pub optional: bool,
    /// Field used instead when absent (tied weights).
    pub tied: Option<&'static str>,
    /// Alternative GGUF name.
    pub other_name: Option<&'static str>,
    /// Declared only under this condition.
    pub condition: Option<&'static str>,
}

/// A value of the declared graph, for drawings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowNode {
    /// Name of the value (a `let`) or text of the operation.
    pub label: &'static str,
    /// Symbolic shape.
    pub shape: &'static str,
    /// Inside the layer loop.
    pub in_layer: bool,
    /// The graph that it is a value of.
    pub part: GraphPart,
    /// What must hold for it to be computed; empty where nothing must.
    pub condition: &'static str,
    /// Indices of the nodes it is computed from.
    pub inputs: &'static [usize],
}

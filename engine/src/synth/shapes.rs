//! Shapes of published models, as sizes for declarations.

use crate::model::Architecture;

/// Sizes that determine most of a model's speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Name of the shape on the command line.
    pub name: &'static str,
    /// Published model with these sizes.
    pub of: &'static str,
    /// Number of layers.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Number of query heads.
    pub n_head: usize,
    /// Number of key and value heads.
    pub n_head_kv: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Width of the feed-forward network.
    pub n_ff: usize,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// Whether the output projection shares the token embeddings.
    pub tied: bool,
}

/// All shapes, smallest first.
pub const SHAPES: &[ModelShape] = &[
    ModelShape {
        name: "tiny",
        of: "two layers, for tests",
        n_layer: 2,
        n_embd: 256,
        n_head: 4,
        n_head_kv: 2,
        head_dim: 64,
        n_ff: 512,
        n_vocab: 512,
        tied: true,
    },
    ModelShape {
        name: "135m",
        of: "SmolLM2-135M",
        n_layer: 30,
        n_embd: 576,
        n_head: 9,
        n_head_kv: 3,
        head_dim: 64,
        n_ff: 1536,
        n_vocab: 49152,
        tied: true,
    },
    ModelShape {
        name: "270m",
        of: "gemma-3-270m",
        n_layer: 18,
        n_embd: 640,
        n_head: 4,
        n_head_kv: 1,
        head_dim: 256,
        n_ff: 2048,
        n_vocab: 262_144,
        tied: true,
    },
    ModelShape {
        name: "0.5b",
        of: "Qwen2.5-0.5B",
        n_layer: 24,
        n_embd: 896,
        n_head: 14,
        n_head_kv: 2,
        head_dim: 64,
        n_ff: 4864,
        n_vocab: 151_936,
        tied: true,
    },
    ModelShape {
        name: "1b",
        of: "Llama-3.2-1B",
        n_layer: 16,
        n_embd: 2048,
        n_head: 32,
        n_head_kv: 8,
        head_dim: 64,
        n_ff: 8192,
        n_vocab: 128_256,
        tied: true,
    },
    ModelShape {
        name: "3b",
        of: "Llama-3.2-3B",
        n_layer: 28,
        n_embd: 3072,
        n_head: 24,
        n_head_kv: 8,
        head_dim: 128,
        n_ff: 8192,
        n_vocab: 128_256,
        tied: true,
    },
    ModelShape {
        name: "8b",
        of: "Llama-3.1-8B",
        n_layer: 32,
        n_embd: 4096,
        n_head: 32,
        n_head_kv: 8,
        head_dim: 128,
        n_ff: 14336,
        n_vocab: 128_256,
        tied: false,
    },
];

/// Sizes taken from an architecture's `test { … }` block if its declaration rejects the sizes of the shape because of
/// dependencies between sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArchSizes {
    /// Number of key heads.
    KvHeads,
    /// Rotated fraction of a head, and key length of indexers relative to it.
    PartsOfHeads,
    /// Number of layers.
    Layers,
    /// Size of the vocabulary, if larger.
    Vocabulary,
}

impl ArchSizes {
    const ALL: [ArchSizes; 4] = [
        ArchSizes::KvHeads,
        ArchSizes::PartsOfHeads,
        ArchSizes::Layers,
        ArchSizes::Vocabulary,
    ];

    /// Returns all subsets, smallest first.
    pub fn sets() -> Vec<Vec<ArchSizes>> {
        let set = |bits: usize| {
            (0..ArchSizes::ALL.len())
                .filter(move |i| bits >> i & 1 == 1)
                .map(|i| ArchSizes::ALL[i])
        };
        let mut sets: Vec<Vec<ArchSizes>> = (0..1 << ArchSizes::ALL.len()).map(|bits| set(bits).collect()).collect();
        sets.sort_by_key(Vec::len);
        sets
    }
}

impl ModelShape {
    /// Returns the shape named `name`.
    pub fn find(name: &str) -> Option<&'static ModelShape> {
        SHAPES.iter().find(|shape| shape.name == name)
    }

    /// Returns symbols and values for an architecture. The sizes of the shape (except `own`), and then `settings`,
    /// override the values of its `test { … }` block. Dense models have no experts.
    pub(super) fn sizes(
        &self,
        arch: &Architecture,
        dense: bool,
        own: &[ArchSizes],
        settings: &[(String, f64)],
    ) -> Vec<(String, f64)> {
        let test = |symbol: &str| arch.test.iter().find(|(name, _)| *name == symbol).map(|&(_, n)| n);
        let mut sizes: Vec<(String, f64)> = (arch.test.iter())
            .filter(|(symbol, _)| !dense || !symbol.starts_with("n_expert"))
            .map(|&(symbol, n)| (symbol.to_owned(), n))
            .collect();
        let mut set = |symbol: &str, n: f64| match sizes.iter_mut().find(|(name, _)| name == symbol) {
            Some((_, old)) => *old = n,
            None => sizes.push((symbol.to_owned(), n)),
        };
        // If the decoder has a separate context, this context belongs to the audio encoder.
        let is_encoder = symbols(arch).contains(&"n_ctx_dec");
        set("n_ctx_train", if is_encoder { N_CTX_AUDIO } else { N_CTX_TRAIN });
        if !own.contains(&ArchSizes::Layers) {
            set("n_layer", self.n_layer as f64);
        }
        set("n_embd", self.n_embd as f64);
        let least = if own.contains(&ArchSizes::Vocabulary) {
            test("n_vocab")
        } else {
            None
        };
        set("n_vocab", least.unwrap_or(0.0).max(self.n_vocab as f64));
        if test("n_ff") != Some(0.0) {
            set("n_ff", self.n_ff as f64);
        }
        if test("n_head") != Some(0.0) {
            set("n_head", self.n_head as f64);
            if !own.contains(&ArchSizes::KvHeads) {
                set("n_head_kv", self.n_head_kv as f64);
            }
            set("head_dim", self.head_dim as f64);
            set("head_dim_v", self.head_dim as f64);
        }
        let of_test = test("n_embd")
            .zip(test("n_head"))
            .map(|(n_embd, n_head)| n_embd / n_head);
        if let (true, Some(head_dim)) = (own.contains(&ArchSizes::PartsOfHeads), test("head_dim").or(of_test)) {
            let parts = ["n_rot", "index_dim"]
                .into_iter()
                .filter_map(|part| Some((part, test(part)?)));
            parts.for_each(|(part, n)| set(part, n / head_dim * self.head_dim as f64));
        }
        // The inner width of a recurrence is a multiple of the residual stream's width.
        if let (Some(inner), Some(n_embd)) = (test("d_inner"), test("n_embd")) {
            set("d_inner", inner / n_embd * self.n_embd as f64);
        }
        settings.iter().for_each(|(symbol, n)| set(symbol, *n));
        sizes
    }
}

/// Training context length in the metadata; sufficient for any benchmark.
const N_CTX_TRAIN: f64 = 131_072.0;

/// Positions of 30 seconds of audio.
const N_CTX_AUDIO: f64 = 1500.0;

/// Returns the names of an architecture's sizes and hyperparameters.
pub(super) fn symbols(arch: &Architecture) -> Vec<&'static str> {
    let declared = arch.hparams.iter().filter(|h| !h.key.is_empty()).map(|h| h.name);
    arch.symbols.iter().map(|(symbol, _)| *symbol).chain(declared).collect()
}

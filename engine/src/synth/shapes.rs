//! Shapes of published models, as sizes for a declaration.

use crate::model::Architecture;

/// Sizes that say most of a model's speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Name on a command line.
    pub name: &'static str,
    /// The published model with these sizes.
    pub of: &'static str,
    /// Layers.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key and value heads.
    pub n_head_kv: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Width of the feed-forward network.
    pub n_ff: usize,
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// The token embeddings serve as the output matrix.
    pub tied: bool,
}

/// All known shapes, small ones first.
pub const SHAPES: &[Shape] = &[
    Shape {
        name: "tiny",
        of: "no model: two layers, for tests",
        n_layer: 2,
        n_embd: 256,
        n_head: 4,
        n_head_kv: 2,
        head_dim: 64,
        n_ff: 512,
        n_vocab: 512,
        tied: true,
    },
    Shape {
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
    Shape {
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
    Shape {
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
    Shape {
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
    Shape {
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
    Shape {
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

/// What an architecture has of its own where its declaration does not take the shape's: sizes that depend on one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    /// As many key heads as in its `test { … }`.
    KvHeads,
    /// As large a part of a head that rotates, and keys of indexers that are as much longer.
    PartsOfHeads,
    /// As many layers.
    Layers,
    /// As many tokens, if that is more.
    Vocabulary,
}

impl Own {
    const ALL: [Own; 4] = [Own::KvHeads, Own::PartsOfHeads, Own::Layers, Own::Vocabulary];

    /// All sets of them, small ones first.
    pub fn sets() -> Vec<Vec<Own>> {
        let set = |bits: usize| {
            (0..Own::ALL.len())
                .filter(move |i| bits >> i & 1 == 1)
                .map(|i| Own::ALL[i])
        };
        let mut sets: Vec<Vec<Own>> = (0..1 << Own::ALL.len()).map(|bits| set(bits).collect()).collect();
        sets.sort_by_key(Vec::len);
        sets
    }
}

impl Shape {
    /// The shape of this name.
    pub fn find(name: &str) -> Option<&'static Shape> {
        SHAPES.iter().find(|shape| shape.name == name)
    }

    /// Symbols and values for an architecture: those of its `test { … }`, with the sizes of the shape in place of the sizes that the
    /// architecture has, but for its `own`. What `settings` say comes last. Dense models have no experts.
    pub(super) fn sizes(
        &self,
        arch: &Architecture,
        dense: bool,
        own: &[Own],
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
        set("n_ctx_train", N_CTX_TRAIN);
        if !own.contains(&Own::Layers) {
            set("n_layer", self.n_layer as f64);
        }
        set("n_embd", self.n_embd as f64);
        let least = test("n_vocab").filter(|_| own.contains(&Own::Vocabulary));
        set("n_vocab", least.unwrap_or(0.0).max(self.n_vocab as f64));
        if test("n_ff") != Some(0.0) {
            set("n_ff", self.n_ff as f64);
        }
        if test("n_head") != Some(0.0) {
            set("n_head", self.n_head as f64);
            if !own.contains(&Own::KvHeads) {
                set("n_head_kv", self.n_head_kv as f64);
            }
            set("head_dim", self.head_dim as f64);
            set("head_dim_v", self.head_dim as f64);
        }
        let of_test = test("n_embd")
            .zip(test("n_head"))
            .map(|(n_embd, n_head)| n_embd / n_head);
        if let (true, Some(head_dim)) = (own.contains(&Own::PartsOfHeads), test("head_dim").or(of_test)) {
            let parts = ["n_rot", "index_dim"]
                .into_iter()
                .filter_map(|part| Some((part, test(part)?)));
            parts.for_each(|(part, n)| set(part, n / head_dim * self.head_dim as f64));
        }
        // The inner width of a recurrence is a multiple of the residual stream's.
        if let (Some(inner), Some(n_embd)) = (test("d_inner"), test("n_embd")) {
            set("d_inner", inner / n_embd * self.n_embd as f64);
        }
        settings.iter().for_each(|(symbol, n)| set(symbol, *n));
        sizes
    }
}

/// Context that models are said to be trained for: long enough for any bench.
const N_CTX_TRAIN: f64 = 131_072.0;

/// The sizes and hyper-parameters that models of an architecture can have.
pub(super) fn symbols(arch: &Architecture) -> Vec<&'static str> {
    let declared = arch.hparams.iter().filter(|h| !h.key.is_empty()).map(|h| h.name);
    arch.symbols.iter().map(|(symbol, _)| *symbol).chain(declared).collect()
}

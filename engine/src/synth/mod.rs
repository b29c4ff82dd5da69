//! Files of random weights in known shapes of any declared architecture, for benches: what they compute means nothing, how fast says as much as a
//! trained model would.

mod blocks;
mod mix;
mod shapes;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};
use std::path::Path;

use kernels::GgmlType;
use rayon::prelude::*;

use crate::conformance::Draft;
use crate::gguf::{GgufError, GgufWriter, Metadata, StringArray, seeded};
use crate::model::{Architecture, Consumer, ModelError, Registered, TensorDecl};
use crate::random::splitmix64;

pub use mix::Mix;
pub use shapes::{SHAPES, Shape};

use blocks::RandomBlocks;
use mix::Matrix;
use shapes::Own;

/// What to write.
#[derive(Clone, Debug)]
pub struct SynthParams {
    /// Sizes.
    pub shape: Shape,
    /// Sizes and hyper-parameters in place of the shape's, as the declaration names them.
    pub settings: Vec<(String, f64)>,
    /// Types of the matrices.
    pub mix: Mix,
    /// Type of the matrix that the logits are a product of, in place of what the mix gives it.
    pub output: Option<GgmlType>,
    /// Seed of the weights.
    pub seed: u64,
}

/// Why there is no such model.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum SynthError {
    #[error(transparent)]
    Model(#[from] Box<ModelError>),
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error("architecture {arch} has no size or hyper-parameter `{name}`; it has {}", known.join(", "))]
    UnknownSetting {
        arch: &'static str,
        name: String,
        known: Vec<&'static str>,
    },
    #[error("a vocabulary of {n} tokens is too small: the bytes and three special tokens take {MIN_VOCAB}")]
    SmallVocabulary { n: usize },
}

/// A model drawn up, to be written.
#[derive(Clone, Debug)]
pub struct Synth {
    metadata: Metadata,
    tensors: Vec<Tensor>,
    seed: u64,
}

#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    ne: Vec<usize>,
    content: Content,
}

/// What a tensor holds.
#[derive(Clone, Debug)]
enum Content {
    /// Random values of a deviation that keeps products at the size of their inputs.
    Matrix(GgmlType),
    /// Floats as in seeded models: norms are around 1.
    Elementwise,
    /// Numbers of experts for each token.
    Experts,
}

/// Tokens with a role, and one for each byte.
const MIN_VOCAB: usize = 3 + 256;

/// Bytes that are generated at once, by all threads.
const CHUNK: usize = 16 << 20;

impl Synth {
    /// Draws up the model. Experts are left out where the architecture can do without and no setting asks for them.
    pub fn new(arch: &'static Architecture, archs: &[Registered], params: &SynthParams) -> Result<Synth, SynthError> {
        let known = shapes::symbols(arch);
        if let Some((name, _)) = (params.settings.iter()).find(|(name, _)| !known.contains(&name.as_str())) {
            let (arch, name) = (arch.name, name.clone());
            return Err(SynthError::UnknownSetting { arch, name, known });
        }
        let wants_experts = params.settings.iter().any(|(name, _)| name.starts_with("n_expert"));
        let with = |own: &[Own]| match draft(arch, archs, params, !wants_experts, own) {
            Err(_) if !wants_experts => draft(arch, archs, params, false, own),
            draft => draft,
        };
        // Where nothing helps, what is told is why the shape itself is not taken.
        let draft = with(&[]).or_else(|e| Own::sets().iter().find_map(|own| with(own).ok()).ok_or(e));
        let mut draft = draft.map_err(Box::new)?;
        set_vocabulary(&mut draft.metadata)?;
        let tensors = tensors(&draft, archs, params)?;
        Ok(Synth {
            metadata: draft.metadata,
            tensors,
            seed: params.seed,
        })
    }

    /// Tensors in the file.
    pub fn n_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Elements of all tensors.
    pub fn n_params(&self) -> usize {
        self.tensors.iter().map(|t| t.ne.iter().product::<usize>()).sum()
    }

    /// Number of tensors of each type.
    pub fn types(&self) -> BTreeMap<&'static str, usize> {
        let mut types = BTreeMap::new();
        for t in &self.tensors {
            *types.entry(t.ty().name()).or_default() += 1;
        }
        types
    }

    /// Writes the file and returns its length in bytes. Memory for one chunk of data is all that is needed.
    pub fn write(&self, path: &Path) -> Result<u64, SynthError> {
        let mut writer = GgufWriter::with_metadata(self.metadata.clone());
        for t in &self.tensors {
            let produce = move |out: &mut dyn Write| t.write(self, out);
            writer.add_tensor_with(t.name.as_str(), t.ty(), &t.ne, produce)?;
        }
        Ok(writer.write_file(path)?)
    }
}

impl Tensor {
    fn ty(&self) -> GgmlType {
        match self.content {
            Content::Matrix(ty) => ty,
            Content::Elementwise => GgmlType::F32,
            Content::Experts => GgmlType::I32,
        }
    }

    fn write(&self, synth: &Synth, out: &mut dyn Write) -> io::Result<()> {
        let n: usize = self.ne.iter().product();
        match self.content {
            Content::Matrix(ty) => {
                let n_bytes = ty
                    .row_bytes(n)
                    .ok_or_else(|| io::Error::other("rows of no whole blocks"))?;
                let seed = splitmix64(synth.seed ^ seeded::hash_of_name(&self.name));
                let random = RandomBlocks::new(ty, seed, 1.0 / (self.ne[0] as f32).sqrt());
                write_blocks(&random, n_bytes, out)
            }
            Content::Elementwise => {
                let mut values = vec![0.0; n];
                seeded::fill_f32(&self.name, synth.seed, &mut values);
                values.iter().try_for_each(|x| out.write_all(&x.to_le_bytes()))
            }
            Content::Experts => {
                let experts = seeded::experts_of_tokens(&synth.metadata, &self.ne).map_err(io::Error::other)?;
                out.write_all(&experts)
            }
        }
    }
}

/// Generates blocks by all threads, and writes them in order.
fn write_blocks(random: &RandomBlocks, n_bytes: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut chunk = Vec::new();
    let piece = random.piece_bytes();
    let n_pieces = CHUNK / piece;
    for first in (0..n_bytes.div_ceil(piece)).step_by(n_pieces) {
        let len = (n_bytes - first * piece).min(n_pieces * piece);
        chunk.resize(len, 0);
        // A few pieces for each task.
        let fill = |(i, part): (usize, &mut [u8])| random.fill(first + i * 64, part);
        chunk.par_chunks_mut(64 * piece).enumerate().for_each(fill);
        out.write_all(&chunk)?;
    }
    Ok(())
}

fn draft(
    arch: &'static Architecture,
    archs: &[Registered],
    params: &SynthParams,
    dense: bool,
    own: &[Own],
) -> Result<Draft, ModelError> {
    let sizes = params.shape.sizes(arch, dense, own, &params.settings);
    let sizes: Vec<(&str, f64)> = sizes.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    let wants = |t: &TensorDecl| t.gguf == "output" && !params.shape.tied;
    Draft::of_sizes(arch, archs, &sizes, wants)
}

/// A SentencePiece vocabulary, which other engines load too: special tokens, a token for each byte, and words that are numbers.
fn set_vocabulary(metadata: &mut Metadata) -> Result<(), SynthError> {
    let n = metadata.require::<&StringArray>("tokenizer.ggml.tokens")?.len();
    if n < MIN_VOCAB {
        return Err(SynthError::SmallVocabulary { n });
    }
    let special = ["<unk>", "<s>", "</s>"].into_iter().map(str::to_owned);
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let words = (0..n - MIN_VOCAB).map(|i| format!("\u{2581}{i}"));
    let tokens: StringArray = special.chain(bytes).chain(words).collect();
    let types = [2, 3, 3].into_iter().chain([6; 256]);
    let types: Vec<i32> = types.chain(std::iter::repeat(1)).take(n).collect();
    let scores: Vec<f32> = (0..n).map(|i| -(i as f32)).collect();
    metadata.insert("tokenizer.ggml.model", "llama");
    metadata.insert("tokenizer.ggml.tokens", tokens);
    metadata.insert("tokenizer.ggml.scores", scores);
    metadata.insert("tokenizer.ggml.token_type", types);
    for (role, token) in [("unknown", 0u32), ("bos", 1), ("eos", 2)] {
        metadata.insert(format!("tokenizer.ggml.{role}_token_id"), token);
    }
    Ok(())
}

/// The tensors of a draft with what they hold: matrices are what products and look-ups read.
fn tensors(draft: &Draft, archs: &[Registered], params: &SynthParams) -> Result<Vec<Tensor>, SynthError> {
    let plan = draft.plan(archs).map_err(Box::new)?;
    let consumed_by = |consumer| plan.rows.iter().filter(move |row| row.consumer == consumer);
    let elementwise: HashSet<&str> = consumed_by(Consumer::Elementwise)
        .map(|row| row.name.as_str())
        .collect();
    // A tied output matrix is the table of token embeddings.
    let mut products = consumed_by(Consumer::MulMat).map(|row| row.name.as_str());
    let output = products.rfind(|name| ["output.weight", "token_embd.weight"].contains(name));
    let mut n_of_kind: HashMap<&str, usize> = HashMap::new();
    for (name, _) in &draft.tensors {
        *n_of_kind.entry(kind(name)).or_default() += 1;
    }
    let mut turns: HashMap<&str, usize> = HashMap::new();
    let mut all = Vec::with_capacity(draft.tensors.len());
    for (name, ne) in &draft.tensors {
        let turn = turns.entry(kind(name)).or_default();
        let matrix = Matrix {
            name,
            n_in: ne[0],
            turn: (*turn, n_of_kind[kind(name)]),
            is_output: output == Some(name.as_str()),
        };
        *turn += 1;
        let content = if draft.integers.contains(name) {
            Content::Experts
        } else if elementwise.contains(&**name) || ne.len() < 2 {
            Content::Elementwise
        } else {
            let given = params.output.filter(|_| matrix.is_output).map(Mix::Plain);
            Content::Matrix(given.unwrap_or(params.mix).type_of(&matrix))
        };
        all.push(Tensor {
            name: name.clone(),
            ne: ne.clone(),
            content,
        });
    }
    Ok(all)
}

/// The name without its layer.
fn kind(name: &str) -> &str {
    let layer = name.split_once('.').and_then(|(_, rest)| rest.split_once('.'));
    match layer {
        Some((number, kind)) if number.parse::<usize>().is_ok() => kind,
        _ => name,
    }
}

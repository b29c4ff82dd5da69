//! Synthetic models for benchmarks: files with random weights in the shape of published models, for any
//! declared architecture. The output is meaningless, but the speed is the same as for a trained model.

mod blocks;
mod mix;
mod shapes;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read, Write};
use std::path::Path;

use kernels::GgmlType;
use rayon::prelude::*;

use crate::conformance::Draft;
use crate::gguf::{GgufError, GgufWriter, Metadata, StringArray, seeded};
use crate::model::{Architecture, Consumer, ModelError, Registered, TensorDecl};
use crate::random::splitmix64;

pub use mix::Mix;
pub use shapes::{ModelShape, SHAPES};

use blocks::RandomBlocks;
use mix::Matrix;
use shapes::ArchSizes;

/// Parameters of a synthetic model.
#[derive(Clone, Debug)]
pub struct SynthParams {
    /// Sizes of the model.
    pub shape: ModelShape,
    /// Sizes and hyperparameters that override the shape's, with their names in the declaration.
    pub settings: Vec<(String, f64)>,
    /// Mix of quantization types for the matrices.
    pub mix: Mix,
    /// Type of the output projection; overrides the mix.
    pub output: Option<GgmlType>,
    /// Seed of the weights.
    pub seed: u64,
}

/// Error while creating a synthetic model.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum SynthError {
    #[error(transparent)]
    Model(#[from] Box<ModelError>),
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error("architecture {arch} has no size or hyperparameter `{name}`; available: {}", known.join(", "))]
    UnknownSetting {
        arch: &'static str,
        name: String,
        known: Vec<&'static str>,
    },
    #[error("vocabulary of {n} tokens is too small: {MIN_VOCAB} are required for bytes and special tokens")]
    SmallVocabulary { n: usize },
}

/// A synthetic model that is ready to be written.
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
    content: TensorContent,
}

/// Contents of a tensor.
#[derive(Clone, Debug)]
enum TensorContent {
    /// Random values with a deviation that preserves the magnitude of a matmul's input.
    Matrix(GgmlType),
    /// Random floats, distributed as in seeded models; norms are close to 1.
    Elementwise,
    /// Expert ids for each token.
    Experts,
}

/// Minimum vocabulary: three special tokens and one token per byte.
const MIN_VOCAB: usize = 3 + 256;

/// Number of bytes that all threads together generate at a time.
const CHUNK: usize = 16 << 20;

impl Synth {
    /// Creates the model. Omits experts if the architecture allows it and no setting requires them.
    pub fn new(arch: &'static Architecture, archs: &[Registered], params: &SynthParams) -> Result<Synth, SynthError> {
        let known = shapes::symbols(arch);
        if let Some((name, _)) = (params.settings.iter()).find(|(name, _)| !known.contains(&name.as_str())) {
            let (arch, name) = (arch.name, name.clone());
            return Err(SynthError::UnknownSetting { arch, name, known });
        }
        let wants_experts = params.settings.iter().any(|(name, _)| name.starts_with("n_expert"));
        let with = |own: &[ArchSizes]| match draft(arch, archs, params, !wants_experts, own) {
            Err(_) if !wants_experts => draft(arch, archs, params, false, own),
            draft => draft,
        };
        // If no variant works, report the error of the original shape.
        let draft = with(&[]).or_else(|e| ArchSizes::sets().iter().find_map(|own| with(own).ok()).ok_or(e));
        let mut draft = draft.map_err(Box::new)?;
        set_vocabulary(&mut draft.metadata)?;
        let tensors = tensors(&draft, archs, params)?;
        Ok(Synth {
            metadata: draft.metadata,
            tensors,
            seed: params.seed,
        })
    }

    /// Returns the number of tensors in the file.
    pub fn n_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Returns the number of elements of all tensors.
    pub fn n_params(&self) -> usize {
        self.tensors.iter().map(|t| t.ne.iter().product::<usize>()).sum()
    }

    /// Returns the number of tensors of each type.
    pub fn types(&self) -> BTreeMap<&'static str, usize> {
        let mut types = BTreeMap::new();
        for t in &self.tensors {
            *types.entry(t.ty().name()).or_default() += 1;
        }
        types
    }

    /// Writes the file and returns its length in bytes. Uses memory for only one chunk of data.
    pub fn write(&self, path: &Path) -> Result<u64, SynthError> {
        Ok(self.writer()?.write_file(path)?)
    }

    /// Writes the content of the file to `out` and returns its length in bytes.
    ///
    /// # Errors
    /// [`SynthError`] if `out` returns an error.
    pub fn write_to(&self, out: &mut dyn Write) -> Result<u64, SynthError> {
        Ok(self.writer()?.write(out)?)
    }

    fn writer(&self) -> Result<GgufWriter<'_>, SynthError> {
        let mut writer = GgufWriter::with_metadata(self.metadata.clone());
        for t in &self.tensors {
            let produce = move |out: &mut dyn Write| t.write(self, out);
            writer.add_tensor_with(t.name.as_str(), t.ty(), &t.ne, produce)?;
        }
        Ok(writer)
    }

    /// Writes the file with zeros instead of weights, which take no disk space.
    pub fn write_zeros(&self, path: &Path) -> Result<u64, SynthError> {
        let mut writer = GgufWriter::with_metadata(self.metadata.clone());
        for t in &self.tensors {
            let row_bytes = t.ne.first().and_then(|n| t.ty().row_bytes(*n)).unwrap_or(0);
            let n_bytes = row_bytes as u64 * t.ne.iter().skip(1).product::<usize>() as u64;
            let produce = move |out: &mut dyn Write| io::copy(&mut io::repeat(0).take(n_bytes), out).map(drop);
            writer.add_tensor_with(t.name.as_str(), t.ty(), &t.ne, produce)?;
        }
        Ok(writer.write_sparse(path)?)
    }
}

impl Tensor {
    fn ty(&self) -> GgmlType {
        match self.content {
            TensorContent::Matrix(ty) => ty,
            TensorContent::Elementwise => GgmlType::F32,
            TensorContent::Experts => GgmlType::I32,
        }
    }

    fn write(&self, synth: &Synth, out: &mut dyn Write) -> io::Result<()> {
        let n: usize = self.ne.iter().product();
        match self.content {
            TensorContent::Matrix(ty) => {
                let in_memory = ty.in_memory();
                let n_bytes = in_memory
                    .row_bytes(n)
                    .ok_or_else(|| io::Error::other("row size is not a whole number of blocks"))?;
                let seed = splitmix64(synth.seed ^ seeded::hash_of_name(&self.name));
                let random = RandomBlocks::new(in_memory, seed, 1.0 / (self.ne[0] as f32).sqrt());
                if ty.row_header() == 0 {
                    return write_blocks(&random, n_bytes, out);
                }
                write_blocks(&random, n_bytes, &mut RowsOfFile::new(ty, self.ne[0], out))
            }
            TensorContent::Elementwise => {
                let mut values = vec![0.0; n];
                seeded::fill_f32(&self.name, synth.seed, &mut values);
                values.iter().try_for_each(|x| out.write_all(&x.to_le_bytes()))
            }
            TensorContent::Experts => {
                let experts = seeded::experts_of_tokens(&synth.metadata, &self.ne).map_err(io::Error::other)?;
                out.write_all(&experts)
            }
        }
    }
}

/// Writes rows with a header, converted from blocks that start with the header of their row.
struct RowsOfFile<'a> {
    ty: GgmlType,
    blocks_per_row: usize,
    /// Blocks before the next one.
    n_blocks: usize,
    out: &'a mut dyn Write,
}

impl<'a> RowsOfFile<'a> {
    fn new(ty: GgmlType, n_in: usize, out: &'a mut dyn Write) -> RowsOfFile<'a> {
        RowsOfFile {
            ty,
            blocks_per_row: n_in / ty.block_size(),
            n_blocks: 0,
            out,
        }
    }
}

impl Write for RowsOfFile<'_> {
    /// Writes whole blocks.
    fn write(&mut self, blocks: &[u8]) -> io::Result<usize> {
        let mut bytes = Vec::with_capacity(blocks.len());
        for block in blocks.chunks_exact(self.ty.in_memory().block_bytes()) {
            let is_first = self.n_blocks.is_multiple_of(self.blocks_per_row);
            bytes.extend_from_slice(if is_first {
                block
            } else {
                &block[self.ty.row_header()..]
            });
            self.n_blocks += 1;
        }
        self.out.write_all(&bytes)?;
        Ok(blocks.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Generates blocks on all threads and writes them in order.
fn write_blocks(random: &RandomBlocks, n_bytes: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut chunk = Vec::new();
    let piece = random.piece_bytes();
    let n_pieces = CHUNK / piece;
    for first in (0..n_bytes.div_ceil(piece)).step_by(n_pieces) {
        let len = (n_bytes - first * piece).min(n_pieces * piece);
        chunk.resize(len, 0);
        // 64 pieces per task.
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
    own: &[ArchSizes],
) -> Result<Draft, ModelError> {
    let sizes = params.shape.sizes(arch, dense, own, &params.settings);
    let sizes: Vec<(&str, f64)> = sizes.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    let wants = |t: &TensorDecl| t.gguf == "output" && !params.shape.tied;
    Draft::of_sizes(arch, archs, &sizes, wants)
}

/// Adds a SentencePiece vocabulary that other engines can load: special tokens, one token per byte, and
/// numbers as words.
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

/// Returns the tensors of a draft with their contents. Matrices are the tensors that matmuls and lookups
/// read.
fn tensors(draft: &Draft, archs: &[Registered], params: &SynthParams) -> Result<Vec<Tensor>, SynthError> {
    let plan = draft.plan(archs).map_err(Box::new)?;
    let consumed_by = |consumer| plan.rows.iter().filter(move |row| row.consumer == consumer);
    let elementwise: HashSet<&str> = consumed_by(Consumer::Elementwise)
        .map(|row| row.name.as_str())
        .collect();
    // A tied output projection counts as the token embedding.
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
            TensorContent::Experts
        } else if elementwise.contains(&**name) || ne.len() < 2 {
            TensorContent::Elementwise
        } else {
            let mix = match params.output {
                Some(ty) if matrix.is_output => Mix::Plain(ty),
                _ => params.mix,
            };
            TensorContent::Matrix(mix.type_of(&matrix))
        };
        all.push(Tensor {
            name: name.clone(),
            ne: ne.clone(),
            content,
        });
    }
    Ok(all)
}

/// Returns the tensor name without its layer prefix.
fn kind(name: &str) -> &str {
    let layer = name.split_once('.').and_then(|(_, rest)| rest.split_once('.'));
    match layer {
        Some((number, kind)) if number.parse::<usize>().is_ok() => kind,
        _ => name,
    }
}

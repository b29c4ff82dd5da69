//! Checks architectures against recorded logits. A fixture consists of a header and the logits that a
//! reference engine computed with seeded weights.
//!
//! The files of a fixture are `NAME.header.gguf` and `NAME.logits`. Weights are a function of tensor names
//! ([`gguf::seeded`](crate::gguf::seeded)), so no weights are stored.
//!
//! Most logits are recorded with llama.cpp, which computes GELU from a table of f16 values. The table alone
//! changes logits by an NMSE of about 3e-8. To compare everything else within 1e-8, comparisons use the model
//! [`as_recorded`], whose GELU rounds identically. A recording with exact GELU is marked in its header
//! ([`KEY_GELU`]).
//!
//! Some graphs amplify rounding errors with weights of the usual size. Attention without a scale switches
//! between keys, and a value that falls on the other side of an f16 step changes all later results. No
//! summation order reproduces such logits, so the project records them with smaller weights
//! ([`seeded::KEY_SCALE`]). A failed comparison reports the effect of rounding alone ([`Fixture::rounding`]).

mod draft;
mod self_check;
mod table_gelu;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::GgmlType;

use crate::context::{Batch, Context, ContextError, ContextParams, DecodeError, SeqSet};
use crate::gguf::logits::{Logits, LogitsError};
use crate::gguf::{Gguf, GgufError, GgufFile, GgufWriter, Value, seeded, split};
use crate::model::{LoadParams, Model, ModelError, Registered};
use crate::vocab::Token;

pub use draft::Draft;
pub use self_check::{Finding, Outcome, self_check};
use table_gelu::TableGelu;

/// Metadata key (string) of a header that specifies how GELU was computed for the recording: `exact`, or if
/// absent, from a table of f16 values.
pub const KEY_GELU: &str = "fixture.gelu";

/// A configuration of an architecture with its recorded logits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixture {
    /// Name of the fixture's configuration, such as `llama-moe`.
    pub name: String,
    /// Path of the GGUF header.
    pub header: PathBuf,
    /// Path of the recorded logits.
    pub logits: PathBuf,
}

/// Parameters for running a fixture.
#[derive(Clone)]
pub struct CheckParams {
    /// Seed of the weights; recorded logits use 1.
    pub seed: u64,
    /// Parameters for loading the model.
    pub load: LoadParams,
    /// Context parameters; sizes are increased to fit the fixture.
    pub context: ContextParams,
}

/// Error while running a fixture.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CheckError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(transparent)]
    Logits(#[from] LogitsError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("the model returns {found} values per token, expected {expected} as in the recorded logits")]
    Width { expected: usize, found: usize },
}

/// Lists the fixtures of a directory, sorted by name.
pub fn fixtures(dir: &Path) -> Result<Vec<Fixture>, CheckError> {
    let io = |source| CheckError::Io {
        path: dir.to_owned(),
        source,
    };
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let header = entry.map_err(io)?.path();
        let Some(name) = header
            .file_name()
            .and_then(|n| n.to_str())
            .and_then(|n| n.strip_suffix(".header.gguf"))
        else {
            continue;
        };
        // A header without logits is also listed, and fails when it is run.
        all.push(Fixture {
            name: name.to_owned(),
            logits: dir.join(format!("{name}.logits")),
            header: header.clone(),
        });
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

impl Fixture {
    /// Returns the architecture named in the header.
    pub fn arch(&self) -> Result<String, CheckError> {
        Ok(Gguf::open_header(&self.header)?.require("general.architecture")?)
    }

    /// Builds the model with seeded weights in memory.
    pub fn model(&self, archs: &[Registered], params: &CheckParams) -> Result<Arc<Model>, CheckError> {
        self.changed_model(archs, params, |_| ()).map(Arc::new)
    }

    /// Like [`Fixture::model`], converted by [`as_recorded`].
    pub fn recorded_model(&self, archs: &[Registered], params: &CheckParams) -> Result<Arc<Model>, CheckError> {
        self.changed_model(archs, params, |_| ()).map(as_recorded).map(Arc::new)
    }

    /// Builds the model and applies a change to its weights.
    fn changed_model(
        &self,
        archs: &[Registered],
        params: &CheckParams,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<Model, CheckError> {
        let header = Gguf::open_header(&self.header)?;
        let mut bytes = seeded::seeded_model(&header, params.seed)?;
        let data = header.data_offset().min(bytes.len());
        change(&mut bytes[data..]);
        let file = GgufFile::from_bytes(&self.header, &bytes)?;
        Ok(Model::from_file(file, archs, &params.load)?)
    }

    /// Returns the NMSE of the logits after flipping the last bit of every weight.
    pub fn rounding(&self, archs: &[Registered], params: &CheckParams) -> Result<f64, CheckError> {
        let recorded = self.recorded()?;
        let turned = self.changed_model(archs, params, |data| data.iter_mut().step_by(4).for_each(|b| *b ^= 1))?;
        let run = |model| compared_logits(model, &recorded, &params.context);
        let (plain, turned) = (run(self.changed_model(archs, params, |_| ())?)?, run(turned)?);
        let power: f64 = plain.iter().map(|&x| f64::from(x).powi(2)).sum();
        let error = plain
            .iter()
            .zip(&turned)
            .map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2));
        Ok(error.sum::<f64>() / power)
    }

    /// Computes [`Fixture::nmse`] and, if that exceeds `limit`, [`Fixture::rounding`].
    pub fn compare(&self, archs: &[Registered], params: &CheckParams, limit: f64) -> Result<Comparison, CheckError> {
        let nmse = self.nmse(archs, params)?;
        let rounding = if nmse <= limit {
            None
        } else {
            Some(self.rounding(archs, params)?)
        };
        Ok(Comparison { nmse, limit, rounding })
    }

    /// Writes the model with seeded weights to `n_files` files in a directory and returns the first file.
    pub fn write_files(&self, dir: &Path, seed: u64, n_files: u16) -> Result<PathBuf, CheckError> {
        let header = Gguf::open_header(&self.header)?;
        let prefix = dir.join("model");
        if n_files == 1 {
            let path = prefix.with_extension("gguf");
            std::fs::write(&path, seeded::seeded_model(&header, seed)?).map_err(|source| CheckError::Io {
                path: path.clone(),
                source,
            })?;
            return Ok(path);
        }
        let tensors = header.tensors();
        let bound = |no: u16| tensors.len() * usize::from(no) / usize::from(n_files);
        for no in 0..n_files {
            let mut writer = GgufWriter::new();
            if no == 0 {
                writer.metadata = header.metadata.clone();
            }
            writer.set(split::KEY_NO, no).set(split::KEY_COUNT, n_files);
            writer.set(
                split::KEY_TENSORS_COUNT,
                i32::try_from(tensors.len()).unwrap_or(i32::MAX),
            );
            for t in &tensors[bound(no)..bound(no + 1)] {
                let values = seeded::weights_of(&header.metadata, &t.name, t.n_elements(), seed)?;
                let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                writer.add_tensor(t.name.as_str(), GgmlType::F32, t.shape(), bytes)?;
            }
            writer.write_file(split::part_path(&prefix, no, n_files))?;
        }
        Ok(split::part_path(&prefix, 0, n_files))
    }

    /// Reads the recorded logits.
    pub fn recorded(&self) -> Result<Logits, CheckError> {
        Ok(Logits::read(&self.logits)?)
    }

    /// Returns the normalized mean squared error (NMSE) of the logits, with all positions decoded as one
    /// sequence.
    pub fn nmse(&self, archs: &[Registered], params: &CheckParams) -> Result<f64, CheckError> {
        self.nmse_of(self.changed_model(archs, params, |_| ())?, &params.context)
    }

    /// Like [`Fixture::nmse`], for a loaded model.
    pub fn nmse_of(&self, model: Model, context: &ContextParams) -> Result<f64, CheckError> {
        let recorded = self.recorded()?;
        let logits = compared_logits(model, &recorded, context)?;
        let expected = recorded.values().len();
        if logits.len() != expected {
            let n = recorded.tokens().len().max(1);
            return Err(CheckError::Width {
                expected: expected / n,
                found: logits.len() / n,
            });
        }
        Ok(recorded.nmse(&logits))
    }
}

/// Result of comparing a configuration with its recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Normalized mean squared error of the logits.
    pub nmse: f64,
    /// Maximum allowed NMSE.
    pub limit: f64,
    /// Error caused by rounding alone, computed if the limit is exceeded. Distinguishes a wrong graph from
    /// one that amplifies rounding.
    pub rounding: Option<f64>,
}

impl Comparison {
    /// Returns true if the error is within the limit.
    pub fn passes(&self) -> bool {
        self.nmse <= self.limit
    }
}

fn compared_logits(model: Model, recorded: &Logits, context: &ContextParams) -> Result<Vec<f32>, CheckError> {
    all_logits(Arc::new(as_recorded(model)), &tokens(recorded), context)
}

/// Returns the model with GELU rounded like in the recording, unless the header specifies exact GELU.
pub fn as_recorded(model: Model) -> Model {
    let is_exact = model.metadata().get(KEY_GELU).and_then(Value::as_str) == Some("exact");
    if is_exact {
        model
    } else {
        model.map_graph(|graph| Box::new(TableGelu(graph)))
    }
}

/// Returns the recorded tokens as ids. Negative tokens become ids outside any vocabulary, which `decode`
/// rejects.
pub fn tokens(recorded: &Logits) -> Vec<Token> {
    recorded.tokens().iter().map(|&t| t as Token).collect()
}

/// Returns the logits of every position of one sequence, `[n_tokens, n_vocab]`. Increases `n_ctx` and
/// `n_batch` to fit.
pub fn all_logits(model: Arc<Model>, tokens: &[Token], params: &ContextParams) -> Result<Vec<f32>, CheckError> {
    let mut context = context_for(model, tokens.len(), params)?;
    Ok(logits_of(&mut context, tokens)?)
}

/// Creates a context for [`logits_of`] with `n_tokens` tokens. Increases `n_ctx` and `n_batch` to fit.
pub fn context_for(model: Arc<Model>, n_tokens: usize, params: &ContextParams) -> Result<Context, ContextError> {
    // Without a KV cache, a sequence must be decoded in one ubatch.
    let n_ubatch = if model.bidirectional() {
        params.n_ubatch.max(n_tokens)
    } else {
        params.n_ubatch
    };
    let params = ContextParams {
        n_ubatch,
        n_ctx: params.n_ctx.max(n_tokens),
        n_batch: params.n_batch.max(n_tokens),
        n_outputs_max: n_ubatch,
        ..params.clone()
    };
    Context::new(model, &params)
}

/// Returns the logits of every position of one sequence, `[n_tokens, n_vocab]`. The context must be empty.
pub fn logits_of(context: &mut Context, tokens: &[Token]) -> Result<Vec<f32>, DecodeError> {
    let mut batch = Batch::new();
    for (i, &t) in tokens.iter().enumerate() {
        batch.push(t, i, SeqSet::one(0), true);
    }
    // Encoder-decoder models decode the same tokens that they encode.
    if context.model().arch().encoder {
        context.encode(&batch)?;
    }
    context.decode(&batch)?;
    let rows = (0..tokens.len()).filter_map(|i| context.logits(i));
    Ok(rows.flatten().copied().collect())
}

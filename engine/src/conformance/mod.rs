//! Checks of architectures against recorded logits: a header and what a reference computed for seeded weights.
//!
//! A fixture is a pair of files `NAME.header.gguf` and `NAME.logits`. The weights are a function of tensor names
//! ([`gguf::seeded`](crate::gguf::seeded)), so that no weights need to be stored.
//!
//! llama.cpp, which most logits are recorded with, computes GELU from a table of f16 values, which alone moves logits by an NMSE of
//! about 3e-8. To compare all else within 1e-8, comparisons use the model [`as_recorded`], whose GELU rounds alike. A recording by an engine
//! with exact GELU says so in its header ([`KEY_GELU`]).
//!
//! A few graphs magnify rounding with weights of the usual size: attention without a scale chooses one key and then another, and a
//! value that falls to the other side of an f16 step moves everything behind it. No order of summation reproduces their logits, so
//! the project records them with smaller weights ([`seeded::KEY_SCALE`]); a comparison that fails says what rounding alone would do
//! ([`Fixture::rounding`]).

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

/// Metadata key (string) of a header: how the recording engine computed GELU. `exact`, or, without the key, from a table of f16 values.
pub const KEY_GELU: &str = "fixture.gelu";

/// One configuration of an architecture with its recorded logits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixture {
    /// Name of the configuration, such as `llama-moe`.
    pub name: String,
    /// The header.
    pub header: PathBuf,
    /// The logits.
    pub logits: PathBuf,
}

/// How to run a fixture.
#[derive(Clone)]
pub struct CheckParams {
    /// Seed of the weights; recorded logits are for 1.
    pub seed: u64,
    /// Where and how to load.
    pub load: LoadParams,
    /// The context; its sizes are raised to what the fixture needs.
    pub context: ContextParams,
}

/// A fixture that could not be run.
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
    #[error("the model gives {found} values per token, the recorded logits have {expected}")]
    Width { expected: usize, found: usize },
}

/// Every fixture of a folder, by name.
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
        // A header whose logits are missing is a fixture too: one that cannot be run.
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
    /// The architecture that the header names.
    pub fn arch(&self) -> Result<String, CheckError> {
        Ok(Gguf::open_header(&self.header)?.require("general.architecture")?)
    }

    /// The full model with seeded weights, in memory.
    pub fn model(&self, archs: &[Registered], params: &CheckParams) -> Result<Arc<Model>, CheckError> {
        self.changed_model(archs, params, |_| ()).map(Arc::new)
    }

    /// As [`Fixture::model`], [`as_recorded`].
    pub fn recorded_model(&self, archs: &[Registered], params: &CheckParams) -> Result<Arc<Model>, CheckError> {
        self.changed_model(archs, params, |_| ()).map(as_recorded).map(Arc::new)
    }

    /// The model after a change of its weights.
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

    /// How far the logits move, as an NMSE, when the last bit of every weight is turned.
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

    /// [`Fixture::nmse`], and, if that is beyond `limit`, [`Fixture::rounding`].
    pub fn compare(&self, archs: &[Registered], params: &CheckParams, limit: f64) -> Result<Comparison, CheckError> {
        let nmse = self.nmse(archs, params)?;
        let rounding = if nmse <= limit {
            None
        } else {
            Some(self.rounding(archs, params)?)
        };
        Ok(Comparison { nmse, limit, rounding })
    }

    /// Writes the full model with seeded weights to files in a folder, its tensors spread over `n_files`, and returns the first file.
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

    /// The recorded logits.
    pub fn recorded(&self) -> Result<Logits, CheckError> {
        Ok(Logits::read(&self.logits)?)
    }

    /// Normalized mean squared error of the computed logits, all positions decoded as one sequence.
    pub fn nmse(&self, archs: &[Registered], params: &CheckParams) -> Result<f64, CheckError> {
        self.nmse_of(self.changed_model(archs, params, |_| ())?, &params.context)
    }

    /// Like [`Fixture::nmse`], for a model that is loaded already.
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

/// How a configuration compares with what was recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Normalized mean squared error of the logits.
    pub nmse: f64,
    /// What it may be.
    pub limit: f64,
    /// What rounding alone makes of the logits, if the error is beyond the limit: tells a wrong graph from one that magnifies.
    pub rounding: Option<f64>,
}

impl Comparison {
    /// True if the error is within the limit.
    pub fn passes(&self) -> bool {
        self.nmse <= self.limit
    }
}

fn compared_logits(model: Model, recorded: &Logits, context: &ContextParams) -> Result<Vec<f32>, CheckError> {
    all_logits(Arc::new(as_recorded(model)), &tokens(recorded), context)
}

/// The model with GELU rounded as the recording engine did, unless its header says that it did not.
pub fn as_recorded(model: Model) -> Model {
    let is_exact = model.metadata().get(KEY_GELU).and_then(Value::as_str) == Some("exact");
    if is_exact {
        model
    } else {
        model.map_graph(|graph| Box::new(TableGelu(graph)))
    }
}

/// The recorded tokens as ids of the vocabulary; negative ones become ids that no vocabulary has, which decode refuses.
pub fn tokens(recorded: &Logits) -> Vec<Token> {
    recorded.tokens().iter().map(|&t| t as Token).collect()
}

/// Logits of every position of one sequence, `[n_tokens, n_vocab]`. `n_ctx` and `n_batch` are raised to fit.
pub fn all_logits(model: Arc<Model>, tokens: &[Token], params: &ContextParams) -> Result<Vec<f32>, CheckError> {
    let mut context = context_for(model, tokens.len(), params)?;
    Ok(logits_of(&mut context, tokens)?)
}

/// A context for [`logits_of`] that many tokens: `n_ctx` and `n_batch` are raised to fit.
pub fn context_for(model: Arc<Model>, n_tokens: usize, params: &ContextParams) -> Result<Context, ContextError> {
    // Without a memory a batch is computed whole.
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

/// Logits of every position of one sequence, `[n_tokens, n_vocab]`, in an empty context.
pub fn logits_of(context: &mut Context, tokens: &[Token]) -> Result<Vec<f32>, DecodeError> {
    let mut batch = Batch::new();
    for (i, &t) in tokens.iter().enumerate() {
        batch.push(t, i, SeqSet::one(0), true);
    }
    // An encoder's model decodes the tokens that it has encoded.
    if context.model().arch().encoder {
        context.encode(&batch)?;
    }
    context.decode(&batch)?;
    let rows = (0..tokens.len()).filter_map(|i| context.logits(i));
    Ok(rows.flatten().copied().collect())
}

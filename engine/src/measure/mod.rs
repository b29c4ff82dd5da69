//! Quality of models: perplexity, divergence from another model, and multiple-choice tasks.
//!
//! - [`Corpus`]: a text in chunks, and the batches that decode it
//! - [`LogProbs`], [`BaseRow`]: log-probabilities of one position, and those of the model it is compared with
//! - [`BaseReader`], [`BaseWriter`]: files of such log-probabilities
//! - [`Perplexity`], [`ModelComparison`]: statistics over all positions
//! - [`Task`], [`TaskKind`]: HellaSwag, WinoGrande, and other multiple-choice tasks

mod base;
mod corpus;
mod error;
mod position;
mod statistics;
mod tasks;

pub use base::{BaseFormat, BaseReader, BaseRow, BaseWriter};
pub use corpus::{Corpus, CorpusStep, Scored, check_model, decode_step, logits_at};
pub use error::MeasureError;
pub use position::{Compared, LogProbs};
pub use statistics::{Distribution, Estimate, ModelComparison, Perplexity, Summary};
pub use tasks::{Score, Task, TaskKind, TaskTally, pack, score_tasks};

//! Arguments of `llama perplexity`.

use std::path::{Path, PathBuf};

use clap::Args;
use engine::context::ContextParams;
use engine::measure::{Corpus, TaskKind};

use crate::args::values::positive;
use crate::args::{AdapterArgs, BatchSizeArgs, ComputeArgs, HubArgs, LoadArgs, ModelArgs};
use crate::failure::{Failure, Outcome};

/// Examples at the end of the help.
const NOTES: &str = "\
Examples:
  llama perplexity model.gguf -f wiki.test.raw
  llama perplexity model-q4_k_m.gguf -f wiki.test.raw --against model-f16.gguf
  llama perplexity model-f16.gguf -f wiki.test.raw --kl-divergence-base base.kld --compact
  llama perplexity model-q4_k_m.gguf --kl-divergence --kl-divergence-base base.kld";

/// Arguments of `llama perplexity`.
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = NOTES)]
pub struct PerplexityArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Text or tasks to measure with; `-` reads standard input
    #[arg(short, long, value_name = "FILE", alias = "binary-file")]
    pub file: Option<PathBuf>,
    /// Tokens of a chunk; the second half of each chunk is scored
    #[arg(short, long, value_name = "N", default_value = "512", value_parser = positive)]
    pub ctx_size: usize,
    /// Maximum number of chunks [default: all]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub chunks: Option<usize>,
    /// Compare with a base model, decoded side by side
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["kl_divergence", "kl_divergence_base"])]
    pub against: Option<PathBuf>,
    /// File of log-probabilities to write, or to read with --kl-divergence
    #[arg(long, value_name = "FILE", alias = "save-all-logits")]
    pub kl_divergence_base: Option<PathBuf>,
    /// Compare with the base model whose log-probabilities --kl-divergence-base contains
    #[arg(long, requires = "kl_divergence_base")]
    pub kl_divergence: bool,
    /// Write exact log-probabilities of the 4096 likeliest tokens, about 20 KiB a token
    #[arg(long, requires = "kl_divergence_base", conflicts_with = "kl_divergence")]
    pub compact: bool,
    /// Score HellaSwag tasks: six lines each
    #[arg(long, conflicts_with_all = ["winogrande", "multiple_choice", "against", "kl_divergence_base"])]
    pub hellaswag: bool,
    /// Score WinoGrande tasks: comma-separated values
    #[arg(long, conflicts_with_all = ["multiple_choice", "against", "kl_divergence_base"])]
    pub winogrande: bool,
    /// Score multiple-choice tasks in the binary format of llama.cpp
    #[arg(long, conflicts_with_all = ["against", "kl_divergence_base"])]
    pub multiple_choice: bool,
    /// Number of tasks, selected as llama.cpp does [default: all]
    #[arg(long, value_name = "N", value_parser = positive,
          aliases = ["hellaswag-tasks", "winogrande-tasks", "multiple-choice-tasks"])]
    pub tasks: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub hub: HubArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub adapters: AdapterArgs,
    #[command(flatten)]
    pub batch: BatchSizeArgs,
    #[command(flatten)]
    pub compute: ComputeArgs,
}

impl PerplexityArgs {
    /// Checks options that clap cannot check.
    pub fn check(&self) -> Outcome {
        let min = Corpus::MIN_CTX;
        if self.ctx_size < min {
            return Err(Failure::new(format_args!("--ctx-size must be at least {min}")));
        }
        if self.tasks.is_some() && self.task_kind().is_none() {
            return Err(Failure::new(
                "--tasks needs --hellaswag, --winogrande, or --multiple-choice",
            ));
        }
        if !self.kl_divergence {
            self.text()?;
        }
        Ok(())
    }

    /// Returns the kind of tasks to score, if any.
    pub fn task_kind(&self) -> Option<TaskKind> {
        let kinds = [
            (self.hellaswag, TaskKind::HellaSwag),
            (self.winogrande, TaskKind::WinoGrande),
            (self.multiple_choice, TaskKind::MultipleChoice),
        ];
        kinds.into_iter().find(|(is_set, _)| *is_set).map(|(_, kind)| kind)
    }

    /// Returns the file of the model.
    pub fn model(&self) -> Outcome<PathBuf> {
        self.model.file(&self.hub)
    }

    /// Returns the path of the text.
    pub fn text(&self) -> Outcome<&Path> {
        let path = self.file.as_deref();
        path.ok_or_else(|| Failure::new("no text given; name a file with -f"))
    }

    /// Returns the number of tokens that are decoded at once. Memory for logits grows with this number.
    pub fn n_batch(&self) -> usize {
        self.batch.ubatch()
    }

    /// Returns the parameters of a context for chunks of `n_ctx` tokens.
    pub fn context_params(&self, n_ctx: usize) -> ContextParams {
        let n_seq_max = (self.n_batch() / n_ctx).clamp(1, engine::context::MAX_SEQUENCES);
        ContextParams {
            n_ctx: n_ctx.saturating_mul(n_seq_max),
            n_seq_max,
            ..self.params(self.n_batch())
        }
    }

    /// Returns the parameters of a context for batches of `n_batch` tokens.
    pub fn params(&self, n_batch: usize) -> ContextParams {
        ContextParams {
            n_batch,
            n_ubatch: self.batch.ubatch().min(n_batch),
            n_outputs_max: self.batch.ubatch().min(n_batch),
            ..self.compute.params()
        }
    }
}

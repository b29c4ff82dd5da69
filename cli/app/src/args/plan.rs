//! Arguments of a memory plan.

use std::path::PathBuf;

use clap::Args;
use engine::builder::MemoryParams;
use engine::model::LoadParams;

use super::values::{context_size, sequences};
use super::{BatchSizeArgs, CacheTypeArgs, HubArgs, PlacementArgs};
use crate::failure::Outcome;

/// Model, context, and placement options for a memory plan.
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// Context size in tokens; 0: training context [default: 4096; serve: 8192]
    ///
    /// `llama serve` uses the training context if it is smaller than 8192.
    #[arg(short = 'c', long, value_name = "N", value_parser = context_size, allow_negative_numbers = true)]
    pub ctx_size: Option<usize>,
    /// Number of sequences to plan for (-np)
    #[arg(long, value_name = "N", default_value = "1", value_parser = sequences)]
    pub n_parallel: usize,
    #[command(flatten)]
    pub batch: BatchSizeArgs,
    #[command(flatten)]
    pub cache: CacheTypeArgs,
    #[command(flatten)]
    pub hub: HubArgs,
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Projector for images or audio (-mm) [default: mmproj*.gguf next to the model]
    ///
    /// A model name, such as user/repo:Q4_K_M, selects the projector in its repository.
    #[arg(long, value_name = "FILE", overrides_with = "no_mmproj")]
    pub mmproj: Option<PathBuf>,
    /// Plan without a projector
    #[arg(long, overrides_with = "mmproj")]
    pub no_mmproj: bool,
}

impl PlanArgs {
    /// Converts the flags to engine parameters.
    pub fn params(&self) -> Outcome<LoadParams> {
        let defaults = MemoryParams::default();
        let memory = MemoryParams {
            n_ctx: self.ctx_size.unwrap_or(defaults.n_ctx),
            n_batch: self.batch.size,
            n_ubatch: self.batch.ubatch(),
            n_seq_max: self.n_parallel,
            type_k: self.cache.k,
            type_v: self.cache.v,
            ..defaults
        };
        let mut params = self.placement.params(Some(memory))?;
        // The plan itself reports why no layer fits.
        params.placement.needs_layer = false;
        Ok(params)
    }
}

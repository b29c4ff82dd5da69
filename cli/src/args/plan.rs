//! Arguments of a memory plan.

use clap::Args;
use engine::builder::MemoryParams;
use engine::model::LoadParams;
use kernels::GgmlType;

use super::values::{cache_type, context_size, positive, sequences};
use super::{HubArgs, PlacementArgs};
use crate::failure::Outcome;

/// Model, context and placement options for a memory plan.
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
    /// Logical batch size: maximum tokens per decode call
    #[arg(short, long, value_name = "N", default_value = "2048", value_parser = positive)]
    pub batch_size: usize,
    /// Physical batch size (-ub): maximum tokens per ubatch
    #[arg(long, value_name = "N", default_value = "512", value_parser = positive)]
    pub ubatch_size: usize,
    /// Data type of the K cache (-ctk)
    ///
    /// Values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = cache_type)]
    pub cache_type_k: GgmlType,
    /// Data type of the V cache (-ctv)
    ///
    /// Values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = cache_type)]
    pub cache_type_v: GgmlType,
    #[command(flatten)]
    pub hub: HubArgs,
    #[command(flatten)]
    pub placement: PlacementArgs,
}

impl PlanArgs {
    /// Converts the flags to engine parameters.
    pub fn params(&self) -> Outcome<LoadParams> {
        let defaults = MemoryParams::default();
        let memory = MemoryParams {
            n_ctx: self.ctx_size.unwrap_or(defaults.n_ctx),
            n_batch: self.batch_size,
            n_ubatch: self.ubatch_size.min(self.batch_size),
            n_seq_max: self.n_parallel,
            type_k: self.cache_type_k,
            type_v: self.cache_type_v,
            ..defaults
        };
        let mut params = self.placement.params(Some(memory))?;
        // The plan itself reports why no layer fits.
        params.placement.needs_layer = false;
        Ok(params)
    }
}

//! Arguments for loading a model.

use clap::{Args, ValueEnum};
use engine::quantize::Mixture;

use super::placement::{LOADING, PlacementArgs};
use super::values::mixture;

/// Model loading options.
#[derive(Clone, Debug, Args)]
pub struct LoadArgs {
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Read all weights into memory instead of mapping the file
    #[arg(long, hide_short_help = true, help_heading = LOADING)]
    pub no_mmap: bool,
    /// Lock the weights in memory
    #[arg(long, hide_short_help = true, help_heading = LOADING)]
    pub mlock: bool,
    /// Loading mode by llama.cpp name (-lm)
    ///
    /// `none` is --no-mmap, `mmap+mlock` is --mlock, and `mlock` is both. `auto` and `mmap` are the default.
    #[arg(long, value_name = "MODE", value_parser = ["auto", "none", "mmap", "mlock", "mmap+mlock"],
          conflicts_with_all = ["no_mmap", "mlock"], hide_short_help = true, help_heading = LOADING)]
    pub load_mode: Option<String>,
    /// Use of NUMA nodes: distribute, isolate, or numactl [default: none]
    ///
    /// Pins each thread to a core. `distribute` divides threads and weights among all nodes, and `numactl` among the
    /// nodes of the CPUs that the process may use. `isolate` uses only the node on which the process starts. With
    /// several nodes, weights are copied as with --no-mmap, unless --load-mode is mmap.
    #[arg(long, value_name = "MODE", hide_short_help = true, help_heading = LOADING)]
    pub numa: Option<Numa>,
    /// Check all weights and reject a file with NaN or infinite values
    #[arg(long, hide_short_help = true, help_heading = LOADING)]
    pub check_tensors: bool,
    /// Quantize a checkpoint directory to a mixture such as q4_k_m, once, to a file in the cache
    #[arg(long, value_name = "TYPE", value_parser = mixture, hide_short_help = true, help_heading = LOADING)]
    pub quantize: Option<Mixture>,
    /// Also load multi-token prediction layers.
    #[arg(skip)]
    pub mtp: bool,
}

/// Values of `--numa`, as in llama.cpp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Numa {
    Distribute,
    Isolate,
    Numactl,
}

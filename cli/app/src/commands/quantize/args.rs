//! Arguments of `llama quantize`.

use std::path::PathBuf;

use clap::Args;
use engine::gguf::Value;
use engine::quantize::Mixture;
use kernels::GgmlType;
use regex_lite::Regex;

use crate::args::override_kv;
use crate::args::values::{byte_size, mixture, positive, positive_float_64, threads};

/// Examples at the end of the help.
const NOTES: &str = "\
Examples:
  llama quantize model-f16.gguf model-q4_k_m.gguf q4_k_m
  llama quantize model-f16.gguf model.gguf q4_k_m --tensor-type 'ffn_down_exps=q5_K' --dry-run
  llama quantize model-f16.gguf model.gguf --target-bpw 4.2 -f calibration.txt --save-recipe recipe.json
  llama quantize model-f16.gguf model.gguf q3_k_m --calibrate calibration.txt
  llama quantize model-f16.gguf smaller.gguf --target-size 4GiB --recipe recipe.json --measure other-text.txt";

/// Arguments of `llama quantize`.
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = NOTES)]
pub struct QuantizeArgs {
    /// GGUF file to read, the first part of a split model, or the directory of a checkpoint
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// GGUF file to write
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// Mixture of types, such as q4_k_m, q6_k, q8_0, or f16
    #[arg(value_name = "TYPE", value_parser = mixture,
          required_unless_present_any = ["target_size", "target_bpw", "recipe"],
          conflicts_with_all = ["target_size", "target_bpw", "recipe"])]
    pub mixture: Option<Mixture>,
    /// Number of threads, in llama.cpp's syntax
    #[arg(value_name = "THREADS", value_parser = threads, hide = true, conflicts_with = "threads")]
    pub last_threads: Option<usize>,
    #[command(flatten)]
    pub budget: BudgetArgs,
    /// Type of the tensors whose name matches a regular expression (may be repeated; the first match counts)
    #[arg(long, value_name = "REGEX=TYPE", value_parser = rule)]
    pub tensor_type: Vec<(Regex, GgmlType)>,
    /// Type of the output matrix, or of a token embedding that serves as one
    #[arg(long, value_name = "TYPE", value_parser = encodable)]
    pub output_tensor_type: Option<GgmlType>,
    /// Type of the token embedding
    #[arg(long, value_name = "TYPE", value_parser = encodable)]
    pub token_embedding_type: Option<GgmlType>,
    /// Choose types by role in models with experts or recurrent layers: larger types for attention, shared experts, and
    /// mixers, and the base type for experts
    #[arg(long, conflicts_with = "pure")]
    pub role_mixture: bool,
    /// Choose the types of llama.cpp (default)
    #[arg(long, conflicts_with = "role_mixture")]
    pub llama_cpp_mixture: bool,
    /// Store all matrices in the same type
    #[arg(long)]
    pub pure: bool,
    /// Keep the output matrix as it is
    #[arg(long)]
    pub leave_output_tensor: bool,
    /// Accept weights that are quantized already, although errors add up
    #[arg(long)]
    pub allow_requantize: bool,
    /// Importance matrix that `llama imatrix` or llama.cpp wrote; lowers the error of important columns
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Compensate the rounding errors of each column in the following columns (GPTQ), for the inputs that matrices have
    /// on a text
    #[arg(long, value_name = "TEXT", conflicts_with = "dry_run")]
    pub calibrate: Option<PathBuf>,
    /// Maximum number of chunks of 512 tokens of the text of --calibrate
    #[arg(long, value_name = "N", default_value = "32", value_parser = positive, requires = "calibrate")]
    pub calibrate_chunks: usize,
    /// Set a metadata key; TYPE is int, float, bool, or str (may be repeated)
    #[arg(long, value_name = "KEY=TYPE:VALUE", value_parser = override_kv)]
    pub override_kv: Vec<(String, Value)>,
    /// Compare the file with the source on a text, and print the KL divergence
    #[arg(long, value_name = "TEXT", conflicts_with = "dry_run")]
    pub measure: Option<PathBuf>,
    /// Architecture, or a declaration FILE.rs; `auto`: from the file
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub arch: String,
    /// Number of threads [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Keep an incomplete file after an interrupt, and continue the incomplete file of an earlier run
    #[arg(long, conflicts_with = "dry_run")]
    pub resume: bool,
    /// Write one file per file of the source, named OUT-00001-of-00003.gguf
    #[arg(long)]
    pub keep_split: bool,
    /// Remove layers, separated by commas and numbered from 0
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    pub prune_layers: Vec<usize>,
    /// Print the type and size of each tensor, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments that choose a type for each matrix.
#[derive(Debug, Args)]
pub struct BudgetArgs {
    /// Choose types with the least KL divergence in a file of this size, such as 4.5GiB
    #[arg(long, value_name = "SIZE", value_parser = byte_size, conflicts_with_all = ["target_bpw", "pure"])]
    pub target_size: Option<usize>,
    /// Choose types with the least KL divergence for this number of bits per weight
    #[arg(long, value_name = "BITS", value_parser = positive_float_64, conflicts_with = "pure")]
    pub target_bpw: Option<f64>,
    /// Text for measuring the KL divergence of each matrix
    #[arg(short, long, value_name = "FILE", conflicts_with = "recipe")]
    pub file: Option<PathBuf>,
    /// Maximum number of chunks of 128 tokens of the text
    #[arg(long, value_name = "N", default_value = "8", value_parser = positive)]
    pub chunks: usize,
    /// Number of layers to measure for each kind of matrix, with interpolation between them
    /// [default: all; 3 for models of more than 2 billion weights]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub measured_layers: Option<usize>,
    /// Types to choose from, separated by commas [default: all with --imatrix, or all that need no importance]
    #[arg(long, value_name = "TYPES", value_delimiter = ',', value_parser = encodable)]
    pub candidate_types: Vec<GgmlType>,
    /// Use the types of a recipe or of a GGUF file; with a target, choose types by the costs of the recipe
    #[arg(long, value_name = "FILE")]
    pub recipe: Option<PathBuf>,
    /// Write the types and costs of all matrices as JSON
    #[arg(long, value_name = "FILE")]
    pub save_recipe: Option<PathBuf>,
}

impl QuantizeArgs {
    /// Returns the number of threads, if given.
    pub fn n_threads(&self) -> Option<usize> {
        self.threads.or(self.last_threads)
    }
}

impl BudgetArgs {
    /// Returns true if there is a target.
    pub fn has_target(&self) -> bool {
        self.target_size.is_some() || self.target_bpw.is_some()
    }
}

fn encodable(text: &str) -> Result<GgmlType, String> {
    let ty = GgmlType::from_name(text).filter(|&ty| kernels::can_encode(ty));
    ty.ok_or_else(|| {
        let types = GgmlType::ALL.iter().filter(|&&ty| kernels::can_encode(ty));
        let names: Vec<_> = types.map(|ty| ty.name()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

fn rule(text: &str) -> Result<(Regex, GgmlType), String> {
    let (pattern, ty) = text.rsplit_once('=').ok_or("expected REGEX=TYPE")?;
    let pattern = Regex::new(pattern).map_err(|e| format!("invalid regular expression {pattern:?}: {e}"))?;
    Ok((pattern, encodable(ty)?))
}

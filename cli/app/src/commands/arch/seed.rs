//! `llama arch seed`: writes the tiny model of a declaration's `test { … }` block with seeded weights, for
//! recording and checking logits.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::slice::from_ref;

use clap::Args;
use engine::conformance::{Draft, KEY_GELU};
use engine::gguf::seeded;
use engine::model::Registered;

use crate::args::values::positive_float;
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::format;

/// Arguments of `llama arch seed`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct SeedArgs {
    /// Architectures, or declaration files (FILE.rs), to write models for [default: all]
    pub names: Vec<String>,
    /// Output directory for NAME.gguf and NAME.header.gguf
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    pub output: PathBuf,
    /// Omit optional tensors
    #[arg(long)]
    pub bare: bool,
    /// Add biases to these tensors, such as attn_q,ffn_norm, or to `all` that can have one
    #[arg(long, value_name = "TENSORS", value_delimiter = ',')]
    pub bias: Vec<String>,
    /// Seed of the random weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Factor on all weights; below 1 for graphs that amplify rounding errors
    #[arg(long, value_name = "X", value_parser = positive_float)]
    pub weight_scale: Option<f32>,
}

/// Writes the header and model file of each selected architecture.
pub fn run(args: &SeedArgs) -> Outcome {
    let chosen: Vec<Registered> = match args.names.as_slice() {
        [] => archs::ALL.to_vec(),
        names => names.iter().map(|name| super::find(name)).collect::<Outcome<_>>()?,
    };
    fs::create_dir_all(&args.output).map_err(|e| about(&args.output, e))?;
    let mut out = stdout();
    for registered in &chosen {
        seed(&mut out, registered, args)?;
    }
    Ok(out.flush()?)
}

fn seed(out: &mut dyn Write, registered: &Registered, args: &SeedArgs) -> Outcome {
    let arch = registered.arch;
    let mut draft = Draft::of_declaration(arch, from_ref(registered), !args.bare)?;
    add_biases(&mut draft, registered, &args.bias)?;
    // Published implementations compute the exact GELU instead of an f16 table.
    draft.metadata.insert(KEY_GELU, "exact");
    if let Some(scale) = args.weight_scale {
        draft.metadata.insert(seeded::KEY_SCALE, scale);
    }
    // The names of encoders may equal names of architectures.
    let prefix = if arch.media.is_some() { "mmproj-" } else { "" };
    let header = args.output.join(format!("{prefix}{}.header.gguf", arch.name));
    let whole = args.output.join(format!("{prefix}{}.gguf", arch.name));
    let bytes = draft.seeded(args.seed)?;
    fs::write(&header, draft.header_bytes()?).map_err(|e| about(&header, e))?;
    fs::write(&whole, &bytes).map_err(|e| about(&whole, e))?;
    let left_out: Vec<&str> = (arch.tensors.iter())
        .filter(|t| t.optional || t.tied.is_some())
        .filter(|t| !draft.tensors.iter().any(|(name, _)| is_of(name, t.gguf)))
        .map(|t| t.gguf)
        .collect();
    write!(
        out,
        "{}: {}, {}",
        whole.display(),
        format::plural(draft.tensors.len(), "tensor"),
        format::bytes(bytes.len())
    )?;
    if !left_out.is_empty() {
        write!(out, ", without {}", left_out.join(", "))?;
    }
    Ok(writeln!(out)?)
}

/// Adds the biases that `--bias` names.
fn add_biases(draft: &mut Draft, registered: &Registered, names: &[String]) -> Outcome {
    let arch = registered.arch;
    let all = names.iter().any(|name| name == "all");
    let added = draft.add_biases(arch, from_ref(registered), |t| {
        all || names.iter().any(|name| name == t.gguf)
    });
    match names
        .iter()
        .find(|name| *name != "all" && !added.contains(&name.as_str()))
    {
        Some(name) => Err(Failure::new(format_args!(
            "--bias: {} has no tensor `{name}` that can have a bias; see `llama arch {}`",
            arch.name, arch.name
        ))),
        None => Ok(()),
    }
}

/// Returns true if a full tensor name is an instance of the declared name `gguf` in any layer.
fn is_of(name: &str, gguf: &str) -> bool {
    let base = name.strip_suffix(".weight").unwrap_or(name);
    base.strip_suffix(gguf)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn about(path: &Path, error: std::io::Error) -> Failure {
    Failure::new(format_args!("{}: {error}", path.display()))
}

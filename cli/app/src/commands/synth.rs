//! `llama synth`: writes a model file with random weights.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::Args;
use engine::synth::{Mix, ModelShape, SHAPES, Synth, SynthParams};
use kernels::GgmlType;

use crate::commands::{arch, stdout};
use crate::failure::{Failure, Outcome};
use crate::output::{OutputFile, failed};
use crate::{format, interrupt};

/// Arguments of `llama synth`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct SynthArgs {
    /// Architecture of the model
    #[arg(long, value_name = "NAME", default_value = "llama")]
    pub arch: String,
    /// Shape of a published model: tiny, 135m, 270m, 0.5b, 1b, 3b, or 8b
    #[arg(long, value_name = "SHAPE", value_parser = shape)]
    pub shape: ModelShape,
    /// Weight type (q8_0, q4_K, f16, ...) or mix of types (q4_k_m, q5_k_m)
    #[arg(long = "type", value_name = "TYPE", value_parser = mix)]
    pub mix: Mix,
    /// Type of the output matrix or tied token embedding [default: --type]
    #[arg(long, value_name = "TYPE", value_parser = weight_type)]
    pub output_type: Option<GgmlType>,
    /// Override a size or hyperparameter, such as n_layer=4 (may be repeated)
    #[arg(long, value_name = "NAME=NUMBER", value_parser = setting)]
    pub set: Vec<(String, f64)>,
    /// Seed of the random weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Output file
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Writes the file and prints its properties.
pub fn run(args: &SynthArgs) -> Outcome {
    let params = SynthParams {
        shape: args.shape,
        settings: args.set.clone(),
        mix: args.mix,
        output: args.output_type,
        seed: args.seed,
    };
    let registered = arch::find(&args.arch)?;
    let synth = Synth::new(registered.arch, &[registered], &params)?;
    let n_bytes = write(args, &synth)?;
    let types = synth.types();
    let types: Vec<_> = types.iter().map(|(ty, n)| format!("{n} {ty}")).collect();
    let mut out = stdout();
    writeln!(
        out,
        "{}: {} ({}), {} parameters, {}",
        args.output.display(),
        format::plural(synth.n_tensors(), "tensor"),
        types.join(", "),
        format::count(synth.n_params()),
        format::bytes(usize::try_from(n_bytes)?)
    )?;
    Ok(out.flush()?)
}

/// Writes the file under a temporary name, and renames it once it is complete.
fn write(args: &SynthArgs, synth: &Synth) -> Outcome<u64> {
    let mut output = OutputFile::create(&args.output)?;
    let guard = interrupt::listen();
    let mut out = BufWriter::with_capacity(1 << 20, Interruptible(output.file(), &guard));
    let written = synth.write_to(&mut out);
    let flushed = out.flush();
    drop(out);
    if guard.is_set() {
        return Err(Failure::Interrupted);
    }
    let n_bytes = written.map_err(|e| Failure::new(format_args!("{}: {e}", args.output.display())))?;
    flushed.map_err(|e| failed(&args.output, &e))?;
    output.finish(None)?;
    Ok(n_bytes)
}

/// Output that returns errors after an interrupt.
struct Interruptible<'a, W>(W, &'a interrupt::Guard);

impl<W: Write> Write for Interruptible<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.1.is_set() {
            // Writers repeat a write that fails with `ErrorKind::Interrupted`.
            return Err(io::Error::other("interrupted"));
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn shape(text: &str) -> Result<ModelShape, String> {
    ModelShape::find(text).copied().ok_or_else(|| {
        let names: Vec<_> = SHAPES.iter().map(|shape| shape.name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

fn mix(text: &str) -> Result<Mix, String> {
    Mix::find(text).ok_or_else(|| format!("expected one of {}", Mix::names().join(", ")))
}

fn weight_type(text: &str) -> Result<GgmlType, String> {
    let ty = GgmlType::from_name(text).filter(|&ty| kernels::can_decode(ty));
    ty.ok_or_else(|| "expected a weight type, such as q6_K or f16".to_owned())
}

fn setting(text: &str) -> Result<(String, f64), String> {
    let (name, number) = text.split_once('=').ok_or("expected NAME=NUMBER")?;
    let number = number.parse().ok().filter(|x: &f64| x.is_finite());
    let number = number.ok_or("expected NAME=NUMBER with a finite number; booleans are 0 and 1")?;
    Ok((name.to_owned(), number))
}

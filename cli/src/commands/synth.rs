//! `llama synth`: writes a model file with random weights.

use std::io::Write;

use engine::synth::{Synth, SynthParams};

use crate::args::SynthArgs;
use crate::commands::{arch, stdout};
use crate::failure::Outcome;
use crate::format;

/// Writes the file and prints its properties.
pub fn run(args: &SynthArgs) -> Outcome {
    let params = SynthParams {
        shape: args.shape,
        settings: args.set.clone(),
        mix: args.mix,
        output: args.output_type,
        seed: args.seed,
    };
    let synth = Synth::new(arch::find(&args.arch)?.arch, archs::ALL, &params)?;
    let n_bytes = synth.write(&args.output)?;
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

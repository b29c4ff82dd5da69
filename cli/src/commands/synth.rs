//! `llama synth`: a file of random weights in a known shape.

use std::io::Write;

use engine::synth::{Synth, SynthParams};

use crate::args::SynthArgs;
use crate::commands::{arch, stdout};
use crate::failure::Outcome;
use crate::human;

/// Writes the file and says what it holds.
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
        human::plural(synth.n_tensors(), "tensor"),
        types.join(", "),
        human::count(synth.n_params()),
        human::bytes(usize::try_from(n_bytes)?)
    )?;
    Ok(out.flush()?)
}

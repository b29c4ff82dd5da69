//! `llama arch new`: writes the declaration of a new architecture that inherits from another architecture.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use crate::commands::stdout;
use crate::failure::{Failure, Outcome};

/// Arguments of `llama arch new`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct NewArgs {
    /// Name of the architecture: `general.architecture` in its files
    pub name: String,
    /// Architecture whose declaration the new one changes
    #[arg(long, value_name = "NAME", default_value = "llama")]
    pub like: String,
    /// Output directory
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    pub output: PathBuf,
}

/// Writes the file `NAME.rs`, which must not exist.
pub fn run(args: &NewArgs) -> Outcome {
    let NewArgs { name, like, output } = args;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(Failure::new(format_args!(
            "invalid name `{name}`: use letters, digits, `_`, `-`, and `.`"
        )));
    }
    if archs::find(name).is_some() {
        return Err(Failure::new(format_args!(
            "`{name}` is the name of a built-in architecture; choose another name"
        )));
    }
    let parent = super::find(like)?;
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let file: String = name.chars().map(plain).collect();
    let path = output.join(format!("{file}.rs"));
    let about = |e: std::io::Error| Failure::new(format_args!("{}: {e}", path.display()));
    let mut new = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(about)?;
    new.write_all(skeleton(name, parent.arch.name).as_bytes())
        .map_err(about)?;
    let mut out = stdout();
    let path = path.display();
    writeln!(out, "{path}: like {like}, whose parts `llama arch {like}` lists")?;
    writeln!(
        out,
        "`llama arch check {path}` checks the file, and `llama run --arch {path} MODEL` uses it"
    )?;
    Ok(out.flush()?)
}

/// Returns a declaration that changes only the name.
fn skeleton(name: &str, like: &str) -> String {
    format!(
        "//! {name}: describe the differences from {like} here.\n\
         //!\n\
         //! Sections such as `hparams {{ … }}`, `tensors {{ … }}`, and `graph {{ … }}` replace or extend those of {like}.\n\
         \n\
         arch_macros::arch! {{\n    \
             name: \"{name}\";\n    \
             like: \"{like}\";\n\
         }}\n"
    )
}

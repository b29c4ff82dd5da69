//! `llama arch fmt`: the layout of declarations and fragments, as `cargo fmt` does it for other Rust.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::ARCHS;
use crate::args::FmtArgs;
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};

/// Lays out the files, or names those that would change. A file with a fault is left as it is, and the others are done all the same.
pub fn run(args: &FmtArgs) -> Outcome {
    let files = match args.files.is_empty() {
        true => declarations()?,
        false => args.files.clone(),
    };
    let mut out = stdout();
    let mut failed = false;
    for file in &files {
        let name = file.display().to_string();
        let failure = |e| Failure::new(format_args!("{name}: {e}"));
        let text = fs::read_to_string(file).map_err(failure)?;
        match arch_lang::format::format(&name, &text) {
            Ok(formatted) if formatted == text => {}
            Ok(_) if args.check => {
                writeln!(out, "{name}: not as `llama arch fmt` lays it out")?;
                failed = true;
            }
            Ok(formatted) => {
                fs::write(file, formatted).map_err(failure)?;
                writeln!(out, "{name}: laid out")?;
            }
            Err(faults) => {
                faults.iter().try_for_each(|fault| writeln!(out, "{fault}\n"))?;
                failed = true;
            }
        }
    }
    out.flush()?;
    if failed { Err(Failure::Reported) } else { Ok(()) }
}

/// All files of declarations and fragments of the project.
fn declarations() -> Outcome<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in [Path::new(ARCHS).to_owned(), Path::new(ARCHS).join("fragments")] {
        let entries = fs::read_dir(&folder).map_err(|e| {
            let where_to = "run this in the root of the project, or name files";
            Failure::new(format_args!("{}: {e}; {where_to}", folder.display()))
        })?;
        let paths = entries.flatten().map(|e| e.path());
        files.extend(paths.filter(|p| p.extension().is_some_and(|e| e == "rs")));
    }
    files.sort();
    Ok(files)
}

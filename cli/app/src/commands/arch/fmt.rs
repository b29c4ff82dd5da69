//! `llama arch fmt`: formats declarations and fragments.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::ARCHS;
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::output::OutputFile;

/// Arguments of `llama arch fmt`.
#[derive(Debug, Args)]
pub struct FmtArgs {
    /// Files to format [default: all in archs and its subdirectories]
    #[arg(value_name = "FILE.rs")]
    pub files: Vec<PathBuf>,
    /// List files that need formatting and fail if there are any; change nothing
    #[arg(long)]
    pub check: bool,
}

/// Formats files, or lists those that need formatting. A file with errors is reported and left unchanged; the
/// remaining files are still formatted.
pub fn run(args: &FmtArgs) -> Outcome {
    let files = if args.files.is_empty() {
        declarations()?
    } else {
        args.files.clone()
    };
    let mut out = stdout();
    let mut failed = false;
    for file in &files {
        let name = file.display().to_string();
        let text = fs::read_to_string(file).map_err(|e| Failure::new(format_args!("{name}: {e}")))?;
        match arch_lang::format::format(&name, &text) {
            Ok(formatted) if formatted == text => {}
            Ok(_) if args.check => {
                writeln!(out, "{name}: needs formatting (run `llama arch fmt`)")?;
                failed = true;
            }
            Ok(formatted) => {
                // A full disk leaves the old file.
                let mut output = OutputFile::create(file)?;
                output.file().write_all(formatted.as_bytes())?;
                output.finish(Some(file))?;
                writeln!(out, "{name}: formatted")?;
            }
            Err(errors) => {
                errors.iter().try_for_each(|error| writeln!(out, "{error}\n"))?;
                failed = true;
            }
        }
    }
    out.flush()?;
    if failed { Err(Failure::Reported) } else { Ok(()) }
}

/// Returns all declaration and fragment files of the project.
fn declarations() -> Outcome<Vec<PathBuf>> {
    let mut files = Vec::new();
    let archs = Path::new(ARCHS);
    let directories = ["", "fragments", "parents", "encoders", "encoders/fragments"];
    for directory in directories.map(|directory| archs.join(directory)) {
        let entries = fs::read_dir(&directory).map_err(|e| {
            let where_to = "run this command in the root of the project, or pass files";
            Failure::new(format_args!("{}: {e}; {where_to}", directory.display()))
        })?;
        let paths = entries.flatten().map(|e| e.path());
        files.extend(paths.filter(|p| p.extension().is_some_and(|e| e == "rs")));
    }
    files.sort();
    Ok(files)
}

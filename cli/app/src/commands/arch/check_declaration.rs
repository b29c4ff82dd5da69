//! `llama arch check --file`: checks declarations in milliseconds, without building them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use arch_lang::{Directory, EncoderDirectory, Library, declared_name, is_encoder};
use arch_runtime::library::{BuiltInEncoders, Near, built_in};
use arch_runtime::limits::read;
use arch_runtime::{Fault, check};
use clap::ValueEnum;

use super::ARCHS;
use super::rustc_message::RustcMessage;
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::format;

/// Form of the errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum MessageFormat {
    /// Messages with the source line
    Human,
    /// A JSON object per line, like those of `rustc --error-format=json`; no self-check
    Json,
}

/// Checks declarations and fragments in order; fails if any has errors.
pub fn run(files: &[PathBuf], messages: MessageFormat) -> Outcome {
    let mut out = stdout();
    let mut n_failed = 0;
    for file in files {
        let name = file.display().to_string();
        let text = read(file).map_err(|e| Failure::new(format_args!("{name}: {e}")))?;
        let start = Instant::now();
        let (errors, ignored) = check_file(file, &name, &text)?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        n_failed += usize::from(!errors.is_empty());
        if messages == MessageFormat::Json {
            for error in &errors {
                writeln!(out, "{}", serde_json::to_string(&RustcMessage::new(error))?)?;
            }
            continue;
        }
        for error in &errors {
            writeln!(out, "{error}\n")?;
        }
        let found = match errors.len() {
            0 => "no errors".to_owned(),
            n => format::plural(n, "error"),
        };
        writeln!(out, "{name}: {found} ({ms:.1} ms)")?;
        if let Some(ignored) = ignored {
            writeln!(out, "{name}: {ignored}")?;
        }
    }
    out.flush()?;
    if n_failed > 0 { Err(Failure::Reported) } else { Ok(()) }
}

/// Returns the directory of architectures above a file in `encoders` or `encoders/fragments`.
fn encoders_of(file: &Path) -> Option<PathBuf> {
    let directory = file.parent()?;
    let directory = match directory.file_name()?.to_str()? {
        "fragments" => directory.parent()?,
        _ => directory,
    };
    if directory.file_name()?.to_str()? == "encoders" {
        Some(directory.parent()?.to_owned())
    } else {
        None
    }
}

/// Checks a file. Returns its errors and a note on ignored files of the same name.
fn check_file(file: &Path, name: &str, text: &str) -> Outcome<(Vec<Fault>, Option<String>)> {
    let archs = Path::new(ARCHS);
    let encoders_of = encoders_of(file);
    if let Some(directory) = &encoders_of
        && is_same(directory, archs)
    {
        return Ok((check(name, text, &EncoderDirectory(directory.clone()))?, None));
    }
    let directory = directory_of(file);
    let in_project = archs.is_dir() && !is_encoder(text) && encoders_of.is_none();
    if in_project && is_same(directory, archs) {
        // The build registers all files of the project, so their names must be unique.
        return Ok((check(name, text, &Directory(archs.to_owned()))?, None));
    }
    let others: Box<dyn Library + Sync> = if in_project {
        Box::new(Directory(archs.to_owned()))
    } else if encoders_of.is_some() {
        Box::new(BuiltInEncoders)
    } else {
        built_in(text)
    };
    let near = Near::in_directory(directory, file, text, others);
    let errors = check(name, text, &near)?;
    let ignored = near.ignored();
    let note = if ignored.is_empty() {
        None
    } else {
        let declared = declared_name(text).unwrap_or_default();
        Some(format!(
            "note: ignored {}, which also declares the name {declared:?}",
            ignored.join(" and ")
        ))
    };
    Ok((errors, note))
}

/// Returns the directory of declarations for a file: its parent, or the parent of a `fragments` or `parents`
/// directory.
fn directory_of(file: &Path) -> &Path {
    let directory = file.parent().unwrap_or(Path::new(""));
    let is_subdirectory = directory
        .file_name()
        .is_some_and(|name| name == "fragments" || name == "parents");
    if is_subdirectory {
        directory.parent().unwrap_or(directory)
    } else {
        directory
    }
}

/// Returns true if two paths lead to the same directory.
fn is_same(directory: &Path, other: &Path) -> bool {
    let current = directory.as_os_str().is_empty();
    let directory = if current { Path::new(".") } else { directory };
    match (directory.canonicalize(), other.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

//! `llama arch check --file`: checks declarations in milliseconds, without building them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use arch_lang::{Directory, EncoderDirectory, Library, Source, is_encoder};
use arch_runtime::check;
use arch_runtime::library::Near;
use arch_runtime::limits::read;
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
        let errors = match encoders_of(file) {
            Some(archs) => check(&name, &text, &EncoderDirectory(archs))?,
            None => check(&name, &text, &Directories(directory_of(file), others(file, &text)))?,
        };
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

/// Returns the directory of declarations for a file: its parent, or the parent of a `fragments` or `parents`
/// directory.
fn directory_of(file: &Path) -> Directory {
    let directory = file.parent().unwrap_or(Path::new(""));
    let is_subdirectory = directory
        .file_name()
        .is_some_and(|name| name == "fragments" || name == "parents");
    let directory = if is_subdirectory {
        directory.parent().unwrap_or(directory)
    } else {
        directory
    };
    Directory(if directory.as_os_str().is_empty() {
        ".".into()
    } else {
        directory.to_owned()
    })
}

/// Returns the declarations that a file can use in addition to those next to it: those of the project, or outside of
/// it the built-in ones.
fn others(file: &Path, text: &str) -> Box<dyn Library + Sync> {
    if Path::new(ARCHS).is_dir() && !is_encoder(text) {
        Box::new(Directory(ARCHS.into()))
    } else {
        Box::new(Near::of(file, text))
    }
}

/// Declarations of a directory, with others as fallback.
struct Directories(Directory, Box<dyn Library + Sync>);

impl Library for Directories {
    fn find(&self, name: &str) -> Option<Source> {
        self.0.find(name).or_else(|| self.1.find(name))
    }

    fn names(&self) -> Vec<String> {
        [self.0.names(), self.1.names()].concat()
    }

    fn fragment(&self, name: &str) -> Option<Source> {
        self.0.fragment(name).or_else(|| self.1.fragment(name))
    }

    fn fragments(&self) -> Vec<String> {
        [self.0.fragments(), self.1.fragments()].concat()
    }

    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_> {
        Box::new(self.0.files().chain(self.1.files()))
    }
}

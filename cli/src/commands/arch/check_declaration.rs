//! `llama arch check --file`: every fault of a declaration, told in milliseconds, without building anything.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use arch_lang::{Folder, Library, Source, check_file};

use super::ARCHS;
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::human;

/// Checks declarations or fragments, one after the other; fails if one has faults.
pub fn run(files: &[PathBuf]) -> Outcome {
    let mut out = stdout();
    let mut n_faulty = 0;
    for file in files {
        let name = file.display().to_string();
        let text = fs::read_to_string(file).map_err(|e| Failure::new(format_args!("{name}: {e}")))?;
        let start = Instant::now();
        let faults = check_file(&name, &text, &Folders(folder_of(file), Folder(ARCHS.into())));
        let ms = start.elapsed().as_secs_f64() * 1e3;
        for fault in &faults {
            writeln!(out, "{fault}\n")?;
        }
        let found = match faults.len() {
            0 => "no faults".to_owned(),
            n => human::plural(n, "fault"),
        };
        writeln!(out, "{name}: {found} ({ms:.1} ms)")?;
        n_faulty += usize::from(!faults.is_empty());
    }
    out.flush()?;
    if n_faulty > 0 { Err(Failure::Reported) } else { Ok(()) }
}

/// The folder of declarations that a file lies in: its own, or that above its folder of fragments.
fn folder_of(file: &Path) -> Folder {
    let folder = file.parent().unwrap_or(Path::new(""));
    let of_fragments = folder.file_name().is_some_and(|name| name == "fragments");
    let folder = if of_fragments {
        folder.parent().unwrap_or(folder)
    } else {
        folder
    };
    Folder(if folder.as_os_str().is_empty() {
        ".".into()
    } else {
        folder.to_owned()
    })
}

/// Declarations and fragments of a folder, and of another one what the first lacks.
struct Folders(Folder, Folder);

impl Library for Folders {
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

//! Embeds the texts of the built-in declarations, parents, and fragments, which declarations from elsewhere can use.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Directories with files that declarations can use, relative to the directory of architectures.
const DIRECTORIES: [&str; 5] = ["", "fragments", "parents", "encoders", "encoders/fragments"];

fn main() -> ExitCode {
    let variable = |name: &str| std::env::var_os(name).unwrap_or_default();
    let archs = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../../archs");
    println!("cargo:rerun-if-changed={}", archs.display());
    let written =
        table(&archs).and_then(|text| std::fs::write(Path::new(&variable("OUT_DIR")).join("sources.rs"), text));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("cargo::error={e}");
            ExitCode::FAILURE
        }
    }
}

/// Returns a table of file names and texts as Rust source.
fn table(archs: &Path) -> std::io::Result<String> {
    let mut text = String::from("&[\n");
    for directory in DIRECTORIES {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(archs.join(directory))? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "rs") {
                files.push(path.canonicalize()?);
            }
        }
        files.sort();
        for path in files {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = if directory.is_empty() {
                name
            } else {
                format!("{directory}/{name}")
            };
            let _ = writeln!(text, "    ({name:?}, include_str!({:?})),", path.display().to_string());
        }
    }
    Ok(text + "]\n")
}

//! Registers every file in `archs/`: dropping one in is all it takes.

mod listing;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let variable = |name: &str| std::env::var_os(name).unwrap_or_default();
    let (folder, out) = (variable("CARGO_MANIFEST_DIR"), variable("OUT_DIR"));
    println!("cargo:rerun-if-changed={}", Path::new(&folder).display());
    let written = listing::list(Path::new(&folder))
        .and_then(|entries| std::fs::write(Path::new(&out).join("registry.rs"), listing::source(&entries)));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("cargo::error={e}");
            ExitCode::FAILURE
        }
    }
}

//! Registers every architecture file in `archs/`. New files need no other change.

mod listing;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let variable = |name: &str| std::env::var_os(name).unwrap_or_default();
    let (dir, out) = (variable("CARGO_MANIFEST_DIR"), variable("OUT_DIR"));
    println!("cargo:rerun-if-changed={}", Path::new(&dir).display());
    let written = listing::list(Path::new(&dir))
        .and_then(|entries| std::fs::write(Path::new(&out).join("registry.rs"), listing::source(&entries)));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("cargo::error={e}");
            ExitCode::FAILURE
        }
    }
}

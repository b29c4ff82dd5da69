//! Registers every architecture file in `archs/` and every encoder file in `archs/encoders/`. New files need no
//! other change.

mod listing;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let variable = |name: &str| std::env::var_os(name).unwrap_or_default();
    let (dir, out) = (variable("CARGO_MANIFEST_DIR"), variable("OUT_DIR"));
    println!("cargo:rerun-if-changed={}", Path::new(&dir).display());
    let written = registry(Path::new(&dir)).and_then(|text| std::fs::write(Path::new(&out).join("registry.rs"), text));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("cargo::error={e}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the registry of architectures and encoders.
fn registry(dir: &Path) -> std::io::Result<String> {
    let (archs, encoders) = (listing::list(dir)?, listing::list(&dir.join("encoders"))?);
    Ok(listing::source(&archs, "ALL") + &listing::source(&encoders, "ENCODERS"))
}

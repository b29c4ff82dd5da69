//! Directory of the repository, also for test binaries that were moved to another machine.

use std::path::{Path, PathBuf};

/// Returns the directory of the repository: `$LLAMA_TESTS_ROOT`, else an ancestor of the current directory, else
/// the directory of the build.
///
/// # Panics
/// Panics if none of these directories is a repository.
pub fn root() -> PathBuf {
    if let Some(directory) = std::env::var_os("LLAMA_TESTS_ROOT") {
        return directory.into();
    }
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).to_owned();
    let places = [std::env::current_dir().ok(), Some(built)];
    let around = |place: PathBuf| {
        let found = place
            .ancestors()
            .find(|directory| directory.join("tests/cuda.sh").is_file());
        found.map(Path::to_owned)
    };
    let found = places.into_iter().flatten().find_map(around);
    found.expect("LLAMA_TESTS_ROOT is the directory of the repository")
}

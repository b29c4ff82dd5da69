//! Directories of caches.

use std::path::PathBuf;

/// Returns the cache directory for downloads, shared with the engine's cache. `None` if no environment
/// variable defines it.
pub fn cache() -> Option<PathBuf> {
    engine::backend::cuda::user_cache()
}

/// Returns the path in an environment variable, unless the variable is unset or empty.
pub fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

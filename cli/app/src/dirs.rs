//! Directories of user data.

use std::path::PathBuf;

/// Returns the cache directory for downloads, shared with the engine's cache. `None` if no environment
/// variable defines it.
pub fn cache() -> Option<PathBuf> {
    engine::backend::cuda::user_cache()
}

/// Returns the directory for state that persists between runs: `llama` in the user's state directory.
pub fn state() -> Option<PathBuf> {
    ours("XDG_STATE_HOME", ".local/state")
}

/// Returns the directory of the user's configuration: `llama` in the configuration directory.
pub fn config() -> Option<PathBuf> {
    ours("XDG_CONFIG_HOME", ".config")
}

fn ours(name: &str, below_home: &str) -> Option<PathBuf> {
    let base = variable(name).or_else(|| Some(variable("HOME")?.join(below_home)))?;
    Some(base.join("llama"))
}

/// Returns the path in an environment variable, unless the variable is unset or empty.
pub fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

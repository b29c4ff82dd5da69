//! Where the user's files go.

use std::path::PathBuf;

/// Downloads, beside what the engine keeps. `None` if no variable says where that is.
pub fn cache() -> Option<PathBuf> {
    engine::backend::cuda::user_cache()
}

/// What a program remembers between runs: `llama` in the user's state folder.
pub fn state() -> Option<PathBuf> {
    ours("XDG_STATE_HOME", ".local/state")
}

fn ours(name: &str, below_home: &str) -> Option<PathBuf> {
    let base = variable(name).or_else(|| Some(variable("HOME")?.join(below_home)))?;
    Some(base.join("llama"))
}

/// The path in an environment variable that is set and not empty.
pub fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

//! Checkpoint directories as models. A published checkpoint is converted once, to a model file in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use engine::checkpoint::{Conversion, OutputType};
use sha2::{Digest, Sha256};

use crate::commands::convert;
use crate::dirs;
use crate::failure::{Failure, Outcome};
use crate::log::hint;

/// Directory of converted checkpoints in the cache.
const DIRECTORY: &str = "checkpoints";

/// Returns true for a directory with the configuration of a checkpoint.
pub fn is_checkpoint(path: &Path) -> bool {
    path.is_dir() && path.join("config.json").is_file()
}

/// Returns the model file of a checkpoint, which is converted unless the cache has a file of the same content.
pub fn model_of(directory: &Path) -> Outcome<PathBuf> {
    let about = |e: std::io::Error| Failure::new(format_args!("{}: {e}", directory.display()));
    let cache = dirs::cache().ok_or_else(|| {
        Failure::new("no cache directory for the converted checkpoint; set HOME, or use `llama convert`")
    })?;
    let cache = cache.join(DIRECTORY);
    let of_path =
        hex(Sha256::new().chain_update(directory.canonicalize().map_err(about)?.as_os_str().as_encoded_bytes()));
    let path = cache.join(format!("{of_path}-{}.gguf", state(directory).map_err(about)?));
    if path.is_file() {
        return Ok(path);
    }
    let conversion = Conversion::open(directory, archs::ALL, OutputType::Auto).map_err(convert::failure)?;
    hint!("converting {} once, to {}", directory.display(), path.display());
    fs::create_dir_all(&cache).map_err(about)?;
    convert::write(&path, &conversion)?;
    remove_older(&cache, &of_path, &path);
    Ok(path)
}

/// Removes the files of earlier versions of a checkpoint.
fn remove_older(cache: &Path, of_path: &str, kept: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(of_path) && path != kept {
            // A file that is in use, or belongs to someone else, remains.
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns a digest of the names, sizes, and times of all files.
fn state(directory: &Path) -> std::io::Result<String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // The files of a downloaded checkpoint are links.
        let metadata = fs::metadata(entry.path())?;
        if metadata.is_file() {
            let time = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
            files.push((entry.file_name(), metadata.len(), time.as_nanos()));
        }
    }
    files.sort();
    let mut digest = Sha256::new().chain_update(env!("CARGO_PKG_VERSION"));
    for (name, size, time) in files {
        digest.update(format!("{name:?} {size} {time}\n"));
    }
    Ok(hex(digest))
}

/// Returns the first bytes of a digest as hexadecimal digits.
fn hex(digest: Sha256) -> String {
    digest.finalize()[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

//! Checkpoint directories as models. A checkpoint is used in place; with `--quantize`, it is quantized once, to a model
//! file in the cache.

use std::borrow::Cow;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

pub use engine::checkpoint::is_checkpoint;
use engine::checkpoint::{classes_of, open_model, open_model_header};
use engine::gguf::{Gguf, GgufSet};
use engine::model::Registered;
use engine::quantize::{Mixture, Options, PlannedTensor, PrunedLayers, QuantizePlan, QuantizedFile};
use sha2::{Digest, Sha256};

use crate::failure::{Failure, Outcome};
use crate::log::hint;
use crate::output::{OutputFile, failed};
use crate::{declared, dirs, interrupt, progress};

/// Directory of quantized checkpoints in the cache.
const DIRECTORY: &str = "checkpoints";

/// Returns the architectures that may map a checkpoint. `arch` is the value of `--arch`.
fn archs_of(path: &Path, arch: &str) -> Outcome<Cow<'static, [Registered]>> {
    if declared::is_file(arch) {
        return Ok(Cow::Owned(vec![*declared::load(Path::new(arch))?]));
    }
    Ok(match declaration_of(path)? {
        Some(found) => Cow::Owned(vec![found]),
        None => Cow::Borrowed(archs::ALL),
    })
}

/// Returns the declaration in the directories of declarations that maps a checkpoint. `None` for other files, and if a
/// built-in architecture maps the checkpoint.
pub fn declaration_of(path: &Path) -> Outcome<Option<Registered>> {
    if !is_checkpoint(path) {
        return Ok(None);
    }
    let classes = classes_of(path).map_err(Failure::new)?;
    if archs::ALL.iter().any(|built_in| declared::maps(built_in, &classes)) {
        Ok(None)
    } else {
        declared::find_by_class(&classes)
    }
}

/// Reads the header of a model file, or of the file that a checkpoint would be converted to. `arch` is the value of
/// `--arch`.
pub fn header(path: &Path, arch: &str) -> Outcome<Gguf> {
    Ok(open_model_header(path, &archs_of(path, arch)?)?)
}

/// Opens a model file or a checkpoint. `arch` is the value of `--arch`.
pub fn open(path: &Path, arch: &str) -> Outcome<GgufSet> {
    Ok(open_model(path, &archs_of(path, arch)?)?)
}

/// Refuses the directory of a checkpoint, for a command that reads GGUF files only.
pub fn refuse(path: &Path) -> Outcome {
    if !is_checkpoint(path) {
        return Ok(());
    }
    let path = path.display();
    Err(Failure::new(format_args!(
        "{path} is the directory of a checkpoint, but this command reads GGUF files; \
         `llama convert {path} FILE.gguf` writes one"
    )))
}

/// Refuses a directory as the GGUF file of an option. `expected` describes the file, and `remedy` how to get one.
pub fn expect_file(option: &str, path: &Path, expected: &str, remedy: &str) -> Outcome {
    if !path.is_dir() {
        return Ok(());
    }
    Err(Failure::new(format_args!(
        "{option}: expected the GGUF file of {expected}, found the directory {}; {remedy}",
        path.display()
    )))
}

/// Returns the name of a model: of its directory, or of its file without the extension.
pub fn name_of(path: &Path) -> Option<String> {
    let name = if path.is_dir() {
        path.canonicalize().ok()?.file_name()?.to_owned()
    } else {
        path.file_stem()?.to_owned()
    };
    Some(name.to_string_lossy().into_owned())
}

/// Returns the total size of the weights of a checkpoint in bytes.
pub fn n_bytes(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let weights = entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "safetensors"));
    weights
        .map(|entry| fs::metadata(entry.path()).map_or(0, |file| file.len()))
        .sum()
}

/// Returns the model file of a checkpoint with weights of smaller types. The checkpoint is quantized unless the cache
/// has a file of the same content. `arch` is the value of `--arch`.
pub fn quantized(directory: &Path, mixture: Mixture, arch: &str) -> Outcome<PathBuf> {
    if !is_checkpoint(directory) {
        return Err(Failure::new(format_args!(
            "--quantize requires the directory of a checkpoint, found {}; use `llama quantize` to quantize a file",
            directory.display()
        )));
    }
    let about = |e: std::io::Error| Failure::new(format_args!("{}: {e}", directory.display()));
    let cache = dirs::cache().ok_or_else(|| {
        Failure::new("no cache directory for the quantized checkpoint; set HOME, or use `llama convert`")
    })?;
    let cache = cache.join(DIRECTORY);
    let of_path = Sha256::new().chain_update(directory.canonicalize().map_err(about)?.as_os_str().as_encoded_bytes());
    let name = Mixture::names().find(|name| Mixture::find(name) == Some(mixture));
    let prefix = format!("{}-{}-", hex(of_path), name.unwrap_or_default().to_ascii_lowercase());
    let path = cache.join(format!("{prefix}{}.gguf", state(directory, arch).map_err(about)?));
    if path.is_file() {
        return Ok(path);
    }
    let source = open(directory, arch)?;
    hint!("quantizing {} once, to {}", directory.display(), path.display());
    fs::create_dir_all(&cache).map_err(about)?;
    write(&source, mixture, &path)?;
    remove_older(&cache, &prefix, &path);
    Ok(path)
}

fn write(source: &GgufSet, mixture: Mixture, path: &Path) -> Outcome {
    let options = Options {
        mixture,
        by_role: false,
        pure: false,
        keep_output: false,
        output: None,
        embedding: None,
        rules: Vec::new(),
        types: Default::default(),
        pruned: PrunedLayers::new([]),
        // Weights that the checkpoint quantized in a type of GGUF keep it.
        allow_requantize: false,
        importance: None,
    };
    let plan = QuantizePlan::new(source, &options)?;
    let guard = interrupt::listen();
    let bar = progress::timed("quantizing", plan.tensors.iter().map(PlannedTensor::n_elements).sum());
    let mut output = OutputFile::create(path)?;
    let mut out = BufWriter::with_capacity(1 << 20, output.file());
    let written = QuantizedFile::new(source, &plan, &[]).write(None, &mut out, &|done| {
        bar.set(done);
        !guard.is_set()
    });
    if guard.is_set() {
        return Err(Failure::Interrupted);
    }
    written?;
    out.flush().map_err(|e| failed(path, &e))?;
    drop(out);
    output.finish(None)
}

/// Removes the files of earlier versions of a checkpoint.
fn remove_older(cache: &Path, prefix: &str, kept: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(prefix) && path != kept {
            // A file that is in use, or belongs to someone else, remains.
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns a digest of the names, sizes, and times of all files, and of a declaration file.
fn state(directory: &Path, arch: &str) -> std::io::Result<String> {
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
    if declared::is_file(arch) {
        digest.update(fs::read(arch)?);
    }
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

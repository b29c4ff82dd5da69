//! `llama gguf hash`: digests of tensors.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use engine::gguf::{GgufError, GgufSet, TensorInfo};
use rayon::prelude::*;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::format;
use crate::input;

/// Arguments of `llama gguf hash`.
#[derive(Debug, Args)]
#[command(
    after_help = "Each line is `sha256 DIGEST FILE:TENSOR`, as llama.cpp's gguf-hash prints.\nThe last line is the digest of the model: names, types, shapes, and data of all tensors, in the order of their names."
)]
pub struct HashArgs {
    /// GGUF file, or the first of several
    pub file: PathBuf,
    /// Compare with the digests that this command has printed
    #[arg(long, value_name = "FILE")]
    pub check: Option<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "check")]
    pub json: bool,
}

/// Prints or compares the digests of a model.
pub fn run(args: &HashArgs) -> Outcome {
    let set = GgufSet::open(&args.file)?;
    let tensors = digests(&set)?;
    let model = model_digest(&set, &tensors);
    if let Some(manifest) = &args.check {
        return check(args, manifest, &tensors, &model);
    }
    let mut out = stdout();
    let file = args.file.display();
    if args.json {
        let report = json!({ "file": file.to_string(), "sha256": model, "tensors": tensors });
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        for (name, digest) in &tensors {
            writeln!(out, "sha256    {digest}  {file}:{name}")?;
        }
        writeln!(out, "sha256    {model}  {file}")?;
    }
    Ok(out.flush()?)
}

/// Returns the digest of the data of each tensor, by name.
fn digests(set: &GgufSet) -> Outcome<BTreeMap<&str, String>> {
    let tensors: Vec<(usize, &TensorInfo)> = set.tensors().collect();
    // Tensors of a checkpoint are converted one at a time.
    let digest = |&(shard, tensor): &(usize, &'_ TensorInfo)| {
        let (file, mut scratch) = (&set.shards()[shard], Vec::new());
        let start = file.tensor_offset(tensor);
        let bytes = file.mapping().view(start..start + tensor.bytes, &mut scratch)?;
        Ok(hexadecimal(&Sha256::digest(bytes)))
    };
    let digests = tensors
        .par_iter()
        .map(digest)
        .collect::<Result<Vec<String>, GgufError>>()?;
    for shard in set.shards() {
        shard.mapping().check_unchanged().map_err(|e| e.in_file(shard.path()))?;
    }
    let names = tensors.iter().map(|(_, tensor)| tensor.name.as_str());
    Ok(names.zip(digests).collect())
}

/// Returns the digest of a model, independent of the order of tensors, of padding, and of metadata.
fn model_digest(set: &GgufSet, tensors: &BTreeMap<&str, String>) -> String {
    let mut hash = Sha256::new();
    for (name, digest) in tensors {
        let Some((_, tensor)) = set.tensor(name) else { continue };
        hash.update(format!("{name}\0{} {:?} {digest}\n", tensor.ty, tensor.shape()));
    }
    hexadecimal(&hash.finalize())
}

/// Returns the SHA-256 digest of a model.
pub fn model_sha256(set: &GgufSet) -> Outcome<String> {
    Ok(model_digest(set, &digests(set)?))
}

/// Returns bytes as hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn check(args: &HashArgs, manifest: &Path, tensors: &BTreeMap<&str, String>, model: &str) -> Outcome {
    let text = input::read_whole(manifest)?;
    let mut n_equal = 0;
    let mut wrong = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (digest, name) = entry(line).ok_or_else(|| {
            Failure::new(format_args!(
                "{}: expected lines `sha256 DIGEST FILE:TENSOR`, found {line:?}",
                manifest.display()
            ))
        })?;
        let found = match name {
            Some(name) => tensors.get(name).map(String::as_str),
            None => Some(model),
        };
        match found {
            Some(found) if found == digest => n_equal += 1,
            Some(_) => wrong.push(format!("{} differs", name.unwrap_or("the model"))),
            None => wrong.push(format!("{} is missing", name.unwrap_or_default())),
        }
    }
    if let Some(first) = wrong.first() {
        return Err(Failure::new(format_args!(
            "{}: {} of {} differ from {}; the first: {first}",
            args.file.display(),
            wrong.len(),
            format::plural(wrong.len() + n_equal, "digest"),
            manifest.display()
        )));
    }
    let mut out = stdout();
    let equal = format::plural(n_equal, "equal digest");
    writeln!(out, "{}: {equal}", args.file.display())?;
    Ok(out.flush()?)
}

/// Parses a line; the name is absent for the digest of a model.
fn entry(line: &str) -> Option<(&str, Option<&str>)> {
    let rest = line.trim_start().strip_prefix("sha256")?.trim_start();
    let (digest, file) = rest.split_once(char::is_whitespace)?;
    let is_digest = digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit());
    let name = file.trim_start().rsplit_once(':').map(|(_, name)| name);
    if is_digest { Some((digest, name)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_has_digest_and_name() {
        let digest = "ab".repeat(32);
        let line = format!("sha256    {digest}  dir:x/model.gguf:blk.0.attn_q.weight");
        assert_eq!(entry(&line), Some((digest.as_str(), Some("blk.0.attn_q.weight"))));
        assert_eq!(
            entry(&format!("sha256 {digest} model.gguf")),
            Some((digest.as_str(), None))
        );
        assert_eq!(entry("sha256 abc model.gguf"), None);
        assert_eq!(entry("xxh64 00 model.gguf"), None);
    }
}

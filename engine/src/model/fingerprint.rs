//! Model fingerprints, so that a saved state is never restored into a different model.

use crate::digest::Digest;
use crate::gguf::{GgufError, GgufSet, GgufWriter};

use super::{Architecture, Consumer, TableRow};

/// Digests that identify a model, independent of file path and weight placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Architecture that the model was loaded as.
    pub arch: &'static str,
    /// Digest of the architecture's metadata, and of a declaration that was read at run time.
    pub hparams: u64,
    /// Digest of the names, shapes, and types of all tensors.
    pub tensors: u64,
    /// Digest of the first bytes of each matrix, which differs between a model and its fine-tunes.
    pub weights: u64,
}

/// Bytes sampled per matrix.
const SAMPLE: usize = 32;

impl Fingerprint {
    pub(super) fn of(
        file: &GgufSet,
        arch: &'static Architecture,
        prefix: &str,
        rows: &[TableRow],
    ) -> Result<Fingerprint, GgufError> {
        Ok(Fingerprint {
            arch: arch.name,
            hparams: hparams(file, prefix)? ^ arch.load.digest().unwrap_or(0),
            tensors: tensors(file),
            weights: weights(file, rows)?,
        })
    }
}

/// Hashes the metadata keys with the architecture prefix, encoded as a GGUF header.
fn hparams(file: &GgufSet, prefix: &str) -> Result<u64, GgufError> {
    let is_hparam = |key: &str| key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'));
    let own = file.metadata().iter().filter(|(key, _)| is_hparam(key));
    let header = GgufWriter::with_metadata(own.map(|(k, v)| (k, v.clone())).collect()).header()?;
    Ok(Digest::of(&header))
}

fn tensors(file: &GgufSet) -> u64 {
    let mut digest = Digest::default();
    for (_, t) in file.tensors() {
        digest.update(&(t.name.len() as u64).to_le_bytes());
        digest.update(t.name.as_bytes());
        t.ne.iter().for_each(|&n| digest.update(&(n as u64).to_le_bytes()));
        digest.update(&t.ty.id().to_le_bytes());
    }
    digest.finish()
}

fn weights(file: &GgufSet, rows: &[TableRow]) -> Result<u64, GgufError> {
    let (mut digest, mut scratch) = (Digest::default(), Vec::new());
    for row in rows.iter().filter(|r| r.consumer != Consumer::Elementwise) {
        let range = row.file_range(file);
        let sample = range.start..range.end.min(range.start + SAMPLE);
        digest.update(file.shards()[row.shard].mapping().read_at(sample, &mut scratch)?);
    }
    Ok(digest.finish())
}

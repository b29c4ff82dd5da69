//! Checkpoints as models. Renamed tensors are read from the mapped files; all other tensors are converted on access.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::CheckpointError;
use super::config::Config;
use super::plan::{Conversion, ConvertedTensor, OutputType};
use crate::gguf::{ComputedBytes, Gguf, GgufError, GgufFile, GgufSet, GgufWriter, Mapping, TensorInfo};
use crate::model::{ModelError, Registered};

/// Alignment of converted tensors.
const ALIGNMENT: usize = 64;

/// Returns true for the directory of a checkpoint.
pub fn is_checkpoint(path: &Path) -> bool {
    path.is_dir() && path.join("config.json").is_file()
}

/// Returns true for the directory of a checkpoint, and an error for other directories.
fn is_model_directory(path: &Path) -> Result<bool, ModelError> {
    let is_checkpoint = is_checkpoint(path);
    if path.is_dir() && !is_checkpoint {
        let why = "the directory has no config.json; expected the directory of a checkpoint, or a GGUF file";
        return Err(CheckpointError::file(path, why).into());
    }
    Ok(is_checkpoint)
}

/// Returns the classes of a checkpoint, which select the section of a declaration.
///
/// # Errors
/// Returns an error if the configuration cannot be read.
pub fn classes_of(path: &Path) -> Result<Vec<String>, CheckpointError> {
    let config = Config::read(&path.join("config.json"))?;
    Ok(config.classes().into_iter().map(str::to_owned).collect())
}

/// Opens a model: a GGUF file with all its parts, or the directory of a checkpoint, which is converted while it is
/// read. `archs` are the architectures that may map the checkpoint.
///
/// # Errors
/// Returns a [`ModelError`] if a file is invalid, or the checkpoint matches no architecture.
pub fn open_model(path: &Path, archs: &[Registered]) -> Result<GgufSet, ModelError> {
    if !is_model_directory(path)? {
        return Ok(GgufSet::open(path)?);
    }
    let set = Conversion::open(path, archs, OutputType::Auto).and_then(|conversion| conversion.into_set(path));
    Ok(set?)
}

/// Reads the header of a model: of a GGUF file, or of the file that a checkpoint would be converted to.
///
/// # Errors
/// Returns the errors of [`open_model`].
pub fn open_model_header(path: &Path, archs: &[Registered]) -> Result<Gguf, ModelError> {
    if !is_model_directory(path)? {
        return Ok(Gguf::open_header(path)?);
    }
    let header = Conversion::open(path, archs, OutputType::Auto).and_then(|conversion| conversion.header());
    Ok(header?)
}

impl From<CheckpointError> for ModelError {
    fn from(error: CheckpointError) -> ModelError {
        match error {
            CheckpointError::Gguf(error) => ModelError::Gguf(error),
            error => ModelError::Checkpoint {
                text: error.to_string(),
            },
        }
    }
}

impl Conversion {
    /// Returns the header of the file.
    ///
    /// # Errors
    /// Returns an error if a name or shape does not fit in a GGUF file.
    pub fn header(&self) -> Result<Gguf, CheckpointError> {
        let mut writer = GgufWriter::with_metadata(self.metadata.clone());
        for t in &self.tensors {
            writer.add_tensor_with(&t.name, t.ty, &t.shape, |_| Ok(()))?;
        }
        Ok(Gguf::parse_header(&writer.header()?)?)
    }

    /// Returns the checkpoint as an open model. The first part has the metadata and the converted tensors. Each file
    /// of the checkpoint is another part.
    ///
    /// # Errors
    /// Returns the errors of [`Conversion::header`].
    pub fn into_set(self, path: &Path) -> Result<GgufSet, CheckpointError> {
        let header = self.header()?;
        let files = self.shards().files();
        let mut tensors: Vec<Vec<TensorInfo>> = vec![Vec::new(); files.len()];
        let (mut computed, mut starts, mut end) = (Vec::new(), Vec::new(), 0usize);
        for (i, t) in self.tensors.iter().enumerate() {
            // `header` has all tensors.
            let Some(info) = header.tensor(&t.name) else { continue };
            if let Some((shard, range)) = self.in_place(t) {
                let info = TensorInfo {
                    offset: range.start,
                    ..info.clone()
                };
                tensors[shard].push(info);
                continue;
            }
            let offset = end.next_multiple_of(ALIGNMENT);
            end = offset.checked_add(info.bytes).ok_or(GgufError::ModelTooLarge {
                needed: usize::MAX,
                limit: isize::MAX as usize,
            })?;
            computed.push(TensorInfo { offset, ..info.clone() });
            starts.push((offset..end, i));
        }
        let metadata = self.metadata.clone();
        let converted = ConvertedBytes {
            conversion: self,
            path: path.to_owned(),
            tensors: starts,
            n_bytes: end,
        };
        let first = Gguf::of_parts(metadata, computed);
        let mut parts = vec![GgufFile::of_parts(
            path,
            first,
            Arc::new(Mapping::computed(Box::new(converted))),
        )];
        for ((path, mapping), tensors) in files.into_iter().zip(tensors) {
            parts.push(GgufFile::of_parts(
                &path,
                Gguf::of_parts(Default::default(), tensors),
                mapping,
            ));
        }
        Ok(GgufSet::from_shards(parts)?)
    }

    /// Returns the file and the bytes of a tensor that the file holds in the type and order of the model.
    fn in_place(&self, t: &ConvertedTensor) -> Option<(usize, Range<usize>)> {
        let ([name], [part]) = (&t.from[..], t.parts()) else {
            return None;
        };
        let source = self.shards().get(name)?;
        let is_plain = part.changes.is_empty() && self.shards().packed(name).is_none();
        if source.ty.stored() != Some(t.ty) || !is_plain {
            return None;
        }
        let elements = part.view.contiguous()?;
        let (shard, data) = self.shards().place(name)?;
        let size = source.ty.bytes();
        Some((
            shard,
            data.start + elements.start * size..data.start + elements.end * size,
        ))
    }
}

/// Tensors that are converted when they are read.
struct ConvertedBytes {
    conversion: Conversion,
    path: PathBuf,
    /// Position and index of each tensor, in the order of the positions.
    tensors: Vec<(Range<usize>, usize)>,
    n_bytes: usize,
}

impl fmt::Debug for ConvertedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConvertedBytes({}, {} bytes)", self.path.display(), self.n_bytes)
    }
}

impl ConvertedBytes {
    /// Returns the tensors in a range of bytes.
    fn tensors_in(&self, range: &Range<usize>) -> &[(Range<usize>, usize)] {
        let first = self.tensors.partition_point(|(bytes, _)| bytes.end <= range.start);
        let end = self.tensors.partition_point(|(bytes, _)| bytes.start < range.end);
        &self.tensors[first..end.max(first)]
    }
}

impl ComputedBytes for ConvertedBytes {
    fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    fn compute(&self, start: usize, out: &mut [u8]) -> Result<(), GgufError> {
        let range = start..start + out.len();
        let mut result = Ok(());
        for (bytes, i) in self.tensors_in(&range) {
            let part = bytes.start.max(range.start)..bytes.end.min(range.end);
            let out = &mut out[part.start - start..part.end - start];
            let filled = self
                .conversion
                .fill(&self.conversion.tensors[*i], part.start - bytes.start, out);
            result = result.and(filled);
        }
        result.map_err(|error| GgufError::Computed {
            text: error.to_string(),
        })
    }

    fn release(&self, range: Range<usize>) {
        // Parts of a tensor are released in order, so that its sources are read by then.
        let ended = self
            .tensors_in(&range)
            .iter()
            .filter(|(bytes, _)| bytes.end <= range.end);
        for (_, i) in ended {
            let names = &self.conversion.tensors[*i].from;
            names.iter().for_each(|name| self.conversion.shards().release(name));
        }
    }
}

//! Models split into several files (`NAME-00001-of-00003.gguf`). The first file has the metadata; tensors are
//! in all files.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::value::FromValue;
use super::{GgufError, GgufFile, Metadata, TensorInfo};

/// Metadata key (u16): index of this part, from 0.
pub const KEY_NO: &str = "split.no";
/// Metadata key (u16): total number of parts.
pub const KEY_COUNT: &str = "split.count";
/// Metadata key (i32): number of tensors in all parts.
pub const KEY_TENSORS_COUNT: &str = "split.tensors.count";

/// Parsed file name of a part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SplitName {
    /// Path up to the part numbers.
    prefix: PathBuf,
    /// Index of the part, from 0.
    pub no: u16,
    /// Total number of parts.
    pub count: u16,
}

impl SplitName {
    /// Parses `PREFIX-00001-of-00003.gguf`; `None` if the name has a different form.
    pub fn parse(path: &Path) -> Option<SplitName> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, no) = rest.rsplit_once('-')?;
        let (no, count) = (five_digits(no)?, five_digits(count)?);
        if !(1..=count).contains(&no) {
            return None;
        }
        Some(SplitName {
            prefix: path.with_file_name(prefix),
            no: no - 1,
            count,
        })
    }

    /// Returns the path of part `no` (from 0) of this model.
    pub fn part(&self, no: u16) -> PathBuf {
        part_path(&self.prefix, no, self.count)
    }
}

/// Returns `PREFIX-00001-of-00003.gguf` for part 0 of 3.
pub fn part_path(prefix: &Path, no: u16, count: u16) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(format!("-{:05}-of-{count:05}.gguf", u32::from(no) + 1));
    path.into()
}

fn five_digits(s: &str) -> Option<u16> {
    if s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit()) {
        s.parse().ok()
    } else {
        None
    }
}

/// Split metadata of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SplitInfo {
    /// Index of this part, from 0.
    pub no: u16,
    /// Total number of parts, at least 2.
    pub count: u16,
    /// Number of tensors in all parts, if declared.
    pub n_tensors: Option<u64>,
}

impl SplitInfo {
    /// Reads the split keys; `None` if the file is a complete model.
    ///
    /// # Errors
    /// Returns a [`GgufError`] if a split key has a wrong type, or the index of the part is missing.
    pub fn from_metadata(metadata: &Metadata) -> Result<Option<SplitInfo>, GgufError> {
        let count = metadata.optional(KEY_COUNT)?.unwrap_or(0);
        if count <= 1 {
            return Ok(None);
        }
        Ok(Some(SplitInfo {
            no: metadata.require(KEY_NO)?,
            count,
            n_tensors: metadata.optional(KEY_TENSORS_COUNT)?,
        }))
    }
}

/// A complete model in one or more files, with a common tensor index.
#[derive(Clone, Debug)]
pub struct GgufSet {
    /// All parts in order; never empty.
    shards: Vec<GgufFile>,
    /// Shard index and index in the tensor table, by tensor name.
    index: HashMap<Box<str>, (usize, usize)>,
}

impl GgufSet {
    /// Maps a model given its only or first file, including all other parts. Errors name the file.
    pub fn open(first: impl AsRef<Path>) -> Result<GgufSet, GgufError> {
        let path = first.as_ref();
        let first = GgufFile::open(path)?;
        let Some(split) = SplitInfo::from_metadata(first.metadata()).map_err(|e| e.in_file(path))? else {
            return Self::from_shards(vec![first]);
        };
        let name = SplitName::parse(path).filter(|name| name.count == split.count && name.no == split.no);
        let name = name.ok_or_else(|| GgufError::SplitName { count: split.count }.in_file(path))?;
        if split.no != 0 {
            let error = GgufError::NotFirstShard {
                no: split.no,
                count: split.count,
                first: name.part(0),
            };
            return Err(error.in_file(path));
        }
        let mut shards = vec![first];
        for no in 1..split.count {
            let shard = GgufFile::open(name.part(no))?;
            check_part(shard.metadata(), no, split.count).map_err(|e| e.in_file(shard.path()))?;
            shards.push(shard);
        }
        let set = Self::from_shards(shards)?;
        match split.n_tensors {
            Some(expected) if expected != set.n_tensors() as u64 => Err(GgufError::SplitTensorCount {
                expected,
                found: set.n_tensors(),
            }
            .in_file(path)),
            _ => Ok(set),
        }
    }

    /// Creates a set from a model in a single file.
    ///
    /// # Errors
    /// Returns [`GgufError::DuplicateTensor`] if two tensors have the same name.
    pub fn from_file(file: GgufFile) -> Result<GgufSet, GgufError> {
        Self::from_shards(vec![file])
    }

    /// Creates a set from files of one model. Only the metadata of the first counts.
    pub(crate) fn from_shards(shards: Vec<GgufFile>) -> Result<GgufSet, GgufError> {
        let mut index = HashMap::new();
        for (s, shard) in shards.iter().enumerate() {
            for (i, tensor) in shard.tensors().iter().enumerate() {
                if index.insert(tensor.name.as_str().into(), (s, i)).is_some() {
                    let error = GgufError::DuplicateTensor {
                        name: tensor.name.clone(),
                    };
                    return Err(error.in_file(shard.path()));
                }
            }
        }
        Ok(GgufSet { shards, index })
    }

    /// Returns all files, first part first.
    pub fn shards(&self) -> &[GgufFile] {
        &self.shards
    }

    /// Returns the only or first file.
    pub fn first(&self) -> &GgufFile {
        &self.shards[0]
    }

    /// Returns the metadata, which is stored in the first file.
    pub fn metadata(&self) -> &Metadata {
        self.first().metadata()
    }

    /// Returns the metadata for overrides.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        self.shards[0].metadata_mut()
    }

    /// Returns the value of `key` as `T`; see [`Metadata::require`]. Errors name the file and the key.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.first().require(key)
    }

    /// Returns the value of `key` as `T`, or `None` if the key is missing; see [`Metadata::optional`]. Errors
    /// name the file and the key.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        self.first().optional(key)
    }

    /// Returns the number of tensors in all files.
    pub fn n_tensors(&self) -> usize {
        self.index.len()
    }

    /// Iterates over all tensors in file order, each with the index of its file in [`GgufSet::shards`].
    pub fn tensors(&self) -> impl Iterator<Item = (usize, &TensorInfo)> {
        let shards = self.shards.iter().enumerate();
        let all = shards.flat_map(|(s, shard)| shard.tensors().iter().map(move |t| (s, t)));
        all.filter(|(s, t)| self.index.get(t.name.as_str()).is_some_and(|(shard, _)| shard == s))
    }

    /// Returns the set with the tensors of `file` in place of tensors of equal names. Metadata does not change.
    pub fn with_replaced(&self, file: GgufFile) -> GgufSet {
        let mut set = self.clone();
        let shard = set.shards.len();
        for (i, tensor) in file.tensors().iter().enumerate() {
            set.index.insert(tensor.name.as_str().into(), (shard, i));
        }
        set.shards.push(file);
        set
    }

    /// Returns the tensor with this name and the index of its file in [`GgufSet::shards`].
    pub fn tensor(&self, name: &str) -> Option<(usize, &TensorInfo)> {
        let &(s, i) = self.index.get(name)?;
        Some((s, &self.shards[s].tensors()[i]))
    }

    /// Returns the data of the tensor with this name, without a copy unless the data is computed.
    ///
    /// # Errors
    /// Returns an error if no tensor has this name, or if computed data is invalid.
    pub fn read_tensor(&self, name: &str) -> Result<Cow<'_, [u8]>, GgufError> {
        let (s, info) = self
            .tensor(name)
            .ok_or_else(|| GgufError::NoTensor { name: name.to_owned() })?;
        let shard = &self.shards[s];
        if !shard.mapping().is_computed() {
            return Ok(Cow::Borrowed(shard.tensor_data(info)));
        }
        let (start, mut data) = (shard.tensor_offset(info), Vec::new());
        let range = start..start + info.bytes;
        shard.mapping().view(range.clone(), &mut data)?;
        shard.mapping().release(range);
        Ok(Cow::Owned(data))
    }

    /// Returns the data of the tensor with this name.
    pub fn tensor_data(&self, name: &str) -> Option<&[u8]> {
        let (s, info) = self.tensor(name)?;
        Some(self.shards[s].tensor_data(info))
    }
}

fn check_part(metadata: &Metadata, no: u16, count: u16) -> Result<(), GgufError> {
    for (key, expected) in [(KEY_NO, no), (KEY_COUNT, count)] {
        let found: u64 = metadata.require(key)?;
        if found != u64::from(expected) {
            return Err(GgufError::SplitMismatch {
                key,
                expected: expected.into(),
                found,
            });
        }
    }
    Ok(())
}

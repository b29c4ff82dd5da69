//! Models in several files, `NAME-00001-of-00003.gguf` and so on: metadata in the first, tensors in all.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::value::FromValue;
use super::{GgufError, GgufFile, Metadata, TensorInfo};

/// Number of this file among the parts, from 0 (u16).
pub const KEY_NO: &str = "split.no";
/// Number of parts (u16).
pub const KEY_COUNT: &str = "split.count";
/// Number of tensors in all parts together (i32).
pub const KEY_TENSORS_COUNT: &str = "split.tensors.count";

/// What the name of a part says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SplitName {
    /// Folder and name up to the numbers.
    prefix: PathBuf,
    /// Number of the part, from 0.
    pub no: u16,
    /// Number of parts.
    pub count: u16,
}

impl SplitName {
    /// Takes `PREFIX-00001-of-00003.gguf` apart; `None` if that is not the form of the name.
    pub fn parse(path: &Path) -> Option<SplitName> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, no) = rest.rsplit_once('-')?;
        let (no, count) = (five_digits(no)?, five_digits(count)?);
        (1..=count).contains(&no).then(|| SplitName {
            prefix: path.with_file_name(prefix),
            no: no - 1,
            count,
        })
    }

    /// The path of part `no` (from 0) of the same model.
    pub fn part(&self, no: u16) -> PathBuf {
        part_path(&self.prefix, no, self.count)
    }
}

/// `PREFIX-00001-of-00003.gguf` for part 0 of 3.
pub fn part_path(prefix: &Path, no: u16, count: u16) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(format!("-{:05}-of-{count:05}.gguf", u32::from(no) + 1));
    path.into()
}

fn five_digits(s: &str) -> Option<u16> {
    (s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit()))
        .then(|| s.parse().ok())
        .flatten()
}

/// What a file's metadata says about the model it is a part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SplitInfo {
    /// Number of this part, from 0.
    pub no: u16,
    /// Number of parts, at least 2.
    pub count: u16,
    /// Number of tensors in all parts, if the file says it.
    pub n_tensors: Option<u64>,
}

impl SplitInfo {
    /// Reads the keys; `None` if the file is a whole model.
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

/// A whole model: one file or several, with one table of tensors.
#[derive(Clone, Debug)]
pub struct GgufSet {
    /// Part 0 first; never empty.
    shards: Vec<GgufFile>,
    /// Shard and place in its table, by name.
    index: HashMap<Box<str>, (usize, usize)>,
}

impl GgufSet {
    /// Maps a model by its only or first file, and the other files that belong to it. Errors name the file.
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

    /// A model of one file that is open already.
    pub fn from_file(file: GgufFile) -> Result<GgufSet, GgufError> {
        Self::from_shards(vec![file])
    }

    fn from_shards(shards: Vec<GgufFile>) -> Result<GgufSet, GgufError> {
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

    /// All files, the first part first.
    pub fn shards(&self) -> &[GgufFile] {
        &self.shards
    }

    /// The only or first file.
    pub fn first(&self) -> &GgufFile {
        &self.shards[0]
    }

    /// Keys and values: those of the first file.
    pub fn metadata(&self) -> &Metadata {
        self.first().metadata()
    }

    /// Keys and values, to be overridden.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        self.shards[0].metadata_mut()
    }

    /// The value of `key` as `T`; errors name the file and the key.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.first().require(key)
    }

    /// The value of `key` as `T`, `None` if it is missing; errors name the file and the key.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        self.first().optional(key)
    }

    /// Number of tensors in all files.
    pub fn n_tensors(&self) -> usize {
        self.index.len()
    }

    /// All tensors, each with the index of its file in [`GgufSet::shards`], in file order.
    pub fn tensors(&self) -> impl Iterator<Item = (usize, &TensorInfo)> {
        let shards = self.shards.iter().enumerate();
        shards.flat_map(|(s, shard)| shard.tensors().iter().map(move |t| (s, t)))
    }

    /// The tensor of this name, with the index of its file in [`GgufSet::shards`].
    pub fn tensor(&self, name: &str) -> Option<(usize, &TensorInfo)> {
        let &(s, i) = self.index.get(name)?;
        Some((s, &self.shards[s].tensors()[i]))
    }

    /// The data of the tensor of this name.
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

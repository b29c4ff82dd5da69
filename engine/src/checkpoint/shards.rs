//! The tensors of all safetensors files of a checkpoint.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::CheckpointError;
use super::packed::PackedMatrix;
use super::safetensors::{self, SourceTensor};
use crate::gguf::Mapping;

/// Maximum length of a JSON file in bytes, except tokenizers.
const MAX_JSON: u64 = 16 << 20;
/// Name of the list of tensors and their files.
const INDEX: &str = "model.safetensors.index.json";

/// A mapped file and its tensors.
struct Shard {
    path: PathBuf,
    map: Arc<Mapping>,
    tensors: Vec<SourceTensor>,
}

/// Tensors of a checkpoint by name.
pub struct Shards {
    shards: Vec<Shard>,
    /// Shard and index of each tensor.
    names: HashMap<String, (usize, usize)>,
    /// Matrices that are stored in several tensors, by name. A matrix shadows a tensor of the same name.
    packed: HashMap<String, PackedMatrix>,
}

impl Shards {
    /// Maps all files of a checkpoint: the files of its index, or all `*.safetensors` of the directory.
    pub fn open(path: &Path) -> Result<Shards, CheckpointError> {
        let (files, index) = files(path)?;
        let mut all = Shards {
            shards: Vec::new(),
            names: HashMap::new(),
            packed: HashMap::new(),
        };
        for path in files {
            all.add(path)?;
        }
        if let Some((path, index)) = index {
            for (name, file) in index.weight_map {
                let found = all.names.get(&name).map(|&(shard, _)| &all.shards[shard].path);
                if found.and_then(|p| p.file_name()).is_none_or(|f| *f != *file) {
                    let text = format!("the index places tensor `{name}` in {file}, which does not contain the tensor");
                    return Err(CheckpointError::file(&path, text));
                }
            }
        }
        Ok(all)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), CheckpointError> {
        let map = Mapping::open(&path).map_err(|e| e.in_file(&path))?;
        let tensors = safetensors::parse(map.bytes()).map_err(|text| CheckpointError::file(&path, text))?;
        for (i, tensor) in tensors.iter().enumerate() {
            if let Some((other, _)) = self.names.insert(tensor.name.clone(), (self.shards.len(), i)) {
                let other = self.shards[other].path.display();
                let text = format!("tensor `{}` is also in {other}", tensor.name);
                return Err(CheckpointError::file(&path, text));
            }
        }
        self.shards.push(Shard {
            path,
            map: Arc::new(map),
            tensors,
        });
        Ok(())
    }

    /// Renames all tensors, and removes a tensor if `rename` returns `None`.
    pub fn renamed(mut self, rename: impl Fn(&str) -> Option<String>) -> Result<Shards, CheckpointError> {
        self.names.clear();
        for (s, shard) in self.shards.iter_mut().enumerate() {
            let named = shard.tensors.drain(..).filter_map(|tensor| {
                let name = rename(&tensor.name)?;
                Some(SourceTensor { name, ..tensor })
            });
            shard.tensors = named.collect();
            for (i, tensor) in shard.tensors.iter().enumerate() {
                if self.names.insert(tensor.name.clone(), (s, i)).is_some() {
                    let text = format!("tensor `{}` is listed twice", tensor.name);
                    return Err(CheckpointError::file(&shard.path, text));
                }
            }
        }
        Ok(self)
    }

    /// Adds matrices that are stored in several tensors.
    pub fn pack(&mut self, matrices: Vec<PackedMatrix>) {
        self.packed = matrices.into_iter().map(|m| (m.source.name.clone(), m)).collect();
    }

    /// Returns the matrix of this name that is stored in several tensors.
    pub fn packed(&self, name: &str) -> Option<&PackedMatrix> {
        self.packed.get(name)
    }

    /// Returns the tensor of this name.
    pub fn get(&self, name: &str) -> Option<&SourceTensor> {
        if let Some(matrix) = self.packed.get(name) {
            return Some(&matrix.source);
        }
        self.names.get(name).map(|&(shard, i)| &self.shards[shard].tensors[i])
    }

    /// Returns the bytes of a tensor, even if a packed matrix shadows its name; empty if no tensor has this name.
    pub fn data(&self, name: &str) -> &[u8] {
        let found = self.names.get(name).map(|&(shard, i)| {
            let shard = &self.shards[shard];
            // `safetensors::parse` has compared the range with the length of the file.
            &shard.map.bytes()[shard.tensors[i].data.clone()]
        });
        found.unwrap_or_default()
    }

    /// Returns the paths and contents of all files.
    pub fn files(&self) -> Vec<(PathBuf, Arc<Mapping>)> {
        let files = self.shards.iter();
        files.map(|shard| (shard.path.clone(), shard.map.clone())).collect()
    }

    /// Returns the index of the file of a tensor, and the position of its data.
    pub fn place(&self, name: &str) -> Option<(usize, Range<usize>)> {
        let &(shard, i) = self.names.get(name)?;
        Some((shard, self.shards[shard].tensors[i].data.clone()))
    }

    /// Releases the mapped pages of a tensor that has been converted.
    pub fn release(&self, name: &str) {
        if let Some(matrix) = self.packed.get(name) {
            matrix
                .names()
                .filter(|part| *part != name)
                .for_each(|part| self.release(part));
        }
        if let Some(&(shard, i)) = self.names.get(name) {
            let shard = &self.shards[shard];
            shard.map.release(shard.tensors[i].data.clone());
        }
    }

    /// Returns the file of a tensor.
    pub fn path(&self, name: &str) -> &Path {
        let name = self
            .packed
            .get(name)
            .and_then(|m| m.names().next())
            .map_or(name, String::as_str);
        let found = self
            .names
            .get(name)
            .map(|&(shard, _)| self.shards[shard].path.as_path());
        found.unwrap_or(Path::new(""))
    }

    /// Iterates over all tensors, in the order of the files.
    pub fn iter(&self) -> impl Iterator<Item = &SourceTensor> {
        self.shards.iter().flat_map(|shard| &shard.tensors)
    }

    /// Returns an error if a file changed while it was mapped.
    pub fn check_unchanged(&self) -> Result<(), CheckpointError> {
        for shard in &self.shards {
            shard.map.check_unchanged().map_err(|e| e.in_file(&shard.path))?;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

type Files = (Vec<PathBuf>, Option<(PathBuf, Index)>);

/// Returns the files of a checkpoint, and its index.
fn files(path: &Path) -> Result<Files, CheckpointError> {
    if !path.is_dir() {
        return Ok((vec![path.to_owned()], None));
    }
    let index = path.join(INDEX);
    if index.exists() {
        let text = read_text(&index, MAX_JSON)?;
        let parsed: Index =
            serde_json::from_str(&text).map_err(|e| CheckpointError::file(&index, format!("invalid index: {e}")))?;
        let names: BTreeSet<&String> = parsed.weight_map.values().collect();
        let mut files = Vec::new();
        for name in names {
            let is_plain = Path::new(name).file_name().is_some_and(|file| file == name.as_str());
            if !is_plain {
                let text = format!("the index names {name:?}, which is not a file of this directory");
                return Err(CheckpointError::file(&index, text));
            }
            let file = path.join(name);
            if !file.exists() {
                let text = format!("the index names {name}, which is missing; download the file again");
                return Err(CheckpointError::file(&index, text));
            }
            files.push(file);
        }
        return Ok((files, Some((index, parsed))));
    }
    let single = path.join("model.safetensors");
    if single.exists() {
        return Ok((vec![single], None));
    }
    let io = |error| CheckpointError::Io {
        path: path.to_owned(),
        error,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(io)? {
        let file = entry.map_err(io)?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_weights = name.ends_with(".safetensors") && !name.starts_with("consolidated");
        if is_weights {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(CheckpointError::file(path, "the directory has no `*.safetensors` file"));
    }
    Ok((files, None))
}

/// Reads a text file of at most `max` bytes.
pub fn read_text(path: &Path, max: u64) -> Result<String, CheckpointError> {
    let io = |error| CheckpointError::Io {
        path: path.to_owned(),
        error,
    };
    let size = fs::metadata(path).map_err(io)?.len();
    if size > max {
        let text = format!("the file has {size} bytes; the maximum is {max}");
        return Err(CheckpointError::file(path, text));
    }
    fs::read_to_string(path).map_err(io)
}

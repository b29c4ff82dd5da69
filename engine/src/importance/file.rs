//! GGUF files of importance matrices, as llama.cpp writes them: for each tensor `NAME.in_sum2` (sums of squares),
//! `NAME.in_sum` (sums), and `NAME.counts`.

use std::io::{Read, Write};
use std::path::Path;

use kernels::GgmlType;

use super::entry::{Entry, ImportanceMatrix};
use super::error::ImportanceError;
use super::legacy;
use crate::gguf::{Array, FileKind, GgufFile, GgufWriter, StringArray, TensorInfo, Value};

const DATASETS: &str = "imatrix.datasets";
const CHUNKS: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";

impl ImportanceMatrix {
    /// Reads a file in the GGUF format or in the older `.dat` format.
    ///
    /// # Errors
    /// Returns an error if the file is damaged or of another kind.
    pub fn open(path: &Path) -> Result<ImportanceMatrix, ImportanceError> {
        let mut magic = [0; 4];
        let n = std::fs::File::open(path)?.read(&mut magic)?;
        if n == 4 && &magic == b"GGUF" {
            return ImportanceMatrix::from_file(&GgufFile::open(path)?);
        }
        legacy::parse(&std::fs::read(path)?)
    }

    /// Parses the contents of a file in either format. `path` is only used in messages.
    ///
    /// # Errors
    /// Returns an error if the file is damaged or of another kind.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<ImportanceMatrix, ImportanceError> {
        if bytes.starts_with(b"GGUF") {
            return ImportanceMatrix::from_file(&GgufFile::from_bytes(path, bytes)?);
        }
        legacy::parse(bytes)
    }

    /// Reads a GGUF file.
    ///
    /// # Errors
    /// Returns an error if the file is damaged or of another kind.
    pub fn from_file(file: &GgufFile) -> Result<ImportanceMatrix, ImportanceError> {
        let kind = FileKind::of(file.metadata(), file.tensors().len());
        if kind != FileKind::ImportanceMatrix {
            return Err(ImportanceError::Invalid(format!("the file is {kind}")));
        }
        let number = |key: &str| file.metadata().get(key).and_then(Value::as_u64);
        let narrow = |key: &str| u32::try_from(number(key).unwrap_or(0)).unwrap_or(u32::MAX);
        let mut matrix = ImportanceMatrix {
            n_chunks: narrow(CHUNKS),
            chunk_size: narrow(CHUNK_SIZE),
            ..ImportanceMatrix::default()
        };
        if let Some(Array::String(names)) = file.metadata().get(DATASETS).and_then(Value::as_array) {
            matrix.datasets = names
                .iter()
                .map(|name| String::from_utf8_lossy(name).into_owned())
                .collect();
        }
        for info in file.tensors() {
            if let Some(name) = info.name.strip_suffix(".in_sum2") {
                matrix.entries.insert(name.to_owned(), entry(file, name, info)?);
            }
        }
        if matrix.entries.is_empty() {
            return Err(ImportanceError::Invalid("the file has no tensors".to_owned()));
        }
        Ok(matrix)
    }

    /// Writes a GGUF file. Experts without inputs have a count of 0.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn write(&self, out: &mut dyn Write) -> Result<(), ImportanceError> {
        let mut writer = GgufWriter::new();
        let mut datasets = StringArray::default();
        for dataset in &self.datasets {
            if !datasets.push(dataset.as_bytes()) {
                return Err(ImportanceError::Invalid("the names of texts are too long".to_owned()));
            }
        }
        writer
            .set("general.type", "imatrix")
            .set(DATASETS, Value::Array(Array::String(datasets)))
            .set(CHUNKS, self.n_chunks)
            .set(CHUNK_SIZE, self.chunk_size);
        for (name, entry) in &self.entries {
            let n_counts = entry.counts.len();
            if n_counts == 0 || entry.squares.is_empty() {
                continue;
            }
            let shape = [entry.squares.len() / n_counts, n_counts];
            writer.add_tensor(format!("{name}.in_sum2"), GgmlType::F32, &shape, floats(&entry.squares))?;
            let counts: Vec<f64> = entry.counts.iter().map(|&count| count as f64).collect();
            writer.add_tensor(format!("{name}.counts"), GgmlType::F32, &[1, n_counts], floats(&counts))?;
            if !entry.sums.is_empty() {
                writer.add_tensor(format!("{name}.in_sum"), GgmlType::F32, &shape, floats(&entry.sums))?;
            }
        }
        writer.write(out)?;
        Ok(())
    }
}

fn floats(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect()
}

/// Reads the tensors of an entry.
fn entry(file: &GgufFile, name: &str, squares: &TensorInfo) -> Result<Entry, ImportanceError> {
    let invalid = |problem: &str| ImportanceError::Invalid(format!("tensor {name}: {problem}"));
    let values = |info: &TensorInfo| -> Result<Vec<f64>, ImportanceError> {
        if info.ty != GgmlType::F32 {
            return Err(invalid("the type is not f32"));
        }
        let bytes = file.tensor_data(info).chunks_exact(4);
        let values = bytes.map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        Ok(values.collect())
    };
    let squares = values(squares)?;
    let counts = file.tensor(&format!("{name}.counts"));
    let counts = values(counts.ok_or_else(|| invalid("there are no counts"))?)?;
    let sums = file.tensor(&format!("{name}.in_sum")).map(values).transpose()?;
    let is_positive = |values: &[f64]| values.iter().all(|value| value.is_finite() && *value >= 0.0);
    if !is_positive(&squares) || !is_positive(&counts) {
        return Err(invalid("a sum or a count is not a positive number"));
    }
    let is_whole = !counts.is_empty() && squares.len().is_multiple_of(counts.len());
    if !is_whole || sums.as_ref().is_some_and(|sums| sums.len() != squares.len()) {
        return Err(invalid("the numbers of sums and counts do not match"));
    }
    Ok(Entry {
        squares,
        sums: sums.unwrap_or_default(),
        counts: counts.iter().map(|count| count.round() as u64).collect(),
    })
}

//! GGUF version 3 writer. Tensor data is passed as bytes or streamed by a producer.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::Path;

use kernels::GgmlType;

use super::align_up;
use super::reader::{check_shape, read_alignment};
use super::value::{Array, Value};
use super::{GgufError, KEY_ALIGNMENT, MAGIC, MAX_ARRAY_DEPTH, MAX_DIMS, MAX_KEY_LEN, MAX_NAME_LEN, Metadata, VERSION};

/// Builder for a GGUF file. Tensors are laid out in insertion order.
///
/// Borrowed tensor data must outlive `'a`.
#[derive(Default)]
pub struct GgufWriter<'a> {
    /// Metadata; the key `general.alignment` sets the alignment of tensor data.
    pub metadata: Metadata,
    tensors: Vec<Pending<'a>>,
    names: HashSet<String>,
}

struct Pending<'a> {
    name: String,
    dims: Vec<u64>,
    ty: GgmlType,
    bytes: usize,
    data: Data<'a>,
}

enum Data<'a> {
    Bytes(Cow<'a, [u8]>),
    Producer(Producer<'a>),
}

type Producer<'a> = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + 'a>;

impl<'a> GgufWriter<'a> {
    /// Creates a file without metadata and tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a file with this metadata and no tensors.
    pub fn with_metadata(metadata: Metadata) -> Self {
        GgufWriter {
            metadata,
            ..Self::default()
        }
    }

    /// Sets a metadata key.
    pub fn set(&mut self, key: impl Into<Box<str>>, value: impl Into<Value>) -> &mut Self {
        self.metadata.insert(key, value);
        self
    }

    /// Sets the alignment of tensor data in bytes (a power of two).
    pub fn set_alignment(&mut self, alignment: u32) -> &mut Self {
        self.set(KEY_ALIGNMENT, alignment)
    }

    /// Adds a tensor with 1 to 4 dimensions `ne`, fastest-varying first.
    ///
    /// # Errors
    /// Returns [`GgufError::DataSize`] if the length of `data` does not match type and shape. An invalid name or shape
    /// is another error.
    pub fn add_tensor(
        &mut self,
        name: impl Into<String>,
        ty: GgmlType,
        ne: &[usize],
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut Self, GgufError> {
        let data = data.into();
        let found = data.len();
        let tensor = self.add(name.into(), ty, ne, Data::Bytes(data))?;
        if found != tensor.bytes {
            let (name, expected) = (tensor.name.clone(), tensor.bytes);
            self.names.remove(&name);
            self.tensors.pop();
            return Err(GgufError::DataSize { name, expected, found });
        }
        Ok(self)
    }

    /// Adds a tensor whose data is streamed by `producer` during [`GgufWriter::write`]. The producer must
    /// write exactly the number of bytes implied by type and shape.
    ///
    /// # Errors
    /// Returns a [`GgufError`] if the name is empty, too long, or used twice, or if the shape is invalid for the type.
    pub fn add_tensor_with(
        &mut self,
        name: impl Into<String>,
        ty: GgmlType,
        ne: &[usize],
        producer: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'a,
    ) -> Result<&mut Self, GgufError> {
        self.add(name.into(), ty, ne, Data::Producer(Box::new(producer)))?;
        Ok(self)
    }

    fn add(&mut self, name: String, ty: GgmlType, ne: &[usize], data: Data<'a>) -> Result<&Pending<'a>, GgufError> {
        let (index, len) = (self.tensors.len() as u64, name.len());
        if len == 0 {
            return Err(GgufError::EmptyName { index, offset: 0 });
        }
        if len > MAX_NAME_LEN {
            return Err(GgufError::NameTooLong {
                index,
                offset: 0,
                len: len as u64,
            });
        }
        if ne.is_empty() || ne.len() > MAX_DIMS {
            let found = u32::try_from(ne.len()).unwrap_or(u32::MAX);
            return Err(GgufError::BadDims { name, found });
        }
        let dims: Vec<u64> = ne.iter().map(|&n| n as u64).collect();
        let (_, bytes) = check_shape(&name, &dims, ty)?;
        if !self.names.insert(name.clone()) {
            return Err(GgufError::DuplicateTensor { name });
        }
        self.tensors.push(Pending {
            name,
            dims,
            ty,
            bytes,
            data,
        });
        Ok(&self.tensors[self.tensors.len() - 1])
    }

    /// Returns the encoded header: all bytes before the tensor data, padded to the alignment.
    ///
    /// # Errors
    /// Returns a [`GgufError`] if the metadata or the alignment is invalid, or an offset exceeds the address space.
    pub fn header(&self) -> Result<Vec<u8>, GgufError> {
        let alignment = read_alignment(&self.metadata)?;
        let mut entries = Vec::with_capacity(self.tensors.len());
        let mut offset = 0usize;
        for t in &self.tensors {
            entries.push(TableEntry {
                name: &t.name,
                dims: t.dims.clone(),
                ty: t.ty,
                offset: offset as u64,
            });
            let end = offset.checked_add(t.bytes).and_then(|end| align_up(end, alignment));
            offset = end.ok_or_else(|| GgufError::OffsetOverflow {
                name: t.name.clone(),
                offset: offset as u64,
                bytes: t.bytes,
            })?;
        }
        let mut out = encode_header(&self.metadata, &entries)?;
        out.resize(out.len().next_multiple_of(alignment), 0);
        Ok(out)
    }

    /// Returns the offsets in the file at which the header and each tensor end, including padding.
    ///
    /// # Errors
    /// Returns a [`GgufError`] under the conditions of [`GgufWriter::header`].
    pub fn ends(&self) -> Result<Vec<u64>, GgufError> {
        let alignment = read_alignment(&self.metadata)?;
        let mut end = self.header()?.len() as u64;
        let mut ends = vec![end];
        for tensor in &self.tensors {
            end += tensor.bytes.next_multiple_of(alignment) as u64;
            ends.push(end);
        }
        Ok(ends)
    }

    /// Writes the complete file and returns its length in bytes. Every tensor is padded to the alignment,
    /// including the last.
    ///
    /// # Errors
    /// Returns a [`GgufError`] if the header is invalid, `out` or a producer fails, or a producer does not write the
    /// declared number of bytes.
    pub fn write(self, out: &mut dyn Write) -> Result<u64, GgufError> {
        let io = |error| GgufError::Io {
            action: "write the file",
            error,
        };
        let header = self.header()?;
        out.write_all(&header).map_err(io)?;
        Ok(header.len() as u64 + self.write_rest(0, out)?)
    }

    /// Writes the tensors after the first `n_done`, for a file whose header and first tensors are complete. Returns
    /// the number of bytes written.
    ///
    /// # Errors
    /// Returns a [`GgufError`] under the conditions of [`GgufWriter::write`].
    pub fn write_rest(self, n_done: usize, out: &mut dyn Write) -> Result<u64, GgufError> {
        let io = |error| GgufError::Io {
            action: "write the file",
            error,
        };
        let alignment = read_alignment(&self.metadata)?;
        let mut written = 0;
        for t in self.tensors.into_iter().skip(n_done) {
            let (name, expected) = (t.name, t.bytes);
            match t.data {
                Data::Bytes(bytes) => out.write_all(&bytes).map_err(io)?,
                Data::Producer(produce) => {
                    let mut counted = Counted {
                        out,
                        count: 0,
                        limit: expected,
                    };
                    let result = produce(&mut counted);
                    if counted.count != expected && (result.is_ok() || counted.count > expected) {
                        return Err(GgufError::DataSize {
                            name,
                            expected,
                            found: counted.count,
                        });
                    }
                    result.map_err(io)?;
                }
            }
            let padding = expected.next_multiple_of(alignment) - expected;
            io::copy(&mut io::Read::take(io::repeat(0), padding as u64), out).map_err(io)?;
            written += (expected + padding) as u64;
        }
        out.flush().map_err(io)?;
        Ok(written)
    }

    /// Returns the complete file as bytes.
    ///
    /// # Errors
    /// Returns a [`GgufError`] under the conditions of [`GgufWriter::write`].
    pub fn to_bytes(self) -> Result<Vec<u8>, GgufError> {
        let mut out = Vec::new();
        self.write(&mut out)?;
        Ok(out)
    }

    /// Like [`write_file`](GgufWriter::write_file), with holes for long runs of zeros.
    ///
    /// # Errors
    /// Returns a [`GgufError`] if the file cannot be created, or under the conditions of [`GgufWriter::write`].
    pub fn write_sparse(self, path: impl AsRef<Path>) -> Result<u64, GgufError> {
        let path = path.as_ref();
        let write = || {
            let failed = |error| GgufError::Io {
                action: "create the file",
                error,
            };
            let sparse = Sparse(File::create(path).map_err(failed)?);
            let mut out = BufWriter::with_capacity(1 << 20, sparse);
            let len = self.write(&mut out)?;
            // The last bytes may be a hole.
            out.get_ref().0.set_len(len).map_err(failed)?;
            Ok(len)
        };
        write().map_err(|e: GgufError| e.in_file(path))
    }

    /// Writes the complete file to `path`, overwriting an existing file. Errors name the path.
    pub fn write_file(self, path: impl AsRef<Path>) -> Result<u64, GgufError> {
        let path = path.as_ref();
        File::create(path)
            .map_err(|error| GgufError::Io {
                action: "create the file",
                error,
            })
            .and_then(|file| self.write(&mut BufWriter::with_capacity(1 << 20, file)))
            .map_err(|e| e.in_file(path))
    }
}

/// Entry of the tensor table, as written.
pub(super) struct TableEntry<'a> {
    pub name: &'a str,
    /// Dimensions, fastest-varying first.
    pub dims: Vec<u64>,
    pub ty: GgmlType,
    /// Offset of the data in bytes from the start of all tensor data.
    pub offset: u64,
}

/// Returns the encoded header without padding.
pub(super) fn encode_header(metadata: &Metadata, tensors: &[TableEntry<'_>]) -> Result<Vec<u8>, GgufError> {
    let mut out = Vec::new();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    out.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        put_pair(&mut out, key, value)?;
    }
    for t in tensors {
        put_string(&mut out, t.name.as_bytes());
        out.extend_from_slice(&(t.dims.len() as u32).to_le_bytes());
        t.dims.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        out.extend_from_slice(&t.ty.id().to_le_bytes());
        out.extend_from_slice(&t.offset.to_le_bytes());
    }
    Ok(out)
}

/// A file with holes in place of zero-filled ranges.
struct Sparse(File);

impl Write for Sparse {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_zero = bytes.first() == Some(&0) && bytes[1..] == bytes[..bytes.len() - 1];
        if !is_zero {
            return self.0.write(bytes);
        }
        self.0.seek_relative(bytes.len() as i64)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writer that forwards at most `limit` bytes and counts the bytes submitted.
struct Counted<'w> {
    out: &'w mut dyn Write,
    count: usize,
    limit: usize,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit.saturating_sub(self.count) {
            self.count = self.count.saturating_add(bytes.len());
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "producer wrote more bytes than the tensor size",
            ));
        }
        let n = self.out.write(bytes)?;
        self.count += n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn put_string(out: &mut Vec<u8>, s: &[u8]) {
    out.extend_from_slice(&(s.len() as u64).to_le_bytes());
    out.extend_from_slice(s);
}

fn put_pair(out: &mut Vec<u8>, key: &str, value: &Value) -> Result<(), GgufError> {
    let offset = out.len();
    if key.is_empty() {
        return Err(GgufError::EmptyKey { offset });
    }
    if key.len() > MAX_KEY_LEN {
        return Err(GgufError::KeyTooLong {
            offset,
            len: key.len() as u64,
        });
    }
    put_string(out, key.as_bytes());
    out.extend_from_slice(&value.value_type().id().to_le_bytes());
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Bool(v) => out.push((*v).into()),
        Value::String(v) => put_string(out, v),
        Value::Array(v) => put_array(out, key, v, 1)?,
        Value::U64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F64(v) => out.extend_from_slice(&v.to_le_bytes()),
    }
    Ok(())
}

fn put_array(out: &mut Vec<u8>, key: &str, array: &Array, depth: usize) -> Result<(), GgufError> {
    if depth > MAX_ARRAY_DEPTH {
        return Err(GgufError::ArrayTooDeep {
            key: key.to_owned(),
            offset: out.len(),
        });
    }
    out.extend_from_slice(&array.element_type().id().to_le_bytes());
    out.extend_from_slice(&(array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend_from_slice(v),
        Array::I8(v) => put_numbers(out, v, i8::to_le_bytes),
        Array::U16(v) => put_numbers(out, v, u16::to_le_bytes),
        Array::I16(v) => put_numbers(out, v, i16::to_le_bytes),
        Array::U32(v) => put_numbers(out, v, u32::to_le_bytes),
        Array::I32(v) => put_numbers(out, v, i32::to_le_bytes),
        Array::F32(v) => put_numbers(out, v, f32::to_le_bytes),
        Array::Bool(v) => put_numbers(out, v, |b| [u8::from(b)]),
        Array::String(v) => v.iter().for_each(|s| put_string(out, s)),
        Array::Nested(v) => v.iter().try_for_each(|a| put_array(out, key, a, depth + 1))?,
        Array::U64(v) => put_numbers(out, v, u64::to_le_bytes),
        Array::I64(v) => put_numbers(out, v, i64::to_le_bytes),
        Array::F64(v) => put_numbers(out, v, f64::to_le_bytes),
    }
    Ok(())
}

fn put_numbers<T: Copy, const N: usize>(out: &mut Vec<u8>, numbers: &[T], to_bytes: fn(T) -> [u8; N]) {
    out.reserve(numbers.len() * N);
    numbers.iter().for_each(|&n| out.extend_from_slice(&to_bytes(n)));
}

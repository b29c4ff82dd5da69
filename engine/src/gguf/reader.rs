//! Parses and validates a GGUF header: metadata, tensor table, and data offset.

use std::path::Path;

use kernels::GgmlType;

use super::error::HeaderField;
use super::value::{Array, FromValue, StringArray, Value, ValueType};
use super::{
    DEFAULT_ALIGNMENT, GgufError, KEY_ALIGNMENT, MAGIC, MAX_ARRAY_DEPTH, MAX_DIMS, MAX_KEY_LEN, MAX_NAME_LEN, Mapping,
    Metadata, VERSION, align_up,
};

/// Entry of the tensor table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// Unique name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Dimensions, fastest-varying first; 1 beyond `n_dims`. Each is at least 1.
    pub ne: [usize; MAX_DIMS],
    /// Number of dimensions declared in the file (1 to 4).
    pub n_dims: usize,
    /// Element type.
    pub ty: GgmlType,
    /// Offset of the data in bytes from [`Gguf::data_offset`]; a multiple of [`Gguf::alignment`].
    pub offset: usize,
    /// Size of the data in bytes.
    pub bytes: usize,
}

impl TensorInfo {
    /// Returns the number of elements.
    pub fn n_elements(&self) -> usize {
        self.ne.iter().product()
    }

    /// Returns the declared dimensions, fastest-varying first.
    pub fn shape(&self) -> &[usize] {
        &self.ne[..self.n_dims]
    }
}

/// Header of a GGUF file: everything except the tensor data.
#[derive(Clone, PartialEq, Debug)]
pub struct Gguf {
    /// Format version (2 or 3).
    pub version: u32,
    /// Metadata in file order.
    pub metadata: Metadata,
    alignment: usize,
    data_offset: usize,
    tensors: Vec<TensorInfo>,
    by_name: ByName,
}

impl Gguf {
    /// Parses the header at the start of `bytes`, which may end where the tensor data starts.
    ///
    /// # Errors
    /// Returns a [`GgufError`] that names the offset and the field if the header is truncated or invalid.
    pub fn parse_header(bytes: &[u8]) -> Result<Gguf, GgufError> {
        let mut cursor = Cursor { bytes, pos: 0 };
        let version = read_version(&mut cursor)?;
        let tensor_count = cursor.count(&HeaderField::TensorCount, MIN_TENSOR_BYTES)?;
        let key_count = cursor.count(&HeaderField::KeyCount, MIN_PAIR_BYTES)?;
        let metadata = read_metadata(&mut cursor, key_count)?;
        let alignment = read_alignment(&metadata)?;
        let (tensors, by_name) = read_tensors(&mut cursor, tensor_count, alignment)?;
        // Cannot overflow: the position is below isize::MAX and the alignment below 2^32.
        let data_offset = align_up(cursor.pos, alignment).unwrap_or(usize::MAX);
        check_extents(&tensors, data_offset)?;
        Ok(Gguf {
            version,
            metadata,
            alignment,
            data_offset,
            tensors,
            by_name,
        })
    }

    /// Creates the header of contents in a different format. Offsets of `tensors` are positions in the contents.
    pub(crate) fn of_parts(metadata: Metadata, tensors: Vec<TensorInfo>) -> Gguf {
        let mut by_name: ByName = (0..tensors.len()).collect();
        by_name.sort_by(|&a, &b| tensors[a].name.cmp(&tensors[b].name));
        Gguf {
            version: VERSION,
            metadata,
            alignment: 1,
            data_offset: 0,
            tensors,
            by_name,
        }
    }

    /// Parses the header of a file. Tensor data may be missing. A header longer than 512 MiB is reported as
    /// truncated.
    ///
    /// # Errors
    /// Returns a [`GgufError`] if the file cannot be read or its header is invalid. The error names the file.
    pub fn open_header(path: impl AsRef<Path>) -> Result<Gguf, GgufError> {
        let path = path.as_ref();
        Mapping::open(path)
            .and_then(|mapping| {
                let bytes = mapping.bytes();
                let header = Gguf::parse_header(&bytes[..bytes.len().min(MAX_HEADER)])?;
                mapping.check_unchanged().map(|()| header)
            })
            .map_err(|e| e.in_file(path))
    }

    /// Returns the alignment of tensor data within the file in bytes, a power of two (possibly 1).
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    /// Returns the offset of the tensor data in bytes from the start of the file.
    pub fn data_offset(&self) -> usize {
        self.data_offset
    }

    /// Returns all tensors in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Returns the tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor_index(name).map(|i| &self.tensors[i])
    }

    /// Returns the index of a tensor in [`Gguf::tensors`].
    pub fn tensor_index(&self, name: &str) -> Option<usize> {
        let found = (self.by_name).binary_search_by(|&i| self.tensors[i].name.as_str().cmp(name));
        found.ok().map(|at| self.by_name[at])
    }

    /// Returns the value of `key` as `T`; see [`Metadata::require`].
    ///
    /// # Errors
    /// Returns [`GgufError::MissingKey`] if the key is missing, and [`GgufError::WrongType`] if the conversion would
    /// lose information.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.metadata.require(key)
    }

    /// Returns the value of `key` as `T`, or `None` if the key is missing; see [`Metadata::optional`].
    ///
    /// # Errors
    /// Returns [`GgufError::WrongType`] if the conversion would lose information.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        self.metadata.optional(key)
    }

    /// Returns the tensor with the highest end offset and the minimum file size in bytes; `None` if there are
    /// no tensors.
    pub fn required_len(&self) -> Option<(&TensorInfo, usize)> {
        let last = self.tensors.iter().max_by_key(|t| t.offset + t.bytes)?;
        Some((last, self.data_offset + last.offset + last.bytes))
    }
}

/// Maximum header size in bytes. Large vocabularies take about 20 MB.
const MAX_HEADER: usize = 512 << 20;
/// Minimum encoded size of a metadata pair: key length, one key byte, type, and one value byte.
const MIN_PAIR_BYTES: usize = 8 + 1 + 4 + 1;
/// Minimum encoded size of a tensor description: name length, one name byte, dimensions, type, and offset.
const MIN_TENSOR_BYTES: usize = 8 + 1 + 4 + 8 + 4 + 8;

/// Bounds-checked reader of little-endian values.
struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.pos
    }

    /// Takes the next `n` bytes; `n` is untrusted.
    fn take(&mut self, n: u64, what: &HeaderField) -> Result<&'a [u8], GgufError> {
        match usize::try_from(n) {
            Ok(n) if n <= self.left() => {
                let taken = &self.bytes[self.pos..self.pos + n];
                self.pos += n;
                Ok(taken)
            }
            _ => Err(GgufError::HeaderTruncated {
                what: what.clone(),
                offset: self.pos,
                needed: n,
                present: self.left(),
            }),
        }
    }

    fn array<const N: usize>(&mut self, what: &HeaderField) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    fn u32(&mut self, what: &HeaderField) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &HeaderField) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads an element count and rejects it if the rest of the file is too short for elements of `min_bytes`
    /// each.
    fn count(&mut self, what: &HeaderField, min_bytes: usize) -> Result<usize, GgufError> {
        let offset = self.pos;
        let count = self.u64(what)?;
        match usize::try_from(count) {
            Ok(n) if n <= self.left() / min_bytes => Ok(n),
            _ => Err(GgufError::CountTooLarge {
                what: what.clone(),
                offset,
                count,
                min_bytes,
                present: self.left(),
            }),
        }
    }

    /// Reads a length-prefixed string.
    fn string(&mut self, what: &HeaderField) -> Result<&'a [u8], GgufError> {
        let len = self.u64(what)?;
        self.take(len, what)
    }
}

fn read_version(cursor: &mut Cursor) -> Result<u32, GgufError> {
    let magic = cursor.array(&HeaderField::Magic)?;
    if magic != MAGIC {
        return Err(GgufError::BadMagic { found: magic });
    }
    let version = cursor.u32(&HeaderField::Version)?;
    match version {
        2..=VERSION => Ok(version),
        // A nonzero value whose low 16 bits are zero is a byte-swapped small version number.
        v if v != 0 && v & 0xffff == 0 => Err(GgufError::BigEndian {
            version: v.swap_bytes(),
        }),
        found => Err(GgufError::BadVersion { found }),
    }
}

fn read_metadata(cursor: &mut Cursor, count: usize) -> Result<Metadata, GgufError> {
    // `count` is untrusted: start with the capacity for a typical file, and grow while parsing.
    let mut metadata = Metadata::with_capacity(count.min(64));
    for i in 0..count as u64 {
        let what = HeaderField::Key(i);
        let offset = cursor.pos;
        let len = cursor.u64(&what)?;
        if len == 0 {
            return Err(GgufError::EmptyKey { offset });
        }
        if len > MAX_KEY_LEN as u64 {
            return Err(GgufError::KeyTooLong { offset, len });
        }
        let key = utf8(cursor.take(len, &what)?, what, offset)?;
        if metadata.contains(key) {
            return Err(GgufError::DuplicateKey {
                key: key.to_owned(),
                offset,
            });
        }
        let value = ValueReader {
            cursor,
            key,
            what: HeaderField::Value(key.to_owned()),
        }
        .value()?;
        metadata.insert(key, value);
    }
    Ok(metadata)
}

fn utf8(bytes: &[u8], what: HeaderField, offset: usize) -> Result<&str, GgufError> {
    const SHOWN: usize = 64;
    std::str::from_utf8(bytes).map_err(|_| GgufError::NotUtf8 {
        what,
        offset,
        found: bytes[..bytes.len().min(SHOWN)].to_vec(),
    })
}

/// Parser for the value of a single key.
struct ValueReader<'c, 'a, 'k> {
    cursor: &'c mut Cursor<'a>,
    key: &'k str,
    what: HeaderField,
}

impl ValueReader<'_, '_, '_> {
    fn value(&mut self) -> Result<Value, GgufError> {
        Ok(match self.value_type()? {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.number()?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.number()?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.number()?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.number()?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(self.number()?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.number()?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.number()?)),
            ValueType::U64 => Value::U64(u64::from_le_bytes(self.number()?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.number()?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.number()?)),
            ValueType::Bool => {
                let offset = self.cursor.pos;
                let [byte] = self.number()?;
                Value::Bool(self.bool(byte, offset)?)
            }
            ValueType::String => Value::String(self.cursor.string(&self.what)?.into()),
            ValueType::Array => Value::Array(self.array(1)?),
        })
    }

    fn value_type(&mut self) -> Result<ValueType, GgufError> {
        let offset = self.cursor.pos;
        let id = self.cursor.u32(&self.what)?;
        ValueType::from_id(id).ok_or_else(|| GgufError::UnknownValueType {
            key: self.key.to_owned(),
            id,
            offset,
        })
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        self.cursor.array(&self.what)
    }

    fn bool(&self, byte: u8, offset: usize) -> Result<bool, GgufError> {
        match byte {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(GgufError::InvalidBool {
                key: self.key.to_owned(),
                found,
                offset,
            }),
        }
    }

    /// Reads an array; `depth` is 1 at the top level.
    fn array(&mut self, depth: usize) -> Result<Array, GgufError> {
        let offset = self.cursor.pos;
        if depth > MAX_ARRAY_DEPTH {
            return Err(GgufError::ArrayTooDeep {
                key: self.key.to_owned(),
                offset,
            });
        }
        let ty = self.value_type()?;
        let n = self.cursor.count(&self.what, ty.min_bytes())?;
        Ok(match ty {
            ValueType::U8 => Array::U8(self.numbers(n, u8::from_le_bytes)?),
            ValueType::I8 => Array::I8(self.numbers(n, i8::from_le_bytes)?),
            ValueType::U16 => Array::U16(self.numbers(n, u16::from_le_bytes)?),
            ValueType::I16 => Array::I16(self.numbers(n, i16::from_le_bytes)?),
            ValueType::U32 => Array::U32(self.numbers(n, u32::from_le_bytes)?),
            ValueType::I32 => Array::I32(self.numbers(n, i32::from_le_bytes)?),
            ValueType::F32 => Array::F32(self.numbers(n, f32::from_le_bytes)?),
            ValueType::U64 => Array::U64(self.numbers(n, u64::from_le_bytes)?),
            ValueType::I64 => Array::I64(self.numbers(n, i64::from_le_bytes)?),
            ValueType::F64 => Array::F64(self.numbers(n, f64::from_le_bytes)?),
            ValueType::Bool => {
                let start = self.cursor.pos;
                let bytes = self.cursor.take(n as u64, &self.what)?;
                let bools = bytes.iter().enumerate().map(|(i, &b)| self.bool(b, start + i));
                Array::Bool(bools.collect::<Result<_, _>>()?)
            }
            ValueType::String => Array::String(self.strings(n, offset)?),
            ValueType::Array => {
                // No preallocation: an element takes more bytes in memory than in the file.
                let mut arrays = Vec::new();
                for _ in 0..n {
                    arrays.push(self.array(depth + 1)?);
                }
                Array::Nested(arrays)
            }
        })
    }

    /// Reads `n` numbers; the caller has checked that `n * N` bytes remain.
    fn numbers<T, const N: usize>(&mut self, n: usize, from: fn([u8; N]) -> T) -> Result<Vec<T>, GgufError> {
        let bytes = self.cursor.take((n * N) as u64, &self.what)?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|&b| from(b)).collect())
    }

    /// Reads `n` strings in two passes: the first validates all lengths, so that memory is allocated only
    /// once.
    fn strings(&mut self, n: usize, offset: usize) -> Result<StringArray, GgufError> {
        let start = self.cursor.pos;
        let mut total = 0;
        for _ in 0..n {
            total += self.cursor.string(&self.what)?.len();
        }
        self.cursor.pos = start;
        let mut strings = StringArray::with_capacity(n, total);
        for _ in 0..n {
            if !strings.push(self.cursor.string(&self.what)?) {
                return Err(GgufError::StringsTooLarge {
                    key: self.key.to_owned(),
                    offset,
                });
            }
        }
        Ok(strings)
    }
}

/// Maximum alignment. Padding between tensors grows with it.
const MAX_ALIGNMENT: u32 = 1 << 16;

/// Returns `general.alignment`, or the default if the key is missing.
pub(super) fn read_alignment(metadata: &Metadata) -> Result<usize, GgufError> {
    match metadata.get(KEY_ALIGNMENT) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(n)) if n.is_power_of_two() && *n <= MAX_ALIGNMENT => Ok(*n as usize),
        Some(&Value::U32(found)) => Err(GgufError::BadAlignment { found }),
        Some(other) => Err(GgufError::AlignmentType {
            found: other.value_type(),
        }),
    }
}

/// Indices into the tensor table, sorted by tensor name.
type ByName = Box<[usize]>;

fn read_tensors(cursor: &mut Cursor, count: usize, alignment: usize) -> Result<(Vec<TensorInfo>, ByName), GgufError> {
    let mut tensors = Vec::with_capacity(tensors_present(cursor, count));
    for i in 0..count {
        tensors.push(read_tensor(cursor, i as u64, alignment)?);
    }
    let mut by_name: ByName = (0..count).collect();
    let name = |i: usize| tensors[i].name.as_str();
    by_name.sort_unstable_by_key(|&i| name(i));
    if let Some(twice) = by_name.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
        return Err(GgufError::DuplicateTensor {
            name: name(twice[0]).to_owned(),
        });
    }
    Ok((tensors, by_name))
}

/// Counts how many of `count` descriptions are complete, so that the table is allocated once and never
/// oversized.
fn tensors_present(cursor: &Cursor, count: usize) -> usize {
    let mut ahead = Cursor { ..*cursor };
    let mut skip = || {
        let what = &HeaderField::TensorCount;
        ahead.string(what)?;
        let n_dims = ahead.u32(what)?;
        // `n_dims` sizes of 8 bytes, a type of 4 bytes, and an offset of 8 bytes.
        ahead.take(u64::from(n_dims) * 8 + 4 + 8, what)
    };
    (0..count).take_while(|_| skip().is_ok()).count()
}

fn read_tensor(cursor: &mut Cursor, index: u64, alignment: usize) -> Result<TensorInfo, GgufError> {
    let what = HeaderField::TensorName(index);
    let start = cursor.pos;
    let len = cursor.u64(&what)?;
    if len == 0 {
        return Err(GgufError::EmptyName { index, offset: start });
    }
    if len > MAX_NAME_LEN as u64 {
        return Err(GgufError::NameTooLong {
            index,
            offset: start,
            len,
        });
    }
    let name = utf8(cursor.take(len, &what)?, what, start)?.to_owned();

    let what = HeaderField::Tensor(name.clone());
    let n_dims = cursor.u32(&what)?;
    if n_dims == 0 || n_dims > MAX_DIMS as u32 {
        return Err(GgufError::BadDims { name, found: n_dims });
    }
    let n_dims = n_dims as usize;
    let mut dims = [1; MAX_DIMS];
    for dim in &mut dims[..n_dims] {
        *dim = cursor.u64(&what)?;
    }
    let id = cursor.u32(&what)?;
    let Some(ty) = GgmlType::from_id(id) else {
        return Err(GgufError::UnknownTensorType { name, id });
    };
    let (ne, bytes) = check_shape(&name, &dims[..n_dims], ty)?;

    let offset = cursor.u64(&what)?;
    if !offset.is_multiple_of(alignment as u64) {
        return Err(GgufError::Misaligned {
            name,
            offset,
            alignment,
        });
    }
    match usize::try_from(offset) {
        Ok(offset) => Ok(TensorInfo {
            name,
            ne,
            n_dims,
            ty,
            offset,
            bytes,
        }),
        Err(_) => Err(GgufError::OffsetOverflow { name, offset, bytes }),
    }
}

/// Validates a shape and returns the padded dimensions and the size in bytes. Dimensions must be positive,
/// rows must be whole blocks, and element and byte counts must be below 2^63.
pub(super) fn check_shape(name: &str, dims: &[u64], ty: GgmlType) -> Result<([usize; MAX_DIMS], usize), GgufError> {
    if !ty.is_in_files() {
        let (name, id) = (name.to_owned(), ty.id());
        return Err(GgufError::UnknownTensorType { name, id });
    }
    let mut ne = [1; MAX_DIMS];
    for (dim, &found) in dims.iter().enumerate() {
        match isize::try_from(found) {
            Ok(n) if n > 0 => ne[dim] = n as usize,
            _ => {
                return Err(GgufError::BadDim {
                    name: name.to_owned(),
                    dim,
                    found,
                });
            }
        }
    }
    if ne[0] % ty.block_size() != 0 {
        return Err(GgufError::PartialBlock {
            name: name.to_owned(),
            ne0: dims[0],
            ty,
        });
    }
    let n_elements = ne.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    let row_bytes = ty.row_bytes(ne[0]);
    let bytes = ne[1..].iter().try_fold(row_bytes, |n, &dim| Some(n?.checked_mul(dim)));
    match (n_elements, bytes.flatten()) {
        (Some(n), Some(bytes)) if n <= isize::MAX as usize && bytes <= isize::MAX as usize => Ok((ne, bytes)),
        _ => Err(GgufError::ShapeOverflow {
            name: name.to_owned(),
            ne: dims.to_vec(),
            ty,
        }),
    }
}

/// Checks that every tensor ends within the address space and that no two tensors overlap.
fn check_extents(tensors: &[TensorInfo], data_offset: usize) -> Result<(), GgufError> {
    for t in tensors {
        let end = data_offset.checked_add(t.offset).and_then(|n| n.checked_add(t.bytes));
        if end.is_none_or(|end| end > isize::MAX as usize) {
            return Err(GgufError::OffsetOverflow {
                name: t.name.clone(),
                offset: t.offset as u64,
                bytes: t.bytes,
            });
        }
    }
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    // The address as a tie-breaker makes the unstable sort deterministic without the memory of a stable sort.
    by_offset.sort_unstable_by_key(|t| (t.offset, std::ptr::from_ref(*t)));
    for pair in by_offset.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        if first.offset + first.bytes > second.offset {
            return Err(GgufError::Overlap {
                first: first.name.clone(),
                second: second.name.clone(),
                end: first.offset + first.bytes,
                start: second.offset,
            });
        }
    }
    Ok(())
}

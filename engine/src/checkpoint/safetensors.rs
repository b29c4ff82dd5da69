//! Reader of safetensors headers: 8 bytes of length, a JSON object of that length, and the data.
//!
//! The header is parsed as a stream, so that its memory is bounded by the number of tensors.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use kernels::GgmlType;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

/// Maximum length of a header in bytes. Headers of published files are below 2 MiB.
const MAX_HEADER: usize = 16 << 20;
/// Maximum number of tensors in a file.
const MAX_TENSORS: usize = 1 << 17;
/// Maximum number of dimensions of a tensor.
const MAX_DIMS: usize = 6;
/// Maximum number of elements of a tensor. Dimensions of size 0 count as 1, so that no product of sizes overflows.
const MAX_EXTENT: usize = 1 << 44;

/// Element type of a tensor in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, non_camel_case_types)]
pub enum SourceType {
    Bool,
    U8,
    I8,
    #[serde(rename = "F8_E4M3")]
    F8E4m3,
    #[serde(rename = "F8_E5M2")]
    F8E5m2,
    #[serde(rename = "F8_E8M0")]
    F8E8m0,
    I16,
    U16,
    F16,
    Bf16,
    I32,
    U32,
    F32,
    I64,
    U64,
    F64,
}

impl SourceType {
    /// Returns the GGUF type whose elements have the same bytes.
    pub(super) fn stored(self) -> Option<GgmlType> {
        match self {
            SourceType::F32 => Some(GgmlType::F32),
            SourceType::F16 => Some(GgmlType::F16),
            SourceType::Bf16 => Some(GgmlType::BF16),
            SourceType::I32 => Some(GgmlType::I32),
            _ => None,
        }
    }

    /// Returns the size of an element in bytes.
    pub fn bytes(self) -> usize {
        match self {
            SourceType::Bool
            | SourceType::U8
            | SourceType::I8
            | SourceType::F8E4m3
            | SourceType::F8E5m2
            | SourceType::F8E8m0 => 1,
            SourceType::I16 | SourceType::U16 | SourceType::F16 | SourceType::Bf16 => 2,
            SourceType::I32 | SourceType::U32 | SourceType::F32 => 4,
            SourceType::I64 | SourceType::U64 | SourceType::F64 => 8,
        }
    }
}

/// Tensor of a safetensors file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceTensor {
    /// Name in the checkpoint.
    pub name: String,
    /// Element type.
    pub ty: SourceType,
    /// Sizes, outermost dimension first.
    pub shape: Vec<usize>,
    /// Position of the data in the file.
    pub data: Range<usize>,
}

/// Returns the tensors of a file of `bytes`, in the order of their data.
///
/// # Errors
/// Returns a sentence without the name of the file, if the header is damaged or its offsets do not match the file.
pub fn parse(bytes: &[u8]) -> Result<Vec<SourceTensor>, String> {
    let length = bytes
        .first_chunk::<8>()
        .ok_or("expected 8 bytes of length at the start of a safetensors file")?;
    let length = u64::from_le_bytes(*length);
    let header = usize::try_from(length).ok().filter(|&n| n <= MAX_HEADER);
    let header = header.ok_or_else(|| format!("the header has {length} bytes; the maximum is {MAX_HEADER}"))?;
    let start = header + 8;
    let text = bytes.get(8..start);
    let text = text.ok_or_else(|| format!("the file ends inside its header of {header} bytes"))?;
    let Header(raw) = serde_json::from_slice(text).map_err(|e| format!("invalid header: {e}"))?;
    let mut tensors = Vec::with_capacity(raw.len());
    for (name, entry) in raw {
        let data = range(&name, &entry, start, bytes.len())?;
        tensors.push(SourceTensor {
            name,
            ty: entry.dtype,
            shape: entry.shape,
            data,
        });
    }
    tensors.sort_by_key(|t: &SourceTensor| (t.data.start, t.data.end));
    for pair in tensors.windows(2) {
        if pair[1].data.start < pair[0].data.end {
            return Err(format!("the data of `{}` and `{}` overlap", pair[0].name, pair[1].name));
        }
    }
    Ok(tensors)
}

/// Returns the position of a tensor's data in the file.
fn range(name: &str, entry: &Entry, start: usize, file: usize) -> Result<Range<usize>, String> {
    let [begin, end] = entry.data_offsets;
    let extent = entry
        .shape
        .iter()
        .try_fold(1usize, |n, &size| n.checked_mul(size.max(1)));
    if extent.is_none_or(|n| n > MAX_EXTENT) {
        return Err(format!(
            "tensor `{name}` has the shape {:?}; the maximum is {MAX_EXTENT} elements",
            entry.shape
        ));
    }
    let elements = entry.shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
    let expected = elements.and_then(|n| n.checked_mul(entry.dtype.bytes()));
    if entry.shape.len() > MAX_DIMS {
        return Err(format!(
            "tensor `{name}` has {} dimensions; the maximum is {MAX_DIMS}",
            entry.shape.len()
        ));
    }
    if end.checked_sub(begin).is_none() || end.checked_sub(begin) != expected {
        return Err(format!(
            "tensor `{name}` has data at {begin}..{end}, which does not match its type {:?} and shape {:?}",
            entry.dtype, entry.shape
        ));
    }
    match (start.checked_add(begin), start.checked_add(end)) {
        (Some(begin), Some(end)) if end <= file => Ok(begin..end),
        _ => Err(format!(
            "the file is truncated: tensor `{name}` ends at byte {end} of the data, after the end of the file"
        )),
    }
}

#[derive(Deserialize)]
struct Entry {
    dtype: SourceType,
    #[serde(deserialize_with = "sizes")]
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// Reads a shape without reserving memory for more than [`MAX_DIMS`] sizes.
fn sizes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<usize>, D::Error> {
    struct Sizes;
    impl<'de> Visitor<'de> for Sizes {
        type Value = Vec<usize>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of sizes")
        }

        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<usize>, A::Error> {
            let mut sizes = Vec::new();
            while let Some(size) = seq.next_element()? {
                if sizes.len() == MAX_DIMS {
                    return Err(A::Error::custom(format_args!("a shape has more than {MAX_DIMS} sizes")));
                }
                sizes.push(size);
            }
            Ok(sizes)
        }
    }
    deserializer.deserialize_seq(Sizes)
}

/// Tensors of a header, in its order.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct Tensors;
        impl<'de> Visitor<'de> for Tensors {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let (mut tensors, mut names) = (Vec::new(), HashSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!("tensor `{name}` is listed twice")));
                    }
                    if tensors.len() == MAX_TENSORS {
                        return Err(A::Error::custom(format_args!("more than {MAX_TENSORS} tensors")));
                    }
                    tensors.push((name, map.next_value()?));
                }
                Ok(Header(tensors))
            }
        }
        deserializer.deserialize_map(Tensors)
    }
}

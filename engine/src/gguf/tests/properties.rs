//! Property tests: random files survive a round trip, and mutated real headers never cause a panic.

use super::{data_dir, files_in};
use crate::gguf::*;
use kernels::GgmlType;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<f32>().prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f64>().prop_map(Value::F64),
        vec(any::<u8>(), 0..40).prop_map(|s| Value::String(s.into())),
        ".{0,20}".prop_map(Value::from),
    ]
}

fn flat_array() -> impl Strategy<Value = Array> {
    prop_oneof![
        vec(any::<u8>(), 0..20).prop_map(Array::U8),
        vec(any::<i8>(), 0..20).prop_map(Array::I8),
        vec(any::<u16>(), 0..20).prop_map(Array::U16),
        vec(any::<i16>(), 0..20).prop_map(Array::I16),
        vec(any::<u32>(), 0..20).prop_map(Array::U32),
        vec(any::<i32>(), 0..20).prop_map(Array::I32),
        vec(any::<f32>(), 0..20).prop_map(Array::F32),
        vec(any::<bool>(), 0..20).prop_map(Array::Bool),
        vec(any::<u64>(), 0..20).prop_map(Array::U64),
        vec(any::<i64>(), 0..20).prop_map(Array::I64),
        vec(any::<f64>(), 0..20).prop_map(Array::F64),
        vec(vec(any::<u8>(), 0..10), 0..20).prop_map(|v| Array::String(v.iter().collect())),
    ]
}

fn array() -> impl Strategy<Value = Array> {
    flat_array().prop_recursive(MAX_ARRAY_DEPTH as u32 - 1, 32, 4, |inner| {
        vec(inner, 0..4).prop_map(Array::Nested)
    })
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let value = prop_oneof![3 => scalar(), 1 => array().prop_map(Value::Array)];
    vec((".{1,30}", value), 0..12).prop_map(Metadata::from_iter)
}

/// Name, type, shape, and data of a tensor.
type Tensor = (String, GgmlType, Vec<usize>, Vec<u8>);

fn tensors() -> impl Strategy<Value = Vec<Tensor>> {
    let types: Vec<_> = GgmlType::ALL.iter().copied().filter(|ty| ty.is_in_files()).collect();
    let shape = (proptest::sample::select(types), vec(1..4usize, 1..=MAX_DIMS));
    btree_map("[a-zé._0-9]{1,32}", (shape, any::<u8>()), 0..8).prop_map(|named| {
        let tensors = named.into_iter().map(|(name, ((ty, mut ne), seed))| {
            ne[0] *= ty.block_size();
            let bytes = ty.row_bytes(ne[0]).expect("whole blocks") * ne[1..].iter().product::<usize>();
            let data = (0..bytes)
                .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
                .collect();
            (name, ty, ne, data)
        });
        tensors.collect()
    })
}

proptest! {
    #[test]
    fn written_file_round_trips(mut metadata in metadata(), tensors in tensors(), alignment in 0u32..12) {
        // Exponent 11 means that the alignment key is absent.
        if alignment < 11 {
            metadata.insert(KEY_ALIGNMENT, 1u32 << alignment);
        }
        let mut writer = GgufWriter::with_metadata(metadata.clone());
        for (i, (name, ty, ne, data)) in tensors.iter().enumerate() {
            if i % 2 == 0 {
                writer.add_tensor(name.clone(), *ty, ne, data.as_slice()).unwrap();
            } else {
                writer.add_tensor_with(name.clone(), *ty, ne, |out| out.write_all(data)).unwrap();
            }
        }
        let header_bytes = writer.header().unwrap();
        let bytes = writer.to_bytes().unwrap();
        prop_assert!(bytes.starts_with(&header_bytes));

        let header = Gguf::parse_header(&header_bytes).unwrap();
        prop_assert_eq!(header.data_offset(), header_bytes.len());
        let file = GgufFile::from_bytes("random.gguf", &bytes).unwrap();
        prop_assert_eq!(file.header(), &header);
        prop_assert_eq!(file.metadata(), &metadata);
        prop_assert_eq!(file.tensors().len(), tensors.len());
        for (info, (name, ty, ne, data)) in file.tensors().iter().zip(&tensors) {
            prop_assert_eq!((&info.name, info.ty, info.shape()), (name, *ty, ne.as_slice()));
            prop_assert_eq!(file.tensor(name), Some(info));
            prop_assert_eq!(file.tensor_data(info), data.as_slice());
            prop_assert!((file.tensor_data(info).as_ptr() as usize).is_multiple_of(header.alignment().min(64)));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        let raw = super::Raw::file(u64::from(bytes.len() as u8) / 64, 1).bytes(&bytes);
        let _ = Gguf::parse_header(&raw.0);
        let _ = Gguf::parse_header(&bytes);
    }
}

/// Mutation of a header.
#[derive(Clone, Debug)]
enum Mutation {
    /// Replaces the byte at an offset.
    Set(usize, u8),
    /// Overwrites 8 bytes, which may be a length, count, dimension, or offset.
    Number(usize, u64),
    /// Truncates the header to a length.
    Cut(usize),
    /// Removes a range of bytes.
    Remove(usize, usize),
    /// Duplicates a range of bytes.
    Repeat(usize, usize),
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let at = |i: usize| i % bytes.len().max(1);
        match *self {
            _ if bytes.is_empty() => {}
            Mutation::Set(i, b) => {
                let i = at(i);
                bytes[i] = b;
            }
            Mutation::Number(i, n) => {
                let i = at(i);
                let n = n.to_le_bytes();
                let len = n.len().min(bytes.len() - i);
                bytes[i..i + len].copy_from_slice(&n[..len]);
            }
            Mutation::Cut(i) => bytes.truncate(at(i)),
            Mutation::Remove(i, n) => {
                let i = at(i);
                bytes.drain(i..bytes.len().min(i + n));
            }
            Mutation::Repeat(i, n) => {
                let i = at(i);
                let again = bytes[i..bytes.len().min(i + n)].to_vec();
                bytes.splice(i..i, again);
            }
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let number = prop_oneof![
        any::<u64>(),
        0..20u64,
        (0..64u32).prop_map(|shift| 1 << shift),
        (0..64u32).prop_map(|shift| u64::MAX >> shift),
    ];
    prop_oneof![
        4 => (any::<usize>(), any::<u8>()).prop_map(|(i, b)| Mutation::Set(i, b)),
        4 => (any::<usize>(), number).prop_map(|(i, n)| Mutation::Number(i, n)),
        1 => any::<usize>().prop_map(Mutation::Cut),
        1 => (any::<usize>(), 1..40usize).prop_map(|(i, n)| Mutation::Remove(i, n)),
        1 => (any::<usize>(), 1..40usize).prop_map(|(i, n)| Mutation::Repeat(i, n)),
    ]
}

fn header_bytes() -> impl Strategy<Value = Vec<u8>> {
    let headers: Vec<Vec<u8>> = files_in(data_dir(), ".header.gguf")
        .iter()
        .map(|path| std::fs::read(path).expect("header files in tests/data/archs are readable"))
        .collect();
    assert!(!headers.is_empty());
    proptest::sample::select(headers)
}

/// Asserts the invariants of every accepted header.
fn check_accepted(header: &Gguf) {
    let mut end = 0;
    let mut tensors: Vec<&TensorInfo> = header.tensors().iter().collect();
    tensors.sort_by_key(|t| t.offset);
    for t in tensors {
        assert!(t.offset >= end && t.offset % header.alignment() == 0);
        assert!(t.n_elements() > 0 && t.ne[0] % t.ty.block_size() == 0);
        end = t
            .offset
            .checked_add(t.bytes)
            .expect("check_extents bounds every tensor end");
    }
    for (key, value) in header.metadata.iter() {
        assert!(!key.is_empty() && !value.to_string().is_empty() && !value.describe().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutated_headers_never_panic(mut bytes in header_bytes(), mutations in vec(mutation(), 1..5)) {
        mutations.iter().for_each(|m| m.apply(&mut bytes));
        match Gguf::parse_header(&bytes) {
            Ok(header) => check_accepted(&header),
            Err(e) => prop_assert!(!e.to_string().is_empty()),
        }
    }
}

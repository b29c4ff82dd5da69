//! Hand-made invalid files, each next to a valid variant, with the expected error messages.

use super::Raw;
use crate::gguf::*;
use ValueType as T;
use kernels::GgmlType::{self, F32, I64, Q4_0, Q4_K};

/// Parses an invalid header and returns the error message.
#[track_caller]
fn error_message(raw: Raw) -> String {
    match Gguf::parse_header(&raw.0) {
        Ok(_) => panic!("accepted"),
        Err(e) => e.to_string(),
    }
}

#[track_caller]
fn accepted(raw: Raw) -> Gguf {
    Gguf::parse_header(&raw.0).unwrap_or_else(|e| panic!("{e}"))
}

/// Builds a file with a single key `k`; `value` appends the type id and the value.
fn with_value(value: impl Fn(Raw) -> Raw) -> Raw {
    value(Raw::file(0, 1).string("k"))
}

/// Builds a file with a single tensor `t`.
fn with_tensor(dims: &[u64], ty: GgmlType, offset: u64) -> Raw {
    Raw::file(1, 0).tensor("t", dims, ty, offset)
}

#[test]
fn invalid_magic_or_version_is_rejected() {
    assert_eq!(accepted(Raw::file(0, 0)).version, 3);
    assert_eq!(accepted(Raw::default().bytes(b"GGUF").u32(2).u64(0).u64(0)).version, 2);

    let version = |v: u32| error_message(Raw::default().bytes(b"GGUF").u32(v).u64(0).u64(0));
    assert_eq!(
        version(1),
        "unsupported GGUF version 1: expected 2 or 3 (version 1 is obsolete; convert the model again)"
    );
    assert_eq!(version(0), "unsupported GGUF version 0: expected 2 or 3");
    assert_eq!(version(4), "unsupported GGUF version 4: expected 2 or 3");
    assert_eq!(
        version(3 << 24),
        "unsupported byte order: expected a little-endian GGUF file, found big-endian (version 3)"
    );

    let magic = |m: &[u8; 4]| error_message(Raw::default().bytes(m).u32(3).u64(0).u64(0));
    assert_eq!(
        magic(b"\0\xffab"),
        r#"not a GGUF file: expected the bytes "GGUF" at offset 0, found "\x00\xffab""#
    );
    assert!(magic(b"vers").ends_with("(looks like a Git LFS pointer; download the model itself)"));
    assert!(magic(b"PK\x03\x04").ends_with("(looks like a zip archive or PyTorch model; convert the model to GGUF)"));
}

#[test]
fn parse_rejects_every_header_prefix() {
    let raw = Raw::file(1, 2)
        .key_u32("general.alignment", 32)
        .string("a")
        .ty(T::Array)
        .ty(T::String)
        .u64(2)
        .string("x")
        .string("yz")
        .tensor("t", &[4, 2], F32, 0);
    accepted(raw.clone());
    for len in 0..raw.0.len() {
        let message = error_message(Raw(raw.0[..len].to_vec()));
        let expected = message.starts_with("truncated header: ") || message.contains("bytes remain");
        assert!(expected, "{len} bytes: {message}");
    }
    assert_eq!(
        error_message(Raw(vec![])),
        "truncated header: the magic at offset 0 needs 4 bytes, but only 0 remain"
    );
}

#[test]
fn parse_rejects_counts_beyond_the_file() {
    assert_eq!(
        error_message(Raw::file(u64::MAX, 0)),
        "the tensor count at offset 8 is too large: 18446744073709551615 elements need at least 33 bytes each, but only 8 bytes remain"
    );
    assert_eq!(
        error_message(Raw::file(0, 1 << 60)),
        "the metadata count at offset 16 is too large: 1152921504606846976 elements need at least 14 bytes each, but only 0 bytes remain"
    );
    for ty in T::ALL {
        for n in [1 << 60, u64::MAX, 1000] {
            let message = error_message(with_value(|raw| raw.ty(T::Array).ty(*ty).u64(n).zeros(100)));
            let expected = format!("the value of key \"k\" at offset 41 is too large: {n} elements need at least ");
            assert!(message.starts_with(&expected), "{message}");
        }
    }
}

#[test]
fn invalid_keys_are_rejected() {
    let key = |key: &[u8]| Raw::file(0, 1).string(key).ty(T::U8).bytes(&[7]);
    assert_eq!(accepted(key(b"k")).require::<u8>("k").unwrap(), 7);
    assert_eq!(
        error_message(key(b"").zeros(1)),
        "the metadata key at offset 24 is empty"
    );
    assert_eq!(
        error_message(key(b"a\xff")),
        r#"metadata key 0 at offset 24 is not UTF-8: "a\xff""#
    );
    accepted(key(&[b'x'; 65535]));
    assert_eq!(
        error_message(key(&[b'x'; 65536])),
        "the metadata key at offset 24 is 65536 bytes long; the maximum is 65535"
    );
    assert_eq!(
        error_message(Raw::file(0, 1).u64(9).bytes(b"too short")),
        "truncated header: the value of key \"too short\" at offset 41 needs 4 bytes, but only 0 remain"
    );
    assert_eq!(
        error_message(Raw::file(0, 1).u64(60_000).zeros(20)),
        "truncated header: metadata key 0 at offset 32 needs 60000 bytes, but only 20 remain"
    );
    assert_eq!(
        error_message(Raw::file(0, 2).key_u32("a\n", 1).key_u32("a\n", 1)),
        r#"duplicate metadata key "a\n" at offset 42"#
    );
}

#[test]
fn invalid_values_are_rejected() {
    for id in [13, u32::MAX] {
        let expected = format!("key \"k\": unknown value type {id} at offset 33, expected 0..=12");
        assert_eq!(error_message(with_value(|raw| raw.u32(id).u64(0))), expected);
        let expected = format!("key \"k\": unknown value type {id} at offset 37, expected 0..=12");
        assert_eq!(
            error_message(with_value(|raw| raw.ty(T::Array).u32(id).u64(0))),
            expected
        );
    }
    assert_eq!(
        error_message(with_value(|raw| raw.ty(T::Bool).bytes(&[2]))),
        "key \"k\": expected a bool (0 or 1) at offset 37, found 2"
    );
    assert_eq!(
        error_message(with_value(|raw| raw
            .ty(T::Array)
            .ty(T::Bool)
            .u64(3)
            .bytes(&[0, 1, 255]))),
        "key \"k\": expected a bool (0 or 1) at offset 51, found 255"
    );
    assert_eq!(
        error_message(with_value(|raw| raw.ty(T::String).u64(u64::MAX).zeros(9))),
        "truncated header: the value of key \"k\" at offset 45 needs 18446744073709551615 bytes, but only 9 remain"
    );
    assert_eq!(
        error_message(with_value(|raw| raw
            .ty(T::Array)
            .ty(T::String)
            .u64(2)
            .string("abc")
            .u64(5)
            .zeros(4))),
        "truncated header: the value of key \"k\" at offset 68 needs 5 bytes, but only 4 remain"
    );
}

#[test]
fn deeply_nested_arrays_are_rejected() {
    let nested = |depth: usize| {
        with_value(|raw| {
            let raw = (1..depth).fold(raw.ty(T::Array), |raw, _| raw.ty(T::Array).u64(1));
            raw.ty(T::U8).u64(2).bytes(&[5, 6])
        })
    };
    let header = accepted(nested(MAX_ARRAY_DEPTH));
    let mut array: &Array = header.require("k").unwrap();
    while let Array::Nested(inner) = array {
        array = &inner[0];
    }
    assert_eq!(*array, Array::U8(vec![5, 6]));
    assert_eq!(
        error_message(nested(MAX_ARRAY_DEPTH + 1)),
        "key \"k\": arrays nested deeper than 8 levels at offset 133"
    );
    // Without a depth limit, this nesting would overflow the stack.
    error_message(nested(1_000_000));
}

#[test]
fn invalid_alignment_is_rejected() {
    let value = |value: u32| Raw::file(0, 1).key_u32("general.alignment", value);
    for power in [1, 8, 32, 1 << 16] {
        let header = accepted(value(power));
        assert_eq!(header.alignment(), power as usize);
        assert!(header.data_offset().is_multiple_of(power as usize));
    }
    for bad in [0, 13, 1 << 17, 1 << 31, u32::MAX] {
        let expected = format!("key \"general.alignment\": expected a power of two up to 65536, found {bad}");
        assert_eq!(error_message(value(bad)), expected);
    }
    assert_eq!(
        error_message(Raw::file(0, 1).string("general.alignment").ty(T::I32).u32(32)),
        "key \"general.alignment\": expected u32, found i32"
    );
}

#[test]
fn invalid_tensor_names_are_rejected() {
    let name = |name: &str| Raw::file(1, 0).tensor(name, &[1], F32, 0);
    accepted(name(&"x".repeat(64)));
    assert_eq!(
        error_message(name(&"x".repeat(65))),
        "the name of tensor 0 at offset 24 is 65 bytes long; the maximum is 64"
    );
    assert_eq!(
        error_message(name("").zeros(1)),
        "the name of tensor 0 at offset 24 is empty"
    );
    assert_eq!(
        error_message(Raw::file(1, 0).string(b"a\xc3").u32(1).u64(1).u32(0).u64(0)),
        r#"the name of tensor 0 at offset 24 is not UTF-8: "a\xc3""#
    );
    assert_eq!(
        error_message(Raw::file(2, 0).tensor("t", &[8], F32, 0).tensor("t", &[8], F32, 32)),
        "duplicate tensor name \"t\""
    );
}

#[test]
fn invalid_shapes_are_rejected() {
    assert_eq!(
        accepted(with_tensor(&[2, 3, 4, 5], F32, 0)).tensors()[0].n_elements(),
        120
    );
    assert_eq!(
        error_message(with_tensor(&[], F32, 0).zeros(8)),
        "tensor \"t\": expected 1 to 4 dimensions, found 0"
    );
    assert_eq!(
        error_message(with_tensor(&[1; 5], F32, 0)),
        "tensor \"t\": expected 1 to 4 dimensions, found 5"
    );
    for bad in [0, u64::MAX, 1 << 63] {
        let expected = format!("tensor \"t\": dimension 1 is {bad}, expected 1..2^63");
        assert_eq!(error_message(with_tensor(&[4, bad], F32, 0)), expected);
    }
    // Tests overflow of the element count, of the byte count, and of the padded byte count.
    for (dims, ty) in [
        (&[1 << 33, 1 << 33][..], Q4_0),
        (&[1 << 32, 1 << 32, 1 << 32, 1 << 32], F32),
        (&[1 << 31, 1 << 30], I64),
        (&[4, 1_073_741_823, 1_073_741_825], F32),
    ] {
        let expected = format!("tensor \"t\": shape {dims:?} of type {ty} exceeds the address space");
        assert_eq!(error_message(with_tensor(dims, ty, 0)), expected);
    }
    assert_eq!(
        error_message(with_tensor(&[48, 2], Q4_0, 0)),
        "tensor \"t\": row length 48 is not a multiple of 32, the block size of q4_0"
    );
    assert_eq!(accepted(with_tensor(&[512, 3], Q4_K, 0)).tensors()[0].bytes, 288 * 3);
}

#[test]
fn unknown_tensor_types_are_rejected() {
    let id = |id: u32| error_message(Raw::file(1, 0).string("t").u32(1).u64(256).u32(id).u64(0));
    assert_eq!(id(43), "tensor \"t\": unknown type (id 43)");
    assert_eq!(id(u32::MAX), "tensor \"t\": unknown type (id 4294967295)");
    assert_eq!(
        id(31),
        "tensor \"t\": type q4_0_4_4 (use q4_0) was removed from the format (id 31)"
    );
    for removed in [4, 5, 31, 32, 33, 36, 37, 38] {
        assert!(id(removed).contains("was removed from the format"));
    }
}

#[test]
fn invalid_tensor_offsets_are_rejected() {
    accepted(with_tensor(&[4], F32, 64));
    assert_eq!(
        error_message(with_tensor(&[4], F32, 4)),
        "tensor \"t\": data offset 4 is not a multiple of the alignment 32"
    );
    assert_eq!(
        error_message(with_tensor(&[4], F32, u64::MAX - 31)),
        "tensor \"t\": data offset 18446744073709551584 plus 16 bytes exceeds the address space"
    );
    // The end offset fits on its own, but overflows once the header size is added.
    error_message(with_tensor(&[i64::MAX as u64 / 4], F32, 32));
    error_message(with_tensor(&[4], F32, i64::MAX as u64 - 31));

    let two = |first, second| {
        Raw::file(2, 0)
            .tensor("a", &[9], F32, first)
            .tensor("b", &[8], F32, second)
    };
    accepted(two(0, 64));
    accepted(two(32, 0));
    assert_eq!(
        error_message(two(0, 32)),
        "tensors \"a\" and \"b\" overlap: the first ends at data offset 36, the second starts at 32"
    );
    assert_eq!(
        error_message(two(0, 0)),
        "tensors \"a\" and \"b\" overlap: the first ends at data offset 36, the second starts at 0"
    );
}

#[test]
fn open_rejects_data_beyond_the_file() {
    let header = with_tensor(&[9], F32, 32).pad();
    let needed = header.0.len() + 32 + 36;
    accepted(header.clone());
    let short = header.clone().zeros(32 + 35);
    assert_eq!(
        GgufFile::from_bytes("dir/short.gguf", &short.0)
            .unwrap_err()
            .to_string(),
        format!(
            "dir/short.gguf: truncated file: tensor \"t\" ends at byte {needed}, but the file has only {} bytes",
            needed - 1
        )
    );
    let whole = GgufFile::from_bytes("whole.gguf", &short.zeros(1).0).unwrap();
    assert_eq!(whole.tensor_data(whole.tensor("t").unwrap()), [0; 36]);
}

#[test]
fn typed_access_error_names_the_key() {
    let mut m = Metadata::default();
    m.insert("n", 300u32);
    m.insert("negative", -1i32);
    m.insert("text", "abc");
    m.insert("latin1", Value::String(b"caf\xe9"[..].into()));
    m.insert("list", vec![1i32, 2, 3]);
    m.insert("eps", 1e-5f64);
    m.insert("big", 1u64 << 60 | 1);

    assert_eq!(m.require::<u64>("n").unwrap(), 300);
    assert_eq!(m.require::<f32>("n").unwrap(), 300.0);
    assert_eq!(m.require::<f32>("eps").unwrap(), 1e-5);
    assert_eq!(m.require::<Vec<u32>>("list").unwrap(), [1, 2, 3]);
    assert_eq!(m.require::<Vec<f32>>("list").unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!(m.optional::<u32>("none").unwrap(), None);
    assert_eq!(m.require::<&[u8]>("latin1").unwrap(), b"caf\xe9");

    let message = |e: GgufError| e.to_string();
    assert_eq!(
        message(m.require::<u8>("n").unwrap_err()),
        "key \"n\": expected an integer in 0..=255, found u32 300"
    );
    assert_eq!(
        message(m.optional::<u32>("negative").unwrap_err()),
        "key \"negative\": expected an integer in 0..2^32, found i32 -1"
    );
    assert_eq!(
        message(m.require::<u32>("text").unwrap_err()),
        "key \"text\": expected an integer in 0..2^32, found string \"abc\""
    );
    assert_eq!(
        message(m.require::<&StringArray>("list").unwrap_err()),
        "key \"list\": expected an array of strings, found array of 3 i32"
    );
    assert_eq!(
        message(m.require::<&str>("latin1").unwrap_err()),
        "key \"latin1\": expected a UTF-8 string, found string that is not UTF-8 \"caf\u{fffd}\""
    );
    assert_eq!(
        message(m.require::<f32>("big").unwrap_err()),
        "key \"big\": expected a number, found u64 1152921504606846977"
    );
    assert_eq!(
        message(m.require::<bool>("none").unwrap_err()),
        "missing key \"none\": expected a bool"
    );
}

#[test]
fn writer_rejects_what_reader_rejects() {
    let mut w = GgufWriter::new();
    let mut add = |name: &str, ty, ne: &[usize], bytes: usize| match w.add_tensor(name, ty, ne, vec![0; bytes]) {
        Ok(_) => "added".to_owned(),
        Err(e) => e.to_string(),
    };
    assert_eq!(add("t", F32, &[3], 12), "added");
    assert_eq!(add("t", F32, &[3], 12), "duplicate tensor name \"t\"");
    assert_eq!(
        add("u", F32, &[3], 13),
        "tensor \"u\": expected 12 bytes of data, found 13"
    );
    assert_eq!(
        add("u", F32, &[], 4),
        "tensor \"u\": expected 1 to 4 dimensions, found 0"
    );
    assert_eq!(
        add("u", F32, &[0], 0),
        "tensor \"u\": dimension 0 is 0, expected 1..2^63"
    );
    assert_eq!(
        add("u", Q4_0, &[31], 18),
        "tensor \"u\": row length 31 is not a multiple of 32, the block size of q4_0"
    );
    assert_eq!(add("u", F32, &[3], 12), "added");
    assert_eq!(Gguf::parse_header(&w.to_bytes().unwrap()).unwrap().tensors().len(), 2);

    for n in [0, 11, 13, 100] {
        let mut w = GgufWriter::new();
        w.add_tensor_with("t", F32, &[3], move |out| (0..n).try_for_each(|_| out.write_all(&[0])))
            .unwrap();
        let expected = format!("tensor \"t\": expected 12 bytes of data, found {}", n.min(13));
        assert_eq!(w.to_bytes().unwrap_err().to_string(), expected);
    }

    let deep = (0..MAX_ARRAY_DEPTH).fold(Array::U8(vec![1]), |a, _| Array::Nested(vec![a]));
    for (key, value) in [
        ("", Value::U8(1)),
        (&*"x".repeat(65536), Value::U8(1)),
        ("deep", deep.into()),
    ] {
        let mut w = GgufWriter::new();
        w.set(key, value);
        assert!(w.to_bytes().is_err());
    }
    let mut w = GgufWriter::new();
    w.set_alignment(24);
    assert!(w.to_bytes().is_err());
}

#[test]
fn open_rejects_paths_that_are_not_files() {
    let dir = tempfile::tempdir().unwrap();
    let message = |path| GgufFile::open(path).unwrap_err().to_string();
    assert_eq!(
        message(dir.path()),
        format!("{}: expected a GGUF file, found a directory", dir.path().display())
    );
    let missing = dir.path().join("missing.gguf");
    assert!(message(&missing).starts_with(&format!("{}: cannot open the file: ", missing.display())));
    let empty = dir.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    assert!(message(&empty).ends_with("the magic at offset 0 needs 4 bytes, but only 0 remain"));
    assert!(matches!(
        GgufFile::read(&empty).unwrap_err().kind(),
        GgufError::HeaderTruncated { .. }
    ));
}

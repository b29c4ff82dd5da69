//! Limits the cost of parsing a header: memory must be proportional to the file, regardless of counts in the header.

use std::time::{Duration, Instant};

use engine::gguf::{Array, Gguf, GgufWriter, StringArray, ValueType};
use engine::random::SplitMix64;
use kernels::GgmlType;

use super::counting::peak_of;

fn headers() -> Vec<Vec<u8>> {
    let dir = super::root::root().join("tests/data/archs");
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let headers = paths.filter(|path| path.to_string_lossy().ends_with(".header.gguf"));
    let headers: Vec<_> = headers.map(|path| std::fs::read(path).unwrap()).collect();
    assert!(!headers.is_empty());
    headers
}

/// Corrupts a header in one to four locations, usually by replacing lengths and counts.
fn mutate(bytes: &mut Vec<u8>, random: &mut SplitMix64) {
    for _ in 0..=random.below(4) {
        let i = random.below(bytes.len());
        match random.below(8) {
            0 => bytes.truncate(i.max(1)),
            1 => drop(bytes.drain(i..(i + 1 + random.below(16)).min(bytes.len()))),
            2..=4 => bytes[i] = random.next_u64() as u8,
            _ => {
                let number = [
                    random.next_u64(),
                    random.next_u64() >> random.below(64),
                    1 << random.below(64),
                ][random.below(3)];
                let len = 8.min(bytes.len() - i);
                bytes[i..i + len].copy_from_slice(&number.to_le_bytes()[..len]);
            }
        }
        if bytes.is_empty() {
            bytes.push(0);
        }
    }
}

/// Returns the maximum memory for parsing a fixture's header, corrupted or not.
///
/// The tensor table needs at most three times the file size. In the file, a tensor takes 32 bytes, 8 bytes per
/// dimension, and the name. In memory, it takes 88 bytes, the name, and two 8-byte indices (by name and by offset).
/// Metadata pairs are few, but each needs 80 bytes for hash, key, and value, independent of its size in the file.
/// While their table grows from 112 to 224 entries, the maximum for the fixtures, it exists twice. The constant term
/// covers that.
fn memory_max(file: usize) -> usize {
    16 * 1024 + 3 * file
}

#[test]
fn mutated_headers_take_bounded_memory_and_time() {
    const CASES: usize = 100_000;
    let headers = headers();
    let (mut accepted, start) = (0, Instant::now());
    for case in 0..CASES {
        let mut bytes = headers[case % headers.len()].clone();
        mutate(&mut bytes, &mut SplitMix64(0x9e37_79b9_7f4a_7c15 ^ (case as u64 + 1)));
        let (ok, peak) = peak_of(|| match Gguf::parse_header(&bytes) {
            Ok(_) => true,
            Err(e) => e.to_string().is_empty(),
        });
        assert!(
            peak <= memory_max(bytes.len()),
            "case {case}: {peak} bytes for a header of {}",
            bytes.len()
        );
        accepted += usize::from(ok);
    }
    let elapsed = start.elapsed();
    println!("{accepted} of {CASES} accepted, {elapsed:.1?}");
    assert!(
        (1..CASES).contains(&accepted),
        "some mutations are harmless and some are fatal"
    );
    assert!(elapsed < Duration::from_secs(300));
}

/// Parses files with as many entries per byte as possible. Each entry is larger in memory. A growing table
/// exists up to three times: the old table and a new one of twice the size.
#[test]
fn dense_files_take_proportional_memory() {
    let n = 100_000;
    let mut empty_strings = GgufWriter::new();
    empty_strings.set("k", std::iter::repeat_n("", n).collect::<StringArray>());
    let mut empty_arrays = GgufWriter::new();
    empty_arrays.set("k", Array::Nested(vec![Array::U8(vec![]); n]));
    let mut keys = GgufWriter::new();
    (0..n).for_each(|i| drop(keys.metadata.insert(format!("{i:x}"), 0u8)));
    let mut tensors = GgufWriter::new();
    for i in 0..n {
        tensors
            .add_tensor_with(format!("{i:x}"), GgmlType::I8, &[1], |_| Ok(()))
            .unwrap();
    }
    for (what, writer, ratio_max) in [
        // The 8-byte length becomes 4 bytes; the second pass allocates all memory in one call.
        ("strings", empty_strings, 0.6),
        // An empty array takes 12 bytes in the file and 48 in memory.
        ("arrays", empty_arrays, 12.0),
        // 18 bytes become 80, plus about 12 bytes of the table.
        ("keys", keys, 16.0),
        // 36 bytes become 104 plus the name, allocated at once.
        ("tensors", tensors, 3.2),
    ] {
        let bytes = writer.header().unwrap();
        let (header, peak) = peak_of(|| Gguf::parse_header(&bytes).unwrap());
        let ratio = peak as f64 / bytes.len() as f64;
        println!("{what}: {:.1} times {} bytes", ratio, bytes.len());
        assert!(ratio < ratio_max, "{what}: {ratio:.1} times the file size");
        drop(header);
    }
}

/// Huge counts must not reserve memory, even if the file is large enough for them to pass a first
/// plausibility check.
#[test]
fn counts_do_not_reserve_memory() {
    for ty in ValueType::ALL {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend_from_slice(&0u64.to_le_bytes());
        bytes.extend_from_slice(&1u64.to_le_bytes());
        bytes.extend_from_slice(&1u64.to_le_bytes());
        bytes.push(b'k');
        bytes.extend_from_slice(&ValueType::Array.id().to_le_bytes());
        bytes.extend_from_slice(&ty.id().to_le_bytes());
        bytes.extend_from_slice(&(1u64 << 60).to_le_bytes());
        bytes.resize(bytes.len() + (1 << 20), 0xff);
        let (result, peak) = peak_of(|| Gguf::parse_header(&bytes));
        assert!(result.is_err());
        assert!(peak < 4096, "{ty}: {peak} bytes");
    }
}

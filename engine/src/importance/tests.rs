use super::*;
use crate::gguf::GgufFile;
use crate::random::SplitMix64;

fn entry(squares: &[f64], counts: &[u64]) -> Entry {
    Entry {
        squares: squares.to_vec(),
        sums: squares.to_vec(),
        counts: counts.to_vec(),
    }
}

fn matrix() -> ImportanceMatrix {
    let mut matrix = ImportanceMatrix {
        datasets: vec!["a.txt".to_owned()],
        n_chunks: 3,
        chunk_size: 512,
        ..ImportanceMatrix::default()
    };
    matrix
        .entries
        .insert("blk.0.attn_q.weight".to_owned(), entry(&[2.0, 4.0], &[2]));
    let experts = entry(&[1.0, 2.0, 0.0, 0.0, 9.0, 6.0], &[1, 0, 3]);
    matrix.entries.insert("blk.0.ffn_up_exps.weight".to_owned(), experts);
    matrix
}

#[test]
fn experts_without_data_have_the_mean_of_the_others() {
    let weights = matrix().weights("blk.0.ffn_up_exps.weight", 2, 3).unwrap().unwrap();
    assert_eq!(weights.values, [1.0, 2.0, 2.0, 2.0, 3.0, 2.0]);
    assert_eq!(weights.n_filled, 1);
    // One row of sums serves all matrices of a tensor.
    let shared = matrix().weights("blk.0.attn_q.weight", 2, 2).unwrap().unwrap();
    assert_eq!((&shared.values[..], shared.n_filled), (&[1.0, 2.0, 1.0, 2.0][..], 0));
    assert_eq!(matrix().weights("output.weight", 2, 1).unwrap(), None);
    let error = matrix().weights("blk.0.attn_q.weight", 3, 1).unwrap_err().to_string();
    assert!(error.contains("belongs to another model"), "{error}");
}

#[test]
fn files_are_read_as_written_and_merged() {
    let mut bytes = Vec::new();
    matrix().write(&mut bytes).unwrap();
    let file = GgufFile::from_bytes("imatrix.gguf", &bytes).unwrap();
    let read = ImportanceMatrix::from_file(&file).unwrap();
    assert_eq!(read, matrix());
    let mut merged = read;
    merged.merge(&matrix()).unwrap();
    assert_eq!((merged.n_chunks, merged.datasets.len()), (6, 1));
    assert_eq!(merged.entries["blk.0.ffn_up_exps.weight"].counts, [2, 0, 6]);
    let (a, b) = ("blk.0.attn_q.weight", matrix());
    assert_eq!(merged.weights(a, 2, 1).unwrap(), b.weights(a, 2, 1).unwrap());
    let mut other = ImportanceMatrix::default();
    other.entries.insert(a.to_owned(), entry(&[1.0], &[1]));
    assert!(merged.merge(&other).is_err());
}

/// Changes 1 to 4 random bytes, and truncates about half of the copies.
fn damaged(bytes: &[u8], rng: &mut SplitMix64) -> Vec<u8> {
    let mut copy = bytes.to_vec();
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(copy.len());
        copy[at] = match rng.below(3) {
            0 => 0xff,
            1 => copy[at] ^ (1 << rng.below(8)),
            _ => rng.below(256) as u8,
        };
    }
    if rng.below(2) == 0 {
        copy.truncate(rng.below(copy.len()));
    }
    copy
}

#[test]
fn damaged_files_yield_nonnegative_weights_or_an_error() {
    let (mut current, mut rng) = (Vec::new(), SplitMix64(3));
    matrix().write(&mut current).unwrap();
    let mut legacy = [1i32, 3].map(i32::to_le_bytes).concat();
    legacy.extend(b"abc");
    legacy.extend([4i32, 2].map(i32::to_le_bytes).concat());
    legacy.extend([8.0f32, 2.0].map(f32::to_le_bytes).concat());
    let (mut n_read, mut n_rejected) = (0, 0);
    for i in 0..4000 {
        let bytes = damaged(if i % 2 == 0 { &current } else { &legacy }, &mut rng);
        let Ok(read) = ImportanceMatrix::parse("imatrix.gguf".as_ref(), &bytes) else {
            n_rejected += 1;
            continue;
        };
        n_read += 1;
        for (name, entry) in &read.entries {
            let weights = read.weights(name, entry.squares.len(), 1).unwrap();
            assert!(weights.is_none_or(|weights| weights.values.iter().all(|weight| *weight >= 0.0)));
        }
        read.clone().merge(&read).unwrap();
    }
    assert!(n_read > 100 && n_rejected > 1000, "{n_read} {n_rejected}");
}

#[test]
fn legacy_files_are_read_and_checked() {
    let mut bytes = 1i32.to_le_bytes().to_vec();
    bytes.extend(3i32.to_le_bytes());
    bytes.extend(b"abc");
    for number in [4i32, 2] {
        bytes.extend(number.to_le_bytes());
    }
    for value in [8.0f32, 2.0] {
        bytes.extend(value.to_le_bytes());
    }
    let entries = bytes.len();
    bytes.extend(4i32.to_le_bytes());
    bytes.extend(1i32.to_le_bytes());
    bytes.extend(b"t");
    let matrix = legacy::parse(&bytes).unwrap();
    assert_eq!((matrix.n_chunks, &matrix.datasets[..]), (4, &["t".to_owned()][..]));
    assert_eq!(matrix.weights("abc", 2, 1).unwrap().unwrap().values, [2.0, 0.5]);
    for len in 0..entries {
        assert!(legacy::parse(&bytes[..len]).is_err(), "{len}");
    }
    bytes[entries - 4..entries].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(legacy::parse(&bytes).is_err());
    assert!(legacy::parse(&i32::MAX.to_le_bytes()).is_err());
}

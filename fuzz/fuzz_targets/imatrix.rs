//! Fuzzes the reader of importance matrices, in both formats: any input must yield finite weights or an error.

#![no_main]

use engine::importance::ImportanceMatrix;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| match ImportanceMatrix::parse("imatrix.gguf".as_ref(), bytes) {
    Ok(matrix) => {
        for (name, entry) in &matrix.entries {
            let n = entry.squares.len();
            if let Ok(Some(weights)) = matrix.weights(name, n, 1) {
                assert!(weights.values.iter().all(|weight| *weight >= 0.0));
            }
        }
        let mut sum = matrix.clone();
        sum.merge(&matrix).expect("a matrix and its copy should have equal sizes");
    }
    Err(e) => assert!(!e.to_string().is_empty()),
});

//! Fuzzes the reader of log-probabilities, in both formats: any input must yield rows or an error.

#![no_main]

use std::io::Cursor;

use engine::measure::{BaseReader, LogProbs};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut reader) = BaseReader::new(Cursor::new(bytes), bytes.len() as u64) else {
        return;
    };
    // Longer rows only take more time.
    let n_vocab = reader.n_vocab().min(1 << 12);
    let logits: Vec<f32> = (0..n_vocab).map(|i| (i % 17) as f32).collect();
    while reader.n_left() > 0 {
        let Ok(row) = reader.next_row() else { return };
        let compared = LogProbs::new(&logits).compare(&row, 0);
        assert!(compared.excess >= 0.0 || compared.excess.is_nan());
    }
});

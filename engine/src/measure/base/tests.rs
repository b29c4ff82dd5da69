use super::*;
use crate::measure::Corpus;
use crate::measure::LogProbs;
use crate::random::SplitMix64;

const N_VOCAB: usize = 5001;

/// Returns rows of logits with a long tail.
fn logits(seed: u64, n: usize) -> Vec<Vec<f32>> {
    let mut random = SplitMix64(seed);
    let mut uniform = move || (random.next_u64() >> 40) as f32 / 16_777_216.0;
    let mut row = move || (0..N_VOCAB).map(|_| 6.0 * uniform() * uniform() - 3.0).collect();
    (0..n).map(|_| row()).collect()
}

fn corpus() -> Corpus {
    Corpus::of_tokens((0..24).map(|i| i * 200).collect(), 8, None, None).unwrap()
}

fn written(format: BaseFormat, rows: &[Vec<f32>]) -> Vec<u8> {
    let mut writer = BaseWriter::new(Vec::new(), format, &corpus(), N_VOCAB).unwrap();
    let rows: Vec<_> = rows.iter().zip(1..).map(|(row, token)| (&row[..], token)).collect();
    writer.write(&rows).unwrap();
    writer.finish().unwrap()
}

fn open(bytes: &[u8]) -> Result<BaseReader<&[u8]>, crate::measure::MeasureError> {
    BaseReader::new(bytes, bytes.len() as u64)
}

/// Computes the divergence in 64 bits from its definition.
fn divergence(base: &[f32], other: &[f32]) -> f64 {
    let log_sum = |row: &[f32]| row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
    let (a, b) = (log_sum(base), log_sum(other));
    let logs = base
        .iter()
        .zip(other)
        .map(|(&x, &y)| (f64::from(x) - a, f64::from(y) - b));
    logs.map(|(p, q)| p.exp() * (p - q)).sum()
}

#[test]
fn files_of_both_formats_keep_the_divergence() {
    let (base, other) = (logits(1, 9), logits(2, 9));
    for (format, tolerance) in [(BaseFormat::Full, 1e-4), (BaseFormat::Compact, 0.0)] {
        let bytes = written(format, &base);
        let mut reader = open(&bytes).unwrap();
        assert_eq!(
            (reader.format(), reader.n_ctx(), reader.n_vocab()),
            (format, 8, N_VOCAB)
        );
        assert_eq!(reader.tokens(), corpus().tokens());
        for (i, (base, other)) in base.iter().zip(&other).enumerate() {
            let (row, token) = (reader.next_row().unwrap(), i as u32 + 1);
            let (probs, exact) = (LogProbs::new(other), LogProbs::new(base));
            let found = probs.compare(&row, token);
            let expected = divergence(base, other);
            assert!(found.kld <= expected + tolerance + 1e-6, "{found:?} {expected}");
            assert!(
                found.kld + found.excess >= expected - tolerance - 1e-6,
                "{found:?} {expected}"
            );
            assert!(found.excess < 2.0 * expected, "{found:?}");
            assert!((found.nll_base + exact.of(token)).abs() < 1e-4);
            assert_eq!(found.is_same_top, exact.top() == probs.top());
            let direct = probs.compare(&BaseRow::Exact(exact), token);
            assert!((direct.kld - expected).abs() < 1e-6 && direct.excess == 0.0);
            let own = exact.compare(&row, token);
            assert!(own.kld.abs() < 1e-4 && own.is_same_top, "{own:?}");
        }
        assert!(reader.next_row().is_err());
    }
}

/// The bytes that llama.cpp's `log_softmax` computes for two rows, from its formulas in numpy.
#[test]
fn full_rows_equal_those_of_llama_cpp() {
    let mut row = vec![0.0f32; N_VOCAB];
    row[7] = 3.0;
    row[9] = -20.0;
    row[11] = 1.5;
    let bytes = written(BaseFormat::Full, &vec![row; 9]);
    let start = 20 + 4 * 24;
    let words: Vec<u16> = bytes[start..]
        .chunks_exact(2)
        .map(|b| u16::from_le_bytes([b[0], b[1]]))
        .collect();
    assert_eq!(words.len(), 9 * full_words(N_VOCAB));
    let float = |i: usize| f32::from_bits(u32::from(words[i + 1]) << 16 | u32::from(words[i]));
    // Codes span 16 below the largest logit, and the sum of exponentials is 4998 + e^3 + e^-20 + e^1.5.
    assert!((float(0) - 16.0 / 65535.0).abs() < 1e-9);
    assert!(
        (float(2) + 13.0 + (4998.0f32 + 20.0855 + 4.4817).ln()).abs() < 1e-4,
        "{}",
        float(2)
    );
    assert_eq!((words[4 + 7], words[4 + 9], words[4 + 11]), (65535, 0, 59391));
    assert_eq!(words[4], 53247);
    assert_eq!(words[4 + N_VOCAB], 0);
}

#[test]
fn damaged_files_are_rejected() {
    for format in [BaseFormat::Full, BaseFormat::Compact] {
        let bytes = written(format, &logits(3, 9));
        for len in [0, 7, 19, 60, bytes.len() / 2] {
            assert!(open(&bytes[..len]).is_err(), "{len}");
        }
        let changed = |at: usize, value: u32| {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let mut reader = open(&bytes)?;
            reader.next_row().map(|_| ())
        };
        assert!(changed(20, 0).is_ok());
        // First bytes, sizes, the number of chunks, a token, and the first float of a row.
        for (at, value) in [
            (0, 0),
            (8, 3),
            (8, u32::MAX),
            (12, 0),
            (12, u32::MAX),
            (16, 0),
            (16, u32::MAX),
            (20, 5001),
            (116, f32::NAN.to_bits()),
        ] {
            assert!(changed(at, value).is_err(), "{format:?}: {value} at {at}");
        }
    }
    let mut bytes = written(BaseFormat::Compact, &logits(3, 9));
    let ids = 116 + 12 + 4 * N_TOP;
    bytes[ids..ids + 8].fill(0);
    assert!(open(&bytes).unwrap().next_row().is_err(), "a token occurs twice");
}

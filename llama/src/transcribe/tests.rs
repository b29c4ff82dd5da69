//! A tiny random Whisper against transformers in float64, recorded by `tests/tools/whisper.py`.

use std::path::PathBuf;

use engine::model::LoadParams;
use kernels::{GgmlType, Precision};

use super::*;

fn recorded(name: &str) -> PathBuf {
    ::tests::root().join("tests/data/whisper").join(name)
}

fn tiny() -> Arc<Model> {
    let params = LoadParams::default();
    Arc::new(Model::load(recorded("tiny.gguf"), archs::ALL, &params).unwrap_or_else(|e| panic!("{e}")))
}

fn exact() -> ContextParams {
    ContextParams {
        n_threads: 1,
        n_threads_batch: 1,
        precision: Precision::Exact,
        type_k: GgmlType::F32,
        type_v: GgmlType::F32,
        ..ContextParams::default()
    }
}

#[test]
fn logits_equal_those_of_transformers() {
    let (n_mel, n_rows) = (8, 20);
    let value = |i: usize| (i * 37 % 101) as f32 / 25.0 - 2.0;
    let spectrogram: Vec<f32> = (0..2 * n_rows * n_mel).map(value).collect();
    let rules = tiny().audio_rules().unwrap();
    assert_eq!((rules.n_mel, rules.chunk), (n_mel, n_rows));
    let rows = rules.columns(&spectrogram, 0..2 * n_rows);
    let tokens = [51, 3, 9, 27, 4, 41, 8];
    let expected = std::fs::read(recorded("tiny.logits")).unwrap();
    let expected: Vec<f32> = bytes_to_floats(&expected);
    // All tokens at once, then one at a time.
    for n in [tokens.len(), 1] {
        let params = ContextParams {
            n_ctx: 32,
            n_batch: 32,
            n_ubatch: 32,
            n_outputs_max: 8,
            ..exact()
        };
        let mut context = Context::new(tiny(), &params).unwrap();
        let mut batch = Batch::new();
        (0..n_rows).for_each(|pos| batch.push(0, pos, SeqSet::one(0), false));
        context.encode_frames(&batch, &rows).unwrap();
        let mut logits = Vec::new();
        for (piece, part) in tokens.chunks(n).enumerate() {
            batch.clear();
            for (i, &token) in part.iter().enumerate() {
                batch.push(token, piece * n + i, SeqSet::one(0), true);
            }
            context.decode(&batch).unwrap();
            (0..part.len()).for_each(|i| logits.extend_from_slice(context.logits(i).unwrap()));
        }
        let error = ::tests::nmse(&expected, &logits);
        assert!(error < 1e-8, "{n} tokens at a time: {error:e}");
    }
}

fn bytes_to_floats(bytes: &[u8]) -> Vec<f32> {
    let values = bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    values.collect()
}

#[test]
fn frames_of_wrong_size_or_excess_positions_are_rejected() {
    let params = ContextParams {
        n_ctx: 32,
        n_batch: 32,
        n_ubatch: 32,
        ..exact()
    };
    let mut context = Context::new(tiny(), &params).unwrap();
    let mut batch = Batch::new();
    (0..20).for_each(|pos| batch.push(0, pos, SeqSet::one(0), false));
    let error = context.encode_frames(&batch, &[0.0; 40]).unwrap_err().to_string();
    assert_eq!(error, "cannot encode frames of 40 values; the batch requires 900");
    batch.push(0, 20, SeqSet::one(0), false);
    let error = context.encode_frames(&batch, &[0.0; 21 * 45]).unwrap_err().to_string();
    assert_eq!(error, "position 20 at index 20 exceeds the 20 positions of the model");
}

#[test]
fn transcriber_rejects_other_models() {
    let file = ::tests::text_model("gpt2", None);
    let model = engine::gguf::GgufFile::from_bytes("model.gguf", &file).unwrap();
    let model = Arc::new(Model::from_file(model, archs::ALL, &LoadParams::default()).unwrap());
    let error = Transcriber::new(&model, &exact()).err().unwrap().to_string();
    assert!(
        error.ends_with("cannot transcribe audio; use a Whisper model"),
        "{error}"
    );
}

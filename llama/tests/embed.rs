//! Tests of embeddings.

use llama::Error;

use crate::common::chat_model;

#[test]
fn embeddings_have_unit_length_and_are_independent_of_batch() {
    let model = chat_model();
    let texts = ["abc", "one two", "abc", "a longer text than the other texts"];
    let vectors = model.embed(&texts).unwrap();
    assert_eq!(vectors.len(), texts.len());
    for (text, vector) in texts.iter().zip(&vectors) {
        let length: f32 = vector.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
        let alone = model.embed(&[text]).unwrap().remove(0);
        let distance: f32 = alone.iter().zip(vector).map(|(a, b)| (a - b).powi(2)).sum();
        assert!(distance < 1e-3, "{text}: {distance}");
    }
    let dot = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(x, y)| x * y).sum() };
    assert!(dot(&vectors[0], &vectors[2]) > 0.999);
    assert!(model.embed::<&str>(&[]).unwrap().is_empty());
}

#[test]
fn long_text_is_rejected_by_index() {
    let model = chat_model();
    let long = "x".repeat(10_000);
    let error = model.embed(&["abc", &long]).unwrap_err();
    assert!(matches!(error, Error::TextTooLong { index: 1, .. }), "{error}");
}

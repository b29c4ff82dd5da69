//! Compares logits with llama.cpp or transformers for configurations and architectures without fixtures.
//! `data/recorded/README.md` describes how they were recorded.

use engine::conformance::{all_logits, fixtures, tokens};
use tests::{data_dir, exact, nmse};

#[test]
fn recorded_configurations_match() {
    let all = fixtures(&data_dir().join("recorded")).expect("the directory is readable");
    assert!(!all.is_empty());
    for fixture in all {
        let (name, recorded) = (&fixture.name, fixture.recorded().expect("sound logits"));
        let model = fixture.recorded_model(archs::ALL, &exact());
        let model = model.unwrap_or_else(|e| panic!("{name}: {e}"));
        let logits = all_logits(model, &tokens(&recorded), &exact().context);
        let logits = logits.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(logits.len(), recorded.values().len(), "{name}");
        // Masked tokens have the same minimum logit in both, which would dominate the error.
        let pairs = recorded.values().iter().zip(&logits);
        let (never, said): (Vec<_>, Vec<_>) = pairs.map(|(r, l)| (*r, *l)).partition(|(r, _)| *r == -f32::MAX);
        assert!(never.iter().all(|(_, l)| *l == -f32::MAX), "{name}");
        let (recorded, found): (Vec<f32>, Vec<f32>) = said.into_iter().unzip();
        let error = nmse(&recorded, &found);
        println!("{name} {error:.2e}");
        // llama.cpp rounds to f32, transformers computed in 64 bits.
        let bound = if name.ends_with("-transformers") { 1e-10 } else { 1e-8 };
        assert!(error <= bound, "{name}: {error:.2e}");
    }
}

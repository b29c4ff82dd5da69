//! Logits of configurations that the fixtures do not have, and of architectures without any fixture, against those that llama.cpp gave
//! for them. How they were recorded stands in `data/recorded/README.md`.

use engine::conformance::{all_logits, fixtures, tokens};
use tests::{data_dir, exact, nmse};

#[test]
fn recorded_configurations_are_met() {
    let all = fixtures(&data_dir().join("recorded")).expect("the folder is readable");
    assert!(!all.is_empty());
    for fixture in all {
        let (name, recorded) = (&fixture.name, fixture.recorded().expect("sound logits"));
        let model = fixture.recorded_model(archs::ALL, &exact());
        let model = model.unwrap_or_else(|e| panic!("{name}: {e}"));
        let logits = all_logits(model, &tokens(&recorded), &exact().context);
        let logits = logits.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(logits.len(), recorded.values().len(), "{name}");
        // What a model must never say is as low in both, and beside it all else would be nothing.
        let pairs = recorded.values().iter().zip(&logits);
        let (never, said): (Vec<_>, Vec<_>) = pairs.map(|(r, l)| (*r, *l)).partition(|(r, _)| *r == -f32::MAX);
        assert!(never.iter().all(|(_, l)| *l == -f32::MAX), "{name}");
        let (recorded, found): (Vec<f32>, Vec<f32>) = said.into_iter().unzip();
        let error = nmse(&recorded, &found);
        println!("{name} {error:.2e}");
        assert!(error <= 1e-8, "{name}: {error:.2e}");
    }
}

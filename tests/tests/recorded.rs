//! Compares logits with llama.cpp or transformers for configurations and architectures without fixtures.
//! `data/recorded/README.md` describes how they were recorded.

use engine::conformance::{all_logits, fixtures, tokens};
use engine::gguf::{Gguf, GgufFile, seeded};
use engine::model::Model;
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

/// Biases without an effect on the logits: they shift all scores of a query equally, because keys are not rotated.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("bert", "attn_k.bias"),
    ("mpnet", "attn_k.bias"),
    ("opt", "attn_k.bias"),
    ("opt-after", "attn_k.bias"),
];

#[test]
fn recordings_of_transformers_use_every_tensor() {
    let all = fixtures(&data_dir().join("recorded")).expect("the directory is readable");
    let (mut n_compared, mut wrong) = (0, Vec::new());
    for fixture in all {
        let Some(name) = fixture.name.strip_suffix("-transformers") else {
            continue;
        };
        let header = Gguf::open_header(&fixture.header).expect("a sound header");
        let recorded = fixture.recorded().expect("sound logits");
        let bytes = seeded::seeded_model(&header, 1).expect("a small model");
        let logits = |bytes: &[u8]| {
            let params = exact();
            let file = GgufFile::from_bytes(&fixture.header, bytes).expect("a sound file");
            let model = Model::from_file(file, archs::ALL, &params.load).unwrap_or_else(|e| panic!("{name}: {e}"));
            all_logits(model.into(), &tokens(&recorded), &params.context).unwrap_or_else(|e| panic!("{name}: {e}"))
        };
        let expected = logits(&bytes);
        for tensor in header.tensors() {
            let mut changed = bytes.clone();
            let start = header.data_offset() + tensor.offset;
            for value in changed[start..start + tensor.bytes].as_chunks_mut::<4>().0 {
                *value = (-f32::from_le_bytes(*value)).to_le_bytes();
            }
            let has_effect = nmse(&expected, &logits(&changed)) > 1e-9;
            let is_exempt = |(of, part): &(&str, &str)| *of == name && tensor.name.contains(part);
            // A language model has no classifier, whose head the seed contains.
            let exempt = tensor.name.starts_with("cls.") || WITHOUT_EFFECT.iter().any(is_exempt);
            if has_effect == exempt {
                wrong.push(format!("{name}: {} has an effect: {has_effect}", tensor.name));
            }
            n_compared += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n_compared > 300, "{n_compared} tensors");
}

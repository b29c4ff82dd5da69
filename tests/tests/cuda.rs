//! Models on the emulated driver, or with `LLAMA_CUDA=here` on a card.

use engine::backend::registries;
use engine::conformance::CheckParams;
use tests::emulator::with_device;
use tests::{CORE, context, decode_last, exact, fixture, fixture_names, nmse, place_on, tokens};

/// The name of the first card.
fn card() -> String {
    let family = registries()
        .iter()
        .find(|r| r.name() == "cuda")
        .expect("it is compiled in");
    let devices = family.devices();
    let first = devices
        .first()
        .unwrap_or_else(|| panic!("{}", family.flaws().join("; ")));
    first.name().to_owned()
}

/// All layers, or the last `n`, on a card.
fn params(card: &str, n_layers: usize) -> CheckParams {
    let mut params = exact();
    place_on(&mut params.load, card, n_layers);
    params
}

/// Recorded logits are met with all layers on the card.
fn check<'a>(card: &str, names: impl IntoIterator<Item = &'a str>) {
    let mut failures = Vec::new();
    for name in names {
        match fixture(name).compare(archs::ALL, &params(card, usize::MAX), 1e-6) {
            Ok(found) if found.passes() => {}
            Ok(found) => failures.push(format!("{name}: {found:?}")),
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn common_models_meet_their_logits() {
    with_device("cuda::common_models_meet_their_logits", || check(&card(), CORE));
}

#[test]
#[ignore = "computes every fixture on the card"]
fn every_model_meets_its_logits() {
    with_device("cuda::every_model_meets_its_logits", || {
        let names = fixture_names();
        check(&card(), names.iter().map(String::as_str));
    });
}

/// Logits of the last token of a fixture.
fn logits(name: &str, params: &CheckParams) -> Vec<f32> {
    let model = fixture(name)
        .model(archs::ALL, params)
        .expect("the fixture's model loads");
    let tokens = tokens(name);
    let (prompt, last) = tokens[..12].split_at(11);
    let mut ctx = context(&model, |p| p.n_ubatch = 8);
    decode_last(&mut ctx, prompt, 0, 0);
    decode_last(&mut ctx, last, prompt.len(), 0)
}

#[test]
fn layers_split_between_cpu_and_card_give_the_unsplit_logits() {
    with_device(
        "cuda::layers_split_between_cpu_and_card_give_the_unsplit_logits",
        split_layers,
    );
}

fn split_layers() {
    let card = card();
    for name in ["llama-moe", "qwen3-dense", "falcon-h1-dense"] {
        let want = logits(name, &exact());
        for n_layers in [1, 2] {
            let error = nmse(&want, &logits(name, &params(&card, n_layers)));
            assert!(error < 1e-6, "{name}, {n_layers} layers on {card}: NMSE {error:.3e}");
        }
    }
}

/// What is recorded of a plan computes what its kernels compute one by one.
#[test]
fn tokens_one_by_one_give_the_logits_of_the_cpu() {
    with_device("cuda::tokens_one_by_one_give_the_logits_of_the_cpu", tokens_one_by_one);
}

fn tokens_one_by_one() {
    let card = card();
    let name = "qwen3-dense";
    let steps = |params: &CheckParams| -> Vec<Vec<f32>> {
        let model = fixture(name)
            .model(archs::ALL, params)
            .expect("the fixture's model loads");
        let mut ctx = context(&model, |_| {});
        let tokens = tokens(name);
        let one = |(pos, token)| decode_last(&mut ctx, std::slice::from_ref(token), pos, 0);
        tokens[..10].iter().enumerate().map(one).collect()
    };
    let (want, got) = (steps(&exact()), steps(&params(&card, usize::MAX)));
    for (pos, (want, got)) in want.iter().zip(&got).enumerate() {
        let error = nmse(want, got);
        assert!(error < 1e-6, "token {pos}: NMSE {error:.3e}");
    }
}

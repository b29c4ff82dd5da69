//! Models on the emulated driver, or with `LLAMA_CUDA=here` on a card.

use std::sync::atomic::AtomicBool;

use engine::backend::cuda::Counters;
use engine::backend::{BackendParams, GraphView, MemoryMap, Usage, registries};
use engine::conformance::CheckParams;
use engine::graph::{Graph, Home, Name, Uses};
use kernels::{GgmlType, Precision};
use tests::emulator::with_device;
use tests::{CORE, context, decode_last, exact, fixture, fixture_names, nmse, place_on, tokens};

/// The name of the first card.
pub(crate) fn card() -> String {
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
pub(crate) fn params(card: &str, n_layers: usize) -> CheckParams {
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

/// A vector of weights, arranged as the card would have them, times activations. Counters of the product's kernel, and bytes of the weights.
fn counted_product(counters: Counters, ty: GgmlType, k: usize, m: usize) -> (serde_json::Value, usize) {
    let device = engine::backend::device(&card()).expect("it was just there");
    let mut memory = MemoryMap::default();
    let mut graph = Graph::new();
    let mut leaf = |ty: GgmlType, ne: [usize; 4]| {
        let bytes = ty.row_bytes(ne[0]).expect("rows are whole") * ne[1];
        let buffer = device.buffer_type().allocate(bytes).expect("there is memory");
        let home = Home {
            buffer: memory.insert(buffer, Usage::Any),
            offset: 0,
        };
        (bytes, graph.external(ty, ne, Name::default(), home, Default::default()))
    };
    let ((n_bytes, w), (_, x), (_, y)) = (
        leaf(ty, [k, m, 1, 1]),
        leaf(GgmlType::F32, [k, 1, 1, 1]),
        leaf(GgmlType::F32, [m, 1, 1, 1]),
    );
    let places = device.weight_storage();
    let place = places.iter().find(|place| place.layout.accepts(ty, [k, m, 1, 1]));
    graph.tensor_mut(w).layout = place.expect("there is a place for weights").layout;
    let product = graph.mul_mat(w, x).expect("the shapes fit");
    graph.tensor_mut(product).home = graph.home(y);
    graph.expand(product);
    let params = BackendParams {
        precision: Precision::Fast,
        ..BackendParams::new(1)
    };
    let mut backend = device.backend(&params).expect("it is there");
    let mut uses = Uses::default();
    uses.count(&graph, []);
    let view = GraphView {
        graph: &graph,
        nodes: graph.nodes(),
        uses: &uses,
    };
    counters.reset();
    let mut plan = backend.prepare(&view, &memory, None).expect("there are kernels");
    let cancel = AtomicBool::new(false);
    backend.run(&mut *plan, &graph, &mut memory, &cancel).expect("it runs");
    backend.synchronize().expect("nothing fails");
    let mut all: serde_json::Value = serde_json::from_str(&counters.json()).expect("it is JSON");
    let kernels = all["kernels"].as_object_mut().expect("kernels were launched");
    let name = kernels.keys().find(|name| name.starts_with("mul_vec")).cloned();
    let found = kernels.remove(&name.expect("there is a product"));
    (found.expect("its name was just there"), n_bytes)
}

/// Decoding is as fast as its weights are read. So they are moved once, in whole sectors, and beside them only the activations.
#[test]
fn products_of_one_token_move_the_weights_and_nothing_else() {
    let name = "cuda::products_of_one_token_move_the_weights_and_nothing_else";
    with_device(name, || {
        use GgmlType::*;
        let Some(counters) = Counters::find() else {
            eprintln!("left out: a card counts nothing");
            return;
        };
        let (k, m) = (6144, 67);
        // Pieces of TQ1_0 and TQ2_0 end amid sectors, and types with grids read these, too.
        for ty in [
            Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4, Q1_0, Q2_0,
        ] {
            let (counts, n_bytes) = counted_product(counters, ty, k, m);
            let number = |value: &serde_json::Value| value.as_u64().expect("a counter") as usize;
            let moved = 32 * number(&counts["copies"]["sectors"]);
            assert!(
                (n_bytes..=n_bytes + n_bytes / 50).contains(&moved),
                "{ty}: {moved} bytes moved for {n_bytes} of weights: {counts}"
            );
            // Two parts of 8 bits, and a scale and two sums for 32 values.
            let columns = 2 * k + 3 * k / 8;
            let (read, written) = (number(&counts["footprint"][0]), number(&counts["footprint"][1]));
            assert!(
                (n_bytes..=n_bytes + columns).contains(&read) && written == 4 * m,
                "{ty}: {read} bytes read and {written} written: {counts}"
            );
            // Lanes find what they read at a time in banks of shared memory of their own.
            let shared = &counts["instructions"]["shared"];
            let (more, ways) = (number(&shared["moved"]), number(&shared["waves"]));
            eprintln!("{ty}: {more} ways of shared memory more than {ways}");
            assert!(
                20 * more < more + ways || [NVFP4, Q1_0, Q2_0].contains(&ty),
                "{ty}: {more} ways more than {ways}: {counts}"
            );
            // A warp of two rows moves the column once: what it loads at a time lies together.
            let from_caches = 32 * number(&counts["loads"]["sectors"]) - moved;
            assert!(
                from_caches <= m.div_ceil(2) * columns,
                "{ty}: {from_caches} bytes of columns moved by {} warps: {counts}",
                m.div_ceil(2)
            );
        }
    });
}

//! Models on the emulated driver, or with `LLAMA_CUDA=here` on a real GPU.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use engine::backend::cuda::Counters;
use engine::backend::{BackendParams, GraphView, MemoryMap, Usage, registries};
use engine::conformance::CheckParams;
use engine::graph::{BufferSlice, Graph, Name, Uses};
use kernels::{GgmlType, Precision};
use tests::emulator::{with_device, with_settings};
use tests::{CORE, context, decode_last, exact, fixture, fixture_names, nmse, place_on, tokens};

/// Returns the name of the first GPU.
pub(crate) fn card() -> String {
    let family = registries()
        .iter()
        .find(|r| r.name() == "cuda")
        .expect("CUDA support is compiled in");
    let devices = family.devices();
    let first = devices
        .first()
        .unwrap_or_else(|| panic!("{}", family.problems().join("; ")));
    first.name().to_owned()
}

/// Returns parameters that place the last `n_layers` on a GPU.
pub(crate) fn params(card: &str, n_layers: usize) -> CheckParams {
    let mut params = exact();
    place_on(&mut params.load, card, n_layers);
    params
}

/// Compares logits with the recording, with all layers on the GPU. Prints each fixture with its time.
fn check<'a>(card: &str, names: impl IntoIterator<Item = &'a str>) {
    let mut failures = Vec::new();
    for name in names {
        let start = Instant::now();
        let failure = match fixture(name).compare(archs::ALL, &params(card, usize::MAX), 1e-6) {
            Ok(found) if found.passes() => None,
            Ok(found) => Some(format!("{name}: {found:?}")),
            Err(error) => Some(format!("{name}: {error}")),
        };
        let outcome = if failure.is_some() { "fails" } else { "passes" };
        eprintln!("{name} {outcome} ({:.1} s)", start.elapsed().as_secs_f32());
        failures.extend(failure);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn common_models_match_recorded_logits() {
    with_device("cuda::common_models_match_recorded_logits", || check(&card(), CORE));
}

/// Prefixes of the names of fixtures to run, separated by commas. The default is all fixtures.
const FIXTURES: &str = "LLAMA_FIXTURES";

/// With `LLAMA_CUDA=here` and `--nocapture`, each fixture is printed as soon as it ends.
#[test]
#[ignore = "runs every fixture on the GPU"]
fn every_model_matches_recorded_logits() {
    with_device("cuda::every_model_matches_recorded_logits", || {
        let prefixes = std::env::var(FIXTURES).unwrap_or_default();
        let is_selected = |name: &&str| prefixes.split(',').any(|prefix| name.starts_with(prefix));
        let names = fixture_names();
        let selected: Vec<&str> = names.iter().map(String::as_str).filter(is_selected).collect();
        assert!(!selected.is_empty(), "{FIXTURES}={prefixes} selects no fixture");
        check(&card(), selected);
    });
}

/// Calls `body` on an emulated GPU of compute capability 7.5, which copies synchronously, and multiplies other shapes
/// of matrices. With `LLAMA_CUDA=here`, GPUs of other capabilities are skipped.
fn on_turing(name: &str, body: impl FnOnce(&str)) {
    with_settings(name, "sm=75", || {
        let card = card();
        let device = engine::backend::device(&card).expect("the GPU was found before");
        let description = device.description();
        if description.contains("compute capability 7.5") {
            body(&card);
        } else {
            eprintln!("{name}: skipped on {description}");
        }
    });
}

#[test]
fn common_models_match_recorded_logits_on_turing() {
    let name = "cuda::common_models_match_recorded_logits_on_turing";
    on_turing(name, |card| check(card, ["gemma3-dense", "llama-moe", "mamba2-dense"]));
}

#[test]
#[ignore = "runs every fixture on an emulated GPU of compute capability 7.5"]
fn every_model_matches_recorded_logits_on_turing() {
    let name = "cuda::every_model_matches_recorded_logits_on_turing";
    on_turing(name, |card| check(card, fixture_names().iter().map(String::as_str)));
}

/// Returns the logits of the last token of a fixture.
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
fn layers_split_between_cpu_and_gpu_match_unsplit_logits() {
    with_device(
        "cuda::layers_split_between_cpu_and_gpu_match_unsplit_logits",
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

/// A recorded CUDA graph computes the same results as single kernel launches.
#[test]
fn single_token_decode_matches_cpu() {
    with_device("cuda::single_token_decode_matches_cpu", tokens_one_by_one);
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

/// Multiplies a matrix of weights in the GPU's layout by one activation vector. Returns the kernel's counters
/// and the size of the weights in bytes.
fn counted_product(counters: Counters, ty: GgmlType, k: usize, m: usize) -> (serde_json::Value, usize) {
    let device = engine::backend::device(&card()).expect("the GPU was found before");
    let mut memory = MemoryMap::default();
    let mut graph = Graph::new();
    let mut leaf = |ty: GgmlType, ne: [usize; 4]| {
        let bytes = ty.row_bytes(ne[0]).expect("k is a multiple of the block size") * ne[1];
        let buffer = device.buffer_type().allocate(bytes).expect("the GPU has enough memory");
        let home = BufferSlice {
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
    graph.tensor_mut(w).layout = place.expect("the GPU has a weight layout for this type").layout;
    let product = graph.mul_mat(w, x).expect("the shapes match");
    graph.tensor_mut(product).home = graph.home(y);
    graph.expand(product);
    let params = BackendParams {
        precision: Precision::Fast,
        ..BackendParams::new(1)
    };
    let mut backend = device.backend(&params).expect("the backend starts");
    let mut uses = Uses::default();
    uses.count(&graph, []);
    let view = GraphView {
        graph: &graph,
        nodes: graph.nodes(),
        uses: &uses,
    };
    counters.reset();
    let mut plan = backend.prepare(&view, &memory, None).expect("the product has a kernel");
    let cancel = AtomicBool::new(false);
    backend
        .run(&mut *plan, &graph, &mut memory, &cancel)
        .expect("the process runs");
    backend.synchronize().expect("nothing fails");
    let mut all: serde_json::Value = serde_json::from_str(&counters.json()).expect("the counters are JSON");
    let kernels = all["kernels"].as_object_mut().expect("kernels were launched");
    let name = kernels.keys().find(|name| name.starts_with("mul_vec")).cloned();
    let found = kernels.remove(&name.expect("a mul_vec kernel was launched"));
    (found.expect("the kernel name was found before"), n_bytes)
}

/// Decoding is limited by reading the weights. Each weight must be read once, in whole sectors, with only the
/// activations as additional traffic.
#[test]
fn decode_matmul_only_reads_weights() {
    let name = "cuda::decode_matmul_only_reads_weights";
    with_device(name, || {
        use GgmlType::*;
        let Some(counters) = Counters::find() else {
            eprintln!("skipped: only the emulated driver counts accesses");
            return;
        };
        let (k, m) = (6144, 67);
        // Chunks of TQ1_0 and TQ2_0 end within a sector, and types with grids also read the grid.
        for ty in [
            Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4, Q1_0, Q2_0,
        ] {
            let (counts, n_bytes) = counted_product(counters, ty, k, m);
            let number = |value: &serde_json::Value| value.as_u64().expect("a counter") as usize;
            let moved = 32 * number(&counts["copies"]["sectors"]);
            assert!(
                (n_bytes..=n_bytes + n_bytes / 50).contains(&moved),
                "{ty}: {moved} bytes moved for {n_bytes} bytes of weights: {counts}"
            );
            // Two 8-bit parts per element, and a scale and two sums per 32 elements.
            let columns = 2 * k + 3 * k / 8;
            let (read, written) = (number(&counts["footprint"][0]), number(&counts["footprint"][1]));
            assert!(
                (n_bytes..=n_bytes + columns).contains(&read) && written == 4 * m,
                "{ty}: {read} bytes read and {written} written: {counts}"
            );
            // Shared-memory accesses of a warp must not have bank conflicts.
            let shared = &counts["instructions"]["shared"];
            let (more, ways) = (number(&shared["moved"]), number(&shared["waves"]));
            eprintln!("{ty}: {more} conflict ways in addition to {ways}");
            assert!(
                20 * more < more + ways || [NVFP4, Q1_0, Q2_0].contains(&ty),
                "{ty}: {more} conflict ways in addition to {ways}: {counts}"
            );
            // A warp computes two rows and loads the activations once, with coalesced accesses.
            let from_caches = 32 * number(&counts["loads"]["sectors"]) - moved;
            assert!(
                from_caches <= m.div_ceil(2) * columns,
                "{ty}: {from_caches} bytes of activations moved by {} warps: {counts}",
                m.div_ceil(2)
            );
        }
    });
}

//! Multiple GPUs, and GPUs that compute with weights in host memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::backend::cuda::Counters;
use engine::backend::{BackendParams, Device, MemoryMap, Usage, registries};
use engine::conformance::CheckParams;
use engine::graph::{BufferSlice, Graph, Name};
use engine::model::{DeviceLayers, LoadParams, Model, ModelError, SplitMode};
use engine::sched::{SchedParams, Scheduler};
use kernels::{GgmlType, Precision};
use tests::emulator::{with_device, with_settings};
use tests::{context, decode_last, exact, fixture, layouts, nmse, place_on, seeded_file, tokens};

use crate::cuda::card;

/// Returns the first two GPUs, or `None` with a message.
fn two_cards() -> Option<[Arc<dyn Device>; 2]> {
    let family = registries()
        .iter()
        .find(|r| r.name() == "cuda")
        .expect("CUDA support is compiled in");
    let cards: Vec<_> = family.devices().into_iter().take(2).collect();
    let is_emulated = Counters::find().is_some();
    match cards.try_into() {
        Ok(cards) => Some(cards),
        Err(found) => {
            assert!(!is_emulated, "expected two emulated GPUs, found {}", found.len());
            eprintln!("skipped: fewer than two GPUs");
            None
        }
    }
}

/// Returns the logits of a prompt and of the tokens decoded after it.
fn logits(name: &str, params: &CheckParams) -> Vec<Vec<f32>> {
    let model = fixture(name)
        .model(archs::ALL, params)
        .expect("the fixture's model loads");
    let mut ctx = context(&model, |p| p.n_ubatch = 8);
    let tokens = tokens(name);
    let mut all = vec![decode_last(&mut ctx, &tokens[..11], 0, 0)];
    all.extend((11..16).map(|pos| decode_last(&mut ctx, &tokens[pos..=pos], pos, 0)));
    all
}

fn on_two_cards(split_mode: SplitMode, shares: &[f32]) {
    let Some(cards) = two_cards() else {
        return;
    };
    let mut params = exact();
    params.load.placement.devices = cards.to_vec();
    params.load.placement.n_layers = DeviceLayers::Count(usize::MAX);
    params.load.placement.split_mode = split_mode;
    params.load.placement.tensor_split = shares.to_vec();
    for name in ["llama-moe", "qwen3-dense", "falcon-h1-dense"] {
        for (want, got) in logits(name, &exact()).iter().zip(&logits(name, &params)) {
            let error = nmse(want, got);
            assert!(error < 1e-6, "{name}, {split_mode:?}, {shares:?}: NMSE {error:.3e}");
        }
    }
}

#[test]
fn layers_on_two_gpus_match_unsplit_logits() {
    let name = "cuda_multi_gpu::layers_on_two_gpus_match_unsplit_logits";
    with_settings(name, "devices=2", || on_two_cards(SplitMode::Layer, &[1.0, 1.0]));
}

#[test]
fn layers_on_two_gpus_without_peer_access_match_unsplit_logits() {
    let name = "cuda_multi_gpu::layers_on_two_gpus_without_peer_access_match_unsplit_logits";
    with_settings(name, "devices=2,peer=0", || on_two_cards(SplitMode::Layer, &[1.0, 1.0]));
}

#[test]
fn rows_on_two_gpus_match_unsplit_logits() {
    let name = "cuda_multi_gpu::rows_on_two_gpus_match_unsplit_logits";
    with_settings(name, "devices=2", || on_two_cards(SplitMode::Row, &[3.0, 1.0]));
}

fn bytes_of(values: &[[u8; 4]]) -> Vec<u8> {
    values.as_flattened().to_vec()
}

/// A GPU reports an invalid row index. The error must reach the reader even if another GPU processed the
/// result.
#[test]
fn gpu_input_error_reaches_reader_of_other_gpu() {
    let name = "cuda_multi_gpu::gpu_input_error_reaches_reader_of_other_gpu";
    with_settings(name, "devices=2", || {
        let Some([first, second]) = two_cards() else {
            return;
        };
        let product = |row: i32| {
            let cpu = engine::backend::device("cpu").expect("the CPU device always exists");
            let devices = [first.clone(), second.clone(), cpu];
            let backends = devices.map(|d| d.backend(&BackendParams::new(1)).expect("the backend starts"));
            let mut sched = Scheduler::new(backends.into(), MemoryMap::default(), SchedParams::default())
                .expect("the scheduler starts");
            let mut graph = Graph::new();
            let mut weight = |device: &Arc<dyn Device>| {
                let mut buffer = device
                    .buffer_type()
                    .allocate(4 * 8 * 4)
                    .expect("the GPU has enough memory");
                buffer
                    .write(0, &bytes_of(&[0.5f32.to_le_bytes(); 32]))
                    .expect("the buffer is large enough");
                let home = BufferSlice {
                    buffer: sched.register_buffer(buffer, Usage::Weights),
                    offset: 0,
                };
                graph.external(GgmlType::F32, [8, 4, 1, 1], Name::default(), home, Default::default())
            };
            let (table, w) = (weight(&first), weight(&second));
            let ids = graph.input(GgmlType::I32, [2, 1, 1, 1], "ids");
            let rows = graph.get_rows(table, ids).expect("the shapes match");
            let product = graph.mul_mat(w, rows).expect("the shapes match");
            graph.tensor_mut(product).flags.output = true;
            graph.expand(product);
            sched.alloc_graph(&mut graph).expect("the GPU has enough memory");
            let numbers = bytes_of(&[0, row].map(i32::to_le_bytes));
            sched
                .set_input(&graph, ids, &numbers)
                .expect("the input matches its tensor");
            sched.compute(&graph).expect("the graph is queued");
            let mut out = vec![0; graph.tensor(product).nbytes()];
            sched.read_tensor(&graph, product, 0, &mut out).map(|()| out)
        };
        let expected = bytes_of(&[2.0f32.to_le_bytes(); 8]);
        assert_eq!(product(3).expect("row 3 exists"), expected);
        let error = product(4).expect_err("row 4 does not exist").to_string();
        assert!(
            error.contains("index 4 is out of range for a table of 4 rows"),
            "{error}"
        );
    });
}

/// Returns the number of matmul kernels launched since the counters were reset.
fn n_products(counters: Counters) -> u64 {
    let all: serde_json::Value = serde_json::from_str(&counters.json()).expect("the counters are JSON");
    let kernels = all["kernels"].as_object().expect("a list");
    let products = kernels.iter().filter(|(name, _)| name.starts_with("mul_"));
    products
        .map(|(_, kernel)| kernel["launches"].as_u64().expect("a counter"))
        .sum()
}

/// Matmuls of long prompts run on the GPU even if their weights are in host memory; matmuls of single tokens
/// do not.
#[test]
fn large_matmuls_are_offloaded_to_gpu() {
    let name = "cuda_multi_gpu::large_matmuls_are_offloaded_to_gpu";
    with_device(name, || {
        let file = seeded_file("llama-moe", Some(GgmlType::Q4_0));
        let logits = |precision: Precision, change: &dyn Fn(&mut LoadParams)| {
            let mut load = exact().load;
            place_on(&mut load, &card(), 0);
            change(&mut load);
            let mut ctx = context(&layouts::model(&file, &load), |p| p.precision = precision);
            let tokens: Vec<_> = (0..65u32).map(|i| 3 + i * i % 50).collect();
            let count = || Counters::find().map(n_products);
            Counters::find().inspect(|counters| counters.reset());
            let prompt = decode_last(&mut ctx, &tokens[..64], 0, 0);
            let of_prompt = count();
            let token = decode_last(&mut ctx, &tokens[64..], 64, 0);
            ([prompt, token], of_prompt.zip(count()))
        };
        let (want, none) = logits(Precision::Exact, &|load| load.placement.offload_ops = false);
        let (got, some) = logits(Precision::Exact, &|_| {});
        for (want, got) in want.iter().zip(&got) {
            let error = nmse(want, got);
            assert!(error < 1e-6, "NMSE {error:.3e}");
        }
        if let (Some(none), Some((of_prompt, all))) = (none, some) {
            assert_eq!(none, (0, 0), "nothing runs on the GPU");
            assert!(
                of_prompt > 8 && all == of_prompt,
                "{of_prompt} matmuls of the prompt, {all} in total"
            );
        }
    });
}

/// Cancelling a load at any point frees all GPU memory.
#[test]
fn load_can_be_cancelled_at_any_point() {
    with_device("cuda_multi_gpu::load_can_be_cancelled_at_any_point", || {
        let dir = tempfile::tempdir().expect("the temporary directory is writable");
        let first = fixture("llama-dense")
            .write_files(dir.path(), 1, 2)
            .expect("the temporary directory is writable");
        let device = engine::backend::device(&card()).expect("the GPU was found before");
        let load = |limit: usize| {
            let asked = Arc::new(AtomicUsize::new(0));
            let count = asked.clone();
            let mut load = exact().load;
            place_on(&mut load, &card(), usize::MAX);
            load.mmap = false;
            load.progress = Some(Arc::new(move |_| count.fetch_add(1, Ordering::Relaxed) < limit));
            let model = Model::load(&first, archs::ALL, &load);
            (model, asked.load(Ordering::Relaxed))
        };
        let before = device.memory();
        let (model, n_asked) = load(usize::MAX);
        assert!(model.is_ok() && n_asked > 8, "{n_asked}");
        assert!(device.memory().0 < before.0, "the model uses GPU memory");
        drop(model);
        for limit in 0..n_asked {
            let (model, _) = load(limit);
            let is_cancelled = matches!(model, Err(ModelError::Cancelled { .. }));
            assert!(is_cancelled, "cancelled at {limit} of {n_asked}");
            assert_eq!(device.memory(), before, "cancelled at {limit} of {n_asked}");
        }
    });
}

//! Memory predicted by a plan equals the memory that a context allocates.

use std::path::Path;
use std::sync::Arc;

use engine::backend::Device;
use engine::backend::reference::ReferenceDevice;
use engine::context::{Context, ContextParams};
use engine::gguf::GgufFile;
use engine::model::{DeviceLayers, LoadParams, LoadPlan, Model, plan};
use kernels::GgmlType;
use tests::emulator::with_device;
use tests::{CORE, exact, in_one_way_each, seeded_file};

/// Context and placement parameters that affect memory.
struct Way {
    n_seq_max: usize,
    n_ubatch: usize,
    n_outputs_max: usize,
    types: (GgmlType, GgmlType),
    /// Layers on the reference device, in halves of all layers.
    halves: usize,
    offload_kv: bool,
}

const WAYS: &[Way] = &[
    Way {
        n_seq_max: 1,
        n_ubatch: 512,
        n_outputs_max: 0,
        types: (GgmlType::F16, GgmlType::F16),
        halves: 0,
        offload_kv: true,
    },
    Way {
        n_seq_max: 4,
        n_ubatch: 64,
        n_outputs_max: 0,
        types: (GgmlType::F32, GgmlType::BF16),
        halves: 1,
        offload_kv: true,
    },
    Way {
        n_seq_max: 3,
        n_ubatch: 7,
        n_outputs_max: 0,
        types: (GgmlType::F16, GgmlType::F32),
        halves: 1,
        offload_kv: false,
    },
    Way {
        n_seq_max: 2,
        n_ubatch: 128,
        n_outputs_max: 40,
        types: (GgmlType::F32, GgmlType::F32),
        halves: 2,
        offload_kv: true,
    },
];

const N_CTX: usize = 600;

fn context_params(way: &Way) -> ContextParams {
    ContextParams {
        n_ctx: N_CTX,
        n_batch: 300,
        n_ubatch: way.n_ubatch,
        n_seq_max: way.n_seq_max,
        n_outputs_max: way.n_outputs_max,
        n_threads: 1,
        n_threads_batch: 1,
        type_k: way.types.0,
        type_v: way.types.1,
        ..exact().context
    }
}

fn sum(bytes: &[(String, usize)]) -> usize {
    bytes.iter().map(|(_, bytes)| bytes).sum()
}

fn on(bytes: &[(String, usize)], device: &Arc<dyn Device>) -> usize {
    let its = bytes.iter().filter(|(name, _)| name == device.buffer_type().name());
    its.map(|(_, bytes)| bytes).sum()
}

/// Returns the plan of a fixture on a device, its context, and the device memory in use.
fn planned(name: &str, way: &Way, device: &Arc<dyn Device>) -> (LoadPlan, Context, usize) {
    let bytes = seeded_file(name, None);
    let path = Path::new(name);
    let file = GgufFile::from_bytes(path, &bytes).unwrap();
    let params = context_params(way);
    let n_layer = engine::model::plan(file.header(), path, archs::ALL, &LoadParams::default())
        .unwrap()
        .base
        .n_layer();
    let mut load = LoadParams::default();
    load.placement.devices = vec![device.clone()];
    load.placement.n_layers = DeviceLayers::Count((n_layer + 1) * way.halves / 2);
    load.placement.offload_kv = way.offload_kv;
    load.placement.memory = params.memory(N_CTX);
    let plan = plan(file.header(), path, archs::ALL, &load).unwrap();
    let model = Arc::new(Model::from_file(file, archs::ALL, &load).unwrap());
    let before = device.memory().0;
    let context = Context::new(model, &params).unwrap_or_else(|e| panic!("{name}: {e}"));
    let taken = before - device.memory().0;
    (plan, context, taken)
}

#[track_caller]
fn assert_right(name: &str, way: &Way) {
    let device: Arc<dyn Device> = Arc::new(ReferenceDevice::with_memory(1 << 30));
    let (plan, context, taken) = planned(name, way, &device);
    let sizes = context.sizes();
    let what = format!(
        "{name} with {} sequences and ubatch size {}",
        way.n_seq_max, way.n_ubatch
    );
    assert_eq!(sum(&plan.compute_bytes), sizes.compute, "compute buffers of {what}");
    // Alignment adds a few bytes between the caches of two layers.
    for (planned, found) in [(&plan.kv_bytes, sizes.kv), (&plan.state_bytes, sizes.states)] {
        assert!(
            (sum(planned)..sum(planned) + 64 * 1024).contains(&found),
            "{planned:?}, {found} of {what}"
        );
    }
    let parts = [&plan.kv_bytes, &plan.state_bytes, &plan.compute_bytes];
    let on_device: usize = parts.into_iter().map(|bytes| on(bytes, &device)).sum();
    assert!(
        (on_device..on_device + 64 * 1024).contains(&taken),
        "{on_device} planned, {taken} taken: {what}"
    );
}

#[test]
fn plan_matches_context_memory() {
    for (name, ways) in in_one_way_each(WAYS) {
        ways.into_iter().for_each(|way| assert_right(&name, way));
    }
    let quantized = Way {
        types: (GgmlType::Q8_0, GgmlType::Q4_0),
        ..WAYS_OF_TWO
    };
    for name in ["llama-dense", "qwen3-dense", "gemma3-dense"] {
        assert_right(name, &quantized);
    }
}

#[test]
fn gpu_plan_matches_context_memory() {
    with_device("plan::gpu_plan_matches_context_memory", || {
        let card = engine::backend::device("cuda0").expect("the GPU exists");
        for name in ["llama-dense", "llama-moe", "falcon-h1-dense"] {
            let (plan, context, _) = planned(name, &WAYS[1], &card);
            assert!(on(&plan.compute_bytes, &card) > 0, "{name}");
            assert_eq!(sum(&plan.compute_bytes), context.sizes().compute, "{name}");
        }
    });
}

const WAYS_OF_TWO: Way = Way {
    n_seq_max: 2,
    n_ubatch: 33,
    n_outputs_max: 0,
    types: (GgmlType::F16, GgmlType::F16),
    halves: 1,
    offload_kv: true,
};

/// With exactly the memory needed for some layers and their buffers, automatic placement uses it all; with
/// one byte less, it places one layer less.
#[test]
fn automatic_placement_fills_memory() {
    for name in CORE {
        let bytes = seeded_file(name, None);
        let path = Path::new(name);
        let file = GgufFile::from_bytes(path, &bytes).unwrap();
        let way = &WAYS[1];
        let planned = |memory: usize, n_layers: DeviceLayers| {
            let mut load = LoadParams::default();
            load.placement.devices = vec![Arc::new(ReferenceDevice::with_memory(memory)) as Arc<dyn Device>];
            load.placement.n_layers = n_layers;
            load.placement.margin = 0;
            load.placement.memory = context_params(way).memory(N_CTX);
            plan(file.header(), path, archs::ALL, &load).unwrap()
        };
        let all = planned(1 << 30, DeviceLayers::Count(usize::MAX));
        let held = [&all.summary.bytes, &all.kv_bytes, &all.state_bytes, &all.compute_bytes];
        let reference: Arc<dyn Device> = Arc::new(ReferenceDevice::with_memory(0));
        let needed: usize = held.into_iter().map(|bytes| on(bytes, &reference)).sum();
        assert!(on(&all.compute_bytes, &reference) > 0);
        let n_placed = |memory| planned(memory, DeviceLayers::Auto).summary.n_offloaded;
        assert_eq!(n_placed(needed), all.summary.n_layers, "{name}");
        assert!(n_placed(needed - 1) < all.summary.n_layers, "{name}");
    }
}

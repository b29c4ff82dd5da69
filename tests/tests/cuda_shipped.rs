//! The archive of precompiled kernels, for machines without NVRTC. Models of common shapes and types need exactly
//! these kernels, and run with them alone. `.ci/kernels` builds the archive.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::backend::Device;
use engine::backend::cuda::{
    Gpu, PlanningDevice, Specialization, compiler_error, loaded, n_shipped, pack, use_archive,
};
use engine::context::{Batch, Context, ContextParams, SeqSet};
use engine::gguf::GgufFile;
use engine::model::{DeviceLayers, LoadParams, Model};
use engine::synth::{Mix, ModelShape, Synth, SynthParams};
use kernels::Precision;
use rayon::prelude::*;
use tests::emulator::{with_archive, with_device};
use tests::{decode_last, exact, layouts, nmse, seeded_file};

use crate::cuda::{card, params};
use crate::cuda_kernels::local_memory;

/// A model in the shape of a published one.
#[derive(Clone, Copy, Debug)]
struct Sample {
    arch: &'static str,
    shape: &'static str,
    mix: &'static str,
    /// Sizes that differ from the shape.
    sizes: &'static [(&'static str, f64)],
}

const fn sample(arch: &'static str, shape: &'static str, sizes: &'static [(&'static str, f64)]) -> Sample {
    Sample {
        arch,
        shape,
        mix: "q4_k_m",
        sizes,
    }
}

/// Families whose models have kernels in the archive, in shapes that cover the published head sizes and numbers
/// of query heads per KV head.
const FAMILIES: [Sample; 15] = [
    sample("llama", "135m", &[]),
    sample("llama", "1b", &[]),
    sample("llama", "3b", &[]),
    sample("llama", "8b", &[]),
    sample("llama", "8b", &[("n_head_kv", 32.0)]),
    sample("llama", "8b", &[("n_head", 64.0), ("n_embd", 8192.0)]),
    sample("qwen2", "0.5b", &[]),
    sample(
        "qwen2",
        "3b",
        &[("n_head", 16.0), ("n_head_kv", 2.0), ("n_embd", 2048.0)],
    ),
    sample(
        "qwen2",
        "8b",
        &[("n_head", 28.0), ("n_head_kv", 4.0), ("n_embd", 3584.0)],
    ),
    sample("qwen3", "1b", &[("n_head", 16.0), ("head_dim", 128.0)]),
    sample("qwen3", "8b", &[]),
    sample("gemma3", "270m", &[]),
    sample(
        "gemma3",
        "3b",
        &[("n_head", 8.0), ("n_head_kv", 4.0), ("head_dim", 256.0)],
    ),
    sample("llama", "8b", &[("n_expert", 8.0), ("n_expert_used", 2.0)]),
    sample(
        "qwen3moe",
        "1b",
        &[("n_expert", 128.0), ("n_expert_used", 8.0), ("n_ff", 768.0)],
    ),
];

/// Types of the matrices.
const MIXES: [&str; 7] = ["q4_k_m", "q5_k_m", "q6_K", "q8_0", "q4_0", "f16", "bf16"];

/// GPUs with few and many multiprocessors, and with little and much shared memory: an RTX 3060, a 4090, and an H100.
/// The H100 is listed with and without kernels for compute capability 9.0.
const GPUS: [Gpu; 4] = [
    Gpu {
        multiprocessors: 28,
        ..Gpu::RTX_4090
    },
    Gpu::RTX_4090,
    Gpu::H100,
    Gpu::HOPPER,
];

/// Numbers of tokens to decode at a time: all small batches, and prompts for each size of a tile.
const BATCHES: [usize; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 17, 40, 100, 512, 2048];

/// Length of the context after which the batches are decoded again. Several blocks then share a token.
const LONG: usize = 8192;

/// Layers of a model. The mixes use other types for the first, last, and some inner layers.
const N_LAYER: f64 = 8.0;

impl Sample {
    fn with(self, mix: &'static str) -> Sample {
        Sample { mix, ..self }
    }

    fn synth(&self, n_layer: f64, n_vocab: f64) -> Synth {
        let arch = archs::find(self.arch).expect("the architecture is declared").arch;
        let counts = [("n_layer", n_layer), ("n_vocab", n_vocab)];
        let settings = self.sizes.iter().chain(&counts);
        let params = SynthParams {
            shape: *ModelShape::find(self.shape).expect("the shape is known"),
            settings: settings.map(|&(name, size)| (name.to_owned(), size)).collect(),
            mix: Mix::find(self.mix).expect("the mix is known"),
            output: None,
            seed: 1,
        };
        Synth::new(arch, archs::ALL, &params).unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    /// Returns the kernels that batches of the model need on a GPU.
    fn kernels(&self, file: &Path, gpu: Gpu) -> Vec<Specialization> {
        let device = Arc::new(PlanningDevice::new(gpu));
        let file = GgufFile::open(file).expect("the file was written before");
        let mut ctx = context_on(device.clone(), file, LONG + 4096);
        let mut pos = 0;
        for start in [0, LONG] {
            while pos < start {
                let n = (start - pos).min(2048);
                decode(&mut ctx, n, &mut pos);
            }
            BATCHES.into_iter().for_each(|n| decode(&mut ctx, n, &mut pos));
        }
        for n_seqs in [2, 4, 8, 16, 32] {
            let mut batch = Batch::new();
            (1..=n_seqs).for_each(|seq| batch.push(5, 0, SeqSet::one(seq), true));
            ctx.decode(&batch).unwrap_or_else(|error| panic!("{self:?}: {error}"));
            (1..=n_seqs).for_each(|seq| ctx.seq_rm(seq, ..).expect("the sequence can be removed"));
        }
        device.kernels()
    }
}

/// Decodes the next `n` tokens, with the logits of the last one.
fn decode(ctx: &mut Context, n: usize, pos: &mut usize) {
    let tokens: Vec<u32> = (0..n as u32).map(|i| 3 + i * i % 250).collect();
    decode_last(ctx, &tokens, *pos, 0);
    *pos += n;
}

fn context_on(device: Arc<dyn Device>, file: GgufFile, n_ctx: usize) -> Context {
    let mut load = LoadParams::default();
    load.placement.devices = vec![device];
    load.placement.n_layers = DeviceLayers::Count(usize::MAX);
    let model = Model::from_file(file, archs::ALL, &load).expect("the model loads");
    let params = ContextParams {
        n_ctx,
        n_batch: 2048,
        n_ubatch: 2048,
        n_seq_max: 33,
        n_threads: 2,
        n_threads_batch: 2,
        precision: Precision::default(),
        ..ContextParams::default()
    };
    Context::new(model.into(), &params).expect("the device has enough memory")
}

/// Returns the kernels of samples on every kind of GPU, by description.
fn kernels_of(samples: &[Sample]) -> BTreeMap<String, Specialization> {
    let of_sample = |sample: &Sample| {
        let directory = tempfile::tempdir().expect("the temporary directory is writable");
        let path = directory.path().join("sample.gguf");
        let synth = sample.synth(N_LAYER, 32_000.0);
        synth.write_zeros(&path).expect("the temporary directory is writable");
        GPUS.map(|gpu| sample.kernels(&path, gpu)).concat()
    };
    let all = samples.par_iter().flat_map_iter(of_sample);
    all.map(|kernel| (kernel.describe(), kernel)).collect()
}

/// Returns every kernel that belongs in the archive.
fn all_kernels() -> Vec<Specialization> {
    let samples = FAMILIES.iter().flat_map(|family| MIXES.map(|mix| family.with(mix)));
    let samples: Vec<Sample> = samples.collect();
    kernels_of(&samples).into_values().collect()
}

/// Compiles the kernels of the archive. With `LLAMA_UPDATE=1`, writes the archive.
#[test]
#[ignore = "compiles the kernels of all common shapes and types"]
fn archive_kernels_compile() {
    with_device("cuda_shipped::archive_kernels_compile", || {
        let kernels = all_kernels();
        eprintln!("{} kernels", kernels.len());
        let archive = pack(&kernels).expect("the kernels compile");
        if std::env::var_os("LLAMA_UPDATE").is_some() {
            let path = tests::root().join("kernels/cuda/shipped.lzma");
            std::fs::write(path, &archive).expect("the archive is writable");
        }
        assert!(use_archive(&archive), "no archive was in use");
        assert_eq!(n_shipped(), kernels.len());
        // `ptxas` accepts the stripped PTX.
        let faults = kernels.par_iter().filter_map(|kernel| {
            assert!(kernel.is_shipped(), "{} was packed", kernel.describe());
            let ptx = kernel.shipped_ptx().expect("the kernel compiled before");
            let local = local_memory(&ptx, kernel.shipped_capability());
            (kernel.is_hot() && !local.is_empty()).then(|| format!("{}: {local}", kernel.describe()))
        });
        let faults: Vec<String> = faults.collect();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    });
}

/// Looks up every kernel that the common shapes and types need in the archive of this binary.
#[test]
#[ignore = "needs the archive, which `.ci/kernels` builds"]
fn embedded_archive_has_every_kernel() {
    assert!(n_shipped() > 0, "this binary has no archive; `.ci/kernels` builds it");
    let kernels = all_kernels();
    let missing: Vec<String> = (kernels.iter())
        .filter(|kernel| !kernel.is_shipped())
        .map(Specialization::describe)
        .collect();
    assert!(
        missing.is_empty(),
        "{} of {} kernels are missing or outdated: {missing:?}",
        missing.len(),
        kernels.len()
    );
}

/// The shapes require kernels that only large models use.
#[test]
fn planned_kernels_include_those_of_large_models() {
    let names = |family: usize| -> Vec<String> { kernels_of(&FAMILIES[family..=family]).into_keys().collect() };
    let has = |names: &[String], kernel: &str, marks: &[&str]| {
        let found = |name: &String| name.starts_with(kernel) && marks.iter().all(|mark| name.contains(mark));
        assert!(names.iter().any(found), "{kernel} with {marks:?}: {names:?}");
    };
    let dense = names(1);
    for (kernel, columns) in [
        ("mul_vec_int", "IDS=0"),
        ("mul_few_int", "COLS=2"),
        ("mul_few_int", "COLS=4"),
        ("mul_few_int", "COLS=8"),
    ] {
        has(&dense, kernel, &["TYPE=q4_K", columns, "GLU=silu", "ROUNDS=1"]);
        has(&dense, kernel, &["TYPE=q6_K_x8", columns]);
    }
    for tile in ["COLUMNS=32", "COLUMNS=64", "COLUMNS=128", "COLUMNS=256"] {
        has(&dense, "mul_mat_tensor", &["TYPE=q4_K", tile, "IDS=0"]);
    }
    for tile in [" COLUMNS=64", " COLUMNS=128"] {
        has(&dense, "mul_mat_halves", &["TYPE=q4_K", tile, "IDS=0"]);
    }
    for tile in [" COLUMNS=128", " COLUMNS=256"] {
        has(&dense, "mul_mat_wgmma", &["TYPE=q4_K", tile, "IDS=0"]);
    }
    has(&dense, "wgmma_probe", &[]);
    has(&dense, "attention", &[]);
    let experts = names(13);
    for tile in ["COLUMNS=32", "COLUMNS=128", "COLUMNS=256"] {
        has(&experts, "mul_mat_tensor", &["TYPE=q4_K", tile, "IDS=1"]);
    }
    has(&experts, "mul_mat_halves", &["TYPE=q4_K", " COLUMNS=128", "IDS=1"]);
    has(&experts, "mul_mat_wgmma", &["TYPE=q4_K", "IDS=1"]);
    has(&experts, "mul_vec_int", &["TYPE=q4_K", "IDS=1"]);
}

/// Sizes of a model that the emulated driver can run. The wide feed-forward network selects kernels of large
/// models.
const RUNNABLE: Sample = Sample {
    arch: "qwen3",
    shape: "tiny",
    mix: "q4_k_m",
    sizes: &[("head_dim", 128.0), ("n_ff", 6144.0)],
};

/// Batches that the emulated driver runs.
const RUNS: [usize; 4] = [40, 1, 2, 1];

/// Returns the logits after each batch.
fn run(device: Arc<dyn Device>) -> Vec<Vec<f32>> {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let path = directory.path().join("model.gguf");
    let synth = RUNNABLE.synth(2.0, 320.0);
    synth.write(&path).expect("the temporary directory is writable");
    let file = GgufFile::open(&path).expect("the file was written before");
    let mut ctx = context_on(device, file, 64);
    let mut pos = 0;
    let logits = RUNS.map(|n| {
        let tokens: Vec<u32> = (0..n as u32).map(|i| 3 + i * i % 250).collect();
        let logits = decode_last(&mut ctx, &tokens, pos, 0);
        pos += n;
        logits
    });
    logits.into()
}

fn gpu() -> Arc<dyn Device> {
    engine::backend::device(&card()).expect("the GPU exists")
}

/// The kernels that a GPU loads are those that the same batches need according to the plans. Plans also contain the
/// search for the best logits, which only samplers use.
#[test]
fn planned_kernels_are_those_that_a_gpu_loads() {
    with_device("cuda_shipped::planned_kernels_are_those_that_a_gpu_loads", || {
        run(gpu());
        let planning = Arc::new(PlanningDevice::new(Gpu::H100));
        run(planning.clone());
        let names = |kernels: Vec<Specialization>| -> Vec<String> {
            let mut names: Vec<String> = kernels.iter().map(Specialization::describe).collect();
            names.sort();
            names
        };
        let is_search = |name: &String| name.starts_with("best_of_");
        let (search, planned): (Vec<_>, Vec<_>) = names(planning.kernels()).into_iter().partition(is_search);
        let loaded = names(loaded());
        assert_eq!(search.len(), 2, "{search:?}");
        assert!(
            loaded
                .iter()
                .any(|name| name.contains("ROUNDS=1") && name.contains("GLU"))
        );
        assert_eq!(planned, loaded);
    });
}

/// Returns the path of the logits that belong to an archive.
fn logits_of(archive: &Path) -> PathBuf {
    archive.with_extension("logits")
}

fn write_archive(path: &PathBuf) {
    let logits: Vec<u8> = (run(gpu()).iter().flatten()).flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(logits_of(path), logits).expect("the logits are writable");
    let archive = pack(&loaded()).expect("the kernels compile");
    std::fs::write(path, archive).expect("the archive is writable");
}

/// Without NVRTC, kernels come from the archive, and compute what the kernels of NVRTC compute. A missing kernel
/// is an error that names it.
#[test]
fn models_run_without_nvrtc() {
    with_archive("cuda_shipped::models_run_without_nvrtc", write_archive, |archive| {
        assert!(compiler_error().is_some(), "NVRTC must not be available");
        let read = |path: &Path| std::fs::read(path).expect("the file was written before");
        assert!(use_archive(&read(archive)), "no archive was in use");
        let want = read(&logits_of(archive));
        let (want, _) = want.as_chunks::<4>();
        let want: Vec<f32> = want.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let got = run(gpu()).concat();
        let error = nmse(&want, &got);
        assert!(got.len() == want.len() && error < 1e-9, "NMSE {error:.3e}");
        let load = params(&card(), usize::MAX).load;
        let model = layouts::model(&seeded_file("mamba2-dense", None), &load);
        let Err(error) = Context::new(model, &exact().context) else {
            panic!("expected an error: the model needs kernels that are not shipped");
        };
        let error = format!("{error:?}");
        assert!(error.contains(".cu") && error.contains("libnvrtc"), "{error}");
    });
}

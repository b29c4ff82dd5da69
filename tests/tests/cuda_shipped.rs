//! The PTX archive in the binary: the required kernels are included, match the sources, and suffice to run
//! models.
//!
//! `LLAMA_UPDATE=1 cargo test --release -p llama-tests --test all cuda_shipped -- --include-ignored` rebuilds
//! the archive.

use std::collections::BTreeMap;

use engine::backend::cuda::{Gpu, Specialization, compiler_error, loaded, pack, shipped, specializations};
use engine::context::{Context, ContextParams};
use engine::gguf::GgufFile;
use engine::graph::Graph;
use engine::model::{LoadParams, Model};
use engine::synth::{Mix, ModelShape, Synth, SynthParams};
use kernels::{GgmlType, Precision};
use rayon::prelude::*;
use tests::emulator::{with_device, without_compiler};
use tests::{decode_last, exact, layouts, nmse, place_on, seeded_file};

use crate::cuda::{card, params};
use crate::cuda_kernels::local_memory;

/// A small model with the kernel specializations of a published model.
#[derive(Clone, Copy, Debug)]
struct Sample {
    arch: &'static str,
    mix: &'static str,
    n_embd: usize,
    head_dim: usize,
    /// Query heads per KV head.
    group: usize,
}

const fn sample(arch: &'static str, mix: &'static str, n_embd: usize, head_dim: usize, group: usize) -> Sample {
    Sample {
        arch,
        mix,
        n_embd,
        head_dim,
        group,
    }
}

/// Common families, types and head sizes. Rows of 2048 weights start at multiples of 16 bytes in all types,
/// which is a kernel specialization.
const SAMPLES: [Sample; 12] = [
    sample("llama", "q4_0", 256, 64, 1),
    sample("llama", "q8_0", 256, 64, 2),
    sample("llama", "q4_k_m", 256, 64, 4),
    sample("llama", "q4_k_m", 2048, 64, 8),
    sample("llama", "q4_k_m", 256, 128, 1),
    sample("llama", "q8_0", 256, 128, 2),
    sample("llama", "q4_0", 256, 128, 4),
    sample("llama", "q4_k_m", 2048, 128, 8),
    sample("qwen2", "q4_k_m", 256, 128, 4),
    sample("qwen3", "q4_k_m", 256, 128, 2),
    sample("qwen3", "q8_0", 256, 128, 4),
    sample("gemma3", "q4_0", 256, 256, 4),
];

/// Batch sizes to decode: one kernel per rounded number of columns.
const LENGTHS: [usize; 6] = [40, 17, 8, 3, 2, 1];

/// Context length from which several blocks process one token.
const LONG: usize = 530;

impl Sample {
    fn context(&self, device: &str, n_ctx: usize) -> Context {
        let shape = ModelShape {
            name: "sample",
            of: "no model",
            n_layer: 2,
            n_embd: self.n_embd,
            n_head: self.group,
            n_head_kv: 1,
            head_dim: self.head_dim,
            n_ff: 256,
            n_vocab: 320,
            tied: false,
        };
        let params = SynthParams {
            shape,
            settings: Vec::new(),
            mix: Mix::find(self.mix).expect("the mix is known"),
            output: None,
            seed: 1,
        };
        let arch = archs::find(self.arch).expect("the architecture is declared").arch;
        let directory = tempfile::tempdir().expect("the temporary directory is writable");
        let path = directory.path().join("sample.gguf");
        let synth = Synth::new(arch, archs::ALL, &params).expect("the parameters are valid");
        synth.write(&path).expect("the temporary directory is writable");
        let mut load = LoadParams::default();
        place_on(&mut load, device, usize::MAX);
        let file = GgufFile::open(&path).expect("the file was written before");
        let model = Model::from_file(file, archs::ALL, &load).expect("the model loads");
        let params = ContextParams {
            n_ctx,
            n_threads: 2,
            n_threads_batch: 2,
            precision: Precision::default(),
            ..ContextParams::default()
        };
        Context::new(model.into(), &params).expect("the device has enough memory")
    }

    /// Returns the logits after each prompt length on the first GPU.
    fn logits(&self, lengths: &[usize]) -> Vec<Vec<f32>> {
        self.logits_on(&card(), lengths)
    }

    fn logits_on(&self, device: &str, lengths: &[usize]) -> Vec<Vec<f32>> {
        let n: usize = lengths.iter().sum();
        let mut ctx = self.context(device, n);
        let tokens: Vec<_> = (0..n as u32).map(|i| 3 + i * i % 250).collect();
        let mut pos = 0;
        let next = |&n: &usize| {
            let logits = decode_last(&mut ctx, &tokens[pos..pos + n], pos, 0);
            pos += n;
            logits
        };
        lengths.iter().map(next).collect()
    }
}

/// Matrix rows and prompt columns that select each tile size of tensor-core matmuls.
const PROMPTS: [[usize; 2]; 3] = [[14336, 512], [4096, 512], [1024, 512]];

/// Returns kernels for longer prompts and larger matrices than the samples have. These kernels are compiled
/// but not run.
fn kernels_of_prompts() -> Vec<Specialization> {
    let types = [GgmlType::Q4_0, GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::Q6_K];
    let card = engine::backend::device(&card()).expect("the GPU exists");
    // Short rows have the file's layout, long rows the GPU's.
    let placed = types.into_iter().flat_map(|ty| [(ty, 256), (ty, 2048)]);
    let of_type = |(ty, k): (GgmlType, usize)| {
        let places = card.weight_storage();
        let place = places.iter().find(|place| place.layout.accepts(ty, [k, 1, 1, 1]));
        let layout = place.expect("the GPU has a weight layout for this type").layout;
        PROMPTS.into_iter().flat_map(move |[m, n]| {
            let mut graph = Graph::new();
            let w = graph.input(ty, [k, m, 1, 1], "w");
            graph.tensor_mut(w).layout = layout;
            let x = graph.input(GgmlType::F32, [k, n, 1, 1], "x");
            let product = graph.mul_mat(w, x).expect("the shapes match");
            specializations(&graph, product, Precision::default(), Gpu::H100)
        })
    };
    placed.flat_map(of_type).collect()
}

fn archive() -> std::path::PathBuf {
    tests::root().join("kernels/cuda/shipped.deflate")
}

/// Returns the PTX of kernels by description.
fn compiled<'a>(kernels: impl IntoParallelIterator<Item = &'a Specialization>) -> BTreeMap<String, String> {
    let ptx = |kernel: &Specialization| (kernel.describe(), kernel.shipped_ptx().expect("the kernel compiles"));
    kernels.into_par_iter().map(ptx).collect()
}

#[test]
#[ignore = "runs every sample on the GPU and compiles all shipped kernels"]
fn archive_contains_current_kernels_of_samples() {
    with_device("cuda_shipped::archive_contains_current_kernels_of_samples", || {
        for sample in SAMPLES {
            sample.logits(&LENGTHS);
            if sample.n_embd == 256 {
                sample.logits(&[LONG, 1]);
            }
        }
        let mut all = loaded();
        all.extend(kernels_of_prompts());
        let found = compiled(&all);
        // `ptxas` accepts the stripped PTX.
        found.par_iter().for_each(|(_, ptx)| drop(local_memory(ptx, 80)));
        if std::env::var_os("LLAMA_UPDATE").is_some() {
            std::fs::write(archive(), pack(&found)).expect("the archive is writable");
            return;
        }
        let names: Vec<_> = found
            .keys()
            .filter(|name| !shipped().contains_key(name.as_str()))
            .collect();
        assert!(
            names.is_empty(),
            "kernels missing from the archive (LLAMA_UPDATE=1 rebuilds it): {names:?}"
        );
        assert_eq!(
            found.len(),
            shipped().len(),
            "the archive contains kernels that no sample needs"
        );
        for (name, ptx) in &found {
            assert!(
                shipped()[name.as_str()] == ptx,
                "{name} is outdated; LLAMA_UPDATE=1 rebuilds the archive"
            );
        }
    });
}

/// Checks the kernels of a token and a prompt of one model with tiled attention, which detects changed
/// sources.
#[test]
fn archive_kernels_match_sources() {
    with_device("cuda_shipped::archive_kernels_match_sources", || {
        SAMPLES[9].logits(&[40, 1]);
        let found = compiled(&loaded());
        assert!(found.len() > 8, "{} kernels", found.len());
        for (name, ptx) in &found {
            let is_same = shipped().get(name.as_str()).is_some_and(|shipped| shipped == ptx);
            assert!(
                is_same,
                "{name} is outdated; LLAMA_UPDATE=1 rebuilds the archive (cuda_shipped.rs)"
            );
        }
    });
}

/// Without NVRTC, kernels come from the archive. A missing kernel is an error that names it.
#[test]
fn models_run_without_nvrtc() {
    without_compiler("cuda_shipped::models_run_without_nvrtc", || {
        assert!(compiler_error().is_some(), "NVRTC must not be available");
        let sample = SAMPLES[9];
        let (want, got) = (sample.logits_on("cpu", &[5, 1, 17]), sample.logits(&[5, 1, 17]));
        // Matmuls with many columns round to bf16 on GPUs.
        for ((want, got), limit) in want.iter().zip(&got).zip([1e-6, 1e-6, 1e-4]) {
            let error = nmse(want, got);
            assert!(error < limit, "NMSE {error:.3e}");
        }
        let load = params(&card(), usize::MAX).load;
        let model = layouts::model(&seeded_file("mamba2-dense", None), &load);
        let Err(error) = Context::new(model, &exact().context) else {
            panic!("expected an error: the model needs kernels that are not shipped");
        };
        let error = format!("{error:?}");
        assert!(error.contains(".cu") && error.contains("libnvrtc"), "{error}");
    });
}

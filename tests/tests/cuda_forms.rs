//! Forms of kernels that drivers accept: machine code, PTX of the compiler, and PTX in the binary, on emulated drivers
//! that reject some forms.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use engine::backend::Device;
use engine::backend::cuda::{Gpu, PlanningDevice, Specialization, compiler_error, pack, specializations, use_archive};
use engine::context::{Context, ContextParams};
use engine::gguf::GgufFile;
use engine::graph::Graph;
use engine::model::{DeviceLayers, LoadParams, Model};
use engine::synth::{Mix, ModelShape, Synth, SynthParams};
use kernels::{GgmlType, Precision};
use tests::emulator::{with_device, with_settings};
use tests::{decode_last, exact, fixture, layouts, nmse, seeded_file};

use crate::cuda::{card, params};

/// Runs a test on an emulated driver with these settings. A driver without them, such as the driver of a real GPU,
/// skips the test.
fn on_driver(name: &str, settings: &str, body: impl FnOnce()) {
    with_settings(name, settings, || {
        if std::env::var("LLAMA_CUDA_EMU").is_ok_and(|own| own == settings) {
            body();
        } else {
            eprintln!("{name}: skipped without LLAMA_CUDA_EMU={settings}");
        }
    });
}

/// Compares the logits of a fixture with its recording.
fn matches_recording(name: &str) {
    let found = fixture(name).compare(archs::ALL, &params(&card(), usize::MAX), 1e-6);
    let found = found.expect("the model runs");
    assert!(found.passes(), "{name}: {found:?}");
}

/// NVRTC 12.9 writes PTX 8.8, and a driver for CUDA 12.0 accepts PTX 8.0.
#[test]
fn ptx_of_newer_compiler_runs_on_older_driver() {
    let name = "cuda_forms::ptx_of_newer_compiler_runs_on_older_driver";
    on_driver(name, "driver=12000", || matches_recording("qwen3-dense"));
}

/// No PTX version is as old as 1.0, so the device runs machine code only.
#[test]
fn machine_code_runs_without_the_compiler_of_the_driver() {
    let name = "cuda_forms::machine_code_runs_without_the_compiler_of_the_driver";
    on_driver(name, "cubin=1,ptx=10", || matches_recording("qwen3-dense"));
}

/// NVRTC 12.9 supports capability 12.1, but not 12.2.
#[test]
fn unknown_gpu_runs_machine_code_of_its_major_version() {
    let name = "cuda_forms::unknown_gpu_runs_machine_code_of_its_major_version";
    on_driver(name, "cubin=1,ptx=10,sm=122", || matches_recording("qwen3-dense"));
}

/// NVRTC 12.9 supports no capability of major version 11, so PTX for 10.3 is translated.
#[test]
fn gpu_of_unknown_major_version_runs_ptx() {
    let name = "cuda_forms::gpu_of_unknown_major_version_runs_ptx";
    on_driver(name, "cubin=1,sm=110", || matches_recording("qwen3-dense"));
}

/// Returns the logits of a small model after a prompt and a token.
fn precompiled_logits(device: Arc<dyn Device>) -> Vec<Vec<f32>> {
    let shape = ModelShape {
        name: "small",
        of: "no model",
        n_layer: 2,
        n_embd: 256,
        n_head: 2,
        n_head_kv: 1,
        head_dim: 128,
        n_ff: 256,
        n_vocab: 320,
        tied: false,
    };
    let params = SynthParams {
        shape,
        settings: Vec::new(),
        mix: Mix::find("q4_k_m").expect("the mix is known"),
        output: None,
        seed: 1,
    };
    let arch = archs::find("qwen3").expect("the architecture is declared").arch;
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let path = directory.path().join("small.gguf");
    let synth = Synth::new(arch, archs::ALL, &params).expect("the parameters are valid");
    synth.write(&path).expect("the temporary directory is writable");
    let mut load = LoadParams::default();
    load.placement.devices = vec![device];
    load.placement.n_layers = DeviceLayers::Count(usize::MAX);
    let file = GgufFile::open(&path).expect("the file was written before");
    let model = Model::from_file(file, archs::ALL, &load).expect("the model loads");
    let params = ContextParams {
        n_ctx: 8,
        n_threads: 2,
        n_threads_batch: 2,
        precision: Precision::default(),
        ..ContextParams::default()
    };
    let mut ctx = Context::new(model.into(), &params).expect("the device has enough memory");
    let prompt = decode_last(&mut ctx, &[5, 9, 33, 80, 201], 0, 0);
    let token = decode_last(&mut ctx, &[7], 5, 0);
    vec![prompt, token]
}

/// The driver supports CUDA 12.9 but rejects PTX of that version. Precompiled kernels declare PTX 7.2.
#[test]
fn kernels_in_the_binary_replace_refused_ptx() {
    let name = "cuda_forms::kernels_in_the_binary_replace_refused_ptx";
    on_driver(name, "ptx=72", || {
        let planning = Arc::new(PlanningDevice::new(Gpu::H100));
        precompiled_logits(planning.clone());
        let archive = pack(&planning.kernels()).expect("the kernels compile");
        assert!(use_archive(&archive), "no archive was in use");
        let device = |name: &str| engine::backend::device(name).expect("the device exists");
        let (want, got) = (precompiled_logits(device("cpu")), precompiled_logits(device(&card())));
        for (want, got) in want.iter().zip(&got) {
            let error = nmse(want, got);
            assert!(error < 1e-6, "NMSE {error:.3e}");
        }
    });
}

/// If no form loads, the error lists each form with its reason, which includes the log of the driver.
#[test]
fn error_lists_every_refused_form() {
    let name = "cuda_forms::error_lists_every_refused_form";
    on_driver(name, "ptx=72", || {
        let load = params(&card(), usize::MAX).load;
        let model = layouts::model(&seeded_file("mamba2-dense", None), &load);
        let Err(error) = Context::new(model, &exact().context) else {
            panic!("expected an error: the binary lacks the kernels of this model");
        };
        let error = error.to_string();
        let expected = [
            "cannot load kernel ",
            ".cu",
            "the driver refused machine code for sm_90: cuModuleLoadDataEx: CUDA_ERROR_NO_BINARY_FOR_GPU",
            "the settings of the emulated device refuse machine code; ",
            "the driver refused PTX for compute_90: cuModuleLoadDataEx: CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            "the PTX version is 8.8, and the newest supported one is 7.2; ",
            "it is not precompiled",
        ];
        let mut rest = error.as_str();
        for part in expected {
            let at = rest.find(part);
            rest = &rest[at.unwrap_or_else(|| panic!("{part:?} is missing: {error}")) + part.len()..];
        }
    });
}

/// Returns the contents of a section of a 64-bit ELF file.
fn section<'a>(elf: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let number = |at: usize, n: usize| {
        let bytes = &elf[at..at + n];
        bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | usize::from(byte))
    };
    let (table, entry, n, names) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2), number(0x3e, 2));
    let names = number(table + names * entry + 0x18, 8);
    let at = (0..n).map(|i| table + i * entry).find(|&at| {
        let text = &elf[names + number(at, 4)..];
        text.starts_with(name.as_bytes()) && text[name.len()] == 0
    })?;
    let (offset, len) = (number(at + 0x18, 8), number(at + 0x20, 8));
    Some(&elf[offset..offset + len])
}

/// Returns the machine code of NVIDIA's assembler.
fn assembled(ptx: &str, capability: i32) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let out = directory.path().join("kernel.cubin");
    let mut ptxas = Command::new("ptxas");
    ptxas.arg(format!("-arch=sm_{capability}")).arg("-o").arg(&out).arg("-");
    let mut child = ptxas.stdin(Stdio::piped()).spawn().expect("ptxas runs");
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    stdin.write_all(ptx.as_bytes()).expect("ptxas reads");
    drop(stdin);
    assert!(child.wait().expect("ptxas ends").success(), "sm_{capability}");
    std::fs::read(out).expect("ptxas wrote a file")
}

fn kernels() -> Vec<Specialization> {
    let mut graph = Graph::new();
    let w = graph.input(GgmlType::Q4_K, [256, 32, 1, 1], "w");
    let x = graph.input(GgmlType::F32, [256, 1, 1, 1], "x");
    let product = graph.mul_mat(w, x).expect("the shapes match");
    specializations(&graph, product, Precision::Fast, Gpu::H100)
}

/// NVRTC writes machine code for each supported generation, with the instructions that the assembler generates from
/// the kernel's PTX, and with the PTX itself.
#[test]
fn machine_code_is_that_of_the_assembler() {
    let name = "cuda_forms::machine_code_is_that_of_the_assembler";
    with_device(name, || {
        assert_eq!(compiler_error(), None, "NVRTC is available");
        for kernel in kernels() {
            let function = kernel.describe();
            let function = function.split(' ').next().expect("a description begins with the name");
            let code = format!(".text.{function}");
            for capability in [80, 86, 89, 90, 120] {
                let elf = kernel.machine_code(capability).expect("the kernel compiles");
                // 64 bits, little-endian, for NVIDIA's GPUs (machine 190).
                assert_eq!(&elf[..6], b"\x7fELF\x02\x01", "{function}, sm_{capability}");
                assert_eq!(elf[18], 190, "{function}, sm_{capability}");
                let own = section(&elf, &code).expect("the kernel has code");
                let ptx = kernel.ptx(capability).expect("the kernel compiles");
                let assembled = assembled(&ptx, capability);
                let theirs = section(&assembled, &code).expect("the kernel has code");
                assert!(own == theirs, "{function}, sm_{capability}: the instructions differ");
                let text = section(&elf, ".nv_debug_ptx_txt").expect("the PTX is part of the debug information");
                let target = format!(".target sm_{capability}");
                assert!(text.split(|&byte| byte == 0).any(|line| line == target.as_bytes()));
            }
        }
    });
}

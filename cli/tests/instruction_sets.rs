//! Runs the binary with the kernels of every instruction set of this CPU, and on emulated CPUs without AVX2.

use std::io::Write;
use std::process::{Command, Stdio};

use engine::gguf::logits::{Logits, nmse};
use kernels::Isa;
use serde_json::Value;

use crate::common::{Home, ended};

/// NMSE limit of conformance tests.
const EXACT: f64 = 1e-8;
/// NMSE limits of `engine/tests/ops` for activations in 16 bits, and in 8 bits or bf16.
const ROUNDED_TO_16: f64 = 1e-8;
const ROUNDED_TO_8: f64 = 1e-4;
/// Consecutive matmuls of the tiny model: four in each of two layers, and the output.
const PRODUCTS: f64 = 9.0;

fn available() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

fn tiny(home: &Home, ty: &str) -> String {
    let path = home.path(&format!("{ty}.gguf")).into_os_string().into_string().unwrap();
    let args = [
        "synth",
        "--shape",
        "tiny",
        "--type",
        ty,
        "--set",
        "n_layer=2",
        "-o",
        &path,
    ];
    ended(home.llama(&args)).succeeds();
    path
}

/// Limits the kernels of a command to an instruction set.
fn capped(home: &Home, isa: &str, args: &[&str]) -> Command {
    let mut command = home.llama(args);
    command.env("LLAMA_CPU_ISA", isa);
    command
}

/// Returns the logits of `n_tokens` tokens with further arguments of `llama logits`.
fn logits_of(home: &Home, isa: Isa, model: &str, n_tokens: usize, args: &[&str]) -> Vec<f32> {
    let out = home.path("logits").into_os_string().into_string().unwrap();
    let tokens: Vec<String> = (0..n_tokens).map(|i| (i * 37 % 256).to_string()).collect();
    let tokens = tokens.join(",");
    let all = [&["logits", model, "--tokens", &tokens, "-o", &out], args].concat();
    ended(capped(home, isa.name(), &all)).succeeds();
    Logits::read(&out).expect("logits").values().to_vec()
}

/// Returns the logits of a prompt, in one ubatch or token by token.
fn logits(home: &Home, isa: Isa, model: &str, precision: &str, n_ubatch: &str) -> Vec<f32> {
    let args = [
        "--precision",
        precision,
        "-ub",
        n_ubatch,
        "-ctk",
        "f32",
        "-ctv",
        "f32",
        "-t",
        "1",
    ];
    logits_of(home, isa, model, 40, &args)
}

fn in_use(command: Command) -> String {
    let report: Value = serde_json::from_str(ended(command).succeeds()).expect("JSON");
    report["machine"]["isa"]["in_use"].as_str().expect("a name").to_owned()
}

#[test]
fn every_instruction_set_runs_models() {
    let home = Home::new();
    for isa in available() {
        assert_eq!(in_use(capped(&home, isa.name(), &["doctor", "--json"])), isa.name());
    }
    for ty in ["q4_k_m", "q4_0", "q8_0"] {
        let model = tiny(&home, ty);
        // 40 tokens use panel or tile kernels, single tokens use group kernels.
        for n_ubatch in ["512", "1"] {
            let found = |isa, precision| logits(&home, isa, &model, precision, n_ubatch);
            let [exact, high] = ["exact", "high"].map(|precision| found(Isa::Scalar, precision));
            for isa in available() {
                let what = format!("{} {ty}, ubatch size {n_ubatch}", isa.name());
                for (precision, limit) in [
                    ("exact", EXACT),
                    ("high", PRODUCTS * ROUNDED_TO_16),
                    ("fast", PRODUCTS * ROUNDED_TO_8),
                ] {
                    let error = nmse(&exact, &found(isa, precision));
                    assert!(error <= limit, "{what}, {precision}: {error:e}");
                }
                // 16-bit kernels are bit-identical up to differences in their f32 inputs.
                let error = nmse(&high, &found(isa, "high"));
                assert!(error <= EXACT, "{what}, high on both: {error:e}");
            }
        }
    }
}

/// The number of threads determines how many tokens a unit of attention covers, also within a page of the KV
/// cache. All rows are compared: the last tokens see the same cells in units of any size.
#[test]
fn logits_of_whole_prompts_are_independent_of_thread_count() {
    let home = Home::new();
    let model = tiny(&home, "q4_k_m");
    for isa in available() {
        for (n_tokens, repack) in [(300, true), (300, false), (327, true), (359, true), (1023, true)] {
            let found = |n_threads: usize| {
                let n_threads = n_threads.to_string();
                let mut args = vec!["-ub", "2048", "-t", &n_threads];
                if !repack {
                    args.push("--no-repack");
                }
                logits_of(&home, isa, &model, n_tokens, &args)
            };
            let expected = found(1);
            assert_eq!(expected.len() % n_tokens, 0);
            for n_threads in 2..=8 {
                assert!(
                    found(n_threads) == expected,
                    "{}, {n_tokens} tokens, repacking {repack}: {n_threads} threads",
                    isa.name()
                );
            }
        }
    }
}

/// Generation works with scalar kernels.
#[test]
fn scalar_kernels_generate_text() {
    let home = Home::new();
    let model = tiny(&home, "q4_k_m");
    let run = ["run", &model, "--raw", "abc", "-n", "8", "--temp", "0", "--no-stats"];
    let text = ended(capped(&home, "scalar", &run)).succeeds().to_owned();
    assert!(text.trim().len() > 8, "{text:?}");
    assert_eq!(ended(capped(&home, "SCALAR", &run)).succeeds(), text);
}

#[test]
fn instruction_set_names_are_validated() {
    let home = Home::new();
    let list = |isa: &str| ended(capped(&home, isa, &["list"]));
    for wrong in ["avx3", "avx2,fma", " avx2"] {
        let names: Vec<_> = Isa::ALL.map(Isa::name).to_vec();
        list(wrong).fails_saying(&[&["LLAMA_CPU_ISA", wrong][..], &names].concat());
    }
    for right in ["", "avx2", "Scalar", "amx-bf16"] {
        assert_eq!(list(right).status, 0, "{right:?}");
    }
}

/// Runs a command on an emulated CPU.
fn emulated(cpu: &str, command: &Command) -> Command {
    let mut emulator = Command::new("qemu-x86_64");
    emulator
        .args(["-cpu", cpu])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => emulator.env(name, value),
            None => emulator.env_remove(name),
        };
    }
    emulator.stdin(Stdio::null());
    emulator
}

/// Builds a program that executes one AVX2 instruction.
fn program_with_avx2(home: &Home) -> Command {
    let path = home.path("avx2");
    let mut rustc = Command::new("rustc");
    rustc
        .args(["--edition", "2024", "-", "-o"])
        .arg(&path)
        .stdin(Stdio::piped());
    let mut rustc = rustc.spawn().expect("rustc runs");
    // SAFETY (of the program): the asm declares the register it clobbers.
    let program = r#"fn main() { unsafe { std::arch::asm!("vpaddd ymm0, ymm0, ymm0", out("xmm0") _) } }"#;
    let mut stdin = rustc.stdin.take().expect("a pipe");
    stdin.write_all(program.as_bytes()).expect("rustc reads");
    drop(stdin);
    assert!(rustc.wait().expect("rustc ends").success());
    Command::new(path)
}

#[test]
#[ignore = "needs qemu-x86_64 (Debian package qemu-user)"]
fn cpus_without_avx2_run_models() {
    let home = Home::new();
    let avx2 = program_with_avx2(&home);
    // An illegal instruction leaves a core file in the current directory.
    let ends_well = |cpu| {
        let mut program = emulated(cpu, &avx2);
        let program = program.current_dir(home.path("")).stderr(Stdio::null());
        program.status().expect("the emulator runs").success()
    };
    assert!(ends_well("max"));
    let run = |model: &str| home.llama(&["run", model, "--raw", "abc", "-n", "8", "--temp", "0", "--no-stats"]);
    let doctor = home.llama(&["doctor", "--json"]);
    // Supports SSE3, SSSE3, SSE4.2, and AVX, respectively.
    for cpu in ["Opteron_G1", "Conroe", "Nehalem", "SandyBridge"] {
        assert!(!ends_well(cpu), "{cpu} is emulated with AVX2");
        assert_eq!(in_use(emulated(cpu, &doctor)), "scalar", "{cpu}");
        for ty in ["q4_k_m", "q4_0", "f16"] {
            let model = tiny(&home, ty);
            let mut here = run(&model);
            here.env("LLAMA_CPU_ISA", "scalar");
            assert_eq!(
                ended(emulated(cpu, &run(&model))).succeeds(),
                ended(here).succeeds(),
                "{cpu}, {ty}"
            );
        }
    }
}

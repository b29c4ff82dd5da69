//! The binary with the kernels of every instruction set that this CPU has, and on CPUs that have none but the baseline.

use std::io::Write;
use std::process::{Command, Stdio};

use engine::gguf::logits::{Logits, nmse};
use kernels::Isa;
use serde_json::Value;

use crate::common::{Home, ended};

/// NMSE that conformance allows.
const EXACT: f64 = 1e-8;
/// And of the products of `engine/tests/ops`, whose activations are rounded to 16 bits, and to 8 bits or bfloat16.
const ROUNDED_TO_16: f64 = 1e-8;
const ROUNDED_TO_8: f64 = 1e-4;
/// Products that follow one another in the tiny model: four in each of two layers, and the output.
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

/// A command whose kernels are those of an instruction set at most.
fn capped(home: &Home, isa: &str, args: &[&str]) -> Command {
    let mut command = home.llama(args);
    command.env("LLAMA_CPU_ISA", isa);
    command
}

/// The logits of a prompt, whole or token by token.
fn logits(home: &Home, isa: Isa, model: &str, precision: &str, n_ubatch: &str) -> Vec<f32> {
    let out = home.path("logits").into_os_string().into_string().unwrap();
    let tokens: Vec<String> = (0..40).map(|i| (i * 37 % 256).to_string()).collect();
    let tokens = tokens.join(",");
    let args = [
        "logits",
        model,
        "--tokens",
        &tokens,
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
        "-o",
        &out,
    ];
    ended(capped(home, isa.name(), &args)).succeeds();
    Logits::read(&out).expect("logits").values().to_vec()
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
        // 40 tokens are multiplied by panels or tiles, single ones by groups.
        for n_ubatch in ["512", "1"] {
            let found = |isa, precision| logits(&home, isa, &model, precision, n_ubatch);
            let [exact, high] = ["exact", "high"].map(|precision| found(Isa::Scalar, precision));
            for isa in available() {
                let what = format!("{} {ty}, ubatches of {n_ubatch}", isa.name());
                for (precision, limit) in [
                    ("exact", EXACT),
                    ("high", PRODUCTS * ROUNDED_TO_16),
                    ("fast", PRODUCTS * ROUNDED_TO_8),
                ] {
                    let error = nmse(&exact, &found(isa, precision));
                    assert!(error <= limit, "{what}, {precision}: {error:e}");
                }
                // Integers of 16 bits are the same everywhere, as far as what they are rounded from is.
                let error = nmse(&high, &found(isa, "high"));
                assert!(error <= EXACT, "{what}, high on both: {error:e}");
            }
        }
    }
}

/// Text by the kernels that any CPU can run.
#[test]
fn text_is_generated_without_any_instruction_set() {
    let home = Home::new();
    let model = tiny(&home, "q4_k_m");
    let run = ["run", &model, "--raw", "abc", "-n", "8", "--temp", "0", "--no-stats"];
    let text = ended(capped(&home, "scalar", &run)).succeeds().to_owned();
    assert!(text.trim().len() > 8, "{text:?}");
    assert_eq!(ended(capped(&home, "SCALAR", &run)).succeeds(), text);
}

#[test]
fn names_of_instruction_sets_are_checked() {
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

/// A command on a CPU that the emulator has by this name.
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

/// A program that uses one instruction of AVX2.
fn program_with_avx2(home: &Home) -> Command {
    let path = home.path("avx2");
    let mut rustc = Command::new("rustc");
    rustc
        .args(["--edition", "2024", "-", "-o"])
        .arg(&path)
        .stdin(Stdio::piped());
    let mut rustc = rustc.spawn().expect("rustc runs");
    // SAFETY (of the program): the instruction changes a register that is named as changed, if the CPU has it.
    let program = r#"fn main() { unsafe { std::arch::asm!("vpaddd ymm0, ymm0, ymm0", out("xmm0") _) } }"#;
    let mut stdin = rustc.stdin.take().expect("a pipe");
    stdin.write_all(program.as_bytes()).expect("rustc reads");
    drop(stdin);
    assert!(rustc.wait().expect("rustc ends").success());
    Command::new(path)
}

#[test]
#[ignore = "needs qemu-x86_64 (Debian's qemu-user), which emulates other CPUs"]
fn cpus_without_avx2_run_models() {
    let home = Home::new();
    let avx2 = program_with_avx2(&home);
    // What is refused leaves a core file.
    let ends_well = |cpu| {
        let mut program = emulated(cpu, &avx2);
        let program = program.current_dir(home.path("")).stderr(Stdio::null());
        program.status().expect("the emulator runs").success()
    };
    assert!(ends_well("max"));
    let run = |model: &str| home.llama(&["run", model, "--raw", "abc", "-n", "8", "--temp", "0", "--no-stats"]);
    let doctor = home.llama(&["doctor", "--json"]);
    // SSE2 and SSE3, up to SSSE3, up to SSE4.2, and AVX.
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

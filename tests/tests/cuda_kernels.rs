//! Compiles CUDA kernels for every supported architecture with NVRTC and `ptxas`, without a GPU, and checks
//! for register spills.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use engine::backend::cuda::{Specialization, compiler_error, loaded, specializations};
use engine::graph::{Attention, AttentionOperands, Graph, Layout, PAGE, TensorId, VisibleCells};
use engine::sched::Observer;
use kernels::{GgmlType, Precision};
use rayon::prelude::*;
use tests::emulator::with_device;
use tests::{CORE, context, decode_last, fixture_names, model, tokens};

use crate::cuda::card;
use crate::cuda_fusion::quantized;

/// Compute capabilities of Ampere, Hopper, and Blackwell.
const CAPABILITIES: [i32; 3] = [80, 90, 120];

/// Compute capabilities for which attention kernels are checked.
const ATTENTION_CAPABILITIES: [i32; 5] = [80, 86, 89, 90, 120];

type Found = Arc<Mutex<BTreeMap<String, Specialization>>>;

/// Collects the kernels of every computed node.
struct Look(Found);

impl Observer for Look {
    fn observes(&mut self, graph: &Graph, node: TensorId) -> bool {
        let mut found = self.0.lock().expect("no thread panics while holding the lock");
        let all: Vec<_> = [Precision::Exact, Precision::Fast]
            .into_iter()
            .flat_map(|precision| specializations(graph, node, precision))
            .collect();
        assert!(
            !all.is_empty() || !graph.tensor(node).op.computes() || graph.tensor(node).nelements() == 0,
            "no kernel computes {:?}",
            graph.tensor(node)
        );
        found.extend(all.into_iter().map(|kernel| (kernel.describe(), kernel)));
        false
    }

    fn show(&mut self, _: &Graph, _: TensorId, _: &[u8]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Returns the kernels of a prompt and of a single token of each fixture.
fn kernels_of<'a>(fixtures: impl IntoIterator<Item = &'a str>) -> Vec<Specialization> {
    let found = Found::default();
    for name in fixtures {
        let (model, tokens) = (model(name), tokens(name));
        let mut ctx = context(&model, |p| p.n_ubatch = 16);
        ctx.set_observer(Some(Box::new(Look(found.clone()))));
        let n = tokens.len().min(17);
        decode_last(&mut ctx, &tokens[..n], 0, 0);
    }
    let found = std::mem::take(&mut *found.lock().expect("no thread panics while holding the lock"));
    found.into_values().collect()
}

/// Returns the spills that `ptxas` reports.
pub(crate) fn spills(ptx: &str, capability: i32) -> String {
    let text = assembled(ptx, capability);
    let spills = |line: &&str| line.contains("spill") && !line.contains(" 0 bytes spill stores");
    text.lines().filter(spills).collect::<Vec<_>>().join("\n")
}

/// Returns the register, spill and shared-memory statistics of `ptxas`.
fn assembled(ptx: &str, capability: i32) -> String {
    let mut ptxas = Command::new("ptxas");
    ptxas.args(["-v", &format!("-arch=sm_{capability}"), "-o", "/dev/null", "-"]);
    let mut child = (ptxas
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn())
    .expect("ptxas runs");
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    stdin.write_all(ptx.as_bytes()).expect("ptxas reads");
    drop(stdin);
    let output = child.wait_with_output().expect("ptxas ends");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "sm_{capability}: {text}");
    text
}

fn check(kernels: &[Specialization], capabilities: &[i32]) {
    assert_eq!(compiler_error(), None, "NVRTC is available");
    let all: Vec<_> = kernels
        .iter()
        .flat_map(|k| capabilities.iter().map(move |&c| (k, c)))
        .collect();
    all.par_iter().for_each(|&(kernel, capability)| {
        let ptx = kernel
            .ptx(capability)
            .unwrap_or_else(|error| panic!("compute_{capability}: {error}"));
        assert!(ptx.contains(".entry"), "{} has no kernel", kernel.describe());
        let spills = spills(&ptx, capability);
        let what = kernel.describe();
        assert!(
            !kernel.is_hot() || spills.is_empty(),
            "{what}, sm_{capability}: {spills}"
        );
    });
}

#[test]
fn kernels_of_common_models_compile() {
    with_device("cuda_kernels::kernels_of_common_models_compile", || {
        let kernels = kernels_of(CORE);
        assert!(kernels.len() > 20, "{} kernels", kernels.len());
        check(&kernels, &CAPABILITIES[..1]);
    });
}

/// Fused kernels occur only in plans of whole graphs.
#[test]
fn plan_kernels_compile_without_spills() {
    with_device("cuda_kernels::plan_kernels_compile_without_spills", || {
        for (name, ty) in [
            ("llama-dense", GgmlType::Q4_0),
            ("llama-moe", GgmlType::Q8_0),
            ("qwen3-dense", GgmlType::Q5_1),
        ] {
            let tokens = tokens(name);
            let mut ctx = quantized(name, Some(ty), Precision::Fast);
            decode_last(&mut ctx, &tokens[..5], 0, 0);
            decode_last(&mut ctx, &tokens[5..6], 5, 0);
        }
        let (fused, others): (Vec<_>, Vec<_>) = loaded().into_iter().partition(|kernel| {
            ["PARTS=3", "GLU=", "heads.cu", "ROUNDS="]
                .iter()
                .any(|mark| kernel.describe().contains(mark))
        });
        assert!(fused.len() > 12 && !others.is_empty(), "{} kernels", fused.len());
        check(&fused, &CAPABILITIES[1..2]);
    });
}

/// Decode kernels of every quantized type must not spill, in the GPU's layout and the file's layout.
/// `--nocapture` prints the register counts.
#[test]
fn integer_matmuls_of_all_types_compile_without_spills() {
    let name = "cuda_kernels::integer_matmuls_of_all_types_compile_without_spills";
    with_device(name, || {
        let places = engine::backend::device(&card())
            .expect("the GPU exists")
            .weight_storage();
        let kernel = |ty: GgmlType, layout: Layout, n: usize| {
            let mut graph = Graph::new();
            let w = graph.input(ty, [2048, 32, 1, 1], "w");
            graph.tensor_mut(w).layout = layout;
            let x = graph.input(GgmlType::F32, [2048, n, 1, 1], "x");
            let product = graph.mul_mat(w, x).expect("the shapes match");
            let kernels = specializations(&graph, product, Precision::Fast);
            let found = kernels
                .into_iter()
                .find(|kernel| kernel.describe().starts_with("mul_vec_int"));
            found.unwrap_or_else(|| panic!("{ty}, {layout:?}: no integer kernel"))
        };
        let types = GgmlType::ALL
            .iter()
            .filter(|ty| ty.is_quantized() && kernels::can_dequantize(**ty));
        let placed = types.flat_map(|&ty| places.iter().map(move |place| (ty, place.layout)));
        let placed = placed.filter(|&(ty, layout)| layout.accepts(ty, [2048, 32, 1, 1]));
        let kernels: Vec<_> = placed
            .flat_map(|(ty, layout)| [1, 8].map(|n| kernel(ty, layout, n)))
            .collect();
        assert!(kernels.len() > 2 * 27, "{} kernels", kernels.len());
        check(&kernels, &CAPABILITIES[1..2]);
        for kernel in &kernels {
            let text = assembled(
                &kernel.ptx(CAPABILITIES[1]).expect("the kernel compiled before"),
                CAPABILITIES[1],
            );
            let used = text.lines().find(|line| line.contains("registers")).unwrap_or_default();
            eprintln!("{}: {used}", kernel.describe());
        }
    });
}

/// Attention kernels of common head sizes and groups, for f32 arithmetic and for tensor cores, with and without
/// blocks that share a token. A stack frame would keep values in memory although nothing spills.
#[test]
fn decode_attention_compiles_without_spills_or_stack() {
    let name = "cuda_kernels::decode_attention_compiles_without_spills_or_stack";
    with_device(name, || {
        let kernels = |(ty, [dk, dv], [n_head, n_head_kv], n_kv): (GgmlType, [usize; 2], [usize; 2], usize)| {
            let mut graph = Graph::new();
            let q = graph.input(GgmlType::F32, [dk, n_head, 1, 1], "q");
            let k = graph.input(ty, [dk, n_head_kv, n_kv, 1], "k");
            let v = graph.input(ty, [dv, n_head_kv, n_kv, 1], "v");
            let list = |graph: &mut Graph, ty, n| graph.input(ty, [n, 1, 1, 1], "cells");
            let cells = VisibleCells {
                cell_pos: list(&mut graph, GgmlType::I32, n_kv),
                pos: list(&mut graph, GgmlType::I32, 1),
                table: list(&mut graph, GgmlType::I32, 1),
                starts: list(&mut graph, GgmlType::I32, 2),
                pages: list(&mut graph, GgmlType::I32, n_kv / PAGE),
                masks: list(&mut graph, GgmlType::I64, n_kv / PAGE),
            };
            let operands = AttentionOperands::new([q, k, v], cells);
            let node = graph
                .attention(Attention::causal(0.1), operands)
                .expect("the shapes match");
            [Precision::Exact, Precision::Fast].map(|precision| specializations(&graph, node, precision))
        };
        let shapes = [
            (GgmlType::F16, [128, 128], [32, 8], 64),
            (GgmlType::F16, [128, 128], [64, 8], 4096),
            (GgmlType::F16, [64, 64], [16, 1], 4096),
            (GgmlType::BF16, [256, 256], [8, 4], 4096),
            (GgmlType::Q8_0, [128, 128], [32, 8], 4096),
            (GgmlType::F16, [576, 512], [128, 1], 4096),
        ];
        let all: BTreeMap<_, _> = (shapes.into_iter().flat_map(kernels).flatten())
            .map(|kernel| (kernel.describe(), kernel))
            .collect();
        let count = |name: &str| all.keys().filter(|title| title.starts_with(name)).count();
        assert_eq!((count("attention ("), count("attention_pages (")), (6, 6));
        let kernels: Vec<_> = all.into_values().collect();
        let every: Vec<_> = kernels
            .iter()
            .flat_map(|k| ATTENTION_CAPABILITIES.map(|c| (k, c)))
            .collect();
        every.par_iter().for_each(|&(kernel, capability)| {
            let text = assembled(&kernel.ptx(capability).expect("the kernel compiles"), capability);
            let is_clean = |line: &str| line.contains("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads");
            let mut frames = text.lines().filter(|line| line.contains("stack frame"));
            assert!(frames.all(is_clean), "{}, sm_{capability}: {text}", kernel.describe());
        });
    });
}

/// A compile error names the kernel with its specialization and includes the compiler log.
#[test]
fn compile_error_includes_compiler_log() {
    let name = "cuda_kernels::compile_error_includes_compiler_log";
    with_device(name, || {
        let mut graph = Graph::new();
        let w = graph.input(GgmlType::Q4_K, [256, 32, 1, 1], "w");
        let x = graph.input(GgmlType::F32, [256, 1, 1, 1], "x");
        let product = graph.mul_mat(w, x).expect("the shapes match");
        let kernels = specializations(&graph, product, Precision::Fast);
        let kernel = kernels.last().expect("the product has a kernel");
        // Compute capability 1.0 (`compute_10`) is not supported by NVRTC.
        let error = kernel.ptx(10).expect_err("compute_10 does not compile");
        let begins = error.starts_with(&format!("cannot compile {}:\n", kernel.describe()));
        assert!(
            begins && error.contains("TYPE=q4_K") && error.contains("--gpu-architecture"),
            "{error}"
        );
    });
}

#[test]
#[ignore = "compiles the kernels of every fixture for three architectures"]
fn kernels_of_every_model_compile() {
    with_device("cuda_kernels::kernels_of_every_model_compile", || {
        let names = fixture_names();
        let kernels = kernels_of(names.iter().map(String::as_str));
        check(&kernels, &CAPABILITIES);
    });
}

//! Kernels for cards are compiled for every architecture that they are written for, without a card: by the compiler of CUDA C++ and by
//! `ptxas`, which tells what spills.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use engine::backend::cuda::{Specialization, compiler_flaw, loaded, specializations};
use engine::graph::{Graph, Layout, TensorId};
use engine::sched::Observer;
use kernels::{GgmlType, Precision};
use rayon::prelude::*;
use tests::emulator::with_device;
use tests::{CORE, context, decode_last, fixture_names, model, tokens};

use crate::cuda::card;
use crate::cuda_fusion::quantized;

/// Ampere, Hopper, Blackwell.
const CAPABILITIES: [i32; 3] = [80, 90, 120];

type Found = Arc<Mutex<BTreeMap<String, Specialization>>>;

/// Notes the kernels of every node that is computed.
struct Look(Found);

impl Observer for Look {
    fn wants(&mut self, graph: &Graph, node: TensorId) -> bool {
        let mut found = self.0.lock().expect("nobody panics with it");
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

/// The kernels of a prompt and of a single token of each fixture.
fn kernels_of<'a>(fixtures: impl IntoIterator<Item = &'a str>) -> Vec<Specialization> {
    let found = Found::default();
    for name in fixtures {
        let (model, tokens) = (model(name), tokens(name));
        let mut ctx = context(&model, |p| p.n_ubatch = 16);
        ctx.set_observer(Some(Box::new(Look(found.clone()))));
        let n = tokens.len().min(17);
        decode_last(&mut ctx, &tokens[..n], 0, 0);
    }
    let found = std::mem::take(&mut *found.lock().expect("nobody panics with it"));
    found.into_values().collect()
}

/// What `ptxas` says of spills.
pub(crate) fn spills(ptx: &str, capability: i32) -> String {
    let text = assembled(ptx, capability);
    let spills = |line: &&str| line.contains("spill") && !line.contains(" 0 bytes spill stores");
    text.lines().filter(spills).collect::<Vec<_>>().join("\n")
}

/// What `ptxas` says of registers, spills and shared memory.
fn assembled(ptx: &str, capability: i32) -> String {
    let mut ptxas = Command::new("ptxas");
    ptxas.args(["-v", &format!("-arch=sm_{capability}"), "-o", "/dev/null", "-"]);
    let mut child = (ptxas
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn())
    .expect("ptxas runs");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    stdin.write_all(ptx.as_bytes()).expect("ptxas reads");
    drop(stdin);
    let output = child.wait_with_output().expect("ptxas ends");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "sm_{capability}: {text}");
    text
}

fn check(kernels: &[Specialization], capabilities: &[i32]) {
    assert_eq!(compiler_flaw(), None, "kernels cannot be compiled");
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
fn every_node_of_common_models_has_kernels_that_compile() {
    with_device(
        "cuda_kernels::every_node_of_common_models_has_kernels_that_compile",
        || {
            let kernels = kernels_of(CORE);
            assert!(kernels.len() > 20, "{} kernels", kernels.len());
            check(&kernels, &CAPABILITIES[..1]);
        },
    );
}

/// Those that compute several nodes in one go are found in plans only.
#[test]
fn kernels_of_plans_compile_without_spills() {
    with_device("cuda_kernels::kernels_of_plans_compile_without_spills", || {
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

/// Decoding of every quantized type keeps everything in registers, arranged for the card and as in the file. `--nocapture` shows how many these are.
#[test]
fn products_of_all_types_in_integers_compile_without_spills() {
    let name = "cuda_kernels::products_of_all_types_in_integers_compile_without_spills";
    with_device(name, || {
        let places = engine::backend::device(&card()).expect("it is there").weight_storage();
        let kernel = |ty: GgmlType, layout: Layout, n: usize| {
            let mut graph = Graph::new();
            let w = graph.input(ty, [2048, 32, 1, 1], "w");
            graph.tensor_mut(w).layout = layout;
            let x = graph.input(GgmlType::F32, [2048, n, 1, 1], "x");
            let product = graph.mul_mat(w, x).expect("the shapes fit");
            let kernels = specializations(&graph, product, Precision::Fast);
            let found = kernels
                .into_iter()
                .find(|kernel| kernel.describe().starts_with("mul_vec_int"));
            found.unwrap_or_else(|| panic!("{ty}, {layout:?}: it is not computed in integers"))
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
            let text = assembled(&kernel.ptx(CAPABILITIES[1]).expect("it just compiled"), CAPABILITIES[1]);
            let used = text.lines().find(|line| line.contains("registers")).unwrap_or_default();
            eprintln!("{}: {used}", kernel.describe());
        }
    });
}

/// A kernel that does not compile is named with what it is specialized by, and the compiler's words follow.
#[test]
fn a_kernel_that_does_not_compile_is_told_with_the_compilers_log() {
    let name = "cuda_kernels::a_kernel_that_does_not_compile_is_told_with_the_compilers_log";
    with_device(name, || {
        let mut graph = Graph::new();
        let w = graph.input(GgmlType::Q4_K, [256, 32, 1, 1], "w");
        let x = graph.input(GgmlType::F32, [256, 1, 1, 1], "x");
        let product = graph.mul_mat(w, x).expect("the shapes fit");
        let kernels = specializations(&graph, product, Precision::Fast);
        let kernel = kernels.last().expect("there is a kernel");
        // There is no such architecture.
        let error = kernel.ptx(10).expect_err("it does not compile");
        let begins = error.starts_with(&format!("{} does not compile:\n", kernel.describe()));
        assert!(
            begins && error.contains("TYPE=q4_K") && error.contains("--gpu-architecture"),
            "{error}"
        );
    });
}

#[test]
#[ignore = "compiles the kernels of every fixture for three architectures"]
fn every_node_of_every_model_has_kernels_that_compile() {
    with_device(
        "cuda_kernels::every_node_of_every_model_has_kernels_that_compile",
        || {
            let names = fixture_names();
            let kernels = kernels_of(names.iter().map(String::as_str));
            check(&kernels, &CAPABILITIES);
        },
    );
}

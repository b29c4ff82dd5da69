//! Compiles CUDA kernels for every supported architecture with NVRTC and `ptxas`, without a GPU, and checks
//! that hot kernels keep their values in registers.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::ops::ControlFlow;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use engine::backend::cuda::{Gpu, Specialization, compiler_error, loaded, specializations};
use engine::graph::{
    Attention, AttentionOperands, Graph, Layout, LinearAttention, PAGE, Recurrence, TensorId, VisibleCells,
};
use engine::sched::Observer;
use kernels::{GgmlType, Precision};
use rayon::prelude::*;
use tests::emulator::with_device;
use tests::{CORE, context, decode_last, fixture_names, model, tokens};

use crate::cuda::card;
use crate::cuda_fusion::quantized;

/// Compute capabilities of Ampere (A100, and RTX 30), Ada, Hopper, and Blackwell (RTX 50).
const CAPABILITIES: [i32; 5] = [80, 86, 89, 90, 120];

/// The oldest and the newest of these, for tests that run by default.
const OLDEST_AND_NEWEST: [i32; 2] = [80, 120];

/// Capabilities for tests with many kernels.
const AMPERE: [i32; 1] = [80];
const HOPPER: [i32; 1] = [90];

/// Capability of GPUs without bf16 and asynchronous copies.
const TURING: [i32; 1] = [75];

type Found = Arc<Mutex<BTreeMap<String, Specialization>>>;

/// Collects the kernels of every computed node.
struct Look(Found, Gpu);

impl Observer for Look {
    fn observes(&mut self, graph: &Graph, node: TensorId) -> bool {
        let mut found = self.0.lock().expect("no thread panics while holding the lock");
        let all: Vec<_> = [Precision::Exact, Precision::Fast]
            .into_iter()
            .flat_map(|precision| specializations(graph, node, precision, self.1))
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

/// Returns the kernels of a prompt and of a single token of each fixture on a GPU.
fn kernels_of<N: AsRef<str>>(fixtures: &[N], gpu: Gpu) -> Vec<Specialization> {
    let found = Found::default();
    for name in fixtures {
        let (model, tokens) = (model(name.as_ref()), tokens(name.as_ref()));
        let mut ctx = context(&model, |p| p.n_ubatch = 16);
        ctx.set_observer(Some(Box::new(Look(found.clone(), gpu))));
        let n = tokens.len().min(17);
        decode_last(&mut ctx, &tokens[..n], 0, 0);
    }
    let found = std::mem::take(&mut *found.lock().expect("no thread panics while holding the lock"));
    found.into_values().collect()
}

/// Returns the lines of `ptxas` about values in local memory: spilled registers, and arrays in the stack frame that are
/// indexed at run time.
pub(crate) fn local_memory(ptx: &str, capability: i32) -> String {
    local_memory_in(&assembled(ptx, capability))
}

/// Like [`local_memory`], for a report of `ptxas`.
fn local_memory_in(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("stack frame")).collect();
    assert!(
        !lines.is_empty(),
        "ptxas reports the stack frame of every kernel: {text}"
    );
    let has_some = |line: &&str| line.trim() != "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
    lines.into_iter().filter(has_some).collect::<Vec<_>>().join("\n")
}

/// Returns the sums of products in a function that the assembler may contract to a fused multiply-add:
/// instructions without explicit rounding. The emulated driver never contracts.
fn contractible(ptx: &str) -> Vec<&str> {
    let mut products = HashSet::new();
    let mut found = Vec::new();
    for line in ptx.lines() {
        let Some((op, operands)) = line.trim().trim_end_matches(';').split_once(char::is_whitespace) else {
            continue;
        };
        let operands: Vec<&str> = operands.split(',').map(str::trim).collect();
        match op {
            "mul.f32" => drop(products.insert(operands[0])),
            "add.f32" | "sub.f32" if operands[1..].iter().any(|x| products.contains(x)) => found.push(line.trim()),
            _ => {}
        }
    }
    found
}

/// Returns the register, spill, and shared-memory statistics of `ptxas`.
fn assembled(ptx: &str, capability: i32) -> String {
    let specific = format!("sm_{capability}a");
    let target = if ptx.contains(&format!(".target {specific}")) {
        &specific
    } else {
        specific.trim_end_matches('a')
    };
    let mut ptxas = Command::new("ptxas");
    ptxas.args(["-v", &format!("-arch={target}"), "-o", "/dev/null", "-"]);
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

/// Returns the reports of `ptxas` on kernels that must use no local memory, with their titles.
fn reports_without_local_memory(kernels: &[Specialization], capability: i32) -> Vec<(String, String)> {
    let report = |kernel: &Specialization| {
        let title = format!("{}, sm_{capability}", kernel.describe());
        let ptx = kernel
            .ptx(capability)
            .unwrap_or_else(|error| panic!("{title}: {error}"));
        let text = assembled(&ptx, capability);
        let local = local_memory_in(&text);
        assert!(local.is_empty(), "{title}: {local}");
        (title, text)
    };
    kernels.par_iter().map(report).collect()
}

/// Compiles kernels for several architectures. Hot kernels must use no local memory.
fn check(kernels: &[Specialization], capabilities: &[i32]) {
    assert_eq!(compiler_error(), None, "NVRTC is available");
    let all: Vec<_> = kernels
        .iter()
        .flat_map(|k| capabilities.iter().map(move |&c| (k, c)))
        .collect();
    let faults: Vec<String> = all
        .par_iter()
        .filter_map(|&(kernel, capability)| fault_of(kernel, capability))
        .collect();
    assert!(
        faults.is_empty(),
        "{} of {} fail:\n{}",
        faults.len(),
        all.len(),
        faults.join("\n")
    );
}

/// Returns the fault of a compiled kernel, if any.
fn fault_of(kernel: &Specialization, capability: i32) -> Option<String> {
    let title = format!("{}, sm_{capability}", kernel.describe());
    let ptx = match kernel.ptx(capability) {
        Ok(ptx) => ptx,
        Err(error) => return Some(format!("{title}: {error}")),
    };
    if !ptx.contains(".entry") {
        return Some(format!("{title}: it has no kernel"));
    }
    let local = local_memory(&ptx, capability);
    (kernel.is_hot() && !local.is_empty()).then(|| format!("{title}: {local}"))
}

#[test]
fn kernels_of_common_models_compile() {
    with_device("cuda_kernels::kernels_of_common_models_compile", || {
        let kernels = kernels_of(&CORE, Gpu::H100);
        assert!(kernels.len() > 20, "{} kernels", kernels.len());
        check(&kernels, &AMPERE);
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
        check(&fused, &HOPPER);
    });
}

/// Tests require that fused kernels give the same bits as separate kernels. The assembler of a GPU must not decide
/// where to round.
#[test]
fn fused_kernels_round_independently_of_assembler() {
    let name = "cuda_kernels::fused_kernels_round_independently_of_assembler";
    with_device(name, || {
        assert_eq!(
            contractible("mul.f32 %f1, %f2, %f3;\n add.f32 \t%f4, %f5, %f1;\nadd.f32 %f6, %f5, %f4;"),
            ["add.f32 \t%f4, %f5, %f1;"]
        );
        for (name, ty) in [
            ("llama-dense", None),
            ("qwen2-dense", Some(GgmlType::Q8_0)),
            ("gemma3-dense", Some(GgmlType::Q5_1)),
        ] {
            let tokens = tokens(name);
            let mut ctx = quantized(name, ty, Precision::Fast);
            decode_last(&mut ctx, &tokens[..5], 0, 0);
            decode_last(&mut ctx, &tokens[5..6], 5, 0);
        }
        let kernels = loaded();
        // The scores of attention are computed by the same code in both cases.
        let compared = kernels
            .iter()
            .filter(|kernel| !kernel.describe().starts_with("attention"));
        let found: Vec<String> = compared
            .flat_map(|kernel| {
                let (title, ptx) = (kernel.describe(), kernel.ptx(HOPPER[0]).expect("the kernel compiles"));
                let name = title.split(' ').next().unwrap_or_default();
                let own = ptx.split(".entry").find(|text| text.trim_start().starts_with(name));
                let found = contractible(own.expect("the kernel is in its module"));
                found
                    .into_iter()
                    .map(|line| format!("{title}: {line}"))
                    .collect::<Vec<_>>()
            })
            .collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    });
}

/// Returns the kernels that multiply a matrix of weights by `n` columns, or the matrices of `n_experts`.
fn product_kernels(ty: GgmlType, layout: Layout, sizes: [usize; 3], n_experts: usize) -> Vec<Specialization> {
    product_kernels_on(Gpu::H100, ty, layout, sizes, n_experts)
}

/// Like [`product_kernels`], on another GPU.
fn product_kernels_on(
    gpu: Gpu,
    ty: GgmlType,
    layout: Layout,
    [k, m, n]: [usize; 3],
    n_experts: usize,
) -> Vec<Specialization> {
    let mut graph = Graph::new();
    let w = graph.input(ty, [k, m, n_experts.max(1), 1], "w");
    graph.tensor_mut(w).layout = layout;
    let product = if n_experts == 0 {
        let x = graph.input(GgmlType::F32, [k, n, 1, 1], "x");
        graph.mul_mat(w, x).expect("the shapes match")
    } else {
        let x = graph.input(GgmlType::F32, [k, 1, n, 1], "x");
        let ids = graph.input(GgmlType::I32, [1, n, 1, 1], "ids");
        graph.mul_mat_id(w, x, ids).expect("the shapes match")
    };
    specializations(&graph, product, Precision::Fast, gpu)
}

/// Returns the kernels with most values in registers: eight columns, and the largest tiles.
fn largest_kernels() -> Vec<Specialization> {
    let mut kernels = Vec::new();
    for ty in [GgmlType::Q4_K, GgmlType::Q8_0] {
        kernels.extend(product_kernels(ty, Layout::Plain, [2048, 32, 8], 0));
    }
    for ty in [GgmlType::Q4_K, GgmlType::F16] {
        for n_experts in [0, 8] {
            for gpu in [Gpu::H100, Gpu::RTX_4090] {
                kernels.extend(product_kernels_on(
                    gpu,
                    ty,
                    Layout::Plain,
                    [2048, 14336, 2048],
                    n_experts,
                ));
            }
        }
    }
    let mut kernels = distinct_kernels(kernels);
    kernels.retain(Specialization::is_hot);
    let names: Vec<String> = kernels.iter().map(Specialization::describe).collect();
    let count = |mark: &str| names.iter().filter(|name| name.contains(mark)).count();
    let counts = ["COLS=8", "COLUMNS=256", "mul_mat_halves "].map(count);
    assert_eq!((counts, names.len()), ([2, 4, 4], 10), "{names:?}");
    kernels
}

#[test]
fn largest_kernels_use_no_local_memory() {
    with_device("cuda_kernels::largest_kernels_use_no_local_memory", || {
        check(&largest_kernels(), &OLDEST_AND_NEWEST);
    });
}

/// Returns the kernels for warpgroups that multiply prompts by matrices of a type.
fn warpgroup_kernels(ty: GgmlType, layout: Layout) -> Vec<Specialization> {
    let all = [[4096, 512], [14336, 2048]].into_iter().flat_map(|[m, n]| {
        [0, 8].into_iter().flat_map(move |n_experts| {
            let n = if n_experts == 0 { n } else { 8 * n };
            product_kernels_on(Gpu::HOPPER, ty, layout, [2048, m, n], n_experts)
        })
    });
    all.filter(Specialization::is_specific).collect()
}

/// The assembler must not insert waits for products between steps, and must not ignore `setmaxnreg`. It reports both.
#[test]
fn warpgroup_kernels_use_no_local_memory() {
    let name = "cuda_kernels::warpgroup_kernels_use_no_local_memory";
    with_device(name, || {
        let types = [GgmlType::Q4_K, GgmlType::BF16];
        let kernels: Vec<_> = (types.into_iter())
            .flat_map(|ty| warpgroup_kernels(ty, Layout::Plain))
            .collect();
        let names: Vec<String> = kernels.iter().map(Specialization::describe).collect();
        let count = |mark: &str| names.iter().filter(|name| name.contains(mark)).count();
        assert_eq!(
            (count(" COLUMNS=256"), count("IDS=1"), names.len()),
            (6, 4, 8),
            "{names:?}"
        );
        for (title, report) in reports_without_local_memory(&kernels, HOPPER[0]) {
            let is_slow = ["serialized", "setmaxnreg"].iter().any(|word| report.contains(word));
            assert!(!is_slow, "{title}: {report}");
        }
    });
}

/// Calls `add` with each type that matmuls support, and with the layouts of its weights.
fn for_each_layout(mut add: impl FnMut(GgmlType, Layout)) {
    let device = engine::backend::device(&card()).expect("the GPU exists");
    let layouts: Vec<Layout> = device.weight_storage().iter().map(|place| place.layout).collect();
    for &ty in GgmlType::ALL.iter().filter(|ty| kernels::can_dequantize(**ty)) {
        let accepted = layouts.iter().filter(|layout| layout.accepts(ty, [2048, 32, 1, 1]));
        accepted.for_each(|&layout| add(ty, layout));
    }
}

/// Returns the hot kernels for all types of weights with these columns, and for tiles of these rows and columns.
fn matmuls_of_all_types(gpu: Gpu, columns: &[usize], tiles: &[[usize; 2]]) -> Vec<Specialization> {
    let mut kernels = Vec::new();
    for_each_layout(|ty, layout| {
        for &n in columns {
            kernels.extend(product_kernels_on(gpu, ty, layout, [2048, 32, n], 0));
        }
        for &[m, n] in tiles {
            kernels.extend(product_kernels_on(gpu, ty, layout, [2048, m, n], 0));
            kernels.extend(product_kernels_on(gpu, ty, layout, [2048, m, 8 * n], 8));
        }
    });
    kernels.retain(Specialization::is_hot);
    distinct(kernels)
}

/// Returns each kernel once.
fn distinct_kernels(kernels: Vec<Specialization>) -> Vec<Specialization> {
    let all: BTreeMap<String, Specialization> = kernels.into_iter().map(|k| (k.describe(), k)).collect();
    all.into_values().collect()
}

/// Returns each kernel once. Every quantized type must have a kernel.
fn distinct(kernels: Vec<Specialization>) -> Vec<Specialization> {
    let all = distinct_kernels(kernels);
    let names: Vec<String> = all.iter().map(Specialization::describe).collect();
    for ty in GgmlType::ALL
        .iter()
        .filter(|ty| ty.is_quantized() && kernels::can_dequantize(**ty))
    {
        let mark = format!("TYPE={ty}");
        assert!(
            names.iter().any(|name| name.contains(&mark)),
            "no kernel of {ty}: {names:?}"
        );
    }
    all
}

#[test]
#[ignore = "compiles the matmuls with few columns of every type for five architectures"]
fn matmuls_of_all_types_with_few_columns_use_no_local_memory() {
    let name = "cuda_kernels::matmuls_of_all_types_with_few_columns_use_no_local_memory";
    with_device(name, || {
        let all = matmuls_of_all_types(Gpu::H100, &[1, 2, 3, 8], &[[64, 17]]);
        check(&all, &CAPABILITIES);
    });
}

#[test]
#[ignore = "compiles the matmuls of prompts of every type for five architectures"]
fn matmuls_of_all_types_with_tiles_use_no_local_memory() {
    let name = "cuda_kernels::matmuls_of_all_types_with_tiles_use_no_local_memory";
    with_device(name, || {
        let tiles = [[1024, 512], [4096, 512], [14336, 2048]];
        let all = [Gpu::H100, Gpu::RTX_4090].map(|gpu| matmuls_of_all_types(gpu, &[], &tiles));
        check(&distinct_kernels(all.concat()), &CAPABILITIES);
    });
}

#[test]
#[ignore = "compiles the matmuls of warpgroups of every type"]
fn matmuls_of_all_types_with_warpgroups_use_no_local_memory() {
    let name = "cuda_kernels::matmuls_of_all_types_with_warpgroups_use_no_local_memory";
    with_device(name, || {
        let mut all = Vec::new();
        for_each_layout(|ty, layout| all.extend(warpgroup_kernels(ty, layout)));
        check(&distinct(all), &HOPPER);
    });
}

/// Kernels for compute capability 7.5, planned for a T4.
#[test]
#[ignore = "compiles the matmuls of every type for compute capability 7.5"]
fn matmuls_of_all_types_compile_for_turing() {
    let name = "cuda_kernels::matmuls_of_all_types_compile_for_turing";
    with_device(name, || {
        let mut all = matmuls_of_all_types(Gpu::T4, &[1, 8], &[[64, 17], [4096, 512]]);
        all.extend(matmuls_of_all_types(Gpu::RTX_2080_TI, &[], &[[1024, 512], [4096, 512]]));
        check(&distinct_kernels(all), &TURING);
    });
}

/// Kernels of fixtures for compute capability 7.5, and the most common matmuls.
#[test]
fn kernels_compile_for_turing() {
    with_device("cuda_kernels::kernels_compile_for_turing", || {
        let mut kernels = kernels_of(&["qwen3-dense", "llama-moe"], Gpu::T4);
        for ty in [GgmlType::Q4_K, GgmlType::Q8_0, GgmlType::F16] {
            for n in [1, 8, 17, 512] {
                kernels.extend(product_kernels_on(Gpu::T4, ty, Layout::Plain, [2048, 4096, n], 0));
            }
        }
        let names: Vec<String> = kernels.iter().map(Specialization::describe).collect();
        for name in [
            "mul_mat_tensor",
            "mul_stream",
            "mul_few_int",
            "mul_vec_int",
            "attention",
        ] {
            assert!(names.iter().any(|found| found.starts_with(name)), "{name}: {names:?}");
        }
        check(&kernels, &TURING);
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
            let kernels = product_kernels(ty, layout, [2048, 32, n], 0);
            let found = kernels.into_iter().find(|kernel| {
                ["mul_vec_int", "mul_few_int"]
                    .iter()
                    .any(|name| kernel.describe().starts_with(name))
            });
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
        for (title, report) in reports_without_local_memory(&kernels, HOPPER[0]) {
            let used = report.lines().find(|line| line.contains("registers"));
            eprintln!("{title}: {}", used.unwrap_or_default());
        }
    });
}

/// Returns attention kernels of common head sizes and groups, for f32 arithmetic and for tensor cores, with and
/// without blocks that share a token.
fn decode_attention_kernels() -> Vec<Specialization> {
    let kernels = |(ty, [dk, dv], [n_head, n_head_kv], n_kv): (GgmlType, [usize; 2], [usize; 2], usize)| {
        let mut graph = Graph::new();
        let q = graph.input(GgmlType::F32, [dk, n_head, 1, 1], "q");
        let k = graph.input(ty, [dk, n_head_kv, n_kv, 1], "k");
        let v = if dv < dk {
            let nb = graph.tensor(k).nb;
            graph
                .view(k, [dv, n_head_kv, n_kv, 1], nb, 0)
                .expect("values are part of the keys")
        } else {
            graph.input(ty, [dv, n_head_kv, n_kv, 1], "v")
        };
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
        [Precision::Exact, Precision::Fast].map(|precision| specializations(&graph, node, precision, Gpu::H100))
    };
    let shapes = [
        (GgmlType::F16, [128, 128], [32, 8], 64),
        (GgmlType::F16, [128, 128], [64, 8], 4096),
        (GgmlType::F16, [64, 64], [16, 1], 4096),
        (GgmlType::BF16, [256, 256], [8, 4], 4096),
        (GgmlType::Q8_0, [128, 128], [32, 8], 4096),
        (GgmlType::Q8_0, [64, 64], [40, 4], 4096),
        (GgmlType::Q4_0, [128, 128], [32, 8], 4096),
        (GgmlType::F16, [576, 512], [128, 1], 4096),
        (GgmlType::Q8_0, [576, 512], [128, 1], 4096),
        (GgmlType::Q4_0, [576, 512], [8, 1], 4096),
    ];
    let all: BTreeMap<_, _> = (shapes.into_iter().flat_map(kernels).flatten())
        .map(|kernel| (kernel.describe(), kernel))
        .collect();
    let count = |name: &str| all.keys().filter(|title| title.starts_with(name)).count();
    assert_eq!((count("attention ("), count("attention_pages (")), (10, 10));
    all.into_values().collect()
}

/// A stack frame would keep values in memory although nothing spills.
#[test]
fn decode_attention_compiles_without_spills_or_stack() {
    let name = "cuda_kernels::decode_attention_compiles_without_spills_or_stack";
    with_device(name, || {
        let kernels = decode_attention_kernels();
        for capability in OLDEST_AND_NEWEST {
            reports_without_local_memory(&kernels, capability);
        }
    });
}

/// Returns kernels for linear attention of prompts, in chunks for `Precision::Fast`, with the head sizes of published
/// models.
fn linear_attention_kernels() -> Vec<Specialization> {
    let kernels = |[dk, dv, n_tokens]: [usize; 3], n_decays: usize| {
        let mut graph = Graph::new();
        let cells = graph.input(GgmlType::F32, [dk * dv * 2, 1, 1, 1], "cells");
        let mut list = || graph.input(GgmlType::I32, [n_tokens, 1, 1, 1], "list");
        let mut sources = vec![cells, list(), list()];
        let mut floats = |ne| sources.push(graph.input(GgmlType::F32, ne, "operand"));
        let delta = n_decays > 0;
        let gates = [[n_decays, 2], [1, 2]];
        let gates = if delta { &gates[..] } else { &[] };
        for &[size, heads] in [[dk, 1], [dk, 1], [dv, 2]].iter().chain(gates) {
            floats([size, heads, n_tokens, 1]);
        }
        let rule = LinearAttention {
            scale: 0.1,
            delta,
            tiled: false,
            slope: 0.0,
        };
        let node = graph.recur(Recurrence::LinearAttention(rule), &sources);
        let node = node.expect("the shapes match");
        [Precision::Exact, Precision::Fast].map(|precision| specializations(&graph, node, precision, Gpu::H100))
    };
    let sizes = [[128, 128, 512], [64, 64, 512], [128, 128, 8]];
    let all = sizes.map(|sizes| [0, 1, sizes[0]].map(|n_decays| kernels(sizes, n_decays)));
    let all: BTreeMap<_, _> = (all.into_iter().flatten().flatten().flatten())
        .map(|kernel| (kernel.describe(), kernel))
        .collect();
    let count = |name: &str| all.keys().filter(|title| title.starts_with(name)).count();
    assert_eq!((count("scan ("), count("scan_chunks (")), (9, 6), "{:?}", all.keys());
    all.into_values().collect()
}

#[test]
fn linear_attention_compiles_without_spills_or_stack() {
    let name = "cuda_kernels::linear_attention_compiles_without_spills_or_stack";
    with_device(name, || check(&linear_attention_kernels(), &OLDEST_AND_NEWEST));
}

#[test]
#[ignore = "compiles attention and the largest matmuls for five architectures"]
fn largest_and_attention_kernels_use_no_local_memory_on_any_architecture() {
    let name = "cuda_kernels::largest_and_attention_kernels_use_no_local_memory_on_any_architecture";
    with_device(name, || {
        check(&largest_kernels(), &CAPABILITIES);
        check(&linear_attention_kernels(), &CAPABILITIES);
        let attention = decode_attention_kernels();
        for capability in CAPABILITIES {
            reports_without_local_memory(&attention, capability);
        }
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
        let kernels = specializations(&graph, product, Precision::Fast, Gpu::H100);
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
#[ignore = "compiles the kernels of every fixture for five architectures"]
fn kernels_of_every_model_compile() {
    with_device("cuda_kernels::kernels_of_every_model_compile", || {
        let names = fixture_names();
        let kernels = kernels_of(&names, Gpu::H100);
        check(&kernels, &CAPABILITIES);
    });
}

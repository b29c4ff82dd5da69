//! Work of decode steps with several columns, counted by the emulated driver.

use engine::backend::cuda::{Counters, Specialization, loaded};
use engine::context::{Batch, Context, SeqSet};
use kernels::{GgmlType, Precision};
use tests::emulator::with_device;
use tests::{context, decode_last, fixture, tokens};

use crate::cuda::{card, params};
use crate::cuda_fusion::Sketch;
use crate::cuda_stream::{check_experts, check_matmul, incomplete_sizes};

/// Returns the counters of the emulated driver, or `None` for a real driver.
fn counters() -> Option<serde_json::Value> {
    let all = Counters::find()?.json();
    Some(serde_json::from_str(&all).expect("the counters are JSON"))
}

/// Returns the warp instructions of a matmul with `n` columns, and the bytes of the weights that it loads.
fn counted(ty: GgmlType, n: usize) -> Option<(u64, u64)> {
    let mut s = Sketch::new(Precision::Fast);
    let w = s.values(ty, [4096, 256, 1, 1]);
    let x = s.values(GgmlType::F32, [4096, n, 1, 1]);
    let product = s.graph.mul_mat(w, x).expect("the shapes match");
    s.graph.expand(product);
    s.both(&[product]);
    let all = counters()?;
    let kernels = all["kernels"].as_object().expect("kernels were launched");
    let (_, matmul) = (kernels.iter())
        .find(|(name, _)| name.starts_with("mul_"))
        .expect("a kernel multiplies");
    let instructions = matmul["instructions"].as_object().expect("classes of instructions");
    let warps = instructions
        .values()
        .map(|class| class["warps"].as_u64().expect("a counter"));
    Some((warps.sum(), matmul["copies"]["bytes"].as_u64().expect("a counter")))
}

/// Warp instructions of two and of eight columns, relative to one column.
const INSTRUCTIONS: [(GgmlType, [f64; 2]); 5] = [
    (GgmlType::Q4_K, [1.04, 2.07]),
    (GgmlType::Q6_K, [1.57, 2.67]),
    (GgmlType::Q8_0, [1.26, 2.24]),
    (GgmlType::Q4_0, [1.37, 2.23]),
    (GgmlType::Q5_K, [1.07, 1.77]),
];

/// Eight columns load the weights once. The numbers of instructions must exceed the recorded numbers by at most 5 %.
/// The target of the kernel is a time: 1.15 times the time of one column.
#[test]
fn eight_columns_load_weights_once() {
    with_device("cuda_few::eight_columns_load_weights_once", || {
        for (ty, recorded) in INSTRUCTIONS {
            let [one, two, eight] = [1, 2, 8].map(|n| counted(ty, n));
            let (Some(one), Some(two), Some(eight)) = (one, two, eight) else {
                return;
            };
            assert_eq!((two.1, eight.1), (one.1, one.1), "{ty}: bytes of the weights");
            let ratios = [two.0, eight.0].map(|n| n as f64 / one.0 as f64);
            let fits = ratios
                .iter()
                .zip(recorded)
                .all(|(found, recorded)| *found <= 1.05 * recorded);
            assert!(fits, "{ty}: {ratios:?} times the instructions, recorded {recorded:?}");
        }
    });
}

/// Rows that are padded to multiples of 16 bytes are multiplied by the kernels for aligned rows.
#[test]
fn padded_rows_are_multiplied_as_integers() {
    with_device("cuda_few::padded_rows_are_multiplied_as_integers", || {
        let is_stored = |ty: &GgmlType| ty.is_quantized() && ty.row_header() == 0 && kernels::can_dequantize(*ty);
        for &ty in GgmlType::ALL.iter().filter(|ty| is_stored(ty)) {
            for n in [1, 5] {
                check_matmul(ty, [incomplete_sizes(ty)[0], 40, n]);
            }
            let used: Vec<String> = loaded().iter().map(Specialization::describe).collect();
            let of_type = format!("TYPE={}", ty.name());
            for kernel in ["mul_vec_int", "mul_few_int"] {
                let is_meant = |name: &String| name.starts_with(kernel) && name.contains(&of_type);
                assert!(used.iter().any(is_meant), "{kernel} of {ty}: {used:?}");
            }
        }
        check_experts(GgmlType::MXFP4, [2880, 40], [3, 1]);
    });
}

/// The three matrices of an expert share the grouping of columns by expert.
#[test]
fn experts_of_a_layer_group_columns_once() {
    with_device("cuda_few::experts_of_a_layer_group_columns_once", || {
        let name = "llama-moe";
        let model = fixture(name)
            .model(archs::ALL, &params(&card(), usize::MAX))
            .expect("the fixture's model loads");
        let mut ctx = context(&model, |_| {});
        Counters::find().inspect(|counters| counters.reset());
        let logits = decode_last(&mut ctx, &tokens(name)[..16], 0, 0);
        let Some(all) = counters() else { return };
        let launches = |marks: [&str; 2]| -> u64 {
            let kernels = all["kernels"].as_object().expect("kernels were launched");
            let found = kernels
                .iter()
                .filter(|(name, _)| marks.iter().all(|mark| name.contains(mark)));
            found
                .map(|(_, kernel)| kernel["launches"].as_u64().expect("a counter"))
                .sum()
        };
        let (groups, matmuls) = (launches(["group (", "group.cu"]), launches(["mul_mat", "IDS=1"]));
        assert!(
            groups > 0 && matmuls == 3 * groups,
            "{matmuls} matmuls, {groups} groupings"
        );
        let want = decode_last(&mut context(&tests::model(name), |_| {}), &tokens(name)[..16], 0, 0);
        let error = tests::nmse(&want, &logits);
        assert!(error < 1e-6, "NMSE {error:.3e}");
    });
}

/// A server's batch grows and shrinks. Batches are padded to powers of two, and the graph of each size is built
/// once.
#[test]
fn batches_of_all_sizes_share_few_graphs() {
    const SIZES: [usize; 12] = [8, 7, 6, 5, 4, 3, 2, 1, 3, 5, 7, 2];
    with_device("cuda_few::batches_of_all_sizes_share_few_graphs", || {
        for name in ["qwen3-dense", "gemma3-dense", "deepseek2-moe", "mamba2-dense"] {
            let on_gpu = fixture(name)
                .model(archs::ALL, &params(&card(), usize::MAX))
                .expect("the fixture's model loads");
            let [mut ctx, mut reference] = [&on_gpu, &tests::model(name)].map(|m| context(m, |p| p.n_seq_max = 8));
            // The lengths of the sequences differ only where larger batches precede smaller ones.
            for (pos, &n) in SIZES.iter().enumerate() {
                let n_before = |seq: usize| SIZES[..pos].iter().filter(|&&n| seq < n).count();
                let batch = |ctx: &mut Context| {
                    let mut batch = Batch::new();
                    for seq in 0..n {
                        let token = ((seq * 31 + pos * 7) % 100) as u32;
                        batch.push(token, n_before(seq), SeqSet::one(seq), true);
                    }
                    ctx.decode(&batch).expect("the batch is valid");
                    (0..n)
                        .flat_map(|i| ctx.logits(i).expect("every token has logits").to_vec())
                        .collect()
                };
                let [want, got]: [Vec<f32>; 2] = [batch(&mut reference), batch(&mut ctx)];
                let error = tests::nmse(&want, &got);
                assert!(error < 1e-6, "{name}, step {pos} with {n} sequences: NMSE {error:.3e}");
            }
            let n_sizes = if name == "mamba2-dense" { 8 } else { 4 };
            assert_eq!(ctx.perf().n_built, n_sizes, "{name}");
        }
    });
}

/// The inputs of a decode step reach the device in one copy, and a kernel distributes them. The logits and the
/// record of invalid indices are copied back.
#[test]
fn decode_step_copies_its_inputs_once() {
    with_device("cuda_few::decode_step_copies_its_inputs_once", || {
        for name in ["qwen3-dense", "gemma3-dense", "mamba2-dense"] {
            let model = fixture(name)
                .model(archs::ALL, &params(&card(), usize::MAX))
                .expect("the fixture's model loads");
            let mut ctx = context(&model, |_| {});
            let tokens = tokens(name);
            // Enough runs for a recording.
            for (pos, token) in tokens[..5].iter().enumerate() {
                decode_last(&mut ctx, &[*token], pos, 0);
            }
            Counters::find().inspect(|counters| counters.reset());
            decode_last(&mut ctx, &tokens[5..6], 5, 0);
            let Some(all) = counters() else { return };
            let count = |name: &str| all[name].as_u64().expect("a counter");
            assert_eq!(count("graph_launches"), 1, "{name}: {all}");
            assert_eq!(all["kernels"]["scatter (scatter.cu)"]["launches"], 1, "{name}");
            assert_eq!([count("copies_to"), count("copies_from")], [1, 2], "{name}");
        }
    });
}

//! Results that the producing kernel already rounds for the matmul that consumes them.

use engine::graph::{Attention, AttentionOperands, TensorId, Unary, VisibleCells};
use kernels::{GgmlType, Precision};
use tests::emulator::with_device;
use tests::nmse;

use crate::cuda_fusion::Sketch;

const F32: GgmlType = GgmlType::F32;

/// Asserts that the nodes give bit-identical results together and separately, and the number of kernels
/// together.
fn check(mut s: Sketch, results: &[TensorId], n_kernels: usize, case: &str) {
    let [apart, together] = s.both(results);
    assert!(
        apart.0 == together.0,
        "{case}: results differ between fused and separate nodes"
    );
    if let Some(found) = together.1 {
        assert_eq!(found, n_kernels, "{case}: number of kernels of the fused nodes");
    }
}

/// Covers enough rows for 32-row blocks, and fewer rows.
#[test]
fn fused_rounding_of_gated_matmuls_is_bit_identical() {
    with_device(
        "cuda_rounding::fused_rounding_of_gated_matmuls_is_bit_identical",
        || {
            use GgmlType::*;
            for ty in [Q4_0, Q8_0, Q4_K, Q6_K, Q2_K, MXFP4] {
                gated(ty, 6144, 1, 0, 3);
            }
            for n in [3, 8] {
                gated(Q4_K, 6144, n, 0, 3);
            }
            gated(Q4_K, 768, 4, 3, 3);
            gated(Q4_K, 1024, 1, 0, 4);
            gated(Q5_1, 6208, 1, 0, 3);
        },
    );
}

/// Checks `down (silu(gate x) * (up x))` with `n` columns, optionally with experts.
fn gated(ty: GgmlType, m: usize, n: usize, n_experts: usize, n_kernels: usize) {
    let k = 2048;
    let mut s = Sketch::new(Precision::Fast);
    let n_matrices = n_experts.max(1);
    let [gate, up] = [0; 2].map(|_| s.values(ty, [k, m, n_matrices, 1]));
    let down = s.values(GgmlType::Q5_1, [m, 35, n_matrices, 1]);
    let (x, ids) = match n_experts {
        0 => (s.values(F32, [k, n, 1, 1]), None),
        _ => {
            let experts: Vec<i32> = (0..2 * n).map(|i| (i * i % n_experts) as i32).collect();
            (s.values(F32, [k, 1, n, 1]), Some(s.ints(&experts, [2, n, 1, 1])))
        }
    };
    let g = &mut s.graph;
    let mut product = |w, x| match ids {
        None => g.mul_mat(w, x).expect("the shapes match"),
        Some(ids) => g.mul_mat_id(w, x, ids).expect("the shapes match"),
    };
    let [f, times] = [gate, up].map(|w| product(w, x));
    s.graph.expand(f);
    let glu = s.graph.glu(Unary::Silu, f, times).expect("the shapes match");
    let result = match ids {
        None => s.graph.mul_mat(down, glu).expect("the shapes match"),
        Some(ids) => s.graph.mul_mat_id(down, glu, ids).expect("the shapes match"),
    };
    s.graph.expand(result);
    let case = format!("{ty}, {m} rows, {n} columns, {n_experts} experts");
    check(s, &[glu, result], n_kernels, &case);
}

#[test]
fn fused_rounding_of_attention_is_bit_identical() {
    with_device("cuda_rounding::fused_rounding_of_attention_is_bit_identical", || {
        for (size, group, sinks) in [(64, 4, false), (128, 2, true), (32, 4, false), (96, 4, true)] {
            for n_tokens in [1, 5] {
                attention(size, group, sinks, n_tokens, 100, 2);
            }
        }
        // Several blocks process one token's pages, and another kernel combines their results.
        attention(128, 4, true, 1, 1200, 3);
        // The head size is not a multiple of the quantization group.
        attention(48, 8, false, 1, 100, 3);
    });
}

/// Checks attention with `group` query heads for each of two KV heads, and a matmul with its result.
fn attention(size: usize, group: usize, has_sinks: bool, n_tokens: usize, n_cells: usize, n_kernels: usize) {
    let n_head = 2 * group;
    let mut s = Sketch::new(Precision::Fast);
    let q = s.values(F32, [size, n_head, n_tokens, 1]);
    let [k, v] = [0; 2].map(|_| s.values(GgmlType::F16, [size, 2, n_cells, 1]));
    let w = s.values(GgmlType::Q8_0, [size * n_head, 35, 1, 1]);
    let sinks = has_sinks.then(|| s.values(F32, [n_head, 1, 1, 1]));
    let n_pages = n_cells.div_ceil(64);
    let range = |n: usize, step: i32| -> Vec<i32> { (0..n as i32).map(|i| i * step).collect() };
    let visible = VisibleCells {
        cell_pos: s.ints(&range(n_cells, 1), [n_cells, 1, 1, 1]),
        pos: s.ints(&vec![n_cells as i32 - 1; n_tokens], [n_tokens, 1, 1, 1]),
        table: s.ints(&vec![0; n_tokens], [n_tokens, 1, 1, 1]),
        starts: s.ints(&[0, n_pages as i32], [2, 1, 1, 1]),
        pages: s.ints(&range(n_pages, 64), [n_pages, 1, 1, 1]),
        masks: s.leaf(GgmlType::I64, [n_pages, 1, 1, 1], vec![0xff; 8 * n_pages]),
    };
    let mut p = Attention::causal(1.0 / (size as f32).sqrt());
    p.sinks = has_sinks;
    let operands = AttentionOperands {
        sinks,
        ..AttentionOperands::new([q, k, v], visible)
    };
    let attended = s.graph.attention(p, operands).expect("the shapes match");
    s.graph.expand(attended);
    let rows = s
        .graph
        .reshape(attended, [size * n_head, n_tokens, 1, 1])
        .expect("the shapes match");
    let result = s.graph.mul_mat(w, rows).expect("the shapes match");
    s.graph.expand(result);
    let case = format!("{n_head} heads of {size}, sinks {has_sinks}, {n_tokens} tokens, {n_cells} cells");
    check(s, &[attended, result], n_kernels, &case);
}

/// Integer kernels for few columns match float kernels up to the rounding of activations to 16 bits.
#[test]
fn integer_matmuls_match_float_matmuls() {
    with_device("cuda_rounding::integer_matmuls_match_float_matmuls", || {
        let types = GgmlType::ALL
            .iter()
            .copied()
            .filter(|ty| ty.is_quantized() && kernels::can_dequantize(*ty));
        for ty in types {
            for (k, n) in [(2048, 1), (6144, 3), (4096, 8)] {
                let product = |precision: Precision| {
                    let mut s = Sketch::new(precision);
                    let w = s.values(ty, [k, 7, 1, 1]);
                    let x = s.values(F32, [k, n, 1, 1]);
                    let product = s.graph.mul_mat(w, x).expect("the shapes match");
                    s.graph.expand(product);
                    let [_, (bytes, _)] = s.both(&[product]);
                    let (values, _) = bytes[0].as_chunks::<4>();
                    values
                        .iter()
                        .map(|&bytes| f32::from_le_bytes(bytes))
                        .collect::<Vec<f32>>()
                };
                let (want, got) = (product(Precision::Exact), product(Precision::High));
                let error = nmse(&want, &got);
                assert!(error < 1e-8, "{ty}, {n} columns: NMSE {error:.3e}");
                assert!(
                    want != got,
                    "{ty}, {n} columns: the results are identical, so nothing was rounded"
                );
            }
        }
    });
}

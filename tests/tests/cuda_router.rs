//! Compares the fused selection of experts, and the fused weighted sum of their results, with the same nodes computed
//! one by one.

use engine::graph::{TensorId, Unary};
use kernels::{GgmlType, Precision};
use tests::emulator::with_device;
use tests::nmse;

use crate::cuda_fusion::Sketch;

const F32: GgmlType = GgmlType::F32;

/// Functions of all logits, and of the selected weights.
#[derive(Clone, Copy, Debug)]
enum Gating {
    Softmax,
    Sigmoid,
    SqrtSoftplus,
    SoftmaxOfUsed,
}

/// Options of a selection.
#[derive(Clone, Copy, Debug)]
struct Options {
    gating: Gating,
    bias: bool,
    normalizes: bool,
    scale: Option<f32>,
    /// True if the weights are stored over the logits, and read by another node.
    over_logits: bool,
}

const PLAIN: Options = Options {
    gating: Gating::Softmax,
    bias: false,
    normalizes: false,
    scale: None,
    over_logits: false,
};

/// Builds a selection. Returns the ids and the weights.
fn select(s: &mut Sketch, options: Options, [n, n_used, n_tokens]: [usize; 3]) -> [TensorId; 2] {
    let (logits, bias) = (s.values(F32, [n, n_tokens, 1, 1]), s.values(F32, [n, 1, 1, 1]));
    let g = &mut s.graph;
    let gates = match options.gating {
        Gating::Softmax => g.soft_max(logits, 1.0),
        Gating::Sigmoid => g.unary(Unary::Sigmoid, logits),
        Gating::SqrtSoftplus => {
            let x = g.unary(Unary::Softplus, logits).expect("the shapes match");
            g.unary(Unary::Sqrt, x)
        }
        Gating::SoftmaxOfUsed => Ok(logits),
    };
    let gates = gates.expect("the shapes match");
    let by = if options.bias {
        g.add(gates, bias).expect("the shapes match")
    } else {
        gates
    };
    let ids = g.top_k(by, n_used).expect("the shapes match");
    g.expand(ids);
    let table = g.reshape(gates, [1, n, n_tokens, 1]).expect("the shapes match");
    let weights = g.get_rows(table, ids).expect("the shapes match");
    let mut weights = g.reshape(weights, [n_used, n_tokens, 1, 1]).expect("the shapes match");
    if matches!(options.gating, Gating::SoftmaxOfUsed) {
        weights = g.soft_max(weights, 1.0).expect("the shapes match");
    }
    if options.normalizes {
        let sum = g.sum_rows(weights).expect("the shapes match");
        let sum = g.clamp(sum, 1e-4, f32::INFINITY).expect("the shapes match");
        weights = g.div(weights, sum).expect("the shapes match");
    }
    if let Some(scale) = options.scale {
        weights = g.scale(weights, scale, 0.0).expect("the shapes match");
    }
    if options.over_logits {
        s.shared.insert(weights, (logits, 0));
        weights = s.graph.unary(Unary::Neg, weights).expect("the shapes match");
    }
    s.graph.expand(weights);
    [ids, weights]
}

#[test]
fn fused_selection_of_experts_matches_separate_nodes() {
    let name = "cuda_router::fused_selection_of_experts_matches_separate_nodes";
    with_device(name, || {
        let mut all = vec![PLAIN];
        for gating in [
            Gating::Softmax,
            Gating::Sigmoid,
            Gating::SqrtSoftplus,
            Gating::SoftmaxOfUsed,
        ] {
            for (bias, normalizes, scale) in [(false, true, None), (true, true, Some(2.5)), (true, false, Some(0.5))] {
                for over_logits in [false, true] {
                    all.push(Options {
                        gating,
                        bias,
                        normalizes,
                        scale,
                        over_logits,
                    });
                }
            }
        }
        for (options, size) in all
            .iter()
            .flat_map(|options| [[8, 2, 5], [130, 8, 3], [1024, 32, 1], [3, 3, 1]].map(|size| (*options, size)))
        {
            let mut s = Sketch::new(Precision::Exact);
            let results = select(&mut s, options, size);
            let [apart, together] = s.both(&results);
            let case = format!("{options:?}, {size:?}");
            assert_eq!(apart.0[0], together.0[0], "{case}: experts");
            let [want, got] = [&apart, &together].map(|run| floats(&run.0[1]));
            let error = nmse(&want, &got);
            assert!(error <= 1e-13, "{case}: weights differ by {error:.1e}");
            if let (Some(_), Some(n)) = (apart.1, together.1) {
                assert_eq!(n, 1 + usize::from(options.over_logits), "{case}: kernels");
            }
        }
    });
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4);
    words
        .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect()
}

#[test]
fn fused_weighted_sum_is_bit_identical() {
    with_device("cuda_router::fused_weighted_sum_is_bit_identical", || {
        for [n, n_used, n_tokens] in [[96, 2, 1], [70, 8, 5], [33, 13, 2]] {
            for over_results in [false, true] {
                let mut s = Sketch::new(Precision::Exact);
                let x = s.values(F32, [n, n_used, n_tokens, 1]);
                let weights = s.values(F32, [1, n_used, n_tokens, 1]);
                let product = s.graph.mul(x, weights).expect("the shapes match");
                let nb = s.graph.tensor(product).nb;
                let mut sum = None;
                for i in 0..n_used {
                    let part = s
                        .graph
                        .view(product, [n, n_tokens, 1, 1], [nb[0], nb[2], nb[3], nb[3]], i * nb[1])
                        .expect("the part exists");
                    sum = Some(match sum {
                        None => part,
                        Some(sum) => s.graph.add(sum, part).expect("the shapes match"),
                    });
                }
                let mut result = sum.expect("there are experts");
                if over_results {
                    // The sum is relocated, since its memory contains results of other tokens.
                    s.shared.insert(result, (x, 0));
                    result = s.graph.unary(Unary::Neg, result).expect("the shapes match");
                }
                s.graph.expand(result);
                s.check(&[result], true, &format!("{n}, {n_used}, {n_tokens}, {over_results}"));
            }
        }
    });
}

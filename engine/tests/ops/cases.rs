//! The test cases by family.

use engine::graph::{NO_ROW, NgramHash, Op, Recurrence, Rope, RopeKind, Unary};
use kernels::GgmlType;
use kernels::GgmlType::{BF16, F16, F32, Q4_0, Q8_0};

use super::case::{Case, Data, Operand, floats, floats_in, i32s, i64s, ids, weights};

pub fn readable_types() -> impl Iterator<Item = GgmlType> {
    GgmlType::ALL.iter().copied().filter(|&ty| kernels::can_dequantize(ty))
}

pub fn sums_and_products() -> Vec<Case> {
    let shapes = [
        ([1, 1, 1, 1], [1, 1, 1, 1]),
        ([7, 1, 1, 1], [7, 1, 1, 1]),
        ([64, 5, 1, 1], [64, 1, 1, 1]),
        ([33, 5, 3, 2], [33, 5, 3, 2]),
        ([12, 4, 3, 2], [12, 2, 1, 2]),
        ([12, 4, 3, 2], [1, 4, 3, 1]),
        ([12, 4, 3, 2], [4, 1, 3, 1]),
        ([1, 6, 2, 1], [1, 1, 1, 1]),
        ([3000, 2, 1, 1], [3000, 2, 1, 1]),
    ];
    let ops = [Op::Add, Op::Sub, Op::Mul, Op::Div];
    let mut all: Vec<Case> = Vec::new();
    for op in ops {
        // Divisors are not close to zero.
        all.extend(shapes.map(|(a, b)| Case::new(op, &[floats(a), floats_in(0.5, 2.0, b)])));
        let b = floats_in(0.5, 2.0, [12, 4, 3, 2]);
        all.push(Case::new(
            op,
            &[floats([12, 4, 3, 2]).permuted([2, 0, 1, 3]), b.clone()],
        ));
        all.push(Case::new(
            op,
            &[floats([12, 4, 3, 2]), b.clone().permuted([1, 0, 3, 2])],
        ));
        all.push(Case::new(op, &[floats([12, 4, 3, 2]).part(1), b.part(1)]));
    }
    all.push(Case::new(
        Op::Add,
        &[floats([64, 3, 1, 1]), weights(F16, [64, 1, 1, 1])],
    ));
    all.push(Case::new(
        Op::Mul,
        &[floats([64, 3, 1, 1]), weights(Q8_0, [32, 1, 1, 1])],
    ));
    all
}

pub fn scaling() -> Vec<Case> {
    let scale = Op::Scale {
        scale: -2.5,
        bias: 0.25,
    };
    let clamp = Op::Clamp { min: -0.5, max: 0.25 };
    let half_open = Op::Clamp {
        min: 0.125,
        max: f32::INFINITY,
    };
    let mut all = Vec::new();
    for op in [scale, clamp, half_open] {
        for ne in [[1, 1, 1, 1], [37, 3, 1, 1], [5000, 1, 1, 1], [16, 2, 3, 2]] {
            all.push(Case::new(op, &[floats(ne)]));
        }
        all.push(Case::new(op, &[floats([9, 4, 3, 2]).permuted([3, 2, 1, 0])]));
        all.push(Case::new(op, &[floats([9, 4, 3, 2]).part(2)]));
    }
    all
}

const UNARY: [Unary; 14] = [
    Unary::Neg,
    Unary::Abs,
    Unary::Sqr,
    Unary::Sqrt,
    Unary::Exp,
    Unary::Tanh,
    Unary::Sigmoid,
    Unary::Relu,
    Unary::ReluSqr,
    Unary::Silu,
    Unary::Gelu,
    Unary::GeluErf,
    Unary::GeluQuick,
    Unary::Softplus,
];

pub fn activations() -> Vec<Case> {
    let mut all = Vec::new();
    for f in UNARY {
        let low = if f == Unary::Sqrt { 0.0 } else { -8.0 };
        for ne in [[1, 1, 1, 1], [1029, 3, 1, 1], [8, 3, 2, 2]] {
            all.push(Case::new(Op::Unary(f), &[floats_in(low, 8.0, ne)]));
        }
        all.push(Case::new(
            Op::Unary(f),
            &[floats_in(low, 8.0, [8, 3, 2, 2]).permuted([1, 0, 2, 3])],
        ));
    }
    // Large arguments must not overflow unnecessarily.
    for f in [
        Unary::Sigmoid,
        Unary::Silu,
        Unary::Gelu,
        Unary::GeluErf,
        Unary::GeluQuick,
        Unary::Softplus,
        Unary::Tanh,
    ] {
        all.push(Case::new(Op::Unary(f), &[floats_in(-300.0, 300.0, [500, 1, 1, 1])]));
    }
    all
}

pub fn gated_units() -> Vec<Case> {
    let mut all = Vec::new();
    for f in UNARY {
        let gate = |ne| floats_in(if f == Unary::Sqrt { 0.0 } else { -8.0 }, 8.0, ne);
        all.push(Case::new(Op::Glu(f), &[gate([1029, 3, 1, 1]), floats([1029, 3, 1, 1])]));
        all.push(Case::new(
            Op::Glu(f),
            &[
                gate([10, 3, 2, 1]).part(1),
                floats([10, 3, 2, 1]).permuted([2, 1, 0, 3]),
            ],
        ));
    }
    all
}

pub fn norms() -> Vec<Case> {
    let mut all = Vec::new();
    for op in [
        Op::RmsNorm { eps: 1e-5 },
        Op::Norm { eps: 1e-5 },
        Op::L2Norm { eps: 1e-6 },
    ] {
        for ne in [[1, 1, 1, 1], [576, 1, 1, 1], [64, 9, 5, 1], [67, 3, 2, 2]] {
            // The layer norm of a single element is always zero, for which no relative error exists.
            if op != (Op::Norm { eps: 1e-5 }) || ne[0] > 1 {
                all.push(Case::new(op, &[floats_in(-3.0, 5.0, ne)]));
            }
        }
        all.push(Case::new(op, &[floats([64, 9, 5, 1]).permuted([0, 2, 1, 3])]));
        all.push(Case::new(op, &[floats([64, 9, 5, 1]).permuted([1, 2, 0, 3])]));
        all.push(Case::new(op, &[floats([64, 9, 5, 1]).part(1)]));
    }
    // The rows are smaller than the epsilon of the op.
    for (n, iterations) in [(1, 0), (2, 1), (4, 2), (4, 20), (7, 5)] {
        let op = Op::Sinkhorn {
            n,
            iterations,
            eps: 1e-6,
        };
        all.push(Case::new(op, &[floats_in(-4.0, 4.0, [n * n, 5, 3, 1])]));
        all.push(Case::new(op, &[floats([n * n, 5, 3, 1]).part(1)]));
    }
    all.push(Case::new(Op::L2Norm { eps: 100.0 }, &[floats([64, 3, 1, 1])]));
    for ty in [F32, F16, BF16] {
        all.push(Case::new(
            Op::RmsNorm { eps: 1e-6 },
            &[floats([576, 5, 1, 1]), weights(ty, [576, 1, 1, 1])],
        ));
        all.push(Case::new(
            Op::RmsNorm { eps: 1e-6 },
            &[floats([64, 3, 5, 1]).part(1), weights(ty, [64, 1, 1, 1])],
        ));
    }
    all
}

pub fn softmax() -> Vec<Case> {
    let mut all = Vec::new();
    for ne in [[1, 1, 1, 1], [7, 5, 1, 1], [128, 3, 2, 1]] {
        all.push(Case::new(Op::SoftMax { scale: 1.0 }, &[floats_in(-5.0, 5.0, ne)]));
        all.push(Case::new(Op::SoftMax { scale: 0.125 }, &[floats_in(-900.0, 900.0, ne)]));
    }
    all.push(Case::new(
        Op::SoftMax { scale: 2.0 },
        &[floats([16, 4, 3, 1]).permuted([1, 2, 0, 3])],
    ));
    all
}

/// Returns an unscaled RoPE of `n_dims` elements with the frequency base of the first Llama models.
fn plain_rope(kind: RopeKind, n_dims: usize) -> Rope {
    Rope {
        kind,
        sections: [0; 4],
        n_dims,
        freq_base: 10_000.0,
        freq_scale: 1.0,
        ext_factor: 0.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        n_ctx_orig: 4096,
        every: 1,
        inverse: false,
    }
}

/// Returns whole and partial heads of several sizes, and negative positions.
pub fn rope() -> Vec<Case> {
    let mut all = Vec::new();
    for kind in [RopeKind::Norm, RopeKind::Neox] {
        for (ne, n_dims) in [
            ([2, 1, 1, 1], 2),
            ([64, 9, 1, 1], 64),
            ([64, 3, 7, 1], 64),
            ([80, 5, 4, 1], 32),
            ([6, 2, 2, 1], 0),
        ] {
            let positions = ids(5000, [ne[2], 1, 1, 1]);
            all.push(Case::new(Op::Rope(plain_rope(kind, n_dims)), &[floats(ne), positions]));
        }
    }
    // Positions shift in both directions when cache contents move.
    all.push(Case::new(
        Op::Rope(plain_rope(RopeKind::Neox, 64)),
        &[floats([64, 2, 3, 1]), i32s([-5, 0, 1 << 20])],
    ));
    all
}

/// Returns linear scaling, YaRN, position groups, and the inverse rotation, with and without frequency
/// factors.
pub fn rope_scaling() -> Vec<Case> {
    let mut all = Vec::new();
    for kind in [RopeKind::Norm, RopeKind::Neox] {
        let linear = Rope {
            freq_scale: 0.25,
            freq_base: 1e6,
            ..plain_rope(kind, 64)
        };
        let yarn = Rope {
            ext_factor: 1.0,
            attn_factor: 0.9,
            ..linear
        };
        let groups = Rope {
            every: 4,
            ..plain_rope(kind, 64)
        };
        let inverse = Rope { inverse: true, ..yarn };
        let half_yarn = Rope {
            ext_factor: 0.5,
            n_ctx_orig: 1 << 15,
            ..yarn
        };
        for p in [linear, yarn, half_yarn, groups, inverse] {
            let (x, positions) = (floats([128, 3, 7, 1]), ids(100_000, [7, 1, 1, 1]));
            let factors = floats_in(1.0, 8.0, [32, 1, 1, 1]);
            for operands in [
                vec![x.clone(), positions.clone()],
                vec![x.clone(), positions.clone(), factors.clone()],
                vec![x.clone().part(1), positions.clone(), factors],
                vec![x.permuted([0, 2, 1, 3]), positions],
            ] {
                all.push(Case::new(Op::Rope(p), &operands));
            }
        }
    }
    all
}

/// Returns sections that match the number of pairs, that are shorter and wrap around, and that are longer
/// than needed.
pub fn rope_sections() -> Vec<Case> {
    let mut all = Vec::new();
    for kind in [RopeKind::Mrope, RopeKind::Imrope] {
        for sections in [[8, 12, 12, 0], [5, 3, 2, 1], [16, 16, 16, 16], [0, 0, 7, 0]] {
            let p = Rope {
                sections,
                ..plain_rope(kind, 64)
            };
            for (ne, p) in [([64, 3, 7, 1], p), ([80, 5, 4, 1], Rope { n_dims: 32, ..p })] {
                all.push(Case::new(Op::Rope(p), &[floats(ne), ids(5000, [ne[2], 4, 1, 1])]));
            }
        }
    }
    all
}

pub fn attention_temperature() -> Vec<Case> {
    let mut all = Vec::new();
    for (length, offset) in [(1, 0.0), (8192, 1.0), (100, 0.0)] {
        let op = Op::AttentionTemperature {
            scale: 0.1,
            length,
            offset,
        };
        all.push(Case::new(op, &[ids(1 << 20, [9, 1, 1, 1])]));
        all.push(Case::new(op, &[i32s([0, 99, 100, 8191, 8192])]));
    }
    all
}

pub fn matrix_products() -> Vec<Case> {
    let mut all = Vec::new();
    for ty in [F32, F16, Q8_0] {
        for (k, m, n) in [
            (32, 1, 1),
            (64, 7, 1),
            (64, 1, 9),
            (576, 192, 1),
            (576, 193, 3),
            (96, 65, 33),
            (1024, 130, 40),
        ] {
            all.push(Case::new(
                Op::MulMat,
                &[weights(ty, [k, m, 1, 1]), floats([k, n, 1, 1])],
            ));
        }
        for (b, c) in [([2, 3], [2, 3]), ([1, 1], [4, 2]), ([2, 1], [6, 2])] {
            all.push(Case::new(
                Op::MulMat,
                &[weights(ty, [64, 5, b[0], b[1]]), floats([64, 3, c[0], c[1]])],
            ));
        }
        all.push(Case::new(
            Op::MulMat,
            &[weights(ty, [64, 11, 2, 1]).part(1), floats([64, 3, 4, 1]).part(1)],
        ));
        all.push(Case::new(
            Op::MulMat,
            &[
                weights(ty, [64, 11, 2, 1]).permuted([0, 2, 1, 3]),
                floats([64, 3, 4, 1]),
            ],
        ));
        all.push(Case::new(
            Op::MulMat,
            &[
                weights(ty, [64, 11, 1, 1]),
                floats([64, 70, 2, 1]).permuted([2, 0, 1, 3]),
            ],
        ));
        all.push(Case::new(
            Op::MulMat,
            &[
                weights(ty, [64, 11, 1, 1]),
                floats([64, 1, 1, 1]).permuted([1, 0, 2, 3]),
            ],
        ));
    }
    for (k, m, n) in [(1, 1, 1), (3, 5, 2), (31, 4, 1), (129, 17, 5)] {
        all.push(Case::new(
            Op::MulMat,
            &[weights(F32, [k, m, 1, 1]), floats([k, n, 1, 1])],
        ));
    }
    all
}

pub fn matrix_products_of_all_types() -> Vec<Case> {
    let mut all = Vec::new();
    for ty in readable_types() {
        for n in [1, 2, 17] {
            all.push(Case::new(
                Op::MulMat,
                &[weights(ty, [512, 37, 1, 1]), floats([512, n, 1, 1])],
            ));
        }
    }
    all
}

/// Returns matmuls with enough columns and matrices that GPUs use all tile sizes: 64 x 64, 128 x 128, and 128
/// x 256 results. No size is a multiple of a tile.
pub fn matrix_products_in_tiles() -> Vec<Case> {
    let tiles = [(66, 1, 67), (5, 50, 131), (3, 100, 34)];
    let of_type = |ty: GgmlType| {
        let k = if ty.block_size() == 1 { 104 } else { 256 };
        tiles.map(|(m, outer, n)| Case::new(Op::MulMat, &[weights(ty, [k, m, outer, 1]), floats([k, n, outer, 1])]))
    };
    let large = [F16, BF16, Q8_0, GgmlType::Q4_K, GgmlType::Q6_K]
        .into_iter()
        .flat_map(of_type);
    let small =
        readable_types().map(|ty| Case::new(Op::MulMat, &[weights(ty, [512, 37, 1, 1]), floats([512, 33, 1, 1])]));
    large.chain(small).collect()
}

/// Returns matmuls with long rows, which GPU kernels load in several steps, complete and incomplete. Few
/// rows, to limit the run time.
pub fn matrix_products_of_long_rows() -> Vec<Case> {
    let mut all = Vec::new();
    for ty in readable_types().filter(|ty| ty.is_quantized()) {
        for (k, n) in [(1280, 1), (3072, 3), (6144, 8)] {
            all.push(Case::new(
                Op::MulMat,
                &[weights(ty, [k, 7, 1, 1]), floats([k, n, 1, 1])],
            ));
        }
        let (chosen, x) = (ids(3, [2, 2, 1, 1]), floats([1280, 2, 2, 1]).permuted([0, 2, 1, 3]));
        all.push(Case::new(Op::MulMatId, &[weights(ty, [1280, 9, 3, 1]), x, chosen]));
    }
    all
}

/// Returns matmuls with weights in the device's preferred layout: few columns, many columns, and by expert.
pub fn matrix_products_of_arranged_weights() -> Vec<Case> {
    let mut all = Vec::new();
    for ty in readable_types().filter(|ty| ty.is_quantized()) {
        let w = |ne| weights(ty, ne).into_weights();
        for n in [1, 3, 33] {
            all.push(Case::new(Op::MulMat, &[w([4096, 16, 1, 1]), floats([4096, n, 1, 1])]));
        }
        let x = floats([2048, 1, 2, 1]);
        all.push(Case::new(Op::MulMatId, &[w([2048, 8, 3, 1]), x, ids(3, [2, 2, 1, 1])]));
    }
    all
}

pub fn matrix_products_by_expert() -> Vec<Case> {
    let mut all = Vec::new();
    for ty in [F32, Q8_0, Q4_0] {
        for (n_expert, n_used, n_tokens) in [(1, 1, 1), (4, 2, 1), (8, 2, 9), (3, 3, 70), (16, 1, 40)] {
            let experts = weights(ty, [64, 43, n_expert, 1]);
            let chosen = ids(n_expert, [n_used, n_tokens, 1, 1]);
            for slots in [1, n_used] {
                let x = floats([64, slots, n_tokens, 1]);
                all.push(Case::new(Op::MulMatId, &[experts.clone(), x, chosen.clone()]));
            }
            // Selected experts as the first columns of a wider tensor, and non-contiguous activations.
            let x = floats([64, n_used, n_tokens, 1]).permuted([0, 2, 1, 3]);
            all.push(Case::new(Op::MulMatId, &[experts.clone(), x, chosen.part(1)]));
            let x = floats([64, n_used, n_tokens, 1]).permuted([2, 1, 0, 3]);
            all.push(Case::new(
                Op::MulMatId,
                &[experts, x, ids(n_expert, [n_used, n_tokens, 1, 1])],
            ));
        }
    }
    all
}

/// Returns matmuls with enough columns per expert that GPUs use tiles of 64 or 128 columns.
pub fn matrix_products_by_expert_in_tiles() -> Vec<Case> {
    let mut all = Vec::new();
    for (m, n_expert, n_used, n_tokens) in [(850, 4, 2, 150), (3205, 2, 1, 290)] {
        for ty in [F16, Q8_0] {
            let x = floats([64, n_used, n_tokens, 1]);
            let chosen = ids(n_expert, [n_used, n_tokens, 1, 1]);
            all.push(Case::new(Op::MulMatId, &[weights(ty, [64, m, n_expert, 1]), x, chosen]));
        }
    }
    all
}

pub fn rows_by_number() -> Vec<Case> {
    let mut all = vec![
        Case::new(Op::GetRows, &[floats([64, 10, 1, 1]), ids(10, [1, 1, 1, 1])]),
        Case::new(Op::GetRows, &[floats([7, 10, 1, 1]), ids(10, [25, 1, 1, 1])]),
        // Rows of a single element: the weights of selected experts.
        Case::new(Op::GetRows, &[floats([1, 8, 5, 1]), ids(8, [2, 5, 1, 1])]),
        Case::new(Op::GetRows, &[floats([1, 8, 5, 1]), ids(8, [2, 5, 1, 1]).part(1)]),
        Case::new(
            Op::GetRows,
            &[floats([6, 8, 3, 1]).permuted([2, 0, 1, 3]), ids(8, [4, 3, 1, 1])],
        ),
    ];
    // Tables of integers contain the expert ids of each token.
    for table in [ids(50, [6, 10, 1, 1]), ids(50, [6, 10, 1, 1]).part(1)] {
        all.push(Case::new(Op::GetRows, &[table, ids(10, [7, 1, 1, 1])]).within(0.0));
    }
    for bias in [
        floats([20, 6, 1, 1]),
        floats([20, 6, 1, 1]).part(1),
        weights(F16, [20, 6, 1, 1]),
    ] {
        let chosen = ids(6, [2, 5, 1, 1]);
        all.push(Case::new(
            Op::AddId,
            &[floats([20, 2, 5, 1]), bias.clone(), chosen.clone()],
        ));
        all.push(Case::new(
            Op::AddId,
            &[floats([20, 2, 5, 1]).permuted([1, 0, 2, 3]), bias, chosen],
        ));
    }
    all
}

pub fn rows_by_number_of_all_types() -> Vec<Case> {
    let case = |ty| Case::new(Op::GetRows, &[weights(ty, [512, 9, 1, 1]), ids(9, [5, 1, 1, 1])]).within(0.0);
    readable_types().map(case).collect()
}

pub fn rows_written() -> Vec<Case> {
    let mut all = Vec::new();
    for ty in [F32, F16, BF16, Q8_0] {
        for n in [1, 5, 30] {
            let rows = Operand::new(GgmlType::I64, [n, 1, 1, 1], Data::Distinct(30));
            for source in [
                floats([64, n, 1, 1]),
                floats([64, n, 1, 1]).part(1),
                floats([64, n, 1, 1]).permuted([1, 0, 2, 3]),
            ] {
                all.push(Case::new(Op::SetRows, &[source, weights(ty, [64, 30, 1, 1]), rows.clone()]).within(0.0));
            }
        }
        // If two tokens write to the same row, the last write wins.
        let twice = i64s([3, 4, 3, 3, 9]);
        all.push(
            Case::new(
                Op::SetRows,
                &[floats([32, 5, 1, 1]), weights(ty, [32, 10, 1, 1]), twice],
            )
            .within(0.0),
        );
        // The op skips some rows.
        let some = i64s([NO_ROW, 4, NO_ROW, 3, 9]);
        all.push(Case::new(Op::SetRows, &[floats([32, 5, 1, 1]), weights(ty, [32, 10, 1, 1]), some]).within(0.0));
    }
    all
}

pub fn copies() -> Vec<Case> {
    let mut all = Vec::new();
    let cont = |x: Operand, ne| Case::new(Op::Cont, &[x]).into_shape(ne).within(0.0);
    for order in [[0, 1, 2, 3], [1, 0, 2, 3], [0, 2, 1, 3], [2, 0, 1, 3], [3, 2, 1, 0]] {
        all.push(cont(floats([5, 4, 3, 2]).permuted(order), [5, 4, 3, 2]));
        all.push(cont(floats([5, 4, 3, 2]).permuted(order), [20, 6, 1, 1]));
        all.push(cont(weights(F16, [5, 4, 3, 2]).permuted(order), [2, 3, 4, 5]));
    }
    for ty in readable_types() {
        all.push(cont(weights(ty, [256, 3, 2, 1]), [256, 3, 2, 1]));
        all.push(cont(weights(ty, [256, 3, 2, 1]).part(1), [384, 4, 1, 1]));
    }
    let repeat = |from, to| Case::new(Op::Repeat, &[from]).into_shape(to).within(0.0);
    all.push(repeat(floats([1, 1, 1, 1]), [7, 3, 2, 2]));
    all.push(repeat(floats([8, 1, 2, 1]), [8, 5, 4, 3]));
    all.push(repeat(floats([4, 3, 1, 1]), [12, 6, 1, 1]));
    all.push(repeat(floats([4, 3, 1, 1]).permuted([1, 0, 2, 3]), [12, 6, 2, 1]));
    for dim in 0..4u8 {
        let (mut a, mut b) = ([4, 3, 2, 5], [4, 3, 2, 5]);
        (a[usize::from(dim)], b[usize::from(dim)]) = (3, 6);
        let op = Op::Concat { dim };
        all.push(Case::new(op, &[floats(a), floats(b)]).within(0.0));
        all.push(Case::new(op, &[floats(a).part(1), floats(b).permuted([3, 1, 0, 2])]).within(0.0));
    }
    all
}

pub fn reductions() -> Vec<Case> {
    let mut all = Vec::new();
    for ne in [[1, 1, 1, 1], [100, 7, 1, 1], [33, 3, 2, 2]] {
        all.push(Case::new(Op::SumRows, &[floats_in(0.0, 1.0, ne)]));
        for k in [1, 2, 8, ne[0]] {
            let k = k.min(ne[0]);
            all.push(Case::new(Op::TopK { k }, &[floats(ne)]).within(0.0));
            all.push(Case::new(Op::TopMask { k }, &[floats(ne)]).within(0.0));
        }
    }
    for (by, ne) in [(1, [3, 1, 1, 1]), (2, [8, 5, 1, 1]), (7, [64, 3, 2, 1])] {
        all.push(Case::new(Op::IntDiv { by }, &[ids(100, ne)]).within(0.0));
    }
    all.push(Case::new(Op::Cast, &[ids(1 << 24, [33, 3, 2, 1])]).within(0.0));
    all.push(Case::new(Op::Cast, &[ids(50, [3, 7, 1, 1]).permuted([1, 0, 2, 3])]).within(0.0));
    for n in [1, 3, NgramHash::MAX] {
        let hash = NgramHash {
            n,
            multipliers: std::array::from_fn(|i| 0x9e37_79b9_7f4a_7c15u64.rotate_left(7 * i as u32)),
            end: 2,
            first: 11,
            size: 10_007,
        };
        let numbers = i32s((0..100 * 8).map(|i: i64| i * i % 13));
        // Small integers, used as token ids.
        let x = Operand::new(F32, [8, 100, 1, 1], numbers.data);
        all.push(Case::new(Op::NgramHash(hash), std::slice::from_ref(&x)).within(0.0));
        all.push(Case::new(Op::NgramHash(hash), &[x.permuted([0, 1, 3, 2])]).within(0.0));
    }
    // For equal values, the lower index wins.
    let ties = Operand::new(F32, [64, 9, 1, 1], Data::Uniform(0.5, 0.5));
    for op in [Op::TopK { k: 5 }, Op::TopMask { k: 5 }] {
        all.push(Case::new(op, std::slice::from_ref(&ties)).within(0.0));
    }
    all.push(Case::new(
        Op::SumRows,
        &[floats_in(0.0, 1.0, [12, 5, 3, 1]).permuted([1, 0, 2, 3])],
    ));
    for op in [Op::TopK { k: 4 }, Op::TopMask { k: 4 }] {
        all.push(Case::new(op, &[floats([12, 5, 3, 1]).permuted([1, 0, 2, 3])]).within(0.0));
    }
    all
}

/// Returns recurrences over many tokens: a new sequence, for longer than kernels look ahead, then two sequences that
/// alternate.
pub fn recurrences_of_many_tokens() -> Vec<Case> {
    const T: usize = 150;
    let to: Vec<i64> = (0..T).map(|t| if t < 135 || t % 2 == 0 { 0 } else { 3 }).collect();
    let from = std::iter::once(-1).chain(to[1..].iter().copied());
    let cells = [i32s(from), i32s(to.iter().copied())];
    let recur = |r: Recurrence, row: usize, operands: &[Operand]| {
        let mut all = vec![floats([row, 5, 1, 1])];
        all.extend(cells.iter().chain(operands).cloned());
        Case::new(Op::Recur(r), &all)
    };
    let x = floats([70, T, 1, 1]);
    let mut all = vec![
        recur(
            Recurrence::ShortConv { dilation: 1 },
            70 * 3,
            &[x.clone(), floats([4, 70, 1, 1])],
        ),
        recur(Recurrence::TokenShift, 70, &[x]),
    ];
    // Head size, number of heads, state size, and number of groups; decays per head or per element.
    for (p, h, n, g, n_a) in [
        (1, 40, 16, 1, 16),
        (20, 3, 128, 1, 1),
        (2, 2, 200, 2, 1),
        (1, 2, 300, 1, 300),
    ] {
        let operands = [
            floats([p, h, T, 1]),
            floats_in(0.0, 1.0, [h, T, 1, 1]),
            floats_in(-1.0, 0.0, [n_a, h, 1, 1]),
            floats([n, g, T, 1]),
            floats([n, g, T, 1]),
        ];
        all.push(recur(Recurrence::SsmScan, n * p * h, &operands));
    }
    for (d, h) in [(64, 2), (20, 1)] {
        let (x, decay) = (floats([d, h, T, 1]), floats_in(0.0, 1.0, [d, h, T, 1]));
        let small = floats_in(-0.2, 0.2, [d, h, T, 1]);
        let six = [x.clone(), x.clone(), x.clone(), decay.clone(), floats([d, h, 1, 1])];
        all.push(recur(Recurrence::Wkv6, d * d * h, &six));
        let seven = [x.clone(), decay, x.clone(), x, small.clone(), small];
        all.push(recur(Recurrence::Wkv7, d * d * h, &seven));
    }
    all
}

/// Returns recurrences over two interleaved sequences, one of them new. The state of the other moves from
/// cell 3 to cell 1, and is temporarily stored in cell 4.
pub fn recurrences() -> Vec<Case> {
    let recur = |r: Recurrence, row: usize, operands: &[Operand]| {
        let (from, to) = (i32s([-1, 3, 0, 1, 0, 4, 4]), i32s([0, 1, 0, 4, 0, 4, 2]));
        let mut all = vec![floats([row, 5, 1, 1]), from, to];
        all.extend_from_slice(operands);
        Case::new(Op::Recur(r), &all)
    };
    const T: usize = 7;
    let mut all = Vec::new();
    for (c, k, dilation) in [(1, 2, 1), (40, 4, 1), (5000, 3, 1), (300, 4, 3)] {
        let operands = [floats([c, T, 1, 1]), floats([k, c, 1, 1])];
        all.push(recur(
            Recurrence::ShortConv { dilation },
            c * (k - 1) * dilation,
            &operands,
        ));
    }
    // Head size, number of heads, state size, and number of groups; decays per head or per element.
    for (p, h, n, g) in [(1, 70, 16, 1), (64, 6, 128, 2), (3, 4, 5, 4)] {
        for n_a in [1, n] {
            let operands = [
                floats([p, h, T, 1]),
                floats_in(0.0, 1.0, [h, T, 1, 1]),
                floats_in(-1.0, 0.0, [n_a, h, 1, 1]),
                floats([n, g, T, 1]),
                floats([n, g, T, 1]),
            ];
            all.push(recur(Recurrence::SsmScan, n * p * h, &operands));
        }
    }
    all.push(recur(Recurrence::TokenShift, 300, &[floats([300, T, 1, 1])]));
    for (d, h) in [(1, 3), (64, 5), (20, 1)] {
        let (x, decay) = (floats([d, h, T, 1]), floats_in(0.0, 1.0, [d, h, T, 1]));
        let small = floats_in(-0.2, 0.2, [d, h, T, 1]);
        let u = floats([d, h, 1, 1]);
        let six = [x.clone(), x.clone(), x.clone(), decay.clone(), u];
        all.push(recur(Recurrence::Wkv6, d * d * h, &six));
        let seven = [x.clone(), decay, x.clone(), x, small.clone(), small];
        all.push(recur(Recurrence::Wkv7, d * d * h, &seven));
    }
    // New sequences only, since the states count tokens. Groups of one, of two with a remainder, and larger
    // than the sequence.
    for (c, n) in [(1, 2), (70, 1), (3000, 3), (9, 40)] {
        for n_means in [1, 2] {
            let (from, to) = (i32s([-1, -1, 0, 1, 0, 0, 0]), i32s([0, 1, 0, 4, 0, 0, 2]));
            let states = floats([c * (1 + 3 * n_means), 5, 1, 1]);
            let wide = |n| floats_in(-4.0, 4.0, [c * n_means, n, 1, 1]);
            let overlap = n_means == 2;
            let op = Op::Recur(Recurrence::Compress { overlap });
            all.push(Case::new(op, &[states, from, to, wide(T), wide(T), wide(n)]));
        }
    }
    all
}

//! Worked examples that compare the reference backend with hand-computed numbers.

use super::array::{Array, Ints};
use super::attention::{Operands, attention};
use super::ops;
use super::rope::rope;
use super::scratch::{Piece, Scratch};
use super::visible::Visible;
use crate::graph::{Attention, Rope, RopeKind, Unary, Window};

fn piece<T: bytemuck::Pod>(data: &[T]) -> Piece<T> {
    let mut piece = Scratch::default().take(data.len());
    piece.copy_from_slice(data);
    piece
}

fn array(ne: [usize; 4], data: &[f32]) -> Array {
    assert_eq!(ne.iter().product::<usize>(), data.len());
    Array { ne, data: piece(data) }
}

fn ints(data: &[i64]) -> Ints {
    Ints {
        ne: [data.len(), 1, 1, 1],
        data: piece(data),
    }
}

#[track_caller]
fn assert_close(got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((f64::from(*g) - w).abs() < 1e-6, "found {got:?}, expected {want:?}");
    }
}

#[test]
fn norms_match_definition() {
    let x = array([2, 1, 1, 1], &[3.0, 4.0]);
    // The mean square of the row is 12.5.
    assert_close(
        &ops::rms_norm(&x, None, 0.0).data,
        &[3.0 / 12.5f64.sqrt(), 4.0 / 12.5f64.sqrt()],
    );
    // With eps = 3.5 the root is 4. The weight multiplies the normalized row.
    let weight = array([2, 1, 1, 1], &[2.0, -1.0]);
    assert_close(&ops::rms_norm(&x, Some(&weight), 3.5).data, &[1.5, -1.0]);
    // The row has mean 3.5 and variance 0.25.
    assert_close(&ops::norm(&x, 0.0).data, &[-1.0, 1.0]);
    assert_close(&ops::norm(&x, 0.75).data, &[-0.5, 0.5]);
    assert_close(&ops::l2_norm(&x, 0.0).data, &[0.6, 0.8]);
    assert_close(&ops::l2_norm(&x, 10.0).data, &[0.3, 0.4]);
}

#[test]
fn matmuls_match_definition() {
    // Weight rows (1, 2), (3, 4), (5, 6) and one column (10, 1).
    let w = array([2, 3, 1, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let x = array([2, 1, 1, 1], &[10.0, 1.0]);
    assert_close(&ops::mul_mat(&w, &x).data, &[12.0, 34.0, 56.0]);

    // Two weight matrices of one row each for four outer indices: each matrix serves two adjacent indices.
    let w = array([1, 1, 2, 1], &[2.0, 3.0]);
    let x = array([1, 1, 4, 1], &[1.0, 2.0, 3.0, 4.0]);
    assert_close(&ops::mul_mat(&w, &x).data, &[2.0, 4.0, 9.0, 12.0]);

    // Experts that multiply by 1, 10, and 100; two tokens use two each.
    let w = array([1, 1, 3, 1], &[1.0, 10.0, 100.0]);
    let ids = Ints {
        ne: [2, 2, 1, 1],
        data: piece(&[2, 0, 1, 2]),
    };
    let shared = array([1, 1, 2, 1], &[3.0, 5.0]);
    let want = [300.0, 3.0, 50.0, 500.0];
    assert_close(&ops::mul_mat_id(&w, &shared, &ids).unwrap().data, &want);
    let own = array([1, 2, 2, 1], &[3.0, 4.0, 5.0, 6.0]);
    let want = [300.0, 4.0, 50.0, 600.0];
    assert_close(&ops::mul_mat_id(&w, &own, &ids).unwrap().data, &want);
    let bias = array([1, 3, 1, 1], &[0.1, 0.2, 0.3]);
    assert_close(&ops::add_id(&own, &bias, &ids).unwrap().data, &[3.3, 4.1, 5.2, 6.3]);
}

#[test]
fn row_index_is_checked() {
    let table = array([2, 3, 1, 1], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let got = ops::get_rows(&table, &ints(&[2, 0])).unwrap();
    assert_eq!((got.ne, &got.data[..]), ([2, 2, 1, 1], &[4.0, 5.0, 0.0, 1.0][..]));
    for row in [3, -1] {
        assert_eq!(
            ops::get_rows(&table, &ints(&[0, row])),
            Err(ops::IndexOutOfRange { row, rows: 3 })
        );
    }
}

#[test]
fn activations_match_definition() {
    let cases = [
        (Unary::Neg, 2.0, -2.0),
        (Unary::Abs, -2.0, 2.0),
        (Unary::Sqr, -3.0, 9.0),
        (Unary::Sqrt, 9.0, 3.0),
        (Unary::Exp, 1.0, std::f64::consts::E),
        (Unary::Tanh, 0.5, 0.462_117_157_26),
        (Unary::Sigmoid, 1.0, 0.731_058_578_63),
        (Unary::Relu, -1.0, 0.0),
        (Unary::ReluSqr, 3.0, 9.0),
        (Unary::ReluSqr, -3.0, 0.0),
        (Unary::Silu, 1.0, 0.731_058_578_63),
        (Unary::Gelu, 1.0, 0.841_191_990_61),
        (Unary::GeluErf, 1.0, 0.841_344_746_07),
        (Unary::GeluQuick, 1.0, 0.845_795_765_98),
        (Unary::Softplus, 0.0, std::f64::consts::LN_2),
        (Unary::Softplus, 100.0, 100.0),
        (Unary::Softplus, -800.0, 0.0),
    ];
    for (f, x, want) in cases {
        assert!(
            (ops::unary(f, x) - want).abs() < 1e-8,
            "{f:?}({x}) = {}, expected {want}",
            ops::unary(f, x)
        );
    }
    // Reference values: Abramowitz and Stegun, table 7.1.
    for (x, want) in [
        (0.5, 0.520_499_877_8),
        (-1.0, -0.842_700_792_9),
        (2.0, 0.995_322_265_0),
        (5.9, 1.0),
        (7.0, 1.0),
    ] {
        assert!((ops::erf(x) - want).abs() < 1e-9);
    }
}

#[test]
fn sorts_sums_and_concatenations_match_definition() {
    let x = array([4, 1, 1, 1], &[1.0, 3.0, 3.0, 2.0]);
    assert_eq!(*ops::top_k(&x, 3).data, [1, 2, 3]);
    assert_close(&ops::sum_rows(&x).data, &[9.0]);
    let e = std::f64::consts::E;
    let x = array([2, 1, 1, 1], &[0.0, 2.0]);
    assert_close(&ops::soft_max(&x, 0.5).data, &[1.0 / (1.0 + e), e / (1.0 + e)]);
    // Rows of 2 next to rows of 1, and row after row.
    let (a, b) = (
        array([2, 2, 1, 1], &[1.0, 2.0, 3.0, 4.0]),
        array([1, 2, 1, 1], &[5.0, 6.0]),
    );
    assert_eq!(*ops::concat(&a, &b, 0).data, [1.0, 2.0, 5.0, 3.0, 4.0, 6.0]);
    let b = array([2, 1, 1, 1], &[5.0, 6.0]);
    assert_eq!(*ops::concat(&a, &b, 1).data, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(
        *ops::repeat(&b, [4, 2, 1, 1]).data,
        [5.0, 6.0, 5.0, 6.0, 5.0, 6.0, 5.0, 6.0]
    );
    assert_close(&ops::binary(&a, &b, |a, b| a - b).data, &[-4.0, -4.0, -2.0, -2.0]);
}

fn plain_rope(kind: RopeKind, n_dims: usize) -> Rope {
    Rope::unscaled(kind, n_dims, 100.0)
}

/// The RoPE base is 100 with 4 dimensions, so the two pairs rotate by 1 and by 0.1 per position.
#[test]
fn rope_rotates_adjacent_or_split_pairs() {
    let x = array([5, 1, 1, 1], &[1.0, 0.0, 0.0, 1.0, 7.0]);
    let got = rope(&x, &ints(&[2]), None, &plain_rope(RopeKind::Norm, 4));
    let (s, c) = 2f64.sin_cos();
    let (s2, c2) = 0.2f64.sin_cos();
    assert_close(&got.data, &[c, s, -s2, c2, 7.0]);
    // Neox pairs: (1, 0) is elements 0 and 2, (0, 1) is elements 1 and 3.
    let got = rope(&x, &ints(&[2]), None, &plain_rope(RopeKind::Neox, 4));
    assert_close(&got.data, &[c, -s2, s, c2, 7.0]);

    let scaled = Rope {
        freq_scale: 0.5,
        attn_factor: 3.0,
        ..plain_rope(RopeKind::Norm, 4)
    };
    let factors = array([2, 1, 1, 1], &[1.0, 4.0]);
    let got = rope(&x, &ints(&[2]), Some(&factors), &scaled);
    let (s, c) = 1f64.sin_cos();
    let (s2, c2) = 0.025f64.sin_cos();
    assert_close(&got.data, &[3.0 * c, 3.0 * s, -3.0 * s2, 3.0 * c2, 7.0]);
}

/// The RoPE base is 1, so every pair rotates by the position and angles identify the axes.
#[test]
fn rope_axes_rotate_sections_or_interleave() {
    let ones = array([16, 1, 1, 1], &[1.0; 16]);
    let axes_of = |kind, sections| -> Vec<usize> {
        let p = Rope {
            sections,
            freq_base: 1.0,
            ..plain_rope(kind, 16)
        };
        let got = rope(
            &ones,
            &Ints {
                ne: [1, 4, 1, 1],
                data: piece(&[0, 1, 2, 3]),
            },
            None,
            &p,
        );
        // (1, 1) rotated by an angle is (cos - sin, cos + sin).
        let axis_of = |pair: usize| {
            let found = f64::from(got.data[pair]);
            (0..4).find(|&axis| {
                let (s, c) = (axis as f64).sin_cos();
                (found - (c - s)).abs() < 1e-6
            })
        };
        (0..8).filter_map(axis_of).collect()
    };
    assert_eq!(axes_of(RopeKind::Mrope, [2, 3, 3, 0]), [0, 0, 1, 1, 1, 2, 2, 2]);
    assert_eq!(axes_of(RopeKind::Mrope, [1, 1, 1, 2]), [0, 1, 2, 3, 3, 0, 1, 2]);
    assert_eq!(axes_of(RopeKind::Imrope, [3, 2, 2, 1]), [0, 1, 2, 0, 1, 2, 0, 3]);
    assert_eq!(axes_of(RopeKind::Imrope, [4, 2, 2, 0]), [0, 1, 2, 0, 1, 2, 0, 0]);
}

/// With 8 dimensions, base 10000, and 4096 positions, pairs rotate 652, 65, 6.5, and 0.65 times over the
/// context. The pair with 32 rotations would be 1.31 and the pair with one rotation 2.81, so the ramp goes
/// from pair 1 to pair 3.
#[test]
fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
    let p = Rope {
        freq_base: 10000.0,
        freq_scale: 0.25,
        ext_factor: 1.0,
        n_ctx_orig: 4096,
        every: 1,
        inverse: false,
        ..plain_rope(RopeKind::Norm, 8)
    };
    let x = array([8, 1, 1, 1], &[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
    let got = rope(&x, &ints(&[4]), None, &p);
    let magnitude = 1.0 + 0.1 * 4f64.ln();
    // Full speed, full speed, the mean of 0.01 and a quarter of it, a quarter.
    let angles = [4.0, 0.4, 4.0 * 0.01 * (0.5 + 0.5 * 0.25), 4.0 * 0.001 * 0.25];
    let want: Vec<f64> = angles
        .iter()
        .flat_map(|a: &f64| [a.cos() * magnitude, a.sin() * magnitude])
        .collect();
    assert_close(&got.data, &want);
}

/// Returns the operands of attention of two tokens of one head: keys 1 and 2 (one dimension), values (10, 1) and (20,
/// 2).
fn two_tokens() -> (Operands, Attention) {
    let operands = Operands {
        q: array([1, 1, 2, 1], &[1.0, 1.0]),
        k: array([1, 1, 2, 1], &[1.0, 2.0]),
        v: array([2, 1, 2, 1], &[10.0, 1.0, 20.0, 2.0]),
        visible: Visible {
            cell_pos: ints(&[0, 1]),
            pos: ints(&[0, 1]),
            table: ints(&[0, 0]),
            starts: ints(&[0, 1]),
            pages: ints(&[0]),
            masks: ints(&[0b11]),
        },
        sinks: None,
        biases: None,
        selection: None,
    };
    (operands, Attention::causal(1.0))
}

/// Returns the softmax weight of the second of two scores.
fn second(score0: f64, score1: f64) -> f64 {
    1.0 / (1.0 + (score0 - score1).exp())
}

#[test]
fn attention_of_two_tokens_matches_definition() {
    let (mut o, p) = two_tokens();
    let w = second(1.0, 2.0);
    assert_close(&attention(&o, &p).data, &[10.0, 1.0, 10.0 + 10.0 * w, 1.0 + w]);

    let both = Attention { causal: false, ..p };
    assert_close(&attention(&o, &both).data[..2], &[10.0 + 10.0 * w, 1.0 + w]);

    let w = second(0.5, 1.0);
    assert_close(&attention(&o, &Attention { scale: 0.5, ..p }).data[3..], &[1.0 + w]);

    let w = second(0.5 * 2f64.tanh(), 0.5 * 4f64.tanh());
    assert_close(&attention(&o, &Attention { softcap: 0.5, ..p }).data[3..], &[1.0 + w]);

    // The head has slope 1/256 (one head, maximum bias 8), and the first key is one position away.
    let w = second(1.0 - 1.0 / 256.0, 2.0);
    assert_close(&attention(&o, &Attention { max_bias: 8.0, ..p }).data[3..], &[1.0 + w]);

    // A sink of score 2 equals the second key's score and dilutes the weights.
    o.sinks = Some(array([1, 1, 1, 1], &[2.0]));
    let (a, b) = (1f64.exp(), 2f64.exp());
    assert_close(
        &attention(&o, &p).data[2..],
        &[(10.0 * a + 20.0 * b) / (a + 2.0 * b), (a + 2.0 * b) / (a + 2.0 * b)],
    );
}

#[test]
fn attention_sees_its_sequence_and_its_window() {
    let (mut o, p) = two_tokens();
    let windowed = |window| Attention { window, ..p };
    assert_close(
        &attention(&o, &windowed(Window::Sliding(1))).data,
        &[10.0, 1.0, 20.0, 2.0],
    );
    assert_close(
        &attention(&o, &windowed(Window::Chunked(1))).data,
        &[10.0, 1.0, 20.0, 2.0],
    );
    for window in [Window::Symmetric(1), Window::Chunked(1)] {
        let free = Attention {
            causal: false,
            ..windowed(window)
        };
        assert_close(&attention(&o, &free).data, &[10.0, 1.0, 20.0, 2.0]);
    }

    // The second key belongs to the first table, and both keys to the second table, whose cells are in two
    // entries.
    o.visible.starts = ints(&[0, 1, 3]);
    o.visible.pages = ints(&[0, 0, 1]);
    o.visible.masks = ints(&[0b10, 0b01, 0b01]);
    assert_close(&attention(&o, &p).data, &[0.0, 0.0, 20.0, 2.0]);
    o.visible.table = ints(&[1, 0]);
    assert_close(&attention(&o, &p).data, &[10.0, 1.0, 20.0, 2.0]);
    // An empty cell is visible to no token, and a token without a table sees no cell.
    o.visible.cell_pos = ints(&[-1, 1]);
    assert_close(&attention(&o, &p).data, &[0.0, 0.0, 20.0, 2.0]);
    o.visible.table = ints(&[1, -1]);
    assert_close(&attention(&o, &p).data, &[0.0; 4]);
}

#[test]
fn alibi_slopes_support_non_power_of_two_heads() {
    // The queries are zero, so the scores are the biases. The keys are one and zero positions away.
    let (mut o, p) = two_tokens();
    o.q = array([1, 3, 1, 1], &[0.0; 3]);
    o.k = array([1, 1, 2, 1], &[1.0, 1.0]);
    o.v = array([1, 1, 2, 1], &[0.0, 1.0]);
    (o.visible.pos, o.visible.table) = (ints(&[1]), ints(&[0]));
    let got = attention(&o, &Attention { max_bias: 8.0, ..p });
    // Two heads have slopes 2^-4 and 2^-8. The third takes the first slope of the intermediate series, 2^-2.
    let want: Vec<f64> = [1.0 / 16.0, 1.0 / 256.0, 1.0 / 4.0]
        .iter()
        .map(|&slope| second(-slope, 0.0))
        .collect();
    assert_close(&got.data, &want);
}

//! Linear attention cases: variants, and state transitions between cells.

use engine::graph::{LinearAttention, Op, Recurrence};

use super::case::{Case, Operand, floats, floats_in, i32s};

/// Key head size, number of key heads, value head size, number of value heads.
type Sizes = [usize; 4];

/// Cells that each token's state is read from and written to.
type Walk<'a> = (&'a [i64], &'a [i64]);

const GATED: LinearAttention = LinearAttention {
    scale: 0.25,
    delta: true,
    tiled: false,
    slope: 0.0,
};

/// Builds a case. The tuple holds the size of the decay (0 for none) and whether there is a beta.
fn attend(
    p: LinearAttention,
    [dk, m, dv, n]: Sizes,
    (decay, beta): (usize, bool),
    n_cells: usize,
    walk: Walk<'_>,
) -> Case {
    let (from, to) = walk;
    let t = from.len();
    // Keys have a norm below 1, as the delta rule requires. Otherwise states would grow with every token.
    let length = 1.0 / (dk as f32).sqrt();
    let mut operands: Vec<Operand> = vec![
        floats([dk * dv * n, n_cells, 1, 1]),
        i32s(from.iter().copied()),
        i32s(to.iter().copied()),
        floats([dk, m, t, 1]),
        floats_in(-length, length, [dk, m, t, 1]),
        floats([dv, n, t, 1]),
    ];
    if decay > 0 {
        operands.push(floats_in(-3.0, 0.0, [decay, n, t, 1]));
    }
    if beta {
        operands.push(floats_in(0.0, 1.0, [1, n, t, 1]));
    }
    Case::new(Op::Recur(Recurrence::LinearAttention(p)), &operands)
}

pub fn linear_attention() -> Vec<Case> {
    let fresh: Walk<'_> = (&[-1, 0, 0, 0], &[0, 0, 0, 0]);
    let mut all = Vec::new();
    for sizes in [
        [1, 1, 1, 1],
        [16, 2, 8, 4],
        [5, 1, 7, 3],
        [64, 4, 128, 4],
        [128, 1, 33, 2],
    ] {
        let dk = sizes[0];
        for gates in [(0, false), (1, false), (1, true), (dk, false), (dk, true)] {
            for (delta, tiled) in [(true, false), (false, false), (true, true)] {
                let p = LinearAttention { delta, tiled, ..GATED };
                all.push(attend(p, sizes, gates, 1, fresh));
            }
        }
        let lightning = LinearAttention {
            delta: false,
            scale: 1.0,
            slope: 0.7,
            ..GATED
        };
        all.push(attend(lightning, sizes, (0, false), 1, fresh));
    }
    all
}

/// Returns cases with more tokens than kernels prepare together, in one sequence or in two that alternate at the end.
/// Keys of 200 and 300 elements are divided among more lanes of a GPU.
pub fn linear_attention_of_many_tokens() -> Vec<Case> {
    const T: usize = 150;
    let to: Vec<i64> = (0..T).map(|t| if t < 135 || t % 2 == 0 { 0 } else { 3 }).collect();
    let from: Vec<i64> = std::iter::once(-1).chain(to[1..].iter().copied()).collect();
    let mut all = Vec::new();
    for sizes in [[128, 1, 40, 2], [5, 1, 7, 3], [200, 1, 9, 1], [300, 1, 5, 1]] {
        for gates in [(1, true), (sizes[0], true), (0, false)] {
            let delta = gates.1;
            let slope = if delta { 0.0 } else { 0.7 };
            let p = LinearAttention { delta, slope, ..GATED };
            all.push(attend(p, sizes, gates, 5, (&from, &to)));
        }
    }
    all
}

/// Returns cases that GPUs compute in chunks of up to 32 tokens: a sequence, and two that alternate at the end. Columns
/// may end within a block. Decays may forget all earlier tokens.
pub fn linear_attention_in_chunks() -> Vec<Case> {
    const T: usize = 110;
    let to: Vec<i64> = (0..T).map(|t| if t < 90 || t % 2 == 0 { 0 } else { 3 }).collect();
    let from: Vec<i64> = std::iter::once(-1).chain(to[1..].iter().copied()).collect();
    let mut all = Vec::new();
    for (sizes, gates, p) in [
        ([128, 1, 40, 2], (1, true), GATED),
        ([64, 2, 64, 4], (1, true), LinearAttention { tiled: true, ..GATED }),
        ([48, 1, 16, 2], (1, false), GATED),
        ([128, 1, 40, 2], (128, true), GATED),
        ([64, 2, 24, 4], (64, true), LinearAttention { tiled: true, ..GATED }),
        ([48, 1, 16, 2], (48, false), LinearAttention { delta: false, ..GATED }),
        ([16, 2, 80, 4], (1, true), LinearAttention { delta: false, ..GATED }),
        (
            [32, 1, 24, 2],
            (0, false),
            LinearAttention {
                delta: false,
                slope: 0.7,
                ..GATED
            },
        ),
    ] {
        all.push(attend(p, sizes, gates, 5, (&from, &to)));
    }
    for (n_decays, least) in [(1, -200.0), (64, -200.0), (64, -20.0)] {
        let mut strong = attend(GATED, [64, 1, 32, 2], (n_decays, true), 5, (&from, &to));
        strong.operands[6] = floats_in(least, 0.0, strong.operands[6].ne);
        all.push(strong);
    }
    all
}

pub fn linear_attention_over_cells() -> Vec<Case> {
    let walks: [Walk<'_>; 8] = [
        // A single token that reads its own cell, then a different cell.
        (&[3], &[3]),
        (&[1], &[2]),
        // A sequence that starts in a used cell, continues, and moves.
        (&[-1, 2, 2], &[2, 2, 4]),
        // Two interleaved sequences, one of them new.
        (&[0, -1, 0, 3, 0, 3], &[0, 3, 0, 3, 0, 3]),
        // The batch has two sequences, one after the other.
        (&[1, 1, 1, 4, 4], &[1, 1, 1, 4, 4]),
        // Two sequences with a shared prefix; the first cell stays unchanged.
        (&[2, 2, 0, 1, 0, 1], &[0, 1, 0, 1, 0, 1]),
        // The batch has one token of each of five sequences: all new, then all existing.
        (&[-1, -1, -1, -1, -1], &[4, 2, 0, 1, 3]),
        (&[4, 2, 0, 1, 3], &[4, 2, 0, 1, 3]),
    ];
    let mut all = Vec::new();
    for walk in walks {
        for (p, gates) in [
            (GATED, (1, true)),
            (GATED, (24, true)),
            (
                LinearAttention {
                    delta: false,
                    slope: 0.5,
                    ..GATED
                },
                (0, false),
            ),
        ] {
            all.push(attend(p, [24, 2, 16, 4], gates, 5, walk));
        }
    }
    all
}

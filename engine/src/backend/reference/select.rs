//! Sparse attention by its definition: scores of cells and their selection.

use std::collections::BTreeMap;

use super::array::{Array, Ints};
use super::ops::dot;
use super::visible::Visible;
use crate::graph::{BlockRule, Blocks};

/// Computes [`crate::graph::Op::IndexScores`].
pub(super) fn index_scores(q: &Array, k: &Array, visible: &Visible, weights: Option<&Array>) -> Array {
    let ([_, n_head, n_tokens, _], n_kv) = (q.ne, k.ne[2]);
    let sees = |t: usize, j: usize| visible.lists(t, j) && visible.cell_pos.data[j] <= visible.pos.data[t];
    let product = |h: usize, t: usize, j: usize| dot(q.row([0, h, t, 0]), k.row([0, 0, j, 0]));
    match weights {
        None => q.derive([n_kv, n_head, n_tokens, 1], |[j, h, t, _]| {
            if sees(t, j) {
                product(h, t, j)
            } else {
                f64::NEG_INFINITY
            }
        }),
        Some(weights) => q.derive([n_kv, n_tokens, 1, 1], |[j, t, ..]| {
            if !sees(t, j) {
                return f64::NEG_INFINITY;
            }
            (0..n_head)
                .map(|h| weights.at([h, t, 0, 0]) * product(h, t, j).max(0.0))
                .sum()
        }),
    }
}

fn wide(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A block of positions that is selected as a unit.
struct Block {
    score: f64,
    n_cells: usize,
}

/// Computes [`crate::graph::Op::SelectBlocks`].
pub(super) fn select_blocks(scores: &Array, visible: &Visible, blocks: &Blocks) -> Ints {
    let [n_kv, a, b, _] = scores.ne;
    let ne = [blocks.n_cells(n_kv), a, b, 1];
    let by_head = b == visible.pos.ne[0];
    let mut data = scores.data.scratch().take(ne.iter().product());
    for (row, out) in data.chunks_exact_mut(ne[0]).enumerate() {
        let (i1, i2) = (row % a, row / a);
        let t = if by_head { i2 } else { i1 };
        let origin = match blocks.rule {
            BlockRule::Best { .. } => 0,
            BlockRule::Whole { .. } => (0..n_kv)
                .filter(|&j| visible.lists(t, j))
                .map(|j| visible.cell_pos.data[j])
                .min()
                .unwrap_or(0),
        };
        let block_of = |pos: i64| (pos - origin) / wide(blocks.size);
        let chosen = chosen_blocks(
            visible.seen(t),
            scores.row([0, i1, i2, 0]),
            blocks,
            origin,
            block_of(visible.pos.data[t]),
        );
        let cells = visible.seen(t).filter(|&(_, pos)| chosen.contains(&block_of(pos)));
        out.fill(-1);
        out.iter_mut().zip(cells).for_each(|(out, (j, _))| *out = j as i64);
    }
    Ints { ne, data }
}

/// Returns the selected blocks of a token in block `own`.
fn chosen_blocks(
    seen: impl Iterator<Item = (usize, i64)>,
    scores: &[f32],
    blocks: &Blocks,
    origin: i64,
    own: i64,
) -> Vec<i64> {
    let size = wide(blocks.size);
    let mut all = BTreeMap::new();
    for (j, pos) in seen {
        let none = Block {
            score: f64::NEG_INFINITY,
            n_cells: 0,
        };
        let block = all.entry((pos - origin) / size).or_insert(none);
        block.n_cells += 1;
        let counts = matches!(blocks.rule, BlockRule::Best { .. }) || (pos - origin) % size == size - 1;
        if counts {
            block.score = block.score.max(f64::from(scores[j]));
        }
    }
    let mut order: Vec<(f64, i64)> = Vec::new();
    for (&number, block) in &all {
        match blocks.rule {
            BlockRule::Best { local } if own - number < wide(local) => order.push((f64::INFINITY, number)),
            BlockRule::Whole { .. } if block.n_cells < blocks.size => {}
            _ => order.push((block.score, number)),
        }
    }
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut chosen: Vec<_> = order.iter().take(blocks.k).map(|&(_, number)| number).collect();
    let incomplete = all.get(&own).is_some_and(|block| block.n_cells < blocks.size);
    if blocks.rule == (BlockRule::Whole { tail: true }) && incomplete {
        chosen.push(own);
    }
    chosen
}

/// Computes [`crate::graph::Op::RecentCells`].
pub(super) fn recent_cells(visible: &Visible, n: usize) -> Ints {
    let (n_kv, n_tokens) = (visible.cell_pos.ne[0], visible.pos.ne[0]);
    let mut data = visible.pos.data.scratch().take(n * n_tokens);
    for (i, out) in data.iter_mut().enumerate() {
        let (t, at) = (i / n, visible.pos.data[i / n] - (n - 1 - i % n) as i64);
        let cell = (0..n_kv).find(|&j| visible.lists(t, j) && visible.cell_pos.data[j] == at);
        *out = cell.unwrap_or(0) as i64;
    }
    let ne = [n, n_tokens, 1, 1];
    Ints { ne, data }
}

/// Computes [`crate::graph::Op::ShiftPositions`].
pub(super) fn shift_positions(positions: &Ints, back: usize, n_axes: usize) -> Ints {
    let n = positions.ne[0];
    let mut data = positions.data.scratch().take(n * n_axes);
    data.iter_mut()
        .enumerate()
        .for_each(|(i, out)| *out = positions.data[i % n] - back as i64);
    let ne = [n, n_axes, 1, 1];
    Ints { ne, data }
}

//! Sparse attention cases: indexer scores, block selection, attention over a selection.

use engine::graph::{Attention, BlockRule, Blocks, Op};
use engine::random::SplitMix64;
use kernels::GgmlType::{F16, F32, Q8_0};

use super::attention::{PLAIN, Scene, attend, crowd, one_sequence, qkv};
use super::case::{Case, floats, i32s};

pub fn index_scores() -> Vec<Case> {
    let mut all = Vec::new();
    for (ty, n_head, n_tokens, n_kv) in [(F32, 1, 1, 1), (F32, 64, 3, 300), (F16, 4, 70, 130), (Q8_0, 5, 1, 600)] {
        let [q, k, _] = qkv(ty, [64, 64], [n_head, 1], n_tokens, n_kv);
        for scene in [one_sequence, crowd] {
            let operands = [&[q.clone(), k.clone()][..], &scene(n_kv, n_tokens).visible()].concat();
            all.push(Case::new(Op::IndexScores, &operands));
            let weights = floats([n_head, n_tokens, 1, 1]);
            all.push(Case::new(Op::IndexScores, &[&operands[..], &[weights]].concat()));
        }
    }
    all
}

const RULES: [BlockRule; 5] = [
    BlockRule::Best { local: 0 },
    BlockRule::Best { local: 1 },
    BlockRule::Best { local: 3 },
    BlockRule::Whole { tail: false },
    BlockRule::Whole { tail: true },
];

fn choice(rule: BlockRule, [size, k]: [usize; 2], scores: [usize; 4], scene: Scene) -> Case {
    let operands = [&[floats(scores)][..], &scene.visible()].concat();
    Case::new(Op::SelectBlocks(Blocks { size, k, rule }), &operands).within(0.0)
}

/// Returns sequences in order and shuffled, with positions in several cells or in none. Each token has one
/// list, or one list per head.
pub fn blocks() -> Vec<Case> {
    let mut all = Vec::new();
    for rule in RULES {
        for blocks in [
            [1, 1],
            [1, 7],
            [4, 2],
            [5, 3],
            [16, 1],
            [40, 2],
            [usize::MAX, usize::MAX],
        ] {
            for (n_tokens, n_kv) in [(1, 1), (1, 50), (6, 64), (9, 33)] {
                for scores in [[n_kv, n_tokens, 1, 1], [n_kv, 3, n_tokens, 1]] {
                    for scene in [one_sequence, crowd] {
                        all.push(choice(rule, blocks, scores, scene(n_kv, n_tokens)));
                    }
                }
            }
        }
    }
    all
}

/// Returns a sequence that starts late, a sequence with a gap in its positions, and an empty sequence.
pub fn blocks_of_many_cells() -> Vec<Case> {
    let mut all = Vec::new();
    for rule in RULES {
        let late = (0..600).map(|j| if j < 500 { 2000 + j * 7 % 500 } else { -1 });
        let scene = |cell_pos: Vec<i64>, query_pos: [i64; 3]| Scene {
            cell_seqs: cell_pos.iter().map(|_| 2).collect(),
            cell_pos,
            query_pos: query_pos.to_vec(),
            query_seq: vec![1, 1, 0],
        };
        all.push(choice(
            rule,
            [8, 5],
            [600, 3, 1, 1],
            scene(late.collect(), [2499, 2003, 2100]),
        ));
        let cut = (0..300).map(|j| if j < 40 { j } else { i64::from(i32::MAX) - 300 + j });
        let last = i64::from(i32::MAX) - 1;
        all.push(choice(
            rule,
            [16, 4],
            [300, 2, 3, 1],
            scene(cut.collect(), [last, 39, last]),
        ));
    }
    all
}

pub fn cells_by_position() -> Vec<Case> {
    let mut all = Vec::new();
    for n in [1, 2, 7] {
        for (n_tokens, n_kv) in [(1, 1), (5, 40), (33, 100)] {
            for scene in [one_sequence, crowd] {
                all.push(Case::new(Op::RecentCells { n }, &scene(n_kv, n_tokens).visible()).within(0.0));
            }
        }
    }
    for (back, n_axes) in [(0, 1), (3, 1), (5, 4)] {
        all.push(Case::new(Op::ShiftPositions { back, n_axes }, &[i32s(0..9)]).within(0.0));
    }
    all
}

/// Returns selections of one list of cells per token, and per token and KV head, with and without sinks.
pub fn attention_to_selections() -> Vec<Case> {
    let mut all = Vec::new();
    let p = Attention { selects: true, ..PLAIN };
    for (heads, n_tokens, n_kv, n_selected) in [
        ([8, 1], 1, 300, 40),
        ([6, 3], 5, 100, 20),
        ([8, 4], 1, 400, 50),
        ([4, 2], 2, 90, 10),
        ([40, 1], 33, 130, 130),
    ] {
        let [q, k, v] = qkv(F32, [64, 32], heads, n_tokens, n_kv);
        for n_lists in [1, heads[1]] {
            let mut random = SplitMix64(5);
            // The list repeats some cells and includes cells that do not exist.
            let cells: Vec<_> = (0..n_selected * n_lists * n_tokens)
                .map(|_| random.below(n_kv + 2) as i64 - 1)
                .collect();
            let mut selection = i32s(cells);
            selection.ne = match n_lists {
                1 => [n_selected, n_tokens, 1, 1],
                _ => [n_selected, n_lists, n_tokens, 1],
            };
            for sinks in [None, Some(floats([heads[0], 1, 1, 1]))] {
                let p = Attention {
                    sinks: sinks.is_some(),
                    ..p
                };
                let mut case = attend(p, q.clone(), k.clone(), v.clone(), crowd(n_kv, n_tokens));
                case.operands.extend(sinks);
                case.operands.push(selection.clone());
                all.push(case);
            }
        }
    }
    all
}

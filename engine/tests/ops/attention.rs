//! Attention cases: caches with one and several sequences, windows, biases, compressed keys.

use engine::graph::{Attention, Buckets, Op, PAGE, Window};
use engine::random::SplitMix64;
use kernels::GgmlType;
use kernels::GgmlType::{BF16, F16, F32, Q4_0, Q8_0};

use super::case::{Case, Operand, floats, floats_in, i32s, i64s, weights};

/// The state of a KV cache, and the queries that read it.
pub struct Scene {
    pub cell_pos: Vec<i64>,
    /// Bit mask of sequences for each cell.
    pub cell_seqs: Vec<i64>,
    pub query_pos: Vec<i64>,
    pub query_seq: Vec<i64>,
}

/// Returns a sequence of `n_kv` consecutive cells, whose last `n_tokens` are being computed.
pub fn one_sequence(n_kv: usize, n_tokens: usize) -> Scene {
    let (n_kv, n_tokens) = (n_kv as i64, n_tokens as i64);
    Scene {
        cell_pos: (0..n_kv).collect(),
        cell_seqs: vec![1; n_kv as usize],
        query_pos: (n_kv - n_tokens..n_kv).collect(),
        query_seq: vec![0; n_tokens as usize],
    }
}

/// Returns cells of several sequences in random order, some shared and some empty.
pub fn crowd(n_kv: usize, n_tokens: usize) -> Scene {
    let mut random = SplitMix64(7);
    let mut below = |n: usize| random.below(n) as i64;
    Scene {
        cell_pos: (0..n_kv)
            .map(|_| below(n_kv + n_kv / 4) - n_kv as i64 / 4)
            .map(|p| p.max(-1))
            .collect(),
        cell_seqs: (0..n_kv).map(|_| 1 << below(3) | 1 << below(3) | i64::MIN).collect(),
        query_pos: (0..n_tokens).map(|_| below(n_kv)).collect(),
        query_seq: (0..n_tokens).map(|_| [0, 1, 2, 63][below(4) as usize]).collect(),
    }
}

impl Scene {
    /// Returns the visible-cell operands, with a page table for each sequence that has queries, and an unused
    /// table.
    pub fn visible(self) -> [Operand; 6] {
        let mut seqs = self.query_seq.clone();
        seqs.sort_unstable();
        seqs.dedup();
        let table_of = |seq: &i64| seqs.iter().position(|s| s == seq).unwrap() as i64;
        let (mut starts, mut pages, mut masks) = (vec![0], Vec::new(), Vec::new());
        for seq in seqs.iter().chain([&62]) {
            for (page, cells) in self.cell_seqs.chunks(PAGE).enumerate() {
                let bits = cells.iter().enumerate().map(|(i, set)| (set >> seq & 1) << i);
                let mask = bits.fold(0, |mask, bit| mask | bit);
                if mask != 0 {
                    pages.push((page * PAGE) as i64);
                    masks.push(mask);
                }
            }
            starts.push(pages.len() as i64);
        }
        // Unused entries at the end, with invalid contents.
        pages.extend([-7, i64::from(i32::MAX)]);
        masks.extend([-1, -1]);
        let table = self.query_seq.iter().map(table_of).collect::<Vec<_>>();
        let lists = [self.cell_pos, self.query_pos, table, starts, pages].map(i32s);
        let [cell_pos, pos, table, starts, pages] = lists;
        [cell_pos, pos, table, starts, pages, i64s(masks)]
    }
}

pub fn attend(p: Attention, q: Operand, k: Operand, v: Operand, scene: Scene) -> Case {
    let operands: Vec<_> = [q, k, v].into_iter().chain(scene.visible()).collect();
    Case::new(Op::Attention(p), &operands)
}

fn attend_with_sinks(p: Attention, [q, k, v]: [Operand; 3], scene: Scene, more: Vec<Operand>, sinks: Operand) -> Case {
    let mut case = attend(Attention { sinks: true, ..p }, q, k, v, scene);
    case.operands.extend(more);
    case.operands.push(sinks);
    case
}

pub const PLAIN: Attention = Attention::causal(0.125);

/// Returns queries, keys, and values in the layout of a cache: `[d, heads, cells]`.
pub fn qkv(ty: GgmlType, d: [usize; 2], heads: [usize; 2], n_tokens: usize, n_kv: usize) -> [Operand; 3] {
    let q = floats_in(-3.0, 3.0, [d[0], heads[0], n_tokens, 1]);
    [
        q,
        weights(ty, [d[0], heads[1], n_kv, 1]),
        weights(ty, [d[1], heads[1], n_kv, 1]),
    ]
}

pub fn attention() -> Vec<Case> {
    let mut all = Vec::new();
    let heads = [[1, 1], [4, 4], [9, 3], [8, 1], [40, 1]];
    for heads in heads {
        for (n_tokens, n_kv) in [(1, 1), (1, 70), (5, 64), (33, 100), (70, 130)] {
            let [q, k, v] = qkv(F32, [64, 64], heads, n_tokens, n_kv);
            all.push(attend(
                PLAIN,
                q.clone(),
                k.clone(),
                v.clone(),
                one_sequence(n_kv, n_tokens),
            ));
            all.push(attend(PLAIN, q, k, v, crowd(n_kv, n_tokens)));
        }
    }
    for d in [[1, 1], [16, 48], [80, 80], [128, 64], [5, 3]] {
        let [q, k, v] = qkv(F32, d, [4, 2], 3, 40);
        all.push(attend(PLAIN, q, k, v, one_sequence(40, 3)));
    }
    let [q, k, v] = qkv(F32, [64, 64], [6, 3], 5, 100);
    for p in [
        Attention { softcap: 0.7, ..PLAIN },
        Attention { max_bias: 8.0, ..PLAIN },
        Attention {
            softcap: 2.0,
            max_bias: 4.0,
            causal: false,
            scale: 1.0,
            ..PLAIN
        },
        Attention { causal: false, ..PLAIN },
    ] {
        all.push(attend(p, q.clone(), k.clone(), v.clone(), one_sequence(100, 5)));
        let sinks = floats_in(-2.0, 2.0, [6, 1, 1, 1]);
        let qkv = [q.clone(), k.clone(), v.clone()];
        all.push(attend_with_sinks(p, qkv, crowd(100, 5), vec![], sinks));
        // Permuted queries, and keys and values as parts of wider rows.
        let (q, k, v) = (q.clone().permuted([0, 2, 1, 3]), k.clone().part(1), v.clone().part(1));
        all.push(attend(p, q, k, v, crowd(100, 5)));
    }
    all
}

/// Returns cases with single tokens within a window and compressed groups outside of it, with and without a
/// selection of groups.
pub fn compressed_attention() -> Vec<Case> {
    let mut all = Vec::new();
    for (n_tokens, n_kv, first) in [(1, 300, 40), (5, 100, 64), (33, 190, 130), (3, 20, 0), (3, 20, 20)] {
        let [q, k, v] = qkv(F32, [64, 64], [6, 1], n_tokens, n_kv);
        let mut random = SplitMix64(9);
        let cells: Vec<_> = (0..6 * n_tokens)
            .map(|_| random.below(n_kv - first + 2) as i64 - 1)
            .collect();
        let mut selection = i32s(cells);
        selection.ne = [6, n_tokens, 1, 1];
        for selects in [false, true] {
            for window in [Window::Sliding(5), Window::Chunked(8), Window::None] {
                let p = Attention {
                    window,
                    sinks: true,
                    selects,
                    compressed_from: Some(first),
                    ..PLAIN
                };
                let mut case = attend(p, q.clone(), k.clone(), v.clone(), crowd(n_kv, n_tokens));
                case.operands.push(floats([6, 1, 1, 1]));
                case.operands.extend(selects.then(|| selection.clone()));
                all.push(case);
            }
        }
    }
    all
}

pub fn attention_of_all_types() -> Vec<Case> {
    let mut all = Vec::new();
    for ty in [F16, BF16, Q8_0, Q4_0] {
        for (n_tokens, n_kv) in [(1, 65), (20, 90)] {
            let [q, k, v] = qkv(ty, [64, 32], [6, 2], n_tokens, n_kv);
            all.push(attend(
                PLAIN,
                q.clone(),
                k.clone(),
                v.clone(),
                one_sequence(n_kv, n_tokens),
            ));
            all.push(attend(
                PLAIN,
                q,
                k.permuted([0, 2, 1, 3]),
                v.part(1),
                crowd(n_kv, n_tokens),
            ));
        }
        let [q, k, _] = qkv(ty, [32, 32], [4, 4], 3, 90);
        let [_, _, v] = qkv(F32, [32, 32], [4, 4], 3, 90);
        all.push(attend(PLAIN, q, k, v, crowd(90, 3)));
    }
    all
}

pub fn attention_windows() -> Vec<Case> {
    let mut all = Vec::new();
    let windows = [
        Window::Sliding(1),
        Window::Sliding(20),
        Window::Sliding(usize::MAX),
        Window::Chunked(16),
        Window::Chunked(1000),
        Window::Symmetric(9),
        Window::Symmetric(usize::MAX),
    ];
    for window in windows {
        for causal in [true, false] {
            let p = Attention {
                window,
                causal,
                ..PLAIN
            };
            for n_tokens in [1, 90] {
                let [q, k, v] = qkv(F32, [32, 32], [4, 2], n_tokens, 200);
                all.push(attend(p, q.clone(), k.clone(), v.clone(), one_sequence(200, n_tokens)));
                // Every query sees at least one cell: the cell at its own position.
                let mut scene = crowd(200, n_tokens);
                scene.query_pos[0] = scene.cell_pos.iter().copied().max().unwrap();
                scene.query_seq[0] = 63;
                all.push(attend(p, q, k, v, scene));
            }
        }
    }
    all
}

pub fn attention_by_relative_position() -> Vec<Case> {
    let mut all = Vec::new();
    for buckets in [Buckets::Past, Buckets::Around] {
        for (n_buckets, causal) in [(2, false), (7, true), (8, false), (32, true), (32, false), (255, false)] {
            let p = Attention {
                buckets,
                causal,
                ..PLAIN
            };
            for (n_tokens, n_kv) in [(1, 300), (40, 200)] {
                let table = || floats_in(-2.0, 2.0, [4, n_buckets, 1, 1]);
                let [q, k, v] = qkv(F32, [32, 32], [4, 2], n_tokens, n_kv);
                let mut case = attend(p, q.clone(), k.clone(), v.clone(), one_sequence(n_kv, n_tokens));
                case.operands.push(table());
                all.push(case);
                let (scene, sinks) = (crowd(n_kv, n_tokens), floats_in(-2.0, 2.0, [4, 1, 1, 1]));
                all.push(attend_with_sinks(p, [q, k, v], scene, vec![table()], sinks));
            }
        }
    }
    all
}

pub fn attention_of_many_cells() -> Vec<Case> {
    let mut all = Vec::new();
    for (heads, n_tokens, n_kv) in [([3, 1], 1, 1000), ([4, 2], 2, 777), ([2, 2], 1, 4096), ([1, 1], 1, 513)] {
        for ty in [F32, F16] {
            let [q, k, v] = qkv(ty, [32, 32], heads, n_tokens, n_kv);
            all.push(attend(
                PLAIN,
                q.clone(),
                k.clone(),
                v.clone(),
                one_sequence(n_kv, n_tokens),
            ));
            let (scene, sinks) = (crowd(n_kv, n_tokens), floats_in(-2.0, 2.0, [heads[0], 1, 1, 1]));
            all.push(attend_with_sinks(PLAIN, [q, k, v], scene, vec![], sinks));
        }
    }
    all
}

/// Returns two cases with few tokens: one sequence, and several sequences with sinks.
fn of_few_tokens(p: Attention, [q, k, v]: [Operand; 3]) -> [Case; 2] {
    let ([n_head, n_tokens], n_kv) = ([q.ne[1], q.ne[2]], k.ne[2]);
    let table = (p.buckets != PLAIN.buckets).then(|| floats_in(-2.0, 2.0, [n_head, 7, 1, 1]));
    let mut case = attend(p, q.clone(), k.clone(), v.clone(), one_sequence(n_kv, n_tokens));
    case.operands.extend(table.clone());
    let sinks = floats_in(-2.0, 2.0, [n_head, 1, 1, 1]);
    let mut scene = crowd(n_kv, n_tokens);
    // The first query sees at least the cell at its own position.
    scene.query_pos[0] = scene.cell_pos.iter().copied().max().unwrap();
    let crowded = attend_with_sinks(p, [q, k, v], scene, table.into_iter().collect(), sinks);
    [case, crowded]
}

/// Returns cases with few tokens that GPUs compute on tensor cores unless `Precision::Exact` is required: all
/// caches, head sizes, groups, and score variants.
pub fn attention_of_few_tokens() -> Vec<Case> {
    let mut all = Vec::new();
    let mut both = |p: Attention, ty: GgmlType, d: [usize; 2], heads: [usize; 2], n_tokens: usize| {
        all.extend(of_few_tokens(p, qkv(ty, d, heads, n_tokens, 150)));
    };
    for ty in [F16, BF16, Q8_0, Q4_0] {
        for (d, heads) in [([64, 64], [3, 1]), ([128, 128], [8, 2]), ([256, 256], [2, 1])] {
            both(PLAIN, ty, d, heads, 2);
        }
    }
    both(PLAIN, F16, [576, 512], [16, 1], 1);
    both(PLAIN, Q8_0, [576, 512], [4, 1], 1);
    both(PLAIN, Q8_0, [128, 64], [20, 2], 1);
    both(PLAIN, Q4_0, [96, 96], [2, 1], 1);
    for (d, heads) in [
        ([80, 80], [7, 1]),
        ([16, 48], [40, 1]),
        ([192, 128], [9, 1]),
        ([64, 512], [1, 1]),
    ] {
        both(PLAIN, F16, d, heads, 1);
    }
    let windows = [Window::Sliding(20), Window::Chunked(16), Window::Symmetric(9)];
    for p in windows.map(|window| Attention { window, ..PLAIN }) {
        both(p, F16, [64, 64], [4, 2], 3);
    }
    for p in [
        Attention { softcap: 0.7, ..PLAIN },
        Attention { max_bias: 8.0, ..PLAIN },
        Attention {
            compressed_from: Some(70),
            window: Window::Sliding(5),
            ..PLAIN
        },
        Attention {
            buckets: Buckets::Past,
            ..PLAIN
        },
        Attention { causal: false, ..PLAIN },
    ] {
        both(p, F16, [64, 64], [6, 3], 8);
    }
    all
}

/// Returns cases with few tokens whose values are the first elements of the keys.
pub fn attention_to_latents() -> Vec<Case> {
    let mut all = Vec::new();
    for (ty, d, n_head) in [
        (F16, [576, 512], 16),
        (F16, [512, 512], 5),
        (BF16, [320, 256], 20),
        (Q8_0, [576, 512], 16),
        (Q8_0, [192, 128], 3),
        (Q4_0, [576, 512], 9),
        (F32, [576, 512], 2),
    ] {
        let latents = || {
            let [q, k, v] = qkv(ty, d, [n_head, 1], 2, 150);
            [q, k, v.first_of(1)]
        };
        all.extend(of_few_tokens(PLAIN, latents()));
        let sliding = Attention {
            window: Window::Sliding(20),
            softcap: 0.7,
            ..PLAIN
        };
        all.extend(of_few_tokens(sliding, latents()));
    }
    all
}

/// Sizes of keys and values. The last two are loaded in parts.
const SIZES_OF_TILES: [[usize; 2]; 7] = [
    [16, 48],
    [80, 80],
    [128, 128],
    [192, 128],
    [64, 512],
    [512, 512],
    [576, 512],
];

/// Returns prompts that GPUs compute with tile kernels under `Precision::Fast`: all score variants, with
/// tokens of one sequence and of several interleaved ones.
pub fn attention_of_prompts() -> Vec<Case> {
    let mut all = Vec::new();
    let mut both = |p: Attention, ty: GgmlType, d: [usize; 2], heads: [usize; 2]| {
        for (n_tokens, n_kv) in [(37, 150), (96, 200)] {
            let [q, k, v] = qkv(ty, d, heads, n_tokens, n_kv);
            let crowded = n_tokens > 90;
            let scene = if crowded { crowd } else { one_sequence };
            let sinks = floats_in(-2.0, 2.0, [heads[0], 1, 1, 1]);
            let table = floats_in(-2.0, 2.0, [heads[0], 7, 1, 1]);
            let more = (p.buckets != PLAIN.buckets).then_some(table);
            if crowded {
                all.push(attend_with_sinks(
                    p,
                    [q, k, v],
                    scene(n_kv, n_tokens),
                    more.into_iter().collect(),
                    sinks,
                ));
            } else {
                let mut case = attend(p, q, k, v, scene(n_kv, n_tokens));
                case.operands.extend(more);
                all.push(case);
            }
        }
    };
    for ty in [F16, BF16, Q8_0, Q4_0] {
        both(PLAIN, ty, [64, 64], [4, 2]);
        both(PLAIN, ty, [256, 256], [2, 1]);
    }
    for heads in [[1, 1], [7, 1], [9, 3], [40, 1]] {
        both(PLAIN, F16, [32, 32], heads);
    }
    for d in SIZES_OF_TILES {
        both(PLAIN, F16, d, [4, 1]);
    }
    both(PLAIN, Q8_0, [576, 512], [20, 1]);
    let windows = [
        Window::Sliding(20),
        Window::Sliding(usize::MAX),
        Window::Chunked(16),
        Window::Symmetric(9),
    ];
    for (window, causal) in windows.into_iter().flat_map(|w| [(w, true), (w, false)]) {
        let p = Attention {
            window,
            causal,
            ..PLAIN
        };
        both(p, F16, [32, 32], [4, 2]);
    }
    for p in [
        Attention { softcap: 0.7, ..PLAIN },
        Attention { max_bias: 8.0, ..PLAIN },
        Attention {
            compressed_from: Some(70),
            window: Window::Sliding(5),
            ..PLAIN
        },
        Attention {
            buckets: Buckets::Past,
            ..PLAIN
        },
        Attention { causal: false, ..PLAIN },
    ] {
        both(p, F16, [32, 32], [6, 3]);
    }
    all
}

use std::cell::Cell;
use std::ops::ControlFlow;

use kernels::GgmlType::{F32, I32, I64, Q4_0};
use kernels::attention::tiles::has_tiles;
use kernels::{Precision, quantize_row};

use crate::backend::{BackendParams, MemoryMap, device};
use crate::graph::{Attention, AttentionOperands, Graph, PAGE, Tensor, TensorId, VisibleCells};
use crate::sched::{Observer, SchedParams, Scheduler};

thread_local! {
    /// Number of pages that this thread has scored.
    pub(super) static N_SCORED: Cell<usize> = const { Cell::new(0) };
    /// Number of pages that this thread has packed for tile kernels.
    pub(super) static N_PREPARED: Cell<usize> = const { Cell::new(0) };
}

const N_HEAD_KV: usize = 2;

/// Returns the number of key pages read; see [`pages_read`].
fn n_pages_read(tables: &[&[usize]]) -> usize {
    pages_read(tables, Precision::Exact).0
}

/// Computes attention with one token per item of `tables`, the pages that the token sees, on one thread.
/// Adjacent tokens with equal page lists share a table.
///
/// Returns the number of key pages read, and the number of pages packed for tile kernels.
fn pages_read(tables: &[&[usize]], precision: Precision) -> (usize, usize) {
    let n_kv = PAGE * (1 + tables.iter().flat_map(|pages| pages.iter()).max().unwrap());
    let (mut table, mut starts, mut pages) = (Vec::new(), vec![0], Vec::new());
    for (t, list) in tables.iter().enumerate() {
        if t == 0 || tables[t - 1] != *list {
            pages.extend(list.iter().map(|page| (page * PAGE) as i32));
            starts.push(pages.len() as i32);
        }
        table.push(starts.len() as i32 - 2);
    }
    let mut g = Graph::new();
    let mut list = |ty, n: usize| g.input(ty, [n, 1, 1, 1], "list");
    let visible = VisibleCells {
        cell_pos: list(I32, n_kv),
        pos: list(I32, table.len()),
        table: list(I32, table.len()),
        starts: list(I32, starts.len()),
        pages: list(I32, pages.len()),
        masks: list(I64, pages.len()),
    };
    let mut heads = |n_head: usize, n: usize| g.input(F32, [8, n_head, n, 1], "heads");
    let qkv = [(2 * N_HEAD_KV, table.len()), (N_HEAD_KV, n_kv), (N_HEAD_KV, n_kv)].map(|(h, n)| heads(h, n));
    let operands = AttentionOperands::new(qkv, visible);
    let y = g.attention(Attention::causal(1.0), operands).unwrap();
    g.tensor_mut(y).flags.output = true;
    g.expand(y);

    let params = BackendParams {
        precision,
        ..BackendParams::new(1)
    };
    let backend = device("cpu").unwrap().backend(&params).unwrap();
    let mut sched = Scheduler::new(vec![backend], MemoryMap::default(), SchedParams::default()).unwrap();
    sched.alloc_graph(&mut g).unwrap();
    let mut set = |id: TensorId, values: &[i32]| sched.set_input(&g, id, bytemuck::cast_slice(values)).unwrap();
    set(visible.cell_pos, &vec![0; n_kv]);
    set(visible.pos, &vec![0; table.len()]);
    set(visible.table, &table);
    set(visible.starts, &starts);
    set(visible.pages, &pages);
    for id in [operands.q, operands.k, operands.v] {
        set(id, &vec![0; g.tensor(id).nelements()]);
    }
    let all = vec![-1i64; pages.len()];
    sched.set_input(&g, visible.masks, bytemuck::cast_slice(&all)).unwrap();
    N_SCORED.set(0);
    N_PREPARED.set(0);
    sched.compute(&g).unwrap();
    (N_SCORED.get(), N_PREPARED.get())
}

#[test]
fn sequences_in_lockstep_read_their_own_pages() {
    let one = n_pages_read(&[&[0, 1, 2]]);
    assert_eq!(one, 3 * N_HEAD_KV);
    // Page order of sequences that grow in lockstep.
    for n_seqs in [2, 8, 40] {
        let tables: Vec<_> = (0..n_seqs).map(|s| [s, n_seqs + s, 2 * n_seqs + s]).collect();
        let tables: Vec<&[usize]> = tables.iter().map(|t| &t[..]).collect();
        assert_eq!(n_pages_read(&tables), n_seqs * one);
    }
}

#[test]
fn tokens_of_one_sequence_read_pages_together() {
    let pages: &[usize] = &[0, 1];
    assert_eq!(n_pages_read(&[pages; 24]), 2 * N_HEAD_KV);
    assert_eq!(
        n_pages_read(&[pages; 25]),
        2 * 2 * N_HEAD_KV,
        "48 queries at a time, two per token"
    );
}

/// Two query heads share a KV head, so that 16 tokens fill a tile of 32 queries.
#[test]
fn pages_are_packed_only_for_enough_queries() {
    let is_prepared = |tables: &[&[usize]]| {
        let (scored, prepared) = pages_read(tables, Precision::Fast);
        assert!(scored > 0 && prepared <= scored);
        prepared > 0
    };
    let sequences: Vec<[usize; 1]> = (0..40).map(|page| [page]).collect();
    let apart: Vec<&[usize]> = sequences.iter().map(|pages| &pages[..]).collect();
    assert!(!is_prepared(&apart), "40 sequences, each with its own pages");
    let shared = |n: usize| [&apart[..40 - n], &vec![&[40usize][..]; n]].concat();
    assert!(!is_prepared(&shared(15)));
    for n in [16, 17, 40] {
        assert_eq!(
            is_prepared(&shared(n)),
            has_tiles(),
            "{n} tokens of one sequence in a batch with other sequences"
        );
    }
}

/// Observes the attention result, so that it is stored as f32.
struct RunTimer;

impl Observer for RunTimer {
    fn observes(&mut self, graph: &Graph, node: TensorId) -> bool {
        matches!(graph.tensor(node).op, crate::graph::Op::Attention(_))
    }

    fn show(&mut self, _: &Graph, _: TensorId, _: &[u8]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Returns test data for a tensor: the values of a longer tensor without the first `skipped` values.
fn noise(t: &Tensor, seed: usize, skipped: usize) -> Vec<u8> {
    let floats: Vec<f32> = (skipped..skipped + t.nelements())
        .map(|i| ((i * i % 977 + 7 * i * seed) % 103) as f32 / 50.0 - 0.9)
        .collect();
    let mut bytes = vec![0; t.nbytes()];
    match t.ty {
        F32 => bytes.copy_from_slice(bytemuck::cast_slice(&floats)),
        ty => quantize_row(ty, &floats, &mut bytes),
    }
    bytes
}

/// Returns a matmul of the attention result of the last `n_tokens` of `n` tokens. `apart` prevents the fusion, so that
/// attention stores its result as f32.
fn matmul_of_attention([n_tokens, n]: [usize; 2], [dk, n_head]: [usize; 2], n_threads: usize, apart: bool) -> Vec<u8> {
    let mut g = Graph::new();
    let mut list = |ty, n: usize| g.input(ty, [n, 1, 1, 1], "list");
    let n_pages = n.div_ceil(PAGE);
    let visible = VisibleCells {
        cell_pos: list(I32, n),
        pos: list(I32, n_tokens),
        table: list(I32, n_tokens),
        starts: list(I32, 2),
        pages: list(I32, n_pages),
        masks: list(I64, n_pages),
    };
    let mut heads = |n_head: usize, n: usize| g.input(F32, [dk, n_head, n, 1], "heads");
    let qkv = [(n_head, n_tokens), (N_HEAD_KV, n), (N_HEAD_KV, n)].map(|(n_head, n)| heads(n_head, n));
    let operands = AttentionOperands::new(qkv, visible);
    let attention = g.attention(Attention::causal(0.1), operands).unwrap();
    let merged = g.reshape(attention, [dk * n_head, n_tokens, 1, 1]).unwrap();
    let weights = g.input(Q4_0, [dk * n_head, 40, 1, 1], "weights");
    let y = g.mul_mat(weights, merged).unwrap();
    g.tensor_mut(y).flags.output = true;
    g.expand(y);

    let params = BackendParams {
        precision: Precision::Fast,
        ..BackendParams::new(n_threads)
    };
    let backend = device("cpu").unwrap().backend(&params).unwrap();
    let mut sched = Scheduler::new(vec![backend], MemoryMap::default(), SchedParams::default()).unwrap();
    sched.alloc_graph(&mut g).unwrap();
    let count: Vec<i32> = (0..n as i32).collect();
    let pages: Vec<i32> = (0..n_pages).map(|page| (page * PAGE) as i32).collect();
    let (one_table, all) = ([0, n_pages as i32], vec![-1i64; n_pages]);
    let lists = [
        (visible.cell_pos, &count[..]),
        (visible.pos, &count[n - n_tokens..]),
        (visible.table, &vec![0; n_tokens]),
        (visible.starts, &one_table),
        (visible.pages, &pages),
    ];
    for (id, values) in lists {
        sched.set_input(&g, id, bytemuck::cast_slice(values)).unwrap();
    }
    sched.set_input(&g, visible.masks, bytemuck::cast_slice(&all)).unwrap();
    for (id, seed) in qkv.into_iter().chain([weights]).zip(1..) {
        // A token's query does not depend on the other tokens of the batch.
        let skipped = if id == operands.q {
            (n - n_tokens) * dk * n_head
        } else {
            0
        };
        let bytes = noise(g.tensor(id), seed, skipped);
        sched.set_input(&g, id, &bytes).unwrap();
    }
    if apart {
        sched.set_observer(Some(Box::new(RunTimer)));
    }
    sched.compute(&g).unwrap();
    let mut out = vec![0; g.tensor(y).nbytes()];
    sched.read_tensor(&g, y, 0, &mut out).unwrap();
    out
}

/// The number of queries that share packed keys depends on the number of threads. The result is stored as f32
/// or in the form of the matmul.
#[test]
fn matmul_of_attention_is_independent_of_threads() {
    for (n, heads) in [(700, [64, 6]), (200, [32, 2]), (130, [48, 10]), (31, [64, 4])] {
        let expected = matmul_of_attention([n, n], heads, 1, true);
        assert!(expected.iter().any(|&byte| byte != 0));
        for n_threads in 1..=3 {
            let got = matmul_of_attention([n, n], heads, n_threads, false);
            assert!(got == expected, "{n} tokens, heads {heads:?}, {n_threads} threads");
        }
    }
}

/// A single thread computes all heads of few tokens at a time, and several threads do so if there are enough
/// parts. The results must be bit-identical. The last tokens of a prompt must give the same bits as when they
/// are computed alone.
#[test]
fn attention_of_few_tokens_is_independent_of_threads() {
    for n in [40, 130, 300, 700, 1500] {
        for (n_tokens, heads) in [(1, [64, 6]), (1, [48, 2]), (4, [64, 6]), (5, [48, 8])] {
            let expected = matmul_of_attention([n_tokens, n], heads, 1, true);
            assert!(expected.iter().any(|&byte| byte != 0));
            for n_threads in 1..=4 {
                let got = matmul_of_attention([n_tokens, n], heads, n_threads, false);
                assert!(
                    got == expected,
                    "{n_tokens} of {n} tokens, heads {heads:?}, {n_threads} threads"
                );
            }
            let one = matmul_of_attention([1, n], heads, 2, false);
            assert!(
                expected.ends_with(&one),
                "the last of {n} tokens, alone and in a batch of {n_tokens}"
            );
        }
    }
}

use std::cell::Cell;

use kernels::GgmlType::{F32, I32, I64};

use crate::backend::{BackendParams, MemoryMap, device};
use crate::graph::{Attention, AttentionOperands, Graph, PAGE, TensorId, VisibleCells};
use crate::sched::{SchedParams, Scheduler};

thread_local! {
    /// Pages whose keys this thread has multiplied with queries.
    pub(super) static N_SCORED: Cell<usize> = const { Cell::new(0) };
}

const N_HEAD_KV: usize = 2;

/// Computes attention of a token for each item of `tables`, the pages that it sees, on one thread: how many pages of keys are read.
/// Tokens side by side with the same pages share a table.
fn n_pages_read(tables: &[&[usize]]) -> usize {
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

    let backend = device("cpu").unwrap().backend(&BackendParams::new(1)).unwrap();
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
    let before = N_SCORED.get();
    sched.compute(&g).unwrap();
    N_SCORED.get() - before
}

#[test]
fn sequences_in_lockstep_read_their_own_pages() {
    let one = n_pages_read(&[&[0, 1, 2]]);
    assert_eq!(one, 3 * N_HEAD_KV);
    // Pages in the order in which sequences that grow together get them.
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
        "48 queries at a time, of two heads each"
    );
}

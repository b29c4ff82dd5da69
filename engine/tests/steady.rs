//! After a reservation the CPU backend computes without touching the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::backend::{BackendParams, Device, MemoryMap, Usage, device};
use engine::graph::{Attention, Graph, Home, Op, Rope, RopeKind, TensorId, Unary, Window};
use kernels::GgmlType::{self, F16, F32, I32, I64, Q8_0};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const N_CELLS: usize = 1024;

/// A layer with experts, of `n` tokens, every tensor in a buffer of its own.
fn layer(n: usize, device: &dyn Device) -> (Graph, MemoryMap) {
    let mut g = Graph::new();
    let leaf = |g: &mut Graph, ty: GgmlType, ne: [usize; 4]| g.input(ty, ne, "leaf");
    let x = leaf(&mut g, F32, [128, n, 1, 1]);
    let norm_weight = leaf(&mut g, F32, [128, 1, 1, 1]);
    let (wq, wv) = (
        leaf(&mut g, Q8_0, [128, 128, 1, 1]),
        leaf(&mut g, Q8_0, [128, 64, 1, 1]),
    );
    let (positions, sequences) = (leaf(&mut g, I32, [n, 1, 1, 1]), leaf(&mut g, I32, [n, 1, 1, 1]));
    let (cells, cache) = (leaf(&mut g, I64, [n, 1, 1, 1]), leaf(&mut g, F16, [64, N_CELLS, 1, 1]));
    let (cell_pos, cell_seqs) = (
        leaf(&mut g, I32, [N_CELLS, 1, 1, 1]),
        leaf(&mut g, I64, [N_CELLS, 1, 1, 1]),
    );
    let experts = leaf(&mut g, Q8_0, [128, 96, 4, 1]);
    let rope = Rope {
        kind: RopeKind::Neox,
        n_dims: 32,
        freq_base: 1e4,
        freq_scale: 1.0,
        ext_factor: 0.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        n_ctx_orig: 1024,
    };
    let attention = Attention {
        scale: 0.2,
        softcap: 0.0,
        max_bias: 0.0,
        causal: true,
        window: Window::None,
    };

    let normed = g.rms_norm(x, Some(norm_weight), 1e-5).unwrap();
    let q = g.mul_mat(wq, normed).unwrap();
    let q = g.reshape(q, [32, 4, n, 1]).unwrap();
    let q = g.rope(q, positions, None, rope).unwrap();
    let v = g.mul_mat(wv, normed).unwrap();
    let written = g.set_rows(cache, v, cells).unwrap();
    let kv = g
        .view(written, [32, 2, N_CELLS, 1], [2, 64, 128, 128 * N_CELLS], 0)
        .unwrap();
    let y = g
        .attention(attention, &[q, kv, kv, cell_pos, cell_seqs, positions, sequences])
        .unwrap();
    let y = g.reshape(y, [128, n, 1, 1]).unwrap();
    let y = g.add(y, x).unwrap();
    let router = g.slice(y, 0, 4).unwrap();
    let chosen = g.top_k(router, 2).unwrap();
    let y = g.reshape(y, [128, 1, n, 1]).unwrap();
    let y = g.mul_mat_id(experts, y, chosen).unwrap();
    let y = g.glu(Unary::Silu, y, y).unwrap();
    g.expand(y);

    let mut memory = MemoryMap::default();
    for id in g.ids() {
        if g.tensor(id).view.is_none() {
            let buffer = device.buffer_type().allocate(g.tensor(id).nbytes()).unwrap();
            let buffer = memory.insert(buffer, Usage::Any);
            g.tensor_mut(id).home = Some(Home { buffer, offset: 0 });
        }
    }
    // Different cells, since tokens at one position would do as well; all else may be zero.
    let rows: Vec<u8> = (0..n as i64).flat_map(i64::to_le_bytes).collect();
    memory.get(g.home(cells).unwrap().buffer).write(0, &rows).unwrap();
    (g, memory)
}

#[test]
fn computing_allocates_nothing_after_a_reservation() {
    let cpu = device("cpu").unwrap();
    let (largest, _) = layer(48, &*cpu);
    let graphs = [1, 2, 48].map(|n| layer(n, &*cpu));
    let computed = |g: &Graph, op: Op| g.nodes().iter().any(|&id: &TensorId| g.tensor(id).op == op);
    assert!(computed(&largest, Op::MulMatId) && computed(&largest, Op::SetRows));
    for n_threads in 1..=3 {
        let params = BackendParams {
            n_threads: 1,
            n_threads_batch: n_threads,
        };
        let mut backend = cpu.clone().backend(&params).unwrap();
        backend.reserve(&largest, largest.nodes()).unwrap();
        // The first run may set up what the system's primitives and the choice of kernels need.
        let (g, memory) = &graphs[0];
        backend.set_threads(n_threads);
        backend.compute(g, g.nodes(), memory).unwrap();
        for active in 1..=n_threads {
            backend.set_threads(active);
            for (g, memory) in &graphs {
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                backend.compute(g, g.nodes(), memory).unwrap();
                assert_eq!(
                    ALLOCATIONS.load(Ordering::Relaxed) - before,
                    0,
                    "{active} of {n_threads} threads"
                );
            }
        }
    }
}

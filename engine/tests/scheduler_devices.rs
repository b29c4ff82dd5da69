//! A small transformer on one and two devices of this machine. Memory reuse, in-place ops, splits, and copies
//! must not change the results.

use std::sync::Arc;

use engine::backend::*;
use engine::gguf::logits::nmse;
use engine::graph::*;
use engine::sched::{BackendId, SchedParams, Scheduler};
use kernels::GgmlType;

const N_EMBD: usize = 64;
const HEAD_DIM: usize = 16;
const N_HEAD: usize = N_EMBD / HEAD_DIM;
const N_FF: usize = 96;
const N_KV: usize = 8;
const N_LAYER: usize = 4;

/// Weights and caches of a layer.
struct Layer {
    attn_norm: BufferSlice,
    ffn_norm: BufferSlice,
    q: BufferSlice,
    k: BufferSlice,
    v: BufferSlice,
    o: BufferSlice,
    gate: BufferSlice,
    up: BufferSlice,
    down: BufferSlice,
    k_cache: BufferSlice,
    v_cache: BufferSlice,
}

/// Input tensors and the result of a graph.
struct Built {
    x: TensorId,
    rows: TensorId,
    visible: VisibleCells<TensorId>,
    out: TensorId,
}

/// Returns numbers in -0.5..0.5 that depend only on the seed.
fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| next()).collect()
}

fn stored(sched: &mut Scheduler, device: &dyn Device, n: usize, seed: u32, usage: Usage) -> BufferSlice {
    let mut buffer = device.buffer_type().allocate(4 * n).unwrap();
    if usage == Usage::Weights {
        buffer.write(0, bytemuck::cast_slice(&numbers(n, seed))).unwrap();
    }
    BufferSlice {
        buffer: sched.register_buffer(buffer, usage),
        offset: 0,
    }
}

fn layer(sched: &mut Scheduler, device: &dyn Device, il: usize) -> Layer {
    let mut seed = 100 * il as u32;
    let mut weight = |n: usize| {
        seed += 1;
        stored(sched, device, n, seed, Usage::Weights)
    };
    Layer {
        attn_norm: weight(N_EMBD),
        ffn_norm: weight(N_EMBD),
        q: weight(N_EMBD * N_EMBD),
        k: weight(N_EMBD * N_EMBD),
        v: weight(N_EMBD * N_EMBD),
        o: weight(N_EMBD * N_EMBD),
        gate: weight(N_EMBD * N_FF),
        up: weight(N_EMBD * N_FF),
        down: weight(N_FF * N_EMBD),
        k_cache: stored(sched, device, N_EMBD * N_KV, 0, Usage::Any),
        v_cache: stored(sched, device, N_EMBD * N_KV, 0, Usage::Any),
    }
}

fn external(g: &mut Graph, home: BufferSlice, ne: [usize; 2], base: &'static str, il: usize) -> TensorId {
    let layer = Some(il as u32);
    let ne = [ne[0], ne[1], 1, 1];
    g.external(GgmlType::F32, ne, Name { base, layer }, home, Flags::default())
}

fn rope() -> Rope {
    Rope {
        kind: RopeKind::Neox,
        sections: [0; 4],
        n_dims: HEAD_DIM,
        freq_base: 1e4,
        freq_scale: 1.0,
        ext_factor: 0.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        n_ctx_orig: 128,
        every: 1,
        inverse: false,
    }
}

fn attend(g: &mut Graph, b: &Built, w: &Layer, il: usize, x: TensorId, n_tokens: usize) -> TensorId {
    let heads = [HEAD_DIM, N_HEAD, n_tokens, 1];
    let norm = external(g, w.attn_norm, [N_EMBD, 1], "attn_norm", il);
    let x = g.rms_norm(x, Some(norm), 1e-5).unwrap();
    let mut project = |home: BufferSlice, name: &'static str| {
        let w = external(g, home, [N_EMBD, N_EMBD], name, il);
        g.mul_mat(w, x).unwrap()
    };
    let (q, k, v) = (project(w.q, "q"), project(w.k, "k"), project(w.v, "v"));
    let q = g.reshape(q, heads).unwrap();
    let q = g.rope(q, b.visible.pos, None, rope()).unwrap();
    let k = g.reshape(k, heads).unwrap();
    let k = g.rope(k, b.visible.pos, None, rope()).unwrap();
    let k = g.reshape(k, [N_EMBD, n_tokens, 1, 1]).unwrap();
    let mut remember = |home: BufferSlice, rows: TensorId, name: &'static str| {
        let cache = external(g, home, [N_EMBD, N_KV], name, il);
        let written = g.set_rows(cache, rows, b.rows).unwrap();
        g.expand(written);
        g.reshape(cache, [HEAD_DIM, N_HEAD, N_KV, 1]).unwrap()
    };
    let (k, v) = (remember(w.k_cache, k, "k_cache"), remember(w.v_cache, v, "v_cache"));
    let operands = AttentionOperands::new([q, k, v], b.visible);
    let a = g
        .attention(Attention::causal(1.0 / (HEAD_DIM as f32).sqrt()), operands)
        .unwrap();
    let a = g.reshape(a, [N_EMBD, n_tokens, 1, 1]).unwrap();
    let o = external(g, w.o, [N_EMBD, N_EMBD], "o", il);
    g.mul_mat(o, a).unwrap()
}

fn feed_forward(g: &mut Graph, w: &Layer, il: usize, x: TensorId) -> TensorId {
    let norm = external(g, w.ffn_norm, [N_EMBD, 1], "ffn_norm", il);
    let x = g.rms_norm(x, Some(norm), 1e-5).unwrap();
    let gate = external(g, w.gate, [N_EMBD, N_FF], "gate", il);
    let up = external(g, w.up, [N_EMBD, N_FF], "up", il);
    let down = external(g, w.down, [N_FF, N_EMBD], "down", il);
    let gate = g.mul_mat(gate, x).unwrap();
    let up = g.mul_mat(up, x).unwrap();
    let h = g.glu(Unary::Silu, gate, up).unwrap();
    g.mul_mat(down, h).unwrap()
}

fn build(g: &mut Graph, layers: &[Layer], n_tokens: usize) -> Built {
    g.clear();
    let x = g.input(GgmlType::F32, [N_EMBD, n_tokens, 1, 1], "x");
    let mut b = Built {
        x,
        rows: g.input(GgmlType::I64, [n_tokens, 1, 1, 1], "rows"),
        visible: VisibleCells {
            cell_pos: g.input(GgmlType::I32, [N_KV, 1, 1, 1], "cell_pos"),
            pos: g.input(GgmlType::I32, [n_tokens, 1, 1, 1], "pos"),
            table: g.input(GgmlType::I32, [n_tokens, 1, 1, 1], "table"),
            starts: g.input(GgmlType::I32, [2, 1, 1, 1], "starts"),
            pages: g.input(GgmlType::I32, [1, 1, 1, 1], "pages"),
            masks: g.input(GgmlType::I64, [1, 1, 1, 1], "masks"),
        },
        out: x,
    };
    let mut h = x;
    for (il, w) in layers.iter().enumerate() {
        let a = attend(g, &b, w, il, h, n_tokens);
        h = g.add(h, a).unwrap();
        let f = feed_forward(g, w, il, h);
        h = g.add(h, f).unwrap();
    }
    let h = g.scale(h, 3.0, 0.1).unwrap();
    b.out = g.soft_max(h, 1.0).unwrap();
    g.tensor_mut(b.out).flags.output = true;
    g.expand(b.out);
    b
}

fn fill(s: &mut Scheduler, g: &Graph, b: &Built, first_pos: usize, n_tokens: usize) {
    let pos: Vec<i32> = (first_pos..first_pos + n_tokens).map(|p| p as i32).collect();
    let rows: Vec<i64> = pos.iter().map(|&p| i64::from(p)).collect();
    let n_filled = first_pos + n_tokens;
    let cell_pos: Vec<i32> = (0..N_KV).map(|c| if c < n_filled { c as i32 } else { -1 }).collect();
    let x = numbers(N_EMBD * n_tokens, first_pos as u32 + 7);
    s.set_input(g, b.x, bytemuck::cast_slice(&x)).unwrap();
    s.set_input(g, b.rows, bytemuck::cast_slice(&rows)).unwrap();
    // The single sequence occupies one page.
    let table = vec![0i32; n_tokens];
    let lists: [(TensorId, &[i32]); 5] = [
        (b.visible.cell_pos, &cell_pos),
        (b.visible.pos, &pos),
        (b.visible.table, &table),
        (b.visible.starts, &[0, 1]),
        (b.visible.pages, &[0]),
    ];
    for (id, list) in lists {
        s.set_input(g, id, bytemuck::cast_slice(list)).unwrap();
    }
    s.set_input(g, b.visible.masks, bytemuck::cast_slice(&[-1i64])).unwrap();
}

/// Configuration of a run.
struct Setup<'a> {
    /// Device names in order of priority.
    devices: &'a [&'a str],
    /// Returns the index of the device of a layer.
    device_of: fn(usize) -> usize,
    /// Marks every node as an output, which prevents memory reuse and in-place ops.
    keep_all: bool,
    /// Manual assignments of nodes to backends.
    by_hand: fn(&Graph, TensorId) -> Option<BackendId>,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Setup {
            devices: &["reference"],
            device_of: |_| 0,
            keep_all: false,
            by_hand: |_, _| None,
        }
    }
}

/// Returns the results of a prompt of five tokens and of two more tokens, one at a time, and the number of
/// splits.
fn run(setup: &Setup<'_>) -> (Vec<f32>, usize) {
    let devices: Vec<Arc<dyn Device>> = setup.devices.iter().map(|name| device(name).unwrap()).collect();
    let params = BackendParams::new(2);
    let backends = devices.iter().map(|d| d.clone().backend(&params).unwrap()).collect();
    let sched_params = SchedParams { op_offload: false };
    let mut s = Scheduler::new(backends, MemoryMap::default(), sched_params).unwrap();
    let layers: Vec<Layer> = (0..N_LAYER)
        .map(|il| layer(&mut s, &*devices[(setup.device_of)(il)], il))
        .collect();
    let mut g = Graph::new();
    let mut results = Vec::new();
    for (first_pos, n_tokens) in [(0, 5), (5, 1), (6, 1)] {
        s.reset();
        let b = build(&mut g, &layers, n_tokens);
        for id in g.ids().collect::<Vec<_>>() {
            g.tensor_mut(id).flags.output |= setup.keep_all;
            if let Some(backend) = (setup.by_hand)(&g, id) {
                s.set_backend(id, backend).unwrap();
            }
        }
        s.alloc_graph(&mut g).unwrap();
        fill(&mut s, &g, &b, first_pos, n_tokens);
        s.compute(&g).unwrap();
        let mut out = vec![0f32; N_EMBD * n_tokens];
        s.read_tensor(&g, b.out, 0, bytemuck::cast_slice_mut(&mut out)).unwrap();
        results.extend(out);
    }
    (results, s.n_splits())
}

#[test]
fn memory_reuse_and_in_place_ops_keep_results() {
    for name in ["reference", "cpu"] {
        let devices = &[name][..];
        let (found, n_splits) = run(&Setup {
            devices,
            ..Setup::default()
        });
        let (truth, _) = run(&Setup {
            devices,
            keep_all: true,
            ..Setup::default()
        });
        assert!(
            truth.iter().any(|&x| x > 0.1),
            "{name}: the result is too close to zero to be meaningful"
        );
        assert_eq!(found, truth, "{name}");
        assert_eq!(n_splits, 1);
    }
}

#[test]
fn layers_on_two_devices_match_one_device() {
    let (truth, _) = run(&Setup::default());
    let halves = Setup {
        devices: &["reference", "cpu"],
        device_of: |il| il / 2,
        ..Setup::default()
    };
    let (found, n_splits) = run(&halves);
    assert_eq!(n_splits, 2);
    assert!(nmse(&truth, &found) < 1e-10, "{}", nmse(&truth, &found));
    assert_eq!(run(&halves).0, found, "results are reproducible");

    let (found, n_splits) = run(&Setup {
        device_of: |il| il % 2,
        ..halves
    });
    assert_eq!(n_splits, N_LAYER);
    assert!(nmse(&truth, &found) < 1e-10, "{}", nmse(&truth, &found));
}

#[test]
fn manually_assigned_nodes_give_same_result() {
    let (truth, _) = run(&Setup::default());
    let (found, n_splits) = run(&Setup {
        devices: &["reference", "cpu"],
        by_hand: |g, id| {
            let op = g.tensor(id).op;
            let free = op != Op::None && op != Op::SetRows && !op.is_view();
            free.then_some(BackendId((id.0 / 3 % 2) as u8))
        },
        ..Setup::default()
    });
    assert!(n_splits > 4 * N_LAYER, "{n_splits}");
    assert!(nmse(&truth, &found) < 1e-10, "{}", nmse(&truth, &found));
}

//! A transformer layer built with the public op functions, ready to compute on a device.

use engine::backend::{Backend, Device, GraphView, MemoryMap, Plan, Usage};
use engine::graph::{
    Attention, AttentionOperands, BufferSlice, Graph, PAGE, Rope, RopeKind, TensorId, Unary, Uses, VisibleCells,
};
use kernels::GgmlType::{self, F16, F32, I32, I64, Q4_0, Q8_0};

const N_CELLS: usize = 1024;
const N_PAGES: usize = N_CELLS / PAGE;

/// Builds a mixture-of-experts layer for `n` tokens, with every tensor in its own buffer.
pub fn layer(n: usize, device: &dyn Device) -> (Graph, MemoryMap) {
    let mut g = Graph::new();
    let leaf = |g: &mut Graph, ty: GgmlType, ne: [usize; 4]| g.input(ty, ne, "leaf");
    let x = leaf(&mut g, F32, [128, n, 1, 1]);
    let norm_weight = leaf(&mut g, F32, [128, 1, 1, 1]);
    let (wq, wv) = (
        leaf(&mut g, Q4_0, [128, 128, 1, 1]),
        leaf(&mut g, Q8_0, [128, 64, 1, 1]),
    );
    let (positions, table) = (leaf(&mut g, I32, [n, 1, 1, 1]), leaf(&mut g, I32, [n, 1, 1, 1]));
    let (cells, cache) = (leaf(&mut g, I64, [n, 1, 1, 1]), leaf(&mut g, F16, [64, N_CELLS, 1, 1]));
    let cell_pos = leaf(&mut g, I32, [N_CELLS, 1, 1, 1]);
    let starts = leaf(&mut g, I32, [2, 1, 1, 1]);
    let (pages, masks) = (
        leaf(&mut g, I32, [N_PAGES, 1, 1, 1]),
        leaf(&mut g, I64, [N_PAGES, 1, 1, 1]),
    );
    let experts = leaf(&mut g, Q8_0, [128, 96, 4, 1]);
    let router_bias = leaf(&mut g, F32, [4, n, 1, 1]);
    let rope = Rope {
        kind: RopeKind::Neox,
        sections: [0; 4],
        n_dims: 32,
        freq_base: 1e4,
        freq_scale: 1.0,
        ext_factor: 0.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        n_ctx_orig: 1024,
        every: 1,
        inverse: false,
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
    let visible = VisibleCells {
        cell_pos,
        pos: positions,
        table,
        starts,
        pages,
        masks,
    };
    let operands = AttentionOperands::new([q, kv, kv], visible);
    let y = g.attention(Attention::causal(0.2), operands).unwrap();
    let y = g.reshape(y, [128, n, 1, 1]).unwrap();
    let sum = g.add(y, x).unwrap();
    let y = g.rms_norm(sum, Some(norm_weight), 1e-5).unwrap();
    let router = g.slice(sum, 0, 4).unwrap();
    let router = g.add(router, router_bias).unwrap();
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
            g.tensor_mut(id).home = Some(BufferSlice { buffer, offset: 0 });
        }
    }
    let mut fill = |id: TensorId, bytes: Vec<u8>| {
        let home = g.home(id).unwrap();
        memory.write(home, &bytes).unwrap();
    };
    for (id, seed) in [x, norm_weight, wq, wv, experts].into_iter().zip(1..) {
        let t = g.tensor(id);
        let floats: Vec<f32> = (0..t.nelements())
            .map(|i| ((i * i + 7 * i * seed) % 101) as f32 / 50.0 - 1.0)
            .collect();
        let mut bytes = vec![0; t.nbytes()];
        kernels::quantize_row(t.ty, &floats, &mut bytes);
        fill(id, bytes);
    }
    // The router logits of each token are far apart, in a token-specific order, so that rounding cannot
    // change the selected experts.
    let bias = |i: usize| 32.0 * ((i % 4) ^ (i / 4 % 4)) as f32;
    fill(router_bias, (0..4 * n).flat_map(|i| bias(i).to_le_bytes()).collect());
    // The tokens follow cells that all hold zeros.
    let first = N_CELLS - n;
    let list32 = |values: std::ops::Range<usize>| values.flat_map(|i| (i as i32).to_le_bytes()).collect();
    fill(positions, list32(first..N_CELLS));
    fill(cell_pos, list32(0..N_CELLS));
    fill(cells, (first..N_CELLS).flat_map(|i| (i as i64).to_le_bytes()).collect());
    // Buffers are zero-initialized, so all tokens use table 0, whose first entry is 0.
    fill(
        starts,
        [0, N_PAGES as i32].into_iter().flat_map(i32::to_le_bytes).collect(),
    );
    fill(
        pages,
        (0..N_PAGES).flat_map(|i| ((i * PAGE) as i32).to_le_bytes()).collect(),
    );
    fill(masks, (0..N_PAGES).flat_map(|_| (-1i64).to_le_bytes()).collect());
    (g, memory)
}

/// Prepares a plan for the whole graph.
pub fn prepare(
    backend: &mut dyn Backend,
    graph: &Graph,
    uses: &Uses,
    memory: &MemoryMap,
    old: Option<Box<dyn Plan>>,
) -> Box<dyn Plan> {
    let nodes = graph.nodes();
    let view = GraphView { graph, nodes, uses };
    backend.prepare(&view, memory, old).unwrap()
}

/// Counts the readers of each tensor of a graph.
pub fn uses_of(graph: &Graph) -> Uses {
    let mut uses = Uses::default();
    uses.count(graph, []);
    uses
}

#[allow(dead_code)] // some test crates do not read results
/// Returns the elements of the last node.
pub fn result(g: &Graph, memory: &MemoryMap) -> Vec<f32> {
    let last = *g.nodes().last().unwrap();
    let home = g.home(last).unwrap();
    let mut bytes = vec![0; g.tensor(last).nbytes()];
    memory.read(home, &mut bytes).unwrap();
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

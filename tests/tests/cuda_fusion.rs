//! Compares fused CUDA kernels with the same nodes computed one by one.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;

use engine::backend::cuda::Counters;
use engine::backend::{BackendParams, GraphView, MemoryMap, Usage};
use engine::context::Context;
use engine::graph::{BufferSlice, Graph, Op, Rope, RopeKind, TensorId, Unary, Uses};
use engine::random::SplitMix64;
use engine::sched::Observer;
use kernels::{GgmlType, Precision};
use tests::emulator::with_device;
use tests::{context, decode_last, layouts, nmse, seeded_file, tokens};

use crate::cuda::{card, params};

/// A graph on a GPU.
pub(crate) struct Sketch {
    pub(crate) graph: Graph,
    memory: MemoryMap,
    precision: Precision,
    /// Memory contents that the graph starts with.
    contents: Vec<(TensorId, Vec<u8>)>,
    /// Results stored in the memory of another tensor, with an offset in bytes.
    pub(crate) shared: HashMap<TensorId, (TensorId, usize)>,
}

/// Distinct rows of quantized values. The number is prime, so that blocks of rows differ.
const DISTINCT_ROWS: usize = 61;

impl Sketch {
    pub(crate) fn new(precision: Precision) -> Sketch {
        Sketch {
            graph: Graph::new(),
            memory: MemoryMap::default(),
            precision,
            contents: Vec::new(),
            shared: HashMap::new(),
        }
    }

    pub(crate) fn leaf(&mut self, ty: GgmlType, ne: [usize; 4], contents: Vec<u8>) -> TensorId {
        let id = self.graph.input(ty, ne, "leaf");
        self.contents.push((id, contents));
        id
    }

    /// Returns the bytes of a leaf.
    pub(crate) fn contents(&self, leaf: TensorId) -> &[u8] {
        let found = self.contents.iter().find(|(id, _)| *id == leaf);
        &found.expect("the tensor is a leaf").1
    }

    /// Adds a leaf with random values. Quantized rows repeat, because quantizing takes longer than the kernels.
    pub(crate) fn values(&mut self, ty: GgmlType, ne: [usize; 4]) -> TensorId {
        let mut random = SplitMix64(self.contents.len() as u64 + 1);
        let n_rows: usize = ne[1..].iter().product();
        let n_distinct = if ty.is_quantized() {
            n_rows.min(DISTINCT_ROWS)
        } else {
            n_rows
        };
        let floats: Vec<f32> = (0..ne[0] * n_distinct).map(|_| random.uniform(-0.9, 0.9)).collect();
        let mut bytes = vec![0; ty.row_bytes(floats.len()).expect("rows are whole blocks")];
        if kernels::can_quantize(ty) {
            kernels::quantize_row(ty, &floats, &mut bytes)
        } else {
            bytes
                .chunks_exact_mut(ty.block_bytes())
                .for_each(|block| random_block(ty, block, &mut random));
        }
        let (n_bytes, n_first) = (bytes.len() / n_distinct * n_rows, bytes.len());
        while bytes.len() < n_bytes {
            bytes.extend_from_within(..n_first.min(n_bytes - bytes.len()));
        }
        self.leaf(ty, ne, bytes)
    }

    pub(crate) fn ints(&mut self, values: &[i32], ne: [usize; 4]) -> TensorId {
        self.leaf(GgmlType::I32, ne, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// Allocates memory for every tensor that does not share another tensor's memory.
    fn place(&mut self) {
        let device = engine::backend::device(&card()).expect("the GPU was found before");
        let leaves: Vec<TensorId> = self.contents.iter().map(|(id, _)| *id).collect();
        for id in leaves.into_iter().chain(self.graph.nodes().to_vec()) {
            let tensor = self.graph.tensor(id);
            if tensor.view.is_some() || self.shared.contains_key(&id) {
                continue;
            }
            // Extra space for shifted tensors that share the buffer.
            let buffer = device
                .buffer_type()
                .allocate(8 * tensor.nbytes())
                .expect("the GPU has enough memory");
            let buffer = self.memory.insert(buffer, Usage::Any);
            self.graph.tensor_mut(id).home = Some(BufferSlice { buffer, offset: 0 });
        }
        for (&id, &(with, offset)) in &self.shared {
            let BufferSlice { buffer, .. } = self.graph.home(with).expect("`with` was allocated before");
            self.graph.tensor_mut(id).home = Some(BufferSlice { buffer, offset });
        }
    }

    /// Runs the nodes in the given groups. Returns the results as bytes and, if counted, the number of
    /// kernels.
    fn run(&mut self, pieces: &[&[TensorId]], results: &[TensorId]) -> (Vec<Vec<u8>>, Option<usize>) {
        for (id, bytes) in &self.contents {
            self.memory
                .write(self.graph.home(*id).expect("leaves are allocated"), bytes)
                .expect("the buffer is large enough");
        }
        let device = engine::backend::device(&card()).expect("the GPU was found before");
        let params = BackendParams {
            precision: self.precision,
            ..BackendParams::new(1)
        };
        let mut backend = device.backend(&params).expect("the backend starts");
        let mut uses = Uses::default();
        uses.count(&self.graph, []);
        let counters = Counters::find();
        counters.inspect(|counters| counters.reset());
        for nodes in pieces {
            let view = GraphView {
                graph: &self.graph,
                nodes,
                uses: &uses,
            };
            let mut plan = backend
                .prepare(&view, &self.memory, None)
                .expect("every node has a kernel");
            let never = AtomicBool::new(false);
            backend
                .run(&mut *plan, &self.graph, &mut self.memory, &never)
                .expect("the process runs");
            backend.synchronize().expect("nothing fails");
        }
        let read = |&id: &TensorId| {
            let tensor = self.graph.tensor(id);
            let mut bytes = vec![0; tensor.nbytes()];
            self.memory
                .read(self.graph.home(id).expect("results are allocated"), &mut bytes)
                .expect("the result is readable");
            bytes
        };
        (results.iter().map(read).collect(), counters.map(launches))
    }

    /// Asserts that the nodes give bit-identical results together and separately, and whether fusion saves
    /// kernels.
    pub(crate) fn check(mut self, results: &[TensorId], expects_fusion: bool, case: &str) {
        let [apart, together] = self.both(results);
        assert!(
            apart.0 == together.0,
            "{case}: results differ between fused and separate nodes"
        );
        if let (Some(apart), Some(together)) = (apart.1, together.1) {
            assert_eq!(
                together < apart,
                expects_fusion,
                "{case}: {together} kernels together, {apart} separately"
            );
        }
    }

    /// Runs the nodes separately and together. Returns the results as bytes and the number of kernels of each
    /// run.
    pub(crate) fn both(&mut self, results: &[TensorId]) -> [(Vec<Vec<u8>>, Option<usize>); 2] {
        self.place();
        let nodes = self.graph.nodes().to_vec();
        let pieces: Vec<&[TensorId]> = nodes.chunks(1).collect();
        [self.run(&pieces, results), self.run(&[&nodes], results)]
    }
}

/// Fills a block of a type without a quantizer with bytes whose values are finite.
fn random_block(ty: GgmlType, block: &mut [u8], random: &mut SplitMix64) {
    let mut elements = vec![0.0; ty.block_size()];
    loop {
        block.iter_mut().for_each(|b| *b = random.next_u64() as u8);
        kernels::dequantize_row(ty, block, &mut elements);
        let largest = elements.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
        if elements.iter().all(|x| x.is_finite()) && (0.1..=8.0).contains(&largest) {
            return;
        }
    }
}

/// Returns the number of kernels launched since the counters were reset.
fn launches(counters: Counters) -> usize {
    let all: serde_json::Value = serde_json::from_str(&counters.json()).expect("the counters are JSON");
    let kernels = all["kernels"].as_object().expect("kernels were launched");
    let launches = |kernel: &serde_json::Value| kernel["launches"].as_u64().expect("a counter") as usize;
    kernels.values().map(launches).sum()
}

const F32: GgmlType = GgmlType::F32;

/// Memory location of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Own,
    First,
    Second,
    /// The result overlaps other rows of the first operand.
    Shifted,
}

#[test]
fn fused_sum_and_norm_are_bit_identical() {
    with_device("cuda_fusion::fused_sum_and_norm_are_bit_identical", || {
        for (n, rows, added_rows) in [(96, 5, 5), (96, 5, 1), (512, 3, 3), (5000, 1, 1), (12_000, 1, 1)] {
            for (at, read_twice) in [
                (At::Own, false),
                (At::Own, true),
                (At::First, false),
                (At::First, true),
                (At::Second, false),
                (At::Shifted, false),
            ] {
                let mut s = Sketch::new(Precision::Exact);
                let [a, b] = [[n, rows, 1, 1], [n, added_rows, 1, 1]].map(|ne| s.values(F32, ne));
                let weight = s.values(F32, [n, 1, 1, 1]);
                let sum = s.graph.add(a, b).expect("the shapes match");
                let norm = s.graph.rms_norm(sum, Some(weight), 1e-5).expect("the shapes match");
                s.graph.expand(norm);
                let mut results = vec![norm];
                if read_twice {
                    let twice = s.graph.scale(sum, 2.0, 0.0).expect("the shapes match");
                    s.graph.expand(twice);
                    results.push(twice);
                }
                match at {
                    At::Own => {}
                    At::First => drop(s.shared.insert(norm, (a, 0))),
                    At::Second => drop(s.shared.insert(norm, (b, 0))),
                    At::Shifted => drop(s.shared.insert(norm, (a, 2 * n))),
                }
                // Otherwise the kernel would overwrite rows that are still read, or need too much shared
                // memory.
                let is_safe = matches!(at, At::Own | At::First) || (at == At::Second && added_rows == rows);
                let expected = is_safe && n <= 11 << 10;
                s.check(
                    &results,
                    expected,
                    &format!("{rows} rows of {n}, {added_rows} added, {at:?}, {read_twice}"),
                );
            }
        }
    });
}

/// Weight types and precisions of single-column matmuls, with integer and float kernels.
const PRODUCTS: [(GgmlType, Precision); 7] = [
    (GgmlType::F32, Precision::Exact),
    (GgmlType::F16, Precision::Fast),
    (GgmlType::Q4_0, Precision::Exact),
    (GgmlType::Q4_0, Precision::Fast),
    (GgmlType::Q8_0, Precision::Fast),
    (GgmlType::Q4_K, Precision::Fast),
    (GgmlType::Q6_K, Precision::Fast),
];

#[test]
fn fused_gated_matmuls_are_bit_identical() {
    with_device("cuda_fusion::fused_gated_matmuls_are_bit_identical", || {
        for (ty, precision) in PRODUCTS {
            for (n, n_experts) in [(1, 0), (3, 0), (8, 0), (2, 3)] {
                for (at, gate) in [(At::Own, 0), (At::Own, 1), (At::First, 0), (At::Second, 0)] {
                    gated(ty, precision, [n, n_experts], at, gate);
                }
            }
        }
    });
}

/// Checks `silu(gate x) * (up x)` with the result in separate memory, over the first matmul, or over `x`.
fn gated(ty: GgmlType, precision: Precision, [n, n_experts]: [usize; 2], at: At, gate: usize) {
    let (k, m) = (2048, 37);
    let mut s = Sketch::new(precision);
    let weights = [0; 2].map(|_| s.values(ty, [k, m, n_experts.max(1), 1]));
    let (x, ids) = match n_experts {
        0 => (s.values(F32, [k, n, 1, 1]), None),
        _ => {
            let experts: Vec<i32> = (0..2 * n).map(|i| (i * i % n_experts) as i32).collect();
            (s.values(F32, [k, 1, n, 1]), Some(s.ints(&experts, [2, n, 1, 1])))
        }
    };
    let products = weights.map(|w| match ids {
        None => s.graph.mul_mat(w, x).expect("the shapes match"),
        Some(ids) => s.graph.mul_mat_id(w, x, ids).expect("the shapes match"),
    });
    let [f, times] = [products[gate], products[1 - gate]];
    s.graph.expand(products[0]);
    let glu = s.graph.glu(Unary::Silu, f, times).expect("the shapes match");
    s.graph.expand(glu);
    match at {
        At::First => drop(s.shared.insert(glu, (products[0], 0))),
        At::Second => drop(s.shared.insert(glu, (x, 0))),
        At::Own | At::Shifted => {}
    }
    let case = format!("{ty}, {precision:?}, {n} columns, {n_experts} experts, {at:?}, gate {gate}");
    // A result over `x` needs a separate kernel. The single-column matmuls or their quantized activations are
    // still shared.
    let is_shared = n_experts == 0 || (precision == Precision::Fast && ty.is_quantized());
    s.check(&[glu], at != At::Second || is_shared, &case);
}

/// The graph has three matmuls of the same column followed by additions. The allocator reuses the memory of
/// each matmul's result for the next addition.
#[test]
fn fused_matmuls_of_one_column_are_bit_identical() {
    let name = "cuda_fusion::fused_matmuls_of_one_column_are_bit_identical";
    with_device(name, || {
        for (ty, precision) in PRODUCTS {
            for (n, other) in [(1, ty), (4, ty), (1, GgmlType::Q5_1)] {
                let (k, m) = (2048, 35);
                let mut s = Sketch::new(precision);
                let weights = [ty, other, ty].map(|ty| s.values(ty, [k, m, 1, 1]));
                let (x, bias, rest) = (
                    s.values(F32, [k, n, 1, 1]),
                    s.values(F32, [m, 1, 1, 1]),
                    s.values(F32, [m, n, 1, 1]),
                );
                let g = &mut s.graph;
                let mut results = Vec::new();
                for (i, w) in weights.into_iter().enumerate() {
                    let product = g.mul_mat(w, x).expect("the shapes match");
                    let sum = g.add(product, bias).expect("the shapes match");
                    let sum = if i == 1 {
                        g.add(rest, sum).expect("the shapes match")
                    } else {
                        sum
                    };
                    let scaled = g.scale(sum, 0.5, 0.25).expect("the shapes match");
                    g.expand(scaled);
                    results.push(scaled);
                }
                let products: Vec<TensorId> = (s.graph.nodes().iter().copied())
                    .filter(|&id| s.graph.tensor(id).op == Op::MulMat)
                    .collect();
                for &later in &products[1..] {
                    s.shared.insert(later, (products[0], 0));
                }
                let case = format!("{ty}, {other}, {precision:?}, {n} columns");
                s.check(&results, true, &case);
            }
        }
    });
}

/// An addition is not fused into a matmul if its memory still contains a live tensor.
#[test]
fn fused_add_does_not_overwrite_live_tensor() {
    with_device("cuda_fusion::fused_add_does_not_overwrite_live_tensor", || {
        for is_in_the_way in [false, true] {
            let mut s = Sketch::new(Precision::Exact);
            let w = s.values(F32, [64, 32, 1, 1]);
            let [x, y, rest] = [[64, 1, 1, 1], [32, 1, 1, 1], [32, 1, 1, 1]].map(|ne| s.values(F32, ne));
            let g = &mut s.graph;
            let product = g.mul_mat(w, x).expect("the shapes match");
            let early = g.scale(y, 2.0, 0.0).expect("the shapes match");
            let late = g.scale(early, 3.0, 0.0).expect("the shapes match");
            let sum = g.add(product, rest).expect("the shapes match");
            [product, early, late, sum].into_iter().for_each(|id| g.expand(id));
            if is_in_the_way {
                s.shared.insert(sum, (early, 0));
            }
            s.check(
                &[late, sum],
                !is_in_the_way,
                &format!("memory is live: {is_in_the_way}"),
            );
        }
    });
}

/// Tests heads that are normalized, rotated, and stored in the cache.
#[test]
fn fused_head_ops_are_bit_identical() {
    with_device("cuda_fusion::fused_head_ops_are_bit_identical", || {
        for (kind, size, is_normed, ty) in [
            (RopeKind::Norm, 64, false, F32),
            (RopeKind::Neox, 64, true, F32),
            (RopeKind::Neox, 128, true, GgmlType::F16),
            (RopeKind::Neox, 256, true, GgmlType::F16),
            (RopeKind::Norm, 672, true, GgmlType::Q5_1),
            (RopeKind::Norm, 96, false, GgmlType::Q8_0),
        ] {
            for n in [1, 3] {
                heads(kind, size, is_normed, ty, n);
            }
        }
    });
}

fn heads(kind: RopeKind, size: usize, is_normed: bool, ty: GgmlType, n: usize) {
    let (n_head, n_head_kv, n_cells) = (5, 2, 7);
    let mut s = Sketch::new(Precision::Exact);
    let [q, k, v] = [n_head, n_head_kv, n_head_kv].map(|heads| s.values(F32, [heads * size, n, 1, 1]));
    let weight = s.values(F32, [size, 1, 1, 1]);
    let positions: Vec<i32> = (0..n as i32).map(|i| 11 + 3 * i).collect();
    let positions = s.ints(&positions, [n, 1, 1, 1]);
    let cells: Vec<i64> = (0..n as i64).map(|i| (5 * i + 2) % n_cells as i64).collect();
    let cells = s.leaf(
        GgmlType::I64,
        [n, 1, 1, 1],
        cells.iter().flat_map(|v| v.to_le_bytes()).collect(),
    );
    let tables = [0; 2].map(|_| s.values(ty, [n_head_kv * size, n_cells, 1, 1]));
    let rope = Rope {
        n_dims: size,
        ..rope_of(kind)
    };
    let g = &mut s.graph;
    let mut turned = [q, k].map(|x| {
        let heads = g.tensor(x).ne[0] / size;
        let mut x = g.reshape(x, [size, heads, n, 1]).expect("the shapes match");
        if is_normed {
            x = g.rms_norm(x, Some(weight), 1e-6).expect("the shapes match");
        }
        g.rope(x, positions, None, rope).expect("the shapes match")
    });
    g.expand(turned[0]);
    turned[1] = g
        .reshape(turned[1], [n_head_kv * size, n, 1, 1])
        .expect("the shapes match");
    let stored = [turned[1], v].into_iter().zip(tables).map(|(x, table)| {
        let stored = g.set_rows(table, x, cells).expect("the shapes match");
        g.expand(stored);
        stored
    });
    let stored: Vec<TensorId> = stored.collect();
    let [apart, together] = s.both(&[turned[0], tables[0], tables[1]]);
    let case = format!("{kind:?}, heads of {size}, normalized {is_normed}, {ty}, {n} tokens");
    assert_eq!(stored.len(), 2);
    assert!(
        apart.0 == together.0,
        "{case}: results differ between fused and separate nodes"
    );
    if let (Some(apart), Some(together)) = (apart.1, together.1) {
        // Each launch sequence computes the table of angles first.
        assert_eq!((apart, together), (if is_normed { 8 } else { 6 }, 2), "{case}");
    }
}

fn rope_of(kind: RopeKind) -> Rope {
    Rope {
        kind,
        sections: Default::default(),
        n_dims: 0,
        freq_base: 10_000.0,
        freq_scale: 1.0,
        ext_factor: 0.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        n_ctx_orig: 4096,
        every: 1,
        inverse: false,
    }
}

/// Observes every node, which disables fusion.
struct EachNode;

impl Observer for EachNode {
    fn observes(&mut self, _: &Graph, _: TensorId) -> bool {
        true
    }

    fn show(&mut self, _: &Graph, _: TensorId, _: &[u8]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Creates a context on the GPU for a fixture with quantized weights.
pub(crate) fn quantized(name: &str, ty: Option<GgmlType>, precision: Precision) -> Context {
    context_of(&seeded_file(name, ty), precision)
}

/// Opens a context of a file on the GPU.
fn context_of(file: &[u8], precision: Precision) -> Context {
    let load = params(&card(), usize::MAX).load;
    context(&layouts::model(file, &load), |p| {
        p.precision = precision;
        p.type_k = GgmlType::F16;
        p.type_v = GgmlType::Q8_0;
    })
}

/// Fused nodes give the same logits as single nodes.
#[test]
fn fused_nodes_match_single_node_logits() {
    with_device("cuda_fusion::fused_nodes_match_single_node_logits", || {
        for (name, ty) in [
            ("llama-dense", None),
            ("llama-dense", Some(GgmlType::Q4_0)),
            ("llama-moe", Some(GgmlType::Q8_0)),
            ("qwen2-dense", Some(GgmlType::Q8_0)),
            ("qwen3-dense", Some(GgmlType::Q8_0)),
            ("gemma3-dense", Some(GgmlType::Q5_1)),
            ("falcon-h1-dense", None),
        ] {
            let file = seeded_file(name, ty);
            for precision in [Precision::Exact, Precision::Fast] {
                let steps = |each_node: bool| -> Vec<Vec<f32>> {
                    let mut ctx = context_of(&file, precision);
                    if each_node {
                        ctx.set_observer(Some(Box::new(EachNode)));
                    }
                    let tokens = tokens(name);
                    let prompt = decode_last(&mut ctx, &tokens[..5], 0, 0);
                    let next = |i: usize| decode_last(&mut ctx, &tokens[i..=i], i, 0);
                    [prompt].into_iter().chain((5..8).map(next)).collect()
                };
                for (want, got) in steps(true).iter().zip(&steps(false)) {
                    assert!(
                        want == got,
                        "{name}, {ty:?}, {precision:?}: NMSE {:.3e}",
                        nmse(want, got)
                    );
                }
            }
        }
    });
}

/// Decoding one token launches at most ten kernels per layer, and five additional kernels.
#[test]
fn decode_layer_needs_few_launches() {
    with_device("cuda_fusion::decode_layer_needs_few_launches", || {
        let Some(counters) = Counters::find() else {
            eprintln!("skipped: only the emulated driver counts launches");
            return;
        };
        for (name, most) in [("llama-dense", 9), ("qwen2-dense", 9), ("qwen3-dense", 9)] {
            let mut ctx = quantized(name, Some(GgmlType::Q8_0), Precision::Fast);
            let tokens = tokens(name);
            decode_last(&mut ctx, &tokens[..5], 0, 0);
            counters.reset();
            decode_last(&mut ctx, &tokens[5..6], 5, 0);
            let n = launches(counters);
            let n_layer = ctx.model().base().n_layer();
            assert!(n <= most * n_layer + 5, "{name}: {n} launches for {n_layer} layers");
        }
    });
}

//! What the plans of a card compute in one go, compared with the same nodes one by one.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;

use engine::backend::cuda::Counters;
use engine::backend::{BackendParams, GraphView, MemoryMap, Usage};
use engine::context::Context;
use engine::graph::{Graph, Home, Op, Rope, RopeKind, TensorId, Unary, Uses};
use engine::random::SplitMix64;
use engine::sched::Observer;
use kernels::{GgmlType, Precision};
use tests::emulator::with_device;
use tests::{context, decode_last, layouts, nmse, seeded_file, tokens};

use crate::cuda::{card, params};

/// Nodes on a card.
pub(crate) struct Sketch {
    pub(crate) graph: Graph,
    memory: MemoryMap,
    precision: Precision,
    /// What is in memory before the nodes are computed.
    contents: Vec<(TensorId, Vec<u8>)>,
    /// Results that lie where another tensor does, so many bytes behind its start.
    shared: HashMap<TensorId, (TensorId, usize)>,
}

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

    /// A leaf of random values.
    pub(crate) fn values(&mut self, ty: GgmlType, ne: [usize; 4]) -> TensorId {
        let mut random = SplitMix64(self.contents.len() as u64 + 1);
        let floats: Vec<f32> = (0..ne.iter().product()).map(|_| random.uniform(-0.9, 0.9)).collect();
        let mut bytes = vec![0; ty.row_bytes(floats.len()).expect("rows are whole")];
        match kernels::can_quantize(ty) {
            true => kernels::quantize_row(ty, &floats, &mut bytes),
            false => {
                bytes
                    .chunks_exact_mut(ty.block_bytes())
                    .for_each(|block| random_block(ty, block, &mut random));
            }
        }
        self.leaf(ty, ne, bytes)
    }

    pub(crate) fn ints(&mut self, values: &[i32], ne: [usize; 4]) -> TensorId {
        self.leaf(GgmlType::I32, ne, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// Gives every tensor its memory: room of its own, but for those that share another's.
    fn place(&mut self) {
        let device = engine::backend::device(&card()).expect("it was just there");
        let leaves: Vec<TensorId> = self.contents.iter().map(|(id, _)| *id).collect();
        for id in leaves.into_iter().chain(self.graph.nodes().to_vec()) {
            let tensor = self.graph.tensor(id);
            if tensor.view.is_some() || self.shared.contains_key(&id) {
                continue;
            }
            // Room for what shares it, shifted.
            let buffer = device
                .buffer_type()
                .allocate(8 * tensor.nbytes())
                .expect("there is memory");
            let buffer = self.memory.insert(buffer, Usage::Any);
            self.graph.tensor_mut(id).home = Some(Home { buffer, offset: 0 });
        }
        for (&id, &(with, offset)) in &self.shared {
            let Home { buffer, .. } = self.graph.home(with).expect("it was placed");
            self.graph.tensor_mut(id).home = Some(Home { buffer, offset });
        }
    }

    /// Computes the nodes in these pieces. Bytes of the results, and how many kernels there were if that is counted.
    fn run(&mut self, pieces: &[&[TensorId]], results: &[TensorId]) -> (Vec<Vec<u8>>, Option<usize>) {
        for (id, bytes) in &self.contents {
            self.memory
                .write(self.graph.home(*id).expect("it was placed"), bytes)
                .expect("there is room");
        }
        let device = engine::backend::device(&card()).expect("it was just there");
        let params = BackendParams {
            precision: self.precision,
            ..BackendParams::new(1)
        };
        let mut backend = device.backend(&params).expect("it is there");
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
            let mut plan = backend.prepare(&view, &self.memory, None).expect("there are kernels");
            let never = AtomicBool::new(false);
            backend
                .run(&mut *plan, &self.graph, &mut self.memory, &never)
                .expect("it runs");
            backend.synchronize().expect("nothing fails");
        }
        let read = |&id: &TensorId| {
            let tensor = self.graph.tensor(id);
            let mut bytes = vec![0; tensor.nbytes()];
            self.memory
                .read(self.graph.home(id).expect("it was placed"), &mut bytes)
                .expect("it is there");
            bytes
        };
        (results.iter().map(read).collect(), counters.map(launches))
    }

    /// Asserts that nodes give the same bits together and apart, and whether they take fewer kernels together.
    fn check(mut self, results: &[TensorId], expects_fusion: bool, case: &str) {
        let [apart, together] = self.both(results);
        assert!(apart.0 == together.0, "{case}: other bits together than apart");
        if let (Some(apart), Some(together)) = (apart.1, together.1) {
            assert_eq!(
                together < apart,
                expects_fusion,
                "{case}: {together} kernels together, {apart} apart"
            );
        }
    }

    /// Nodes one by one, then all together: bytes of results, and how many kernels there were.
    pub(crate) fn both(&mut self, results: &[TensorId]) -> [(Vec<Vec<u8>>, Option<usize>); 2] {
        self.place();
        let nodes = self.graph.nodes().to_vec();
        let pieces: Vec<&[TensorId]> = nodes.chunks(1).collect();
        [self.run(&pieces, results), self.run(&[&nodes], results)]
    }
}

/// A block of a type without a quantizer, whose largest element is an ordinary number.
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

/// Kernels that were launched since the counters were reset.
fn launches(counters: Counters) -> usize {
    let all: serde_json::Value = serde_json::from_str(&counters.json()).expect("it is JSON");
    let kernels = all["kernels"].as_object().expect("kernels were launched");
    let launches = |kernel: &serde_json::Value| kernel["launches"].as_u64().expect("a counter") as usize;
    kernels.values().map(launches).sum()
}

const F32: GgmlType = GgmlType::F32;

/// Where a result lies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Own,
    First,
    Second,
    /// Across the rows of the first operand.
    Shifted,
}

#[test]
fn a_sum_and_its_norm_give_the_same_bits_together_and_apart() {
    with_device(
        "cuda_fusion::a_sum_and_its_norm_give_the_same_bits_together_and_apart",
        || {
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
                    let sum = s.graph.add(a, b).expect("the shapes fit");
                    let norm = s.graph.rms_norm(sum, Some(weight), 1e-5).expect("the shapes fit");
                    s.graph.expand(norm);
                    let mut results = vec![norm];
                    if read_twice {
                        let twice = s.graph.scale(sum, 2.0, 0.0).expect("the shapes fit");
                        s.graph.expand(twice);
                        results.push(twice);
                    }
                    match at {
                        At::Own => {}
                        At::First => drop(s.shared.insert(norm, (a, 0))),
                        At::Second => drop(s.shared.insert(norm, (b, 0))),
                        At::Shifted => drop(s.shared.insert(norm, (a, 2 * n))),
                    }
                    // Elsewhere a row is written that others still read, or the sum needs more shared memory than there is.
                    let is_safe = matches!(at, At::Own | At::First) || (at == At::Second && added_rows == rows);
                    let expected = is_safe && n <= 11 << 10;
                    s.check(
                        &results,
                        expected,
                        &format!("{rows} rows of {n}, {added_rows} added, {at:?}, {read_twice}"),
                    );
                }
            }
        },
    );
}

/// Products of one column of each of these types, in integers or not.
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
fn gated_products_give_the_same_bits_together_and_apart() {
    with_device(
        "cuda_fusion::gated_products_give_the_same_bits_together_and_apart",
        || {
            for (ty, precision) in PRODUCTS {
                for (n, n_experts) in [(1, 0), (3, 0), (8, 0), (2, 3)] {
                    for (at, gate) in [(At::Own, 0), (At::Own, 1), (At::First, 0), (At::Second, 0)] {
                        gated(ty, precision, [n, n_experts], at, gate);
                    }
                }
            }
        },
    );
}

/// `silu(gate x) * (up x)`, with the result in memory of its own, in that of the first product, or in that of `x`.
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
        None => s.graph.mul_mat(w, x).expect("the shapes fit"),
        Some(ids) => s.graph.mul_mat_id(w, x, ids).expect("the shapes fit"),
    });
    let [f, times] = [products[gate], products[1 - gate]];
    s.graph.expand(products[0]);
    let glu = s.graph.glu(Unary::Silu, f, times).expect("the shapes fit");
    s.graph.expand(glu);
    match at {
        At::First => drop(s.shared.insert(glu, (products[0], 0))),
        At::Second => drop(s.shared.insert(glu, (x, 0))),
        At::Own | At::Shifted => {}
    }
    let case = format!("{ty}, {precision:?}, {n} columns, {n_experts} experts, {at:?}, gate {gate}");
    // Over `x` the result is a kernel of its own. What is still computed once is the products of one column, or their columns as integers.
    let is_shared = n_experts == 0 || (precision == Precision::Fast && ty.is_quantized());
    s.check(&[glu], at != At::Second || is_shared, &case);
}

/// Three products of the same column, with sums behind them, whose results the allocator takes to be gone when the next one is written.
#[test]
fn products_of_the_same_column_give_the_same_bits_together_and_apart() {
    let name = "cuda_fusion::products_of_the_same_column_give_the_same_bits_together_and_apart";
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
                    let product = g.mul_mat(w, x).expect("the shapes fit");
                    let sum = g.add(product, bias).expect("the shapes fit");
                    let sum = if i == 1 {
                        g.add(rest, sum).expect("the shapes fit")
                    } else {
                        sum
                    };
                    let scaled = g.scale(sum, 0.5, 0.25).expect("the shapes fit");
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

/// A sum behind a product stays where it is if something else lies in its place until then.
#[test]
fn a_sum_is_not_stored_over_what_others_still_need() {
    with_device("cuda_fusion::a_sum_is_not_stored_over_what_others_still_need", || {
        for is_in_the_way in [false, true] {
            let mut s = Sketch::new(Precision::Exact);
            let w = s.values(F32, [64, 32, 1, 1]);
            let [x, y, rest] = [[64, 1, 1, 1], [32, 1, 1, 1], [32, 1, 1, 1]].map(|ne| s.values(F32, ne));
            let g = &mut s.graph;
            let product = g.mul_mat(w, x).expect("the shapes fit");
            let early = g.scale(y, 2.0, 0.0).expect("the shapes fit");
            let late = g.scale(early, 3.0, 0.0).expect("the shapes fit");
            let sum = g.add(product, rest).expect("the shapes fit");
            [product, early, late, sum].into_iter().for_each(|id| g.expand(id));
            if is_in_the_way {
                s.shared.insert(sum, (early, 0));
            }
            s.check(&[late, sum], !is_in_the_way, &format!("in the way {is_in_the_way}"));
        }
    });
}

/// Heads that are normed, turned and stored.
#[test]
fn heads_are_the_same_together_and_apart() {
    with_device("cuda_fusion::heads_are_the_same_together_and_apart", || {
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
        let mut x = g.reshape(x, [size, heads, n, 1]).expect("the shapes fit");
        if is_normed {
            x = g.rms_norm(x, Some(weight), 1e-6).expect("the shapes fit");
        }
        g.rope(x, positions, None, rope).expect("the shapes fit")
    });
    g.expand(turned[0]);
    turned[1] = g
        .reshape(turned[1], [n_head_kv * size, n, 1, 1])
        .expect("the shapes fit");
    let stored = [turned[1], v].into_iter().zip(tables).map(|(x, table)| {
        let stored = g.set_rows(table, x, cells).expect("the shapes fit");
        g.expand(stored);
        stored
    });
    let stored: Vec<TensorId> = stored.collect();
    let [apart, together] = s.both(&[turned[0], tables[0], tables[1]]);
    let case = format!("{kind:?}, heads of {size}, normed {is_normed}, {ty}, {n} tokens");
    assert_eq!(stored.len(), 2);
    assert!(apart.0 == together.0, "{case}: other bits together than apart");
    if let (Some(apart), Some(together)) = (apart.1, together.1) {
        assert_eq!((apart, together), (if is_normed { 6 } else { 4 }, 1), "{case}");
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

/// Shows every node by itself, so that nothing is computed in one go.
struct EachNode;

impl Observer for EachNode {
    fn wants(&mut self, _: &Graph, _: TensorId) -> bool {
        true
    }

    fn show(&mut self, _: &Graph, _: TensorId, _: &[u8]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// A fixture with quantized weights on the card, at this precision.
pub(crate) fn quantized(name: &str, ty: Option<GgmlType>, precision: Precision) -> Context {
    let load = params(&card(), usize::MAX).load;
    context(&layouts::model(&seeded_file(name, ty), &load), |p| {
        p.precision = precision;
        p.type_k = GgmlType::F16;
        p.type_v = GgmlType::Q8_0;
    })
}

/// Nodes that are computed in one go give what they give one by one.
#[test]
fn fused_nodes_give_the_logits_of_single_ones() {
    with_device("cuda_fusion::fused_nodes_give_the_logits_of_single_ones", || {
        for (name, ty) in [
            ("llama-dense", None),
            ("llama-dense", Some(GgmlType::Q4_0)),
            ("llama-moe", Some(GgmlType::Q8_0)),
            ("qwen2-dense", Some(GgmlType::Q8_0)),
            ("qwen3-dense", Some(GgmlType::Q8_0)),
            ("gemma3-dense", Some(GgmlType::Q5_1)),
            ("falcon-h1-dense", None),
        ] {
            for precision in [Precision::Exact, Precision::Fast] {
                let steps = |each_node: bool| -> Vec<Vec<f32>> {
                    let mut ctx = quantized(name, ty, precision);
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

/// Kernels of a token: at most ten a layer, and five around the layers.
#[test]
fn a_layer_of_a_token_takes_few_launches() {
    with_device("cuda_fusion::a_layer_of_a_token_takes_few_launches", || {
        let Some(counters) = Counters::find() else {
            eprintln!("left out: a card counts nothing");
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

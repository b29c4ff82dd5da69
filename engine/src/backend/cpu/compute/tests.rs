use std::sync::Arc;

use kernels::{GgmlType, Precision, quantize_row};

use super::*;
use crate::backend::cpu::groups::Groups;
use crate::backend::cpu::queue::stalls;
use crate::backend::{Buffer, Usage, device};
use crate::graph::{BufferSlice, Uses};
use GgmlType::{F32, I32, Q4_0, Q8_0};

mod layers;

static NEVER: AtomicBool = AtomicBool::new(false);

const WIDTH: usize = 256;
const HIDDEN: usize = 512;
const LAYERS: usize = 4;

/// A chain of matmuls over a few tokens. The weights are read-only, and the results reuse each other's
/// memory.
struct Chain {
    graph: Graph,
    memory: MemoryMap,
    result: TensorId,
}

/// Weights stored contiguously in one buffer.
#[derive(Default)]
struct Weights {
    bytes: Vec<u8>,
    tensors: Vec<(TensorId, usize)>,
}

impl Weights {
    fn add(&mut self, g: &mut Graph, ty: GgmlType, ne: [usize; 4]) -> TensorId {
        let at = self.bytes.len();
        let row_bytes = ty.row_bytes(ne[0]).unwrap();
        for row in 0..ne[1] * ne[2] {
            let value = |i: usize| ((i * 37 + row * 101 + at) % 211) as f32 / 211.0 - 0.5;
            let floats: Vec<f32> = (0..ne[0]).map(value).collect();
            let start = self.bytes.len();
            self.bytes.resize(start + row_bytes, 0);
            quantize_row(ty, &floats, &mut self.bytes[start..]);
        }
        self.bytes.resize(self.bytes.len().next_multiple_of(64), 0);
        let id = g.input(ty, ne, "weights");
        self.tensors.push((id, at));
        id
    }
}

impl Chain {
    fn new(n: usize) -> Chain {
        let cpu = device("cpu").unwrap().buffer_type();
        let (mut g, mut weights, mut results) = (Graph::new(), Weights::default(), Vec::new());
        let x = g.input(F32, [WIDTH, n, 1, 1], "x");
        let ids = g.input(I32, [2, n, 1, 1], "ids");
        let mut h = x;
        for _ in 0..LAYERS {
            let up = weights.add(&mut g, Q4_0, [WIDTH, HIDDEN, 1, 1]);
            let down = weights.add(&mut g, Q8_0, [HIDDEN, WIDTH, 1, 1]);
            let experts = weights.add(&mut g, Q8_0, [WIDTH, WIDTH / 2, 4, 1]);
            let normed = g.rms_norm(h, None, 1e-5).unwrap();
            let y = g.mul_mat(up, normed).unwrap();
            let z = g.mul_mat(down, y).unwrap();
            let tokens = g.reshape(z, [WIDTH, 1, n, 1]).unwrap();
            let by_experts = g.mul_mat_id(experts, tokens, ids).unwrap();
            h = g.reshape(by_experts, [WIDTH, n, 1, 1]).unwrap();
            results.extend([normed, y, z, tokens, by_experts, h]);
        }
        g.expand(h);

        let mut memory = MemoryMap::default();
        let mut weights_buffer = cpu.allocate(weights.bytes.len()).unwrap();
        weights_buffer.write(0, &weights.bytes).unwrap();
        let weights_buffer: Arc<dyn Buffer> = Arc::from(weights_buffer);
        let buffer = memory.insert(weights_buffer, Usage::Weights);
        for (id, offset) in weights.tensors {
            g.tensor_mut(id).home = Some(BufferSlice { buffer, offset });
        }
        let n_bytes = 4 * HIDDEN * n;
        let buffer = memory.insert(cpu.allocate(5 * n_bytes).unwrap(), Usage::Any);
        let mut place = |id: TensorId, slot: usize| {
            let offset = slot * n_bytes;
            g.tensor_mut(id).home = Some(BufferSlice { buffer, offset });
        };
        // Each result reuses the memory of a result that has no readers left. Views share the memory of their
        // source.
        for layer in results.as_chunks::<6>().0 {
            for (&id, slot) in layer.iter().zip([1, 0, 2, 2, 0, 0]) {
                place(id, slot);
            }
        }
        place(x, 3);
        place(ids, 4);
        let floats: Vec<f32> = (0..WIDTH * n).map(|i| (i * i % 97) as f32 / 97.0 - 0.4).collect();
        memory.write(g.home(x).unwrap(), bytemuck::cast_slice(&floats)).unwrap();
        let chosen: Vec<i32> = (0..2 * n).map(|i| (i * 3 % 4) as i32).collect();
        memory
            .write(g.home(ids).unwrap(), bytemuck::cast_slice(&chosen))
            .unwrap();
        Chain {
            graph: g,
            memory,
            result: h,
        }
    }

    /// Computes the graph `times` times, checks that all runs agree, and returns the result.
    fn run(&mut self, n_threads: usize, times: usize) -> Vec<u8> {
        self.run_on(ThreadPool::with_core_per_thread(&[n_threads]), Precision::High, times)
    }

    /// Like [`run`](Chain::run), on the threads of a pool.
    fn run_on(&mut self, pool: ThreadPool, precision: Precision, times: usize) -> Vec<u8> {
        let n_threads = pool.n_threads();
        let params = BackendParams {
            precision,
            thread_pool: Some(Arc::new(pool)),
            ..BackendParams::new(n_threads)
        };
        let mut backend = device("cpu").unwrap().backend(&params).unwrap();
        let mut uses = Uses::default();
        uses.count(&self.graph, []);
        let view = GraphView {
            graph: &self.graph,
            nodes: self.graph.nodes(),
            uses: &uses,
        };
        let mut plan = backend.prepare(&view, &self.memory, None).unwrap();
        let mut first = None;
        for _ in 0..times {
            backend.run(&mut *plan, &self.graph, &mut self.memory, &NEVER).unwrap();
            let mut out = vec![0; self.graph.tensor(self.result).nbytes()];
            self.memory
                .read(self.graph.home(self.result).unwrap(), &mut out)
                .unwrap();
            assert_eq!(first.get_or_insert_with(|| out.clone()), &out, "{n_threads} threads");
        }
        first.unwrap()
    }
}

#[test]
fn stolen_matmuls_are_bit_identical() {
    for n in [1, 3] {
        let want = Chain::new(n).run(1, 1);
        assert!(want.as_chunks().0.iter().any(|&x| f32::from_le_bytes(x) != 0.0));
        for n_threads in [2, 3, 5] {
            let before = stalls::n_stolen();
            stalls::every(11, || {
                assert_eq!(
                    Chain::new(n).run(n_threads, 20),
                    want,
                    "{n} tokens, {n_threads} threads"
                );
            });
            assert!(
                stalls::n_stolen() > before,
                "{n} tokens, {n_threads} threads: no work was stolen"
            );
        }
    }
}

#[test]
fn copies_of_activations_per_node_are_bit_identical() {
    for precision in [Precision::High, Precision::Fast] {
        for n in [1, 3, 64, 200] {
            let want = Chain::new(n).run_on(ThreadPool::with_core_per_thread(&[1]), precision, 1);
            assert!(want.as_chunks().0.iter().any(|&x| f32::from_le_bytes(x) != 0.0));
            for nodes in [[1, 1].as_slice(), &[2, 1], &[1, 2, 2]] {
                let pool = ThreadPool::with_node_per_group(nodes);
                assert_eq!(
                    Chain::new(n).run_on(pool, precision, 3),
                    want,
                    "{n} tokens, {nodes:?} threads per node"
                );
            }
        }
    }
}

/// Plans a whole graph.
fn plan_of(graph: &Graph, memory: &MemoryMap, precision: Precision, n_threads: usize) -> CpuPlan {
    let mut uses = Uses::default();
    uses.count(graph, []);
    let view = GraphView {
        graph,
        nodes: graph.nodes(),
        uses: &uses,
    };
    let mut plan = CpuPlan::default();
    Planner::new(precision, 1)
        .plan(&mut plan, &view, memory, &Arc::new(Groups::new(&[n_threads])))
        .unwrap();
    plan
}

#[test]
fn matmul_with_writable_weights_is_not_stealable() {
    let mut chain = Chain::new(1);
    let offers = |chain: &Chain| {
        let plan = plan_of(&chain.graph, &chain.memory, Precision::High, 2);
        plan.nodes.iter().filter(|node| node.offers).count()
    };
    assert_eq!(offers(&chain), 3 * LAYERS);
    let cpu = device("cpu").unwrap().buffer_type();
    let bytes = 1 << 20;
    let writable = chain.memory.insert(cpu.allocate(bytes).unwrap(), Usage::Any);
    let up = chain.graph.tensor(chain.graph.nodes()[1]).source(0);
    chain.graph.tensor_mut(up).home = Some(BufferSlice {
        buffer: writable,
        offset: 0,
    });
    assert_eq!(offers(&chain), 3 * LAYERS - 1);
}

/// One expert gets enough tokens for two gather passes. The results must be bit-identical to dense matmuls
/// with each expert's matrix.
#[test]
fn experts_of_many_tokens_match_dense_matmuls() {
    const M: usize = 200;
    const N: usize = 300;
    for ty in [Q4_0, Q8_0, GgmlType::F16] {
        let (mut g, mut weights) = (Graph::new(), Weights::default());
        let experts = weights.add(&mut g, ty, [WIDTH, M, 3, 1]);
        let x = g.input(F32, [WIDTH, N, 1, 1], "x");
        let ids = g.input(I32, [2, N, 1, 1], "ids");
        let tokens = g.reshape(x, [WIDTH, 1, N, 1]).unwrap();
        let routed = g.mul_mat_id(experts, tokens, ids).unwrap();
        g.expand(routed);
        let bytes_of_expert = M * ty.row_bytes(WIDTH).unwrap();
        let of_experts: Vec<TensorId> = (0..3)
            .map(|expert| {
                let w = g.input(ty, [WIDTH, M, 1, 1], "expert");
                weights.tensors.push((w, expert * bytes_of_expert));
                let product = g.mul_mat(w, x).unwrap();
                g.expand(product);
                product
            })
            .collect();
        let cpu = device("cpu").unwrap().buffer_type();
        let mut memory = MemoryMap::default();
        let mut weights_buffer = cpu.allocate(weights.bytes.len()).unwrap();
        weights_buffer.write(0, &weights.bytes).unwrap();
        let buffer = memory.insert(Arc::<dyn Buffer>::from(weights_buffer), Usage::Weights);
        for (id, offset) in weights.tensors {
            g.tensor_mut(id).home = Some(BufferSlice { buffer, offset });
        }
        for id in [x, ids, routed].into_iter().chain(of_experts.iter().copied()) {
            let buffer = memory.insert(cpu.allocate(g.tensor(id).nbytes()).unwrap(), Usage::Any);
            g.tensor_mut(id).home = Some(BufferSlice { buffer, offset: 0 });
        }
        g.tensor_mut(tokens).home = g.home(x);
        let expert = |slot: usize, token: usize| if slot == 0 { 0 } else { 1 + token % 2 };
        let floats: Vec<f32> = (0..WIDTH * N).map(|i| (i * i % 97) as f32 / 97.0 - 0.4).collect();
        let chosen: Vec<i32> = (0..2 * N).map(|i| expert(i % 2, i / 2) as i32).collect();
        memory.write(g.home(x).unwrap(), bytemuck::cast_slice(&floats)).unwrap();
        memory
            .write(g.home(ids).unwrap(), bytemuck::cast_slice(&chosen))
            .unwrap();
        let mut uses = Uses::default();
        uses.count(&g, []);
        let view = GraphView {
            graph: &g,
            nodes: g.nodes(),
            uses: &uses,
        };
        for n_threads in 1..=3 {
            let params = BackendParams::new(n_threads);
            let mut backend = device("cpu").unwrap().backend(&params).unwrap();
            let mut plan = backend.prepare(&view, &memory, None).unwrap();
            backend.run(&mut *plan, &g, &mut memory, &NEVER).unwrap();
            let read = |id: TensorId| {
                let mut bytes = vec![0; g.tensor(id).nbytes()];
                memory.read(g.home(id).unwrap(), &mut bytes).unwrap();
                bytes
            };
            let (got, expected) = (read(routed), of_experts.iter().map(|&id| read(id)).collect::<Vec<_>>());
            for (i, row) in got.chunks(4 * M).enumerate() {
                let of_expert = &expected[expert(i % 2, i / 2)][i / 2 * 4 * M..][..4 * M];
                assert!(row == of_expert, "{ty}, {n_threads} threads, token {}", i / 2);
            }
        }
    }
}

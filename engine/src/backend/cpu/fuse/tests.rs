//! Fused nodes give bit-identical results to separate nodes, and nodes with conflicting memory are not fused.

use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use kernels::GgmlType::{self, BF16, F16, F32, I32, Q4_0, Q6_K, Q8_0};
use kernels::{ActivationForm, activation_form, quantize_row};

use super::*;
use crate::backend::cpu::groups::Groups;
use crate::backend::cpu::interleaved::INTERLEAVED;
use crate::backend::cpu::plan::CpuPlan;
use crate::backend::cpu::planner::Planner;
use crate::backend::{BackendError, BackendParams, Usage, device};
use crate::graph::{BufferSlice, Graph, Layout, Tensor, Unary, Uses};
use crate::sched::{Observer, SchedParams, Scheduler};

static NEVER: AtomicBool = AtomicBool::new(false);

/// Memory location of the norm's result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    OwnMemory,
    Sum,
    A,
    B,
    /// The norm starts half a row after the start of `a`.
    Shifted,
}

/// A graph that computes `norm(a + b)` and, if the sum is read twice, `2 (a + b)`.
struct Sketch {
    graph: Graph,
    memory: MemoryMap,
    a: TensorId,
    b: TensorId,
    weight: TensorId,
    sum: TensorId,
    norm: TensorId,
}

impl Sketch {
    fn new(ne: [usize; 2], b_rows: usize, read_twice: bool, at: At) -> Sketch {
        let mut g = Graph::new();
        let a = g.input(F32, [ne[0], ne[1], 1, 1], "a");
        let b = g.input(F32, [ne[0], b_rows, 1, 1], "b");
        let weight = g.input(F32, [ne[0], 1, 1, 1], "weight");
        let sum = g.add(a, b).unwrap();
        let norm = g.rms_norm(sum, Some(weight), 1e-5).unwrap();
        g.expand(norm);
        let twice = g.scale(sum, 2.0, 0.0).unwrap();
        if read_twice {
            g.expand(twice);
        }
        let mut memory = MemoryMap::default();
        let n_bytes = 4 * ne[0] * (ne[1] + 1);
        let cpu = device("cpu").unwrap().buffer_type();
        let buffer = memory.insert(cpu.allocate(6 * n_bytes).unwrap(), Usage::Any);
        let mut place = |id: TensorId, offset: usize| g.tensor_mut(id).home = Some(BufferSlice { buffer, offset });
        for (i, id) in [a, b, weight, sum, twice].into_iter().enumerate() {
            place(id, i * n_bytes);
        }
        let offset = match at {
            At::OwnMemory => 5 * n_bytes,
            At::Sum => 3 * n_bytes,
            At::A => 0,
            At::B => n_bytes,
            At::Shifted => 4 * (ne[0] / 2),
        };
        place(norm, offset);
        Sketch {
            graph: g,
            memory,
            a,
            b,
            weight,
            sum,
            norm,
        }
    }

    fn fusion(&self) -> Option<Fusion> {
        let uses = uses_of(&self.graph);
        let view = GraphView {
            graph: &self.graph,
            nodes: self.graph.nodes(),
            uses: &uses,
        };
        let mut plan = CpuPlan::default();
        Planner::new(kernels::Precision::Exact, 1)
            .plan(&mut plan, &view, &self.memory, &Arc::new(Groups::new(&[2])))
            .unwrap();
        plan.nodes[0].fusion
    }

    /// Computes each group of nodes in its own plan, and returns the sum and the norm.
    fn run(&mut self, pieces: &[&[TensorId]], n_threads: usize) -> [Vec<u8>; 2] {
        for (id, seed) in [self.a, self.b, self.weight].into_iter().zip(1..) {
            let value = |i: usize| ((i * i + 7 * i * seed) % 101) as f32 / 50.0 - 0.9;
            let floats: Vec<f32> = (0..self.graph.tensor(id).nelements()).map(value).collect();
            let home = self.graph.home(id).unwrap();
            self.memory.write(home, bytemuck::cast_slice(&floats)).unwrap();
        }
        let uses = uses_of(&self.graph);
        let cpu = device("cpu").unwrap();
        let mut backend = cpu.backend(&BackendParams::new(n_threads)).unwrap();
        for nodes in pieces {
            let view = GraphView {
                graph: &self.graph,
                nodes,
                uses: &uses,
            };
            let mut plan = backend.prepare(&view, &self.memory, None).unwrap();
            backend.run(&mut *plan, &self.graph, &mut self.memory, &NEVER).unwrap();
        }
        [self.sum, self.norm].map(|id| {
            let home = self.graph.home(id).unwrap();
            let mut bytes = vec![0; self.graph.tensor(id).nbytes()];
            self.memory.read(home, &mut bytes).unwrap();
            bytes
        })
    }
}

fn uses_of(graph: &Graph) -> Uses {
    let mut uses = Uses::default();
    uses.count(graph, []);
    uses
}

#[test]
fn fused_sum_and_norm_are_bit_identical() {
    for (ne, b_rows) in [
        ([96, 5], 5),
        ([96, 5], 1),
        ([512, 40], 40),
        ([512, 40], 1),
        ([5000, 1], 1),
    ] {
        for (read_twice, at, stores_sum) in [
            (false, At::OwnMemory, Some(false)),
            (true, At::OwnMemory, Some(true)),
            (false, At::Sum, Some(false)),
            (false, At::A, Some(false)),
            (true, At::A, Some(true)),
            (false, At::B, None),
            (true, At::B, None),
            (true, At::Shifted, None),
        ] {
            let mut sketch = Sketch::new(ne, b_rows, read_twice, at);
            let case = format!("{ne:?}, {b_rows} rows, read twice {read_twice}, norm at {at:?}");
            let expected = stores_sum.map(|stores_sum| Fusion::AddRmsNorm { eps: 1e-5, stores_sum });
            assert_eq!(sketch.fusion(), expected, "{case}");
            let (sum, norm) = (sketch.sum, sketch.norm);
            let apart = sketch.run(&[&[sum], &[norm]], 1);
            for n_threads in 1..=3 {
                let together = sketch.run(&[&[sum, norm]], n_threads);
                assert!(together[1] == apart[1], "{case}, {n_threads} threads");
                if stores_sum == Some(true) {
                    assert!(together[0] == apart[0], "{case}, {n_threads} threads");
                }
            }
        }
    }
}

#[test]
fn norm_that_overwrites_sum_with_readers_is_not_fused() {
    assert_eq!(Sketch::new([96, 5], 5, true, At::Sum).fusion(), None);
}

/// A timer that observes only the sum node.
struct RunTimer {
    sum: TensorId,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Observer for RunTimer {
    fn observes(&mut self, _: &Graph, node: TensorId) -> bool {
        node == self.sum
    }

    fn show(&mut self, _: &Graph, _: TensorId, data: &[u8]) -> ControlFlow<()> {
        *self.seen.lock().unwrap() = data.to_vec();
        ControlFlow::Continue(())
    }
}

#[test]
fn observed_sum_is_stored() {
    let backend = device("cpu").unwrap().backend(&BackendParams::new(2)).unwrap();
    let mut sched = Scheduler::new(vec![backend], MemoryMap::default(), SchedParams::default()).unwrap();
    let mut g = Graph::new();
    let (a, b) = (g.input(F32, [8, 2, 1, 1], "a"), g.input(F32, [8, 2, 1, 1], "b"));
    let sum = g.add(a, b).unwrap();
    let norm = g.rms_norm(sum, None, 1e-5).unwrap();
    g.tensor_mut(norm).flags.output = true;
    g.expand(norm);
    sched.alloc_graph(&mut g).unwrap();
    let floats: Vec<f32> = (0..16).map(|i| i as f32 - 7.5).collect();
    let run = |sched: &mut Scheduler| {
        for id in [a, b] {
            sched.set_input(&g, id, bytemuck::cast_slice(&floats)).unwrap();
        }
        sched.compute(&g).unwrap();
        let mut out = [0f32; 16];
        sched
            .read_tensor(&g, norm, 0, bytemuck::cast_slice_mut(&mut out))
            .unwrap();
        out
    };
    let plain = run(&mut sched);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let watch = RunTimer {
        sum,
        seen: seen.clone(),
    };
    sched.set_observer(Some(Box::new(watch)));
    assert_eq!(run(&mut sched), plain);
    let doubled: Vec<f32> = floats.iter().map(|x| 2.0 * x).collect();
    assert_eq!(*seen.lock().unwrap(), bytemuck::cast_slice::<f32, u8>(&doubled));
}

#[test]
fn plan_is_rejected_after_graph_or_memory_changed() {
    let mut sketch = Sketch::new([96, 5], 5, false, At::OwnMemory);
    let mut backend = device("cpu").unwrap().backend(&BackendParams::new(2)).unwrap();
    let uses = uses_of(&sketch.graph);
    let view = GraphView {
        graph: &sketch.graph,
        nodes: sketch.graph.nodes(),
        uses: &uses,
    };
    let mut plan = backend.prepare(&view, &sketch.memory, None).unwrap();
    let mut run = |graph: &Graph, memory: &mut MemoryMap, cancelled: bool| {
        backend.run(&mut *plan, graph, memory, &AtomicBool::new(cancelled))
    };
    run(&sketch.graph, &mut sketch.memory, false).unwrap();
    // A clone of the graph has the same fingerprint.
    run(&sketch.graph.clone(), &mut sketch.memory, false).unwrap();
    let cancelled = run(&sketch.graph, &mut sketch.memory, true);
    assert!(matches!(cancelled, Err(BackendError::Cancelled)));

    let mut changed = sketch.graph.clone();
    changed.tensor_mut(sketch.sum).ne = [96, 500, 1, 1];
    let stale = |result: Result<(), BackendError>| matches!(result, Err(BackendError::StalePlan { .. }));
    assert!(stale(run(&changed, &mut sketch.memory, false)));
    assert!(stale(run(&sketch.graph, &mut MemoryMap::default(), false)));
    let other = device("cpu").unwrap().buffer_type().allocate(1 << 20).unwrap();
    let buffer = sketch.graph.home(sketch.sum).unwrap().buffer;
    sketch.memory.replace(buffer, other);
    assert!(stale(run(&sketch.graph, &mut sketch.memory, false)));
}

/// A graph that computes `down (silu(gate h) * (up h))` with `h = norm(x)` or `norm(x + y)`.
struct Gated {
    graph: Graph,
    memory: MemoryMap,
    norm: TensorId,
    products: [TensorId; 2],
    result: TensorId,
}

/// Number of experts. Each token uses two: expert 0, and an expert that rotates with the token.
const N_EXPERTS: usize = 3;

/// Returns test data for an input: expert ids, or values quantized to the tensor's type and layout.
fn values(t: &Tensor, seed: usize) -> Vec<u8> {
    let value = |i: usize| ((i * i + 7 * i * seed) % 103) as f32 / 50.0 - 0.9;
    let floats: Vec<f32> = (0..t.nelements()).map(value).collect();
    let mut bytes = vec![0; t.nbytes()];
    match t.ty {
        F32 => bytes.copy_from_slice(bytemuck::cast_slice(&floats)),
        I32 => {
            let expert = |i: usize| {
                if i.is_multiple_of(2) {
                    0
                } else {
                    (i / 2 % N_EXPERTS) as i32
                }
            };
            let experts: Vec<i32> = (0..t.nelements()).map(expert).collect();
            bytes.copy_from_slice(bytemuck::cast_slice(&experts));
        }
        // Keeps the f16 scales finite and normal.
        Q6_K => bytes
            .iter_mut()
            .zip(&floats)
            .for_each(|(byte, x)| *byte = (x * 100.0) as i8 as u8 & 0x37 | 0x20),
        ty if t.layout.is_plain() => quantize_row(ty, &floats, &mut bytes),
        ty => {
            let k = t.ne[0];
            let mut rows = vec![0; ty.row_bytes(floats.len()).unwrap()];
            quantize_row(ty, &floats, &mut rows);
            let Layout::Repacked(repack) = t.layout else {
                unreachable!("plain rows are handled above")
            };
            let of_rows = repack.group_rows() * ty.row_bytes(k).unwrap();
            for (rows, group) in rows.chunks(of_rows).zip(bytes.chunks_mut(repack.group_bytes(ty, k))) {
                repack.pack(ty, k, rows, group);
            }
        }
    }
    bytes
}

impl Gated {
    /// Builds a graph with rows of `k` elements, `m` rows of weights, and `n` tokens. `gate` is the index of
    /// the gate's matmul.
    fn new([k, m, n]: [usize; 3], gate: usize, is_sum: bool) -> Gated {
        Gated::build([k, m, n], gate, is_sum, 0, [Q4_0; 2], Layout::Plain)
    }

    /// Builds a graph with expert matrices (dense for `n_experts` = 0) and weights of the given types and
    /// layout.
    fn build(
        [k, m, n]: [usize; 3],
        gate: usize,
        is_sum: bool,
        n_experts: usize,
        types: [GgmlType; 2],
        layout: Layout,
    ) -> Gated {
        let mut g = Graph::new();
        let n_matrices = n_experts.max(1);
        let [x, y] = ["x", "y"].map(|name| g.input(F32, [k, n, 1, 1], name));
        let weights = types.map(|ty| g.input(ty, [k, m, n_matrices, 1], ty.name()));
        for id in weights {
            g.tensor_mut(id).layout = layout;
        }
        let down = g.input(Q4_0, [m, k, n_matrices, 1], "down");
        let ids = g.input(I32, [2, n, 1, 1], "ids");
        let h = if is_sum { g.add(x, y).unwrap() } else { x };
        let norm = g.rms_norm(h, None, 1e-5).unwrap();
        let tokens = if n_experts > 0 {
            g.reshape(norm, [k, 1, n, 1]).unwrap()
        } else {
            norm
        };
        let mut product = |w: TensorId, x: TensorId| match n_experts {
            0 => g.mul_mat(w, x).unwrap(),
            _ => g.mul_mat_id(w, x, ids).unwrap(),
        };
        let products = weights.map(|w| product(w, tokens));
        g.expand(products[0]);
        let glu = g.glu(Unary::Silu, products[gate], products[1 - gate]).unwrap();
        let result = match n_experts {
            0 => g.mul_mat(down, glu).unwrap(),
            _ => g.mul_mat_id(down, glu, ids).unwrap(),
        };
        g.expand(result);
        let mut memory = MemoryMap::default();
        let cpu = device("cpu").unwrap().buffer_type();
        let inputs = [x, y, weights[0], weights[1], down, ids];
        let all: Vec<TensorId> = inputs.into_iter().chain(g.nodes().iter().copied()).collect();
        for id in all {
            if g.tensor(id).view.is_none() {
                let buffer = memory.insert(cpu.allocate(g.tensor(id).nbytes()).unwrap(), Usage::Any);
                g.tensor_mut(id).home = Some(BufferSlice { buffer, offset: 0 });
            }
        }
        for (id, seed) in inputs.into_iter().zip(1..) {
            memory.write(g.home(id).unwrap(), &values(g.tensor(id), seed)).unwrap();
        }
        Gated {
            graph: g,
            memory,
            norm,
            products,
            result,
        }
    }

    fn plan(&self, precision: Precision) -> CpuPlan {
        let uses = uses_of(&self.graph);
        let view = GraphView {
            graph: &self.graph,
            nodes: self.graph.nodes(),
            uses: &uses,
        };
        let mut plan = CpuPlan::default();
        Planner::new(precision, 1)
            .plan(&mut plan, &view, &self.memory, &Arc::new(Groups::new(&[2])))
            .unwrap();
        plan
    }

    fn matmul_fusion(&self, precision: Precision) -> Option<Fusion> {
        let plan = self.plan(precision);
        let is_first = |id: TensorId| self.products.contains(&id);
        let mut firsts = plan.nodes.iter().filter(|node| is_first(node.memory.id));
        firsts.find_map(|node| node.fusion)
    }

    /// Returns the result after computing the nodes in one plan (`together`) or each in its own plan.
    fn run(&mut self, together: bool, precision: Precision, n_threads: usize) -> Vec<u8> {
        let uses = uses_of(&self.graph);
        let params = BackendParams {
            precision,
            ..BackendParams::new(n_threads)
        };
        let mut backend = device("cpu").unwrap().backend(&params).unwrap();
        let home = self.graph.home(self.result).unwrap();
        let mut bytes = vec![0xFF; self.graph.tensor(self.result).nbytes()];
        self.memory.write(home, &bytes).unwrap();
        let nodes = self.graph.nodes();
        for nodes in nodes.chunks(if together { nodes.len() } else { 1 }) {
            let view = GraphView {
                graph: &self.graph,
                nodes,
                uses: &uses,
            };
            let mut plan = backend.prepare(&view, &self.memory, None).unwrap();
            backend.run(&mut *plan, &self.graph, &mut self.memory, &NEVER).unwrap();
        }
        self.memory.read(home, &mut bytes).unwrap();
        bytes
    }
}

#[test]
fn fused_gated_matmuls_are_bit_identical() {
    for precision in [Precision::High, Precision::Fast] {
        for shape in [
            [256, 160, 1],
            [96, 320, 31],
            // With tiles, the gate has few columns, and its result is stored in their form.
            [256, 512, 32],
            [256, 160, 40],
            [320, 96, 133],
            [96, 320, 515],
            [96, 128, 1027],
        ] {
            for (gate, is_sum) in [(0, false), (1, true), (0, true)] {
                let mut gated = Gated::new(shape, gate, is_sum);
                let expected = Fusion::MatmulGlu {
                    f: Unary::Silu,
                    gate_is_first: gate == 0,
                };
                let case = format!("{precision:?}, {shape:?}, gate {gate}, sum {is_sum}");
                assert_eq!(gated.matmul_fusion(precision), Some(expected), "{case}");
                let apart = gated.run(false, precision, 1);
                for n_threads in 1..=3 {
                    let together = gated.run(true, precision, n_threads);
                    assert!(together == apart, "{case}, {n_threads} threads");
                }
            }
        }
    }
}

#[test]
fn fused_gated_expert_matmuls_are_bit_identical() {
    for precision in [Precision::High, Precision::Fast] {
        for shape in [[256, 160, 4], [256, 160, 300], [160, 288, 70]] {
            let mut gated = Gated::build(shape, 0, true, N_EXPERTS, [Q4_0; 2], Layout::Plain);
            let case = format!("{precision:?}, {shape:?}");
            assert!(gated.matmul_fusion(precision).is_some(), "{case}");
            let apart = gated.run(false, precision, 1);
            for n_threads in 1..=3 {
                let together = gated.run(true, precision, n_threads);
                assert!(together == apart, "{case}, {n_threads} threads");
            }
        }
    }
}

/// Activations that were prepared for one weight type must not be reused for another.
#[test]
fn fused_gated_matmuls_of_two_types_are_bit_identical() {
    for types in [[Q8_0, Q6_K], [Q6_K, Q4_0], [Q8_0, Q4_0]] {
        for (n, n_experts) in [(6, 0), (20, 0), (31, 0), (30, N_EXPERTS)] {
            let mut gated = Gated::build([2048, 160, n], 0, true, n_experts, types, INTERLEAVED);
            let case = format!("{types:?}, {n} tokens, {n_experts} experts");
            assert!(gated.matmul_fusion(Precision::Fast).is_some(), "{case}");
            let apart = gated.run(false, Precision::Fast, 1);
            for n_threads in 1..=2 {
                let together = gated.run(true, Precision::Fast, n_threads);
                assert!(together == apart, "{case}, {n_threads} threads");
            }
        }
    }
}

/// Rows of floats have the same order in both layouts.
#[test]
fn float_rows_in_groups_match_plain_rows() {
    for ty in [F32, F16, BF16] {
        for (n, n_experts) in [(1, 0), (6, 0), (40, 0), (2, N_EXPERTS), (40, N_EXPERTS)] {
            let shape = [512, 160, n];
            let [plain, groups] = [Layout::Plain, INTERLEAVED].map(|layout| {
                let mut gated = Gated::build(shape, 0, true, n_experts, [ty; 2], layout);
                [1, 2].map(|n_threads| gated.run(true, Precision::Fast, n_threads))
            });
            assert!(plain == groups, "{ty}, {n} tokens, {n_experts} experts");
        }
    }
}

/// A result that only matmuls read is stored in their form: norms always, gated units only if parts of a row
/// can be stored separately. Rows of 16-bit integers with their metadata are longer than f32 rows and do not
/// fit.
#[test]
fn results_read_only_by_matmuls_are_stored_quantized() {
    let n_stored = |gated: &Gated, precision: Precision| {
        let plan = gated.plan(precision);
        plan.nodes.iter().filter(|node| node.stores.is_some()).count()
    };
    let in_parts = usize::from(activation_form(Q4_0, 64, Precision::Fast) == ActivationForm::Bf16Row);
    for is_sum in [false, true] {
        let mut gated = Gated::new([256, 512, 64], 0, is_sum);
        assert_eq!(n_stored(&gated, Precision::Exact), 0);
        assert_eq!(n_stored(&gated, Precision::High), 0);
        assert_eq!(n_stored(&gated, Precision::Fast), 1 + in_parts);
        gated.graph.tensor_mut(gated.norm).flags.output = true;
        assert_eq!(n_stored(&gated, Precision::Fast), in_parts);
    }
}

#[test]
fn f32_matmuls_and_matmuls_with_readers_are_not_fused() {
    let mut gated = Gated::new([256, 160, 40], 0, true);
    assert_eq!(gated.matmul_fusion(Precision::Exact), None);
    let product = gated.products[1];
    gated.graph.tensor_mut(product).flags.output = true;
    assert_eq!(gated.matmul_fusion(Precision::Fast), None);
}

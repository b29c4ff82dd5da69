//! Transformer layers in decode: the number of phases per layer, and bit-identical results whether nodes are
//! fused, recomputed per thread, or computed one by one.

use super::*;
use crate::alloc::{AllocStep, GraphAllocator, Order};
use crate::graph::Unary;

/// Options of the test layers.
#[derive(Clone, Copy, Default, Debug)]
struct Form {
    /// The matmul is the first operand of each sum.
    product_first: bool,
    /// True if the gate and up projections are stacks of expert matrices.
    experts: bool,
    /// True if the norms have additional readers.
    read_norms: bool,
    /// True if the attention matmuls have biases.
    biases: bool,
    /// True if the gate and up weights have different quantization types.
    two_types: bool,
    /// True if each result has its own buffer.
    apart: bool,
}

/// Llama-like layers, with two sums instead of attention.
struct Layers {
    graph: Graph,
    memory: MemoryMap,
    x: TensorId,
    /// The last sum, read only by the last norm.
    last_sum: TensorId,
    glus: Vec<TensorId>,
    result: TensorId,
}

const N_EXPERTS: usize = 4;

impl Layers {
    fn new(n: usize, form: Form) -> Layers {
        let (mut g, mut weights, mut glus) = (Graph::new(), Weights::default(), Vec::new());
        let x = g.input(F32, [WIDTH, n, 1, 1], "x");
        let ids = g.input(I32, [1, n, 1, 1], "ids");
        // A computed tensor, so that a sum may overwrite it.
        let mut h = g.scale(x, 2.0, 0.0).unwrap();
        let sum = |g: &mut Graph, h: TensorId, product: TensorId| {
            let [a, b] = if form.product_first { [product, h] } else { [h, product] };
            g.add(a, b).unwrap()
        };
        let norm = |g: &mut Graph, weights: &mut Weights, h: TensorId| {
            let weight = weights.add(g, F32, [WIDTH, 1, 1, 1]);
            let norm = g.rms_norm(h, Some(weight), 1e-5).unwrap();
            if form.read_norms {
                g.expand(norm);
                g.tensor_mut(norm).flags.output = true;
            }
            norm
        };
        for _ in 0..LAYERS {
            let [wq, wk, wv, wo] = [Q4_0, Q4_0, Q8_0, Q4_0].map(|ty| weights.add(&mut g, ty, [WIDTH, WIDTH, 1, 1]));
            let normed = norm(&mut g, &mut weights, h);
            let [q, k, mut v] = [wq, wk, wv].map(|w| g.mul_mat(w, normed).unwrap());
            if form.biases {
                let bias = weights.add(&mut g, F32, [WIDTH, 1, 1, 1]);
                v = g.add(v, bias).unwrap();
            }
            [q, k, v].into_iter().for_each(|id| g.expand(id));
            let scores = g.mul(q, k).unwrap();
            let heads = g.add(scores, v).unwrap();
            let o = g.mul_mat(wo, heads).unwrap();
            h = sum(&mut g, h, o);

            let n_experts = if form.experts { N_EXPERTS } else { 1 };
            let types = [Q4_0, if form.two_types { Q8_0 } else { Q4_0 }];
            let gate_up = types.map(|ty| weights.add(&mut g, ty, [WIDTH, HIDDEN, n_experts, 1]));
            let down = weights.add(&mut g, Q8_0, [HIDDEN, WIDTH, 1, 1]);
            let normed = norm(&mut g, &mut weights, h);
            let [gate, up] = if form.experts {
                let tokens = g.reshape(normed, [WIDTH, 1, n, 1]).unwrap();
                gate_up.map(|w| g.mul_mat_id(w, tokens, ids).unwrap())
            } else {
                gate_up.map(|w| g.mul_mat(w, normed).unwrap())
            };
            let glu = g.glu(Unary::Silu, gate, up).unwrap();
            glus.push(glu);
            let glu = g.reshape(glu, [HIDDEN, n, 1, 1]).unwrap();
            let product = g.mul_mat(down, glu).unwrap();
            h = sum(&mut g, h, product);
        }
        let output = weights.add(&mut g, Q8_0, [WIDTH, HIDDEN, 1, 1]);
        let normed = norm(&mut g, &mut weights, h);
        let result = g.mul_mat(output, normed).unwrap();
        g.tensor_mut(result).flags.output = true;
        g.expand(result);
        let memory = Layers::place(&mut g, weights, form.apart);
        let mut layers = Layers {
            graph: g,
            memory,
            x,
            last_sum: h,
            glus,
            result,
        };
        if form.experts {
            let chosen: Vec<i32> = (0..n).map(|i| (i * 3 % N_EXPERTS) as i32).collect();
            layers.write(ids, bytemuck::cast_slice(&chosen));
        }
        layers
    }

    /// Allocates the weights in read-only memory, and the results with the graph allocator, or in separate
    /// buffers if `apart`.
    fn place(g: &mut Graph, weights: Weights, apart: bool) -> MemoryMap {
        let cpu = device("cpu").unwrap().buffer_type();
        let mut memory = MemoryMap::default();
        let mut buffer = cpu.allocate(weights.bytes.len()).unwrap();
        buffer.write(0, &weights.bytes).unwrap();
        let buffer = memory.insert(Arc::<dyn Buffer>::from(buffer), Usage::Weights);
        for (id, offset) in weights.tensors {
            let tensor = g.tensor_mut(id);
            (tensor.home, tensor.flags.input) = (Some(BufferSlice { buffer, offset }), false);
        }
        let leafs: Vec<TensorId> = g.leafs().iter().copied().filter(|&id| g.home(id).is_none()).collect();
        let nodes = g.nodes().to_vec();
        if apart {
            for id in leafs.into_iter().chain(nodes) {
                if g.tensor(id).view.is_none() {
                    let buffer = memory.insert(cpu.allocate(g.tensor(id).nbytes()).unwrap(), Usage::Any);
                    g.tensor_mut(id).home = Some(BufferSlice { buffer, offset: 0 });
                }
            }
        } else {
            let steps: Vec<AllocStep> = nodes.into_iter().map(AllocStep::Compute).collect();
            let order = Order {
                leafs: &leafs,
                steps: &steps,
            };
            let mut alloc = GraphAllocator::new(&[cpu]);
            alloc.assign(g, order, |_| 0, &mut memory).unwrap();
        }
        memory
    }

    fn write(&mut self, id: TensorId, bytes: &[u8]) {
        self.memory.write(self.graph.home(id).unwrap(), bytes).unwrap();
    }

    fn plan(&self, n_threads: usize) -> CpuPlan {
        plan_of(&self.graph, &self.memory, Precision::Fast, n_threads)
    }

    /// Counts the fusions that match `matches_kind`.
    fn n_fused(&self, matches_kind: impl Fn(&Fusion) -> bool) -> usize {
        let plan = self.plan(2);
        plan.nodes
            .iter()
            .filter(|node| node.fusion.as_ref().is_some_and(&matches_kind))
            .count()
    }

    /// Returns the result after computing the nodes in one plan (`together`) or each in its own plan.
    fn run(&mut self, together: bool, n_threads: usize) -> Vec<u8> {
        let floats: Vec<f32> = (0..self.graph.tensor(self.x).nelements())
            .map(|i| (i * i % 97) as f32 / 97.0 - 0.4)
            .collect();
        self.write(self.x, bytemuck::cast_slice(&floats));
        let params = BackendParams {
            precision: Precision::Fast,
            thread_pool: Some(Arc::new(ThreadPool::with_core_per_thread(&[n_threads]))),
            ..BackendParams::new(n_threads)
        };
        let mut backend = device("cpu").unwrap().backend(&params).unwrap();
        let mut uses = Uses::default();
        uses.count(&self.graph, []);
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
        let mut bytes = vec![0; self.graph.tensor(self.result).nbytes()];
        self.memory
            .read(self.graph.home(self.result).unwrap(), &mut bytes)
            .unwrap();
        bytes
    }
}

fn is_matmul_add(fusion: &Fusion) -> bool {
    matches!(fusion, Fusion::MatmulAdd { .. })
}

fn is_glu(fusion: &Fusion) -> bool {
    matches!(fusion, Fusion::MatmulGlu { .. })
}

fn forms() -> [Form; 7] {
    let plain = Form::default();
    [
        plain,
        Form {
            product_first: true,
            ..plain
        },
        Form { experts: true, ..plain },
        Form {
            read_norms: true,
            ..plain
        },
        Form { biases: true, ..plain },
        Form {
            two_types: true,
            ..plain
        },
        Form { apart: true, ..plain },
    ]
}

/// The five phases are: matmuls of the first norm, the attention stand-in, two matmuls with a residual sum,
/// and the gated matmuls.
#[test]
fn layer_of_few_tokens_takes_five_phases() {
    for n in [1, 3, 8] {
        for form in forms() {
            let case = format!("{n} tokens, {form:?}");
            let layers = Layers::new(n, form);
            let plan = layers.plan(2);
            let (n_norms, n_phases) = if form.read_norms {
                (0, 7 * LAYERS + 2)
            } else {
                (2 * LAYERS + 1, 5 * LAYERS + 2)
            };
            assert_eq!(plan.norms.len(), n_norms, "{case}");
            assert_eq!(plan.phases.len(), n_phases, "{case}");
            let n_sums = if form.biases { 3 } else { 2 };
            assert_eq!(layers.n_fused(is_matmul_add), n_sums * LAYERS, "{case}");
            assert_eq!(layers.n_fused(is_glu), LAYERS, "{case}");
        }
    }
}

/// The batch has 40 tokens, more than the limit up to which every thread quantizes for itself.
#[test]
fn norms_of_many_tokens_are_computed_once() {
    let layers = Layers::new(40, Form::default());
    assert_eq!(layers.plan(2).norms.len(), 0);
    assert_eq!(layers.n_fused(is_matmul_add), 0);
}

#[test]
fn fused_layers_are_bit_identical() {
    for n in [1, 3, 8] {
        for form in forms() {
            let apart = Layers::new(n, form).run(false, 1);
            assert!(apart.as_chunks().0.iter().all(|&x| f32::from_le_bytes(x).is_finite()));
            assert!(apart.as_chunks().0.iter().any(|&x| f32::from_le_bytes(x) != 0.0));
            let mut layers = Layers::new(n, form);
            for n_threads in 1..=4 {
                for _ in 0..3 {
                    let together = layers.run(true, n_threads);
                    assert!(together == apart, "{n} tokens, {form:?}, {n_threads} threads");
                }
            }
        }
    }
}

#[test]
fn stolen_fused_matmuls_are_bit_identical() {
    for n in [1, 3] {
        for form in forms() {
            let want = Layers::new(n, form).run(false, 1);
            let mut layers = Layers::new(n, form);
            for n_threads in [2, 3] {
                let before = stalls::n_stolen();
                stalls::every(7, || {
                    for _ in 0..4 {
                        let got = layers.run(true, n_threads);
                        assert!(got == want, "{n} tokens, {form:?}, {n_threads} threads");
                    }
                });
                assert!(stalls::n_stolen() > before, "{n} tokens, {form:?}: no work was stolen");
            }
        }
    }
}

/// Only a norm reads the sum, and a matmul overwrites the sum's memory. Another thread may still be reading
/// the sum, so the norm must not be recomputed.
#[test]
fn norm_is_stored_if_matmul_overwrites_its_input() {
    let form = Form {
        apart: true,
        ..Form::default()
    };
    let mut layers = Layers::new(1, form);
    let want = layers.run(false, 1);
    let n_norms = layers.plan(2).norms.len();
    let result = layers.result;
    let sum = layers.graph.home(layers.last_sum).unwrap();
    let cpu = device("cpu").unwrap().buffer_type();
    let buffer = cpu.allocate(8 * 4 * HIDDEN).unwrap();
    layers.memory.replace(sum.buffer, buffer);
    layers.graph.tensor_mut(result).home = Some(BufferSlice { offset: 512, ..sum });
    assert_eq!(layers.plan(2).norms.len(), n_norms - 1);
    for n_threads in 1..=4 {
        assert!(layers.run(true, n_threads) == want, "{n_threads} threads");
    }
}

/// The sum overwrites the activations that other threads may still be quantizing, so the matmul must not be
/// fused with the sum.
#[test]
fn matmul_is_stored_if_sum_overwrites_its_activations() {
    let form = Form {
        apart: true,
        ..Form::default()
    };
    let mut layers = Layers::new(1, form);
    let want = layers.run(false, 1);
    let n_sums = layers.n_fused(is_matmul_add);
    let (sum, glu) = (layers.last_sum, layers.glus[LAYERS - 1]);
    layers.graph.tensor_mut(sum).home = layers.graph.home(glu);
    assert_eq!(layers.n_fused(is_matmul_add), n_sums - 1);
    for n_threads in 1..=4 {
        assert!(layers.run(true, n_threads) == want, "{n_threads} threads");
    }
}

/// The gated result overwrites the input of a norm that other threads may still be recomputing, so the
/// matmuls must not be fused.
#[test]
fn gated_matmuls_that_overwrite_norm_input_are_not_fused() {
    let form = Form {
        apart: true,
        ..Form::default()
    };
    let mut layers = Layers::new(1, form);
    assert_eq!(layers.n_fused(is_glu), LAYERS);
    let glu = layers.glus[0];
    let tensor = |id: TensorId| layers.graph.tensor(id);
    let norm = tensor(tensor(glu).source(0)).source(1);
    let sum = layers.graph.home(tensor(norm).source(0)).unwrap();
    let buffer = device("cpu").unwrap().buffer_type().allocate(4 * HIDDEN).unwrap();
    layers.memory.replace(sum.buffer, buffer);
    layers.graph.tensor_mut(glu).home = Some(sum);
    assert_eq!(layers.n_fused(is_glu), LAYERS - 1);
    assert_eq!(layers.plan(2).norms.len(), 2 * LAYERS + 1);
}

//! Layers of a decoded token: how many phases they take, and that nodes which are computed together, or by every thread for itself, leave the bits that they leave one by
//! one.

use super::*;
use crate::alloc::{GraphAllocator, Order, Step};
use crate::graph::Unary;

/// What is unusual about the layers.
#[derive(Clone, Copy, Default, Debug)]
struct Form {
    /// The product comes first in sums.
    product_first: bool,
    /// Gate and up are matrices of experts.
    experts: bool,
    /// Norms are read by others, too.
    read_norms: bool,
    /// Products of the heads have biases.
    biases: bool,
    /// Gate and up are of different types.
    two_types: bool,
    /// Each result has memory of its own.
    apart: bool,
}

/// Layers as llama's, with two sums in place of attention.
struct Layers {
    graph: Graph,
    memory: MemoryMap,
    x: TensorId,
    /// The last sum, which only the last norm reads.
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
        // Not an input, so that sums may take its place.
        let mut h = g.scale(x, 2.0, 0.0).unwrap();
        let sum = |g: &mut Graph, h: TensorId, product: TensorId| match form.product_first {
            true => g.add(product, h).unwrap(),
            false => g.add(h, product).unwrap(),
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

    /// Weights in memory that nobody writes, results where the allocator has them or `apart`.
    fn place(g: &mut Graph, weights: Weights, apart: bool) -> MemoryMap {
        let cpu = device("cpu").unwrap().buffer_type();
        let mut memory = MemoryMap::default();
        let mut held = cpu.allocate(weights.bytes.len()).unwrap();
        held.write(0, &weights.bytes).unwrap();
        let buffer = memory.insert(Arc::<dyn Buffer>::from(held), Usage::Weights);
        for (id, offset) in weights.tensors {
            let tensor = g.tensor_mut(id);
            (tensor.home, tensor.flags.input) = (Some(Home { buffer, offset }), false);
        }
        let leafs: Vec<TensorId> = g.leafs().iter().copied().filter(|&id| g.home(id).is_none()).collect();
        let nodes = g.nodes().to_vec();
        if apart {
            for id in leafs.into_iter().chain(nodes) {
                if g.tensor(id).view.is_none() {
                    let buffer = memory.insert(cpu.allocate(g.tensor(id).nbytes()).unwrap(), Usage::Any);
                    g.tensor_mut(id).home = Some(Home { buffer, offset: 0 });
                }
            }
        } else {
            let steps: Vec<Step> = nodes.into_iter().map(Step::Compute).collect();
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

    /// Nodes that are computed together with the next ones.
    fn n_fused(&self, is_such: impl Fn(&Fusion) -> bool) -> usize {
        let plan = self.plan(2);
        plan.nodes
            .iter()
            .filter(|node| node.fusion.as_ref().is_some_and(&is_such))
            .count()
    }

    /// The result of computing the nodes in one go or one by one.
    fn run(&mut self, together: bool, n_threads: usize) -> Vec<u8> {
        let floats: Vec<f32> = (0..self.graph.tensor(self.x).nelements())
            .map(|i| (i * i % 97) as f32 / 97.0 - 0.4)
            .collect();
        self.write(self.x, bytemuck::cast_slice(&floats));
        let params = BackendParams {
            precision: Precision::Fast,
            thread_pool: Some(Arc::new(ThreadPool::on_as_many_cores(n_threads))),
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

fn is_product_add(fusion: &Fusion) -> bool {
    matches!(fusion, Fusion::ProductAdd { .. })
}

fn is_glu(fusion: &Fusion) -> bool {
    matches!(fusion, Fusion::ProductsGlu { .. })
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

/// Products of a norm, what stands for attention, and products with their sums or gates.
#[test]
fn a_layer_of_few_tokens_takes_five_phases() {
    for n in [1, 3, 8] {
        for form in forms() {
            let case = format!("{n} tokens, {form:?}");
            let layers = Layers::new(n, form);
            let plan = layers.plan(2);
            let (n_norms, n_phases) = match form.read_norms {
                false => (2 * LAYERS + 1, 5 * LAYERS + 2),
                true => (0, 7 * LAYERS + 2),
            };
            assert_eq!(plan.norms.len(), n_norms, "{case}");
            assert_eq!(plan.phases.len(), n_phases, "{case}");
            let n_sums = if form.biases { 3 } else { 2 };
            assert_eq!(layers.n_fused(is_product_add), n_sums * LAYERS, "{case}");
            assert_eq!(layers.n_fused(is_glu), LAYERS, "{case}");
        }
    }
}

/// More than every thread quantizes for itself.
#[test]
fn layers_of_many_tokens_have_their_norms_computed_once() {
    let layers = Layers::new(40, Form::default());
    assert_eq!(layers.plan(2).norms.len(), 0);
    assert_eq!(layers.n_fused(is_product_add), 0);
}

#[test]
fn layers_leave_the_same_bits_together_and_one_by_one() {
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
fn pieces_of_fused_products_that_are_taken_over_leave_the_same_bits() {
    for n in [1, 3] {
        for form in forms() {
            let want = Layers::new(n, form).run(false, 1);
            let mut layers = Layers::new(n, form);
            for n_threads in [2, 3] {
                let before = stalls::n_taken_over();
                stalls::every(7, || {
                    for _ in 0..4 {
                        let got = layers.run(true, n_threads);
                        assert!(got == want, "{n} tokens, {form:?}, {n_threads} threads");
                    }
                });
                assert!(
                    stalls::n_taken_over() > before,
                    "{n} tokens, {form:?}: nothing was taken over"
                );
            }
        }
    }
}

/// A sum that nothing but a norm reads, in whose memory products are stored: other threads may still be reading it.
#[test]
fn a_norm_is_stored_where_products_overwrite_what_it_is_made_of() {
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
    let room = cpu.allocate(8 * 4 * HIDDEN).unwrap();
    layers.memory.replace(sum.buffer, room);
    layers.graph.tensor_mut(result).home = Some(Home { offset: 512, ..sum });
    assert_eq!(layers.plan(2).norms.len(), n_norms - 1);
    for n_threads in 1..=4 {
        assert!(layers.run(true, n_threads) == want, "{n_threads} threads");
    }
}

/// What threads quantize yet while others store sums: the activations of a product.
#[test]
fn a_product_is_stored_where_its_sum_overwrites_its_activations() {
    let form = Form {
        apart: true,
        ..Form::default()
    };
    let mut layers = Layers::new(1, form);
    let want = layers.run(false, 1);
    let n_sums = layers.n_fused(is_product_add);
    let (sum, glu) = (layers.last_sum, layers.glus[LAYERS - 1]);
    layers.graph.tensor_mut(sum).home = layers.graph.home(glu);
    assert_eq!(layers.n_fused(is_product_add), n_sums - 1);
    for n_threads in 1..=4 {
        assert!(layers.run(true, n_threads) == want, "{n_threads} threads");
    }
}

/// The same where threads compute a norm: of what it is made.
#[test]
fn gated_products_are_apart_where_they_overwrite_what_their_norm_is_made_of() {
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
    let room = device("cpu").unwrap().buffer_type().allocate(4 * HIDDEN).unwrap();
    layers.memory.replace(sum.buffer, room);
    layers.graph.tensor_mut(glu).home = Some(sum);
    assert_eq!(layers.n_fused(is_glu), LAYERS - 1);
    assert_eq!(layers.plan(2).norms.len(), 2 * LAYERS + 1);
}

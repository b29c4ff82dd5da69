//! Runs a case on a device.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use engine::backend::{BackendError, BackendParams, Device, MemoryMap, Stored, Usage};
use engine::graph::{BufferSlice, Graph, TensorId, contiguous_strides};
use engine::random::SplitMix64;
use kernels::GgmlType;

use super::case::{Case, Data, Layout, Operand};
use crate::once::compute;

/// A case on a device, with memory filled and ready to compute.
pub struct Prepared {
    device: Arc<dyn Device>,
    pub graph: Graph,
    pub memory: MemoryMap,
    pub node: TensorId,
}

impl Prepared {
    /// Builds the graph and fills the operands. With `in_place`, the result overwrites the first operand.
    pub fn new(case: &Case, device: Arc<dyn Device>, in_place: bool) -> Prepared {
        let mut graph = Graph::new();
        let mut memory = MemoryMap::default();
        let mut src: Vec<TensorId> = Vec::new();
        for (operand, seed) in case.operands.iter().zip(1..) {
            let placed = match operand.layout {
                Layout::FirstOf(i) => {
                    let nb = graph.tensor(src[i]).nb;
                    graph.view(src[i], operand.ne, nb, 0).unwrap()
                }
                _ => place(operand, seed, &mut graph, &mut memory, &*device),
            };
            src.push(placed);
        }
        let node = case.build(&mut graph, &src);
        let home = if in_place {
            graph.home(src[0]).unwrap()
        } else {
            new_home(&mut memory, &*device, graph.tensor(node).nbytes())
        };
        if graph.tensor(node).view.is_none() {
            graph.tensor_mut(node).home = Some(home);
        }
        graph.expand(node);
        assert!(
            device.supports_op(&graph, node, &memory),
            "{} does not support {case:?}",
            device.name()
        );
        Prepared {
            device,
            graph,
            memory,
            node,
        }
    }

    /// Returns true if the result may overwrite the first operand.
    pub fn can_run_in_place(&self) -> bool {
        let node = self.graph.tensor(self.node);
        let first = self.graph.tensor(node.source(0));
        node.op.can_run_in_place() && first.ne == node.ne && first.nb == node.nb && first.ty == node.ty
    }

    /// Computes with `n_threads` threads and exact matmuls, and returns the result as floats.
    pub fn compute(&mut self, n_threads: usize) -> Result<Vec<f32>, BackendError> {
        self.compute_with(&BackendParams::new(n_threads))
    }

    /// Computes on a backend with these settings and returns the result as floats.
    pub fn compute_with(&mut self, params: &BackendParams) -> Result<Vec<f32>, BackendError> {
        let mut backend = self.device.clone().backend(params)?;
        compute(&mut *backend, &self.graph, self.graph.nodes(), &mut self.memory)?;
        backend.synchronize()?;
        Ok(self.result())
    }

    /// Returns the elements of the result, followed by the updated states of a stateful op.
    fn result(&self) -> Vec<f32> {
        let node = self.graph.tensor(self.node);
        let mut out = self.elements(self.node);
        if let Some(i) = node.op.state_operand() {
            out.extend(self.elements(node.source(i)));
        }
        out
    }

    fn elements(&self, id: TensorId) -> Vec<f32> {
        let t = self.graph.tensor(id);
        let home = self.graph.home(id).unwrap();
        let mut bytes = vec![0; t.nbytes()];
        self.memory.read(home, &mut bytes).unwrap();
        if t.ty == GgmlType::I32 {
            return bytes
                .chunks_exact(4)
                .map(|b| i32::from_le_bytes(b.try_into().unwrap()) as f32)
                .collect();
        }
        let mut out = vec![0.0; t.nelements()];
        assert!(t.is_contiguous());
        kernels::dequantize_row(t.ty, &bytes, &mut out);
        out
    }
}

fn new_home(memory: &mut MemoryMap, device: &dyn Device, bytes: usize) -> BufferSlice {
    let mut buffer = device.buffer_type().allocate(bytes).unwrap();
    // Initialize with NaN, so that elements which the op does not write show up as differences.
    buffer.write(0, &vec![0xff; bytes]).unwrap();
    BufferSlice {
        buffer: memory.insert(buffer, Usage::Any),
        offset: 0,
    }
}

/// Stores an operand and returns its tensor, a view if it is not contiguous.
fn place(o: &Operand, seed: u64, g: &mut Graph, memory: &mut MemoryMap, device: &dyn Device) -> TensorId {
    let block = o.ty.block_size();
    let (stored, offset) = match o.layout {
        Layout::Dense | Layout::AsWeights => (o.ne, [0; 4]),
        Layout::Permuted(order) => (order.map(|d| o.ne[d]), [0; 4]),
        Layout::FirstOf(_) => unreachable!("a view has no memory of its own"),
        Layout::Part(margin) => {
            let margins = [margin * 32.max(block), margin, margin, margin];
            (std::array::from_fn(|d| o.ne[d] + 2 * margins[d]), margins)
        }
    };
    let leaf = g.input(o.ty, stored, "operand");
    let bytes = contents(o, stored.iter().product(), seed);
    if let Layout::AsWeights = o.layout {
        let (home, layout) = store_as_weights(o, &bytes, memory, device);
        g.tensor_mut(leaf).home = Some(home);
        g.tensor_mut(leaf).layout = layout;
        return leaf;
    }
    let home = new_home(memory, device, bytes.len());
    memory.write(home, &bytes).unwrap();
    g.tensor_mut(leaf).home = Some(home);
    match o.layout {
        Layout::Dense | Layout::AsWeights | Layout::FirstOf(_) => leaf,
        Layout::Permuted(order) => g.permute(leaf, order).unwrap(),
        Layout::Part(_) => {
            let nb = contiguous_strides(o.ty, stored);
            let start = offset[0] / block * nb[0] + (1..4).map(|d| offset[d] * nb[d]).sum::<usize>();
            g.view(leaf, o.ne, nb, start).unwrap()
        }
    }
}

/// Stores a weight in the device's preferred layout.
fn store_as_weights(
    o: &Operand,
    bytes: &[u8],
    memory: &mut MemoryMap,
    device: &dyn Device,
) -> (BufferSlice, engine::graph::Layout) {
    let mut places = device.weight_storage().into_iter();
    let place = places.find(|place| place.layout.accepts(o.ty, o.ne)).unwrap();
    let tensor = Stored {
        ty: o.ty,
        ne: o.ne,
        layout: place.layout,
        offset: 0,
    };
    let mut buffer = place.buffer_type.allocate(tensor.nbytes()).unwrap();
    buffer.set_tensor(&tensor, 0..tensor.n_rows(), bytes).unwrap();
    let home = BufferSlice {
        buffer: memory.insert(buffer, Usage::Weights),
        offset: 0,
    };
    (home, place.layout)
}

/// Contents of an operand with their type, number of elements, origin, and seed.
type Known = (GgmlType, usize, Data, u64, Rc<[u8]>);

/// Number of contents to keep: more than a case has operands.
const MAX_KNOWN: usize = 16;

/// Returns the bytes of `n` elements. A case runs several times, and quantizing its operands takes longer than most
/// ops, so the last contents are kept.
fn contents(o: &Operand, n: usize, seed: u64) -> Rc<[u8]> {
    thread_local! {
        static KNOWN: RefCell<VecDeque<Known>> = const { RefCell::new(VecDeque::new()) };
    }
    KNOWN.with_borrow_mut(|known| {
        let is_same = |k: &&Known| (k.0, k.1, k.3) == (o.ty, n, seed) && k.2 == o.data;
        if let Some((.., bytes)) = known.iter().find(is_same) {
            return bytes.clone();
        }
        let bytes: Rc<[u8]> = new_contents(o, n, &mut SplitMix64(seed)).into();
        known.truncate(MAX_KNOWN - 1);
        known.push_front((o.ty, n, o.data.clone(), seed, bytes.clone()));
        bytes
    })
}

fn new_contents(o: &Operand, n: usize, random: &mut SplitMix64) -> Vec<u8> {
    let ints = |values: &mut dyn FnMut() -> i64| -> Vec<u8> {
        let all = (0..n).map(|_| values());
        match o.ty {
            GgmlType::I32 => all.flat_map(|x| i32::try_from(x).unwrap().to_le_bytes()).collect(),
            _ => all.flat_map(i64::to_le_bytes).collect(),
        }
    };
    match &o.data {
        Data::Uniform(low, high) => float_contents(o.ty, n, *low, *high, random),
        Data::Below(limit) => ints(&mut || random.below(*limit) as i64),
        Data::Distinct(limit) => {
            let mut all: Vec<i64> = (0..*limit as i64).collect();
            ints(&mut || all.swap_remove(random.below(all.len())))
        }
        Data::Ints(values) => {
            let mut values = values.iter().copied();
            ints(&mut || values.next().unwrap())
        }
    }
}

fn float_contents(ty: GgmlType, n: usize, low: f32, high: f32, random: &mut SplitMix64) -> Vec<u8> {
    let mut bytes = vec![0; ty.row_bytes(n).unwrap()];
    if kernels::can_quantize(ty) {
        let floats: Vec<f32> = (0..n).map(|_| random.uniform(low, high)).collect();
        kernels::quantize_row(ty, &floats, &mut bytes);
        return bytes;
    }
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        random_block(ty, block, random);
    }
    bytes
}

/// Fills a block of a type without a quantizer. Any bytes are valid, but most give huge, tiny, or NaN scales.
/// Bytes are therefore drawn until the largest element has an ordinary magnitude.
fn random_block(ty: GgmlType, block: &mut [u8], random: &mut SplitMix64) {
    let mut elements = vec![0.0; ty.block_size()];
    for _ in 0..100_000 {
        block.iter_mut().for_each(|b| *b = random.next_u64() as u8);
        kernels::dequantize_row(ty, block, &mut elements);
        let largest = elements.iter().map(|x| x.abs()).fold(0.0, f32::max);
        if elements.iter().all(|x| x.is_finite()) && (0.1..=8.0).contains(&largest) {
            return;
        }
    }
    panic!("{ty}: found no block with ordinary values");
}

/// Returns all devices to compare with the reference. With `LLAMA_CUDA=here`, returns only GPUs, since
/// another run covers the other devices.
pub fn devices_under_test() -> Vec<Arc<dyn Device>> {
    let only_gpus = std::env::var_os("LLAMA_CUDA").is_some_and(|value| value == "here");
    let found: Vec<_> = engine::backend::devices()
        .into_iter()
        .filter(|d| d.name() != "reference" && (!only_gpus || d.name().starts_with("cuda")))
        .collect();
    assert!(!found.is_empty(), "no device to test was found");
    found
}

//! Weights in repacked layouts: round trips, and which ops may read them.

use std::sync::Arc;

use crate::once::compute;
use engine::backend::reference::ReferenceDevice;
use engine::backend::{BackendError, BackendParams, Device, MemoryMap, Stored, Usage, WeightStorage, device};
use engine::graph::{BufferSlice, Flags, Graph, Layout, Name, Tensor, TensorId, dense_bytes};
use engine::sched::{SchedError, SchedParams, Scheduler};
use kernels::GgmlType::{self, F32, I32, Q4_0, Q8_0};

/// Returns a device that stores rows interleaved in groups of four, and that layout.
fn interleaving() -> (Arc<dyn Device>, Layout) {
    let device = ReferenceDevice::interleaving(1 << 24);
    let [WeightStorage { layout, .. }, last] = &device.weight_storage()[..] else {
        panic!("expected two storage options, best first");
    };
    assert!(!layout.is_plain() && last.layout.is_plain());
    let layout = *layout;
    (Arc::new(device), layout)
}

fn bytes(n: usize) -> Vec<u8> {
    (0..n as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 15) as u8)
        .collect()
}

fn stored(ty: GgmlType, ne: [usize; 4], layout: Layout) -> Stored {
    Stored {
        ty,
        ne,
        layout,
        offset: 64,
    }
}

/// Tensors that are stored in chunks of rows are read back unchanged, whole or in chunks, from host and device memory.
#[test]
fn stored_tensors_round_trip() {
    let (device_, interleaved) = interleaving();
    for (ty, ne) in [
        (F32, [5, 8, 1, 1]),
        (F32, [2, 4, 3, 2]),
        (Q4_0, [64, 12, 1, 1]),
        (Q4_0, [96, 4, 5, 1]),
    ] {
        for layout in [Layout::Plain, interleaved] {
            for buffer_type in [device("cpu").unwrap().buffer_type(), device_.buffer_type()] {
                let tensor = stored(ty, ne, layout);
                let data = bytes(dense_bytes(ty, ne, Layout::Plain));
                let row = data.len() / tensor.n_rows();
                let size = dense_bytes(ty, ne, layout);
                let mut buffer = buffer_type.allocate(64 + size + 64).unwrap();
                for first in (0..tensor.n_rows()).step_by(4) {
                    let rows = first..first + 4;
                    let part = &data[first * row..][..4 * row];
                    buffer.set_tensor(&tensor, rows, part).unwrap();
                }
                let mut all = vec![0; data.len()];
                buffer.get_tensor(&tensor, 0..tensor.n_rows(), &mut all).unwrap();
                assert!(all == data, "{ty} {ne:?} {layout:?}");
                let mut last = vec![0; 4 * row];
                let n = tensor.n_rows();
                buffer.get_tensor(&tensor, n - 4..n, &mut last).unwrap();
                assert!(last == data[(n - 4) * row..], "{ty} {ne:?} {layout:?}");
                let mut raw = vec![0; 64 + size + 64];
                buffer.read(0, &mut raw).unwrap();
                assert_eq!(raw[64..64 + size] == data, layout.is_plain(), "{ty} {ne:?} {layout:?}");
                assert!(raw[..64].iter().chain(&raw[64 + size..]).all(|&b| b == 0));
            }
        }
    }
}

#[test]
fn incomplete_row_groups_are_rejected() {
    let (_, interleaved) = interleaving();
    let mut buffer = device("cpu").unwrap().buffer_type().allocate(64 + 8 * 16).unwrap();
    let data = bytes(8 * 16);
    let plain = stored(F32, [4, 8, 1, 1], Layout::Plain);
    let packed = stored(F32, [4, 8, 1, 1], interleaved);
    buffer.set_tensor(&plain, 3..5, &data[..32]).unwrap();
    buffer.set_tensor(&packed, 4..8, &data[..64]).unwrap();
    for (tensor, rows, n) in [
        (&packed, 3..7, 64),
        (&packed, 0..6, 96),
        (&packed, 4..12, 128),
        (&packed, 0..4, 63),
        (&plain, 7..9, 32),
        (&plain, 0..2, 31),
        (&stored(F32, [4, 6, 1, 1], interleaved), 0..4, 64),
        (&stored(Q8_0, [32, 4, 1, 1], interleaved), 0..4, 4 * 34),
    ] {
        let result = buffer.set_tensor(tensor, rows.clone(), &data[..n.min(data.len())]);
        assert!(matches!(result, Err(BackendError::Rows { .. })), "{tensor:?} {rows:?}");
        let mut out = vec![0; n];
        let result = buffer.get_tensor(tensor, rows.clone(), &mut out);
        assert!(matches!(result, Err(BackendError::Rows { .. })), "{tensor:?} {rows:?}");
    }
    for layout in [Layout::Plain, interleaved] {
        for offset in [65, usize::MAX - 31] {
            let beyond = Stored {
                offset,
                layout,
                ..plain
            };
            assert!(buffer.set_tensor(&beyond, 0..8, &data).is_err(), "{layout:?} {offset}");
            assert!(
                buffer.get_tensor(&beyond, 0..8, &mut [0; 128]).is_err(),
                "{layout:?} {offset}"
            );
        }
    }
}

/// A graph with a matmul and other ops on an `[8, 8]` matrix on the device.
struct Lab {
    device: Arc<dyn Device>,
    graph: Graph,
    memory: MemoryMap,
    matrix: TensorId,
}

impl Lab {
    fn new(layout: Layout, device: Arc<dyn Device>) -> Lab {
        let tensor = Stored {
            offset: 0,
            ..stored(F32, [8, 8, 1, 1], layout)
        };
        let mut buffer = device.buffer_type().allocate(256).unwrap();
        let floats: Vec<f32> = (0..64).map(|i| (i * i % 23) as f32 - 9.0).collect();
        buffer.set_tensor(&tensor, 0..8, bytemuck::cast_slice(&floats)).unwrap();
        let mut memory = MemoryMap::default();
        let home = BufferSlice {
            buffer: memory.insert(buffer, Usage::Weights),
            offset: 0,
        };
        let mut graph = Graph::new();
        let flags = Flags {
            weight: true,
            ..Flags::default()
        };
        let matrix = graph.external(tensor.ty, tensor.ne, Name::default(), home, flags);
        graph.tensor_mut(matrix).layout = layout;
        Lab {
            device,
            graph,
            memory,
            matrix,
        }
    }

    /// Places an operand or result in its own buffer.
    fn place(&mut self, id: TensorId, data: &[u8]) {
        let mut buffer = self
            .device
            .buffer_type()
            .allocate(self.graph.tensor(id).nbytes())
            .unwrap();
        buffer.write(0, data).unwrap();
        let home = BufferSlice {
            buffer: self.memory.insert(buffer, Usage::Any),
            offset: 0,
        };
        self.graph.tensor_mut(id).home = Some(home);
    }

    fn input(&mut self, ty: GgmlType, ne: [usize; 4]) -> TensorId {
        let id = self.graph.input(ty, ne, "x");
        let n = self.graph.tensor(id).nbytes();
        self.place(
            id,
            &bytemuck::cast_slice::<f32, u8>(&(0..n / 4).map(|i| i as f32 / 8.0).collect::<Vec<_>>())[..n],
        );
        id
    }

    fn supports(&self, node: TensorId) -> bool {
        self.device.supports_op(&self.graph, node, &self.memory)
    }

    fn compute(&mut self, node: TensorId) -> Result<Vec<u8>, BackendError> {
        if self.graph.tensor(node).home.is_none() {
            self.place(node, &[]);
        }
        let params = BackendParams::new(1);
        let mut backend = self.device.clone().backend(&params)?;
        compute(&mut *backend, &self.graph, &[node], &mut self.memory)?;
        let mut out = vec![0; self.graph.tensor(node).nbytes()];
        self.memory.read(self.graph.home(node).unwrap(), &mut out)?;
        Ok(out)
    }
}

#[test]
fn only_matmul_and_get_rows_support_repacked_weights() {
    let (device_, interleaved) = interleaving();
    let product = |layout| {
        let mut lab = Lab::new(layout, device_.clone());
        let x = lab.input(F32, [8, 3, 1, 1]);
        let y = lab.graph.mul_mat(lab.matrix, x).unwrap();
        assert!(lab.supports(y));
        lab.compute(y).unwrap()
    };
    assert_eq!(product(interleaved), product(Layout::Plain));
    let look_up = |layout| {
        let mut lab = Lab::new(layout, device_.clone());
        let ids = lab.graph.input(I32, [3, 1, 1, 1], "ids");
        lab.place(ids, bytemuck::cast_slice(&[6i32, 0, 3]));
        let y = lab.graph.get_rows(lab.matrix, ids).unwrap();
        assert!(lab.supports(y));
        lab.compute(y).unwrap()
    };
    assert_eq!(look_up(interleaved), look_up(Layout::Plain));

    let mut lab = Lab::new(interleaved, device_.clone());
    let x = lab.input(F32, [8, 8, 1, 1]);
    let (matrix, g) = (lab.matrix, &mut lab.graph);
    let half = g.view(matrix, [8, 4, 1, 1], [4, 32, 128, 128], 128).unwrap();
    let whole = g.reshape(matrix, [8, 8, 1, 1]).unwrap();
    let others = [
        g.add(x, matrix).unwrap(),
        g.add(matrix, x).unwrap(),
        g.mul_mat(x, matrix).unwrap(),
        g.mul_mat(half, x).unwrap(),
        g.mul_mat(whole, x).unwrap(),
        g.cont(matrix, [64, 1, 1, 1]).unwrap(),
    ];
    for node in others {
        assert!(!lab.supports(node), "{:?}", lab.graph.tensor(node));
        assert!(matches!(lab.compute(node), Err(BackendError::Unsupported { .. })));
    }
}

#[test]
fn device_rejects_unknown_layout() {
    let (_, interleaved) = interleaving();
    let mut lab = Lab::new(interleaved, device("cpu").unwrap());
    let x = lab.input(F32, [8, 3, 1, 1]);
    let y = lab.graph.mul_mat(lab.matrix, x).unwrap();
    assert!(!lab.supports(y));
    assert!(matches!(lab.compute(y), Err(BackendError::Unsupported { .. })));
}

/// The scheduler assigns a matmul to the device that supports the layout, and reports an op that no device
/// supports.
#[test]
fn ops_are_assigned_to_device_that_reads_layout() {
    let (device_, interleaved) = interleaving();
    let run = |op: fn(&mut Graph, TensorId, TensorId) -> TensorId| {
        let Lab {
            mut graph,
            memory,
            matrix,
            device,
        } = Lab::new(interleaved, device_.clone());
        let params = BackendParams::new(1);
        let backends = [device, engine::backend::device("cpu").unwrap()].map(|d| d.backend(&params).unwrap());
        let mut sched = Scheduler::new(backends.into(), memory, SchedParams::default()).unwrap();
        let x = graph.input(F32, [8, 8, 1, 1], "x");
        let y = op(&mut graph, matrix, x);
        graph.tensor_mut(y).flags.output = true;
        graph.expand(y);
        sched.alloc_graph(&mut graph)?;
        Ok::<_, SchedError>(sched.backend_of(y).unwrap())
    };
    assert_eq!(
        run(|g, w, x| g.mul_mat(w, x).unwrap()).unwrap(),
        engine::sched::BackendId(0)
    );
    let error = run(|g, w, x| g.add(x, w).unwrap()).unwrap_err();
    assert!(error.to_string().contains("no backend supports add"), "{error}");
}

#[test]
fn sizes_follow_layout_or_are_rejected() {
    let (_, interleaved) = interleaving();
    let tensor = |ne, layout| Tensor {
        layout,
        ..Tensor::new(F32, ne, Name::default())
    };
    assert_eq!(tensor([8, 8, 2, 1], interleaved).checked_nbytes(), Some(512));
    assert_eq!(tensor([8, 6, 1, 1], interleaved).checked_nbytes(), None);
    for layout in [Layout::Plain, interleaved] {
        let huge = tensor([1 << 32, 1 << 32, 4, 4], layout);
        assert_eq!((huge.checked_nbytes(), huge.nbytes()), (None, usize::MAX));
        assert_eq!(tensor([1 << 40, 0, 4, 4], layout).nbytes(), 0);
    }
}

//! Guarantees for safe code: no access outside a tensor's memory, no writes to shared memory, and no
//! computation in released memory. The compile-time guarantees are documented and tested at `Buffer`,
//! `MemoryMap`, and `Backend`.
#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::once::compute;
use engine::backend::{BackendError, BackendParams, Buffer, Device, MemoryMap, Stored, Usage, device, devices};
use engine::graph::{BufferId, BufferSlice, Flags, Graph, Layout, Name, Op, Recurrence, Tensor, TensorId};
use engine::sched::{SchedError, SchedParams, Scheduler};
use kernels::GgmlType::{F32, I32};

const N: usize = 16;
const BYTES: usize = 4 * N;

fn params() -> BackendParams {
    BackendParams::new(2)
}

/// Returns a buffer of floats that are all `value`.
fn filled(device: &dyn Device, value: f32) -> Box<dyn Buffer> {
    let mut buffer = device.buffer_type().allocate(BYTES).unwrap();
    buffer.write(0, bytemuck::cast_slice(&[value; N])).unwrap();
    buffer
}

fn floats(buffer: &dyn Buffer) -> Vec<f32> {
    let mut out = vec![0f32; buffer.size() / 4];
    buffer.read(0, bytemuck::cast_slice_mut(&mut out)).unwrap();
    out
}

fn external(g: &mut Graph, home: BufferSlice) -> TensorId {
    g.external(F32, [N, 1, 1, 1], Name::default(), home, Flags::default())
}

fn start_of(buffer: BufferId) -> BufferSlice {
    BufferSlice { buffer, offset: 0 }
}

/// Computes `2 x` from one location to another.
fn double(
    device: &Arc<dyn Device>,
    memory: &mut MemoryMap,
    from: BufferSlice,
    to: BufferSlice,
) -> Result<(), BackendError> {
    let mut g = Graph::new();
    let x = external(&mut g, from);
    let y = g.scale(x, 2.0, 0.0).unwrap();
    g.tensor_mut(y).home = Some(to);
    compute(&mut *device.clone().backend(&params())?, &g, &[y], memory)
}

/// Invalid offsets: one that wraps around to an address before the buffer when a length is added, and some
/// past the end.
const BEYOND: [usize; 4] = [usize::MAX - 31, usize::MAX - BYTES + 1, BYTES, 4];

#[test]
fn copy_past_buffer_end_is_rejected() {
    for (from_device, to_device) in [("cpu", "cpu"), ("cpu", "reference"), ("reference", "cpu")] {
        let (from_device, to_device) = (device(from_device).unwrap(), device(to_device).unwrap());
        let mut memory = MemoryMap::default();
        let secret = memory.insert(filled(&*from_device, 7.0), Usage::Any);
        let from = memory.insert(filled(&*from_device, 1.0), Usage::Any);
        let to = memory.insert(filled(&*to_device, 2.0), Usage::Any);
        for offset in BEYOND {
            for (from_offset, to_offset) in [(offset, 0), (0, offset), (offset, offset)] {
                let from = BufferSlice {
                    buffer: from,
                    offset: from_offset,
                };
                let to = BufferSlice {
                    buffer: to,
                    offset: to_offset,
                };
                let copied = memory.copy(from, to, BYTES, &mut Vec::new());
                assert!(matches!(copied, Err(BackendError::OutOfBounds { .. })), "{offset}");
            }
        }
        assert_eq!(floats(memory.get(secret).unwrap()), [7.0; N]);
        assert_eq!(floats(memory.get(to).unwrap()), [2.0; N]);
        memory
            .copy(start_of(from), start_of(to), BYTES, &mut Vec::new())
            .unwrap();
        assert_eq!(floats(memory.get(to).unwrap()), [1.0; N]);
    }
}

/// The scheduler copies a CPU weight to the other device. The copy must not include bytes of an adjacent
/// buffer.
#[test]
fn scheduled_copy_past_buffer_end_is_rejected() {
    let cpu = device("cpu").unwrap();
    for offset in BEYOND {
        let backends = ["reference", "cpu"].map(|name| device(name).unwrap().backend(&params()).unwrap());
        let mut sched = Scheduler::new(backends.into(), MemoryMap::default(), SchedParams::default()).unwrap();
        let buffer = sched.register_buffer(filled(&*cpu, 1.0), Usage::Any);
        let mut g = Graph::new();
        let x = external(&mut g, BufferSlice { buffer, offset });
        let y = g.scale(x, 2.0, 0.0).unwrap();
        g.tensor_mut(y).flags.output = true;
        g.expand(y);
        sched.set_backend(y, engine::sched::BackendId(0)).unwrap();
        sched.alloc_graph(&mut g).unwrap();
        let error = sched.compute(&g).unwrap_err();
        assert!(
            matches!(error, SchedError::Backend(BackendError::OutOfBounds { .. })),
            "{error}"
        );
        let mut out = [0; BYTES];
        assert!(sched.read_tensor(&g, x, 0, &mut out).is_err());
        assert!(sched.write_tensor(&g, x, 0, &out).is_err());
    }
}

#[test]
fn host_range_is_returned_only_within_bounds() {
    let mut memory = MemoryMap::default();
    let id = memory.insert(filled(&*device("cpu").unwrap(), 1.0), Usage::Any);
    let range = memory.host_range(start_of(id), BYTES).unwrap().unwrap();
    assert!(range.writable && range.len == BYTES);
    for offset in BEYOND {
        let home = BufferSlice { buffer: id, offset };
        assert!(memory.host_range(home, BYTES).is_err());
        assert!(memory.read(home, &mut [0; BYTES]).is_err());
        assert!(memory.write(home, &[0; BYTES]).is_err());
    }
    let elsewhere = memory.insert(filled(&*device("reference").unwrap(), 1.0), Usage::Any);
    assert!(memory.host_range(start_of(elsewhere), BYTES).unwrap().is_none());
}

#[test]
fn shared_buffers_are_read_and_never_written() {
    for device in devices() {
        let shared: Arc<dyn Buffer> = Arc::from(filled(&*device, 1.0));
        let mut maps = [MemoryMap::default(), MemoryMap::default()];
        for memory in &mut maps {
            let weights = memory.insert(shared.clone(), Usage::Weights);
            let own = memory.insert(filled(&*device, 0.0), Usage::Any);
            let written = [
                memory.write(start_of(weights), &[1]),
                memory.copy(start_of(own), start_of(weights), BYTES, &mut Vec::new()),
                double(&device, memory, start_of(own), start_of(weights)),
            ];
            for result in written {
                let error = result.unwrap_err().to_string();
                assert!(error.contains("read-only"), "{}: {error}", device.name());
            }
            assert!(
                !memory
                    .host_range(start_of(weights), 1)
                    .unwrap()
                    .is_some_and(|r| r.writable)
            );
            double(&device, memory, start_of(weights), start_of(own)).unwrap();
            assert_eq!(floats(memory.get(own).unwrap()), [2.0; N]);
        }
        assert_eq!(floats(&*shared), [1.0; N]);
    }
}

/// A recurrence writes to an operand, which must therefore be writable.
#[test]
fn states_in_shared_or_overlapping_memory_are_rejected() {
    for device in devices() {
        let mut memory = MemoryMap::default();
        let shared = memory.insert(Arc::from(filled(&*device, 1.0)), Usage::Weights);
        let own = memory.insert(filled(&*device, 0.0), Usage::Any);
        let cells = memory.insert(filled(&*device, 0.0), Usage::Any);
        let out = memory.insert(filled(&*device, 0.0), Usage::Any);
        let mut compute = |states: BufferSlice, x: BufferSlice| {
            let mut g = Graph::new();
            let mut leaf = |ty, ne, home| g.external(ty, ne, Name::default(), home, Flags::default());
            let sources = [
                leaf(F32, [4, 2, 1, 1], states),
                leaf(I32, [1, 1, 1, 1], start_of(cells)),
                leaf(I32, [1, 1, 1, 1], start_of(cells)),
                leaf(F32, [4, 1, 1, 1], x),
            ];
            let mut node = Tensor::new(F32, [4, 1, 1, 1], Name::default());
            node.op = Op::Recur(Recurrence::TokenShift);
            node.home = Some(start_of(out));
            for (to, from) in node.src.iter_mut().zip(sources) {
                *to = Some(from);
            }
            let node = g.push(node);
            let mut backend = device.clone().backend(&params()).unwrap();
            crate::once::compute(&mut *backend, &g, &[node], &mut memory)
        };
        let elsewhere = BufferSlice {
            buffer: own,
            offset: 32,
        };
        compute(start_of(own), elsewhere).unwrap();
        let error = compute(start_of(shared), elsewhere).unwrap_err().to_string();
        assert!(error.contains("read-only"), "{}: {error}", device.name());
        if device.name() == "cpu" {
            let error = compute(
                start_of(own),
                BufferSlice {
                    buffer: own,
                    offset: 16,
                },
            )
            .unwrap_err()
            .to_string();
            assert!(error.contains("overlaps the states"), "{error}");
        }
    }
}

#[test]
fn released_buffers_are_rejected() {
    for device in devices() {
        let mut memory = MemoryMap::default();
        let (from, to) = (
            memory.insert(filled(&*device, 1.0), Usage::Any),
            memory.insert(filled(&*device, 0.0), Usage::Any),
        );
        let stamp = memory.stamp();
        double(&device, &mut memory, start_of(from), start_of(to)).unwrap();
        assert_eq!(memory.stamp(), stamp);
        // Replaces the buffer by a smaller one with the same id.
        memory.replace(from, device.buffer_type().allocate(8).unwrap());
        assert_ne!(memory.stamp(), stamp);
        assert!(double(&device, &mut memory, start_of(from), start_of(to)).is_err());
        memory.release(from);
        for missing in [from, BufferId(99)] {
            for (from, to) in [(missing, to), (to, missing)] {
                let (from, to) = (start_of(from), start_of(to));
                let failed = [
                    double(&device, &mut memory, from, to),
                    memory.copy(from, to, 4, &mut Vec::new()),
                ];
                for error in failed.map(Result::unwrap_err) {
                    assert!(matches!(error, BackendError::NoBuffer(_)), "{error}");
                }
            }
            assert!(memory.pair(missing, to).is_err() && memory.pair(to, missing).is_err());
        }
    }
}

/// The scheduler's memory can be replaced after a graph was prepared.
#[test]
fn prepared_graph_without_memory_is_rejected() {
    for name in ["cpu", "reference"] {
        let backends = vec![device(name).unwrap().backend(&params()).unwrap()];
        let mut sched = Scheduler::new(backends, MemoryMap::default(), SchedParams::default()).unwrap();
        let mut g = Graph::new();
        let x = g.input(F32, [N, 1, 1, 1], "x");
        let y = g.scale(x, 2.0, 0.0).unwrap();
        g.tensor_mut(y).flags.output = true;
        g.expand(y);
        sched.alloc_graph(&mut g).unwrap();
        sched.set_input(&g, x, &[0; BYTES]).unwrap();
        sched.compute(&g).unwrap();
        let own = std::mem::take(&mut sched.memory);
        assert!(sched.compute(&g).is_err());
        assert!(sched.set_input(&g, x, &[0; BYTES]).is_err());
        sched.memory = own;
        sched.compute(&g).unwrap();
    }
}

/// A view can place the result of a node past the end of the owner's buffer.
#[test]
fn view_past_buffer_end_is_rejected() {
    for device in devices() {
        let mut memory = MemoryMap::default();
        let id = memory.insert(filled(&*device, 1.0), Usage::Any);
        let to = memory.insert(filled(&*device, 0.0), Usage::Any);
        for offset in [usize::MAX - 15, 48, 1 << 40] {
            let mut g = Graph::new();
            let owner = external(&mut g, BufferSlice { buffer: id, offset: 16 });
            let x = external(&mut g, start_of(id));
            g.tensor_mut(x).home = None;
            g.tensor_mut(x).view = Some((owner, offset));
            let y = g.scale(x, 2.0, 0.0).unwrap();
            g.tensor_mut(y).home = Some(start_of(to));
            let mut backend = device.clone().backend(&params()).unwrap();
            let result = compute(&mut *backend, &g, &[y], &mut memory);
            assert!(result.is_err(), "{}: {offset}", device.name());
        }
    }
}

#[test]
fn upload_past_buffer_end_is_rejected() {
    for device in devices() {
        for offset in BEYOND {
            let mut upload = device.upload(filled(&*device, 1.0)).unwrap();
            let tensor = Stored {
                ty: F32,
                ne: [N, 1, 1, 1],
                layout: Layout::Plain,
                offset,
            };
            let written = upload.set_tensor(&tensor, 0..1, &[0; BYTES]);
            assert!(
                written.and_then(|()| upload.finish().map(|_| ())).is_err(),
                "{}: {offset}",
                device.name()
            );
        }
    }
}

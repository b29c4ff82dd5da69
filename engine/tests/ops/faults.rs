//! Invalid data and graphs must return errors and never cause out-of-bounds accesses.

use std::sync::Arc;

use engine::backend::{BackendError, BackendParams, Device, MemoryMap, Usage, device, devices};
use engine::graph::{BufferSlice, Graph, Name, Op, Recurrence, Tensor, TensorId};
use kernels::GgmlType::{F32, I32};

use super::case::{Case, floats, i32s, i64s};
use super::exec::Prepared;
use crate::once::compute;

/// Computes the case and returns the error message.
fn error_of(case: &Case, device: Arc<dyn Device>, n_threads: usize) -> String {
    Prepared::new(case, device, false)
        .compute(n_threads)
        .unwrap_err()
        .to_string()
}

#[test]
fn row_index_out_of_range_is_rejected() {
    for bad in [-1, 4, i64::from(i32::MAX), i64::from(i32::MIN)] {
        let get = Case::new(Op::GetRows, &[floats([8, 4, 1, 1]), i32s([0, bad, 1])]);
        let set = Case::new(
            Op::SetRows,
            &[floats([8, 3, 1, 1]), floats([8, 4, 1, 1]), i64s([0, bad, 1])],
        );
        let mut chosen = i32s([0, bad]);
        chosen.ne = [1, 2, 1, 1];
        let experts = Case::new(
            Op::MulMatId,
            &[floats([8, 3, 4, 1]), floats([8, 1, 2, 1]), chosen.clone()],
        );
        let bias = Case::new(Op::AddId, &[floats([8, 1, 2, 1]), floats([8, 4, 1, 1]), chosen]);
        let recur = Case::new(
            Op::Recur(Recurrence::ShortConv { dilation: 1 }),
            &[
                floats([16, 4, 1, 1]),
                i32s([-1, -1, 0]),
                i32s([0, bad, 1]),
                floats([8, 3, 1, 1]),
                floats([3, 8, 1, 1]),
            ],
        );
        for case in [get, set, experts, bias, recur] {
            for device in devices() {
                for n_threads in 1..=3 {
                    let error = error_of(&case, device.clone(), n_threads);
                    assert!(
                        error.contains(&format!("index {bad} is out of range for a table of 4 rows")),
                        "{}: {error}",
                        device.name()
                    );
                }
            }
        }
    }
}

/// Computes `a + a` with operands and result at the given offsets of a CPU buffer.
fn sum(size: usize, a: usize, b: usize, result: usize) -> Result<(), BackendError> {
    let cpu = device("cpu").unwrap();
    let mut memory = MemoryMap::default();
    let buffer = memory.insert(cpu.buffer_type().allocate(size).unwrap(), Usage::Any);
    let mut g = Graph::new();
    let at = |g: &mut Graph, id: TensorId, offset| g.tensor_mut(id).home = Some(BufferSlice { buffer, offset });
    let x = g.input(F32, [16, 1, 1, 1], "x");
    let y = g.input(F32, [16, 1, 1, 1], "y");
    let z = g.add(x, y).unwrap();
    at(&mut g, x, a);
    at(&mut g, y, b);
    at(&mut g, z, result);
    let mut backend = cpu.backend(&BackendParams::new(1))?;
    compute(&mut *backend, &g, &[z], &mut memory)
}

#[test]
fn results_do_not_overlap_operands() {
    sum(192, 0, 64, 128).unwrap();
    sum(128, 0, 64, 0).unwrap();
    sum(128, 0, 0, 64).unwrap();
    for (a, b, result) in [(0, 64, 64), (0, 0, 0), (0, 64, 32), (32, 96, 0)] {
        let error = sum(192, a, b, result).unwrap_err().to_string();
        assert!(error.contains("overlaps"), "{error}");
    }
}

#[test]
fn tensor_past_buffer_end_is_rejected() {
    for (a, b, result) in [
        (132, 0, 64),
        (0, 132, 64),
        (0, 64, 132),
        (usize::MAX, 0, 64),
        (0, 64, usize::MAX - 63),
    ] {
        let error = sum(192, a, b, result).unwrap_err().to_string();
        assert!(error.contains("beyond its buffer"), "{error}");
    }
    assert!(sum(256, 0, 64, 129).unwrap_err().to_string().contains("aligned"));
}

/// Computes `3 x` over floats of a file, `shift` bytes off their alignment, into other memory or over the
/// file itself.
fn thrice_from_file(shift: usize, into_file: bool) -> Result<Vec<f32>, BackendError> {
    let cpu = device("cpu").unwrap();
    let floats: Vec<u8> = (1..=16).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let mut bytes = vec![0u8; 128];
    // The vector may start anywhere, so the shift is relative to an aligned byte.
    let start = bytes.as_ptr().align_offset(4) + shift;
    bytes[start..start + 64].copy_from_slice(&floats);
    let mut memory = MemoryMap::default();
    let file = memory.insert(cpu.buffer_from_host(Arc::new(bytes)).unwrap(), Usage::Weights);
    let other = memory.insert(cpu.buffer_type().allocate(64).unwrap(), Usage::Compute);
    let mut g = Graph::new();
    let home = BufferSlice {
        buffer: file,
        offset: start,
    };
    let x = g.external(F32, [4, 4, 1, 1], Name::default(), home, Default::default());
    let y = g.scale(x, 3.0, 0.0).unwrap();
    let elsewhere = BufferSlice {
        buffer: other,
        offset: 0,
    };
    g.tensor_mut(y).home = Some(if into_file { home } else { elsewhere });
    let mut backend = cpu.backend(&BackendParams::new(2))?;
    compute(&mut *backend, &g, &[y], &mut memory)?;
    let mut out = vec![0; 64];
    memory.get(other)?.read(0, &mut out)?;
    Ok(out
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect())
}

#[test]
fn mapped_files_are_read_in_place_and_never_written() {
    let want: Vec<f32> = (1..=16).map(|i| 3.0 * i as f32).collect();
    for shift in 0..4 {
        assert_eq!(
            thrice_from_file(shift, false).unwrap(),
            want,
            "misaligned by {shift} bytes"
        );
    }
    let error = thrice_from_file(0, true).unwrap_err().to_string();
    assert!(error.contains("read-only"), "{error}");
}

#[test]
fn tensors_without_memory_are_rejected() {
    for device in devices() {
        let mut g = Graph::new();
        let x = g.input(F32, [4, 1, 1, 1], "x");
        let y = g.scale(x, 2.0, 0.0).unwrap();
        let mut backend = device.backend(&BackendParams::new(2)).unwrap();
        let error = compute(&mut *backend, &g, &[y], &mut MemoryMap::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("no memory"), "{error}");
    }
}

#[test]
fn foreign_memory_is_rejected() {
    let all = devices();
    for (ours, theirs) in [(0, 1), (1, 0)] {
        let mut memory = MemoryMap::default();
        let buffer = memory.insert(all[theirs].buffer_type().allocate(64).unwrap(), Usage::Any);
        assert!(!all[ours].supports_buffer_type(&*all[theirs].buffer_type()) || all[theirs].buffer_type().is_host());
        let mut g = Graph::new();
        let x = g.external(
            F32,
            [4, 1, 1, 1],
            Name::default(),
            BufferSlice { buffer, offset: 0 },
            Default::default(),
        );
        let y = g.scale(x, 2.0, 0.0).unwrap();
        g.tensor_mut(y).home = Some(BufferSlice { buffer, offset: 32 });
        let params = BackendParams::new(1);
        let mut backend = all[ours].clone().backend(&params).unwrap();
        assert!(compute(&mut *backend, &g, &[y], &mut memory).is_err());
    }
}

/// Returns nodes with types or shapes that no op function produces.
fn flawed_nodes(g: &mut Graph) -> Vec<TensorId> {
    let row = |g: &mut Graph, n| g.input(F32, [n, 1, 1, 1], "row");
    let (three, four, five) = (row(g, 3), row(g, 4), row(g, 5));
    let matrix = g.input(F32, [4, 2, 1, 1], "matrix");
    let ids = g.input(I32, [2, 1, 1, 1], "ids");
    let int_table = g.input(I32, [4, 2, 1, 1], "table");
    let nodes = [
        node(Op::Add, [4, 1, 1, 1], &[four, three]),
        node(Op::MulMat, [2, 1, 1, 1], &[matrix, five]),
        node(Op::MulMat, [3, 1, 1, 1], &[matrix, four]),
        node(Op::GetRows, [4, 2, 1, 1], &[int_table, ids]),
        node(Op::Glu(engine::graph::Unary::Silu), [4, 1, 1, 1], &[four]),
    ];
    nodes.into_iter().map(|t| g.push(t)).collect()
}

#[test]
fn nodes_that_violate_rules_are_unsupported() {
    for device in devices() {
        let mut g = Graph::new();
        for id in flawed_nodes(&mut g) {
            assert!(
                !device.supports_op(&g, id, &MemoryMap::default()),
                "{} supports {:?}",
                device.name(),
                g.tensor(id)
            );
            let params = BackendParams::new(1);
            let mut backend = device.clone().backend(&params).unwrap();
            let result = compute(&mut *backend, &g, &[id], &mut MemoryMap::default());
            assert!(matches!(result, Err(BackendError::Unsupported { .. })));
        }
    }
}

fn node(op: Op, ne: [usize; 4], src: &[TensorId]) -> Tensor {
    let mut t = Tensor::new(F32, ne, Name::default());
    t.op = op;
    for (slot, &s) in t.src.iter_mut().zip(src) {
        *slot = Some(s);
    }
    t
}

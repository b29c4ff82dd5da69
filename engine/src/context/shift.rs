//! Context shift: rotates cached keys by the position shift of their cells.

use kernels::GgmlType;

use crate::builder::{BuildError, KeyPosition, KvSlot, KvSpec};
use crate::graph::{Flags, Graph, Name, ROPE_AXES, Rope, ShapeError, TensorId};
use crate::model::Model;

use super::DecodeError;
use super::inputs::along_axes;
use super::memory::KvMemory;
use super::runner::GraphRunner;

/// Inputs of the shift graph for a pool, created on first use so that unused inputs take no memory.
#[derive(Default)]
struct ShiftInputs {
    /// Position shift of each cell, i32 `[n_cells]`.
    delta: Option<TensorId>,
    /// Shift of each cell along all axes, i32 `[n_cells, axes]`, for M-RoPE keys.
    axes: Option<TensorId>,
    /// Row indices 0, 1, 2, …, i64 `[n_cells]`: every cell is written back.
    cells: Option<TensorId>,
}

impl ShiftInputs {
    fn movement(&mut self, g: &mut Graph, rope: Rope, n_cells: usize) -> TensorId {
        if rope.kind.n_axes() > 1 {
            let new = || g.input(GgmlType::I32, [n_cells, ROPE_AXES, 1, 1], "shift_axes");
            return *self.axes.get_or_insert_with(new);
        }
        let new = || g.input(GgmlType::I32, [n_cells, 1, 1, 1], "shift");
        *self.delta.get_or_insert_with(new)
    }

    fn cells(&mut self, g: &mut Graph, n_cells: usize) -> TensorId {
        let new = || g.input(GgmlType::I64, [n_cells, 1, 1, 1], "cells");
        *self.cells.get_or_insert_with(new)
    }

    /// Returns the value of each input for the cell shifts `delta`.
    fn values(&self, delta: &[i32]) -> Vec<(TensorId, Vec<u8>)> {
        fn bytes<T: bytemuck::NoUninit>(values: Vec<T>) -> Vec<u8> {
            bytemuck::cast_slice(&values).to_vec()
        }
        let mut values = Vec::new();
        values.extend(self.delta.map(|id| (id, bytes(delta.to_vec()))));
        values.extend(
            self.axes
                .map(|id| (id, bytes(along_axes(delta.iter().copied()).collect()))),
        );
        values.extend(self.cells.map(|id| (id, bytes((0..delta.len() as i64).collect()))));
        values
    }
}

/// Rotates the keys of all cells shifted since the last rotation.
pub(super) fn rotate_moved_keys(model: &Model, kv: &mut KvMemory, runner: &mut GraphRunner) -> Result<(), DecodeError> {
    let mut graph = Graph::new();
    let mut inputs: Vec<_> = kv.pools().iter().map(|_| ShiftInputs::default()).collect();
    for (slot, spec) in kv.view().slots.iter().zip(kv.specs()) {
        if kv.pools()[slot.pool].pending_shift().is_none() {
            continue;
        }
        let n_cells = kv.view().pools[slot.pool].n_cells;
        add_rotation(&mut graph, model, slot, spec, n_cells, &mut inputs[slot.pool])?;
    }
    let pools = inputs.iter().zip(kv.pools());
    let values: Vec<_> = pools
        .flat_map(|(input, pool)| input.values(pool.pending_shift().unwrap_or_default()))
        .collect();
    // Nothing to compute if no key depends on its position.
    if !values.is_empty() {
        let values: Vec<_> = values.iter().map(|(id, bytes)| (*id, bytes.as_slice())).collect();
        runner.run_once(&mut graph, &values)?;
    }
    kv.shift_done();
    Ok(())
}

/// Adds the rotation of a slot's keys, if they are rotated by RoPE.
fn add_rotation(
    g: &mut Graph,
    model: &Model,
    slot: &KvSlot,
    spec: &KvSpec,
    n_cells: usize,
    inputs: &mut ShiftInputs,
) -> Result<(), DecodeError> {
    let KeyPosition::Rotated { rope, factors, offset } = spec.key_position else {
        return Ok(());
    };
    let factors = factors.map(|f| {
        let w = &model.leafs()[f.0.0 as usize];
        let flags = Flags {
            weight: true,
            ..Flags::default()
        };
        g.external(w.ty, w.ne, w.name, w.home, flags)
    });
    let name = Name {
        base: "cache_k",
        layer: Some(spec.layer as u32),
    };
    let cache = g.external(slot.type_k, [spec.k_row, n_cells, 1, 1], name, slot.k, Flags::default());
    let written = rotate(g, cache, inputs, spec, pure_rotation(rope), factors, offset).map_err(|source| {
        let value = name.to_string();
        BuildError::Shape { value, source }
    })?;
    g.expand(written);
    Ok(())
}

fn rotate(
    g: &mut Graph,
    cache: TensorId,
    inputs: &mut ShiftInputs,
    spec: &KvSpec,
    rope: Rope,
    factors: Option<TensorId>,
    offset: usize,
) -> Result<TensorId, ShapeError> {
    let n_cells = g.tensor(cache).ne[1];
    let heads = g.cont(cache, [spec.k_row / spec.n_head_kv, spec.n_head_kv, n_cells, 1])?;
    let delta = inputs.movement(g, rope, n_cells);
    let rotated = if offset == 0 {
        g.rope(heads, delta, factors, rope)?
    } else {
        let head = g.tensor(heads).ne[0];
        let (before, rest) = (g.slice(heads, 0, offset)?, g.slice(heads, offset, head)?);
        let rest = g.cont(rest, [head - offset, spec.n_head_kv, n_cells, 1])?;
        let rest = g.rope(rest, delta, factors, rope)?;
        g.concat(before, rest, 0)?
    };
    let rows = g.reshape(rotated, [spec.k_row, n_cells, 1, 1])?;
    let cells = inputs.cells(g, n_cells);
    g.set_rows(cache, rows, cells)
}

/// Returns the rotation without its magnitude factor, which is already applied to cached keys.
fn pure_rotation(rope: Rope) -> Rope {
    let yarn = if rope.ext_factor == 0.0 {
        1.0
    } else {
        1.0 + 0.1 * (1.0 / rope.freq_scale).ln()
    };
    Rope {
        attn_factor: 1.0 / yarn,
        ..rope
    }
}

//! Moving positions: cached keys are rotated on by as much as their cells moved.

use kernels::GgmlType;

use crate::build::{KeyPosition, KvSpec};
use crate::graph::{Flags, Graph, Name, ROPE_AXES, Rope, ShapeError, TensorId};

use super::decode::{Context, along_axes};
use super::memory::Span;
use super::{DecodeError, MemoryError};

/// Inputs of a shift graph for one pool, each there from its first use on: what no key needs has no place in the graph's memory.
#[derive(Default)]
struct ShiftInputs {
    /// Movement of each cell, i32 `[n_cells]`.
    delta: Option<TensorId>,
    /// The same along all axes of a position, i32 `[n_cells, axes]`, for keys that are rotated by axes.
    axes: Option<TensorId>,
    /// 0, 1, 2, … i64 `[n_cells]`: every cell is written back.
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
}

impl Context {
    /// Makes room in a context that is full: keeps the first `n_keep` positions of a sequence, removes the older half of the others,
    /// and moves the rest down to follow the kept ones. The number of positions removed; 0 if there were fewer than two to choose from.
    ///
    /// What remains was computed in sight of what is removed, so the logits that follow are close to, and not the same as, those of
    /// the shorter text decoded anew.
    pub fn shift_context(&mut self, seq: usize, n_keep: usize) -> Result<usize, MemoryError> {
        let n_gone = self.n_past(seq).saturating_sub(n_keep) / 2;
        if n_gone > 0 {
            // Both are below the number of positions, which are i32.
            let from = n_keep as i32;
            let to = from + n_gone as i32;
            self.memory.close_up(seq, Span { from, to })?;
        }
        Ok(n_gone)
    }

    /// An error if this model's keys cannot move at all, so that [`Context::shift_context`] never will.
    pub fn check_shift(&self) -> Result<(), MemoryError> {
        self.memory.check_shift()
    }

    /// Rotates the keys of all cells that moved since the last decode.
    pub(super) fn apply_shift(&mut self) -> Result<(), DecodeError> {
        // The decode graph's memory is used for this one.
        self.graph.built_for = None;
        self.graph.graph.clear();
        let pools: Vec<_> = self
            .memory
            .kv
            .pools()
            .iter()
            .map(|p| p.pending_shift().map(<[i32]>::to_vec))
            .collect();
        let g = &mut self.graph.graph;
        let mut inputs: Vec<_> = pools.iter().map(|_| ShiftInputs::default()).collect();
        let slots = self.memory.view().slots.clone();
        for (slot, spec) in slots.iter().zip(self.memory.kv.specs()) {
            let KeyPosition::Rotated { rope, factors, offset } = spec.key_position else {
                continue;
            };
            if pools[slot.pool].is_none() {
                continue;
            }
            let inputs = &mut inputs[slot.pool];
            let n_cells = self.memory.view().pools[slot.pool].n_cells;
            let factors = factors.map(|f| {
                let w = &self.model.leafs()[f.0.0 as usize];
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
                crate::build::BuildError::Shape {
                    value: name.to_string(),
                    source,
                }
            })?;
            g.expand(written);
        }
        // Where no key says anything of its position, there is nothing to compute.
        if inputs.iter().any(|input| input.cells.is_some()) {
            self.sched.alloc_graph(g)?;
            for (input, delta) in inputs.iter().zip(&pools) {
                self.set_shift(input, delta.as_deref().unwrap_or_default())?;
            }
            self.sched.compute(&self.graph.graph)?;
        }
        self.memory.kv.shift_done();
        Ok(())
    }

    /// Fills the inputs of a pool whose cells move by `delta`.
    fn set_shift(&mut self, inputs: &ShiftInputs, delta: &[i32]) -> Result<(), DecodeError> {
        let axes: Vec<i32> = along_axes(delta.iter().copied()).collect();
        let cells: Vec<i64> = (0..delta.len() as i64).collect();
        let values: [(_, &[u8]); 3] = [
            (inputs.delta, bytemuck::cast_slice(delta)),
            (inputs.axes, bytemuck::cast_slice(&axes)),
            (inputs.cells, bytemuck::cast_slice(&cells)),
        ];
        for (input, values) in values {
            if let Some(id) = input {
                self.sched.set_input(&self.graph.graph, id, values)?;
            }
        }
        Ok(())
    }
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

/// The rotation without its magnitude factor, which cached keys already carry.
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

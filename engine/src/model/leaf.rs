//! Weights as graphs see them: tensors in buffers, whole or in parts.

use crate::backend::Stored;
use crate::builder::{WeightLeaf, WeightPart};
use crate::graph::{BufferId, BufferSlice, Name};

use super::TableRow;
use super::placement::RowPart;

/// Consecutive rows of a tensor in one memory; usually the whole tensor.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    /// First row, counted across all matrices.
    pub first_row: usize,
    pub part: RowPart,
    pub home: BufferSlice,
}

impl Piece {
    /// Returns how the piece is stored.
    pub fn stored(&self, row: &TableRow) -> Stored {
        Stored {
            ty: row.stored_type(),
            ne: self.part.shape(row.ne),
            layout: self.part.layout,
            offset: self.home.offset,
        }
    }
}

/// Creates a weight from its pieces. At least one piece is required.
pub(super) fn leaf(row: &TableRow, pieces: &[Piece]) -> WeightLeaf {
    let part = |p: &Piece| WeightPart {
        n_rows: p.part.n_rows,
        home: p.home,
        layout: p.part.layout,
    };
    WeightLeaf {
        ty: row.stored_type(),
        ne: row.ne,
        home: pieces[0].home,
        layout: pieces[0].part.layout,
        name: Name {
            base: row.base,
            layer: row.layer,
        },
        parts: match pieces {
            [_] => Vec::new(),
            pieces => pieces.iter().map(part).collect(),
        },
        value: None,
    }
}

/// Creates a weight without data. Each part refers to the buffer with the index of its memory.
pub(super) fn leaf_without_data(row: &TableRow, parts: &[RowPart]) -> WeightLeaf {
    let piece = |&part: &RowPart| Piece {
        first_row: 0,
        part,
        home: BufferSlice {
            buffer: BufferId(part.memory as u32),
            offset: 0,
        },
    };
    leaf(row, &parts.iter().map(piece).collect::<Vec<_>>())
}

/// Returns the stored parts of a weight with their buffers.
pub(super) fn stored_parts(leaf: &WeightLeaf) -> impl Iterator<Item = (BufferId, Stored)> {
    let whole = WeightPart {
        n_rows: leaf.ne[1],
        home: leaf.home,
        layout: leaf.layout,
    };
    let whole = if leaf.parts.is_empty() { Some(whole) } else { None };
    let [n, _, n2, n3] = leaf.ne;
    leaf.parts.iter().copied().chain(whole).map(move |part| {
        let stored = Stored {
            ty: leaf.ty,
            ne: [n, part.n_rows, n2, n3],
            layout: part.layout,
            offset: part.home.offset,
        };
        (part.home.buffer, stored)
    })
}

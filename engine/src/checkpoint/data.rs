//! Data of converted tensors: reads source elements through a view, changes them, and encodes GGUF types.
//!
//! A unit is one element of a view: an element of the checkpoint, or a block of a quantized type that is repacked.

use std::io::{self, Write};
use std::ops::Range;

use kernels::GgmlType;
use rayon::prelude::*;

use super::decode::{Scales, decode, number};
use super::packed::PackedData;
use super::repack::Repacked;
use super::safetensors::SourceType;
use super::view::View;

/// Units that a thread converts at a time.
const CHUNK: usize = 1 << 15;
/// Bytes that are converted while the batch before is written.
const BATCH: usize = 2 << 20;

/// Change of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DataChange {
    Plus(f64),
    Times(f64),
    Exp,
    Neg,
}

/// Source matrix with its data.
pub struct Piece<'a> {
    /// Name in the checkpoint, for messages.
    pub name: String,
    pub ty: SourceType,
    pub bytes: &'a [u8],
    pub view: View,
    /// Scales of 8-bit floats.
    pub scales: Option<Scales<'a>>,
    /// Blocks that are repacked; the view is one of blocks.
    pub blocks: Option<Repacked<'a>>,
    /// Elements in several tensors, which are decoded.
    pub packed: Option<PackedData<'a>>,
    pub changes: &'a [DataChange],
}

/// Data of one tensor of the output.
pub struct TensorData<'a> {
    /// Type of the output: F32, F16, BF16, I32, or the type of the blocks.
    pub ty: GgmlType,
    /// Matrices of a stack, ranges of rows, or one tensor.
    pub pieces: Vec<Piece<'a>>,
    /// Number of elements per row, for error messages.
    pub row: usize,
}

/// A value that is NaN or infinite, or a scale that a type cannot hold.
#[derive(Debug)]
pub struct BadElement {
    pub name: String,
    pub value: f64,
    pub row: usize,
    pub column: usize,
}

impl BadElement {
    /// Returns the message without the name of the tensor.
    pub fn text(&self) -> String {
        let BadElement { value, row, column, .. } = self;
        if value.is_finite() {
            format!("has the scale {value} at row {row}, column {column}; expected positive numbers")
        } else {
            format!("has the value {value} at row {row}, column {column}; expected finite numbers")
        }
    }
}

/// An error of writing a tensor.
#[derive(Debug)]
pub enum DataError {
    BadElement(BadElement),
    Io(io::Error),
}

/// Memory of [`TensorData::write`], which the tensors of a file share.
#[derive(Default)]
pub struct WriteBuffers {
    ready: Vec<u8>,
    next: Vec<u8>,
}

impl TensorData<'_> {
    /// Returns the piece that contains a unit, and the index of the unit in the piece.
    fn piece_of(&self, unit: usize) -> Option<(&Piece<'_>, usize)> {
        let mut at = unit;
        for piece in &self.pieces {
            let n = piece.view.n_elements();
            if at < n {
                return Some((piece, at));
            }
            at -= n;
        }
        None
    }

    /// Writes the whole tensor. All threads check or convert a batch while this thread writes the batch before.
    pub fn write(&self, buffers: &mut WriteBuffers, out: &mut dyn Write) -> Result<(), DataError> {
        let mut first = 0;
        for piece in &self.pieces {
            let n = piece.view.n_elements();
            match piece.plain(self.ty) {
                Some(bytes) => self.write_plain(piece, first, bytes, out)?,
                None => self.write_converted(first..first + n, buffers, out)?,
            }
            first += n;
        }
        Ok(())
    }

    /// Writes elements that are stored in order.
    fn write_plain(&self, piece: &Piece<'_>, first: usize, bytes: &[u8], out: &mut dyn Write) -> Result<(), DataError> {
        let size = self.ty.block_bytes();
        let (mut ready, mut at): (&[u8], usize) = (&[], first);
        for next in bytes.chunks(BATCH).chain([&[][..]]) {
            let (mut fault, mut written) = (None, Ok(()));
            rayon::in_place_scope(|scope| {
                scope.spawn(|_| {
                    let chunks = next.par_chunks(CHUNK * size).enumerate();
                    let faults = chunks
                        .map(|(i, chunk)| not_finite(piece.ty, chunk).map(|(j, value)| (at + i * CHUNK + j, value)));
                    fault = faults.reduce(|| None, Option::or);
                });
                written = out.write_all(ready);
            });
            written.map_err(DataError::Io)?;
            if let Some((element, value)) = fault {
                return Err(DataError::BadElement(self.bad_element(piece, element, value)));
            }
            (ready, at) = (next, at + next.len() / size);
        }
        Ok(())
    }

    /// Converts and writes a range of units.
    fn write_converted(
        &self,
        units: Range<usize>,
        buffers: &mut WriteBuffers,
        out: &mut dyn Write,
    ) -> Result<(), DataError> {
        let unit = self.ty.block_bytes();
        let WriteBuffers { ready, next } = buffers;
        ready.clear();
        let mut first = units.start;
        loop {
            let n = (BATCH / unit).min(units.end - first);
            next.resize(n * unit, 0);
            let (mut filled, mut written) = (Ok(()), Ok(()));
            rayon::in_place_scope(|scope| {
                scope.spawn(|_| filled = self.fill(first, next));
                written = out.write_all(ready);
            });
            written.map_err(DataError::Io)?;
            filled.map_err(DataError::BadElement)?;
            if n == 0 {
                return Ok(());
            }
            std::mem::swap(ready, next);
            first += n;
        }
    }

    fn bad_element(&self, piece: &Piece<'_>, element: usize, value: f64) -> BadElement {
        BadElement {
            name: piece.name.clone(),
            value,
            row: element / self.row.max(1),
            column: element % self.row.max(1),
        }
    }

    /// Writes the units to `out`, starting with unit `first`, on all threads. All of `out` is written, even if values
    /// are not finite.
    pub fn fill(&self, first: usize, out: &mut [u8]) -> Result<(), BadElement> {
        let unit = self.ty.block_bytes();
        let chunks = out.par_chunks_mut(CHUNK * unit).enumerate();
        let faults = chunks.map_init(Vec::new, |values, (i, out)| {
            self.fill_chunk(first + i * CHUNK, out, values).err()
        });
        match faults.reduce(|| None, Option::or) {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    /// Writes consecutive units. `values` is a reusable buffer.
    fn fill_chunk(&self, first: usize, out: &mut [u8], values: &mut Vec<f32>) -> Result<(), BadElement> {
        let unit = self.ty.block_bytes();
        let (mut at, mut out, mut result) = (first, out, Ok(()));
        while let (false, Some((piece, start))) = (out.is_empty(), self.piece_of(at)) {
            let n = (piece.view.n_elements() - start).min(out.len() / unit);
            let (now, rest) = out.split_at_mut(n * unit);
            let fault = if let Some(blocks) = &piece.blocks {
                blocks.fill(&piece.view, piece.bytes, start, now)
            } else if piece.is_stored_as(self.ty) {
                piece.copy(start, now);
                not_finite(piece.ty, now)
            } else {
                self.convert(piece, start, now, values)
            };
            if let Some((i, value)) = fault {
                let element = (at + i) * self.ty.block_size();
                result = result.and_then(|()| Err(self.bad_element(piece, element, value)));
            }
            (at, out) = (at + n, rest);
        }
        result
    }

    /// Decodes, changes, and encodes elements. Returns the first value that is not finite, with its index.
    fn convert(&self, piece: &Piece<'_>, start: usize, out: &mut [u8], values: &mut Vec<f32>) -> Option<(usize, f64)> {
        values.clear();
        piece
            .view
            .each(start..start + out.len() / self.ty.block_bytes(), |run| {
                let first = values.len();
                match &piece.packed {
                    Some(packed) => packed.decode(run, values),
                    None => decode(piece.ty, piece.bytes, run, values),
                }
                if let Some(scales) = &piece.scales {
                    scales.apply(run, &mut values[first..]);
                }
            });
        for change in piece.changes {
            values.iter_mut().for_each(|value| *value = change.apply(*value));
        }
        encode(self.ty, values, out);
        let fault = crate::finite::check_finite(values).err()?;
        Some((fault.index, fault.value.into()))
    }
}

/// Returns the first value that is NaN or infinite, whose exponent is all ones, with its index.
fn not_finite(ty: SourceType, bytes: &[u8]) -> Option<(usize, f64)> {
    let all_ones = |mask: u16| {
        let has = |b: &[u8; 2]| u16::from_le_bytes(*b) & mask == mask;
        let halves = bytes.as_chunks::<2>().0;
        // Without an early exit, the loop is vectorized.
        let any = halves.iter().fold(false, |any, b| any | has(b));
        if any { halves.iter().position(has) } else { None }
    };
    let at = match ty {
        SourceType::Bf16 => all_ones(0x7f80),
        SourceType::F16 => all_ones(0x7c00),
        _ => {
            let has = |b: &[u8; 4]| u32::from_le_bytes(*b) & 0x7f80_0000 == 0x7f80_0000;
            let words = bytes.as_chunks::<4>().0;
            let any = words.iter().fold(false, |any, b| any | has(b));
            if any { words.iter().position(has) } else { None }
        }
    }?;
    let size = ty.bytes();
    Some((at, number(ty, &bytes[at * size..(at + 1) * size])))
}

impl Piece<'_> {
    /// Returns true if the elements have the same bytes in a GGUF type.
    fn is_stored_as(&self, ty: GgmlType) -> bool {
        let is_plain = self.scales.is_none() && self.packed.is_none() && self.changes.is_empty();
        self.ty.stored() == Some(ty) && is_plain
    }

    /// Returns the bytes of all elements, if they have a GGUF type and are contiguous.
    fn plain(&self, ty: GgmlType) -> Option<&[u8]> {
        if !self.is_stored_as(ty) || ty.block_size() != 1 {
            return None;
        }
        let elements = self.view.contiguous()?;
        let size = self.ty.bytes();
        Some(&self.bytes[elements.start * size..elements.end * size])
    }

    /// Copies elements that need no conversion.
    fn copy(&self, start: usize, out: &mut [u8]) {
        let size = self.ty.bytes();
        let mut rest = out;
        self.view.each(start..start + rest.len() / size, |run| {
            let (now, after) = std::mem::take(&mut rest).split_at_mut(run.n * size);
            if run.stride == 1 {
                now.copy_from_slice(&self.bytes[run.start * size..][..run.n * size]);
            } else {
                for (i, element) in run.indices().zip(now.chunks_exact_mut(size)) {
                    element.copy_from_slice(&self.bytes[i * size..][..size]);
                }
            }
            rest = after;
        });
    }
}

impl DataChange {
    fn apply(self, x: f32) -> f32 {
        match self {
            DataChange::Plus(n) => (f64::from(x) + n) as f32,
            DataChange::Times(n) => (f64::from(x) * n) as f32,
            DataChange::Exp => f64::from(x).exp() as f32,
            DataChange::Neg => -x,
        }
    }
}

fn encode(ty: GgmlType, values: &[f32], out: &mut [u8]) {
    let words = out.as_chunks_mut::<4>().0;
    match ty {
        GgmlType::F16 | GgmlType::BF16 => kernels::quantize_row(ty, values, out),
        GgmlType::I32 => {
            let integers = values.iter().map(|&x| (x as i32).to_le_bytes());
            words.iter_mut().zip(integers).for_each(|(word, bytes)| *word = bytes);
        }
        _ => {
            let floats = values.iter().map(|x| x.to_le_bytes());
            words.iter_mut().zip(floats).for_each(|(word, bytes)| *word = bytes);
        }
    }
}

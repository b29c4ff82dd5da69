//! What products of bytes with some columns ask of a unit that multiplies tiles, such as AMX.

use super::tiles::{TILE_ROWS, TILE_WIDTH};
use super::{IntSimd, Simd};

/// Columns of a tile of activations, whose rows are the low parts of the first column, its high parts, the low parts of the second, and so on.
pub(crate) const BYTE_COLUMNS: usize = TILE_ROWS / 2;

/// The most tiles of activations that are multiplied with the same weights.
pub(crate) const MOST_TILES: usize = 2;

/// The sums of [`TILE_ROWS`] rows of weights with the columns of a tile: of each column those of its low parts, then those of its high parts.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct ByteSums(pub [[[i32; TILE_ROWS]; 2]; BYTE_COLUMNS]);

/// The floats that go with a unit's integers.
type FloatOf<U> = <<U as ByteTileUnit>::Int as IntSimd>::Float;

/// A unit that multiplies tiles of bytes, ready for it in this thread from [`new`](ByteTileUnit::new) until it is dropped. It has two sets of tiles, for steps
/// with an even and with an odd number: the sums of one are written while the other's are computed.
///
/// # Safety
/// As for [`TileUnit`](super::TileUnit).
pub(crate) trait ByteTileUnit {
    /// Floats that sums become.
    type Float: Simd;

    /// Integers that weights are unpacked to: 4 of each of 8 rows in a register.
    type Int: IntSimd;

    /// Prepares the unit for steps of so many `quads`, each 4 elements: 4 or 8.
    unsafe fn new(quads: usize) -> Self;

    /// Writes 4 neighbouring weights of [`TILE_ROWS`] rows as a row of a tile, `zero` taken from each.
    #[inline(always)]
    unsafe fn put_quads(bytes: [Self::Int; 2], zero: u8, to: *mut u8) {
        // SAFETY: the caller's promise: a row of a tile.
        unsafe {
            for i in 0..2 {
                let bytes = if zero > 0 {
                    bytes[i].sub(Self::Int::splat(zero))
                } else {
                    bytes[i]
                };
                bytes.store(to.add(i * TILE_WIDTH / 2));
            }
        }
    }

    /// Writes the floats of 8 rows and of 8 more.
    #[inline(always)]
    unsafe fn put_floats(halves: [FloatOf<Self>; 2], to: *mut [f32; TILE_ROWS]) {
        // SAFETY: the caller's promise.
        unsafe {
            halves[0].store(to.cast());
            halves[1].store(to.cast::<f32>().add(TILE_ROWS / 2));
        }
    }

    /// Loads the operands of an even or odd step: weights, a row of the tile for each quad, and `TILES` tiles of activations, one after the other. Operands of the step
    /// before are gone if there are two tiles of activations.
    unsafe fn load<const ODD: bool, const TILES: usize>(&mut self, w: *const u8, x: *const u8);

    /// Multiplies what was loaded, with weights that are signed or unsigned bytes. The sums stay in the unit.
    unsafe fn multiply<const ODD: bool, const TILES: usize, const SIGNED: bool>(&mut self);

    /// Writes the sums of the last even or odd step.
    unsafe fn store<const ODD: bool, const TILES: usize>(&mut self, to: *mut ByteSums);
}

//! Trait of units that multiply int8 tiles, such as AMX.

use super::tiles::{TILE_ROWS, TILE_WIDTH};
use super::{IntSimd, Simd};

/// Columns of an activation tile. Its rows are the low bytes of the first column, the high bytes of the first
/// column, the low bytes of the second, and so on.
pub(crate) const BYTE_COLUMNS: usize = TILE_ROWS / 2;

/// Maximum activation tiles multiplied by the same weights.
pub(crate) const MAX_TILES: usize = 2;

/// Sums of [`TILE_ROWS`] rows of weights with the columns of a tile: for each column the sums of its low
/// bytes, then of its high bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct ByteSums(pub [[[i32; TILE_ROWS]; 2]; BYTE_COLUMNS]);

/// The float type that matches a unit's integers.
type FloatOf<U> = <<U as ByteTileUnit>::Int as IntSimd>::Float;

/// A unit that multiplies int8 tiles.
///
/// The unit is configured for the current thread from [`new`](ByteTileUnit::new) until the value is dropped.
/// The unit has two sets of tiles, for even and odd steps. The sums of one step are written while the next step is
/// computed.
///
/// # Safety
/// Callers of the unsafe functions guarantee:
/// - The CPU supports the unit and the instructions of `Float` and `Int`, and the process may use the unit.
/// - At most one tile unit is active per thread.
/// - Pointers are valid for the documented reads and writes.
pub(crate) trait ByteTileUnit {
    /// Float type of accumulated sums.
    type Float: Simd;

    /// Integer type of unpacked weights: 4 weights of each of 8 rows per register.
    type Int: IntSimd;

    /// Configures the unit for steps of `quads` times 4 elements. `quads` is 4 or 8.
    unsafe fn new(quads: usize) -> Self;

    /// Stores 4 adjacent weights of [`TILE_ROWS`] rows as a row of a tile, after subtracting `zero`.
    #[inline(always)]
    unsafe fn store_quads(bytes: [Self::Int; 2], zero: u8, to: *mut u8) {
        // SAFETY: `to` is valid for writes of a tile row (trait contract).
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

    /// Stores the floats of rows 0 to 8 and of rows 8 to 16.
    #[inline(always)]
    unsafe fn store_floats(halves: [FloatOf<Self>; 2], to: *mut [f32; TILE_ROWS]) {
        // SAFETY: `to` is valid for writes of 16 floats (trait contract).
        unsafe {
            halves[0].store(to.cast());
            halves[1].store(to.cast::<f32>().add(TILE_ROWS / 2));
        }
    }

    /// Loads the operands of an even or odd step: the weights, one tile row per quad, and `TILES` contiguous
    /// activation tiles. With two activation tiles, this overwrites the operands of the previous step.
    unsafe fn load<const ODD: bool, const TILES: usize>(&mut self, w: *const u8, x: *const u8);

    /// Multiplies the loaded operands. `SIGNED` selects signed or unsigned weights. The sums stay in the
    /// unit.
    unsafe fn multiply<const ODD: bool, const TILES: usize, const SIGNED: bool>(&mut self);

    /// Stores the sums of the last even or odd step.
    unsafe fn store<const ODD: bool, const TILES: usize>(&mut self, to: *mut ByteSums);
}

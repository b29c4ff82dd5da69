//! What products ask of a unit that multiplies tiles of bfloat16, such as AMX.

use super::Simd;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;

/// Bytes of a row of a tile.
pub(crate) const TILE_WIDTH: usize = 64;

/// Most floats in a register.
const MAX_LANES: usize = 16;

/// Bytes of a tile.
pub(crate) const TILE_BYTES: usize = TILE_ROWS * TILE_WIDTH;

/// Elements of a row of activations that a tile holds.
pub(crate) const STEP: usize = TILE_WIDTH / 2;

/// Tiles of sums that are added to at a time, and columns and rows of weights that these are: as many tiles as hide the unit's latency, from half as many
/// operands.
pub(crate) const SUMS: usize = 4;
pub(crate) const COLUMNS: usize = 2 * TILE_ROWS;
pub(crate) const ROWS: usize = 2 * TILE_ROWS;

/// Sums of [`ROWS`] rows of weights with [`COLUMNS`] columns, column by column.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct TileSums(pub [[f32; ROWS]; COLUMNS]);
const _: () = assert!(size_of::<TileSums>() == SUMS * TILE_BYTES);

/// A block of a product: some elements of the rows.
#[derive(Clone, Copy)]
pub(crate) struct TileBlock {
    /// The first of [`COLUMNS`] rows of activations, bfloat16.
    pub x: *const u8,
    /// Bytes from one row of activations to the next.
    pub x_stride: usize,
    /// Weights, aligned to 64 bytes: for each [`STEP`] elements a tile of the first half of the rows, then one of the second. Row `p` of a tile holds
    /// elements `2 p` and `2 p + 1` of each row of weights.
    pub w: *const u8,
    /// Elements, in [`STEP`]s: one at least.
    pub steps: usize,
    /// What is added to; null for zeros.
    pub sums: *const TileSums,
    /// Where the sums go, [`ROWS`] floats for each column.
    pub to: *mut f32,
    /// Bytes from one column to the next there.
    pub to_stride: usize,
}

impl TileSums {
    /// Bytes of the sums of a column.
    pub(crate) const STRIDE: usize = ROWS * size_of::<f32>();
}

/// A unit that multiplies tiles, ready for it in this thread from [`new`](TileUnit::new) until it is dropped.
///
/// A sum is added up in the order of the elements, [`STEP`] of them at a time. What other sums there are makes no difference.
///
/// # Safety
/// The unsafe functions may be called only on a CPU that has the unit and the instructions of `Float`, in a process that may use it, and with at
/// most one value in a thread.
pub(crate) trait TileUnit {
    /// Floats that become operands.
    type Float: Simd;

    /// Prepares the unit.
    unsafe fn new() -> Self;

    /// Writes floats as bfloat16, rounded to nearest even. What is subnormal may become zero: the unit takes it for that anyway.
    #[inline(always)]
    unsafe fn store_bf16(x: Self::Float, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { x.store_bf16(to) }
    }

    /// Writes pairs of floats as bfloat16: a lane of `even`, then that of `odd`.
    #[inline(always)]
    unsafe fn store_bf16_pairs(even: Self::Float, odd: Self::Float, to: *mut u8) {
        let mut pairs = [[0u8; 2 * MAX_LANES]; 2];
        // SAFETY: the caller's promise; the arrays hold registers.
        unsafe {
            Self::store_bf16(even, pairs[0].as_mut_ptr());
            Self::store_bf16(odd, pairs[1].as_mut_ptr());
            for i in 0..Self::Float::LANES {
                let pair = [
                    pairs[0][2 * i],
                    pairs[0][2 * i + 1],
                    pairs[1][2 * i],
                    pairs[1][2 * i + 1],
                ];
                to.add(4 * i).cast::<[u8; 4]>().write_unaligned(pair);
            }
        }
    }

    /// Adds a block to its sums. Operands and sums are as large as it says.
    unsafe fn add(&mut self, block: &TileBlock);
}

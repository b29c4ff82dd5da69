//! Trait of units that multiply bf16 tiles, such as AMX. Dot products of registers can take their part.

use super::{IntSimd, Simd};

/// Number of rows in a tile.
pub(crate) const TILE_ROWS: usize = 16;

/// Width of a tile in bytes.
pub(crate) const TILE_WIDTH: usize = 64;

/// Size of a bf16 in bytes.
pub(crate) const BF16: usize = 2;

/// Maximum floats in a register.
const MAX_LANES: usize = 16;

/// Size of a tile in bytes.
pub(crate) const TILE_BYTES: usize = TILE_ROWS * TILE_WIDTH;

/// Elements of a row of activations in a tile.
pub(crate) const STEP: usize = TILE_WIDTH / 2;

/// Sum tiles updated at a time, with the columns and rows they cover. Four sums hide the latency of the unit
/// and need only two operand tiles of each kind.
pub(crate) const SUMS: usize = 4;
pub(crate) const COLUMNS: usize = 2 * TILE_ROWS;
pub(crate) const ROWS: usize = 2 * TILE_ROWS;

/// Sums of [`ROWS`] rows of weights with [`COLUMNS`] columns, column by column.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct TileSums(pub [[f32; ROWS]; COLUMNS]);
const _: () = assert!(size_of::<TileSums>() == SUMS * TILE_BYTES);

/// Factors and addends of [`TileUnit::store_weights`], one row per lane.
///
/// The weight of an unsigned byte `q` is `scale * (2^15 * (256 + q)) + min`. The value in parentheses is the
/// float whose bits are `q` between constant bits, so that integers need no conversion.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct TileScales {
    pub scales: [f32; TILE_ROWS],
    pub mins: [f32; TILE_ROWS],
}

/// A block of a matmul: some elements of [`ROWS`] rows of weights and [`COLUMNS`] rows of activations.
#[derive(Clone, Copy)]
pub(crate) struct TileBlock {
    /// First of [`COLUMNS`] rows of bf16 activations.
    pub x: *const u8,
    /// Distance between rows of activations in bytes.
    pub x_stride: usize,
    /// Number of rows of activations whose sums are used. The sums of other rows may be left unset.
    pub columns: usize,
    /// Weights, aligned to 64 bytes. Each [`STEP`] elements are a tile of the first 16 rows, then a tile of
    /// the others. Row `p` of a tile holds elements `2 p` and `2 p + 1` of each row of weights.
    pub w: *const u8,
    /// Whether activations are read only once and should not displace the L1 cache.
    pub streams: bool,
    /// Number of [`STEP`]s, at least 1.
    pub steps: usize,
    /// Initial sums; null for zeros.
    pub sums: *const TileSums,
    /// Destination of the sums, [`ROWS`] floats per column.
    pub to: *mut f32,
    /// Distance between columns of the destination in bytes.
    pub to_stride: usize,
}

impl TileSums {
    /// Size of a column's sums in bytes.
    pub(crate) const STRIDE: usize = ROWS * size_of::<f32>();

    /// Zero sums.
    pub(crate) const ZERO: TileSums = TileSums([[0.0; ROWS]; COLUMNS]);
}

/// The float type that matches a unit's integers.
type FloatOf<U> = <<U as TileUnit>::Int as IntSimd>::Float;

/// Position of a byte's lowest bit in a float with the bits [`EXPONENT`]; the byte then forms the top of the
/// mantissa.
const BYTE_SHIFT: u32 = 15;

/// Bits of 2^23, the float whose lowest mantissa bit counts 1.
const EXPONENT: u32 = 0x4b00_0000;

/// Returns the scale and minimum of [`TileScales`] for weights `scale * q + min`.
#[inline(always)]
pub(crate) fn adjust_scale<V: Simd>(scale: V, min: V) -> (V, V) {
    const ONE: f32 = (1u32 << BYTE_SHIFT) as f32;
    let exponent = f32::from_bits(EXPONENT) / ONE;
    (
        scale.mul(scale.constant(1.0 / ONE)),
        scale.mul_add(scale.constant(-exponent), min),
    )
}

/// Returns the weights of the 4 bytes of each lane, given the values of [`TileScales`].
#[inline(always)]
pub(crate) fn weights<V: Simd>(words: V::Int, flip: u8, scale: V, min: V) -> [V; 4] {
    let mut w = [scale; 4];
    for i in 0..4 {
        let at = 8 * i as u32;
        let bits = if at < BYTE_SHIFT {
            V::shl(words, BYTE_SHIFT - at)
        } else {
            V::shr(words, at - BYTE_SHIFT)
        };
        let bits = V::xor(
            V::and(bits, 0xff << BYTE_SHIFT),
            EXPONENT | u32::from(flip) << BYTE_SHIFT,
        );
        w[i] = V::from_bits(bits).mul_add(scale, min);
    }
    w
}

/// A unit that multiplies bf16 tiles.
///
/// The unit is configured for the current thread from [`new`](TileUnit::new) until the value is dropped. A
/// sum is accumulated in the order of the elements, [`STEP`] at a time, independent of other sums.
///
/// # Safety
/// Callers of the unsafe functions guarantee:
/// - The CPU supports the unit and the instructions of `Float` and `Int`, and the process may use the unit.
/// - At most one tile unit is active per thread.
/// - Pointers are valid for the documented reads and writes.
pub(crate) trait TileUnit {
    /// Float type of unconverted operands.
    type Float: Simd;

    /// Integer type of unpacked weights: 4 weights of each of 8 rows per register.
    type Int: IntSimd;

    /// Whether the unit multiplies while the core executes other instructions.
    const IN_BACKGROUND: bool = true;

    /// Configures the tile unit of the current thread.
    unsafe fn new() -> Self;

    /// Stores the scales for weights `scale * q + min` of rows 0 to 8 and of rows 8 to 16.
    #[inline(always)]
    unsafe fn store_scales(scales: [FloatOf<Self>; 2], mins: [FloatOf<Self>; 2], to: *mut TileScales) {
        // SAFETY: `to` is valid for writes (trait contract).
        unsafe {
            for i in 0..2 {
                let (scale, min) = adjust_scale(scales[i], mins[i]);
                scale.store((&raw mut (*to).scales[8 * i]).cast());
                min.store((&raw mut (*to).mins[8 * i]).cast());
            }
        }
    }

    /// Stores 4 adjacent weights of [`TILE_ROWS`] rows as two rows of a tile. The bits in `flip` are flipped
    /// in each byte first.
    #[inline(always)]
    unsafe fn store_weights(bytes: [Self::Int; 2], flip: u8, scales: *const TileScales, to: *mut u8) {
        let mut words = [[0u8; 32]; 2];
        // SAFETY: `scales` has a lane for each row, and `to` is valid for writes of two tile rows (trait
        // contract).
        unsafe {
            bytes[0].store(words[0].as_mut_ptr());
            bytes[1].store(words[1].as_mut_ptr());
            for lane in (0..TILE_ROWS).step_by(Self::Float::LANES) {
                let words = Self::Float::load_words(words.as_flattened().as_ptr().add(4 * lane));
                let scale = Self::Float::load((&raw const (*scales).scales[lane]).cast());
                let min = Self::Float::load((&raw const (*scales).mins[lane]).cast());
                let w = weights(words, flip, scale, min);
                Self::store_bf16_pairs(w[0], w[1], to.add(4 * lane));
                Self::store_bf16_pairs(w[2], w[3], to.add(TILE_WIDTH + 4 * lane));
            }
        }
    }

    /// Stores floats as bf16, rounded to nearest even. Subnormal numbers may become zero; the unit treats
    /// them as zero anyway.
    #[inline(always)]
    unsafe fn store_bf16(x: Self::Float, to: *mut u8) {
        // SAFETY: `to` is valid for writes of `LANES` bf16 (trait contract).
        unsafe { x.store_bf16(to) }
    }

    /// Stores pairs of floats as bf16: a lane of `even`, then the same lane of `odd`.
    #[inline(always)]
    unsafe fn store_bf16_pairs(even: Self::Float, odd: Self::Float, to: *mut u8) {
        let mut pairs = [[0u8; 2 * MAX_LANES]; 2];
        // SAFETY: the arrays hold a register each, and `to` is valid for writes of `2 * LANES` bf16 (trait
        // contract).
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

    /// Loads the initial sums of a [`TileBlock`].
    unsafe fn begin(&mut self, sums: *const TileSums);

    /// Adds the products of [`STEP`] elements. `x` and `w` point to the operands of [`TileBlock`] at these
    /// elements.
    unsafe fn step(&mut self, x: *const u8, x_stride: usize, w: *const u8);

    /// Adds the products of [`STEP`] elements with activations that are read only once; see
    /// [`TileBlock::streams`].
    #[inline(always)]
    unsafe fn step_streaming(&mut self, x: *const u8, x_stride: usize, w: *const u8) {
        // SAFETY: the caller upholds the contract of `step`.
        unsafe { self.step(x, x_stride, w) }
    }

    /// Adds the products of [`STEP`] elements, each a sum of two bf16 (a rounded value and its residual). The
    /// product of two residuals is omitted. `x` holds the rounded values followed by the residuals, and `w`
    /// two tiles of each.
    #[inline(always)]
    unsafe fn step_split(&mut self, x: *const u8, x_stride: usize, w: *const u8) {
        // SAFETY: `x` holds two tile rows per column and `w` four tiles (function contract).
        unsafe {
            self.step(x.add(TILE_WIDTH), x_stride, w);
            self.step(x, x_stride, w);
            self.step(x, x_stride, w.add(2 * TILE_BYTES));
        }
    }

    /// Stores the sums in the destination of a [`TileBlock`].
    unsafe fn end(&mut self, to: *mut f32, to_stride: usize);

    /// Adds a block to its sums.
    #[inline(always)]
    unsafe fn add(&mut self, block: &TileBlock) {
        // SAFETY: `block` describes valid operands, sums, and destination (trait contract).
        unsafe {
            self.begin(block.sums);
            for step in 0..block.steps {
                self.add_step(block, step);
            }
            self.end(block.to, block.to_stride);
        }
    }

    /// Adds the products of step `step` of a block.
    #[inline(always)]
    unsafe fn add_step(&mut self, block: &TileBlock, step: usize) {
        // SAFETY: `step < block.steps`, so the operands are valid at this step (trait contract).
        unsafe {
            let (x, w) = (block.x.add(step * TILE_WIDTH), block.w.add(step * 2 * TILE_BYTES));
            if block.streams {
                self.step_streaming(x, block.x_stride, w);
            } else {
                self.step(x, block.x_stride, w);
            }
        }
    }
}

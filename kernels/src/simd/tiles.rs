//! What products ask of a unit that multiplies tiles of bfloat16, such as AMX.

use super::{IntSimd, Simd};

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

/// What [`TileUnit::put_weights`] multiplies and adds, a row in each lane: the weight of an unsigned byte `q` is `scale (2^15 (256 + q)) + min`. The float in
/// parentheses is the byte between constant bits, so that integers need no conversion.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct TileScales {
    pub scales: [f32; TILE_ROWS],
    pub mins: [f32; TILE_ROWS],
}

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
    /// The activations are read once, so that they need not stay in the first-level cache.
    pub streams: bool,
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

/// The floats that go with a unit's integers.
type FloatOf<U> = <<U as TileUnit>::Int as IntSimd>::Float;

/// Where the lowest bit of a byte goes in a float that starts with [`EXPONENT`]: its other bits then are the top of the fraction.
const BYTE_AT: u32 = 15;

/// The bits of 2^23, the float whose fraction counts ones.
const EXPONENT: u32 = 0x4b00_0000;

/// The scale and minimum of [`TileScales`] for weights `scale q + min`.
#[inline(always)]
pub(crate) fn moved_scale<V: Simd>(scale: V, min: V) -> (V, V) {
    const ONE: f32 = (1u32 << BYTE_AT) as f32;
    let exponent = f32::from_bits(EXPONENT) / ONE;
    (
        scale.mul(scale.constant(1.0 / ONE)),
        scale.mul_add(scale.constant(-exponent), min),
    )
}

/// The weights that [`TileScales`] make of the 4 bytes of each lane.
#[inline(always)]
pub(crate) fn weights<V: Simd>(words: V::Int, flip: u8, scale: V, min: V) -> [V; 4] {
    let mut w = [scale; 4];
    for i in 0..4 {
        let at = 8 * i as u32;
        let bits = if at < BYTE_AT {
            V::shl(words, BYTE_AT - at)
        } else {
            V::shr(words, at - BYTE_AT)
        };
        let bits = V::xor(V::and(bits, 0xff << BYTE_AT), EXPONENT | u32::from(flip) << BYTE_AT);
        w[i] = V::from_bits(bits).mul_add(scale, min);
    }
    w
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

    /// Integers that become operands: 4 of each of 8 rows in a register.
    type Int: IntSimd;

    /// Prepares the unit.
    unsafe fn new() -> Self;

    /// Writes the scales for weights `scale q + min` of 8 rows and of 8 more.
    #[inline(always)]
    unsafe fn put_scales(scales: [FloatOf<Self>; 2], mins: [FloatOf<Self>; 2], to: *mut TileScales) {
        // SAFETY: the caller's promise.
        unsafe {
            for i in 0..2 {
                let (scale, min) = moved_scale(scales[i], mins[i]);
                scale.store((&raw mut (*to).scales[8 * i]).cast());
                min.store((&raw mut (*to).mins[8 * i]).cast());
            }
        }
    }

    /// Writes 4 neighbouring weights of [`TILE_ROWS`] rows as two rows of a tile, given their bytes, in which the bits of `flip` are flipped first.
    #[inline(always)]
    unsafe fn put_weights(bytes: [Self::Int; 2], flip: u8, scales: *const TileScales, to: *mut u8) {
        let mut words = [[0u8; 32]; 2];
        // SAFETY: the caller's promise; a lane for each row.
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

    /// Takes the sums that are added to: those of a [`TileBlock`].
    unsafe fn begin(&mut self, sums: *const TileSums);

    /// Adds the products of [`STEP`] elements: [`x`](TileBlock::x), its stride and [`w`](TileBlock::w) from those elements on.
    unsafe fn step(&mut self, x: *const u8, x_stride: usize, w: *const u8);

    /// As [`step`](TileUnit::step), for a [stream](TileBlock::streams) of activations.
    #[inline(always)]
    unsafe fn step_of_stream(&mut self, x: *const u8, x_stride: usize, w: *const u8) {
        // SAFETY: the caller's promise.
        unsafe { self.step(x, x_stride, w) }
    }

    /// Adds the products of [`STEP`] elements that are two bfloat16 each, one for what the other leaves over, but for the products of two such rests. At `x` are
    /// the first ones and behind them the rests, at `w` two tiles of the first ones and two of rests.
    #[inline(always)]
    unsafe fn step_of_parts(&mut self, x: *const u8, x_stride: usize, w: *const u8) {
        // SAFETY: the caller's promise.
        unsafe {
            self.step(x.add(TILE_WIDTH), x_stride, w);
            self.step(x, x_stride, w);
            self.step(x, x_stride, w.add(2 * TILE_BYTES));
        }
    }

    /// Writes the sums, as a [`TileBlock`] says.
    unsafe fn end(&mut self, to: *mut f32, to_stride: usize);

    /// Adds a block to its sums. Operands and sums are as large as it says.
    #[inline(always)]
    unsafe fn add(&mut self, block: &TileBlock) {
        // SAFETY: the caller's promise.
        unsafe {
            self.begin(block.sums);
            for step in 0..block.steps {
                self.add_step(block, step);
            }
            self.end(block.to, block.to_stride);
        }
    }

    /// A [`step`](TileUnit::step) of a block.
    #[inline(always)]
    unsafe fn add_step(&mut self, block: &TileBlock, step: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let (x, w) = (block.x.add(step * TILE_WIDTH), block.w.add(step * 2 * TILE_BYTES));
            if block.streams {
                self.step_of_stream(x, block.x_stride, w);
            } else {
                self.step(x, block.x_stride, w);
            }
        }
    }
}

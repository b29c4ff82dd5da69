//! Software model of AMX in portable Rust, for testing tile code on any CPU.

use std::marker::PhantomData;

use super::Simd;
use super::byte_tiles::{BYTE_COLUMNS, ByteSums, ByteTileUnit, MAX_TILES};
use super::portable_int::PortableInt;
use super::tiles::{SUMS, TILE_BYTES, TILE_ROWS, TILE_WIDTH, TileSums, TileUnit};

/// Model of the eight tile registers.
pub(crate) struct TileModel<F> {
    tiles: [Tile; 8],
    float: PhantomData<F>,
}

/// Rows of 32-bit words: f32, or pairs of bf16.
type Tile = [[u32; TILE_ROWS]; TILE_ROWS];

impl<F> TileModel<F> {
    /// Models `TILELOADD`.
    ///
    /// # Safety
    /// 16 rows of 64 bytes, `stride` bytes apart, are valid for reads at `p`.
    unsafe fn load(&mut self, tile: usize, p: *const u8, stride: usize) {
        for (i, row) in self.tiles[tile].iter_mut().enumerate() {
            // SAFETY: row `i < 16` is readable (function contract).
            *row = unsafe { p.add(i * stride).cast::<[u32; TILE_ROWS]>().read_unaligned() };
        }
    }

    /// Models `TILESTORED`.
    ///
    /// # Safety
    /// 16 rows of 64 bytes, `stride` bytes apart, are valid for writes at `p`.
    unsafe fn store(&self, tile: usize, p: *mut u8, stride: usize) {
        for (i, row) in self.tiles[tile].iter().enumerate() {
            // SAFETY: row `i < 16` is writable (function contract).
            unsafe { p.add(i * stride).cast::<[u32; TILE_ROWS]>().write_unaligned(*row) }
        }
    }

    /// Models `TDPBF16PS`: accumulates even and odd elements separately, then adds both to the sum. A product
    /// of two bf16 is exact in f32, so fusing makes no difference except for subnormal numbers.
    fn dot(&mut self, sums: usize, a: usize, b: usize) {
        let even = self.tiles[b].map(|row| row.map(|pair| flushed(f32::from_bits(pair << 16))));
        let odd = self.tiles[b].map(|row| row.map(|pair| flushed(f32::from_bits(pair & 0xffff_0000))));
        for i in 0..TILE_ROWS {
            let mut totals = [[0.0f32; TILE_ROWS]; 2];
            for (p, pair) in self.tiles[a][i].into_iter().enumerate() {
                let a = [pair << 16, pair & 0xffff_0000].map(|bits| flushed(f32::from_bits(bits)));
                for j in 0..TILE_ROWS {
                    totals[0][j] = flushed(totals[0][j] + a[0] * even[p][j]);
                    totals[1][j] = flushed(totals[1][j] + a[1] * odd[p][j]);
                }
            }
            for (j, sum) in self.tiles[sums][i].iter_mut().enumerate() {
                let total = flushed(totals[0][j] + totals[1][j]);
                *sum = flushed(flushed(f32::from_bits(*sum)) + total).to_bits();
            }
        }
    }
}

/// Flushes subnormal numbers to zero.
fn flushed(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0 } else { x }
}

impl<F: Simd> TileUnit for TileModel<F> {
    type Float = F;
    type Int = PortableInt;

    unsafe fn new() -> TileModel<F> {
        TileModel {
            tiles: [[[0; TILE_ROWS]; TILE_ROWS]; 8],
            float: PhantomData,
        }
    }

    unsafe fn begin(&mut self, sums: *const TileSums) {
        for i in 0..SUMS {
            if sums.is_null() {
                self.tiles[i] = Default::default();
            } else {
                // SAFETY: `sums` is valid for `TileSums` (trait contract).
                unsafe {
                    self.load(
                        i,
                        sums.cast::<u8>().add(tile_offset(i, TileSums::STRIDE)),
                        TileSums::STRIDE,
                    )
                }
            }
        }
    }

    unsafe fn step(&mut self, x: *const u8, x_stride: usize, w: *const u8) {
        for half in 0..2 {
            // SAFETY: `x` has 32 rows and `w` two tiles (trait contract).
            unsafe {
                self.load(4 + half, x.add(half * TILE_ROWS * x_stride), x_stride);
                self.load(6 + half, w.add(half * TILE_BYTES), TILE_WIDTH);
            }
        }
        for i in 0..SUMS {
            self.dot(i, 4 + i / 2, 6 + i % 2);
        }
    }

    unsafe fn end(&mut self, to: *mut f32, to_stride: usize) {
        for i in 0..SUMS {
            // SAFETY: `to` is valid for the sums of 32 columns (trait contract).
            unsafe { self.store(i, to.cast::<u8>().add(tile_offset(i, to_stride)), to_stride) }
        }
    }
}

/// Returns the byte offset of sum tile `i` in a 2 x 2 arrangement: `i / 2` counts columns, `i % 2` rows.
fn tile_offset(i: usize, stride: usize) -> usize {
    i / 2 * TILE_ROWS * stride + i % 2 * TILE_WIDTH
}

/// Model of the int8 tiles: operands and sums of both sets of tiles.
pub(crate) struct ByteTileModel<F> {
    quads: usize,
    weights: [[[u8; TILE_WIDTH]; TILE_ROWS]; 2],
    activations: [[[u8; TILE_WIDTH]; TILE_ROWS]; MAX_TILES],
    sums: [[ByteSums; MAX_TILES]; 2],
    float: PhantomData<F>,
}

impl<F: Simd> ByteTileUnit for ByteTileModel<F> {
    type Float = F;
    type Int = PortableInt;

    unsafe fn new(quads: usize) -> ByteTileModel<F> {
        let tile = [[0; TILE_WIDTH]; TILE_ROWS];
        ByteTileModel {
            quads,
            weights: [tile; 2],
            activations: [tile; MAX_TILES],
            sums: [[ByteSums([[[0; TILE_ROWS]; 2]; BYTE_COLUMNS]); MAX_TILES]; 2],
            float: PhantomData,
        }
    }

    /// Models `TILELOADD`.
    unsafe fn load<const ODD: bool, const TILES: usize>(&mut self, w: *const u8, x: *const u8) {
        let row_bytes = 4 * self.quads;
        // SAFETY: `w` has a tile row per quad, and `x` has `TILES` tiles (trait contract).
        unsafe {
            for (i, row) in self.weights[usize::from(ODD)].iter_mut().enumerate().take(self.quads) {
                *row = w.add(i * TILE_WIDTH).cast::<[u8; TILE_WIDTH]>().read_unaligned();
            }
            for tile in 0..TILES {
                // A single activation tile is double-buffered, like the weights.
                let to = if TILES == 1 { usize::from(ODD) } else { tile };
                for (i, row) in self.activations[to].iter_mut().enumerate() {
                    let from = x.add((tile * TILE_ROWS + i) * row_bytes);
                    from.copy_to_nonoverlapping(row.as_mut_ptr(), row_bytes);
                }
            }
        }
    }

    /// Models `TDPBSSD` and `TDPBSUD`.
    unsafe fn multiply<const ODD: bool, const TILES: usize, const SIGNED: bool>(&mut self) {
        let weights = &self.weights[usize::from(ODD)];
        for (tile, sums) in self.sums[usize::from(ODD)].iter_mut().take(TILES).enumerate() {
            let activations = &self.activations[if TILES == 1 { usize::from(ODD) } else { tile }];
            for (x, row) in activations.iter().zip(sums.0.as_flattened_mut()) {
                for (j, sum) in row.iter_mut().enumerate() {
                    let product = |e: usize| {
                        let w = weights[e / 4][4 * j + e % 4];
                        let w = if SIGNED { i32::from(w as i8) } else { i32::from(w) };
                        i32::from(x[e] as i8) * w
                    };
                    *sum = (0..4 * self.quads).map(product).sum();
                }
            }
        }
    }

    unsafe fn store<const ODD: bool, const TILES: usize>(&mut self, to: *mut ByteSums) {
        for (tile, sums) in self.sums[usize::from(ODD)].iter().take(TILES).enumerate() {
            // SAFETY: `to` is valid for writes of `TILES` sums (trait contract).
            unsafe { to.add(tile).write(*sums) }
        }
    }
}

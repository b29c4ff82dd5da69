//! Linear attention of many tokens on tensor cores, in chunks of tokens.
//!
//! Each factor is the sum of two bf16 numbers, which has nearly the precision of f32. A chunk ends with a token whose
//! state is stored, so the kernel is slow for many sequences of one token.

use kernels::Precision;

use super::super::super::gpu::Gpu;
use super::super::super::kernel::{Kernel, SCAN_CHUNKS};

/// Maximum number of tokens in a chunk.
const CHUNK: usize = 32;
/// Number of rows and columns of a matrix fragment.
const STEP: usize = 16;

/// Minimum number of tokens, in total and per cell. A sequence has at least two cells, so that the sequences of a batch
/// have four tokens on average.
const MIN_TOKENS: usize = 64;
const MIN_TOKENS_OF_CELL: usize = 2;

/// Maximum number of state rows, which a warp keeps in registers.
const MAX_ROWS: usize = 128;

/// Maximum number of warps per block: one for each scheduler of a multiprocessor. Powers of two divide the tokens of a
/// chunk.
const MAX_WARPS: usize = 4;

/// Sizes of linear attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sizes {
    /// Rows and columns of the state of a head.
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) n_tokens: usize,
    /// Number of cells that the tokens' states are stored in.
    pub(super) n_cells: usize,
    /// True if each row has its own decays.
    pub(super) decays_by_row: bool,
}

/// Configuration of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Chunks {
    rows: usize,
    columns: usize,
    warps: usize,
    decays_by_row: bool,
}

impl Chunks {
    /// Returns the configuration for linear attention, or `None` if tokens are computed one by one.
    pub(super) fn of(sizes: Sizes, precision: Precision, gpu: Gpu) -> Option<Chunks> {
        let Sizes { rows, columns, .. } = sizes;
        let warps = columns.div_ceil(STEP).next_power_of_two().min(MAX_WARPS);
        let chunks = Chunks {
            rows,
            columns,
            // All warps apply decays of rows to the vectors. With fewer warps, kernels for compute capability 8.0 spill
            // registers.
            warps: if sizes.decays_by_row { MAX_WARPS } else { warps },
            decays_by_row: sizes.decays_by_row,
        };
        let has_many = sizes.n_tokens >= MIN_TOKENS.max(MIN_TOKENS_OF_CELL * sizes.n_cells);
        let has_steps = rows.is_multiple_of(STEP) && (STEP..=MAX_ROWS).contains(&rows);
        let fits = chunks.shared() <= gpu.shared_bytes as usize;
        let is_fast = precision != Precision::Exact && gpu.has_bfloats;
        (is_fast && has_many && has_steps && fits).then_some(chunks)
    }

    /// Returns the number of blocks per head.
    pub(super) fn blocks_of_head(&self) -> usize {
        self.columns.div_ceil(STEP * self.warps)
    }

    /// Returns the number of threads per block.
    pub(super) fn threads(&self) -> usize {
        32 * self.warps
    }

    /// Returns the shared memory in bytes. It holds keys and queries of a chunk (split into two numbers) and of the
    /// next chunk (f32). Matrices of the system and two gates per token follow. Decays of rows are in f32, and the
    /// decays of the chunk replace a gate.
    pub(super) fn shared(&self) -> usize {
        const PADDING: usize = 8;
        let float = size_of::<f32>();
        let pairs = 2 * CHUNK * (self.rows + PADDING) + 3 * STEP * (STEP + PADDING) + CHUNK * (CHUNK + PADDING);
        let (next, logs) = if self.decays_by_row {
            (3 * CHUNK * (self.rows + PADDING), self.rows)
        } else {
            (2 * CHUNK * self.rows, CHUNK)
        };
        let floats = next + 2 * (STEP * STEP + 4) + logs + CHUNK;
        2 * size_of::<u16>() * pairs + float * floats
    }

    /// Returns the kernel, without the definitions for the rule.
    pub(super) fn kernel(&self) -> Kernel {
        Kernel::new(&SCAN_CHUNKS, "scan_chunks")
            .with_int("ROWS", self.rows as i64)
            .with_int("WARPS", self.warps as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        rows: 128,
        columns: 128,
        n_tokens: 512,
        n_cells: 1,
        decays_by_row: false,
    };

    const SMALL_GPU: Gpu = Gpu {
        multiprocessors: 28,
        shared_bytes: Gpu::LEAST_SHARED_BYTES,
        ..Gpu::H100
    };

    fn found(sizes: Sizes) -> Option<Chunks> {
        Chunks::of(sizes, Precision::Fast, SMALL_GPU)
    }

    #[test]
    fn prompts_of_published_sizes_are_computed_in_chunks() {
        let chunks = found(SIZES).expect("chunks fit the sizes of Qwen3-Next");
        assert_eq!(
            (chunks.blocks_of_head(), chunks.threads(), chunks.shared()),
            (2, 128, 79_648)
        );
        let by_row = Sizes {
            decays_by_row: true,
            ..SIZES
        };
        let by_row = found(by_row).expect("Kimi Linear has these sizes");
        assert_eq!((by_row.threads(), by_row.shared()), (128, 99_488));
        let narrow = found(Sizes { columns: 40, ..SIZES }).expect("the last columns may be missing");
        assert_eq!((narrow.blocks_of_head(), narrow.threads()), (1, 128));
        let one = found(Sizes { columns: 16, ..SIZES }).expect("a warp computes 16 columns");
        assert_eq!((one.blocks_of_head(), one.threads()), (1, 32));
    }

    #[test]
    fn few_tokens_and_other_sizes_are_computed_one_by_one() {
        let one_by_one = [
            Sizes { n_tokens: 63, ..SIZES },
            // Each of 150 sequences may have a few tokens.
            Sizes { n_cells: 300, ..SIZES },
            Sizes { rows: 144, ..SIZES },
            Sizes { rows: 40, ..SIZES },
        ];
        for sizes in one_by_one {
            assert_eq!(found(sizes), None, "{sizes:?}");
        }
        assert_eq!(Chunks::of(SIZES, Precision::Exact, Gpu::H100), None);
        let too_small = Gpu {
            shared_bytes: 64 << 10,
            ..SMALL_GPU
        };
        assert_eq!(Chunks::of(SIZES, Precision::Fast, too_small), None);
    }
}

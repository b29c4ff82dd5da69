//! Attention over page tables.

mod pages;
mod params;
mod tiles;

use kernels::GgmlType;

use self::pages::Pages;
use self::params::{NearBiases, Params};
use self::tiles::Tiles;
use super::super::context::LaunchShape;
use super::super::kernel::{ATTENTION, ATTENTION_MERGE, Kernel, Value};
use super::arguments::TensorArg;
use super::integers;
use super::task::Task;
use super::unplanned::{Unplanned, size};
use super::visible::VisibleArg;
use crate::graph::{Attention, Buckets, Op, Tensor, TensorId, Window};

/// Warps per thread block.
const WARPS: usize = 4;

/// Maximum number of heads per block, and maximum number of floats of queries and results in a lane's
/// registers.
const MAX_HEADS: usize = 8;
const MAX_FLOATS: usize = 80;

/// Maximum number of cells, scores, and floats of keys and values that a lane keeps in registers at a time.
const MAX_CELLS: usize = 8;
const MAX_SCORES: usize = 32;
const MAX_LOADED: usize = 72;

/// Shared memory per block that is available without opting in, in bytes, and shared memory for the listed
/// pages.
const SHARED: usize = 48 << 10;
const STATIC_SHARED: usize = 128 * 12;

/// Attention whose results are also quantized for integer matmuls.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) struct QuantizedAttention {
    pub(in super::super) attention: TensorId,
    /// Attention results with one row per token.
    pub(in super::super) rows: TensorId,
}

/// Values per quantization scale. The head size must be a multiple.
pub(in super::super) const ROUNDED_TOGETHER: usize = integers::GROUP;

/// Number of blocks that run concurrently on a multiprocessor.
const BLOCKS_AT_A_TIME: usize = 2;

/// Maximum number of blocks per slot of a multiprocessor, and minimum number of pages per block from the second
/// round on. More blocks distribute the work more evenly.
const MAX_ROUNDS: usize = 3;
const PAGES_OF_BLOCK: usize = 8;

/// Maximum number of blocks that share a token, as in `attention_merge.cu`.
const MAX_PARTS: usize = 512;

/// Values of a head that a block of `attention_merge.cu` adds. Several blocks share long heads, so that each block
/// waits for fewer consecutive loads.
const MERGED_VALUES: usize = 128;

/// Minimum number of pages of a token that several blocks share. By the emulator's latencies, adding the blocks'
/// results takes as long as seven pages on tensor cores, and as two pages in f32.
const MIN_PAGES_ON_TENSOR_CORES: usize = 8;
const MIN_PAGES: usize = 3;

/// Returns the number of blocks that share a token's pages, given the number of blocks without sharing.
fn n_parts(multiprocessors: usize, n_blocks: usize, n_pages: usize, min_pages: usize) -> usize {
    if n_pages < min_pages {
        return 1;
    }
    let once = BLOCKS_AT_A_TIME * multiprocessors / n_blocks.max(1);
    let several = BLOCKS_AT_A_TIME * MAX_ROUNDS * multiprocessors / n_blocks.max(1);
    let most = once.max(several.min(n_pages / PAGES_OF_BLOCK));
    most.min(n_pages).clamp(1, MAX_PARTS)
}

/// Number of blocks without sharing, in f32 arithmetic and on tensor cores.
struct Blocks {
    multiprocessors: usize,
    in_f32: usize,
    on_tensor_cores: Option<usize>,
}

impl Blocks {
    /// Returns the number of blocks that share a token's pages, and the number that the scratch memory is reserved
    /// for. The choice of tensor cores depends on addresses, which are unknown when the memory is reserved.
    fn parts(&self, n_pages: usize) -> (usize, usize) {
        let in_f32 = n_parts(self.multiprocessors, self.in_f32, n_pages, MIN_PAGES);
        let parts = self.on_tensor_cores.map_or(in_f32, |blocks| {
            n_parts(self.multiprocessors, blocks, n_pages, MIN_PAGES_ON_TENSOR_CORES)
        });
        (parts, parts.max(in_f32))
    }
}

/// Returns kind and size of the window, encoded as in `attention.cu`.
fn window(window: Window) -> (i32, i32) {
    let size = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    match window {
        // The size must not be 0, since kernels divide by the size.
        Window::None | Window::Compressed(_) => (0, 1),
        Window::Sliding(n) => (1, size(n)),
        Window::Chunked(n) => (2, size(n)),
        Window::Symmetric(n) => (3, size(n)),
    }
}

/// Returns the decoder type for keys or values. Adjacent 16-bit floats are read in pairs if aligned.
fn decoder(t: &Tensor, arg: &TensorArg) -> Result<Value, Unplanned> {
    if t.ty.is_quantized() && !t.ne[0].is_multiple_of(t.ty.block_size()) {
        return Err("a head does not consist of whole blocks".into());
    }
    if !t.has_dense_rows() {
        return Err("the elements of a head are not contiguous".into());
    }
    Ok(match t.ty {
        GgmlType::F16 if arg.has_vectors(2, 4) => Value::Word("f16x2"),
        GgmlType::BF16 if arg.has_vectors(2, 4) => Value::Word("bf16x2"),
        ty => Value::Type(ty),
    })
}

/// Returns the number of query heads per block.
fn heads_of_block(group: usize, dk: usize, dv: usize) -> usize {
    let floats = (dk.div_ceil(32) + dv.div_ceil(32)).max(1);
    let fits = |&heads: &usize| heads == 1 || (heads <= group && heads * floats <= MAX_FLOATS);
    [MAX_HEADS, 4, 2, 1].into_iter().find(fits).unwrap_or(1)
}

/// Returns the number of floats of a row that a lane holds.
fn floats_of_lane(t: &Tensor) -> usize {
    // Chunks of the decoders have two floats of 16 bits, or at least eight quantized values.
    let chunk = if t.ty.is_quantized() { 8 } else { 2 };
    t.ne[0].div_ceil(32 * chunk) * chunk
}

/// Returns the number of cells per step, given the number of heads per block and the floats of keys and values
/// that a lane holds.
fn cells_per_step(heads: usize, floats: usize) -> usize {
    let fits = |&cells: &usize| cells * heads <= MAX_SCORES && cells * floats <= MAX_LOADED;
    [MAX_CELLS, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// Returns the first table row for keys after the query (0 if both directions share the rows), and the table row for
/// each distance.
fn buckets(buckets: Buckets, n: usize) -> (i32, NearBiases) {
    let side = buckets.side(n);
    let near = |distance: usize| Buckets::near(side, distance.min(Buckets::FAR)) as u8;
    let behind = if buckets == Buckets::Around { side as i32 } else { 0 };
    (
        behind,
        std::array::from_fn(|i| std::array::from_fn(|j| near(8 * i + j))),
    )
}

/// Plans attention with quantized results. Tile kernels do not quantize; the matmul then quantizes its own
/// input.
pub(super) fn plan_attended(task: &mut Task<'_>, attended: &QuantizedAttention) -> Result<(), Unplanned> {
    match task.node.op {
        Op::Attention(p) => plan(task, &p, Some(attended.rows)),
        _ => Err("attention".into()),
    }
}

/// Plans attention. `rounds` is the view of the results that is also quantized, if any.
pub(super) fn plan(task: &mut Task<'_>, p: &Attention, rounds: Option<TensorId>) -> Result<(), Unplanned> {
    let at = p.operands();
    let (q, k, v) = (task.operand(at.q), task.operand(at.k), task.operand(at.v));
    let [dk, n_head, n_tokens, _] = q.ne;
    let (dv, n_head_kv) = (v.ne[0], k.ne[1]);
    let (k_arg, v_arg, visible) = (task.source(at.k)?, task.source(at.v)?, VisibleArg::new(task)?);
    let y = task.result()?;
    // The tile kernel stores results in pairs of floats.
    let tiles = if y.has_vectors(size_of::<f32>(), 2 * size_of::<f32>()) {
        Tiles::of(task, p, [&k_arg, &v_arg], &visible)
    } else {
        None
    };
    let (window, window_size) = window(p.window);
    let n_buckets = at.biases.map_or(0, |i| task.operand(i).ne[1]);
    let (side, near) = buckets(p.buckets, n_buckets);
    let heads = heads_of_block(n_head / n_head_kv, dk, dv);
    let y_blocks = n_head_kv * (n_head / n_head_kv).div_ceil(heads);
    let queries = task.source(at.q)?;
    let pages = match tiles {
        Some(_) => None,
        None => Pages::of(task, p, [&queries, &k_arg, &v_arg]),
    };
    let blocks = Blocks {
        multiprocessors: task.target.gpu().multiprocessors as usize,
        in_f32: n_tokens * y_blocks,
        on_tensor_cores: pages.map(|pages| n_tokens * n_head_kv * pages.blocks_of_head()),
    };
    let (n_parts, most) = match tiles {
        Some(_) => (1, 1),
        // Tokens may all belong to different sequences.
        None => blocks.parts(visible.n_pages().div_ceil(visible.n_tables().min(n_tokens).max(1))),
    };
    let parts = match most {
        1 => 0,
        _ => (task.target).scratch(size_of::<f32>() * n_tokens * n_head * most * (dv + 2))?,
    };
    let rounds = if tiles.is_none() { rounds } else { None };
    let params = Params {
        q: queries,
        k: k_arg,
        v: v_arg,
        y,
        biases: task.optional(at.biases)?,
        sinks: task.optional(at.sinks)?,
        selection: task.optional(at.selection)?,
        visible,
        scale: p.scale,
        softcap: p.softcap,
        max_bias: p.max_bias,
        causal: p.causal.into(),
        window,
        window_size,
        compressed_from: p.compressed_from.map_or(Ok(-1), |n| size(n).map(|n| n as i32))?,
        side,
        near,
        parts,
        rounded: rounds.map_or(Ok(0), |rows| rounded(task, rows))?,
        n_parts: size(n_parts)? as i32,
        padding: 0,
    };
    match (tiles, pages) {
        (Some(tiles), _) => tiles.plan(task, p, &params),
        (None, Some(pages)) => plan_on_tensor_cores(task, p, &params, &pages),
        (None, None) => plan_pages(task, p, &params, heads),
    }
}

/// Returns the address for the quantized columns of the result rows.
fn rounded(task: &mut Task<'_>, rows: TensorId) -> Result<u64, Unplanned> {
    let address = task.target.address(rows, false)?;
    let rows = TensorArg::new(task.graph.tensor(rows), address)?;
    integers::written_columns(task, &rows)
}

/// Plans the page kernel for f32 arithmetic: one or several blocks per token, with `heads` query heads each.
fn plan_pages(task: &mut Task<'_>, p: &Attention, params: &Params, heads: usize) -> Result<(), Unplanned> {
    let at = p.operands();
    let (q, k, v) = (task.operand(at.q), task.operand(at.k), task.operand(at.v));
    let [dk, n_head, n_tokens, _] = q.ne;
    let (dv, n_head_kv) = (v.ne[0], k.ne[1]);
    let y_blocks = n_head_kv * (n_head / n_head_kv).div_ceil(heads);
    let selected = if p.selects {
        4 * params.visible.n_cells().div_ceil(32)
    } else {
        0
    };
    if selected + STATIC_SHARED + 4 * WARPS * heads * (dv + dv / 32 + 2) > SHARED {
        return Err("accumulators and selection exceed the shared memory".into());
    }
    let cells = cells_per_step(heads, floats_of_lane(k) + floats_of_lane(v));
    let (k_decoder, v_decoder) = (decoder(k, &params.k)?, decoder(v, &params.v)?);
    let kernel = Kernel::new(&ATTENTION, "attention")
        .with("K", k_decoder)
        .with("V", v_decoder)
        .with_int("DK", dk as i64)
        .with_int("DV", dv as i64)
        .with_int("HEADS", heads as i64)
        .with_int("CELLS", cells as i64)
        .with_int("SELECTS", p.selects.into());
    let grid = [size(n_tokens)?, size(y_blocks)?, params.n_parts as u32];
    let shape = LaunchShape {
        grid,
        block: 32 * WARPS as u32,
        shared: size(selected)?,
    };
    plan_parts(task, p, params, kernel, shape)
}

/// Plans the page kernel on tensor cores.
fn plan_on_tensor_cores(task: &mut Task<'_>, p: &Attention, params: &Params, pages: &Pages) -> Result<(), Unplanned> {
    let at = p.operands();
    let n_tokens = task.operand(at.q).ne[2];
    let y_blocks = task.operand(at.k).ne[1] * pages.blocks_of_head();
    let shape = LaunchShape {
        grid: [size(n_tokens)?, size(y_blocks)?, params.n_parts as u32],
        block: size(pages.threads())?,
        shared: size(pages.shared())?,
    };
    plan_parts(task, p, params, pages.kernel(), shape)
}

/// Launches a page kernel, and the kernel that adds the results of blocks that share a token. The last of these
/// kernels quantizes the results.
fn plan_parts(
    task: &mut Task<'_>,
    p: &Attention,
    params: &Params,
    kernel: Kernel,
    shape: LaunchShape,
) -> Result<(), Unplanned> {
    let at = p.operands();
    let (rounds, is_split) = (params.rounded != 0, params.n_parts > 1);
    let kernel = kernel
        .with_int("BIASES", at.biases.is_some().into())
        .with_int("SINKS", p.sinks.into())
        .with_int("SPLIT", is_split.into())
        .with_int("ROUNDS", (rounds && !is_split).into());
    task.launch_with(kernel, shape.grid, shape.block, shape.shared, params)?;
    if is_split {
        let [_, n_head, n_tokens, _] = task.operand(at.q).ne;
        let dv = task.operand(at.v).ne[0];
        let merge = Kernel::new(&ATTENTION_MERGE, "merge")
            .with_int("DV", dv as i64)
            .with_int("SINKS", p.sinks.into())
            .with_int("ROUNDS", rounds.into());
        let grid = [size(n_tokens)?, size(n_head)?, size(dv.div_ceil(MERGED_VALUES))?];
        task.launch(merge, grid, 32 * WARPS as u32, params)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_as_many_heads_as_fit() {
        let found = [
            (1, 128, 128),
            (3, 128, 128),
            (4, 128, 128),
            (16, 128, 128),
            (16, 576, 512),
            (8, 4, 4),
        ];
        let heads = found.map(|(group, dk, dv)| heads_of_block(group, dk, dv));
        assert_eq!(heads, [1, 2, 4, 8, 2, 8]);
    }

    #[test]
    fn cells_of_step_fit_in_registers() {
        let found = [(1, 4), (4, 8), (8, 8), (4, 16), (2, 34), (8, 2), (1, 80)];
        let cells = found.map(|(heads, floats)| cells_per_step(heads, floats));
        assert_eq!(cells, [8, 8, 4, 4, 2, 4, 1]);
    }

    #[test]
    fn blocks_share_token_if_few_tokens_and_long_context() {
        let found = [(8, 1), (8, 16), (8, 128), (8, 512), (300, 1024), (1, 1 << 20)];
        let parts = found.map(|(blocks, pages)| n_parts(132, blocks, pages, 8));
        assert_eq!(parts, [1, 16, 33, 64, 2, 512]);
        assert_eq!(n_parts(16, 8, 128, 8), 12);
        assert_eq!([8, 3].map(|min_pages| n_parts(132, 8, 7, min_pages)), [1, 7]);
    }

    #[test]
    fn far_keys_share_the_last_bias_row() {
        let (side, near) = buckets(Buckets::Around, 32);
        assert_eq!((side, near[0][..2].to_vec(), near[16]), (16, vec![0, 1], [15; 8]));
        assert_eq!(buckets(Buckets::Past, 32).0, 0);
    }
}

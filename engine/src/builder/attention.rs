//! RoPE, KV caches, and attention.

use kernels::GgmlType;

use crate::graph::{
    Attention, AttentionOperands, Buckets, BufferSlice, Flags, Graph, Name, PAGE, Rope, RopeKind, TensorId,
    VisibleCells, Window,
};

use super::caches::{Cache, KvSpec, PoolView};
use super::handles::Vector;
use super::inputs::{CellLists, JoinedInputs, StoredKeys, TableInputs};
use super::position::{KeyPosition, ValueStorage, key_position};
use super::{BatchMedia, Builder, Visibility};

/// Keyword arguments of [`Builder::rope`]; `None` selects the model's value.
#[derive(Clone, Copy, Debug, Default)]
pub struct RopeArgs {
    /// Frequency divisors, `[n_dims / 2]`.
    pub factors: Option<Vector>,
    /// LongRoPE short factors: divisors for a context that is no longer than in training. Ignored if `factors` is set.
    pub short: Option<Vector>,
    /// LongRoPE long factors: divisors for a context that is longer than in training. Ignored if `factors` is set.
    pub long: Option<Vector>,
    /// Base frequency (theta).
    pub base: Option<f32>,
    /// Position scale (`freq_scale` in ggml).
    pub scale: Option<f32>,
    /// Number of rotated elements per head; 0 disables the rotation.
    pub dims: Option<usize>,
    /// Number of elements of a head before the rotated ones.
    pub offset: usize,
    /// Magnitude factor of the rotated elements (`attn_factor` in ggml).
    pub magnitude: Option<f32>,
    /// Forces NeoX pairing, regardless of the architecture's RoPE kind.
    pub neox: bool,
    /// Rotates at position `pos - lag` instead of `pos`, along all axes.
    pub lag: usize,
    /// False disables YaRN even if enabled by the file; scaling is then linear.
    pub yarn: Option<bool>,
    /// YaRN `beta_fast`: pairs with more rotations than this over the original context are not scaled.
    pub beta_fast: Option<f32>,
    /// Rounds positions down to a multiple of this value.
    pub stride: Option<usize>,
    /// Rotates by the negative angle (inverse RoPE).
    pub inverse: bool,
}

/// Keyword arguments of [`Builder::attention`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionArgs {
    /// Factor applied to scores; default `1 / sqrt(head_dim_k)`.
    pub scale: Option<f32>,
    /// Soft cap of the attention scores; 0 disables it.
    pub softcap: f32,
    /// Maximum ALiBi bias; 0 disables ALiBi.
    pub alibi: f32,
    /// Whether keys at later positions are masked.
    pub causal: bool,
    /// Attention sinks: a logit per head that enters the softmax without a value, `[n_head]`.
    pub sinks: Option<Vector>,
    /// Attention window.
    pub window: Window,
    /// Relative position biases, `[n_head, n_buckets]`.
    pub relative: Option<TensorId>,
    /// Latent attention: values are the first `v_in_k` elements of each key head, and only keys are stored.
    pub v_in_k: Option<usize>,
    /// Cells visible to each token, as returned by [`Builder::index_cells`] and similar methods; with
    /// `compressed`, indices of groups.
    pub selection: Option<TensorId>,
    /// Compressed keys (including values) of groups of `ratio` tokens, `[dk, n_head_kv, T]`. The key at the last token
    /// of a group is stored. Queries attend to it in addition to the keys of single tokens, regardless of the window.
    /// Requires `v_in_k`.
    pub compressed: Option<TensorId>,
    /// Number of tokens per compressed key.
    pub ratio: usize,
    /// Keys visible to media rows in addition to the causal mask.
    pub media: Option<Visibility>,
}

impl Default for AttentionArgs {
    fn default() -> AttentionArgs {
        AttentionArgs {
            scale: None,
            softcap: 0.0,
            alibi: 0.0,
            causal: true,
            sinks: None,
            window: Window::None,
            relative: None,
            v_in_k: None,
            selection: None,
            compressed: None,
            ratio: 1,
            media: None,
        }
    }
}

/// Returns a sliding window of `n` positions, or no window unless `on`.
pub fn sliding(n: usize, on: bool) -> Window {
    sized(Window::Sliding, n, on)
}

/// Returns a window of chunks of `n` positions, or no window unless `on`.
pub fn chunked(n: usize, on: bool) -> Window {
    sized(Window::Chunked, n, on)
}

/// Returns a symmetric window of `n` positions, or no window unless `on`.
pub fn symmetric(n: usize, on: bool) -> Window {
    sized(Window::Symmetric, n, on)
}

/// Positions are i32, so a larger window has no effect.
fn sized(window: fn(usize) -> Window, n: usize, on: bool) -> Window {
    if on && (1..=i32::MAX as usize).contains(&n) {
        window(n)
    } else {
        Window::None
    }
}

impl Builder<'_> {
    /// Applies RoPE to `x [head_dim, n_head, T]` at the tokens' positions.
    pub fn rope(&mut self, x: TensorId, args: RopeArgs) -> TensorId {
        let Some(kind) = self.params.rope_kind else {
            self.fail_no_rope();
            return x;
        };
        let n_dims = args.dims.unwrap_or(self.params.n_rot);
        // An empty view after the offset would be invalid.
        if n_dims == 0 {
            return self.dense(x);
        }
        let mut scaling = self.params.rope;
        if args.yarn == Some(false) {
            (scaling.ext_factor, scaling.attn_factor) = (0.0, 1.0);
        }
        let rope = Rope {
            kind: if args.neox { RopeKind::Neox } else { kind },
            sections: self.params.rope_sections,
            n_dims,
            freq_base: args.base.unwrap_or(scaling.freq_base),
            freq_scale: args.scale.unwrap_or(scaling.freq_scale),
            ext_factor: scaling.ext_factor,
            attn_factor: args.magnitude.unwrap_or(scaling.attn_factor),
            beta_fast: args.beta_fast.unwrap_or(scaling.beta_fast),
            beta_slow: scaling.beta_slow,
            n_ctx_orig: scaling.n_ctx_orig,
            every: args.stride.unwrap_or(1),
            inverse: args.inverse,
        };
        let by_context = if self.params.n_ctx > scaling.n_ctx_orig {
            args.long
        } else {
            args.short
        };
        let positions = if args.lag > 0 {
            let positions = self.positions();
            let earlier = self.g.shift_positions(positions, args.lag, kind.n_axes());
            self.ok(earlier, positions)
        } else if kind.n_axes() > 1 {
            self.axes()
        } else {
            self.positions()
        };
        let factors = args.factors.or(by_context).map(|f| self.leaf(f.0));
        if args.offset == 0 {
            let y = self.g.rope(x, positions, factors, rope);
            return self.ok(y, x);
        }
        let before = self.slice(x, 0, args.offset);
        let rotated = self.slice(x, args.offset, self.g.tensor(x).ne[0]);
        let rotated = self.dense(rotated);
        let y = self.g.rope(rotated, positions, factors, rope);
        let y = self.ok(y, rotated);
        self.concat(before, y, 0)
    }

    /// Returns attention temperatures `[1, 1, T]` by position; see
    /// [`Op::AttentionTemperature`](crate::graph::Op::AttentionTemperature).
    pub fn attention_temperature(&mut self, scale: f32, length: usize, offset: f32) -> TensorId {
        let positions = self.positions();
        let y = self.g.attention_temperature(positions, scale, length, offset);
        self.ok(y, positions)
    }

    /// Stores `k [dk, n_head_kv, T]` and `v [dv, n_head_kv, T]` in the KV cache of the layer and computes attention
    /// for `q [dk, n_head, T]`. Returns `[dv * n_head, T]`. Without `v`, values are the first
    /// [`AttentionArgs::v_in_k`] elements of the keys.
    pub fn attention(&mut self, q: TensorId, k: TensorId, v: Option<TensorId>, args: AttentionArgs) -> TensorId {
        let stored = self.store_keys(k, v, args);
        self.attend(q, stored, args)
    }

    /// Computes attention for `q [dk, n_head, T]` over the keys and values (of head size `dv`) that `layer`
    /// stored last: `[dv * n_head, T]`. The window must be the window of `layer`.
    pub fn attention_over(&mut self, q: TensorId, layer: usize, dv: usize, args: AttentionArgs) -> TensorId {
        let stored = self
            .inputs
            .stored
            .iter()
            .rev()
            .find(|s| s.layer == layer as u32)
            .copied();
        let Some(stored) = stored.filter(|s| self.g.tensor(s.values).ne[0] == dv && s.window == args.window) else {
            self.fail_no_keys(layer);
            return q;
        };
        self.attend(q, stored, args)
    }

    /// Stores the tokens' keys and values in a new slot of the layer's KV cache.
    fn store_keys(&mut self, k: TensorId, v: Option<TensorId>, args: AttentionArgs) -> StoredKeys {
        let (keys, values, cells) = self.remember(k, v, &args);
        let values = values.unwrap_or_else(|| self.slice(keys, 0, args.v_in_k.unwrap_or(0)));
        let stored = StoredKeys {
            layer: self.layer.unwrap_or(0),
            keys,
            values,
            cells,
            window: args.window,
        };
        self.inputs.stored.push(stored);
        stored
    }

    fn attend(&mut self, q: TensorId, stored: StoredKeys, args: AttentionArgs) -> TensorId {
        self.attend_to(q, [stored.keys, stored.values], stored.cells, args)
    }

    /// Computes attention of queries to keys and values in the given cells.
    pub(super) fn attend_to(
        &mut self,
        q: TensorId,
        [keys, values]: [TensorId; 2],
        cells: CellLists,
        args: AttentionArgs,
    ) -> TensorId {
        let operands = AttentionOperands {
            q,
            k: keys,
            v: values,
            visible: self.visible(cells),
            biases: args.relative,
            sinks: args.sinks.map(|sinks| self.leaf(sinks.0)),
            selection: args.selection,
        };
        let sees_whole = args.media == Some(Visibility::Whole) && self.params.media == BatchMedia::Whole;
        let causal = args.causal && self.params.causal && !sees_whole;
        let params = Attention {
            scale: args
                .scale
                .unwrap_or_else(|| 1.0 / (self.g.tensor(q).ne[0] as f32).sqrt()),
            softcap: args.softcap,
            max_bias: args.alibi,
            causal,
            window: args.window,
            sinks: args.sinks.is_some(),
            selects: args.selection.is_some(),
            compressed_from: cells.compressed_from,
            buckets: match args.relative {
                None => Buckets::None,
                Some(_) if causal => Buckets::Past,
                Some(_) => Buckets::Around,
            },
        };
        let y = self.g.attention(params, operands);
        let y = self.ok(y, q);
        self.name(y, "attention");
        self.merge(y)
    }

    /// Stores the keys and values of a call in the layer's KV cache. Returns all cached keys and values with
    /// their cell lists. A probe only records the requirements of the call.
    pub(super) fn remember(
        &mut self,
        k: TensorId,
        v: Option<TensorId>,
        args: &AttentionArgs,
    ) -> (TensorId, Option<TensorId>, CellLists) {
        let slot = self.n_attention;
        self.n_attention += 1;
        let Cache::Cells(view) = self.cache else {
            if matches!(self.cache, Cache::Probe(_)) {
                let spec = self.kv_spec(k, v, args);
                if let Cache::Probe(specs) = &mut self.cache {
                    specs.kv.push(spec);
                }
            }
            let n = self.g.tensor(k).ne[2];
            return match args.compressed {
                None => (k, v, self.cell_lists(0, n)),
                Some(groups) => (self.concat(k, groups, 2), v, self.joined_inputs([0, 0], [n, n]).0),
            };
        };
        let slot = view.slots[slot];
        let pool = view.pools[slot.pool];
        let cells = self.cells_of_tokens(slot.pool);
        let (Some(groups), Some(compressed)) = (args.compressed, slot.compressed) else {
            let keys = self.store("cache_k", slot.type_k, slot.k, pool, &[(k, cells)]);
            let values = v.map(|v| self.store("cache_v", slot.type_v, slot.v, pool, &[(v, cells)]));
            return (keys, values, self.cell_lists(slot.pool, pool.n_kv));
        };
        let of_groups = view.pools[compressed];
        let (lists, group_cells) = self.joined_inputs([slot.pool, compressed], [pool.n_cells, of_groups.n_kv]);
        let both = PoolView {
            n_cells: pool.n_cells + of_groups.n_cells,
            n_kv: pool.n_cells + of_groups.n_kv,
        };
        let rows = [(k, cells), (groups, group_cells)];
        let keys = self.store("cache_k", slot.type_k, slot.k, both, &rows);
        (keys, None, lists)
    }

    /// Returns the KV cache requirements of a call with these keys and values.
    fn kv_spec(&self, k: TensorId, v: Option<TensorId>, args: &AttentionArgs) -> KvSpec {
        let row = |x: TensorId| self.g.tensor(x).ne[0] * self.g.tensor(x).ne[1];
        let position = || {
            key_position(
                self.g,
                [self.inputs.positions, self.inputs.axes],
                k,
                v.map_or(ValueStorage::InKeys(args.v_in_k.unwrap_or(0)), ValueStorage::Stored),
                &self.tables.leafs,
            )
        };
        KvSpec {
            layer: self.layer.unwrap_or(0) as usize,
            k_row: row(k),
            v_row: v.map_or(0, row),
            v_in_k: v.map_or(args.v_in_k.unwrap_or(0), |_| 0),
            n_head_kv: self.g.tensor(k).ne[1],
            window: args.window,
            compressed: args.compressed.map(|_| args.ratio.max(1)),
            // Compressed keys cannot be shifted together with their tokens.
            key_position: match (args.compressed, args.window) {
                (None, Window::None | Window::Sliding(_) | Window::Chunked(_) | Window::Symmetric(_)) => position(),
                _ => KeyPosition::Fixed,
            },
        }
    }

    /// Writes rows to their cells in a cache and returns the first `n_kv` cells as heads. The result is a
    /// view of the last write, so that no evaluation order can read before the write.
    fn store(
        &mut self,
        name: &'static str,
        ty: GgmlType,
        home: BufferSlice,
        pool: PoolView,
        rows: &[(TensorId, TensorId)],
    ) -> TensorId {
        let ne = self.g.tensor(rows[0].0).ne;
        let row = ne[0] * ne[1];
        let full = Name {
            base: name,
            layer: self.layer,
        };
        let mut cache = self
            .g
            .external(ty, [row, pool.n_cells, 1, 1], full, home, Flags::default());
        for &(x, cells) in rows {
            let flat = self.merge(x);
            let written = self.g.set_rows(cache, flat, cells);
            cache = self.ok(written, x);
        }
        self.heads_of_rows(cache, [ne[0], ne[1], pool.n_kv], rows[0].0)
    }

    /// Returns the first `n` rows of a cache as heads: `[head, n_head, n]`. In case of an error, returns `instead`.
    pub(super) fn heads_of_rows(
        &mut self,
        cache: TensorId,
        [head, n_head, n]: [usize; 3],
        instead: TensorId,
    ) -> TensorId {
        let ty = self.g.tensor(cache).ty;
        let block = ty.block_size();
        let row_bytes = head * n_head / block * ty.block_bytes();
        let nb = [
            ty.block_bytes(),
            head / block * ty.block_bytes(),
            row_bytes,
            row_bytes * n,
        ];
        let view = self.g.view(cache, [head, n_head, n, 1], nb, 0);
        self.ok(view, instead)
    }

    fn cells_of_tokens(&mut self, pool: usize) -> TensorId {
        let n = self.params.n_tokens;
        let g = &mut *self.g;
        *self.inputs.pools[pool]
            .cells
            .get_or_insert_with(|| g.input(GgmlType::I64, [n, 1, 1, 1], "cells"))
    }

    /// Returns the operands that define which of the cells the tokens see.
    pub(super) fn visible(&mut self, cells: CellLists) -> VisibleCells<TensorId> {
        VisibleCells {
            cell_pos: cells.positions,
            pos: self.positions(),
            table: self.table_of_token(),
            starts: cells.tables.starts,
            pages: cells.tables.pages,
            masks: cells.tables.masks,
        }
    }

    /// Returns the maximum number of page tables in a ubatch, one per sequence.
    pub(super) fn n_tables(&self) -> usize {
        self.params.n_tokens.min(self.params.n_seq_max).max(1)
    }

    fn cell_lists(&mut self, pool: usize, n_kv: usize) -> CellLists {
        let n_tables = self.n_tables();
        let g = &mut *self.g;
        let inputs = &mut self.inputs.pools[pool];
        CellLists {
            positions: *inputs
                .positions
                .get_or_insert_with(|| g.input(GgmlType::I32, [n_kv, 1, 1, 1], "cell_positions")),
            tables: *inputs
                .tables
                .get_or_insert_with(|| table_inputs(g, n_tables, n_kv.div_ceil(PAGE))),
            compressed_from: None,
        }
    }

    /// Returns the cell lists for two pools with `n` cells each, and the destination cells of compressed
    /// keys.
    fn joined_inputs(&mut self, pools: [usize; 2], n: [usize; 2]) -> (CellLists, TensorId) {
        let known = self.inputs.joined.iter().find(|j| j.pools == pools).copied();
        let joined = known.unwrap_or_else(|| {
            let (n_tokens, n_tables) = (self.params.n_tokens, self.n_tables());
            let n_pages = n.map(|n| n.div_ceil(PAGE)).iter().sum();
            let joined = JoinedInputs {
                pools,
                cells: self.g.input(GgmlType::I64, [n_tokens, 1, 1, 1], "group_cells"),
                positions: self.g.input(GgmlType::I32, [n[0] + n[1], 1, 1, 1], "cell_positions"),
                tables: table_inputs(self.g, n_tables, n_pages),
            };
            self.inputs.joined.push(joined);
            joined
        });
        let lists = CellLists {
            positions: joined.positions,
            tables: joined.tables,
            compressed_from: Some(n[0]),
        };
        (lists, joined.cells)
    }
}

/// Creates inputs for `n_tables` page tables of up to `n_pages` pages each.
pub(super) fn table_inputs(g: &mut Graph, n_tables: usize, n_pages: usize) -> TableInputs {
    let n_entries = [n_tables * n_pages, 1, 1, 1];
    TableInputs {
        starts: g.input(GgmlType::I32, [n_tables + 1, 1, 1, 1], "table_starts"),
        pages: g.input(GgmlType::I32, n_entries, "table_pages"),
        masks: g.input(GgmlType::I64, n_entries, "table_masks"),
    }
}

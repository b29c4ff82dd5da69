//! Fills the inputs of a graph; one function per kind of input.

use std::iter::repeat;
use std::sync::Arc;

use crate::builder::{EncodedInputs, Inputs, JoinedInputs, PatchGrid, PoolInputs, TableInputs};
use crate::graph::{Graph, NO_ROW, PAGE, ROPE_AXES, TensorId};
use crate::sched::{SchedError, Scheduler};

use super::adapt::Adapters;
use super::batch::BatchToken;
use super::encoded::Encoded;
use super::grid_inputs::{grid_factors, table_weights};
use super::hybrid::Memory;
use super::media::MediaRows;
use super::outputs::Outputs;
use super::pages::{PageTables, TableSeqs};
use super::sinusoids::{grid_sinusoids, sinusoids};

/// Source data for the inputs of a graph.
#[derive(Clone, Copy)]
pub(super) struct Ubatch<'a> {
    pub tokens: &'a [BatchToken],
    /// Cell memory; `None` for graphs over the batch itself.
    pub memory: Option<&'a Memory>,
    pub outputs: &'a Outputs,
    pub adapters: &'a Adapters,
    pub encoded: &'a Encoded,
    /// Hidden states that precede the tokens, if graphs need them.
    pub hidden: &'a [f32],
    /// Media that rows among the tokens belong to.
    pub media: &'a [Arc<MediaRows>],
    /// Image, if the graph belongs to an encoder.
    pub image: ImageInput<'a>,
    /// Rows given to the encoder; empty for zeros.
    pub frames: &'a [f32],
}

impl<'a> Ubatch<'a> {
    /// Returns a ubatch of tokens without cell memory, hidden states, media, image, and frames.
    pub fn new(
        tokens: &'a [BatchToken],
        outputs: &'a Outputs,
        adapters: &'a Adapters,
        encoded: &'a Encoded,
    ) -> Ubatch<'a> {
        Ubatch {
            tokens,
            memory: None,
            outputs,
            adapters,
            encoded,
            hidden: &[],
            media: &[],
            image: ImageInput::default(),
            frames: &[],
        }
    }
}

/// Image that an encoder reads; empty for other graphs.
#[derive(Clone, Copy, Default)]
pub(super) struct ImageInput<'a> {
    /// Normalized colors of each patch.
    pub patches: &'a [f32],
    /// Index of each patch in reading order.
    pub places: &'a [i32],
    pub grid: PatchGrid,
}

/// Reusable staging buffers for input values.
#[derive(Default)]
pub(super) struct Staging {
    i32s: Vec<i32>,
    i64s: Vec<i64>,
    f32s: Vec<f32>,
    seqs: TableSeqs,
    tables: PageTables,
}

impl Staging {
    /// Reserves memory for ubatches of `n_tokens` tokens with media rows of `width` values.
    pub fn reserve_media(&mut self, n_tokens: usize, width: usize) {
        self.f32s.reserve(n_tokens * width);
    }

    /// Reserves memory for ubatches of `n_tokens` tokens in `n_seqs` sequences and lists of `n_cells` cells.
    pub fn reserve(&mut self, n_tokens: usize, n_seqs: usize, n_cells: usize) {
        self.i32s.reserve(n_cells.max(ROPE_AXES * n_tokens));
        self.i64s.reserve(n_tokens);
        // A list over two pools can have two partial pages.
        let (n_tables, n_pages) = (n_tokens.min(n_seqs), n_cells.max(n_tokens) / PAGE + 2);
        self.tables.reserve(n_tables, n_tables * n_pages);
    }
}

/// Writer for the inputs of a graph. Inputs that the graph does not use are skipped.
pub(super) struct InputWriter<'a> {
    pub sched: &'a mut Scheduler,
    pub graph: &'a Graph,
    pub staging: &'a mut Staging,
}

type Result = std::result::Result<(), SchedError>;

impl InputWriter<'_> {
    /// Fills all inputs of a graph.
    pub fn write(&mut self, inputs: &Inputs, ubatch: Ubatch<'_>) -> Result {
        self.staging.seqs.set(ubatch.tokens);
        self.write_tokens(inputs, ubatch.tokens)?;
        self.write_outputs(inputs, ubatch.tokens, ubatch.outputs)?;
        self.write_adapter_scales(inputs, ubatch.tokens, ubatch.adapters)?;
        self.write_encoded(&inputs.encoded, ubatch.encoded)?;
        self.set(inputs.hidden, ubatch.hidden)?;
        self.write_image(inputs, ubatch.image)?;
        self.write_sinusoids(inputs, ubatch.tokens)?;
        self.write_media(inputs, ubatch)?;
        self.write_frames(inputs, ubatch.frames)?;
        let Some(memory) = ubatch.memory else {
            let mut pools = inputs.pools.iter();
            return pools.try_for_each(|pool| self.write_batch_as_pool(pool, ubatch.tokens));
        };
        self.write_states(inputs, memory)?;
        for (index, pool) in inputs.pools.iter().enumerate() {
            self.write_pool(pool, memory, index, ubatch.tokens.len())?;
        }
        let n_tokens = ubatch.tokens.len();
        inputs
            .joined
            .iter()
            .try_for_each(|j| self.write_joined(j, memory, n_tokens))
    }

    fn write_tokens(&mut self, inputs: &Inputs, tokens: &[BatchToken]) -> Result {
        let positions = tokens.iter().map(|t| t.pos);
        // The graph replaces the embeddings of media rows, so any token serves.
        let id = |t: &BatchToken| if t.media.is_some() { 0 } else { t.token as i32 };
        self.set_i32s(inputs.tokens, tokens.iter().map(id))?;
        self.set_i32s(inputs.positions, positions)?;
        let along = |axis: usize| tokens.iter().map(move |t| t.axes.at[axis]);
        self.set_i32s(inputs.axes, (0..ROPE_AXES).flat_map(along))?;
        let Some(id) = inputs.table_of_token else { return Ok(()) };
        let Staging { i32s, seqs, .. } = &mut *self.staging;
        i32s.clear();
        i32s.extend(tokens.iter().map(|t| seqs.table_of(t)));
        self.sched.set_input(self.graph, id, bytemuck::cast_slice(i32s))
    }

    fn write_image(&mut self, inputs: &Inputs, image: ImageInput<'_>) -> Result {
        self.set(inputs.patches, image.patches)?;
        self.set(inputs.places, image.places)?;
        for resize in &inputs.resize {
            self.set(Some(resize.weights), &table_weights(resize))?;
        }
        for of_base in &inputs.grid_factors {
            let n_pairs = self.graph.tensor(of_base.factors).ne[0];
            self.set(
                Some(of_base.factors),
                &grid_factors(of_base.base, of_base.spread, n_pairs),
            )?;
        }
        Ok(())
    }

    fn write_sinusoids(&mut self, inputs: &Inputs, tokens: &[BatchToken]) -> Result {
        for s in &inputs.sinusoids {
            self.set(Some(s.rows), &sinusoids(s))?;
        }
        for &id in &inputs.grid_sinusoids {
            let d = self.graph.tensor(id).ne[0];
            let places = tokens.iter().map(|token| [token.axes.at[1], token.axes.at[0]]);
            self.set(Some(id), &grid_sinusoids(d, places))?;
        }
        for &id in &inputs.columns {
            let n = self.graph.tensor(id).ne[0];
            self.set_i32s(Some(id), (0..n).map(|i| i as i32))?;
        }
        for d in &inputs.distances {
            let first = d.middle + d.before;
            self.set_i32s(Some(d.rows), (0..=d.before + d.after).map(|i| (first - i) as i32))?;
        }
        Ok(())
    }

    fn write_outputs(&mut self, inputs: &Inputs, tokens: &[BatchToken], outputs: &Outputs) -> Result {
        self.set_i32s(inputs.out_ids, outputs.ids(tokens))?;
        self.set(inputs.shares, outputs.shares())
    }

    fn write_adapter_scales(&mut self, inputs: &Inputs, tokens: &[BatchToken], adapters: &Adapters) -> Result {
        for (adapter, &scales) in inputs.adapter_scales.iter().enumerate() {
            // The f32 scales are copied as raw bits.
            let scale = |t: &BatchToken| adapters.scale(adapter, t.seqs).to_bits() as i32;
            self.set_i32s(scales, tokens.iter().map(scale))?;
        }
        Ok(())
    }

    /// Writes the rows of media, zeros for tokens, and a factor that removes the embeddings of rows.
    fn write_media(&mut self, inputs: &Inputs, ubatch: Ubatch<'_>) -> Result {
        let Some((rows, is_token)) = inputs.media else {
            return Ok(());
        };
        // The features of the layers follow the values that replace the embedding.
        for (part, id) in std::iter::once((0, rows)).chain(inputs.features.iter().copied()) {
            self.write_rows(id, part, ubatch)?;
        }
        let f32s = &mut self.staging.f32s;
        f32s.clear();
        let factor = |t: &BatchToken| if t.media.is_some() { 0.0 } else { 1.0 };
        f32s.extend(ubatch.tokens.iter().map(factor));
        self.sched.set_input(self.graph, is_token, bytemuck::cast_slice(f32s))
    }

    /// Writes a part of the rows of media, and zeros for tokens.
    fn write_rows(&mut self, id: TensorId, part: usize, ubatch: Ubatch<'_>) -> Result {
        let width = self.graph.tensor(id).ne[0];
        let row_of = |t: &BatchToken| {
            let row = t.media?;
            let row = ubatch.media.get(row.medium as usize)?.row(row.row as usize)?;
            row.chunks_exact(width).nth(part)
        };
        let f32s = &mut self.staging.f32s;
        f32s.clear();
        for token in ubatch.tokens {
            match row_of(token) {
                Some(row) => f32s.extend_from_slice(row),
                None => f32s.extend(std::iter::repeat_n(0.0, width)),
            }
        }
        self.sched.set_input(self.graph, id, bytemuck::cast_slice(f32s))
    }

    fn write_frames(&mut self, inputs: &Inputs, frames: &[f32]) -> Result {
        let Some(id) = inputs.frames else { return Ok(()) };
        if frames.is_empty() {
            let n = self.graph.tensor(id).ne.iter().product();
            return self.set(inputs.frames, &vec![0.0f32; n]);
        }
        self.set(inputs.frames, frames)
    }

    fn write_encoded(&mut self, inputs: &EncodedInputs, encoded: &Encoded) -> Result {
        self.set(inputs.rows, encoded.rows())?;
        self.set_i32s(inputs.positions, encoded.tokens().iter().map(|t| t.pos))?;
        self.set_i64s(inputs.cells, 0..encoded.len() as i64)?;
        self.write_tables(inputs.tables, |seq, _, tables| {
            tables.push_cells(seq, encoded.tokens().iter().map(|t| t.seqs));
        })
    }

    /// Without a KV cache, the cells are the tokens of the batch.
    fn write_batch_as_pool(&mut self, pool: &PoolInputs, tokens: &[BatchToken]) -> Result {
        self.set_i32s(pool.positions, tokens.iter().map(|t| t.pos))?;
        self.write_tables(pool.tables, |seq, _, tables| {
            tables.push_cells(seq, tokens.iter().map(|t| t.seqs));
        })
    }

    fn write_states(&mut self, inputs: &Inputs, memory: &Memory) -> Result {
        let Some((from, to)) = inputs.states else {
            return Ok(());
        };
        let (from_cells, to_cells) = memory.states.moves();
        self.set(Some(from), from_cells)?;
        self.set(Some(to), to_cells)
    }

    /// Writes the cells of a pool. Tokens without a cell pad the ubatch and are not stored.
    fn write_pool(&mut self, pool: &PoolInputs, memory: &Memory, index: usize, n_tokens: usize) -> Result {
        let (cells, n_kv) = (&memory.kv.pools()[index], memory.view().pools[index].n_kv);
        let stored = memory.kv.cells_of(index).iter().copied();
        self.set_i64s(pool.cells, stored.chain(repeat(NO_ROW)).take(n_tokens))?;
        self.set(pool.positions, &cells.positions()[..n_kv])?;
        self.write_tables(pool.tables, |seq, from, tables| cells.push_table(seq, from, 0, tables))
    }

    fn write_joined(&mut self, joined: &JoinedInputs, memory: &Memory, n_tokens: usize) -> Result {
        let [tokens, groups] = joined.pools.map(|p| &memory.kv.pools()[p]);
        let n_groups = memory.view().pools[joined.pools[1]].n_kv;
        let first_group = tokens.len() as i64;
        let cells = memory.kv.cells_of(joined.pools[1]).iter();
        let cells = cells.map(|&c| if c == NO_ROW { c } else { first_group + c });
        self.set_i64s(Some(joined.cells), cells.chain(repeat(NO_ROW)).take(n_tokens))?;
        let positions = tokens.positions().iter().chain(&groups.positions()[..n_groups]);
        self.set_i32s(Some(joined.positions), positions.copied())?;
        self.write_tables(Some(joined.tables), |seq, from, tables| {
            tokens.push_table(seq, from, 0, tables);
            groups.push_table(seq, from, tokens.len(), tables);
        })
    }

    /// Writes the page table of each sequence in the ubatch; `push` appends the pages of a sequence with a
    /// given lowest query position.
    fn write_tables(&mut self, inputs: Option<TableInputs>, push: impl Fn(usize, i32, &mut PageTables)) -> Result {
        let Some(inputs) = inputs else { return Ok(()) };
        let Staging { seqs, tables, .. } = &mut *self.staging;
        tables.clear();
        for (seq, from) in seqs.iter() {
            push(seq, from, tables);
            tables.end();
        }
        // Entries beyond the last table are unused.
        let lists = [
            (inputs.starts, bytemuck::cast_slice(&tables.starts)),
            (inputs.pages, bytemuck::cast_slice(&tables.pages)),
            (inputs.masks, bytemuck::cast_slice(&tables.masks)),
        ];
        lists
            .into_iter()
            .try_for_each(|(id, front)| self.sched.write_tensor(self.graph, id, 0, front))
    }

    fn set<T: bytemuck::NoUninit>(&mut self, id: Option<TensorId>, values: &[T]) -> Result {
        let Some(id) = id else { return Ok(()) };
        self.sched.set_input(self.graph, id, bytemuck::cast_slice(values))
    }

    fn set_i32s(&mut self, id: Option<TensorId>, values: impl Iterator<Item = i32>) -> Result {
        let Some(id) = id else { return Ok(()) };
        self.staging.i32s.clear();
        self.staging.i32s.extend(values);
        self.sched
            .set_input(self.graph, id, bytemuck::cast_slice(&self.staging.i32s))
    }

    fn set_i64s(&mut self, id: Option<TensorId>, values: impl Iterator<Item = i64>) -> Result {
        let Some(id) = id else { return Ok(()) };
        self.staging.i64s.clear();
        self.staging.i64s.extend(values);
        self.sched
            .set_input(self.graph, id, bytemuck::cast_slice(&self.staging.i64s))
    }
}

/// Expands text positions to all axes, axis by axis: all axes advance together.
pub(super) fn along_axes(positions: impl Iterator<Item = i32> + Clone) -> impl Iterator<Item = i32> {
    (0..ROPE_AXES).flat_map(move |_| positions.clone())
}

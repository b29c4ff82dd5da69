//! Active adapters of a context and their scales. Every change reserves memory for the new graphs, so that
//! decoding does not allocate.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::adapter::{ControlVector, LoraAdapter, PendingLeaf, PlacedLeaf, place};
use crate::backend::{BackendError, Buffer, BufferType, MemoryMap, Usage};
use crate::builder::{Adaptation, AdapterLeaf, LowRankTerm};
use crate::digest::Digest;
use crate::graph::{BufferId, BufferSlice};
use crate::model::Model;

use super::SetAdaptersError;
use super::batch::SeqSet;

/// Adapter with a user-defined scale.
pub type ScaledAdapter = (Arc<LoraAdapter>, f32);

/// Active adapters.
#[derive(Default)]
pub(super) struct Adapters {
    /// Adapters that graphs are built with.
    pub adaptation: Adaptation,
    config: AdapterConfig,
    scales: Scales,
    /// Adapter buffers that the current graphs reference.
    in_use: Vec<BufferId>,
    /// Ids of released buffers, available for reuse.
    free: Vec<BufferId>,
}

/// Requested adapters.
#[derive(Clone, Default)]
pub(super) struct AdapterConfig {
    loras: Vec<ScaledAdapter>,
    /// LoRA adapters of individual sequences, which override `loras`.
    by_seq: BTreeMap<usize, Vec<ScaledAdapter>>,
    directions: Option<Directions>,
}

impl AdapterConfig {
    /// Returns the default adapters of all sequences.
    pub fn loras(&self) -> &[ScaledAdapter] {
        &self.loras
    }

    /// Returns the adapters of a sequence.
    pub fn loras_of(&self, seq: usize) -> &[ScaledAdapter] {
        self.by_seq.get(&seq).unwrap_or(&self.loras)
    }

    /// Replaces the default adapters; `None` if nothing changes.
    pub fn with_loras(&self, loras: &[ScaledAdapter]) -> Option<AdapterConfig> {
        if is_same(loras, &self.loras) {
            return None;
        }
        Some(AdapterConfig {
            loras: loras.to_vec(),
            ..self.clone()
        })
    }

    /// Sets or removes the override of a sequence; `None` if nothing changes.
    pub fn with_seq_loras(&self, seq: usize, loras: Option<&[ScaledAdapter]>) -> Option<AdapterConfig> {
        let unchanged = match (self.by_seq.get(&seq), loras) {
            (Some(before), Some(loras)) => is_same(before, loras),
            (before, loras) => before.is_none() && loras.is_none(),
        };
        if unchanged {
            return None;
        }
        let mut config = self.clone();
        match loras {
            Some(loras) => config.by_seq.insert(seq, loras.to_vec()),
            None => config.by_seq.remove(&seq),
        };
        Some(config)
    }

    /// Replaces the sum of control vectors; `None` if there was none and there still is none.
    pub fn with_directions(&self, directions: Option<Directions>) -> Option<AdapterConfig> {
        if directions.is_none() && self.directions.is_none() {
            return None;
        }
        Some(AdapterConfig {
            directions,
            ..self.clone()
        })
    }
}

/// Scales by sequence. A single graph serves all sequences: it applies every adapter to every token, with the
/// scale of the token's sequence.
#[derive(Default)]
struct Scales {
    /// All adapters used by any sequence; empty if all sequences use the same adapters and scales.
    adapters: Vec<Arc<LoraAdapter>>,
    /// `[n_seq_max, adapters]`
    by_seq: Vec<f32>,
}

/// Sum of control vectors, stored on the devices of their layers.
#[derive(Clone)]
pub(super) struct Directions {
    by_layer: Vec<Option<PlacedLeaf>>,
    buffers: Vec<Arc<dyn Buffer>>,
    /// Digest of the sum, for comparison.
    digest: u64,
}

impl Adapters {
    /// Returns the requested adapters.
    pub fn config(&self) -> &AdapterConfig {
        &self.config
    }

    /// Applies a configuration that differs only in scales, which are graph inputs. Returns any other
    /// configuration as an error.
    pub fn rescale(&mut self, config: AdapterConfig, n_seq_max: usize) -> Result<(), AdapterConfig> {
        let scales = Scales::new(&config, n_seq_max);
        if scales.adapters.is_empty()
            || !scales.has_adapters_of(&self.scales)
            || !Directions::is_same(&config.directions, &self.config.directions)
        {
            return Err(config);
        }
        (self.config, self.scales) = (config, scales);
        Ok(())
    }

    /// Replaces the configuration, registers its buffers in `memory`, and returns the old configuration, to be
    /// passed to [`Adapters::release`]. No graph may be in flight.
    pub fn replace(&mut self, config: AdapterConfig, n_seq_max: usize, memory: &mut MemoryMap) -> Adapters {
        let mut next = Adapters {
            free: std::mem::take(&mut self.free),
            ..Adapters::default()
        };
        let (scales, mut terms) = (Scales::new(&config, n_seq_max), Vec::new());
        if scales.adapters.is_empty() {
            for (lora, scale) in config.loras.iter().filter(|(_, scale)| *scale != 0.0) {
                next.add_terms(memory, lora, *scale, None, &mut terms);
            }
        }
        for (k, lora) in scales.adapters.iter().enumerate() {
            next.add_terms(memory, lora, 1.0, Some(k), &mut terms);
        }
        let mut by_layer = Vec::new();
        if let Some(directions) = &config.directions {
            let ids = next.register(memory, &directions.buffers);
            by_layer.extend(directions.by_layer.iter().map(|d| d.map(|d| to_adapter_leaf(d, &ids))));
        }
        next.adaptation = Adaptation::new(terms, by_layer);
        (next.config, next.scales) = (config, scales);
        std::mem::replace(self, next)
    }

    /// Releases the buffers of an unused adapter set.
    pub fn release(&mut self, unused: Adapters, memory: &mut MemoryMap) {
        for &id in &unused.in_use {
            memory.release(id);
        }
        self.free.extend(unused.free);
        self.free.extend(unused.in_use);
    }

    fn add_terms(
        &mut self,
        memory: &mut MemoryMap,
        lora: &LoraAdapter,
        scale: f32,
        per_token: Option<usize>,
        terms: &mut Vec<LowRankTerm>,
    ) {
        let ids = self.register(memory, lora.buffers());
        terms.extend(lora.terms().iter().map(|t| LowRankTerm {
            weight: t.weight,
            applies_to: t.applies_to,
            a: to_adapter_leaf(t.a, &ids),
            b: to_adapter_leaf(t.b, &ids),
            scale: lora.factor(t, scale),
            per_token,
        }));
    }

    fn register(&mut self, memory: &mut MemoryMap, buffers: &[Arc<dyn Buffer>]) -> Vec<BufferId> {
        let ids: Vec<BufferId> = buffers
            .iter()
            .map(|buffer| match self.free.pop() {
                Some(id) => {
                    memory.replace(id, buffer.clone());
                    id
                }
                None => memory.insert(buffer.clone(), Usage::Weights),
            })
            .collect();
        self.in_use.extend(&ids);
        ids
    }

    /// Returns true if all of these sequences have equal scales, so that they can share a token.
    pub fn agree(&self, seqs: SeqSet) -> bool {
        let mut rows = seqs.iter().filter_map(|seq| self.scales.of_seq(seq));
        rows.next().is_none_or(|first| rows.all(|row| row == first))
    }

    /// Returns the scale of an adapter for a token of these sequences, which must [agree](Adapters::agree).
    pub fn scale(&self, adapter: usize, seqs: SeqSet) -> f32 {
        let row = seqs.first().and_then(|seq| self.scales.of_seq(seq));
        row.map_or(0.0, |row| row[adapter])
    }

    /// Returns a digest of the adapters of a sequence, or of all sequences; 0 if there are none.
    pub fn digest(&self, seq: Option<usize>) -> u64 {
        let AdapterConfig {
            loras,
            by_seq,
            directions,
        } = &self.config;
        let of_all = digest(loras);
        let mut parts = Vec::new();
        match seq {
            Some(seq) => parts.extend(by_seq.get(&seq).map_or(of_all, |own| digest(own))),
            None => {
                parts.extend(of_all);
                let own = by_seq.iter().map(|(&seq, own)| (seq, digest(own)));
                let differing = own.filter(|(_, own)| *own != of_all);
                parts.extend(differing.flat_map(|(seq, own)| [seq as u64 + 1, own.unwrap_or(0)]));
            }
        }
        parts.extend(directions.as_ref().map(|d| d.digest));
        if parts.is_empty() {
            return 0;
        }
        // 0 is reserved for "no adapters".
        Digest::of(bytemuck::cast_slice(&parts)).max(1)
    }
}

impl Scales {
    fn of_seq(&self, seq: usize) -> Option<&[f32]> {
        let n = self.adapters.len();
        if n == 0 {
            return None;
        }
        self.by_seq.get(seq * n..(seq + 1) * n)
    }

    fn new(config: &AdapterConfig, n_seq_max: usize) -> Scales {
        let mut adapters: Vec<Arc<LoraAdapter>> = Vec::new();
        if !config.by_seq.is_empty() {
            for (adapter, _) in config.by_seq.values().chain([&config.loras]).flatten() {
                if !adapters.iter().any(|a| Arc::ptr_eq(a, adapter)) {
                    adapters.push(adapter.clone());
                }
            }
        }
        let mut by_seq = vec![0.0; n_seq_max * adapters.len()];
        for (seq, row) in by_seq.chunks_exact_mut(adapters.len().max(1)).enumerate() {
            for (adapter, scale) in config.by_seq.get(&seq).unwrap_or(&config.loras) {
                let k = adapters.iter().position(|a| Arc::ptr_eq(a, adapter));
                row[k.expect("`adapters` contains every adapter of the config")] += scale;
            }
        }
        Scales { adapters, by_seq }
    }

    fn has_adapters_of(&self, other: &Scales) -> bool {
        let same = |(a, b): (&Arc<LoraAdapter>, &Arc<LoraAdapter>)| Arc::ptr_eq(a, b);
        self.adapters.len() == other.adapters.len() && self.adapters.iter().zip(&other.adapters).all(same)
    }
}

impl Directions {
    /// Computes the weighted sum of control vectors for `layers` and places each direction in the memory of
    /// its layer's weights. `None` if there are no directions.
    pub fn of(
        vectors: &[(&ControlVector, f32)],
        layers: RangeInclusive<usize>,
        model: &Model,
    ) -> Result<Option<Directions>, BackendError> {
        let n_layer = model.base().n_layer();
        let sum_in = |il| if layers.contains(&il) { sum(vectors, il) } else { None };
        let sums: Vec<Option<Vec<f32>>> = (0..n_layer).map(sum_in).collect();
        let present = sums
            .iter()
            .enumerate()
            .filter_map(|(il, sum)| Some((il, sum.as_deref()?)));
        let mut digest = Digest::default();
        let mut tensors = Vec::new();
        for (il, sum) in present {
            digest.update(&(il as u64).to_le_bytes());
            digest.update(bytemuck::cast_slice(sum));
            tensors.push(PendingLeaf {
                memory: memory_of_layer(model, il),
                ty: kernels::GgmlType::F32,
                ne: [sum.len(), 1, 1, 1],
                data: bytemuck::cast_slice(sum).into(),
            });
        }
        if tensors.is_empty() {
            return Ok(None);
        }
        let placed = place(&tensors)?;
        let (mut leafs, buffers) = (placed.leafs.into_iter(), placed.buffers);
        let by_layer = sums.iter().map(|sum| sum.as_ref().and_then(|_| leafs.next())).collect();
        Ok(Some(Directions {
            by_layer,
            buffers,
            digest: digest.finish(),
        }))
    }

    fn is_same(a: &Option<Directions>, b: &Option<Directions>) -> bool {
        a.as_ref().map(|d| d.digest) == b.as_ref().map(|d| d.digest)
    }
}

fn is_same(a: &[ScaledAdapter], b: &[ScaledAdapter]) -> bool {
    let same = |(a, b): (&ScaledAdapter, &ScaledAdapter)| Arc::ptr_eq(&a.0, &b.0) && a.1 == b.1;
    a.len() == b.len() && a.iter().zip(b).all(same)
}

/// Returns a digest of a list of adapters; `None` if all scales are zero.
fn digest(adapters: &[ScaledAdapter]) -> Option<u64> {
    let mut digest = Digest::default();
    let mut active = adapters.iter().filter(|(_, scale)| *scale != 0.0).peekable();
    active.peek()?;
    for (adapter, scale) in active {
        digest.update(&adapter.digest().to_le_bytes());
        digest.update(&scale.to_le_bytes());
    }
    Some(digest.finish())
}

/// Checks that the adapters belong to the model and have finite scales.
pub(super) fn check_loras(adapters: &[ScaledAdapter], model: &Arc<Model>) -> Result<(), SetAdaptersError> {
    for (adapter, scale) in adapters {
        let path = || adapter.path().to_owned();
        if !adapter.is_of(model) {
            return Err(SetAdaptersError::OtherModel { path: path() });
        }
        check_scale(*scale, path)?;
    }
    Ok(())
}

/// Checks that the control vectors match the model and have finite scales.
pub(super) fn check_vectors(vectors: &[(&ControlVector, f32)], model: &Model) -> Result<(), SetAdaptersError> {
    let base = model.base();
    for (vector, scale) in vectors {
        let path = || vector.path().to_owned();
        if (vector.n_embd(), vector.n_layer()) != (base.n_embd(), base.n_layer()) {
            return Err(SetAdaptersError::OtherModel { path: path() });
        }
        check_scale(*scale, path)?;
    }
    Ok(())
}

fn check_scale(found: f32, path: impl Fn() -> std::path::PathBuf) -> Result<(), SetAdaptersError> {
    if found.is_finite() {
        return Ok(());
    }
    Err(SetAdaptersError::Scale { path: path(), found })
}

/// Returns the buffer type of the weights of a layer.
fn memory_of_layer(model: &Model, layer: usize) -> Arc<dyn BufferType> {
    let mut leafs = model.leafs().iter();
    match leafs.find(|leaf| leaf.name.layer == Some(layer as u32)) {
        Some(leaf) => model.buffers()[leaf.home.buffer.0 as usize].buffer_type().clone(),
        None => model.device().buffer_type(),
    }
}

/// Returns the weighted sum of the directions of a layer; `None` if there are none.
fn sum(vectors: &[(&ControlVector, f32)], layer: usize) -> Option<Vec<f32>> {
    let mut sum: Option<Vec<f32>> = None;
    for (vector, scale) in vectors {
        let Some(direction) = vector.direction(layer) else {
            continue;
        };
        let sum = sum.get_or_insert_with(|| vec![0.0; direction.len()]);
        sum.iter_mut().zip(direction).for_each(|(s, d)| *s += d * scale);
    }
    sum
}

fn to_adapter_leaf(leaf: PlacedLeaf, ids: &[BufferId]) -> AdapterLeaf {
    AdapterLeaf {
        ty: leaf.ty,
        ne: leaf.ne,
        home: BufferSlice {
            buffer: ids[leaf.buffer],
            offset: leaf.offset,
        },
    }
}

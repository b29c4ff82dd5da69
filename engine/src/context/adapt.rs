//! Adapters of a context: which apply, with what scale. Every change prepares memory anew, so that decoding still takes none.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::adapter::{ControlVector, LoraAdapter, PlacedLeaf, ToPlace, place};
use crate::backend::{BackendError, Buffer, BufferType, Usage};
use crate::builder::{Adaptation, AdapterLeaf, LowRankTerm};
use crate::digest::Digest;
use crate::graph::{BufferId, Home};
use crate::model::Model;

use super::SetAdaptersError;
use super::batch::SeqSet;
use super::runner::GraphRunner;

/// An adapter and the factor that the user gives it.
pub type ScaledAdapter = (Arc<LoraAdapter>, f32);

/// The adapters in use.
#[derive(Default)]
pub(super) struct Adapters {
    /// What graphs are built with.
    pub adaptation: Adaptation,
    config: AdapterConfig,
    scales: Scales,
    /// Buffers that graphs refer to now.
    in_use: Vec<BufferId>,
    /// Ids of buffers that were let go, to be used again.
    free: Vec<BufferId>,
}

/// What the user asked for.
#[derive(Clone, Default)]
pub(super) struct AdapterConfig {
    loras: Vec<ScaledAdapter>,
    /// Sequences with adapters of their own in place of those.
    by_seq: BTreeMap<usize, Vec<ScaledAdapter>>,
    directions: Option<Directions>,
}

impl AdapterConfig {
    /// The adapters of all sequences that have none of their own.
    pub fn loras(&self) -> &[ScaledAdapter] {
        &self.loras
    }

    /// The adapters of a sequence.
    pub fn loras_of(&self, seq: usize) -> &[ScaledAdapter] {
        self.by_seq.get(&seq).unwrap_or(&self.loras)
    }

    /// With these adapters for all sequences; `None` if they are the same.
    pub fn with_loras(&self, loras: &[ScaledAdapter]) -> Option<AdapterConfig> {
        if is_same(loras, &self.loras) {
            return None;
        }
        Some(AdapterConfig {
            loras: loras.to_vec(),
            ..self.clone()
        })
    }

    /// With these adapters for one sequence, or none of its own; `None` if that changes nothing.
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

    /// With this sum of control vectors; `None` if there was none either.
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

/// Factors by sequence. One graph serves all sequences: it applies every adapter to every token, with the factor of the token's sequence.
#[derive(Default)]
struct Scales {
    /// Every adapter that some sequence uses, once; none if the sequences do not differ.
    adapters: Vec<Arc<LoraAdapter>>,
    /// `[n_seq_max, adapters]`
    by_seq: Vec<f32>,
}

/// The sum of control vectors, on the devices of their layers.
#[derive(Clone)]
pub(super) struct Directions {
    by_layer: Vec<Option<PlacedLeaf>>,
    buffers: Vec<Arc<dyn Buffer>>,
    /// What tells the sum from others.
    digest: u64,
}

impl Adapters {
    /// What the user asked for.
    pub fn config(&self) -> &AdapterConfig {
        &self.config
    }

    /// Takes a configuration that leaves the graph as it is, because only factors differ, which are inputs; hands it back otherwise.
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

    /// Puts another configuration in the place of the present one, which is returned for [`Adapters::let_go`]. Nothing may be under way.
    pub fn replace(&mut self, config: AdapterConfig, n_seq_max: usize, runner: &mut GraphRunner) -> Adapters {
        let mut next = Adapters {
            free: std::mem::take(&mut self.free),
            ..Adapters::default()
        };
        let (scales, mut terms) = (Scales::new(&config, n_seq_max), Vec::new());
        if scales.adapters.is_empty() {
            for (lora, scale) in config.loras.iter().filter(|(_, scale)| *scale != 0.0) {
                next.add_terms(runner, lora, *scale, None, &mut terms);
            }
        }
        for (k, lora) in scales.adapters.iter().enumerate() {
            next.add_terms(runner, lora, 1.0, Some(k), &mut terms);
        }
        let mut by_layer = Vec::new();
        if let Some(directions) = &config.directions {
            let ids = next.register(runner, &directions.buffers);
            by_layer.extend(directions.by_layer.iter().map(|d| d.map(|d| at_home(d, &ids))));
        }
        next.adaptation = Adaptation::new(terms, by_layer);
        (next.config, next.scales) = (config, scales);
        std::mem::replace(self, next)
    }

    /// Gives back the buffers of a set that is not used any more.
    pub fn let_go(&mut self, unused: Adapters, runner: &mut GraphRunner) {
        for &id in &unused.in_use {
            runner.buffers_mut().release(id);
        }
        self.free.extend(unused.free);
        self.free.extend(unused.in_use);
    }

    fn add_terms(
        &mut self,
        runner: &mut GraphRunner,
        lora: &LoraAdapter,
        scale: f32,
        per_token: Option<usize>,
        terms: &mut Vec<LowRankTerm>,
    ) {
        let ids = self.register(runner, lora.buffers());
        terms.extend(lora.terms().iter().map(|t| LowRankTerm {
            weight: t.weight,
            applies_to: t.applies_to,
            a: at_home(t.a, &ids),
            b: at_home(t.b, &ids),
            scale: lora.factor(t, scale),
            per_token,
        }));
    }

    fn register(&mut self, runner: &mut GraphRunner, buffers: &[Arc<dyn Buffer>]) -> Vec<BufferId> {
        let ids: Vec<BufferId> = buffers
            .iter()
            .map(|buffer| match self.free.pop() {
                Some(id) => {
                    runner.buffers_mut().replace(id, buffer.clone());
                    id
                }
                None => runner.register_buffer(buffer.clone(), Usage::Weights),
            })
            .collect();
        self.in_use.extend(&ids);
        ids
    }

    /// True if a token that belongs to all of these sequences has one answer to how it is adapted.
    pub fn agree(&self, seqs: SeqSet) -> bool {
        let mut rows = seqs.iter().filter_map(|seq| self.scales.of_seq(seq));
        rows.next().is_none_or(|first| rows.all(|row| row == first))
    }

    /// The factor of an adapter for a token of these sequences, which [agree](Adapters::agree).
    pub fn scale(&self, adapter: usize, seqs: SeqSet) -> f32 {
        let row = seqs.first().and_then(|seq| self.scales.of_seq(seq));
        row.map_or(0.0, |row| row[adapter])
    }

    /// What tells the adapters of a sequence, or of all sequences, from others; 0 is none.
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
        // 0 is taken.
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
                row[k.expect("all adapters are in the list")] += scale;
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
    /// The weighted sum of control vectors in some layers, each layer's where its weights are; `None` if it is empty.
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
            tensors.push(ToPlace {
                memory: memory_of_layer(model, il),
                ty: kernels::GgmlType::F32,
                ne: [sum.len(), 1, 1, 1],
                data: bytemuck::cast_slice(sum),
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

/// What tells a list of adapters from others; `None` if they do nothing.
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

/// An error unless these adapters are of the model, with factors that can be computed with.
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

/// The same for control vectors.
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

/// The kind of memory that the weights of a layer lie in.
fn memory_of_layer(model: &Model, layer: usize) -> Arc<dyn BufferType> {
    let mut leafs = model.leafs().iter();
    match leafs.find(|leaf| leaf.name.layer == Some(layer as u32)) {
        Some(leaf) => model.buffers()[leaf.home.buffer.0 as usize].buffer_type().clone(),
        None => model.device().buffer_type(),
    }
}

/// The weighted sum of the directions of a layer; `None` if there are none.
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

fn at_home(leaf: PlacedLeaf, ids: &[BufferId]) -> AdapterLeaf {
    AdapterLeaf {
        ty: leaf.ty,
        ne: leaf.ne,
        home: Home {
            buffer: ids[leaf.buffer],
            offset: leaf.offset,
        },
    }
}

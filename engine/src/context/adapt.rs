//! Adapters of a context: which apply, with what scale. Every change prepares memory anew, so that decoding still takes none.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::adapter::{AdapterError, ControlVector, LoraAdapter, PlacedLeaf, ToPlace, place};
use crate::backend::{BackendError, Buffer, BufferType, Usage};
use crate::build::{Adaptation, AdapterLeaf, LowRankTerm};
use crate::digest::Digest;
use crate::graph::{BufferId, Home};

use super::batch::SeqSet;
use super::decode::Context;

/// An adapter and the factor that the user gives it.
pub type ScaledAdapter = (Arc<LoraAdapter>, f32);

/// The adapters in use.
#[derive(Default)]
pub(super) struct Adapters {
    /// What graphs are built with.
    pub adaptation: Adaptation,
    wanted: Wanted,
    scales: Scales,
    /// Buffers that graphs refer to now.
    in_use: Vec<BufferId>,
    /// Ids of buffers that were let go, to be used again.
    free: Vec<BufferId>,
}

/// What the user asked for.
#[derive(Clone, Default)]
struct Wanted {
    loras: Vec<ScaledAdapter>,
    /// Sequences with adapters of their own in place of those.
    by_seq: BTreeMap<usize, Vec<ScaledAdapter>>,
    directions: Option<Directions>,
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
struct Directions {
    by_layer: Vec<Option<PlacedLeaf>>,
    buffers: Vec<Arc<dyn Buffer>>,
    /// What tells the sum from others.
    digest: u64,
}

impl Adapters {
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
        let Wanted {
            loras,
            by_seq,
            directions,
        } = &self.wanted;
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

    fn new(wanted: &Wanted, n_seq_max: usize) -> Scales {
        let mut adapters: Vec<Arc<LoraAdapter>> = Vec::new();
        if !wanted.by_seq.is_empty() {
            for (adapter, _) in wanted.by_seq.values().chain([&wanted.loras]).flatten() {
                if !adapters.iter().any(|a| Arc::ptr_eq(a, adapter)) {
                    adapters.push(adapter.clone());
                }
            }
        }
        let mut by_seq = vec![0.0; n_seq_max * adapters.len()];
        for (seq, row) in by_seq.chunks_exact_mut(adapters.len().max(1)).enumerate() {
            for (adapter, scale) in wanted.by_seq.get(&seq).unwrap_or(&wanted.loras) {
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

impl Context {
    /// Applies these adapters, each with its own factor, in place of those before; an empty list restores the model. Sequences with
    /// adapters of their own keep those. Keys and values in the memory stay as they were computed. On an error the old adapters stay.
    pub fn set_adapters(&mut self, adapters: &[ScaledAdapter]) -> Result<(), AdapterError> {
        self.check_adapters(adapters)?;
        if is_same(adapters, &self.adapters.wanted.loras) {
            return Ok(());
        }
        self.adapt(Wanted {
            loras: adapters.to_vec(),
            ..self.adapters.wanted.clone()
        })
    }

    /// Gives a sequence adapters of its own in place of those of [`Context::set_adapters`]; `None` ends that. Sequences with different
    /// adapters can be decoded in one batch. As long as the sequences together use the same adapters in the same order, a change takes
    /// effect at once, without a new graph. Every adapter that some sequence uses is computed for every token of a batch.
    pub fn set_seq_adapters(&mut self, seq: usize, adapters: Option<&[ScaledAdapter]>) -> Result<(), AdapterError> {
        let n_seq_max = self.params().n_seq_max;
        if seq >= n_seq_max {
            return Err(AdapterError::Sequence { seq, n_seq_max });
        }
        self.check_adapters(adapters.unwrap_or(&[]))?;
        let mut wanted = self.adapters.wanted.clone();
        let before = match adapters {
            Some(adapters) => wanted.by_seq.insert(seq, adapters.to_vec()),
            None => wanted.by_seq.remove(&seq),
        };
        let unchanged = match (&before, adapters) {
            (Some(before), Some(adapters)) => is_same(before, adapters),
            (before, adapters) => before.is_none() && adapters.is_none(),
        };
        if unchanged { Ok(()) } else { self.adapt(wanted) }
    }

    /// The adapters of a sequence.
    pub fn seq_adapters(&self, seq: usize) -> &[ScaledAdapter] {
        let wanted = &self.adapters.wanted;
        wanted.by_seq.get(&seq).unwrap_or(&wanted.loras)
    }

    fn check_adapters(&self, adapters: &[ScaledAdapter]) -> Result<(), AdapterError> {
        for (adapter, scale) in adapters {
            let path = || adapter.path().to_owned();
            if !adapter.is_of(&self.model) {
                return Err(AdapterError::OtherModel { path: path() });
            }
            check_scale(*scale, path)?;
        }
        Ok(())
    }

    /// The adapters of all sequences that have none of their own.
    pub fn adapters(&self) -> &[ScaledAdapter] {
        &self.adapters.wanted.loras
    }

    /// Adds these control vectors, each with its own factor, to the results of `layers`, in place of those before; an empty
    /// list removes them. On an error the old ones stay.
    pub fn set_control_vectors(
        &mut self,
        vectors: &[(&ControlVector, f32)],
        layers: RangeInclusive<usize>,
    ) -> Result<(), AdapterError> {
        let base = self.model.base();
        for (vector, scale) in vectors {
            let path = || vector.path().to_owned();
            if (vector.n_embd(), vector.n_layer()) != (base.n_embd(), base.n_layer()) {
                return Err(AdapterError::OtherModel { path: path() });
            }
            check_scale(*scale, path)?;
        }
        let sums: Vec<Option<Vec<f32>>> = (0..base.n_layer())
            .map(|il| if layers.contains(&il) { sum(vectors, il) } else { None })
            .collect();
        let directions = self.place_directions(&sums).map_err(super::ContextError::from)?;
        if directions.is_none() && self.adapters.wanted.directions.is_none() {
            return Ok(());
        }
        self.adapt(Wanted {
            directions,
            ..self.adapters.wanted.clone()
        })
    }

    /// Puts each layer's direction where the layer's weights are.
    fn place_directions(&self, sums: &[Option<Vec<f32>>]) -> Result<Option<Directions>, BackendError> {
        let by_layer = sums.iter().enumerate();
        let present = by_layer.filter_map(|(il, sum)| Some((il, sum.as_deref()?)));
        let tensors: Vec<ToPlace<'_>> = present
            .map(|(il, sum)| ToPlace {
                memory: self.memory_of_layer(il),
                ty: kernels::GgmlType::F32,
                ne: [sum.len(), 1, 1, 1],
                data: bytemuck::cast_slice(sum),
            })
            .collect();
        if tensors.is_empty() {
            return Ok(None);
        }
        let placed = place(&tensors)?;
        let (mut leafs, buffers) = (placed.leafs.into_iter(), placed.buffers);
        let by_layer = sums.iter().map(|sum| sum.as_ref().and_then(|_| leafs.next())).collect();
        let mut digest = Digest::default();
        for (il, sum) in sums.iter().enumerate() {
            if let Some(sum) = sum {
                digest.update(&(il as u64).to_le_bytes());
                digest.update(bytemuck::cast_slice(sum));
            }
        }
        Ok(Some(Directions {
            by_layer,
            buffers,
            digest: digest.finish(),
        }))
    }

    /// The kind of memory that the weights of a layer lie in.
    fn memory_of_layer(&self, layer: usize) -> Arc<dyn BufferType> {
        let mut leafs = self.model.leafs().iter();
        match leafs.find(|leaf| leaf.name.layer == Some(layer as u32)) {
            Some(leaf) => self.model.buffers()[leaf.home.buffer.0 as usize].buffer_type().clone(),
            None => self.model.device().buffer_type(),
        }
    }

    /// Takes another set of adapters, or, on an error, keeps the old one.
    fn adapt(&mut self, wanted: Wanted) -> Result<(), AdapterError> {
        let scales = Scales::new(&wanted, self.params().n_seq_max);
        let old = &mut self.adapters;
        if !scales.adapters.is_empty()
            && scales.has_adapters_of(&old.scales)
            && Directions::is_same(&wanted.directions, &old.wanted.directions)
        {
            // The factors are inputs: the graph is the same.
            (old.wanted, old.scales) = (wanted, scales);
            return Ok(());
        }
        // Graphs still being computed read the old buffers.
        self.sched.synchronize().map_err(super::ContextError::from)?;
        let mut next = Adapters {
            free: std::mem::take(&mut self.adapters.free),
            ..Adapters::default()
        };
        let mut terms = Vec::new();
        if scales.adapters.is_empty() {
            for (lora, scale) in wanted.loras.iter().filter(|(_, scale)| *scale != 0.0) {
                self.add_terms(&mut next, lora, *scale, None, &mut terms);
            }
        }
        for (k, lora) in scales.adapters.iter().enumerate() {
            self.add_terms(&mut next, lora, 1.0, Some(k), &mut terms);
        }
        let mut by_layer = Vec::new();
        if let Some(directions) = &wanted.directions {
            let ids = self.register(&mut next, &directions.buffers);
            by_layer.extend(directions.by_layer.iter().map(|d| d.map(|d| at_home(d, &ids))));
        }
        next.adaptation = Adaptation::new(terms, by_layer);
        (next.wanted, next.scales) = (wanted, scales);

        let old = std::mem::replace(&mut self.adapters, next);
        let reserved = self.reserve();
        // Whichever set is not used any more gives its buffers back.
        let unused = match reserved {
            Ok(()) => old,
            Err(_) => std::mem::replace(&mut self.adapters, old),
        };
        for &id in &unused.in_use {
            self.sched.memory.release(id);
        }
        self.adapters.free.extend(unused.free);
        self.adapters.free.extend(unused.in_use);
        Ok(reserved?)
    }

    fn add_terms(
        &mut self,
        adapters: &mut Adapters,
        lora: &LoraAdapter,
        scale: f32,
        per_token: Option<usize>,
        terms: &mut Vec<LowRankTerm>,
    ) {
        let ids = self.register(adapters, lora.buffers());
        terms.extend(lora.terms().iter().map(|t| LowRankTerm {
            weight: t.weight,
            applies_to: t.applies_to,
            a: at_home(t.a, &ids),
            b: at_home(t.b, &ids),
            scale: lora.factor(t, scale),
            per_token,
        }));
    }

    fn register(&mut self, adapters: &mut Adapters, buffers: &[Arc<dyn Buffer>]) -> Vec<BufferId> {
        let ids: Vec<BufferId> = buffers
            .iter()
            .map(|buffer| match adapters.free.pop() {
                Some(id) => {
                    self.sched.memory.replace(id, buffer.clone());
                    id
                }
                None => self.sched.register_buffer(buffer.clone(), Usage::Weights),
            })
            .collect();
        adapters.in_use.extend(&ids);
        ids
    }
}

impl Directions {
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

fn check_scale(found: f32, path: impl Fn() -> std::path::PathBuf) -> Result<(), AdapterError> {
    if found.is_finite() {
        return Ok(());
    }
    Err(AdapterError::Scale { path: path(), found })
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

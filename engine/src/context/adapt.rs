//! Adapters of a context: which apply, with what scale. Every change prepares memory anew, so that decoding still takes none.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::adapter::{AdapterError, ControlVector, LoraAdapter, PlacedLeaf, ToPlace, place};
use crate::backend::{BackendError, Buffer, BufferType, Usage};
use crate::build::{Adaptation, AdapterLeaf, LowRankTerm};
use crate::graph::{BufferId, Home};

use super::decode::Context;

/// An adapter and the factor that the user gives it.
pub type ScaledAdapter = (Arc<LoraAdapter>, f32);

/// The adapters in use.
#[derive(Default)]
pub(super) struct Adapters {
    /// What graphs are built with.
    pub adaptation: Adaptation,
    loras: Vec<ScaledAdapter>,
    directions: Option<Directions>,
    /// Buffers that graphs refer to now.
    in_use: Vec<BufferId>,
    /// Ids of buffers that were let go, to be used again.
    free: Vec<BufferId>,
}

/// The sum of control vectors, on the devices of their layers.
#[derive(Clone)]
struct Directions {
    by_layer: Vec<Option<PlacedLeaf>>,
    buffers: Vec<Arc<dyn Buffer>>,
}

impl Context {
    /// Applies these adapters, each with its own factor, in place of those before; an empty list restores the model.
    /// Keys and values in the memory stay as they were computed. On an error the old adapters stay.
    pub fn set_adapters(&mut self, adapters: &[ScaledAdapter]) -> Result<(), AdapterError> {
        for (adapter, scale) in adapters {
            let path = || adapter.path().to_owned();
            if !adapter.is_of(&self.model) {
                return Err(AdapterError::OtherModel { path: path() });
            }
            check_scale(*scale, path)?;
        }
        let same = |(a, b): (&ScaledAdapter, &ScaledAdapter)| Arc::ptr_eq(&a.0, &b.0) && a.1 == b.1;
        if adapters.len() == self.adapters.loras.len() && adapters.iter().zip(&self.adapters.loras).all(same) {
            return Ok(());
        }
        self.adapt(adapters.to_vec(), self.adapters.directions.clone())
    }

    /// The adapters in use.
    pub fn adapters(&self) -> &[ScaledAdapter] {
        &self.adapters.loras
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
        if directions.is_none() && self.adapters.directions.is_none() {
            return Ok(());
        }
        self.adapt(self.adapters.loras.clone(), directions)
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
        Ok(Some(Directions { by_layer, buffers }))
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
    fn adapt(&mut self, loras: Vec<ScaledAdapter>, directions: Option<Directions>) -> Result<(), AdapterError> {
        // Graphs still being computed read the old buffers.
        self.sched.synchronize().map_err(super::ContextError::from)?;
        let mut next = Adapters {
            free: std::mem::take(&mut self.adapters.free),
            ..Adapters::default()
        };
        let mut terms = Vec::new();
        for (lora, scale) in loras.iter().filter(|(_, scale)| *scale != 0.0) {
            let ids = self.register(&mut next, lora.buffers());
            terms.extend(lora.terms().iter().map(|t| LowRankTerm {
                weight: t.weight,
                applies_to: t.applies_to,
                a: at_home(t.a, &ids),
                b: at_home(t.b, &ids),
                scale: lora.factor(t, *scale),
            }));
        }
        let mut by_layer = Vec::new();
        if let Some(directions) = &directions {
            let ids = self.register(&mut next, &directions.buffers);
            by_layer.extend(directions.by_layer.iter().map(|d| d.map(|d| at_home(d, &ids))));
        }
        next.adaptation = Adaptation::new(terms, by_layer);
        (next.loras, next.directions) = (loras, directions);

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

//! Where the intermediate results of a graph lie: a [`Plan`] by lifetimes, and the buffers behind it.
//!
//! [`GraphAllocator::reserve`] is called with the largest graphs; [`GraphAllocator::assign`] then writes a home into every
//! tensor of each graph to be computed. A graph of the same form as the planned one, with no tensor larger, takes the plan
//! as it is: no memory is taken from the heap or from a device.

mod arena;
mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::backend::{BackendError, BufferType, MemoryMap, Usage, same_buffer_type};
use crate::graph::{BufferId, Graph, Home, Tensor, TensorId};

pub use plan::{Order, Place, Plan, Step};

use plan::Memories;

/// Why a graph could not be given memory.
#[derive(Debug, thiserror::Error)]
pub enum AllocError {
    /// A tensor's size exceeds the address space.
    #[error("{tensor} ({ty} {ne:?}): its size does not fit the address space")]
    TooLarge {
        /// Name of the tensor.
        tensor: String,
        /// Its type.
        ty: kernels::GgmlType,
        /// Its shape, innermost first.
        ne: [usize; 4],
    },
    /// A node comes before one of its operands, or the operand is missing from the order.
    #[error("{node} is to be computed before its operand {operand} exists")]
    NotInOrder {
        /// Name of the node.
        node: String,
        /// Name of the operand.
        operand: String,
    },
    /// A buffer could not be had.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl AllocError {
    fn too_large(tensor: &Tensor) -> AllocError {
        AllocError::TooLarge {
            tensor: tensor.name.to_string(),
            ty: tensor.ty,
            ne: tensor.ne,
        }
    }
}

/// One real buffer behind a chunk of the plan.
#[derive(Clone, Copy, Debug)]
struct Slot {
    id: BufferId,
    /// 0 while it has no memory.
    size: usize,
}

/// What several plans need, see [`GraphAllocator::note_plan`].
#[derive(Clone, Debug, Default)]
pub struct PlannedChunks(Vec<Vec<usize>>);

/// Places the tensors of graphs in memory of one or several buffer types.
///
/// Types are given by position, one per backend for instance; equal types share memory. Tables are indexed by tensor and
/// kept from graph to graph. The buffers are listed in a [`MemoryMap`], which must be the same one in every call.
pub struct GraphAllocator {
    /// Distinct types.
    types: Vec<Arc<dyn BufferType>>,
    /// Index into `types` for each type given to [`GraphAllocator::new`].
    memory_of: Vec<usize>,
    plan: Plan,
    /// Plans made so far.
    n_plans: u64,
    /// By memory, then chunk.
    slots: Vec<Vec<Slot>>,
}

impl GraphAllocator {
    /// An allocator over these types. Takes no memory yet.
    pub fn new(types: &[Arc<dyn BufferType>]) -> GraphAllocator {
        let mut distinct: Vec<Arc<dyn BufferType>> = Vec::new();
        let memory_of = types
            .iter()
            .map(|ty| {
                let known = distinct.iter().position(|d| same_buffer_type(&**d, &**ty));
                known.unwrap_or_else(|| {
                    distinct.push(ty.clone());
                    distinct.len() - 1
                })
            })
            .collect();
        GraphAllocator {
            plan: Plan::new(distinct.iter().map(|t| &**t)),
            n_plans: 0,
            slots: vec![Vec::new(); distinct.len()],
            types: distinct,
            memory_of,
        }
    }

    /// Plans a graph without touching any buffer. `type_of` gives the position of each tensor's type.
    pub fn plan(
        &mut self,
        graph: &Graph,
        order: Order<'_>,
        type_of: impl Fn(TensorId) -> usize,
    ) -> Result<&Plan, AllocError> {
        let memories = Memories {
            types: &self.types,
            of: &|id| self.memory_of[type_of(id)],
        };
        self.n_plans += 1;
        if let Err(e) = self.plan.make(graph, order, &memories) {
            self.plan.clear();
            return Err(e);
        }
        Ok(&self.plan)
    }

    /// Plans a graph and sees to it that the buffers can hold it. Buffers never shrink.
    pub fn reserve(
        &mut self,
        graph: &Graph,
        order: Order<'_>,
        type_of: impl Fn(TensorId) -> usize,
        memory: &mut MemoryMap,
    ) -> Result<(), AllocError> {
        self.plan(graph, order, type_of)?;
        self.grow_buffers(memory)
    }

    /// Writes a home into every tensor of the order that is not external, planning anew only if the last plan does not fit.
    pub fn assign(
        &mut self,
        graph: &mut Graph,
        order: Order<'_>,
        type_of: impl Fn(TensorId) -> usize,
        memory: &mut MemoryMap,
    ) -> Result<(), AllocError> {
        if !self.fits(graph, order, &type_of) {
            self.plan(graph, order, type_of)?;
        }
        self.grow_buffers(memory)?;
        self.write_homes(graph, order);
        Ok(())
    }

    /// The last part of [`assign`](GraphAllocator::assign), for a caller that knows that the last plan
    /// [`fits`](GraphAllocator::fits) and that the buffers need [not grow](GraphAllocator::must_grow).
    pub fn write_homes(&self, graph: &mut Graph, order: Order<'_>) {
        for &leaf in order.leafs {
            self.place(graph, leaf);
        }
        for &step in order.steps {
            match step {
                Step::Compute(id) | Step::Copy { to: id, .. } => self.place(graph, id),
            }
        }
    }

    /// True if [`assign`](GraphAllocator::assign) would take the last plan as it is.
    pub fn fits(&self, graph: &Graph, order: Order<'_>, type_of: impl Fn(TensorId) -> usize) -> bool {
        let memories = Memories {
            types: &self.types,
            of: &|id| self.memory_of[type_of(id)],
        };
        self.plan.fits(graph, order, &memories)
    }

    /// A number that each plan changes. Graphs whose homes were written under the same one have their leafs in the same places, which
    /// no other tensor of any of them overlaps.
    pub fn plan_number(&self) -> u64 {
        self.n_plans
    }

    /// True if the buffers as they are cannot hold the last plan, so that the next `assign` replaces some.
    pub fn must_grow(&self) -> bool {
        (self.slots.iter().enumerate()).any(|(memory, slots)| {
            let mut chunks = self.plan.chunk_sizes(memory).enumerate();
            chunks.any(|(chunk, size)| slots.get(chunk).is_none_or(|slot| slot.size < size))
        })
    }

    /// Bytes of buffers held, for each type given to [`GraphAllocator::new`]; a shared memory counts where it is first named.
    pub fn sizes(&self) -> Vec<usize> {
        self.by_type(|memory| self.slots[memory].iter().map(|slot| slot.size).sum())
    }

    /// As [`sizes`](GraphAllocator::sizes), but what the last plan needs, whether or not it was reserved.
    pub fn planned_sizes(&self) -> Vec<usize> {
        self.by_type(|memory| self.plan.chunk_sizes(memory).fold(0, usize::saturating_add))
    }

    /// Notes what the last plan needs: bytes by memory and chunk, the largest of all plans noted.
    pub fn note_plan(&self, noted: &mut PlannedChunks) {
        noted.0.resize(self.types.len(), Vec::new());
        for (memory, chunks) in noted.0.iter_mut().enumerate() {
            for (chunk, size) in self.plan.chunk_sizes(memory).enumerate() {
                match chunks.get_mut(chunk) {
                    Some(largest) => *largest = size.max(*largest),
                    None => chunks.push(size),
                }
            }
        }
    }

    /// Bytes of each memory that reserving all plans noted would take, by its name.
    pub fn noted_bytes(&self, noted: &PlannedChunks) -> Vec<(String, usize)> {
        let sum = |chunks: &Vec<usize>| chunks.iter().copied().fold(0, usize::saturating_add);
        let memories = self.types.iter().zip(&noted.0);
        memories
            .map(|(ty, chunks)| (ty.name().to_owned(), sum(chunks)))
            .collect()
    }

    /// The last plan of this graph in readable form.
    pub fn describe(&self, graph: &Graph, order: Order<'_>) -> String {
        self.plan.describe(graph, order, &self.types)
    }

    fn by_type(&self, size_of: impl Fn(usize) -> usize) -> Vec<usize> {
        let first = |i: usize, memory: usize| self.memory_of[..i].iter().all(|&m| m != memory);
        (self.memory_of.iter().enumerate())
            .map(|(i, &memory)| if first(i, memory) { size_of(memory) } else { 0 })
            .collect()
    }

    fn place(&self, graph: &mut Graph, id: TensorId) {
        if let Some(place) = self.plan.place(id) {
            let buffer = self.slots[place.memory][place.chunk].id;
            graph.place(
                id,
                Home {
                    buffer,
                    offset: place.offset,
                },
            );
        }
    }

    /// Sees to it that the buffers can hold the last plan. On failure the plan is dropped, so that a smaller graph is not refused for the sake of a plan that had no memory.
    fn grow_buffers(&mut self, memory: &mut MemoryMap) -> Result<(), AllocError> {
        let grown = self.try_grow_buffers(memory);
        if grown.is_err() {
            self.plan.clear();
        }
        grown
    }

    fn try_grow_buffers(&mut self, memory: &mut MemoryMap) -> Result<(), AllocError> {
        for (m, slots) in self.slots.iter_mut().enumerate() {
            for (chunk, size) in self.plan.chunk_sizes(m).enumerate() {
                match slots.get_mut(chunk) {
                    Some(slot) if slot.size >= size => {}
                    Some(slot) => {
                        // The old memory goes first: both together might be more than the device has.
                        memory.release(slot.id);
                        slot.size = 0;
                        memory.replace(slot.id, self.types[m].allocate(size)?);
                        slot.size = size;
                    }
                    None => {
                        let id = memory.insert(self.types[m].allocate(size)?, Usage::Compute);
                        slots.push(Slot { id, size });
                    }
                }
            }
        }
        Ok(())
    }
}

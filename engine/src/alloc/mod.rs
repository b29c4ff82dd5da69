//! Memory allocation for the intermediate results of a graph: a [`Plan`] by lifetimes, and the buffers behind
//! it.
//!
//! [`GraphAllocator::reserve`] is called with the largest graphs. [`GraphAllocator::assign`] then places
//! every tensor of each graph to compute. A graph with the structure of the planned graph and no larger
//! tensors reuses the plan, without any allocation on the heap or a device.

mod arena;
mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::backend::{BackendError, BufferType, MemoryMap, Usage, same_buffer_type};
use crate::graph::{BufferId, BufferSlice, Graph, Tensor, TensorId};

pub use plan::{AllocPlan, AllocStep, Allocation, Order};

use plan::Memories;

/// Errors of graph allocation.
#[derive(Debug, thiserror::Error)]
pub enum AllocError {
    /// A tensor's size exceeds the address space.
    #[error("cannot allocate tensor {tensor} ({ty} {ne:?}): its size exceeds the address space")]
    TooLarge {
        /// Name of the tensor.
        tensor: String,
        /// Type of the tensor.
        ty: kernels::GgmlType,
        /// Shape of the tensor, innermost dimension first.
        ne: [usize; 4],
    },
    /// A node precedes one of its operands, or the operand is missing from the order.
    #[error("cannot plan node {node}: its operand {operand} is computed later or missing")]
    NotInOrder {
        /// Name of the node.
        node: String,
        /// Name of the operand.
        operand: String,
    },
    /// A buffer could not be allocated.
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

/// The buffer behind a chunk of the plan.
#[derive(Clone, Copy, Debug)]
struct Slot {
    id: BufferId,
    /// Size in bytes; 0 while no memory is allocated.
    size: usize,
}

/// Memory requirements of several plans; see [`GraphAllocator::note_plan`].
#[derive(Clone, Debug, Default)]
pub struct PlannedChunks(Vec<Vec<usize>>);

/// Allocates the tensors of graphs in memory of one or several buffer types.
///
/// Types are given by position, for example one per backend; equal types share memory. Tables are indexed by
/// tensor and reused between graphs. The buffers are stored in a [`MemoryMap`], which must be the same map in
/// every call.
pub struct GraphAllocator {
    /// Distinct types.
    types: Vec<Arc<dyn BufferType>>,
    /// Index into `types` for each type given to [`GraphAllocator::new`].
    memory_of: Vec<usize>,
    plan: AllocPlan,
    /// Number of plans made so far.
    n_plans: u64,
    /// Slots of the buffers, indexed by memory and chunk.
    slots: Vec<Vec<Slot>>,
}

impl GraphAllocator {
    /// Creates an allocator over these types, without allocating memory.
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
            plan: AllocPlan::new(distinct.iter().map(|t| &**t)),
            n_plans: 0,
            slots: vec![Vec::new(); distinct.len()],
            types: distinct,
            memory_of,
        }
    }

    /// Plans a graph without allocating buffers. `type_of` returns the position of each tensor's type.
    pub fn plan(
        &mut self,
        graph: &Graph,
        order: Order<'_>,
        type_of: impl Fn(TensorId) -> usize,
    ) -> Result<&AllocPlan, AllocError> {
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

    /// Plans a graph and grows the buffers to hold it. Buffers never shrink.
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

    /// Assigns a home to every tensor of the order that is not external. Plans the graph only if it does not
    /// fit the last plan.
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

    /// Writes the homes of the last plan; the final step of [`assign`](GraphAllocator::assign).
    ///
    /// Requires that the last plan [`fits`](GraphAllocator::fits) and the buffers need
    /// [not grow](GraphAllocator::must_grow).
    pub fn write_homes(&self, graph: &mut Graph, order: Order<'_>) {
        for &leaf in order.leafs {
            self.place(graph, leaf);
        }
        for &step in order.steps {
            match step {
                AllocStep::Compute(id) | AllocStep::Copy { to: id, .. } => self.place(graph, id),
            }
        }
    }

    /// Returns true if [`assign`](GraphAllocator::assign) would reuse the last plan.
    pub fn fits(&self, graph: &Graph, order: Order<'_>, type_of: impl Fn(TensorId) -> usize) -> bool {
        let memories = Memories {
            types: &self.types,
            of: &|id| self.memory_of[type_of(id)],
        };
        self.plan.fits(graph, order, &memories)
    }

    /// Returns a number that changes with every plan. Graphs placed under the same number have their leafs at
    /// the same locations, where no other tensor of these graphs overlaps them.
    pub fn plan_number(&self) -> u64 {
        self.n_plans
    }

    /// Returns true if the buffers are too small for the last plan, so that the next `assign` replaces some.
    pub fn must_grow(&self) -> bool {
        (self.slots.iter().enumerate()).any(|(memory, slots)| {
            let mut chunks = self.plan.chunk_sizes(memory).enumerate();
            chunks.any(|(chunk, size)| slots.get(chunk).is_none_or(|slot| slot.size < size))
        })
    }

    /// Returns the allocated bytes for each type given to [`GraphAllocator::new`]. Shared memory counts for
    /// the first type that uses it.
    pub fn sizes(&self) -> Vec<usize> {
        self.by_type(|memory| self.slots[memory].iter().map(|slot| slot.size).sum())
    }

    /// Returns the bytes that the last plan needs for each type, whether or not they are allocated.
    pub fn planned_sizes(&self) -> Vec<usize> {
        self.by_type(|memory| self.plan.chunk_sizes(memory).fold(0, usize::saturating_add))
    }

    /// Adds the last plan's requirements to `noted`: the maximum over all plans, by memory and chunk.
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

    /// Returns the bytes that a reservation of all noted plans would need, by name of the memory.
    pub fn noted_bytes(&self, noted: &PlannedChunks) -> Vec<(String, usize)> {
        let sum = |chunks: &Vec<usize>| chunks.iter().copied().fold(0, usize::saturating_add);
        let memories = self.types.iter().zip(&noted.0);
        memories
            .map(|(ty, chunks)| (ty.name().to_owned(), sum(chunks)))
            .collect()
    }

    /// Formats the last plan of this graph for humans.
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
                BufferSlice {
                    buffer,
                    offset: place.offset,
                },
            );
        }
    }

    /// Grows the buffers to hold the last plan. On failure the plan is cleared, so that a smaller graph does
    /// not fit it and is planned on its own.
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
                        // Release first: the device may not have enough memory for both buffers.
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

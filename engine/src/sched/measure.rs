//! Computes the memory that a scheduler would reserve for graphs, without backends or allocation.

use std::sync::Arc;

use crate::alloc::PlannedChunks;
use crate::backend::{BufferType, Device, MemoryMap, Usage};
use crate::graph::{BufferId, Graph};

use super::assign::Site;
use super::{Result, SchedParams, Scheduler};

/// Plans graphs exactly as a [`Scheduler`] over the same devices would.
pub struct Measure {
    sched: Scheduler,
    planned: PlannedChunks,
}

impl Measure {
    /// Creates a planner for these devices, in order of priority with the CPU last.
    pub fn new(devices: &[Arc<dyn Device>], op_offload: bool) -> Measure {
        let sites = devices.iter().map(Site::of).collect();
        Measure {
            sched: Scheduler::over(sites, Vec::new(), MemoryMap::default(), SchedParams { op_offload }),
            planned: PlannedChunks::default(),
        }
    }

    /// Registers an empty buffer that represents tensors in this memory.
    pub fn register(&mut self, memory: &dyn BufferType, usage: Usage) -> Result<BufferId> {
        Ok(self.sched.register_buffer(memory.allocate(0)?, usage))
    }

    /// Adds the requirements of a graph.
    pub fn add(&mut self, graph: &mut Graph) -> Result<()> {
        self.sched.measure(graph)?;
        self.sched.allocator.note_plan(&mut self.planned);
        Ok(())
    }

    /// Returns the bytes needed for the intermediate results of all graphs added so far, which share memory,
    /// by name of the memory.
    pub fn bytes(&self) -> Vec<(String, usize)> {
        self.sched.allocator.noted_bytes(&self.planned)
    }
}

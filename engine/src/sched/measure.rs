//! What a scheduler would reserve for graphs, found out without backends and without memory.

use std::sync::Arc;

use crate::alloc::PlannedChunks;
use crate::backend::{BufferType, Device, MemoryMap, Usage};
use crate::graph::{BufferId, Graph};

use super::assign::Site;
use super::{Result, SchedParams, Scheduler};

/// Plans graphs as a [`Scheduler`] over the same devices places them.
pub struct Measure {
    sched: Scheduler,
    planned: PlannedChunks,
}

impl Measure {
    /// For these devices, in the order of priority, the CPU last.
    pub fn new(devices: &[Arc<dyn Device>], op_offload: bool) -> Measure {
        let sites = devices.iter().map(Site::of).collect();
        Measure {
            sched: Scheduler::over(sites, Vec::new(), MemoryMap::default(), SchedParams { op_offload }),
            planned: PlannedChunks::default(),
        }
    }

    /// A buffer of no bytes, which stands for what lies in this memory.
    pub fn register(&mut self, memory: &dyn BufferType, usage: Usage) -> Result<BufferId> {
        Ok(self.sched.register_buffer(memory.allocate(0)?, usage))
    }

    /// Takes account of a graph.
    pub fn add(&mut self, graph: &mut Graph) -> Result<()> {
        self.sched.measure(graph)?;
        self.sched.allocator.note_plan(&mut self.planned);
        Ok(())
    }

    /// Bytes of intermediate results of all graphs so far, which share memory, by the name of the memory.
    pub fn bytes(&self) -> Vec<(String, usize)> {
        self.sched.allocator.noted_bytes(&self.planned)
    }
}

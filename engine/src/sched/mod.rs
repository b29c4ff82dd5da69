//! placeholder
use crate::backend::*;
use crate::graph::*;
use std::sync::Arc;
/// p
pub struct Scheduler {
    memory: MemoryMap,
}
impl Scheduler {
    /// p
    pub fn new(_b: Vec<Box<dyn Backend>>) -> Scheduler {
        Scheduler {
            memory: MemoryMap::default(),
        }
    }
    /// p
    pub fn register_buffer(&mut self, b: Arc<dyn Buffer>, u: Usage) -> BufferId {
        self.memory.insert(b, u)
    }
    /// p
    pub fn reserve(&mut self, _g: &mut Graph) -> Result<(), BackendError> {
        Ok(())
    }
    /// p
    pub fn alloc_graph(&mut self, _g: &mut Graph) -> Result<(), BackendError> {
        Ok(())
    }
    /// p
    pub fn compute(&mut self, _g: &Graph) -> Result<(), BackendError> {
        Ok(())
    }
    /// p
    pub fn write_tensor(&mut self, _g: &Graph, _t: TensorId, _b: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }
    /// p
    pub fn read_tensor(&mut self, _g: &Graph, _t: TensorId, _b: &mut [u8]) -> Result<(), BackendError> {
        Ok(())
    }
    /// p
    pub fn set_threads(&mut self, _n: usize) {}
    /// p
    pub fn reserved_sizes(&self) -> Vec<usize> {
        vec![]
    }
}

//! The host CPU as a device.

use std::ops::Range;
use std::sync::Arc;

use super::compute::CpuBackend;
use super::error::NAME;
use super::interleaved::INTERLEAVED;
use super::{numa, ops};
use crate::backend::host::{self, DirectUpload, HostBuffer, HostBytes};
use crate::backend::machine::machine_memory;
use crate::backend::{
    Backend, BackendError, BackendParams, Buffer, BufferType, Device, DeviceKind, MemoryMap, Registry, Stored, Upload,
    WeightStorage,
};
use crate::graph::{Graph, Layout, TensorId};

/// The registry of CPU devices. Contains exactly one device, the host CPU.
pub struct CpuRegistry {
    device: Arc<dyn Device>,
}

impl CpuRegistry {
    /// Creates the registry.
    pub fn new() -> CpuRegistry {
        CpuRegistry {
            device: Arc::new(CpuDevice),
        }
    }
}

impl Default for CpuRegistry {
    fn default() -> CpuRegistry {
        CpuRegistry::new()
    }
}

impl Registry for CpuRegistry {
    fn name(&self) -> &str {
        "CPU"
    }

    fn devices(&self) -> Vec<Arc<dyn Device>> {
        vec![self.device.clone()]
    }
}

/// The host CPU.
pub struct CpuDevice;

impl Device for CpuDevice {
    fn name(&self) -> &str {
        NAME
    }

    fn description(&self) -> String {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = processor_name(&text).unwrap_or(std::env::consts::ARCH);
        format!("{model} ({})", kernels::isa().name())
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn memory(&self) -> (usize, usize) {
        machine_memory()
    }

    fn buffer_type(&self) -> Arc<dyn BufferType> {
        host::host_buffer_type()
    }

    fn buffer_from_host(&self, keep: HostBytes) -> Option<Box<dyn Buffer>> {
        Some(Box::new(HostBuffer::over(keep)))
    }

    fn supports_buffer_type(&self, buffer_type: &dyn BufferType) -> bool {
        buffer_type.is_host()
    }

    fn weight_storage(&self) -> Vec<WeightStorage> {
        let storage = |layout| WeightStorage {
            buffer_type: self.buffer_type(),
            layout,
        };
        [INTERLEAVED, Layout::Plain].map(storage).to_vec()
    }

    fn upload(&self, mut buffer: Box<dyn Buffer>) -> Result<Box<dyn Upload>, BackendError> {
        if let Some(buffer) = buffer.as_any_mut().downcast_mut::<HostBuffer>() {
            buffer.use_huge_pages();
        }
        Ok(Box::new(PlacedUpload(DirectUpload(buffer))))
    }

    fn supports_op(&self, graph: &Graph, node: TensorId, _: &MemoryMap) -> bool {
        ops::check(graph, node).is_ok()
    }

    fn backend(self: Arc<Self>, params: &BackendParams) -> Result<Box<dyn Backend>, BackendError> {
        Ok(Box::new(CpuBackend::new(self, params)?))
    }
}

/// An upload that allocates the pages of each matrix on the nodes whose threads read them.
struct PlacedUpload(DirectUpload);

impl Upload for PlacedUpload {
    fn set_tensor(&mut self, tensor: &Stored, rows: Range<usize>, data: &[u8]) -> Result<(), BackendError> {
        if rows.start == 0
            && let Some(bytes) = self.0.0.bytes_mut()
            && let Some(bytes) = bytes.get_mut(tensor.offset..)
        {
            let n_bytes = tensor.nbytes().min(bytes.len());
            let n_matrices = tensor.ne[2] * tensor.ne[3];
            let per_matrix = n_bytes / n_matrices.max(1);
            bytes[..n_bytes].chunks_mut(per_matrix.max(1)).for_each(numa::place);
        }
        self.0.set_tensor(tensor, rows, data)
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn Buffer>, BackendError> {
        Box::new(self.0).finish()
    }
}

/// Returns the processor name in the contents of `/proc/cpuinfo`.
fn processor_name(text: &str) -> Option<&str> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, name) = fields.find(|(key, _)| matches!(key.trim(), "model name" | "Processor" | "cpu model"))?;
    let name = name.trim();
    if name.is_empty() { None } else { Some(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_description_names_the_processor() {
        let text = "processor\t: 0\nmodel name\t: Fast CPU @ 2:1\nflags: a b\n";
        assert_eq!(processor_name(text), Some("Fast CPU @ 2:1"));
        assert_eq!(processor_name("processor : 0\n"), None);
        let description = CpuDevice.description();
        assert!(description.contains(kernels::isa().name()), "{description}");
    }
}

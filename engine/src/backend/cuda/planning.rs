//! A GPU that plans graphs and runs nothing, to find the kernels that models need. Needs no driver and no
//! memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use kernels::Precision;

use super::best;
use super::fuse;
use super::gpu::Gpu;
use super::library;
use super::ops::{self, Unplanned};
use super::parts::ALIGNED;
use super::planned_memory::Addresses;
use super::specializations::{Kernels, Specialization};
use super::writes;
use crate::backend::{
    Backend, BackendError, BackendParams, Buffer, BufferType, Device, DeviceKind, GraphView, MemoryMap, Plan, Stored,
    Upload, WeightStorage, rules,
};
use crate::graph::{Graph, Layout, TensorId};

/// Kernels by description.
type Found = Arc<Mutex<BTreeMap<String, Specialization>>>;

/// A GPU that plans graphs and runs nothing. All results are zeros.
#[derive(Clone)]
pub struct PlanningDevice {
    gpu: Gpu,
    memory: Arc<Addresses>,
    found: Found,
}

impl PlanningDevice {
    /// Creates a GPU with these sizes.
    pub fn new(gpu: Gpu) -> PlanningDevice {
        PlanningDevice {
            gpu,
            memory: Arc::new(Addresses::new()),
            found: Found::default(),
        }
    }

    /// Returns the kernels of all prepared graphs in alphabetical order.
    pub fn kernels(&self) -> Vec<Specialization> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.values().cloned().collect()
    }
}

impl Device for PlanningDevice {
    fn name(&self) -> &str {
        "planning"
    }

    fn description(&self) -> String {
        format!("plans for {:?}", self.gpu)
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Gpu
    }

    fn memory(&self) -> (usize, usize) {
        (1 << 50, 1 << 50)
    }

    fn buffer_type(&self) -> Arc<dyn BufferType> {
        self.memory.clone()
    }

    fn supports_buffer_type(&self, buffer_type: &dyn BufferType) -> bool {
        buffer_type.name() == self.memory.name()
    }

    fn weight_storage(&self) -> Vec<WeightStorage> {
        let storage = |layout| WeightStorage {
            buffer_type: self.buffer_type(),
            layout,
        };
        [ALIGNED, Layout::Plain].map(storage).into()
    }

    fn supports_op(&self, graph: &Graph, node: TensorId, _: &MemoryMap) -> bool {
        ops::check(graph, node, Precision::Exact, self.gpu).is_ok()
    }

    fn upload(&self, buffer: Box<dyn Buffer>) -> Result<Box<dyn Upload>, BackendError> {
        Ok(Box::new(Discard(buffer)))
    }

    fn backend(self: Arc<Self>, params: &BackendParams) -> Result<Box<dyn Backend>, BackendError> {
        Ok(Box::new(PlanningBackend {
            precision: params.precision,
            planning: self.clone(),
            device: self,
        }))
    }
}

/// An upload that drops the data.
struct Discard(Box<dyn Buffer>);

impl Upload for Discard {
    fn set_tensor(&mut self, _: &Stored, _: Range<usize>, _: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn Buffer>, BackendError> {
        Ok(self.0)
    }
}

/// Plans graphs for a [`PlanningDevice`].
struct PlanningBackend {
    device: Arc<dyn Device>,
    planning: Arc<PlanningDevice>,
    precision: Precision,
}

#[derive(Default)]
struct NothingToRun;

impl Plan for NothingToRun {}

impl Backend for PlanningBackend {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn prepare(
        &mut self,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        old: Option<Box<dyn Plan>>,
    ) -> Result<Box<dyn Plan>, BackendError> {
        let mut kernels = Kernels::new(self.precision, self.planning.gpu);
        kernels.add(writes::kernel());
        best::kernels().into_iter().for_each(|kernel| kernels.add(kernel));
        if self.planning.gpu.has_wgmma {
            kernels.add(library::wgmma_probe());
        }
        for step in &fuse::steps(view, memory, self.precision, self.planning.gpu).steps {
            ops::plan_step(view.graph, step, &mut kernels).map_err(|refusal| match refusal {
                Unplanned::Unsupported(_) => rules::unsupported(view.graph, step.first()),
                Unplanned::Error(error) => error,
            })?;
        }
        let mut found = self.planning.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.extend(kernels.found.into_iter().map(|kernel| (kernel.describe(), kernel)));
        Ok(<dyn Plan>::recycle::<NothingToRun>(old))
    }

    fn run(&mut self, _: &mut dyn Plan, _: &Graph, _: &mut MemoryMap, _: &AtomicBool) -> Result<(), BackendError> {
        Ok(())
    }
}

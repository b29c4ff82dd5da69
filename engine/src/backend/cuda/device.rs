//! A device, which is put to use when something is first asked of it that its name does not say.

use std::sync::{Arc, OnceLock};

use kernels::Precision;

use super::backend::CudaBackend;
use super::buffer::{CudaBufferType, CudaUpload};
use super::context::{Context, device_error};
use super::driver::Attribute;
use super::library::Library;
use super::ops;
use super::parts::IN_PARTS;
use super::raw::{Compiler, Driver, Missing, cu};
use crate::backend::{
    Backend, BackendError, BackendParams, Buffer, BufferType, Device, DeviceKind, MemoryMap, Upload, WeightStorage,
};
use crate::graph::{Graph, Layout, TensorId};

/// Compute capability that kernels need: 8.0, that of Ampere.
const MIN_CAPABILITY: i32 = 80;

/// What the driver says of a device without putting it to use.
#[derive(Clone, Debug)]
pub(super) struct Properties {
    pub(super) handle: cu::CUdevice,
    pub(super) name: String,
    /// Bytes.
    pub(super) memory: usize,
    /// Compute capability, 10 times the major plus the minor number.
    pub(super) capability: i32,
    pub(super) multiprocessors: i32,
}

impl Properties {
    /// Those of the device of this number.
    pub(super) fn of(driver: Driver, ordinal: i32) -> super::driver::Result<Properties> {
        let handle = driver.device(ordinal)?;
        let attribute = |attribute| driver.attribute(handle, attribute);
        Ok(Properties {
            handle,
            name: driver.device_name(handle)?,
            memory: driver.device_memory(handle)?,
            capability: 10 * attribute(Attribute::ComputeMajor)? + attribute(Attribute::ComputeMinor)?,
            multiprocessors: attribute(Attribute::Multiprocessors)?,
        })
    }

    /// Why kernels cannot run here, if they cannot.
    pub(super) fn flaw(&self) -> Option<String> {
        let (major, minor) = (self.capability / 10, self.capability % 10);
        (self.capability < MIN_CAPABILITY).then(|| {
            let name = &self.name;
            format!("{name} has compute capability {major}.{minor}, and kernels need 8.0")
        })
    }
}

/// What a device in use consists of.
pub(super) struct Ready {
    pub(super) context: Arc<Context>,
    pub(super) library: Library,
    buffer_type: Arc<CudaBufferType>,
}

/// A card.
pub(super) struct CudaDevice {
    name: String,
    driver: Driver,
    compiler: Result<Compiler, Missing>,
    properties: Properties,
    ready: OnceLock<Result<Arc<Ready>, String>>,
}

impl CudaDevice {
    pub(super) fn new(
        driver: Driver,
        compiler: Result<Compiler, Missing>,
        ordinal: i32,
        properties: Properties,
    ) -> CudaDevice {
        CudaDevice {
            name: format!("cuda{ordinal}"),
            driver,
            compiler,
            properties,
            ready: OnceLock::new(),
        }
    }

    /// Puts the device to use, or says why it cannot be.
    fn ready(&self) -> Result<&Arc<Ready>, BackendError> {
        let start = || {
            let text = |error: &dyn std::fmt::Display| error.to_string();
            let context = Context::new(self.driver, self.properties.handle).map_err(|e| text(&e))?;
            let library =
                Library::new(&context, self.compiler.clone(), self.properties.capability).map_err(|e| text(&e))?;
            let memory = CudaBufferType::new(&self.name, &context, self.properties.memory).map_err(|e| text(&e))?;
            Ok(Arc::new(Ready {
                buffer_type: Arc::new(memory),
                library,
                context,
            }))
        };
        self.ready
            .get_or_init(start)
            .as_ref()
            .map_err(|message| BackendError::Device {
                device: self.name.clone(),
                message: message.clone(),
            })
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> String {
        let Properties {
            name,
            capability,
            multiprocessors,
            ..
        } = &self.properties;
        let (major, minor) = (capability / 10, capability % 10);
        let note = match &self.compiler {
            Ok(_) => String::new(),
            Err(missing) => format!("; only common models run: {missing}"),
        };
        format!("{name} (compute capability {major}.{minor}, {multiprocessors} multiprocessors{note})")
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Gpu
    }

    fn memory(&self) -> (usize, usize) {
        let memory = self.ready().ok().and_then(|ready| ready.context.memory().ok());
        memory.unwrap_or((0, self.properties.memory))
    }

    fn buffer_type(&self) -> Arc<dyn BufferType> {
        match self.ready() {
            Ok(ready) => ready.buffer_type.clone(),
            Err(error) => Arc::new(NoMemory {
                name: self.name.clone(),
                message: error.to_string(),
            }),
        }
    }

    fn supports_buffer_type(&self, buffer_type: &dyn BufferType) -> bool {
        buffer_type.name() == self.name
    }

    fn weight_storage(&self) -> Vec<WeightStorage> {
        let storage = |layout| WeightStorage {
            buffer_type: self.buffer_type(),
            layout,
        };
        [IN_PARTS, Layout::Plain].map(storage).into()
    }

    fn supports_op(&self, graph: &Graph, node: TensorId, _: &MemoryMap) -> bool {
        ops::check(graph, node, Precision::Exact).is_ok()
    }

    fn offload_op(&self, graph: &Graph, node: TensorId) -> bool {
        ops::pays_to_bring_weights(graph, graph.tensor(node))
    }

    fn upload(&self, buffer: Box<dyn Buffer>) -> Result<Box<dyn Upload>, BackendError> {
        let upload = CudaUpload::new(buffer, &self.ready()?.context);
        Ok(Box::new(upload.map_err(|error| device_error(&self.name, &error))?))
    }

    fn backend(self: Arc<Self>, params: &BackendParams) -> Result<Box<dyn Backend>, BackendError> {
        let ready = self.ready()?.clone();
        Ok(Box::new(CudaBackend::new(self, ready, params.precision)?))
    }
}

/// The memory of a device that cannot be used.
struct NoMemory {
    name: String,
    message: String,
}

impl BufferType for NoMemory {
    fn name(&self) -> &str {
        &self.name
    }

    fn alignment(&self) -> usize {
        1
    }

    fn is_host(&self) -> bool {
        false
    }

    fn allocate(&self, _: usize) -> Result<Box<dyn Buffer>, BackendError> {
        Err(BackendError::Device {
            device: self.name.clone(),
            message: self.message.clone(),
        })
    }
}

//! A CUDA device. Its context is created on first use.

use std::env;
use std::ffi::OsStr;
use std::sync::{Arc, OnceLock};

use kernels::Precision;

use super::backend::CudaBackend;
use super::buffer::{CudaBufferType, CudaUpload};
use super::context::{Context, device_error};
use super::driver::Attribute;
use super::gpu::Gpu;
use super::library::Library;
use super::ops;
use super::parts::ALIGNED;
use super::raw::{Compiler, Driver, Missing, cu};
use super::shipped;
use super::state::DeviceState;
use crate::backend::{
    Backend, BackendError, BackendParams, Buffer, BufferType, Device, DeviceKind, MemoryMap, Upload, WeightStorage,
};
use crate::graph::{Graph, Layout, TensorId};

/// Minimum compute capability: 7.5 (Turing).
const MIN_CAPABILITY: i32 = 75;

/// Minimum compute capability of tensor cores that multiply bf16.
const BFLOAT_CAPABILITY: i32 = 80;

/// Compute capabilities of GPUs with HBM: A100, H100 and H200, B200 and B300.
const FAST_MEMORY: [i32; 4] = [80, 90, 100, 103];

/// Environment variable that determines whether the products of prompts are summed in f16: 1 or 0.
const F16_SUMS: &str = "LLAMA_CUDA_F16_SUMS";

/// Returns true if the tensor cores of a GPU sum products in f32 at half the rate of sums in f16. No attribute of a device
/// contains the rate, and GPUs of workstations and servers have the same compute capabilities as GeForce GPUs. `setting` is
/// the value of [`F16_SUMS`].
fn has_half_rate_sums(name: &str, setting: Option<&OsStr>) -> bool {
    setting.map_or(name.contains("GeForce"), |value| value != "0")
}

/// Properties of a device, available without creating a context.
#[derive(Clone, Debug)]
pub(super) struct Properties {
    pub(super) handle: cu::CUdevice,
    pub(super) name: String,
    /// Total memory in bytes.
    pub(super) memory: usize,
    /// Compute capability as 10 * major + minor.
    pub(super) capability: i32,
    pub(super) gpu: Gpu,
}

impl Properties {
    /// Queries the properties of device `ordinal`.
    pub(super) fn of(driver: Driver, ordinal: i32) -> super::driver::Result<Properties> {
        let handle = driver.device(ordinal)?;
        let attribute = |attribute| driver.attribute(handle, attribute);
        let capability = 10 * attribute(Attribute::ComputeMajor)? + attribute(Attribute::ComputeMinor)?;
        let name = driver.device_name(handle)?;
        let has_bfloats = capability >= BFLOAT_CAPABILITY;
        let has_half_rate_sums = has_half_rate_sums(&name, env::var_os(F16_SUMS).as_deref());
        Ok(Properties {
            handle,
            name,
            memory: driver.device_memory(handle)?,
            capability,
            gpu: Gpu {
                multiprocessors: attribute(Attribute::Multiprocessors)?.unsigned_abs(),
                shared_bytes: attribute(Attribute::MaxSharedBytes)?.unsigned_abs(),
                has_bfloats,
                has_half_rate_sums,
                has_fast_memory: FAST_MEMORY.contains(&capability),
                // Determined when the device is used for the first time.
                has_wgmma: false,
            },
        })
    }

    /// Returns the reason why the device cannot run the kernels, or `None` if it can. `missing` is the reason why
    /// kernels cannot be compiled, if any.
    pub(super) fn error(&self, missing: Option<&Missing>) -> Option<String> {
        let (name, major, minor) = (&self.name, self.capability / 10, self.capability % 10);
        let found = format!("{name} has compute capability {major}.{minor}");
        if self.capability < MIN_CAPABILITY {
            return Some(format!("{found}; 7.5 or newer is required"));
        }
        if self.capability >= shipped::ARCHITECTURE {
            return None;
        }
        missing.map(|missing| format!("{found} and no precompiled kernels: {missing}"))
    }
}

/// A CUDA GPU.
pub(super) struct CudaDevice {
    name: String,
    driver: Driver,
    compiler: Result<Compiler, Missing>,
    properties: Properties,
    ready: OnceLock<Result<Arc<DeviceState>, String>>,
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

    /// Creates the device's resources on first use. Returns the error of the first attempt if it failed.
    fn ready(&self) -> Result<&Arc<DeviceState>, BackendError> {
        let start = || {
            let text = |error: &dyn std::fmt::Display| error.to_string();
            let context = Context::new(self.driver, self.properties.handle).map_err(|e| text(&e))?;
            let library = Library::new(&context, self.compiler.clone(), self.properties.capability)?;
            let memory = CudaBufferType::new(&self.name, &context, self.properties.memory).map_err(|e| text(&e))?;
            let gpu = Gpu {
                has_wgmma: library.has_wgmma(self.properties.capability),
                ..self.properties.gpu
            };
            Ok(Arc::new(DeviceState {
                buffer_type: Arc::new(memory),
                library,
                gpu,
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
            name, capability, gpu, ..
        } = &self.properties;
        let multiprocessors = gpu.multiprocessors;
        let (major, minor) = (capability / 10, capability % 10);
        let note = match &self.compiler {
            Ok(_) => String::new(),
            Err(missing) => format!("; only precompiled kernels are available: {missing}"),
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
        [ALIGNED, Layout::Plain].map(storage).into()
    }

    fn supports_op(&self, graph: &Graph, node: TensorId, _: &MemoryMap) -> bool {
        ops::check(graph, node, Precision::Exact, self.properties.gpu).is_ok()
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

/// Memory of a device that failed to initialize. Every allocation returns the error.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geforce_gpus_sum_in_f16_unless_set_otherwise() {
        let found = |name, setting: Option<&str>| has_half_rate_sums(name, setting.map(OsStr::new));
        let names = [
            "NVIDIA GeForce RTX 4090",
            "NVIDIA GeForce RTX 5070 Laptop GPU",
            "NVIDIA L40S",
            "NVIDIA RTX A6000",
        ];
        assert_eq!(names.map(|name| found(name, None)), [true, true, false, false]);
        assert_eq!(
            [Some("0"), Some("1")].map(|setting| found(names[0], setting)),
            [false, true]
        );
        assert!(found("NVIDIA L40S", Some("1")));
    }
}

//! CUDA backend for NVIDIA GPUs. The driver and the NVRTC compiler are loaded at run time. If they are
//! missing, there are no devices, and the registry reports the reason.
//!
//! Modules, from the lowest layer up:
//! - [`gpu`] (sizes of a GPU), [`raw`] (function addresses), [`code`] (forms of compiled kernels), [`driver`] (calls
//!   that return `Result`), [`compile`] (CUDA C++ to machine code or PTX),
//! - [`context`] (ownership of streams, memory, and kernels),
//! - [`kernel`] (sources and specializations), [`cache`] (disk cache), [`shipped`] (precompiled kernels),
//!   [`library`] (kernels of a device, loaded on first use),
//! - [`counters`] (counters of the emulated driver), [`work`] (bytes and operations of launches), [`times`] (measured
//!   times),
//! - [`input_errors`] (invalid input found by kernels), [`writes`] (batches of small writes), [`buffer`], [`parts`]
//!   (weight layout), [`ops`] (kernels for each node), [`fuse`] (fusion of nodes), [`plan`], [`state`] (resources that
//!   backends share), [`backend`], [`device`], [`planning`] and [`planned_memory`] (a GPU that only plans).

mod backend;
mod best;
mod buffer;
mod cache;
mod code;
mod compile;
mod context;
mod counters;
mod device;
mod driver;
mod fuse;
mod gpu;
mod input_errors;
mod kernel;
mod library;
mod ops;
mod parts;
mod plan;
mod planned_memory;
mod planning;
mod raw;
mod shipped;
mod specializations;
mod state;
mod times;
mod work;
mod writes;

use std::sync::{Arc, OnceLock};

use device::{CudaDevice, Properties};
use raw::{Compiler, Driver};

use super::{Device, Registry};

pub use cache::user_cache;
pub use counters::Counters;
pub use gpu::Gpu;
pub use planning::PlanningDevice;
pub use shipped::{n_shipped, pack, use_archive};
pub use specializations::{Specialization, compiler_error, loaded, specializations};
pub use times::{KernelTime, KernelTimes};

/// Minimum CUDA version of the driver: 11.4, the first with `cuGraphInstantiateWithFlags`.
const MIN_VERSION: i32 = 11040;

/// The CUDA devices of this machine. They are enumerated on first use.
#[derive(Default)]
pub struct CudaRegistry {
    found: OnceLock<Discovery>,
}

/// Result of enumerating the CUDA devices.
#[derive(Default)]
struct Discovery {
    devices: Vec<Arc<dyn Device>>,
    /// Reasons why GPUs are missing or unusable.
    problems: Vec<String>,
}

impl CudaRegistry {
    /// Creates a registry without enumerating devices.
    pub fn new() -> CudaRegistry {
        CudaRegistry::default()
    }

    fn found(&self) -> &Discovery {
        self.found.get_or_init(|| {
            find().unwrap_or_else(|error| Discovery {
                devices: Vec::new(),
                problems: vec![error],
            })
        })
    }
}

/// Enumerates the devices. Returns an error if CUDA is unavailable.
fn find() -> Result<Discovery, String> {
    let driver = Driver::find().map_err(|missing| missing.to_string())?;
    let failed = |error: driver::CudaError| error.to_string();
    driver.init().map_err(failed)?;
    let version = driver.version().map_err(failed)?;
    if version < MIN_VERSION {
        return Err(format!(
            "the NVIDIA driver is too old: it supports CUDA {}.{}, but {}.{} or newer is required",
            version / 1000,
            version % 1000 / 10,
            MIN_VERSION / 1000,
            MIN_VERSION % 1000 / 10
        ));
    }
    let compiler = Compiler::find();
    let mut found = Discovery::default();
    for ordinal in 0..driver.device_count().map_err(failed)? {
        match Properties::of(driver, ordinal) {
            Ok(properties) => match properties.error(compiler.as_ref().err()) {
                Some(error) => found.problems.push(format!("cuda{ordinal}: {error}")),
                None => {
                    let device = CudaDevice::new(driver, compiler.clone(), ordinal, properties);
                    found.devices.push(Arc::new(device));
                }
            },
            Err(error) => found.problems.push(format!("cuda{ordinal}: {error}")),
        }
    }
    Ok(found)
}

impl Registry for CudaRegistry {
    fn name(&self) -> &str {
        "cuda"
    }

    fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.found().devices.clone()
    }

    fn problems(&self) -> Vec<String> {
        self.found().problems.clone()
    }
}

//! Cards of NVIDIA's, by the driver and the compiler of kernels that are found when the program runs. Where they are missing there are no
//! devices, and the registry says why.
//!
//! In the order of what builds on what:
//! - [`raw`] (which functions there are), [`driver`] (calls as results), [`compile`] (CUDA C++ to PTX),
//! - [`context`] (what is owned: streams, memory, kernels),
//! - [`kernel`] (sources and specializations), [`cache`], [`shipped`] (kernels as PTX in the binary), [`library`] (kernels of a device, compiled when first asked for),
//! - [`counters`] (what the emulated driver of tests counts),
//! - [`faults`] (what kernels find wrong with data), [`buffer`], [`parts`] (how weights are arranged there), [`ops`] (from a node to the kernels that compute it), [`fuse`] (nodes that are computed in one go), [`plan`], [`backend`], [`device`].

mod backend;
mod buffer;
mod cache;
mod compile;
mod context;
mod counters;
mod device;
mod driver;
mod faults;
mod fuse;
mod kernel;
mod library;
mod ops;
mod parts;
mod plan;
mod raw;
mod shipped;
mod specializations;

use std::sync::{Arc, OnceLock};

use device::{CudaDevice, Properties};
use raw::{Compiler, Driver};

use super::{Device, Registry};

pub use cache::user_cache;
pub use counters::Counters;
pub use shipped::{pack, shipped};
pub use specializations::{Specialization, compiler_flaw, loaded, specializations};

/// The oldest version of CUDA that a driver must support: 11.2, which streams and modules of today need.
const MIN_VERSION: i32 = 11020;

/// The cards of this machine, which are looked for when they are first asked for.
#[derive(Default)]
pub struct CudaRegistry {
    found: OnceLock<Found>,
}

/// What was found.
#[derive(Default)]
struct Found {
    devices: Vec<Arc<dyn Device>>,
    /// Why there are no devices, or fewer than cards.
    flaws: Vec<String>,
}

impl CudaRegistry {
    /// A registry that has not looked yet.
    pub fn new() -> CudaRegistry {
        CudaRegistry::default()
    }

    fn found(&self) -> &Found {
        self.found.get_or_init(|| {
            find().unwrap_or_else(|flaw| Found {
                devices: Vec::new(),
                flaws: vec![flaw],
            })
        })
    }
}

/// Looks for cards. An error if there can be none.
fn find() -> Result<Found, String> {
    let driver = Driver::find().map_err(|missing| missing.to_string())?;
    let failed = |error: driver::CudaError| error.to_string();
    driver.init().map_err(failed)?;
    let version = driver.version().map_err(failed)?;
    if version < MIN_VERSION {
        return Err(format!(
            "the driver supports CUDA {}.{}, and 11.2 is needed",
            version / 1000,
            version % 1000 / 10
        ));
    }
    let compiler = Compiler::find();
    let mut found = Found::default();
    for ordinal in 0..driver.device_count().map_err(failed)? {
        match Properties::of(driver, ordinal) {
            Ok(properties) => match properties.flaw() {
                Some(flaw) => found.flaws.push(format!("cuda{ordinal}: {flaw}")),
                None => {
                    let device = CudaDevice::new(driver, compiler.clone(), ordinal, properties);
                    found.devices.push(Arc::new(device));
                }
            },
            Err(error) => found.flaws.push(format!("cuda{ordinal}: {error}")),
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

    fn flaws(&self) -> Vec<String> {
        self.found().flaws.clone()
    }
}

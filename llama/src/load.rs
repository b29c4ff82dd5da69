//! Loading of models on the devices of this machine.

use std::path::Path;
use std::sync::Arc;

use engine::backend::{self, BackendError, Device, DeviceKind};
use engine::checkpoint::open_model;
use engine::model::{LoadParams, Model, ModelError};

/// Returns the GPUs on which memory can be allocated, and reports each other GPU with its error.
pub fn usable_gpus(mut on_unusable: impl FnMut(&dyn Device, &BackendError)) -> Vec<Arc<dyn Device>> {
    let mut devices = backend::devices();
    devices.retain(|device| {
        if device.kind() != DeviceKind::Gpu {
            return false;
        }
        let allocated = device.buffer_type().allocate(0);
        if let Err(error) = &allocated {
            tracing::debug!(device = device.name(), %error, "cannot use a GPU");
            on_unusable(&**device, error);
        }
        allocated.is_ok()
    });
    devices
}

/// Loads a model from a GGUF file or the directory of a checkpoint.
///
/// # Errors
/// Returns a [`ModelError`] if a file is invalid, the architecture is not registered, or memory is insufficient.
pub fn load_model(path: &Path, params: &LoadParams) -> Result<Model, ModelError> {
    let mapping = if params.archs.is_empty() {
        archs::ALL
    } else {
        &params.archs
    };
    Model::from_set(open_model(path, mapping)?, archs::ALL, params)
}

/// Loads a model like [`load_model`]. If a device of `params` fails, for example because its memory is full, the model
/// is loaded into host memory instead. The result then includes the error message of the device. `params` then lists
/// no devices.
pub fn load_or_use_cpu(path: &Path, params: &mut LoadParams) -> (Result<Model, ModelError>, Option<String>) {
    let loaded = load_model(path, params);
    let Some(error) = device_error(&loaded, &params.placement.devices) else {
        return (loaded, None);
    };
    let message = error.to_string();
    tracing::debug!(%error, "a device failed; loading the model into host memory");
    params.placement.devices.clear();
    params.on_vocab = None;
    (load_model(path, params), Some(message))
}

/// Returns the error of a device, if one of these devices failed.
fn device_error<'a>(loaded: &'a Result<Model, ModelError>, devices: &[Arc<dyn Device>]) -> Option<&'a BackendError> {
    let Err(ModelError::Backend { source, .. }) = loaded else {
        return None;
    };
    let name = match source {
        BackendError::OutOfMemory { buffer_type, .. } => buffer_type,
        BackendError::Device { device, .. } => device,
        _ => return None,
    };
    let is_named = |d: &Arc<dyn Device>| d.name() == name || d.buffer_type().name() == name;
    devices.iter().any(is_named).then_some(source)
}

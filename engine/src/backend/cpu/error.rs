//! Errors of the backend.

use crate::backend::BackendError;

/// Name of the device.
pub(super) const NAME: &str = "cpu";

/// Returns an error of the device with a message.
pub(super) fn error(message: String) -> BackendError {
    BackendError::Device {
        device: NAME.to_string(),
        message,
    }
}

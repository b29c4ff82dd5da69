//! The exported driver functions. Functions with a suffix such as `_v2` have the signatures of current CUDA
//! headers.

mod capture;
mod control;
mod device;
mod elf;
pub mod error;
mod graph;
mod memory;
mod module;
mod pinned;
mod report;
mod run;
mod state;
mod stream;
mod work;

use error::Error;
use state::Outcome;

/// Defines exported functions from `fn cuName(argument: Type) |driver| { body }`, where the body returns an
/// [`Outcome`].
///
/// Like a real driver, the functions rely on the caller to pass valid pointers. A null pointer to a result is
/// an error.
macro_rules! driver_functions {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$driver:ident| $body:block)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// Each pointer is null or valid as documented for this function in the CUDA Driver API.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            $crate::api::state::enter(|$driver| $body)
        }
    )*};
}
pub(crate) use driver_functions;

/// Writes a result through a pointer that the program passed.
fn write_result<T>(to: *mut T, value: T) -> Outcome {
    if to.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: `to` is not null (checked above), so it is valid for a result of this type (contract of the
    // driver functions).
    unsafe { to.write(value) };
    Ok(())
}

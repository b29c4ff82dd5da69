//! The functions of the driver, as C sees them. Those with a suffix such as `_v2` have the signatures that current headers give them.

mod control;
mod device;
pub mod error;
mod graph;
mod memory;
mod module;
mod pinned;
mod report;
mod state;
mod stream;
mod work;

use error::Error;
use state::Outcome;

/// `driver_functions! { fn cuName(argument: Type) |driver| { body } }`: an exported function whose body returns an [`Outcome`].
///
/// The functions trust pointers to results and arguments as the driver does; where they are null, that is an error.
macro_rules! driver_functions {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$driver:ident| $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Pointers are null or point to what the driver's documentation says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            $crate::api::state::enter(|$driver| $body)
        }
    )*};
}
pub(crate) use driver_functions;

/// Writes a result.
fn put<T>(to: *mut T, value: T) -> Outcome {
    if to.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the program gave a place for a result of this type.
    unsafe { to.write(value) };
    Ok(())
}

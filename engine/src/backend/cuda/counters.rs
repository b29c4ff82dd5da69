//! What the emulated driver of tests counts. A real one counts nothing here.

use std::ffi::{CStr, c_char, c_void};

use super::raw::{self, Driver, cu};

/// Gives a kernel a name among the counters.
type TitleFn = unsafe extern "C" fn(*mut c_void, *const c_char) -> u32;
/// Writes the counters as text, if there is room. Its length without the closing 0.
type ReportFn = unsafe extern "C" fn(*mut c_char, usize) -> usize;
type ResetFn = unsafe extern "C" fn();

/// The counters of a driver that has some.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    title: TitleFn,
    report: ReportFn,
    reset: ResetFn,
}

impl Counters {
    /// Those of this machine's driver; `None` unless it is the emulated one.
    pub fn find() -> Option<Counters> {
        Counters::of(Driver::find().ok()?)
    }

    pub(super) fn of(driver: Driver) -> Option<Counters> {
        let address = |name| Some(raw::driver_function(driver, name)).filter(|&address| address != 0);
        let (title, report) = (address(c"llamaEmuTitle")?, address(c"llamaEmuReport")?);
        let reset = address(c"llamaEmuResetCounters")?;
        // SAFETY: these are the types of the emulated driver's functions, and nobody else's are called so.
        unsafe {
            Some(Counters {
                title: raw::at(title),
                report: raw::at(report),
                reset: raw::at(reset),
            })
        }
    }

    /// Calls a kernel something among the counters.
    ///
    /// # Safety
    /// The kernel's module is alive.
    pub(super) unsafe fn entitle(&self, function: cu::CUfunction, title: &CStr) {
        // SAFETY: the caller's promise; the text ends with a zero. Without the title its counters are those of its name.
        let _ = unsafe { (self.title)(function.cast(), title.as_ptr()) };
    }

    /// All counters from now on.
    pub fn reset(&self) {
        // SAFETY: no memory is involved.
        unsafe { (self.reset)() };
    }

    /// The counters as JSON: of each kernel, by its specialization, launches, instructions, and traffic.
    pub fn json(&self) -> String {
        // SAFETY: without room nothing is written.
        let mut text = vec![0u8; unsafe { (self.report)(std::ptr::null_mut(), 0) } + 1];
        // SAFETY: there is as much room as told. Counters that grew in between do not fit, and the text is empty.
        unsafe { (self.report)(text.as_mut_ptr().cast(), text.len()) };
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        text.to_string_lossy().into_owned()
    }
}

//! Performance counters of the emulated driver for tests. Real drivers have none.

use std::ffi::{CStr, c_char, c_void};

use super::raw::{self, Driver, cu};

/// Signature of the function that names a kernel in the counters.
type TitleFn = unsafe extern "C" fn(*mut c_void, *const c_char) -> u32;
/// Signature of the function that formats the counters into a buffer if they fit. Returns the length without
/// the terminating zero.
type ReportFn = unsafe extern "C" fn(*mut c_char, usize) -> usize;
/// Signature of functions that change the state of all counters.
type CommandFn = unsafe extern "C" fn();

/// The counters of an emulated driver.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    title: TitleFn,
    report: ReportFn,
    reset: CommandFn,
    measure_latency: CommandFn,
}

impl Counters {
    /// Returns the counters of this machine's driver, or `None` for a real driver.
    pub fn find() -> Option<Counters> {
        Counters::of(Driver::find().ok()?)
    }

    pub(super) fn of(driver: Driver) -> Option<Counters> {
        let address = |name| Some(raw::driver_function(driver, name)).filter(|&address| address != 0);
        let (title, report) = (address(c"llamaEmuTitle")?, address(c"llamaEmuReport")?);
        let reset = address(c"llamaEmuResetCounters")?;
        let measure_latency = address(c"llamaEmuMeasureLatency")?;
        // SAFETY: these are the signatures of the emulated driver's functions, and no other driver exports
        // these names.
        unsafe {
            Some(Counters {
                title: raw::at(title),
                report: raw::at(report),
                reset: raw::at(reset),
                measure_latency: raw::at(measure_latency),
            })
        }
    }

    /// Names a kernel in the counters.
    ///
    /// # Safety
    /// The kernel's module is alive.
    pub(super) unsafe fn entitle(&self, function: cu::CUfunction, title: &CStr) {
        // SAFETY: the module is alive (function contract), and the title is zero-terminated. On failure the
        // counters use the function's name.
        let _ = unsafe { (self.title)(function.cast(), title.as_ptr()) };
    }

    /// Resets all counters.
    pub fn reset(&self) {
        // SAFETY: the function takes no pointers.
        unsafe { (self.reset)() };
    }

    /// Makes later launches count the latency of their blocks, which slows them down.
    pub fn measure_latency(&self) {
        // SAFETY: the function takes no pointers.
        unsafe { (self.measure_latency)() };
    }

    /// Returns the counters as JSON: launches, instructions, and memory traffic by kernel and specialization.
    pub fn json(&self) -> String {
        // SAFETY: with a buffer size of 0, nothing is written.
        let mut text = vec![0u8; unsafe { (self.report)(std::ptr::null_mut(), 0) } + 1];
        // SAFETY: the buffer has the given size. If the counters have grown in between and do not fit, the
        // result is empty.
        unsafe { (self.report)(text.as_mut_ptr().cast(), text.len()) };
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        text.to_string_lossy().into_owned()
    }
}

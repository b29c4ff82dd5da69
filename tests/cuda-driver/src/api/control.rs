//! Functions that a real driver does not have: settings and counters for tests.

use super::error::Error;
use super::report;
use super::state::{Driver, Handle, enter};
use crate::device::config::Config;
use std::ffi::{CStr, c_char};
use std::sync::Once;

unsafe extern "C" {
    /// Registers a function that runs at normal process exit (C standard library).
    fn atexit(function: extern "C" fn()) -> i32;
}

/// Registers the report of leaks and counters for process exit.
pub fn register_exit_report() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `report_at_exit` is a plain `extern "C"` function without arguments that does not unwind.
        // The result is ignored because a failed registration only loses the report.
        let _ = unsafe { atexit(report_at_exit) };
    });
}

extern "C" fn report_at_exit() {
    enter(|driver| {
        for device in 0..driver.config.devices {
            driver.report_leaks(device);
        }
        if let Some(path) = std::env::var_os("LLAMA_CUDA_EMU_COUNTS")
            && let Err(error) = std::fs::write(&path, driver.counters())
        {
            report::log(&format!("{}: {error}", path.display()));
        }
        Ok(())
    });
}

impl Driver {
    /// Reports allocations that are still alive when the context of `device`, or the process, ends.
    pub fn report_leaks(&mut self, device: u32) {
        let variables = self
            .modules
            .values()
            .filter(|m| m.device == device)
            .flat_map(|m| &m.variables);
        let variables: Vec<u64> = variables.map(|(_, at, _)| *at).collect();
        let regions = self.devices[device as usize].memory.regions();
        let leaks: Vec<_> = regions.iter().filter(|r| !variables.contains(&r.base)).collect();
        for region in &leaks {
            report::log(&format!("leak: {} of {} bytes was not freed", region.name, region.size));
        }
        self.counts.leaks += leaks.len() as u64;
    }
}

/// Writes the counters as null-terminated JSON to `buffer` if they fit. Returns the length without the
/// terminator.
///
/// # Safety
/// `buffer` is null or valid for writes of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llamaEmuReport(buffer: *mut c_char, len: usize) -> usize {
    let mut json = String::new();
    enter(|driver| {
        json = driver.counters();
        Ok(())
    });
    if !buffer.is_null() && len > json.len() {
        // SAFETY: `buffer` is valid for `len > json.len()` bytes (function contract and the check above).
        unsafe {
            buffer.cast::<u8>().copy_from(json.as_ptr(), json.len());
            buffer.add(json.len()).write(0);
        }
    }
    json.len()
}

/// Sets all counters to 0.
#[unsafe(no_mangle)]
pub extern "C" fn llamaEmuResetCounters() {
    enter(|driver| {
        driver.counts = super::work::Counts::default();
        Ok(())
    });
}

/// Makes later launches count the latency of their blocks, which slows them down.
#[unsafe(no_mangle)]
pub extern "C" fn llamaEmuMeasureLatency() {
    enter(|driver| {
        driver.measures_latency = true;
        Ok(())
    });
}

/// Sets the name under which the launches of a kernel are counted. Returns an error number, or 0.
///
/// # Safety
/// `title` points to a null-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llamaEmuTitle(function: Handle, title: *const c_char) -> u32 {
    // SAFETY: `title` is a null-terminated string (function contract).
    let text = unsafe { CStr::from_ptr(title) }.to_string_lossy();
    enter(|driver| {
        let found = driver
            .functions
            .get_mut(&(function as u64))
            .ok_or(Error::INVALID_HANDLE)?;
        found.title = text.as_ref().into();
        Ok(())
    })
}

/// Resets the driver with new settings in the syntax of `LLAMA_CUDA_EMU`; all handles and allocations become
/// invalid. Returns an error number, or 0.
///
/// # Safety
/// `settings` points to a null-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llamaEmuConfigure(settings: *const c_char) -> u32 {
    // SAFETY: `settings` is a null-terminated string (function contract).
    let text = unsafe { CStr::from_ptr(settings) }.to_string_lossy();
    match Config::parse(&text) {
        Ok(config) => enter(|driver| {
            *driver = Driver::new(config);
            Ok(())
        }),
        Err(error) => {
            report::log(&format!("settings: {error}"));
            Error::INVALID_VALUE.0
        }
    }
}

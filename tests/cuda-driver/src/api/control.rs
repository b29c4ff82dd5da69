//! Functions that a real driver does not have: settings and counters for tests.

use super::error::Error;
use super::report;
use super::state::{Driver, Handle, enter};
use crate::device::config::Config;
use std::ffi::{CStr, c_char};
use std::sync::Once;

unsafe extern "C" {
    /// C's: a function for the end of the process.
    fn atexit(function: extern "C" fn()) -> i32;
}

/// At the end of the process, leaks are told and counters written.
pub fn at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function may be called at any time. If it cannot be registered, only the report is missing.
        let _ = unsafe { atexit(end) };
    });
}

extern "C" fn end() {
    enter(|driver| {
        for device in 0..driver.config.devices {
            driver.report_leaks(device);
        }
        if let Some(path) = std::env::var_os("LLAMA_CUDA_EMU_COUNTS")
            && let Err(error) = std::fs::write(&path, driver.counters())
        {
            report::say(&format!("{}: {error}", path.display()));
        }
        Ok(())
    });
}

impl Driver {
    /// Allocations that are alive though their device's context, or the process, ends.
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
            report::say(&format!("leak: {} of {} bytes was not freed", region.name, region.size));
        }
        self.counts.leaks += leaks.len() as u64;
    }
}

/// Writes all counters as JSON with a closing 0, if there is room, and returns its length without that.
///
/// # Safety
/// `buffer` has room for `len` bytes, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llamaEmuReport(buffer: *mut c_char, len: usize) -> usize {
    let mut json = String::new();
    enter(|driver| {
        json = driver.counters();
        Ok(())
    });
    if !buffer.is_null() && len > json.len() {
        // SAFETY: there is room, the caller says.
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

/// Calls a kernel something else among the counters: what a program knows of it that its name does not say. The number of an error, or 0.
///
/// # Safety
/// `title` points to text that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llamaEmuTitle(function: Handle, title: *const c_char) -> u32 {
    // SAFETY: the caller says so.
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

/// Gives the driver other settings, as in `LLAMA_CUDA_EMU`: it begins anew, with nothing allocated. The number of an error, or 0.
///
/// # Safety
/// `settings` points to text that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llamaEmuConfigure(settings: *const c_char) -> u32 {
    // SAFETY: the caller says so.
    let text = unsafe { CStr::from_ptr(settings) }.to_string_lossy();
    match Config::parse(&text) {
        Ok(config) => enter(|driver| {
            *driver = Driver::new(config);
            Ok(())
        }),
        Err(error) => {
            report::say(&format!("settings: {error}"));
            Error::INVALID_VALUE.0
        }
    }
}

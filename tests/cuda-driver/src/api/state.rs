//! The state of the driver, behind one lock. Concurrent calls are serialized, and work runs when it is
//! submitted.

use super::capture::{Capture, Graph};
use super::error::Error;
use super::work::Counts;
use crate::device::config::Config;
use crate::device::memory::{Memory, View};
use crate::device::order::{Clock, StreamOrder};
use crate::exec::grid::Worker;
use crate::exec::inst::Kernel;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Instant;

/// A `CUcontext`, `CUstream`, or other CUDA handle. Handles are numbers; handles of contexts are derived from their
/// devices.
pub type Handle = *mut c_void;

/// Result of a driver call.
pub type Outcome<T = ()> = Result<T, Error>;

/// A pinned allocation.
pub struct Pinned {
    /// Address and size of the allocation.
    pub view: View,
    /// True if kernels may access the memory. Copies to mapped memory are immediately visible.
    pub is_mapped: bool,
    pub layout: std::alloc::Layout,
}

/// A copy to pinned memory that the host has not waited for yet.
pub struct PendingCopy {
    pub stream: u64,
    pub time: u64,
    pub to: u64,
    pub bytes: Vec<u8>,
}

/// The state of the driver.
pub struct Driver {
    pub config: Config,
    pub is_initialized: bool,
    pub devices: Vec<Device>,
    pub pinned: Vec<Pinned>,
    pub pending_copies: Vec<PendingCopy>,
    pub streams: BTreeMap<u64, Stream>,
    /// Destroyed streams whose work the host may not have waited for, with their devices.
    pub destroyed_streams: Vec<(u64, u32)>,
    pub events: HashMap<u64, Event>,
    pub modules: HashMap<u64, LoadedModule>,
    pub functions: HashMap<u64, LoadedFunction>,
    pub graphs: HashMap<u64, Arc<Graph>>,
    pub executables: HashMap<u64, Arc<Graph>>,
    pub captures: HashMap<u64, Capture>,
    pub pools: HashMap<u64, u32>,
    pub workers: Vec<Worker>,
    pub counts: Counts,
    /// True if launches count the latency of their blocks.
    pub measures_latency: bool,
    pub allocations: u64,
    pub launches: u64,
    pub begun_captures: u64,
    pub copies: u64,
    pub order: StreamOrder,
    next: u64,
}

/// The state of a device.
pub struct Device {
    pub memory: Memory,
    /// Reference count of the primary context.
    pub retained: u32,
    /// The error that all calls return after a failed launch.
    pub failed: Option<Error>,
    /// Peer access: for each device, whether kernels of this device may access its memory.
    pub peers: Vec<bool>,
}

/// A stream.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    pub device: u32,
    pub flags: u32,
    pub priority: i32,
    /// Handle of the capture that records the stream.
    pub capture: Option<u64>,
}

/// An event.
#[derive(Debug, Clone, Default)]
pub struct Event {
    pub device: u32,
    pub has_time: bool,
    pub recorded: Option<Instant>,
    /// The capture in which the event was last recorded.
    pub capture: Option<u64>,
    /// The stream in which the event was last recorded.
    pub stream: u64,
    /// Clock of the work that precedes the event.
    pub clock: Clock,
}

/// A loaded module.
pub struct LoadedModule {
    pub device: u32,
    /// Name, address, and size of each variable.
    pub variables: Vec<(String, u64, u32)>,
    pub functions: Vec<(String, u64)>,
}

/// A kernel of a loaded module.
pub struct LoadedFunction {
    pub device: u32,
    pub kernel: Arc<Kernel>,
    pub module: u64,
    pub dynamic_shared_max: u32,
    pub attributes: HashMap<u32, i32>,
    /// Name under which launches are counted.
    pub title: Arc<str>,
}

/// Handle of the legacy default stream.
pub const LEGACY: u64 = 1;
/// Handle of the per-thread default stream.
pub const PER_THREAD: u64 = 2;
const FIRST_HANDLE: u64 = 0x1000;
const CONTEXT: u64 = 0x100;

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| {
    let text = std::env::var("LLAMA_CUDA_EMU").unwrap_or_default();
    let config = Config::parse(&text).unwrap_or_else(|error| {
        eprintln!("cannot parse LLAMA_CUDA_EMU: {error}; no device is emulated");
        Config {
            devices: 0,
            ..Config::default()
        }
    });
    Mutex::new(Driver::new(config))
});

thread_local! {
    /// Device of the calling thread's current context.
    static CONTEXTS: Cell<Option<u32>> = const { Cell::new(None) };
    static STACK: RefCell<Vec<Option<u32>>> = const { RefCell::new(Vec::new()) };
}

/// Runs a driver call under the lock. A panic is returned as `CUDA_ERROR_UNKNOWN`.
pub fn enter(call: impl FnOnce(&mut Driver) -> Outcome) -> u32 {
    let run = || {
        let mut driver = DRIVER.lock().unwrap_or_else(|e| e.into_inner());
        call(&mut driver)
    };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => error.0,
        Err(_) => Error::UNKNOWN.0,
    }
}

impl Driver {
    /// Creates the state before `cuInit`.
    pub fn new(config: Config) -> Self {
        let n = config.devices;
        let device = |d| Device {
            memory: Memory::new(d),
            retained: 0,
            failed: None,
            peers: vec![false; n as usize],
        };
        let workers = (0..config.threads).map(|_| Worker::default()).collect();
        Self {
            devices: (0..n).map(device).collect(),
            config,
            is_initialized: false,
            pinned: Vec::new(),
            pending_copies: Vec::new(),
            streams: BTreeMap::new(),
            destroyed_streams: Vec::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            captures: HashMap::new(),
            pools: HashMap::new(),
            workers,
            counts: Counts::default(),
            measures_latency: false,
            allocations: 0,
            launches: 0,
            begun_captures: 0,
            copies: 0,
            order: StreamOrder::default(),
            next: FIRST_HANDLE,
        }
    }

    /// Returns a new unique handle.
    pub fn handle(&mut self) -> u64 {
        self.next += 16;
        self.next
    }

    /// Checks a device ordinal.
    pub fn device(&mut self, device: i32) -> Outcome<u32> {
        self.check_initialized()?;
        let number = u32::try_from(device).ok().filter(|d| *d < self.config.devices);
        number.ok_or(Error::INVALID_DEVICE)
    }

    /// Returns an error before `cuInit`.
    pub fn check_initialized(&self) -> Outcome {
        if self.is_initialized {
            Ok(())
        } else {
            Err(Error::NOT_INITIALIZED)
        }
    }

    /// Returns the device of the current context.
    ///
    /// # Errors
    /// Returns an error if the thread has no valid context, or the device has failed.
    pub fn current(&self) -> Outcome<u32> {
        self.check_initialized()?;
        let device = CONTEXTS.get().ok_or(Error::INVALID_CONTEXT)?;
        let context = &self.devices[device as usize];
        if context.retained == 0 {
            return Err(Error::INVALID_CONTEXT);
        }
        context.failed.map_or(Ok(device), Err)
    }

    /// Returns the device of the current context, even if it has failed.
    pub fn current_or_failed(&self) -> Outcome<u32> {
        self.check_initialized()?;
        CONTEXTS.get().ok_or(Error::INVALID_CONTEXT)
    }

    /// Returns the error of a failed device.
    pub fn check_not_failed(&self, device: u32) -> Outcome {
        self.devices[device as usize].failed.map_or(Ok(()), Err)
    }

    /// Returns the device of a context handle; `None` for the null handle.
    pub fn context(&self, handle: Handle) -> Outcome<Option<u32>> {
        if handle.is_null() {
            return Ok(None);
        }
        let device = (handle as u64).wrapping_sub(CONTEXT) / 16;
        if device < self.config.devices.into() {
            Ok(Some(device as u32))
        } else {
            Err(Error::INVALID_CONTEXT)
        }
    }

    /// Returns the context handle of a device.
    pub fn context_handle(device: Option<u32>) -> Handle {
        device.map_or(std::ptr::null_mut(), |d| (CONTEXT + 16 * u64::from(d)) as Handle)
    }

    /// Makes the context of a device current for the calling thread.
    pub fn set_current(device: Option<u32>) {
        CONTEXTS.set(device);
    }

    /// Returns the device of the calling thread's current context.
    pub fn get_current() -> Option<u32> {
        CONTEXTS.get()
    }

    /// Pushes the calling thread's current context and makes another one current.
    pub fn push_current(device: Option<u32>) {
        STACK.with_borrow_mut(|stack| stack.push(CONTEXTS.replace(device)));
    }

    /// Restores the previous context and returns the device of the popped one.
    pub fn pop_current() -> Option<u32> {
        let before = STACK.with_borrow_mut(Vec::pop).flatten();
        CONTEXTS.replace(before)
    }

    /// Returns the key and device of a stream. Each device has its own default streams.
    pub fn stream_key(&self, handle: Handle) -> Outcome<(u64, u32)> {
        let key = handle as u64;
        let device = self.current()?;
        match key {
            0 | LEGACY => Ok((LEGACY | u64::from(device) << 40, device)),
            PER_THREAD => Ok((PER_THREAD | u64::from(device) << 40, device)),
            _ => {
                let stream = self.streams.get(&key).ok_or(Error::INVALID_HANDLE)?;
                self.check_not_failed(stream.device)?;
                Ok((key, stream.device))
            }
        }
    }
}

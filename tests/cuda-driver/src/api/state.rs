//! All that the driver knows, behind one lock: calls of several threads come one after the other, and work is done when it is submitted.

use super::error::Error;
use super::graph::{Capture, Graph};
use super::pinned::{Delivery, Pinned};
use super::work::Counts;
use crate::device::config::Config;
use crate::device::memory::Memory;
use crate::device::order::{Clock, Order};
use crate::exec::grid::Worker;
use crate::exec::inst::Kernel;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Instant;

/// Handles are numbers; those of contexts follow from their devices.
pub type Handle = *mut c_void;

/// What calls return within the driver.
pub type Outcome<T = ()> = Result<T, Error>;

/// The driver.
pub struct Driver {
    pub config: Config,
    pub is_initialized: bool,
    pub devices: Vec<Device>,
    pub hosts: Vec<Pinned>,
    pub deliveries: Vec<Delivery>,
    pub streams: BTreeMap<u64, Stream>,
    /// Streams that were destroyed, whose work the host may not have waited for, with their devices.
    pub gone: Vec<(u64, u32)>,
    pub events: HashMap<u64, Event>,
    pub modules: HashMap<u64, Module>,
    pub functions: HashMap<u64, Function>,
    pub graphs: HashMap<u64, Arc<Graph>>,
    pub executables: HashMap<u64, Arc<Graph>>,
    pub captures: HashMap<u64, Capture>,
    pub pools: HashMap<u64, u32>,
    pub workers: Vec<Worker>,
    pub counts: Counts,
    pub allocations: u64,
    pub launches: u64,
    pub copies: u64,
    pub order: Order,
    next: u64,
}

/// A device.
pub struct Device {
    pub memory: Memory,
    /// How often its primary context is retained.
    pub retained: u32,
    /// The error that everything on it returns since a launch failed.
    pub failed: Option<Error>,
    /// Devices whose memory it may touch.
    pub peers: Vec<bool>,
}

/// A stream.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    pub device: u32,
    pub flags: u32,
    pub priority: i32,
    /// The capture that records it.
    pub capture: Option<u64>,
}

/// An event.
#[derive(Debug, Clone, Default)]
pub struct Event {
    pub device: u32,
    pub has_time: bool,
    pub recorded: Option<Instant>,
    /// The capture in which it was recorded last.
    pub capture: Option<u64>,
    /// The stream in which it was recorded last.
    pub stream: u64,
    /// The work that it stands for.
    pub clock: Clock,
}

/// A loaded module.
pub struct Module {
    pub device: u32,
    /// Addresses of its variables.
    pub variables: Vec<(String, u64, u32)>,
    pub functions: Vec<(String, u64)>,
}

/// A kernel of a module.
pub struct Function {
    pub device: u32,
    pub kernel: Arc<Kernel>,
    pub module: u64,
    pub dynamic_shared_max: u32,
    pub attributes: HashMap<u32, i32>,
    /// What it is called among the counters.
    pub title: Arc<str>,
}

/// Handles of streams that are always there.
pub const LEGACY: u64 = 1;
/// As [`LEGACY`].
pub const PER_THREAD: u64 = 2;
const FIRST_HANDLE: u64 = 0x1000;
const CONTEXT: u64 = 0x100;

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| {
    let text = std::env::var("LLAMA_CUDA_EMU").unwrap_or_default();
    let config = Config::parse(&text).unwrap_or_else(|error| {
        eprintln!("LLAMA_CUDA_EMU: {error}; no device is emulated");
        Config {
            devices: 0,
            ..Config::default()
        }
    });
    Mutex::new(Driver::new(config))
});

thread_local! {
    /// Devices of the thread's contexts, the current one last.
    static CONTEXTS: Cell<Option<u32>> = const { Cell::new(None) };
    static STACK: RefCell<Vec<Option<u32>>> = const { RefCell::new(Vec::new()) };
}

/// Runs a call under the lock. A panic is an unknown error.
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
    /// With all devices, not initialized.
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
            hosts: Vec::new(),
            deliveries: Vec::new(),
            streams: BTreeMap::new(),
            gone: Vec::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            captures: HashMap::new(),
            pools: HashMap::new(),
            workers,
            counts: Counts::default(),
            allocations: 0,
            launches: 0,
            copies: 0,
            order: Order::default(),
            next: FIRST_HANDLE,
        }
    }

    /// A new handle.
    pub fn handle(&mut self) -> u64 {
        self.next += 16;
        self.next
    }

    /// A device by number.
    pub fn device(&mut self, device: i32) -> Outcome<u32> {
        self.initialized()?;
        let number = u32::try_from(device).ok().filter(|d| *d < self.config.devices);
        number.ok_or(Error::INVALID_DEVICE)
    }

    /// Refuses calls before `cuInit`.
    pub fn initialized(&self) -> Outcome {
        if self.is_initialized {
            Ok(())
        } else {
            Err(Error::NOT_INITIALIZED)
        }
    }

    /// The device of the calling thread's context, if it still works.
    pub fn current(&self) -> Outcome<u32> {
        self.initialized()?;
        let device = CONTEXTS.get().ok_or(Error::INVALID_CONTEXT)?;
        let context = &self.devices[device as usize];
        if context.retained == 0 {
            return Err(Error::INVALID_CONTEXT);
        }
        context.failed.map_or(Ok(device), Err)
    }

    /// The device of the calling thread's context, even if it failed.
    pub fn current_or_failed(&self) -> Outcome<u32> {
        self.initialized()?;
        CONTEXTS.get().ok_or(Error::INVALID_CONTEXT)
    }

    /// The error of a failed device.
    pub fn working(&self, device: u32) -> Outcome {
        self.devices[device as usize].failed.map_or(Ok(()), Err)
    }

    /// The device of a context; `None`: no context.
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

    /// The context of a device.
    pub fn context_handle(device: Option<u32>) -> Handle {
        device.map_or(std::ptr::null_mut(), |d| (CONTEXT + 16 * u64::from(d)) as Handle)
    }

    /// Makes a device's context the calling thread's.
    pub fn set_current(device: Option<u32>) {
        CONTEXTS.set(device);
    }

    /// The device of the calling thread's context.
    pub fn get_current() -> Option<u32> {
        CONTEXTS.get()
    }

    /// Pushes the calling thread's context and takes another one.
    pub fn push_current(device: Option<u32>) {
        STACK.with_borrow_mut(|stack| stack.push(CONTEXTS.replace(device)));
    }

    /// Back to the context before; the one that was left.
    pub fn pop_current() -> Option<u32> {
        let before = STACK.with_borrow_mut(Vec::pop).flatten();
        CONTEXTS.replace(before)
    }

    /// A stream's key: the default one has that of the legacy stream, of each device its own.
    pub fn stream_key(&self, handle: Handle) -> Outcome<(u64, u32)> {
        let key = handle as u64;
        let device = self.current()?;
        match key {
            0 | LEGACY => Ok((LEGACY | u64::from(device) << 40, device)),
            PER_THREAD => Ok((PER_THREAD | u64::from(device) << 40, device)),
            _ => {
                let stream = self.streams.get(&key).ok_or(Error::INVALID_HANDLE)?;
                self.working(stream.device)?;
                Ok((key, stream.device))
            }
        }
    }
}

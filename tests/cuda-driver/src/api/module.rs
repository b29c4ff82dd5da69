//! Driver functions for modules, kernels, variables, and launches.

use super::device::SHARED_DEFAULT;
use super::elf;
use super::error::Error;
use super::report;
use super::state::{Driver, Handle, LoadedFunction, LoadedModule, Outcome};
use super::work::{LaunchWork, Work};
use super::{driver_functions, write_result};
use crate::decode;
use crate::exec::inst::Kernel;
use crate::ptx::{self, Space};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

/// Options of `cuModuleLoadDataEx` for the buffer that receives compiler errors.
const ERROR_LOG: c_uint = 5;
const ERROR_LOG_BYTES: c_uint = 6;

/// Attribute of `cuFuncSetAttribute`: maximum dynamic shared memory.
const DYNAMIC_SHARED_MAX: c_uint = 8;

/// The launch attribute for early launches.
const PROGRAMMATIC_STREAM_SERIALIZATION: c_int = 6;

/// `CUlaunchAttribute`. The value is a union of 64 bytes.
#[repr(C, align(8))]
pub struct LaunchAttribute {
    id: c_int,
    padding: [u8; 4],
    value: [c_int; 16],
}

/// `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfig {
    blocks: [c_uint; 3],
    threads: [c_uint; 3],
    shared: c_uint,
    stream: Handle,
    attributes: *const LaunchAttribute,
    n_attributes: c_uint,
}

impl LaunchConfig {
    /// Returns true if blocks may start before the previous kernel of the stream is done.
    ///
    /// # Safety
    /// `attributes` has `n_attributes` elements.
    unsafe fn is_early(&self) -> Outcome<bool> {
        let mut is_early = false;
        for i in 0..self.n_attributes as usize {
            // SAFETY: the index is within the array (function contract).
            let attribute = unsafe { &*self.attributes.add(i) };
            if attribute.id != PROGRAMMATIC_STREAM_SERIALIZATION {
                return Err(Error::NOT_SUPPORTED);
            }
            is_early = attribute.value[0] != 0;
        }
        Ok(is_early)
    }
}

impl Driver {
    /// Loads a module, which is null-terminated PTX or machine code, and returns its handle.
    ///
    /// # Errors
    /// Returns the error code, and a message that is empty unless the code is at fault.
    fn load(&mut self, image: *const c_char) -> Result<u64, (Error, String)> {
        let device = self.current().map_err(|e| (e, String::new()))?;
        self.reject_during_capture(device).map_err(|e| (e, String::new()))?;
        if image.is_null() {
            return Err((Error::INVALID_VALUE, String::new()));
        }
        // SAFETY: `image` is null-terminated PTX or an ELF file, which begins with its magic number (contract
        // of `cuModuleLoadData`).
        let bytes = unsafe { CStr::from_ptr(image) }.to_bytes();
        let invalid = |message: String| (Error::INVALID_PTX, message);
        let is_machine_code = bytes.starts_with(b"\x7fELF");
        let text = if is_machine_code {
            // SAFETY: `image` is a complete ELF file (contract of `cuModuleLoadData`).
            unsafe { self.ptx_of_machine_code(image.cast()) }?
        } else {
            std::str::from_utf8(bytes)
                .map_err(|e| invalid(format!("the PTX is not valid UTF-8: {e}")))?
                .to_owned()
        };
        let parsed = ptx::parse(&text).map_err(|e| invalid(e.to_string()))?;
        self.check_target(&parsed, is_machine_code)?;
        let variables = self
            .allocate_variables(device, &parsed)
            .map_err(|e| (e, String::new()))?;
        let addresses: HashMap<_, _> = variables.iter().map(|(name, at, _)| (name.clone(), *at)).collect();
        let entries = parsed.functions.iter().filter(|f| f.is_entry);
        let kernels = entries
            .map(|f| decode::decode(&parsed, f, &addresses))
            .collect::<Result<Vec<_>, _>>();
        match kernels {
            Ok(kernels) if self.config.no_products && kernels.iter().any(|kernel| kernel.has_products) => {
                self.free_variables(device, &variables);
                let message = "the settings of the emulated device refuse `wgmma`";
                Err((Error::INVALID_PTX, message.into()))
            }
            Ok(kernels) => Ok(self.add_module(device, variables, kernels)),
            Err(error) => {
                self.free_variables(device, &variables);
                Err(invalid(error.to_string()))
            }
        }
    }

    /// Returns the PTX in the debug information of machine code. The interpreter runs this PTX, since it cannot
    /// run machine code.
    ///
    /// # Safety
    /// `image` is a complete ELF file.
    unsafe fn ptx_of_machine_code(&self, image: *const u8) -> Result<String, (Error, String)> {
        if !self.config.cubin {
            let message = "the settings of the emulated device refuse machine code";
            return Err((Error::NO_BINARY_FOR_GPU, message.into()));
        }
        // SAFETY: `image` is a complete ELF file (function contract).
        let ptx = unsafe { elf::embedded_ptx(image) };
        ptx.map_err(|message| (Error::INVALID_IMAGE, message))
    }

    /// Checks that the device runs code for this target, and that the driver accepts the version of PTX.
    fn check_target(&self, module: &ptx::Module, is_machine_code: bool) -> Result<(), (Error, String)> {
        let (target, sm) = (module.target, self.config.sm);
        let is_other_major = is_machine_code && target / 10 != sm / 10;
        if target > sm || is_other_major || module.is_specific && target != sm {
            let message = format!("the module requires sm_{target}, but the device is sm_{sm}");
            return Err((Error::NO_BINARY_FOR_GPU, message));
        }
        let (major, minor) = module.version;
        if module.is_specific && (major, minor) < (8, 0) {
            let message = format!("sm_{target}a needs PTX 8.0 or newer, but the version is {major}.{minor}");
            return Err((Error::INVALID_PTX, message));
        }
        let newest = self.config.newest_ptx();
        if !is_machine_code && 10 * major + minor > newest {
            let (most, rest) = (newest / 10, newest % 10);
            let message = format!("the PTX version is {major}.{minor}, and the newest supported one is {most}.{rest}");
            return Err((Error::UNSUPPORTED_PTX_VERSION, message));
        }
        Ok(())
    }

    /// Allocates and initializes the global and constant variables of a module. Returns the name, address,
    /// and size of each.
    fn allocate_variables(&mut self, device: u32, module: &ptx::Module) -> Outcome<Vec<(String, u64, u32)>> {
        let mut placed = Vec::new();
        let memory = &mut self.devices[device as usize].memory;
        for variable in &module.variables {
            if !matches!(variable.space, Space::Global | Space::Const) || variable.size == 0 {
                continue;
            }
            let at = memory.allocate(variable.size.into(), &format!("variable `{}`,", variable.name));
            let at = at.ok_or(Error::OUT_OF_MEMORY)?;
            if let Ok((i, _)) = memory.find(at, 1) {
                let region = memory.region_mut(i);
                // SAFETY: `init.len() <= size`, checked by the parser in `Parser::variable`; the region has
                // `size` bytes.
                unsafe { region.data(0).copy_from(variable.init.as_ptr(), variable.init.len()) };
                region.mark_written(0, variable.size.into());
                region.read_only = variable.space == Space::Const;
            }
            placed.push((variable.name.clone(), at, variable.size));
        }
        Ok(placed)
    }

    fn free_variables(&mut self, device: u32, variables: &[(String, u64, u32)]) {
        for (_, at, _) in variables {
            self.devices[device as usize].memory.free(*at);
            self.forget_accesses(*at);
        }
    }

    fn add_module(&mut self, device: u32, variables: Vec<(String, u64, u32)>, kernels: Vec<Kernel>) -> u64 {
        let module = self.handle();
        let mut functions = Vec::new();
        for kernel in kernels {
            let handle = self.handle();
            functions.push((kernel.name.clone(), handle));
            // Without opt-in, the kernel's static shared memory reduces the dynamic maximum.
            let dynamic_shared_max = SHARED_DEFAULT.saturating_sub(kernel.shared_bytes);
            let kernel_name = kernel.name.clone();
            let kernel = Arc::new(kernel);
            let function = LoadedFunction {
                device,
                kernel,
                module,
                dynamic_shared_max,
                attributes: HashMap::new(),
                title: kernel_name.into(),
            };
            self.functions.insert(handle, function);
        }
        self.modules.insert(
            module,
            LoadedModule {
                device,
                variables,
                functions,
            },
        );
        module
    }

    fn unload(&mut self, module: Handle) -> Outcome {
        self.check_initialized()?;
        let key = module as u64;
        let device = self.modules.get(&key).ok_or(Error::INVALID_HANDLE)?.device;
        self.reject_during_capture(device)?;
        let module = self.modules.remove(&key).ok_or(Error::INVALID_HANDLE)?;
        self.functions.retain(|_, f| f.module != key);
        self.free_variables(module.device, &module.variables);
        self.check_not_failed(module.device)
    }

    /// Returns a loaded kernel by handle.
    pub fn function(&mut self, function: Handle) -> Outcome<&mut LoadedFunction> {
        self.current()?;
        self.functions.get_mut(&(function as u64)).ok_or(Error::INVALID_HANDLE)
    }

    fn set_attribute(&mut self, function: Handle, attribute: c_uint, value: c_int) -> Outcome {
        let shared_max = self.shared_max();
        let function = self.function(function)?;
        match attribute {
            DYNAMIC_SHARED_MAX => {
                let value = u32::try_from(value).map_err(|_| Error::INVALID_VALUE)?;
                if value + function.kernel.shared_bytes > shared_max {
                    return Err(Error::INVALID_VALUE);
                }
                function.dynamic_shared_max = value;
            }
            9..=15 => drop(function.attributes.insert(attribute, value)),
            _ => return Err(Error::INVALID_VALUE),
        }
        Ok(())
    }

    fn get_attribute(&mut self, function: Handle, attribute: c_uint) -> Outcome<c_int> {
        let sm = self.config.sm as c_int;
        let function = self.function(function)?;
        Ok(match attribute {
            0 => function.kernel.max_threads.unwrap_or(1024) as c_int,
            1 => function.kernel.shared_bytes as c_int,
            2 => 0,
            3 => function.kernel.local_bytes as c_int,
            // The emulator does not allocate registers, so it reports 32.
            4 => 32,
            5 | 6 => sm,
            7 => 0,
            DYNAMIC_SHARED_MAX => function.dynamic_shared_max as c_int,
            9..=15 => function.attributes.get(&attribute).copied().unwrap_or(0),
            _ => return Err(Error::INVALID_VALUE),
        })
    }

    /// Returns how many blocks of `threads` threads fit on a multiprocessor, limited by threads and shared
    /// memory.
    fn occupancy(&mut self, function: Handle, threads: c_int, dynamic_shared: usize) -> Outcome<c_int> {
        let per_processor = self.shared_max() as usize + 1024;
        let own = self.function(function)?.kernel.shared_bytes as usize;
        let threads = usize::try_from(threads)
            .ok()
            .filter(|t| (1..=1024).contains(t))
            .ok_or(Error::INVALID_VALUE)?;
        let by_threads = 2048 / threads.next_multiple_of(32);
        let by_shared = per_processor / (own + dynamic_shared + 1024);
        Ok(by_threads.min(by_shared).min(32) as c_int)
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// The configuration has `n_attributes` attributes, and the arguments match the kernel's parameters.
    unsafe fn launch_kernel(
        &mut self,
        config: &LaunchConfig,
        function: Handle,
        arguments: *const *const u8,
        extra: *const *const c_void,
    ) -> Outcome {
        let (key, device) = self.stream_key(config.stream)?;
        let mut work = self.prepare(function, config.blocks, config.threads, config.shared)?;
        if work.device != device {
            return Err(Error::INVALID_HANDLE);
        }
        // SAFETY: the configuration has `n_attributes` attributes (function contract).
        work.is_early = unsafe { config.is_early() }?;
        if work.is_early && !self.config.early_launches {
            return Err(Error::NOT_SUPPORTED);
        }
        // SAFETY: the arguments match the kernel's parameters (function contract).
        work.params = unsafe { gather_arguments(&work.kernel, arguments, extra) }?;
        self.submit(key, device, Work::Launch(work))
    }

    fn prepare(&mut self, function: Handle, blocks: [u32; 3], threads: [u32; 3], shared: u32) -> Outcome<LaunchWork> {
        let function = self.function(function)?;
        let kernel = function.kernel.clone();
        let n_threads: u64 = threads.iter().map(|t| u64::from(*t)).product();
        let max = kernel.max_threads.unwrap_or(1024);
        let [bx, by, bz] = blocks;
        let is_empty = blocks.contains(&0) || threads.contains(&0);
        let is_too_large = bx > i32::MAX as u32 || by > 65535 || bz > 65535 || threads[2] > 64 || n_threads > 1024;
        if is_empty || is_too_large || shared > function.dynamic_shared_max {
            return Err(Error::INVALID_VALUE);
        }
        if n_threads > max.into() || kernel.exact_threads && n_threads != u64::from(max) {
            return Err(Error::INVALID_VALUE);
        }
        Ok(LaunchWork {
            device: function.device,
            title: function.title.clone(),
            kernel,
            blocks,
            threads,
            dynamic_shared: shared,
            is_early: false,
            params: Vec::new(),
        })
    }
}

/// Copies the arguments into one parameter buffer, each at the offset of its parameter.
///
/// # Safety
/// Either `arguments` points to one pointer for each parameter of the kernel, or `extra` is a
/// `CU_LAUNCH_PARAM_*` list with a buffer and its size. Every pointer is valid for reads of its value.
unsafe fn gather_arguments(
    kernel: &Kernel,
    arguments: *const *const u8,
    extra: *const *const c_void,
) -> Outcome<Vec<u8>> {
    let mut bytes = vec![0; kernel.param_bytes as usize];
    if !arguments.is_null() {
        for (i, (at, size)) in kernel.params.iter().enumerate() {
            // SAFETY: `arguments` has one pointer for each parameter (function contract).
            let argument = unsafe { *arguments.add(i) };
            if argument.is_null() {
                return Err(Error::INVALID_VALUE);
            }
            // SAFETY: `argument` is not null and points to a value of the parameter's size (function
            // contract).
            let value = unsafe { std::slice::from_raw_parts(argument, *size as usize) };
            bytes[*at as usize..][..*size as usize].copy_from_slice(value);
        }
        return Ok(bytes);
    }
    if extra.is_null() {
        return if kernel.params.is_empty() {
            Ok(bytes)
        } else {
            Err(Error::INVALID_VALUE)
        };
    }
    // SAFETY: `extra` is the list: buffer mark, buffer, size mark, pointer to the size (function contract).
    let (buffer, size) = unsafe { (*extra.add(1), *(*extra.add(3)).cast::<usize>()) };
    if size < bytes.len() {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the buffer has `size >= bytes.len()` bytes (function contract and the check above).
    Ok(unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), bytes.len()) }.to_vec())
}

/// Writes an error message to the log buffer given in the options of `cuModuleLoadDataEx`.
///
/// # Safety
/// `options` and `values` have `n` elements, and a log buffer among the values has the size given by its
/// option.
unsafe fn write_log(n: c_uint, options: *const c_uint, values: *const *mut c_void, message: &str) {
    let (mut buffer, mut size) = (std::ptr::null_mut::<u8>(), 0);
    for i in 0..n as usize {
        // SAFETY: both arrays have `n` elements (function contract).
        let (option, value) = unsafe { (*options.add(i), *values.add(i)) };
        match option {
            ERROR_LOG => buffer = value.cast(),
            ERROR_LOG_BYTES => size = value as usize,
            _ => {}
        }
    }
    if !buffer.is_null() && size > 0 {
        let len = message.len().min(size - 1);
        // SAFETY: the buffer has `size` bytes (function contract), and `len < size`.
        unsafe {
            buffer.copy_from(message.as_ptr(), len);
            buffer.add(len).write(0);
        }
    }
}

/// Copies a null-terminated name.
fn name_of(name: *const c_char) -> Outcome<String> {
    if name.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: `name` is not null and null-terminated (contract of the driver functions).
    Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

driver_functions! {
    /// Loads a module.
    fn cuModuleLoadData(module: *mut Handle, image: *const c_char) |driver| {
        let loaded = driver.load(image).map_err(|(error, message)| {
            report::log(&format!("cannot load the module: {message}"));
            error
        })?;
        write_result(module, loaded as Handle)
    }

    /// Loads a module and writes errors to a log buffer.
    fn cuModuleLoadDataEx(
        module: *mut Handle,
        image: *const c_char,
        n: c_uint,
        options: *const c_uint,
        values: *const *mut c_void,
    ) |driver| {
        let loaded = driver.load(image).map_err(|(error, message)| {
            // SAFETY: `options` and `values` have `n` elements (contract of `cuModuleLoadDataEx`).
            unsafe { write_log(n, options, values, &message) };
            error
        })?;
        write_result(module, loaded as Handle)
    }

    /// Unloads a module.
    fn cuModuleUnload(module: Handle) |driver| {
        driver.unload(module)
    }

    /// Returns a kernel by name.
    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) |driver| {
        driver.current()?;
        let name = name_of(name)?;
        let module = driver.modules.get(&(module as u64)).ok_or(Error::INVALID_HANDLE)?;
        let found = module.functions.iter().find(|(n, _)| *n == name).ok_or(Error::NOT_FOUND)?;
        write_result(function, found.1 as Handle)
    }

    /// Returns the address and size of a variable by name.
    fn cuModuleGetGlobal_v2(address: *mut u64, size: *mut usize, module: Handle, name: *const c_char) |driver| {
        driver.current()?;
        let name = name_of(name)?;
        let module = driver.modules.get(&(module as u64)).ok_or(Error::INVALID_HANDLE)?;
        let (_, at, bytes) = module.variables.iter().find(|(n, ..)| *n == name).ok_or(Error::NOT_FOUND)?;
        if !address.is_null() {
            write_result(address, *at)?;
        }
        if size.is_null() { Ok(()) } else { write_result(size, *bytes as usize) }
    }

    /// Returns a function attribute.
    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: Handle) |driver| {
        let found = driver.get_attribute(function, attribute)?;
        write_result(value, found)
    }

    /// Sets a function attribute.
    fn cuFuncSetAttribute(function: Handle, attribute: c_uint, value: c_int) |driver| {
        driver.set_attribute(function, attribute, value)
    }

    /// Accepts any setting; the split between L1 cache and shared memory is not emulated.
    fn cuFuncSetCacheConfig(function: Handle, _config: c_uint) |driver| {
        driver.function(function).map(drop)
    }

    /// Returns the module of a kernel.
    fn cuFuncGetModule(module: *mut Handle, function: Handle) |driver| {
        let found = driver.function(function)?.module;
        write_result(module, found as Handle)
    }

    /// Returns the number of blocks that fit on a multiprocessor.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(n: *mut c_int, function: Handle, threads: c_int, shared: usize) |driver| {
        let blocks = driver.occupancy(function, threads, shared)?;
        write_result(n, blocks)
    }

    /// Returns the number of blocks that fit on a multiprocessor; the flags are ignored.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        n: *mut c_int,
        function: Handle,
        threads: c_int,
        shared: usize,
        _flags: c_uint,
    ) |driver| {
        let blocks = driver.occupancy(function, threads, shared)?;
        write_result(n, blocks)
    }

    /// Launches a kernel.
    fn cuLaunchKernel(
        function: Handle,
        blocks_x: c_uint,
        blocks_y: c_uint,
        blocks_z: c_uint,
        threads_x: c_uint,
        threads_y: c_uint,
        threads_z: c_uint,
        shared: c_uint,
        stream: Handle,
        arguments: *const *const u8,
        extra: *const *const c_void,
    ) |driver| {
        let config = LaunchConfig {
            blocks: [blocks_x, blocks_y, blocks_z],
            threads: [threads_x, threads_y, threads_z],
            shared,
            stream,
            attributes: std::ptr::null(),
            n_attributes: 0,
        };
        // SAFETY: the configuration has no attributes, and the program passes arguments that match the kernel's
        // parameters (contract of `cuLaunchKernel`).
        unsafe { driver.launch_kernel(&config, function, arguments, extra) }
    }

    /// Launches a kernel with attributes. Only early launches (programmatic stream serialization) are supported.
    fn cuLaunchKernelEx(
        config: *const LaunchConfig,
        function: Handle,
        arguments: *const *const u8,
        extra: *const *const c_void,
    ) |driver| {
        // SAFETY: the program passes a valid configuration or null (contract of `cuLaunchKernelEx`).
        let config = unsafe { config.as_ref() }.ok_or(Error::INVALID_VALUE)?;
        // SAFETY: the configuration has `n_attributes` attributes, and the program passes arguments that match the
        // kernel's parameters (contract of `cuLaunchKernelEx`).
        unsafe { driver.launch_kernel(config, function, arguments, extra) }
    }
}

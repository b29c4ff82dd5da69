//! An emulated CUDA driver for tests and development: a `libcuda.so` that interprets PTX kernels on the CPU.
//!
//! With this library on the loader's search path, programs run as on a GPU, but slower. NVRTC compiles the
//! kernels, and the program loads modules and launches kernels as usual. In addition, the driver checks and
//! counts more than a GPU does:
//!
//! - **Memory errors.** Each allocation is a separate region, and its address is never reused. A launch fails
//!   if it accesses memory out of bounds or after it was freed, reads uninitialized bytes, or uses a
//!   misaligned address. The report names the kernel, PTX line, block, thread, address, and allocation.
//! - **Data races.** A launch fails if two threads access a shared-memory word without a barrier or `mbarrier` that
//!   orders them, and one of them writes. Missing waits for asynchronous copies, divergent barriers, shuffles, or
//!   matrix instructions, and unordered accesses by two streams are also errors. A copy to pinned memory becomes
//!   visible only once the host waits for it.
//! - **Counters.** For each kernel, the driver counts instructions by class, bytes requested, sectors moved,
//!   bank conflicts, and divergent branches.
//! - **Fault injection.** [`config`] documents the settings of `LLAMA_CUDA_EMU`.
//!
//! The module `ptx` parses a kernel into a syntax tree, `decode` resolves registers and addresses, and `exec`
//! runs grids, blocks, and warps of 32 lanes. `device` contains the memory and the ordering of work. `api`
//! contains the driver functions, all behind one lock. Work runs when it is submitted, and results do not
//! depend on the number of host threads.
//!
//! Approximate instructions such as `ex2.approx` are computed exactly and rounded once. `mma` adds the
//! products as f32 in index order. Tensor-map copies are not supported; modules that use them fail to load.

mod api;
mod decode;
mod device;
mod exec;
mod ptx;
#[cfg(test)]
mod tests;

pub use device::config;

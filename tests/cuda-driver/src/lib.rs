//! An emulated CUDA driver, for tests and development: a `libcuda.so` that interprets the PTX of our kernels on the CPU.
//!
//! With it on the loader's path, programs run as with a card, only slower: the real NVRTC compiles, modules are loaded, kernels launched.
//! What a card cannot do:
//!
//! - **It proves memory.** Each allocation is a region of its own at an address that is never used again. An access outside of it, to freed
//!   memory, to bytes that nobody wrote, or to an address that is no multiple of its width fails the launch, and a report names the kernel, the
//!   line of PTX, block, thread, address and allocation.
//! - **It proves order.** So do two threads that touch a word of shared memory without a barrier between, one of them writing; asynchronous
//!   copies that are not waited for; barriers, shuffles and matrix instructions that not all wanted lanes come to; streams that touch the same
//!   bytes without an event between. What a stream copies to pinned memory arrives only when the host waits for it.
//! - **It counts**, for each kernel: instructions by kind, bytes asked for and sectors moved, bank conflicts, divergence.
//! - **It fails on request**: [`config`] has the settings of `LLAMA_CUDA_EMU`.
//!
//! The way of a kernel: `ptx` (text to a syntax tree), `decode` (to instructions with registers and addresses), `exec` (grids, blocks, warps of
//! 32 lanes). `device` has memory and the order of work, `api` the functions of the driver, all behind one lock: work is done when it is
//! submitted, and the result does not depend on the number of the host's threads.
//!
//! Approximate instructions (`ex2.approx` and the like) are computed exactly and rounded once. Sums of `mma` are added up as f32 in the order
//! of their index. Instructions of `wgmma` and tensor copies are not known: they are errors when a module is loaded.

mod api;
mod decode;
mod device;
mod exec;
mod ptx;
#[cfg(test)]
mod tests;

pub use device::config;

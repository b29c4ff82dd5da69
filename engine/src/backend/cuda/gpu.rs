//! Sizes of a GPU that determine the shapes of launches.

/// Sizes of a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// True if tensor cores multiply bf16, as in compute capability 8.0 and later.
    pub has_bfloats: bool,
    /// True if tensor cores sum products in f32 at half the rate of f16, like the tensor cores of GeForce GPUs.
    pub has_half_rate_sums: bool,
    /// True if the memory is so fast that instructions limit matmuls with few columns, as with HBM.
    pub has_fast_memory: bool,
    /// Maximum shared memory of a block in bytes: static memory, and dynamic memory that kernels opt in to.
    pub shared_bytes: u32,
    /// True if kernels may use the matrix products of warpgroups (`wgmma`) of compute capability 9.0.
    pub has_wgmma: bool,
}

impl Gpu {
    /// An H100 with kernels for all GPUs, for code that plans without a device.
    pub const H100: Gpu = Gpu {
        multiprocessors: 132,
        shared_bytes: 227 << 10,
        has_bfloats: true,
        has_half_rate_sums: false,
        has_fast_memory: true,
        has_wgmma: false,
    };

    /// An H100 that also uses kernels for compute capability 9.0 only.
    pub const HOPPER: Gpu = Gpu {
        has_wgmma: true,
        ..Gpu::H100
    };

    /// A GeForce RTX 4090.
    pub const RTX_4090: Gpu = Gpu {
        multiprocessors: 128,
        has_half_rate_sums: true,
        has_fast_memory: false,
        shared_bytes: Gpu::LEAST_SHARED_BYTES,
        ..Gpu::H100
    };

    /// A T4, which has compute capability 7.5.
    pub const T4: Gpu = Gpu {
        multiprocessors: 40,
        shared_bytes: 64 << 10,
        has_bfloats: false,
        has_half_rate_sums: false,
        has_fast_memory: false,
        has_wgmma: false,
    };

    /// A GeForce RTX 2080 Ti.
    pub const RTX_2080_TI: Gpu = Gpu {
        multiprocessors: 68,
        has_half_rate_sums: true,
        ..Gpu::T4
    };

    /// Minimum shared memory per block among GPUs with bf16: compute capabilities 8.6, 8.9, and 12.x.
    pub const LEAST_SHARED_BYTES: u32 = 99 << 10;
}

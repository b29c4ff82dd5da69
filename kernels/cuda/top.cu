// The largest values of rows, with one block of threads per row.
#include "select.cuh"

struct Params {
    Tensor x, y;
    int k, padding;
};

__shared__ u32 counts[N_COUNTS];
__shared__ u32 n_chosen;
extern __shared__ u64 chosen[];

// Returns the start of the block's row.
DEVICE char *row_of(const Tensor &t) {
    u32 n = blockIdx.x, i1 = n % t.ne[1], rest = n / t.ne[1];
    return t.data + i1 * t.nb[1] + rest % t.ne[2] * t.nb[2] + rest / t.ne[2] * t.nb[3];
}

// Returns the key of element `i` of the block's row.
struct KeyOfRow {
    const char *row;
    i64 stride;
    DEVICE u64 operator()(int i) const { return key_of(*(const float *)(row + i * stride), i); }
};

// Stores 1 for the `k` largest elements of a row, and 0 for the rest.
extern "C" __global__ void top_mask(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    KeyOfRow key = {row_of(p.x), p.x.nb[0]};
    u64 least = bound_of_computed(p.x.ne[0], p.k, key, counts);
    for (int i = threadIdx.x; i < p.x.ne[0]; i += blockDim.x) {
        *(float *)(row_of(p.y) + i * p.y.nb[0]) = key(i) >= least ? 1.0f : 0.0f;
    }
}

// Stores the indices of the `k` largest elements of a row, largest first.
extern "C" __global__ void top_k(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    KeyOfRow key = {row_of(p.x), p.x.nb[0]};
    if (threadIdx.x == 0) n_chosen = 0;
    u64 least = bound_of_computed(p.x.ne[0], p.k, key, counts);
    for (int i = threadIdx.x; i < p.x.ne[0]; i += blockDim.x) {
        if (key(i) >= least) chosen[atomicAdd(&n_chosen, 1u)] = key(i);
    }
    __syncthreads();
    // The keys are in arbitrary order.
    for (int i = threadIdx.x; i < p.k; i += blockDim.x) {
        *(int *)(row_of(p.y) + rank_of(chosen[i], chosen, p.k) * p.y.nb[0]) = (int)~(u32)chosen[i];
    }
}

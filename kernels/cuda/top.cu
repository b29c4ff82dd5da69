// The largest values of rows: a block has a row.
#include "select.cuh"

struct Params {
    Tensor x, y;
    int k, padding;
};

__shared__ u32 counts[N_COUNTS];
__shared__ u32 n_chosen;
extern __shared__ u64 chosen[];

// Where the block's row begins.
DEVICE char *row_of(const Tensor &t) {
    u32 n = blockIdx.x, i1 = n % t.ne[1], rest = n / t.ne[1];
    return t.data + i1 * t.nb[1] + rest % t.ne[2] * t.nb[2] + rest / t.ne[2] * t.nb[3];
}

// The key of element `i` of the block's row.
struct KeyOfRow {
    const char *row;
    i64 stride;
    DEVICE u64 operator()(int i) const { return key_of(*(const float *)(row + i * stride), i); }
};

// 1 for the `k` largest of a row, 0 for the others.
extern "C" __global__ void top_mask(const __grid_constant__ Params p) {
    KeyOfRow key = {row_of(p.x), p.x.nb[0]};
    u64 least = kth_largest(p.x.ne[0], p.k, key, counts);
    for (int i = threadIdx.x; i < p.x.ne[0]; i += blockDim.x) {
        *(float *)(row_of(p.y) + i * p.y.nb[0]) = key(i) >= least ? 1.0f : 0.0f;
    }
}

// The indices of the `k` largest of a row, largest first.
extern "C" __global__ void top_k(const __grid_constant__ Params p) {
    KeyOfRow key = {row_of(p.x), p.x.nb[0]};
    if (threadIdx.x == 0) n_chosen = 0;
    u64 least = kth_largest(p.x.ne[0], p.k, key, counts);
    for (int i = threadIdx.x; i < p.x.ne[0]; i += blockDim.x) {
        if (key(i) >= least) chosen[atomicAdd(&n_chosen, 1u)] = key(i);
    }
    __syncthreads();
    // They came in any order; a key's rank is the number of larger ones.
    for (int i = threadIdx.x; i < p.k; i += blockDim.x) {
        int rank = 0;
        for (int j = 0; j < p.k; j++) rank += chosen[j] > chosen[i];
        *(int *)(row_of(p.y) + rank * p.y.nb[0]) = (int)~(u32)chosen[i];
    }
}

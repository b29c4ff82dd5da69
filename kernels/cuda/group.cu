// Groups columns by the matrix that their ids select, without involving the host. Runs as a single block of
// threads.
#include "common.cuh"

struct Params {
    Tensor ids;
    Fault *fault;
    int *tiles, *order;
    u32 node;
    // Number of matrices, columns per tile, and maximum number of tiles.
    int n_matrices, tile, n_tiles;
};

const int THREADS = 256;

// Number of columns per matrix, later the position of the next column.
extern __shared__ int counts[];

// Returns the matrix of a column, or -1 if its id is out of range.
DEVICE int matrix_of(const Params &p, int pair) {
    int place = pair % p.ids.ne[0], token = pair / p.ids.ne[0];
    int id = *(const int *)(p.ids.data + place * p.ids.nb[0] + token * p.ids.nb[1]);
    return (u32)id < (u32)p.n_matrices ? id : -1;
}

// Numbers of columns and tiles.
struct Totals {
    int columns, tiles;
};

__shared__ Totals of_warps[THREADS / 32];

// Returns the sums over all threads before this one.
DEVICE Totals sums_before(const Totals &own) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Totals sums = own;
    for (int step = 1; step < 32; step *= 2) {
        Totals before = {__shfl_up_sync(ALL_LANES, sums.columns, step), __shfl_up_sync(ALL_LANES, sums.tiles, step)};
        if (lane >= step) sums.columns += before.columns, sums.tiles += before.tiles;
    }
    if (lane == 31) of_warps[warp] = sums;
    __syncthreads();
    sums.columns -= own.columns, sums.tiles -= own.tiles;
    for (int i = 0; i < warp; i++) sums.columns += of_warps[i].columns, sums.tiles += of_warps[i].tiles;
    return sums;
}

extern "C" __global__ void __launch_bounds__(THREADS) group(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int n_pairs = p.ids.ne[0] * p.ids.ne[1];
    for (int i = threadIdx.x; i < p.n_matrices; i += THREADS) counts[i] = 0;
    for (int i = threadIdx.x; i < p.n_tiles; i += THREADS) p.tiles[3 * i] = -1;
    __syncthreads();
    for (int pair = threadIdx.x; pair < n_pairs; pair += THREADS) {
        int matrix = matrix_of(p, pair);
        if (matrix >= 0) {
            atomicAdd(&counts[matrix], 1);
        } else {
            int place = pair % p.ids.ne[0], token = pair / p.ids.ne[0];
            report(p.fault, p.node, *(const int *)(p.ids.data + place * p.ids.nb[0] + token * p.ids.nb[1]), p.n_matrices);
        }
    }
    __syncthreads();
    // Each thread places the groups of consecutive matrices after the groups of earlier threads.
    int per_thread = (p.n_matrices + THREADS - 1) / THREADS;
    int begin = min((int)threadIdx.x * per_thread, p.n_matrices), end = min(begin + per_thread, p.n_matrices);
    Totals sums = {0, 0};
    for (int matrix = begin; matrix < end; matrix++) {
        sums.columns += counts[matrix];
        sums.tiles += (counts[matrix] + p.tile - 1) / p.tile;
    }
    Totals before = sums_before(sums);
    int first = before.columns, *to = p.tiles + 3 * before.tiles;
    for (int matrix = begin; matrix < end; matrix++) {
        int last = first + counts[matrix];
        counts[matrix] = first;
        for (; first < last; first += p.tile, to += 3) to[0] = matrix, to[1] = first, to[2] = last;
        first = last;
    }
    __syncthreads();
    // The order of columns within a group does not matter, because the result of a column does not depend on its
    // neighbors.
    for (int pair = threadIdx.x; pair < n_pairs; pair += THREADS) {
        int matrix = matrix_of(p, pair);
        if (matrix >= 0) p.order[atomicAdd(&counts[matrix], 1)] = pair;
    }
}

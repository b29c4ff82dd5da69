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

extern "C" __global__ void __launch_bounds__(THREADS) group(const __grid_constant__ Params p) {
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
    if (threadIdx.x == 0) {
        int first = 0, n_tiles = 0;
        for (int matrix = 0; matrix < p.n_matrices; matrix++) {
            int end = first + counts[matrix];
            counts[matrix] = first;
            for (; first < end; first += p.tile, n_tiles++) {
                p.tiles[3 * n_tiles] = matrix;
                p.tiles[3 * n_tiles + 1] = first;
                p.tiles[3 * n_tiles + 2] = end;
            }
            first = end;
        }
    }
    __syncthreads();
    // The order of columns within a group is arbitrary, since the result of a column does not depend on its
    // neighbors.
    for (int pair = threadIdx.x; pair < n_pairs; pair += THREADS) {
        int matrix = matrix_of(p, pair);
        if (matrix >= 0) p.order[atomicAdd(&counts[matrix], 1)] = pair;
    }
}

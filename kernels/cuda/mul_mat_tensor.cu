// Matmuls with many columns on tensor cores, in bf16 with f32 accumulation. Weights are decoded to shared
// memory; columns are already bf16 in global memory. While a step is multiplied, the next step's columns are
// copied and its weights loaded.
// Definitions: see `tiles.cuh`.
#include "tiles.cuh"

// Multiplies a step and adds to a warp's sums.
DEVICE void multiply_step(u16 *step, int row, int column, float (&sums)[M][N][4]) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < STEP / 8; i += 2) {
        u32 a[4], b[N / 2][4];
#pragma unroll
        for (int n = 0; n < N / 2; n++) load_matrices(b[n], place_of_columns(step, column + 16 * n + lane / 16 * 8 + lane % 8, i + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < M; m++) {
            load_matrices(a, place_of_weights(step, row + 16 * m + lane % 16, i + lane / 16));
            for (int n = 0; n < N; n++) multiply(sums[m][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
    }
}

// Grid: see `find_work`.
extern "C" __global__ void __launch_bounds__(THREADS, 1) mul_mat_tensor(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int warp = threadIdx.x / 32;
    int row = warp / WARPS_OF_COLUMNS * WARP_ROWS, column = warp % WARPS_OF_COLUMNS * WARP_COLUMNS;
    Work work = find_work(p);
    if (!work.w) return;
    u16 *step = shared, *next = shared + STAGE;
    Weights pieces[PIECES];
    load_columns(p, work, step, 0);
    fetch_weights(p, work, 0, pieces);
    store_weights(step, pieces);
    wait_for_copies();
    __syncthreads();
    float sums[M][N][4] = {};
    for (int k = STEP;; k += STEP) {
        bool goes_on = k < p.w.ne[0];
        if (goes_on) {
            load_columns(p, work, next, k);
            fetch_weights(p, work, k, pieces);
        }
        multiply_step(step, row, column, sums);
        if (!goes_on) break;
        store_weights(next, pieces);
        wait_for_copies();
        __syncthreads();
        u16 *done = step;
        step = next, next = done;
    }
    store_sums(p, work, row, column, sums);
}

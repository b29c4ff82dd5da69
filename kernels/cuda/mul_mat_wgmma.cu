// Matmuls of `mul_mat_tensor.cu` for compute capability 9.0. A group of four warps multiplies 64 rows by all columns of
// the tile. The tensor cores multiply a step while the warps decode the weights of the next step. Meanwhile, the
// weights and columns of the step after are loaded. Definitions: see `tiles.cuh`.
//
// STAGES: steps in shared memory.
#include "tiles.cuh"
#include "wgmma.cuh"

static_assert(M == 1 && WARPS_OF_COLUMNS == 1 && ROWS % 64 == 0, "warps of a group must have adjacent rows");
// The tensor cores may read a step and the step before while columns are copied two steps ahead.
static_assert(STAGES >= 4, "copies must not overwrite a step that is read");

// The swizzle depends on bits of addresses, so stages start at a multiple of its period.
const u32 PERIOD = 1024;

// Starts to multiply a step and to add to a group's sums.
DEVICE void start_step(const u16 *step, float (&sums)[N][4]) {
    u32 address = (u32)__cvta_generic_to_shared(step);
    u64 rows = descriptor_of(address + threadIdx.x / 128 * 64 * STEP * 2), columns = descriptor_of(address + ROWS * STEP * 2);
    begin_products();
    // A descriptor contains the address in units of 16 bytes.
#pragma unroll
    for (int i = 0; i < STEP / 16; i++) start_product(sums, rows + 2 * i, columns + 2 * i);
    end_products();
}

// Multiplies step `i` of `n`, whose weights are in shared memory. Decodes the weights of the next step, and loads the
// weights and columns of the step after it. Returns true if there is a next step.
DEVICE bool process_step(const Params &p, const Work &work, u16 *stages, int i, int n, const Weights (&own)[PIECES], Weights (&next)[PIECES], float (&sums)[N][4]) {
    start_step(stages + i % STAGES * STAGE, sums);
    if (i + 1 == n) return false;
    bool goes_on = i + 2 < n;
    if (goes_on) fetch_weights(p, work, (i + 2) * STEP, next);
    u16 *step = stages + (i + 1) % STAGES * STAGE;
    store_weights(step, own);
    wait_for_copies();
    publish();
    if (goes_on) load_columns(p, work, stages + (i + 2) % STAGES * STAGE, (i + 2) * STEP);
    // The tensor cores may still read this step, but no earlier one.
    wait_for_products<1>();
    __syncthreads();
    return true;
}

// Grid: see `find_work`.
extern "C" __global__ void __launch_bounds__(THREADS, 1) mul_mat_wgmma(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    Work work = find_work(p);
    if (!work.w) return;
    u32 start = (u32)__cvta_generic_to_shared(shared);
    u16 *stages = shared + (PERIOD - start % PERIOD) % PERIOD / 2;
    int n = (p.w.ne[0] + STEP - 1) / STEP;
    Weights even[PIECES], odd[PIECES];
    load_columns(p, work, stages, 0);
    fetch_weights(p, work, 0, even);
    store_weights(stages, even);
    wait_for_copies();
    publish();
    if (n > 1) {
        load_columns(p, work, stages + STAGE, STEP);
        fetch_weights(p, work, STEP, odd);
    }
    __syncthreads();
    float sums[M][N][4] = {};
    for (int i = 0;; i += 2) {
        if (!process_step(p, work, stages, i, n, odd, even, sums[0])) break;
        if (!process_step(p, work, stages, i + 1, n, even, odd, sums[0])) break;
    }
    wait_for_products<0>();
    store_sums(p, work, threadIdx.x / 32 * WARP_ROWS, 0, sums);
}

// Integer matmuls of quantized weights with one column. A warp computes ROWS rows at a time. It streams
// their raw bytes in pieces, 16 bytes per lane, several pieces ahead and across row boundaries. Every byte of
// the weights is loaded once, and memory is always busy.
//
// TYPE, PARTS, GLU, IDS, ROUNDS: see `few_int.cuh`.
#include "few_int.cuh"

const int WARPS = 4, ROWS = 2;
// Number of pieces in flight, limited by shared memory.
const int STAGES = WARPS * ROWS * SPREAD * 4 <= 40 << 10 ? 4 : 3, STAGE = ROWS * SPREAD;
// Results per row pair.
const int RESULTS = ROWS / MATRICES;
static_assert(ROWS == 2, "the code supports one missing row");

using RowPairs = Stream<1, RESULTS, SPREAD, STAGE, STAGES>;

__shared__ __align__(16) u8 stages[WARPS][STAGES * STAGE];

// Returns `sum` plus the products of four weights with four values of a column.
DEVICE int add_products(u32 weights, int x, int sum) {
    if (W::SIGNED) return __dp4a((int)weights, x, sum);
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(weights), "r"(x));
    return sum;
}

// Adds the products of a unit of each row with the column. `x` and `run` give the location of the unit's
// values.
DEVICE void add_unit(const W::Unit (&units)[ROWS], const Tile &x, int run, float (&sums)[ROWS]) {
    // Adjacent runs are the halves of a group. Otherwise each run is the same half of a different group.
    const int HALVES = W::GAP == 16 ? 2 : 1, GROUPS = W::GROUPS;
    const bool HAS_SUMS = W::HAS_MIN || W::OFFSET;
    int place = place_of(run), group = run / 2;
    float scales[GROUPS], of_values[GROUPS] = {};
    load(x.scale + group, scales);
    if (HAS_SUMS) load(x.sums[HALVES > 1 ? 2 : run % 2] + group, of_values);
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        int highs[ROWS] = {}, lows[ROWS] = {};
#pragma unroll
        for (int r = g * HALVES; r < (g + 1) * HALVES; r++) {
            // The next run is 8 positions further.
            int at = place + r * (W::GAP / 16) * 128;
            int4 high = *(const int4 *)(x.high + at), low = *(const int4 *)(x.low + at);
            const int h[4] = {high.x, high.y, high.z, high.w}, l[4] = {low.x, low.y, low.z, low.w};
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                for (int i = 0; i < 4; i++) {
                    highs[row] = add_products(units[row].q[r][i], h[i], highs[row]);
                    lows[row] = add_products(units[row].q[r][i], l[i], lows[row]);
                }
            }
        }
        // Rounding is explicit, so that the result does not depend on the specialization.
        float sum = of_values[g], offset = __fmul_rn((float)W::OFFSET, sum);
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            float products = (float)(254 * highs[row] + lows[row]);
            float of_group = W::OFFSET ? __fmaf_rn(scales[g], products, offset) : __fmul_rn(scales[g], products);
            sums[row] = __fmaf_rn(units[row].scale[g], of_group, sums[row]);
            if (W::HAS_MIN) sums[row] = __fmaf_rn(units[row].min[g], sum, sums[row]);
        }
    }
}

#if ROUNDS
__shared__ float results[1][RESULTS_OF_BLOCK];
#endif

// Computes the dot products of the next rows of weights with the column. The last of `n_rows` rows
// substitutes for missing rows.
DEVICE void dot(RowPairs &stream, const Lane &lane, int n_rows, int n_blocks, const Tile *column, float (&sums)[ROWS]) {
    const Tile *tile = column + lane.tile;
    int last = n_rows < RESULTS ? 0 : (ROWS - 1) * SPREAD;
    for (int left = n_blocks; left > 0; left -= BLOCKS) {
        wait_for_groups<STAGES - 2>();
        // All lanes can now read each other's loads, and none still reads the stage to be overwritten next.
        __syncwarp();
        stream.fetch();
        if (lane.block < left) {
            W::Unit units[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) W::unit(lane.memory + stream.stage + min(r * SPREAD, last), lane.odd, lane.in, units[r]);
            add_unit(units, *tile, lane.run, sums);
        }
        tile += TILES;
    }
}

// Grid: x covers rows in groups of WARPS * RESULTS * iterations, one matrix after the other. y is 1, or covers
// slots of `ids`. z covers outer dimensions, or tokens. The limit of blocks per multiprocessor keeps the
// assembler from using too few registers.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 4) mul_vec_int(const __grid_constant__ Params p) {
    int block;
    const Part &part = part_of(p, block);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_rows = p.iterations * RESULTS;
    int first = (block * WARPS + warp) * n_rows, end = min(first + n_rows, part.w.ne[1]);
#if !IDS
    prefetch_rows(p, part, outer_offset(p, part, blockIdx.z % p.x.ne[2], blockIdx.z / p.x.ne[2]), first, end);
#endif
    wait_for_previous_kernels();
    if (first >= end) return;
#if IDS
    int i1 = blockIdx.y, i2 = blockIdx.z, i3 = 0, id = chosen(p, i1, i2);
#if ROUNDS
    // The error is recorded, and the result will not be used.
    id = max(id, 0);
#else
    if (id < 0) return;
#endif
    i64 offset = id * part.w.nb[2];
    Columns columns = columns_of(p, i1 % p.x.ne[1], i2, 0, 1);
#else
    int i1 = 0, i2 = blockIdx.z % p.x.ne[2], i3 = blockIdx.z / p.x.ne[2];
    i64 offset = outer_offset(p, part, i2, i3);
    Columns columns = columns_of(p, 0, i2, i3, 1);
#endif
    Rows rows(p, part, offset, 1);
    rows.first = first;
    rows.end = end;
    // Several lanes hold each of the sums; the first of them stores the sum.
    const int LANES = 32 / ROWS;
    int row = lane / LANES;
    bool is_first = lane % LANES == 0 && row < RESULTS;
    RowPairs stream(rows, stages[warp]);
    Lane of_lane(lane, stages[warp]);
    for (int i = 0; i < STAGES - 1; i++) stream.fetch();
    for (; first < end; first += RESULTS) {
        float sums[ROWS] = {};
        dot(stream, of_lane, end - first, part.w.ne[0] / W::QK, columns.first, sums);
        float sum = warp_sums(sums);
#ifdef GLU
        float other = __shfl_xor_sync(ALL_LANES, sum, 16);
        sum = __fmul_rn(GLU(sum), other);
#endif
        // Recompute for each result, because no register is free to keep the value.
        asm volatile("" : "+r"(i2));
        if (is_first && first + row < end) {
            Output(part, i1, i2, i3).store(first + row, sum);
#if ROUNDS
            results[0][(first + row) % RESULTS_OF_BLOCK] = sum;
#endif
        }
    }
#if ROUNDS
    i64 number = ((i64)i3 * part.y.ne[2] + i2) * part.y.ne[1] + i1;
    round_results(p, results, block * RESULTS_OF_BLOCK, part.y.ne[0], number, 1);
#endif
}

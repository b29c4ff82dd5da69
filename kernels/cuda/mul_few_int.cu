// Integer matmuls of quantized weights with 2 to 8 columns, on tensor cores. A block computes ROWS rows at a time.
// Each warp loads two rows, but computes one eighth of every piece for all rows. Each weight byte is thus loaded and
// decoded once for all columns.
//
// The four lanes of a quad decode adjacent units of a row. Tensor cores add the products of the quad, although the
// units have separate scales. Matrix B keeps the units separate. Columns `2 * t` and `2 * t + 1` have the high and low
// parts of the values for lane `t` of every quad, and zeros for the other lanes. A lane thus gets the sums of its own
// units.
//
// TYPE, PARTS, GLU, ROUNDS: see `few_int.cuh`. COLS: maximum number of columns: 2, 4, or 8. MEMORY: bytes of
// dynamic shared memory.
#include "few_int.cuh"

const int WARPS = 8, ROWS = 16, RESULTS = ROWS / MATRICES;
// Distance between rows in a stage. Lanes that decode units of different rows access different banks.
const int BANKS = W::UNITS >= 8 ? 64 : 16, SLOT = SPREAD + (BANKS + 128 - SPREAD % 128) % 128;
// Pieces in flight.
const int STAGE = ROWS * SLOT, FIT = MEMORY / STAGE, STAGES = FIT < 4 ? FIT : 4;
static_assert(STAGES >= 2, "one stage is loaded while another is read");

// Number of groups whose products are computed together, limited by registers.
const int AT_ONCE = W::GROUPS > 2 ? 2 : W::GROUPS;

// A warp loads row `warp` of each matrix, or rows `warp` and `warp + 8`.
using BlockRows = Stream<ROWS / 2, RESULTS, ROWS / 2 * SLOT, STAGE, STAGES>;

extern __shared__ __align__(16) u8 stages[];
__shared__ float sums_of_warps[WARPS][COLS][ROWS];

#if __CUDA_ARCH__ >= 800
// Adds the products of eight weights of two rows with eight values of a column.
DEVICE void multiply(int (&sums)[4], const u32 *first, const u32 *second, const u32 *x) {
    if (W::SIGNED) {
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
            : "r"(first[0]), "r"(second[0]), "r"(first[1]), "r"(second[1]), "r"(x[0]), "r"(x[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
            : "r"(first[0]), "r"(second[0]), "r"(first[1]), "r"(second[1]), "r"(x[0]), "r"(x[1]));
    }
}
#else
// Adds the products of four weights of a row with four values of a column.
DEVICE void multiply_four(int *sums, u32 weights, u32 x) {
    if (W::SIGNED) {
        asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+r"(sums[0]), "+r"(sums[1]) : "r"(weights), "r"(x));
    } else {
        asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+r"(sums[0]), "+r"(sums[1]) : "r"(weights), "r"(x));
    }
}

DEVICE void multiply(int (&sums)[4], const u32 *first, const u32 *second, const u32 *x) {
    for (int i = 0; i < 2; i++) multiply_four(sums, first[i], x[i]), multiply_four(sums + 2, second[i], x[i]);
}
#endif

// Zeros at the locations of a unit's runs.
__device__ const int4 zeros[(W::RUNS - 1) * (W::GAP / 16) * 8 + 1] = {};

// Values of the columns that a lane loads for matrix B: one part of its unit, or zeros.
struct Operand {
    const i8 *from;
    int stride;

    // `values` are the values of the unit in the first column.
    DEVICE Operand(const i8 *values, const Columns &columns) {
        int lane = threadIdx.x % 32;
        bool is_own = lane / 8 == lane % 4;
        // The low parts follow the high parts.
        from = is_own ? values + lane / 4 % 2 * Tile::N : (const i8 *)zeros;
        stride = is_own ? columns.n_tiles * (int)sizeof(Tile) : 0;
    }

    // Loads a run. The next run is 8 positions further.
    DEVICE void load(int r, u32 (&x)[4]) const {
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
            : "l"(from + r * (W::GAP / 16) * 128));
    }
};

// Adds the products of groups of a unit of each of two rows with the columns, starting with group FIRST. `tile`
// and `run` give the location of the unit's values in the first column.
template <int FIRST> DEVICE void add_groups(const W::Unit (&units)[2], const Columns &columns, const Tile *tile, int run, float (&sums)[2][COLS]) {
    // Adjacent runs are the halves of a group. Otherwise each run is the same half of a different group.
    const int HALVES = W::GAP == 16 ? 2 : 1;
    const bool HAS_SUMS = W::HAS_MIN || W::OFFSET;
    int group = run / 2 + FIRST;
    Operand operand(tile->high + place_of(run), columns);
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        if (c > 0) {
            if (c >= columns.n) return;
            tile += columns.n_tiles;
            operand.from += operand.stride;
        }
        float scales[AT_ONCE], of_values[AT_ONCE] = {};
        load(tile->scale + group, scales);
        if (HAS_SUMS) load(tile->sums[HALVES > 1 ? 2 : run % 2] + group, of_values);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int g = FIRST + i;
            int of_parts[4] = {};
#pragma unroll
            for (int r = g * HALVES; r < (g + 1) * HALVES; r++) {
                u32 x[4];
                operand.load(r, x);
                multiply(of_parts, units[0].q[r], units[1].q[r], x);
                multiply(of_parts, units[0].q[r] + 2, units[1].q[r] + 2, x + 2);
            }
            // Rounding is explicit, so that the result does not depend on the specialization.
            float sum = of_values[i], offset = __fmul_rn((float)W::OFFSET, sum);
#pragma unroll
            for (int row = 0; row < 2; row++) {
                float products = (float)(254 * of_parts[2 * row] + of_parts[2 * row + 1]);
                float of_group = W::OFFSET ? __fmaf_rn(scales[i], products, offset) : __fmul_rn(scales[i], products);
                sums[row][c] = __fmaf_rn(units[row].scale[g], of_group, sums[row][c]);
                if (W::HAS_MIN) sums[row][c] = __fmaf_rn(units[row].min[g], sum, sums[row][c]);
            }
        }
    }
}

// Adds the products of the units of a lane, starting with group FIRST. `slots` are the indices of the two rows in
// a stage. A unit past the end of the rows counts as zero.
template <int FIRST = 0> DEVICE void add_units(int unit, int n_units, int stage, const int (&slots)[2], const Columns &columns, const Tile *tiles, float (&sums)[2][COLS]) {
    // A quad may be larger than the rest of the rows.
    int decoded = W::UNITS < 4 ? min(unit, n_units - 1) : unit;
    // Decode again for the next groups, because no registers are free to keep all values.
    if (W::GROUPS > AT_ONCE) asm volatile("" : "+r"(decoded));
    Lane lane(decoded, stages);
    W::Unit units[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        W::unit(lane.memory + stage + slots[r], lane.odd, lane.in, units[r]);
        for (int g = FIRST; g < FIRST + AT_ONCE && W::UNITS < 4; g++) {
            if (unit >= n_units) units[r].scale[g] = units[r].min[g] = 0.0f;
        }
    }
    add_groups<FIRST>(units, columns, tiles + lane.tile, lane.run, sums);
    if constexpr (FIRST + AT_ONCE < W::GROUPS) add_units<FIRST + AT_ONCE>(unit, n_units, stage, slots, columns, tiles, sums);
}

// Computes the dot products of the next rows of weights with the columns. `slots` are the indices of the
// lane's rows in a stage.
DEVICE void dot(BlockRows &stream, const int (&slots)[2], int n_blocks, const Columns &columns, float (&sums)[2][COLS]) {
    int first = threadIdx.x / 32 * 4, unit = first + threadIdx.x % 4;
    const Tile *tiles = columns.first;
    for (int left = n_blocks; left > 0; left -= BLOCKS) {
        wait_for_groups<STAGES - 2>();
        // All warps can now read each other's loads, and none still reads the stage to be overwritten next.
        __syncthreads();
        stream.fetch();
        if (first < left * W::UNITS) add_units(unit, left * W::UNITS, stream.stage, slots, columns, tiles, sums);
        tiles += TILES;
    }
}

// Adds the sums of all lanes and warps. Thread `i` returns the result of row `i % RESULTS` and column
// `i / RESULTS`.
DEVICE float result_of_block(float (&sums)[2][COLS]) {
    const int N = COLS / 2;
    int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4, in = threadIdx.x % 4;
    // Lane `in` of a quad gets a quarter of the sums.
    warp_sums<2 * COLS, 2>((float (&)[2 * COLS])sums);
#pragma unroll
    for (int i = 0; i < N; i++) sums_of_warps[warp][in % 2 * N + i][in / 2 * 8 + row] = sums[0][i];
    __syncthreads();
    int i = threadIdx.x % RESULTS, c = threadIdx.x / RESULTS;
    float of_matrices[MATRICES] = {};
    if (c >= COLS) return 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        for (int m = 0; m < MATRICES; m++) of_matrices[m] += sums_of_warps[w][c][m * RESULTS + i];
    }
#ifdef GLU
    return __fmul_rn(GLU(of_matrices[0]), of_matrices[1]);
#else
    return of_matrices[0];
#endif
}

#if ROUNDS
__shared__ float results[COLS][RESULTS_OF_BLOCK];
#endif

// Grid: x covers rows in groups of RESULTS * iterations, one matrix after the other. z covers outer dimensions.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) mul_few_int(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int block;
    const Part &part = part_of(p, block);
    int warp = threadIdx.x / 32, of_quad = threadIdx.x % 32 / 4;
    int first = block * p.iterations * RESULTS, end = min(first + p.iterations * RESULTS, part.w.ne[1]);
    int i2 = blockIdx.z % p.x.ne[2], i3 = blockIdx.z / p.x.ne[2];
    Rows rows(p, part, outer_offset(p, part, i2, i3), ROWS / 2);
    rows.first = first + warp;
    rows.end = end;
    BlockRows stream(rows, stages + warp * SLOT);
    for (int i = 0; i < STAGES - 1; i++) stream.fetch();
    for (; first < end; first += RESULTS) {
        float sums[2][COLS] = {};
        // Recompute the addresses for each result, because no register is free to keep them.
        asm volatile("" : "+r"(i2));
        Columns columns = columns_of(p, 0, i2, i3, p.x.ne[1]);
        // The last row substitutes for missing rows.
        int last = end - first - 1;
        int slots[2] = {min(of_quad, last) * SLOT, (MATRICES > 1 ? 8 + min(of_quad, last) : min(of_quad + 8, last)) * SLOT};
        dot(stream, slots, part.w.ne[0] / W::QK, columns, sums);
        float sum = result_of_block(sums);
        int row = first + threadIdx.x % RESULTS, c = threadIdx.x / RESULTS;
        asm volatile("" : "+r"(i2), "+r"(c));
        if (row < end && c < columns.n) {
            Output(part, c, i2, i3).store(row, sum);
#if ROUNDS
            results[c][row % RESULTS_OF_BLOCK] = sum;
#endif
        }
    }
#if ROUNDS
    i64 number = ((i64)i3 * part.y.ne[2] + i2) * part.y.ne[1];
    round_results(p, results, block * RESULTS_OF_BLOCK, part.y.ne[0], number, p.x.ne[1]);
#endif
}

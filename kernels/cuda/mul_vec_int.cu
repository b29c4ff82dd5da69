// Integer matmuls of quantized weights with few columns. A warp computes ROWS rows at a time. It streams
// their raw bytes in pieces, 16 bytes per lane, several pieces ahead and across row boundaries. Every byte of
// the weights is loaded once, and memory is always busy.
//
// TYPE: type of the weights; rows must start at and span multiples of 16 bytes. COLS: columns per warp.
// PARTS, GLU, IDS: see `few.cuh`. ROUNDS: results are also quantized for matmuls; the number of rows must
// then be a multiple of RESULTS_OF_BLOCK.
#include "dots.cuh"
#include "columns.cuh"
#include "few.cuh"

using W = dots::TYPE;

const int WARPS = 4, ROWS = 2;
// Number of blocks per piece (one unit per lane), and number of corresponding column tiles.
const int BLOCKS = 32 / W::UNITS, PIECE = BLOCKS * W::BYTES, TILES = BLOCKS * W::QK / Tile::N;
static_assert(PIECE % 16 == 0, "pieces are loaded 16 bytes at a time");
static_assert(TILES * Tile::N == BLOCKS * W::QK, "a piece must match whole column tiles");
// Bytes of a piece between paddings, and size of a padded piece.
const int PADDED = W::PAD_BLOCKS * W::BYTES, SPREAD = PIECE + (BLOCKS / W::PAD_BLOCKS - 1) * W::PAD;
static_assert(W::PAD == 0 || PADDED % 16 == 0 && PIECE % PADDED == 0 && PIECE % 32 == 0, "padding must not split a 16-byte load");
// Number of pieces in flight, limited by shared memory.
const int STAGES = WARPS * ROWS * SPREAD * 4 <= 40 << 10 ? 4 : 3, STAGE = ROWS * SPREAD;

// Matrices per warp, and results per row pair. With GLU, rows of the two matrices alternate.
#ifdef GLU
const int MATRICES = 2;
#else
const int MATRICES = 1;
#endif
const int RESULTS = ROWS / MATRICES;
static_assert(ROWS == 2, "the code supports one missing row");

__shared__ __align__(16) u8 stages[WARPS][STAGES * STAGE];

// The rows of a warp: matrices, distance between rows in bytes, row range, and bytes per row.
struct Rows {
    const char *matrices[MATRICES];
    i64 stride;
    int first, end, bytes;
};

// Returns the stage after another.
DEVICE int stage_behind(int stage) {
    return stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
}

// The sequence of pieces that a warp loads: RESULTS rows of each matrix, then the next rows.
struct Stream {
    // Number of 16-byte loads per lane and row. The first load may be skipped, so that lanes with even
    // numbers start at multiples of 32 bytes, the size of a memory sector.
    static const int N = (PIECE / 16 + 1 + 31) / 32;
    const Rows &of;
    const char *from[ROWS];
    int row, left, stage;
    u32 stages;

    DEVICE Stream(const Rows &of, const void *memory) : of(of), row(of.first), stage(0), stages((u32)__cvta_generic_to_shared(memory)) { begin_rows(); }

    // Rows past the end of the matrix are not loaded.
    DEVICE void begin_rows() {
        left = of.bytes;
#pragma unroll
        for (int r = 0; r < ROWS; r++) from[r] = of.matrices[r % MATRICES] + min(row + r / MATRICES, of.end - 1) * of.stride;
    }

    // Starts loading the next piece. Every piece uses a stage, including those past the end.
    DEVICE void fetch() {
        if (row < of.end) {
            int n = min(left, PIECE);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r >= MATRICES && row + r >= of.end) break;
                int at = threadIdx.x % 32 * 16 - ((int)(u64)from[r] & 16), behind = n - at;
                const char *lane_from = from[r] + at;
                u32 to = stages + stage + r * SPREAD + at;
                // In a complete piece, only the first and last load are conditional.
                if (at >= 0) fetch_16<0>(to + pads<0>(at), lane_from, behind);
                fetch_others<1>(to, at, lane_from, behind);
                from[r] += PIECE;
            }
            left -= PIECE;
            if (left <= 0) {
                row += RESULTS;
                begin_rows();
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        stage = stage_behind(stage);
    }

    // Loads the 16 bytes at AT * 512 if they are within the piece.
    template <int AT> static DEVICE void fetch_16(u32 to, const char *from, int behind) {
        asm volatile("{ .reg .pred is_there; setp.gt.s32 is_there, %2, %3; @is_there cp.async.cg.shared.global [%0 + %3], [%1 + %3], 16; }" ::"r"(to), "l"(from),
                     "r"(behind), "n"(AT * 512)
                     : "memory");
    }

    template <int AT> static DEVICE void fetch_others(u32 to, int at, const char *from, int behind) {
        if constexpr (AT < N) {
            fetch_16<AT>(to + pads<AT>(at), from, behind);
            fetch_others<AT + 1>(to, at, from, behind);
        }
    }

    // Returns the padding before the 16 bytes at `at` (-16 to 496) plus AT * 512 of a piece.
    template <int AT> static DEVICE u32 pads(int at) {
        const int FIRST = AT ? (AT * 512 - 16) / PADDED : 0, LAST = (AT * 512 + 496) / PADDED;
        if (W::PAD == 0) return 0;
        if (FIRST == LAST) return FIRST * W::PAD;
        if (FIRST + 1 == LAST) return at + AT * 512 < LAST * PADDED ? FIRST * W::PAD : LAST * W::PAD;
        return (u32)(at + AT * 512) / PADDED * W::PAD;
    }
};

// The columns of a warp: tiles of the first column, number of columns, and tiles per column.
struct Columns {
    const Tile *first;
    int n, n_tiles;
};

// Loads N floats, aligned to their total size.
template <int N> DEVICE void load(const float *from, float (&to)[N]) {
    if (N == 4) {
        float4 x = *(const float4 *)from;
        to[0] = x.x, to[1 % N] = x.y, to[2 % N] = x.z, to[3 % N] = x.w;
    } else if (N == 2) {
        float2 x = *(const float2 *)from;
        to[0] = x.x, to[1 % N] = x.y;
    } else {
        to[0] = from[0];
    }
}

// Returns `sum` plus the products of four weights with four values of a column.
DEVICE int add_products(u32 weights, int x, int sum) {
    if (W::SIGNED) return __dp4a((int)weights, x, sum);
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(weights), "r"(x));
    return sum;
}

// Adds the products of a unit of each row with the columns. `tile` and `run` give the location of the unit's
// values in the first column.
DEVICE void add_unit(const W::Unit (&units)[ROWS], const Columns &columns, const Tile *tile, int run, float (&sums)[ROWS][COLS]) {
    // Adjacent runs are the halves of a group. Otherwise each run is the same half of a different group.
    const int HALVES = W::GAP == 16 ? 2 : 1, GROUPS = W::GROUPS;
    const bool HAS_SUMS = W::HAS_MIN || W::OFFSET;
    int place = place_of(run), group = run / 2;
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        if (c > 0) {
            if (c >= columns.n) return;
            tile += columns.n_tiles;
        }
        const Tile &x = *tile;
        float scales[GROUPS], of_values[GROUPS] = {}, others[GROUPS] = {};
        load(x.scale + group, scales);
        if (HAS_SUMS) load(x.sums[HALVES > 1 ? 0 : run % 2] + group, of_values);
        if (HAS_SUMS && HALVES > 1) load(x.sums[1] + group, others);
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
            float sum = HALVES > 1 ? __fadd_rn(of_values[g], others[g]) : of_values[g], offset = __fmul_rn((float)W::OFFSET, sum);
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                float products = (float)(254 * highs[row] + lows[row]);
                float of_group = W::OFFSET ? __fmaf_rn(scales[g], products, offset) : __fmul_rn(scales[g], products);
                sums[row][c] = __fmaf_rn(units[row].scale[g], of_group, sums[row][c]);
                if (W::HAS_MIN) sums[row][c] = __fmaf_rn(units[row].min[g], sum, sums[row][c]);
            }
        }
    }
}

#if ROUNDS
// Results that share a scale when quantized. They are computed by a single block.
const int RESULTS_OF_BLOCK = 32;
__shared__ float results[COLS][RESULTS_OF_BLOCK];

// Quantizes the results that the block's warps left in `results`. `first` is the first row, and `number` the
// index of the first of `n` columns.
DEVICE void round_results(const Params &p, int first, int n_rows, i64 number, int n) {
    __syncthreads();
    // Eight lanes quantize one column.
    int warp = threadIdx.x / 32, c = threadIdx.x / 8, in = threadIdx.x % 8 * 4;
    if (warp * 4 >= COLS) return;
    bool is_there = c < n;
    float x[4] = {};
    for (int i = 0; i < 4 && is_there; i++) x[i] = results[c][in + i];
    store_rounded((Tile *)p.rounded, number + c, n_rows, first + in, x, is_there);
}
#endif

// The unit that a lane computes of each piece.
struct Lane {
    int block, in, odd;
    const Tile *tile;
    int run;
    const u8 *memory;

    DEVICE Lane(const u8 *memory, const Columns &columns) {
        block = threadIdx.x % 32 / W::UNITS, in = threadIdx.x % W::UNITS, odd = block * W::BYTES & 3;
        int first = block * W::QK + W::first(in);
        tile = columns.first + first / Tile::N;
        run = first % Tile::N / 16;
        this->memory = memory + block * W::BYTES + block / W::PAD_BLOCKS * W::PAD - odd;
    }
};

// Computes the dot products of the next rows of weights with the columns. The last of `n_rows` rows
// substitutes for missing rows.
DEVICE void dot(Stream &stream, int &stage, const Lane &lane, int n_rows, int n_blocks, const Columns &columns, float (&sums)[ROWS][COLS]) {
    const Tile *tile = lane.tile;
    int last = n_rows < RESULTS ? 0 : (ROWS - 1) * SPREAD;
    for (int left = n_blocks; left > 0; left -= BLOCKS) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        // All lanes can now read each other's loads, and none still reads the stage to be overwritten next.
        __syncwarp();
        stream.fetch();
        if (lane.block < left) {
            W::Unit units[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) W::unit(lane.memory + stage + min(r * SPREAD, last), lane.odd, lane.in, units[r]);
            add_unit(units, columns, tile, lane.run, sums);
        }
        tile += TILES;
        stage = stage_behind(stage);
    }
}

// Returns `n` columns starting at `i1`, with outer indices `i2` and `i3`.
DEVICE Columns columns_of(const Params &p, int i1, int i2, int i3, int n) {
    i64 number = ((i64)i3 * p.x.ne[2] + i2) * p.x.ne[1] + i1;
    int n_tiles = (p.x.ne[0] + Tile::N - 1) / Tile::N;
    return {(const Tile *)p.columns + number * n_tiles, n, n_tiles};
}

// Number of blocks per multiprocessor for the register limit. Without it, the assembler uses too few
// registers and spills.
const int BLOCKS_AT_ONCE = COLS > 2 ? 2 : COLS > 1 ? 3 : 4;

// Grid: x covers rows in groups of WARPS * RESULTS * turns, one matrix after the other. y is 1, or covers
// slots of `ids`. z covers outer dimensions, or tokens.
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS_AT_ONCE) mul_vec_int(const __grid_constant__ Params p) {
    int block;
    Part part = part_of(p, block);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_rows = p.turns * RESULTS;
    Rows rows;
    rows.stride = part.w.nb[1];
    rows.first = (block * WARPS + warp) * n_rows;
    rows.end = min(rows.first + n_rows, part.w.ne[1]);
    rows.bytes = part.w.ne[0] / W::QK * W::BYTES;
    if (rows.first >= rows.end) return;
#pragma unroll
    for (int m = 0; m < MATRICES; m++) rows.matrices[m] = m ? p.parts[m].w.data : part.w.data;
#if IDS
    int i1 = blockIdx.y, i2 = blockIdx.z, i3 = 0, id = chosen(p, i1, i2);
#if ROUNDS
    // The error is recorded, and the result will not be used.
    id = max(id, 0);
#else
    if (id < 0) return;
#endif
#pragma unroll
    for (int m = 0; m < MATRICES; m++) rows.matrices[m] += id * p.parts[m].w.nb[2];
    Columns columns = columns_of(p, i1 % p.x.ne[1], i2, 0, 1);
#else
    int i1 = 0, i2 = blockIdx.z % p.x.ne[2], i3 = blockIdx.z / p.x.ne[2];
    i64 outer = i2 / (p.x.ne[2] / part.w.ne[2]) * part.w.nb[2] + i3 / (p.x.ne[3] / part.w.ne[3]) * part.w.nb[3];
#pragma unroll
    for (int m = 0; m < MATRICES; m++) rows.matrices[m] += outer;
    Columns columns = columns_of(p, 0, i2, i3, p.x.ne[1]);
#endif
    // Several lanes hold each of the sums; the first of them stores the sum.
    const int SUMS = ROWS * COLS, LANES = 32 / SUMS;
    int row = lane / LANES / COLS, c = lane / LANES % COLS;
    bool is_first = lane % LANES == 0 && row < RESULTS && c < columns.n;
    Stream stream(rows, stages[warp]);
    Lane of_lane(stages[warp], columns);
    for (int i = 0; i < STAGES - 1; i++) stream.fetch();
    int stage = 0;
    for (int first = rows.first; first < rows.end; first += RESULTS) {
        float sums[ROWS][COLS] = {};
        dot(stream, stage, of_lane, rows.end - first, part.w.ne[0] / W::QK, columns, sums);
        float sum = warp_sums((float (&)[SUMS])sums);
#ifdef GLU
        float other = __shfl_xor_sync(ALL_LANES, sum, 16);
        sum = __fmul_rn(GLU(sum), other);
#endif
        // Recomputed for each result, since no register is free to keep it.
        asm volatile("" : "+r"(i2));
        if (is_first && first + row < rows.end) {
            Output(part, i1 + c, i2, i3).store(first + row, sum);
#if ROUNDS
            results[c][(first + row) % RESULTS_OF_BLOCK] = sum;
#endif
        }
    }
#if ROUNDS
    i64 number = ((i64)i3 * part.y.ne[2] + i2) * part.y.ne[1] + i1;
    round_results(p, block * RESULTS_OF_BLOCK, part.y.ne[0], number, columns.n);
#endif
}

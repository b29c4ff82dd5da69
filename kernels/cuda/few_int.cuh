// Quantized rows in shared memory and columns of 16-bit integers, for matmuls with few columns.
//
// TYPE: type of the weights; rows must start at and span multiples of 16 bytes.
// PARTS, GLU, IDS: see `few.cuh`. ROUNDS: results are also quantized for matmuls; the number of rows must
// then be a multiple of RESULTS_OF_BLOCK.
#pragma once
#include "dots.cuh"
#include "columns.cuh"
#include "async.cuh"
#include "few.cuh"

using W = dots::TYPE;

// Number of blocks per piece of 32 units, and number of corresponding column tiles.
const int BLOCKS = 32 / W::UNITS, PIECE = BLOCKS * W::BYTES, TILES = BLOCKS * W::QK / Tile::N;
static_assert(PIECE % 16 == 0, "pieces are loaded 16 bytes at a time");
static_assert(TILES * Tile::N == BLOCKS * W::QK, "a piece must match whole column tiles");
// Bytes of a piece between paddings, and size of a padded piece.
const int PADDED = W::PAD_BLOCKS * W::BYTES, SPREAD = PIECE + (BLOCKS / W::PAD_BLOCKS - 1) * W::PAD;
static_assert(W::PAD == 0 || PADDED % 16 == 0 && PIECE % PADDED == 0 && PIECE % 32 == 0, "padding must not split a 16-byte load");

// Number of matrices of a launch that a block multiplies. With GLU, rows of the two matrices alternate.
#ifdef GLU
const int MATRICES = 2;
#else
const int MATRICES = 1;
#endif

// Rows of a warp: matrix of the first row, distances, row range, and row size. Distances are those between rows, and
// to the second row of a pair that is loaded together. Sizes and distances are in bytes.
struct Rows {
    const char *matrix;
    i64 stride, apart;
    int first, end, bytes;

    // The two rows are rows of the two matrices of a gated unit, or rows `n` apart of one matrix.
    DEVICE Rows(const Params &p, const Part &part, i64 offset, int n) {
        matrix = part.w.data + offset;
        stride = part.w.nb[1];
        apart = MATRICES > 1 ? p.parts[1].w.data - p.parts[0].w.data : n * stride;
        bytes = part.w.ne[0] / W::QK * W::BYTES;
    }
};

// The sequence of pieces that a warp loads: two rows, then the two rows that are STEP rows later. The two rows are rows
// of different matrices, or rows APART of one matrix. SLOTS: distance between their pieces in a stage.
template <int APART, int STEP, int SLOTS, int STAGE, int STAGES> struct Stream {
    // Number of 16-byte loads per lane and row. The first load may be skipped, so that lanes with even
    // numbers start at multiples of 32 bytes, the size of a memory sector.
    static const int N = (PIECE / 16 + 1 + 31) / 32;
    const Rows &of;
    const char *from;
    int row, left, stage;
    u32 stages;

    DEVICE Stream(const Rows &of, const void *memory) : of(of), row(of.first), stage(0), stages((u32)__cvta_generic_to_shared(memory)) {
        left = of.bytes;
        from = of.matrix + row * of.stride;
    }

    // Returns the stage that follows `stage`.
    static DEVICE int stage_behind(int stage) {
        return stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
    }

    // Starts loading the next piece. Every piece uses a stage, including those past the end. Rows past the end
    // of the matrix are not loaded. After STAGES calls, `stage` is the stage of the first piece, and so on.
    DEVICE void fetch() {
        if (row < of.end) {
            int n = min(left, PIECE);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (r >= MATRICES && row + APART >= of.end) break;
                const char *of_row = r ? from + of.apart : from;
                int at = threadIdx.x % 32 * 16 - ((int)(u64)of_row & 16), behind = n - at;
                const char *lane_from = of_row + at;
                u32 to = stages + stage + r * SLOTS + at;
                // In a complete piece, only the first and last load are conditional.
                if (at >= 0) start_copy_within<0>(to + pads<0>(at), lane_from, behind);
                fetch_others<1>(to, at, lane_from, behind);
            }
            from += PIECE;
            left -= PIECE;
            if (left <= 0) {
                row += STEP;
                from += STEP * of.stride - (of.bytes - left);
                left = of.bytes;
            }
        }
        end_group();
        stage = stage_behind(stage);
    }

    template <int AT> static DEVICE void fetch_others(u32 to, int at, const char *from, int behind) {
        if constexpr (AT < N) {
            start_copy_within<AT * 512>(to + pads<AT>(at), from, behind);
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

// The columns of a block: tiles of the first column, number of columns, and tiles per column.
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

// Returns `n` columns starting at `i1`, with outer indices `i2` and `i3`.
DEVICE Columns columns_of(const Params &p, int i1, int i2, int i3, int n) {
    i64 number = ((i64)i3 * p.x.ne[2] + i2) * p.x.ne[1] + i1;
    int n_tiles = (p.x.ne[0] + Tile::N - 1) / Tile::N;
    return {(const Tile *)p.columns + number * n_tiles, n, n_tiles};
}

#if ROUNDS
// Number of results that share a scale when quantized; one block computes all of them.
const int RESULTS_OF_BLOCK = 32;

// Quantizes the results of `N` columns that the block's warps computed. `first` is the first row, and
// `number` the index of the first of `n` columns.
template <int N> DEVICE void round_results(const Params &p, const float (&results)[N][RESULTS_OF_BLOCK], int first, int n_rows, i64 number, int n) {
    __syncthreads();
    // Eight lanes quantize one column.
    int warp = threadIdx.x / 32, c = threadIdx.x / 8, in = threadIdx.x % 8 * 4;
    if (warp * 4 >= N) return;
    bool is_there = c < n;
    float x[4] = {};
    for (int i = 0; i < 4 && is_there; i++) x[i] = results[c][in + i];
    store_rounded((Tile *)p.rounded, number + c, n_rows, first + in, x, is_there);
}
#endif

// The unit of each piece that a lane decodes.
struct Lane {
    int block, in, odd;
    // Location of the unit's values in a column.
    int tile, run;
    const u8 *memory;

    DEVICE Lane(int unit, const u8 *memory) {
        block = unit / W::UNITS, in = unit % W::UNITS, odd = block * W::BYTES & 3;
        int first = block * W::QK + W::first(in);
        tile = first / Tile::N;
        run = first % Tile::N / 16;
        this->memory = memory + block * W::BYTES + block / W::PAD_BLOCKS * W::PAD - odd;
    }
};

// Products of a matrix of quantized weights with a few columns, in integers. A warp computes ROWS rows: it fetches pieces of them as they lie, 16 bytes
// a lane, several pieces ahead of what it computes, so that every byte of the weights is moved once and the memory always has work.
//
// TYPE: type of the weights, whose rows begin at multiples of 16 bytes and are as long. COLS: columns of a warp. PARTS, GLU, IDS: see `few.cuh`.
#include "dots.cuh"
#include "columns.cuh"
#include "few.cuh"

using W = dots::TYPE;

const int WARPS = 4, ROWS = 2;
// Blocks of a piece: a unit for each lane.
const int BLOCKS = 32 / W::UNITS, PIECE = BLOCKS * W::BYTES;
static_assert(PIECE % 16 == 0, "pieces are fetched by 16 bytes");
// Pieces under way, as far as shared memory goes.
const int STAGES = WARPS * ROWS * PIECE * 4 <= 40 << 10 ? 4 : 3;

// Rows of a warp, and of these the results: with GLU rows of both matrices take turns.
#ifdef GLU
const int MATRICES = 2;
#else
const int MATRICES = 1;
#endif
const int RESULTS = ROWS / MATRICES;

__shared__ __align__(16) u8 stages[WARPS][STAGES][ROWS][PIECE];

DEVICE void fetch_16(u32 to, const char *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// What a lane fetches of each piece: pieces of 16 bytes of the rows. There is one place more in a row than there are such pieces, so that places with
// even numbers are at multiples of 32 bytes, which memory moves at once.
struct Fetcher {
    static const int PLACES = PIECE / 16 + 1, N = (ROWS * PLACES + 31) / 32;
    // Of each place the row, the byte within its piece, and where it goes in a stage.
    const char *rows[N];
    int bytes[N], to[N];
    u32 stages;

    DEVICE Fetcher(const char *const (&w)[ROWS], int n_rows, const void *memory) {
        stages = (u32)__cvta_generic_to_shared(memory);
#pragma unroll
        for (int j = 0; j < N; j++) {
            int at = j * 32 + threadIdx.x % 32, row = at / PLACES;
            rows[j] = w[0];
#pragma unroll
            for (int r = 1; r < ROWS; r++) rows[j] = row == r ? w[r] : rows[j];
            // A piece of an odd number of 16 bytes is followed by one that begins between two multiples of 32.
            int skew = (int)((u64)rows[j] / 16 + row * PLACES) & 1;
            bytes[j] = row < n_rows && row < ROWS ? (at % PLACES - skew) * 16 : -(1 << 28);
            to[j] = row * PIECE + bytes[j];
        }
    }

    // Begins to fetch piece `i`, of which there are `n` bytes. There is a stage for each, even for those behind the last piece.
    DEVICE void fetch(int i, int n) const {
        u32 stage = stages + i % STAGES * (ROWS * PIECE);
#pragma unroll
        for (int j = 0; j < N; j++) {
            int turned = 0;
            if (PIECE / 16 % 2 && i % 2) {
                // The skew is the other one: even numbers of places stay even.
                int skew = (int)((u64)rows[j] / 16 + (j * 32 + threadIdx.x % 32) / PLACES * PLACES) & 1;
                turned = skew ? 16 : -16;
            }
            if ((u32)(bytes[j] + turned) < (u32)min(n, PIECE) && n > 0) {
                fetch_16(stage + to[j] + turned, rows[j] + (i64)i * PIECE + bytes[j] + turned);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
};

// The columns of a warp: tiles of the first, how many columns there are, and tiles of each.
struct Columns {
    const Tile *first;
    int n, n_tiles;
    // Column `c`, the last standing for those that are not there.
    DEVICE const Tile *column(int c) const { return first + (i64)min(c, n - 1) * n_tiles; }
};

// N floats that lie at a multiple of their bytes.
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

// Adds the products of a unit of each row with the columns. `first`: its first value.
DEVICE void add_unit(const W::Unit (&units)[ROWS], const Columns &columns, int first, float (&sums)[ROWS][COLS]) {
    // Runs next to each other are the halves of a group; else each is the same half of a group of its own.
    const bool has_halves = W::GAP == 16;
    const int GROUPS = W::RUNS * W::GAP / 32;
    int run = first % Tile::N / 16, place = place_of(run), group = run / 2;
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        const Tile &x = columns.column(c)[first / Tile::N];
        float scales[GROUPS], of_halves[2][GROUPS] = {};
        load(x.scale + group, scales);
        if (W::HAS_MIN) {
            load(x.sums[has_halves ? 0 : run % 2] + group, of_halves[0]);
            if (has_halves) load(x.sums[1] + group, of_halves[1]);
        }
#pragma unroll
        for (int r = 0; r < W::RUNS; r++) {
            // The next run is in the next 8 places.
            int at = place + r * (W::GAP / 16) * 128, g = r * W::GAP / 32;
            int4 high = *(const int4 *)(x.high + at), low = *(const int4 *)(x.low + at);
            const int h[4] = {high.x, high.y, high.z, high.w}, l[4] = {low.x, low.y, low.z, low.w};
            float sum = of_halves[has_halves ? r % 2 : 0][g];
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                int highs = 0, lows = 0;
                for (int i = 0; i < 4; i++) {
                    highs = __dp4a((int)units[row].q[r][i], h[i], highs);
                    lows = __dp4a((int)units[row].q[r][i], l[i], lows);
                }
                // Rounded as written here, whatever else the kernel is specialized by.
                sums[row][c] = __fmaf_rn(units[row].scale[r], __fmul_rn(scales[g], (float)(254 * highs + lows)), sums[row][c]);
                if (W::HAS_MIN) sums[row][c] = __fmaf_rn(units[row].min[r], sum, sums[row][c]);
            }
        }
        // Columns are loaded one after the other: there are no registers for all of them.
        if (COLS > 2) asm volatile("" ::: "memory");
    }
}

// The products of rows of weights with columns, in every lane.
DEVICE void dot(const char *const (&w)[ROWS], int n_rows, int n_values, const Columns &columns, float (&sums)[ROWS][COLS]) {
    int lane = threadIdx.x % 32, block = lane / W::UNITS, in = lane % W::UNITS, n_blocks = n_values / W::QK;
    const u8 *memory = stages[threadIdx.x / 32][0][0];
    Fetcher fetcher(w, n_rows, memory);
    int left = n_blocks * W::BYTES;
    for (int i = 0; i < STAGES - 1; i++) fetcher.fetch(i, left - i * PIECE);
    for (int i = 0; i * BLOCKS < n_blocks; i++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        // Now all lanes have what each of them fetched, and none reads the stage any more that is filled next.
        __syncwarp();
        fetcher.fetch(i + STAGES - 1, left - (i + STAGES - 1) * PIECE);
        if (i * BLOCKS + block >= n_blocks) continue;
        W::Unit units[ROWS] = {};
        for (int row = 0; row < ROWS; row++) {
            if (row < n_rows) W::unit(memory + (i % STAGES * ROWS + row) * PIECE, block * W::BYTES, in, units[row]);
        }
        add_unit(units, columns, (i * BLOCKS + block) * W::QK + W::first(in), sums);
    }
#pragma unroll
    for (int n = 0; n < ROWS * COLS; n++) sums[n / COLS][n % COLS] = warp_sum(sums[n / COLS][n % COLS]);
}

// The columns from that with number `i1` on of those with outer indices `i2` and `i3`.
DEVICE Columns columns_of(const Params &p, int i1, int i2, int i3, int n) {
    i64 number = ((i64)i3 * p.x.ne[2] + i2) * p.x.ne[1] + i1;
    int n_tiles = (p.x.ne[0] + Tile::N - 1) / Tile::N;
    return {(const Tile *)p.columns + number * n_tiles, n, n_tiles};
}

// Grid: rows by WARPS * RESULTS, of one matrix after the other; 1, or places of `ids`; outer dimensions, or tokens.
extern "C" __global__ void __launch_bounds__(32 * WARPS) mul_vec_int(const __grid_constant__ Params p) {
    int block;
    Part part = part_of(p, block);
    int first_row = (block * WARPS + threadIdx.x / 32) * RESULTS, n_rows = min(RESULTS, part.w.ne[1] - first_row);
    if (n_rows <= 0) return;
    const char *matrices[MATRICES], *rows[ROWS];
#pragma unroll
    for (int m = 0; m < MATRICES; m++) matrices[m] = m ? p.parts[m].w.data : part.w.data;
#if IDS
    int i1 = blockIdx.y, i2 = blockIdx.z, i3 = 0, id = chosen(p, i1, i2);
    if (id < 0) return;
#pragma unroll
    for (int m = 0; m < MATRICES; m++) matrices[m] += id * p.parts[m].w.nb[2];
    Columns columns = columns_of(p, i1 % p.x.ne[1], i2, 0, 1);
#else
    int i1 = 0, i2 = blockIdx.z % p.x.ne[2], i3 = blockIdx.z / p.x.ne[2];
    i64 outer = i2 / (p.x.ne[2] / part.w.ne[2]) * part.w.nb[2] + i3 / (p.x.ne[3] / part.w.ne[3]) * part.w.nb[3];
#pragma unroll
    for (int m = 0; m < MATRICES; m++) matrices[m] += outer;
    Columns columns = columns_of(p, 0, i2, i3, p.x.ne[1]);
#endif
#pragma unroll
    for (int r = 0; r < ROWS; r++) rows[r] = matrices[r % MATRICES] + (first_row + r / MATRICES) * part.w.nb[1];
    float sums[ROWS][COLS] = {};
    dot(rows, n_rows * MATRICES, part.w.ne[0], columns, sums);
    // A lane for each element.
#pragma unroll
    for (int i = 0; i < RESULTS * COLS; i++) {
        int row = i / COLS, c = i % COLS;
        if (threadIdx.x % 32 != i || row >= n_rows || c >= columns.n) continue;
#ifdef GLU
        float sum = GLU(sums[2 * row][c]) * sums[2 * row + 1][c];
#else
        float sum = sums[row][c];
#endif
        store_sum(part, first_row + row, i1 + c, i2, i3, sum);
    }
}

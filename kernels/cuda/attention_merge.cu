// Adds the results of the blocks that share a token, in a fixed order.
//
// DV: size of values. SINKS: true if there are sinks. ROUNDS: results are also quantized for matmuls.
#define SELECTS 0
#define BIASES 0
#define SPLIT 1
#include "partials.cuh"

// Maximum number of blocks that share a token.
const int MAX_PARTS = 512;

const int WARPS = 4, THREADS = 32 * WARPS;
// Values that a block and a lane add, and parts whose maximum a thread holds.
const int VALUES = DV < 128 ? DV : 128, PER_LANE = (VALUES + 31) / 32, PARTS_OF_THREAD = MAX_PARTS / THREADS;
// Parts of a warp that are loaded ahead.
const int AHEAD = 8;

__shared__ float factors[MAX_PARTS], scratch[32], sums_of_warps[WARPS][VALUES];

// Stores the factor of each part, relative to the maximum score, and 0 for parts that do not exist. Returns the maximum
// and the sum of weights.
DEVICE float2 find_factors(const Params &p, int token, int head, float sink) {
    float largest = sink, weights = 0.0f, of_part[PARTS_OF_THREAD][2];
#pragma unroll
    for (int n = 0; n < PARTS_OF_THREAD; n++) {
        int i = threadIdx.x + n * THREADS;
        const float *part = part_of(p, token, head, min(i, p.n_parts - 1));
        of_part[n][0] = part[DV], of_part[n][1] = i < p.n_parts ? part[DV + 1] : 0.0f;
        largest = fmaxf(largest, of_part[n][0]);
    }
    largest = block_max(largest, scratch);
#pragma unroll
    for (int n = 0; n < PARTS_OF_THREAD; n++) {
        float factor = of_part[n][1] == 0.0f ? 0.0f : expf(of_part[n][0] - largest);
        factors[threadIdx.x + n * THREADS] = factor;
        weights += of_part[n][1] * factor;
    }
    return make_float2(largest, block_sum(weights, scratch));
}

// A lane's values of a part.
struct Values {
    float x[PER_LANE];

    DEVICE void load(const Params &p, int token, int head, int i) {
        const float *part = part_of(p, token, head, i);
        int first = blockIdx.z * VALUES + threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < PER_LANE; n++) x[n] = part[min(first + 32 * n, DV - 1)];
    }
    DEVICE void add(const Values &other, float factor) {
#pragma unroll
        for (int n = 0; n < PER_LANE; n++) x[n] += other.x[n] * factor;
    }
};

// Number of blocks per multiprocessor, which limits the registers of a thread. Without this limit, the assembler uses
// too few registers and spills.
const int BLOCKS_AT_ONCE = 4;

// Grid: tokens; heads; blocks of VALUES values.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) merge(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int token = blockIdx.x, head = blockIdx.y;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sink = sink_of(p, head);
    // Each warp adds every WARPSth part. The first values are loaded while the factors are computed.
    Values ahead[AHEAD], sums = {};
#pragma unroll
    for (int n = 0; n < AHEAD; n++) ahead[n].load(p, token, head, min(warp + n * WARPS, p.n_parts - 1));
    float2 total = find_factors(p, token, head, sink);
#pragma unroll
    for (int n = 0; n < AHEAD; n++) sums.add(ahead[n], factors[warp + n * WARPS]);
#pragma unroll 8
    for (int i = warp + AHEAD * WARPS; i < p.n_parts; i += WARPS) {
        ahead[0].load(p, token, head, i);
        sums.add(ahead[0], factors[i]);
    }
    for (int n = 0; n < PER_LANE; n++) {
        if (32 * n + lane < VALUES) sums_of_warps[warp][32 * n + lane] = sums.x[n];
    }
    __syncthreads();
    for (int first = threadIdx.x / 32 * 32 * RESULTS; first < VALUES; first += THREADS * RESULTS) {
        int i = first + threadIdx.x % 32 * RESULTS, at = blockIdx.z * VALUES + i;
        bool is_there = i < VALUES && at < DV;
        float x[RESULTS] = {};
        for (int e = 0; e < RESULTS && is_there; e++) {
            float sum = 0.0f;
            for (int w = 0; w < WARPS; w++) sum += sums_of_warps[w][i + e];
            x[e] = mean(p, sum, total.y, sink, total.x);
        }
        store_results(p, token, head, at, x, is_there);
    }
}

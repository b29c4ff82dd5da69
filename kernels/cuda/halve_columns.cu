// Rounds columns of floats to f16 for `half_products.cuh`. Values of a column are divided by a power of two, so that their
// largest magnitude is at least 2^EXPONENT and less than twice this number. Zeros complete the last step.
//
// COLUMNS: columns of a tile. Missing columns are zeros. SUMS: see `steps.cuh`.
#include "common.cuh"
#include "steps.cuh"

struct Params {
    Tensor x;
    // Steps of the tiles, then the power of two of each column, then counters of `mul_stream.cu`.
    Step *steps;
    float *factors;
    u32 *counters;
    int n_counters;
    // True if 4 values can be loaded at a time.
    int is_dense;
};

const int THREADS = 1024;

// Values of a group for a lane of a quad: four of each half.
struct Values {
    float v[8];

    DEVICE Values(const Params &p, const char *x, int group, int t) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const char *from = x + (group * 32 + half * 16 + 4 * t) * p.x.nb[0];
            float *to = v + 4 * half;
            if (p.is_dense) {
                float4 values = *(const float4 *)from;
                to[0] = values.x, to[1] = values.y, to[2] = values.z, to[3] = values.w;
            } else {
                for (int i = 0; i < 4; i++) to[i] = *(const float *)(from + i * p.x.nb[0]);
            }
        }
    }
};

// Grid: columns of all tiles, outer dimensions.
extern "C" __global__ void __launch_bounds__(THREADS) halve_columns(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    __shared__ float shared[32];
    int column = blockIdx.x, i2 = blockIdx.y % p.x.ne[2], i3 = blockIdx.y / p.x.ne[2], n = p.x.ne[0] / 8;
    bool is_there = column < p.x.ne[1];
    const char *x = p.x.data + column * p.x.nb[1] + i2 * p.x.nb[2] + i3 * p.x.nb[3];
    // Each quad of threads has a group of 32 values.
    int t = threadIdx.x % 4;
    float largest = 0.0f;
    for (int i = threadIdx.x; i < n && is_there; i += THREADS) {
        Values values(p, x, i / 4, t);
        for (int e = 0; e < 8; e++) largest = fmaxf(largest, fabsf(values.v[e]));
    }
    largest = block_max(largest, shared);
    // The power of two of the largest magnitude. Columns below the limit become zeros. Infinity and NaN are kept.
    float power = __uint_as_float(__float_as_uint(largest) & 0x7f800000u);
    bool is_scaled = power > 1e-30f && power < INF;
    const float UNIT = __uint_as_float((127 + EXPONENT) << 23);
    float factor = is_scaled ? power / UNIT : 1.0f, inverse = is_scaled ? UNIT / power : largest < 1.0f ? 0.0f : 1.0f;
    int number = blockIdx.y * gridDim.x + column;
    if (threadIdx.x == 0) p.factors[number] = factor;
    for (int i = number * THREADS + threadIdx.x; i < p.n_counters; i += gridDim.x * gridDim.y * THREADS) p.counters[i] = 0;
    int n_steps = steps_of(p.x.ne[0]);
    Step *steps = p.steps + (i64)number / Step::N * n_steps;
    // The number of quads is a multiple of 8, so that warps are complete.
    for (int i = threadIdx.x; i < n_steps * (Step::K / 8); i += THREADS) {
        int group = i / 4;
        float v[8] = {}, sums[2] = {};
        if (is_there && i < n) {
            Values values(p, x, group, t);
            for (int e = 0; e < 8; e++) v[e] = values.v[e] * inverse;
        }
        u32 pairs[4];
        for (int e = 0; e < 4; e++) {
            u32 low = float_to_half(v[e / 2 * 4 + e % 2]), high = float_to_half(v[e / 2 * 4 + e % 2 + 2]);
            pairs[e] = low | high << 16;
            sums[e / 2] += half_to_float(low) + half_to_float(high);
        }
        Step &to = steps[group / 8];
        *(uint4 *)to.values[group % 8][number % Step::N][t] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        if (SUMS == 8) sums[0] += sums[1];
#pragma unroll
        for (int i = 0; i < SUMS / 8; i++) {
            sums[i] += __shfl_xor_sync(ALL_LANES, sums[i], 1);
            sums[i] += __shfl_xor_sync(ALL_LANES, sums[i], 2);
            int place = SUMS / 8 * (group % 8) + i;
            u16 high = float_to_half(sums[i]), low = float_to_half(sums[i] - half_to_float(high));
            if (t < 2) to.sums[number % Step::N][place % 8 / 2][place / 8][t][place % 2] = t == 0 ? high : low;
        }
    }
}

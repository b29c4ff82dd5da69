// Processing of heads between their matmuls and attention: norm, RoPE, and storage as floats or in a cache. A
// warp handles one head of a token.
//
// SECTIONS: number of kinds of heads, such as query, key, and value. S0, S1, S2: types in which they are
// stored. NEIGHBORS: see `rope.cuh`.
#include "encode.cuh"
#include "rope.cuh"

struct Section {
    // Floats of all heads and tokens, and the optional weight of the norm.
    Tensor x, weight;
    // Destination of the heads: rows of a token, or rows of a table selected by `ids`.
    Tensor y, ids;
    float eps;
    // Index in the error record of the node with the row ids.
    u32 node;
    // Whether to normalize, whether to rotate, and the number of heads in earlier sections.
    int is_normed, is_rotated, first, padding;
};

struct Params {
    Section sections[3];
    Rope rope;
    Fault *fault;
    i64 no_row;
    int n_heads, room;
};

const int WARPS = 4;

extern __shared__ __align__(8) float memory[];

// Returns the sum of squares of a head. The order of additions is that of a block of `rms_norm`: per warp first, then
// over the warps.
DEVICE float sum_of_squares(const float *row, int n) {
    int lane = threadIdx.x % 32, n_warps = (n + 127) / 128;
    float of_warps = 0.0f;
    for (int warp = 0; warp < n_warps; warp++) {
        float squares = 0.0f;
        for (int i = 32 * warp + lane; i < n; i += 32 * n_warps) squares = __fmaf_rn(row[i], row[i], squares);
        squares = warp_sum(squares);
        if (lane == warp) of_warps = squares;
    }
    return warp_sum(of_warps);
}

// Loads the head into `row` and normalizes it if required.
DEVICE void load_head(const Section &s, const char *x, float *row) {
    int n = s.x.ne[0], lane = threadIdx.x % 32;
    for (int i = lane; i < n; i += 32) row[i] = *(const float *)(x + i * s.x.nb[0]);
    if (s.is_normed) {
        __syncwarp();
        float factor = 1.0f / sqrtf(sum_of_squares(row, n) / (float)n + s.eps);
        for (int i = lane; i < n; i += 32) {
            row[i] *= factor;
            if (s.weight.data) row[i] *= *(const float *)(s.weight.data + i * s.weight.nb[0]);
        }
    }
    __syncwarp();
}

DEVICE void rotate(const Rope &p, int token, float *row) {
    for (int pair = threadIdx.x % 32; pair < p.n_dims / 2; pair += 32) {
        float2 r = rotation_of(p, token, pair);
#if NEIGHBORS
        // Accessing both elements at once avoids bank conflicts.
        float2 x = ((const float2 *)row)[pair];
        ((float2 *)row)[pair] = make_float2(x.x * r.y - x.y * r.x, x.x * r.x + x.y * r.y);
#else
        int2 at = elements_of(p, pair);
        float a = row[at.x], b = row[at.y];
        row[at.x] = a * r.y - b * r.x;
        row[at.y] = a * r.x + b * r.y;
#endif
    }
    __syncwarp();
}

// Quantizes and stores blocks of type T.
template <class T> DEVICE void store_head(const float *row, int n, char *to) {
    for (int block = threadIdx.x % 32; block < n / T::QK; block += 32) {
        float x[T::QK];
        for (int i = 0; i < T::QK; i++) x[i] = row[block * T::QK + i];
        T::encode(x, (u8 *)to + block * (i64)T::BYTES);
    }
}

template <class T> DEVICE void head_of(const Params &p, const Section &s, int head, int token, float *row) {
    load_head(s, s.x.data + head * s.x.nb[1] + token * s.x.nb[2], row);
    if (s.is_rotated) rotate(p.rope, token, row);
    i64 at = token;
    if (s.ids.data) {
        at = *(const i64 *)(s.ids.data + token * s.ids.nb[0]);
        if (at == p.no_row) return;
        if (at < 0 || at >= s.y.ne[2]) {
            report(p.fault, s.node, at, s.y.ne[2]);
            return;
        }
    }
    store_head<T>(row, s.x.ne[0], s.y.data + head * s.y.nb[1] + at * s.y.nb[2]);
}

// Grid: heads of all sections in groups of WARPS, tokens. `room` is the size of the largest head in floats,
// rounded up to an even number.
extern "C" __global__ void __launch_bounds__(32 * WARPS) heads(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int warp = threadIdx.x / 32, head = blockIdx.x * WARPS + warp, token = blockIdx.y;
    float *row = memory + warp * p.room;
    if (head >= p.n_heads) return;
#if SECTIONS > 2
    if (head >= p.sections[2].first) {
        head_of<types::S2>(p, p.sections[2], head - p.sections[2].first, token, row);
        return;
    }
#endif
#if SECTIONS > 1
    if (head >= p.sections[1].first) {
        head_of<types::S1>(p, p.sections[1], head - p.sections[1].first, token, row);
        return;
    }
#endif
    head_of<types::S0>(p, p.sections[0], head, token, row);
}

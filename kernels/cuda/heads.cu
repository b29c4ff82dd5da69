// Heads between their products and attention: normed, turned by their token's position, and stored as floats or in a cache. A warp has a head of a token.
//
// SECTIONS: how many kinds of heads there are, such as queries, keys and values. S0, S1, S2: types that they are stored as. NEIGHBOURS: see `rope.cuh`.
#include "encode.cuh"
#include "rope.cuh"

struct Section {
    // Floats of heads and tokens; what they are multiplied with after they are normed, if anything.
    Tensor x, weight;
    // Where heads go: rows of a token, or those of a table that `ids` name.
    Tensor y, ids;
    float eps;
    // Number of the node that names rows, in the record of faults.
    u32 node;
    // Whether heads are normed, whether they are turned, and how many heads other sections have before this one.
    int is_normed, is_turned, first, padding;
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

// The sum of the squares of a head, in the order in which a block of `rms_norm` adds up such a row: its warps' sums one by one, then their sum.
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

// The head's elements in `row`, as they are or normed.
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

DEVICE void turn(const Rope &p, int token, float *row) {
    for (int pair = threadIdx.x % 32; pair < p.n_dims / 2; pair += 32) {
        float2 r = turn_of(p, token, pair);
#if NEIGHBOURS
        // Both at once, so that lanes find theirs in banks of their own.
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

// Stores blocks of type T at `to`.
template <class T> DEVICE void store_head(const float *row, int n, char *to) {
    for (int block = threadIdx.x % 32; block < n / T::QK; block += 32) {
        float x[T::QK];
        for (int i = 0; i < T::QK; i++) x[i] = row[block * T::QK + i];
        T::encode(x, (u8 *)to + block * (i64)T::BYTES);
    }
}

template <class T> DEVICE void head_of(const Params &p, const Section &s, int head, int token, float *row) {
    load_head(s, s.x.data + head * s.x.nb[1] + token * s.x.nb[2], row);
    if (s.is_turned) turn(p.rope, token, row);
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

// Grid: heads of all sections by WARPS, tokens. `room`: floats of the largest head, an even number.
extern "C" __global__ void __launch_bounds__(32 * WARPS) heads(const __grid_constant__ Params p) {
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

// What kernels of attention share: their parameters, which cells a query sees, and scores.
//
// SELECTS, BIASES, SINKS: there are such operands.
#pragma once
#include "visible.cuh"

enum Window { NO_WINDOW, STANDARD, CHUNKED, SYMMETRIC };

struct Params {
    Tensor q, k, v, y, biases, sinks, selection;
    Visible visible;
    float scale, softcap, max_bias;
    int causal, window, window_size;
    // Cells from this number on stand for groups of tokens.
    int compressed_from;
    // Rows of the table of biases for keys behind the query start here; 0 if they have none of their own.
    int side;
    // Row of the table for each distance.
    u8 near[136];
    // What blocks that share a token found: of each token, head and block DV sums, the largest score, and the weights.
    float *parts;
    // Where results go as columns of products, if they are rounded.
    char *rounded;
    int n_parts, padding;
};

#if SELECTS
extern __shared__ u32 selected[];
#endif

// Marks the selected cells, one bit for each.
DEVICE void mark_selected(const Params &p, int token, int head_kv) {
#if SELECTS
    const Tensor &s = p.selection;
    int n_bits = p.visible.n_kv;
    for (int i = threadIdx.x; i < (n_bits + 31) / 32; i += blockDim.x) selected[i] = 0;
    __syncthreads();
    bool by_head = s.ne[2] == p.q.ne[2];
    const char *list = s.data + (by_head ? head_kv % s.ne[1] * s.nb[1] + token * s.nb[2] : token * s.nb[1]);
    for (int i = threadIdx.x; i < s.ne[0]; i += blockDim.x) {
        int cell = *(const int *)(list + i * s.nb[0]);
        if (cell >= 0 && cell < n_bits) atomicOr(&selected[cell / 32], 1u << cell % 32);
    }
    __syncthreads();
#endif
}

// Does some query from position `low` to `high` see a cell at `k_pos`, which their page table lists? Given the two the other way round: does every one?
DEVICE bool sees(const Params &p, int cell, int low, int high, int k_pos) {
    bool compressed = p.compressed_from >= 0 && cell >= p.compressed_from;
    // First and last position of the window; without branches, since lanes have cells of their own.
    i64 first = p.window == STANDARD    ? (i64)low - p.window_size + 1
                : p.window == CHUNKED   ? (i64)(low / p.window_size * p.window_size)
                : p.window == SYMMETRIC ? (i64)low - p.window_size / 2
                                        : -1;
    i64 last = p.window == SYMMETRIC ? (i64)high + p.window_size / 2 : 0x7fffffff;
    bool in_window = compressed | ((k_pos >= first) & (k_pos <= last));
    bool seen = in_window & !(p.causal && k_pos > high);
#if SELECTS
    bool chosen_from = p.compressed_from < 0 | compressed;
    int entry = compressed ? cell - p.compressed_from : cell;
    seen &= !chosen_from || (selected[entry / 32] >> entry % 32 & 1);
#endif
    return seen;
}

// The cells of a page that some query from position `low` to `high` sees, each lane of a warp having looked at two.
DEVICE u64 seen_of(const Params &p, const Page &page, int low, int high) {
    u32 halves[2];
    for (int half = 0; half < 2; half++) {
        int i = 32 * half + threadIdx.x % 32, k_pos = 0;
        bool is_seen = lists(p.visible, page, i, k_pos) && sees(p, page.first + i, low, high, k_pos);
        halves[half] = __ballot_sync(ALL_LANES, is_seen);
    }
    return halves[0] | (u64)halves[1] << 32;
}

// ALiBi's slope of a head: a geometric series over the largest power of two of heads, the rest in between.
DEVICE float slope_of(const Params &p, int head) {
    if (p.max_bias == 0.0f) return 0.0f;
    int power = 1 << (31 - __clz(p.q.ne[1]));
    float share = head < power ? (float)(head + 1) : 0.5f * (float)(2 * (head - power) + 1);
    return exp2f(-p.max_bias * share / (float)power);
}

// A raw product as a score.
DEVICE float score_of(const Params &p, float product, int head, float slope, int ahead) {
    float score = product * p.scale;
    if (p.softcap != 0.0f) score = p.softcap * tanhf(score / p.softcap);
#if BIASES
    int distance = min(abs(ahead), 128), behind = ahead > 0;
    int row = behind ? (p.side ? p.side + p.near[distance] : p.near[0]) : p.near[distance];
    score += *(const float *)(p.biases.data + head * p.biases.nb[0] + row * p.biases.nb[1]);
#endif
    return score - slope * fabsf((float)ahead);
}

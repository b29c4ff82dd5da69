// Definitions shared by the attention kernels: parameters, visible cells, and scores.
//
// SELECTS, BIASES, SINKS: true if the corresponding operand exists.
#pragma once
#include "visible.cuh"

enum Window { NO_WINDOW, STANDARD, CHUNKED, SYMMETRIC };

struct Params {
    Tensor q, k, v, y, biases, sinks, selection;
    Visible visible;
    float scale, softcap, max_bias;
    int causal, window, window_size;
    // First cell that represents a group of tokens.
    int compressed_from;
    // First bias table row for keys after the query; 0 if these keys share the rows for earlier keys.
    int side;
    // Row of the bias table for each distance.
    u8 near[136];
    // Partial results of blocks that share a token. For each token, head, and block: DV sums, the maximum
    // score, and the sum of weights.
    float *parts;
    // Destination of the quantized results, if requested.
    char *rounded;
    int n_parts, padding;
};

#if SELECTS
extern __shared__ u32 selected[];
#endif

// Sets a bit for each selected cell.
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

// Positions of visible keys: `first..=last` is the range of the window, and `latest` the limit of the causal mask.
struct KeyRange {
    i64 first, last;
    int latest;
};

// Returns the keys that some query with a position in `low..=high` sees. With `low` and `high` swapped, returns
// the keys that every such query sees.
DEVICE KeyRange key_range(const Params &p, int low, int high) {
    KeyRange keys;
    keys.first = p.window == STANDARD    ? (i64)low - p.window_size + 1
                 : p.window == CHUNKED   ? (i64)(low / p.window_size * p.window_size)
                 : p.window == SYMMETRIC ? (i64)low - p.window_size / 2
                                         : -1;
    keys.last = p.window == CHUNKED     ? (i64)(high / p.window_size) * p.window_size + p.window_size - 1
                : p.window == SYMMETRIC ? (i64)high + p.window_size / 2
                                        : 0x7fffffff;
    keys.latest = p.causal ? high : 0x7fffffff;
    return keys;
}

// Returns true if a listed cell at `k_pos` is visible. Branch-free, because each lane tests a different cell.
DEVICE bool sees(const Params &p, const KeyRange &keys, int cell, int k_pos) {
    bool compressed = p.compressed_from >= 0 && cell >= p.compressed_from;
    bool in_window = compressed | ((k_pos >= keys.first) & (k_pos <= keys.last));
    bool seen = in_window & (k_pos <= keys.latest);
#if SELECTS
    bool chosen_from = p.compressed_from < 0 | compressed;
    int entry = compressed ? cell - p.compressed_from : cell;
    seen &= !chosen_from || (selected[entry / 32] >> entry % 32 & 1);
#endif
    return seen;
}

// Returns a mask of the cells of a page that some query with a position in `low..=high` sees. Each lane of
// the warp tests two cells.
DEVICE u64 seen_of(const Params &p, const Page &page, int low, int high) {
    KeyRange keys = key_range(p, low, high);
    u32 halves[2];
    for (int half = 0; half < 2; half++) {
        int i = 32 * half + threadIdx.x % 32, k_pos = 0;
        bool is_seen = lists(p.visible, page, i, k_pos) && sees(p, keys, page.first + i, k_pos);
        halves[half] = __ballot_sync(ALL_LANES, is_seen);
    }
    return halves[0] | (u64)halves[1] << 32;
}

// Page table entries that a block lists at a time.
const int MAX_LISTED = 128;

// Pages of a block in shared memory: the first cell, and a mask of the cells that the token sees.
struct Listed {
    u64 seen[MAX_LISTED];
    int first[MAX_LISTED];
};

// Lists up to MAX_LISTED page table entries for all warps of the block.
DEVICE void list_pages(const Params &p, Listed &listed, int first_entry, int n, int q_pos) {
    // The loads of several pages overlap.
    const int AT_ONCE = 4;
    int lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        Page page = page_of(p.visible, first_entry + i);
        listed.first[i] = page.first, listed.seen[i] = page.mask;
    }
    __syncthreads();
    KeyRange keys = key_range(p, q_pos, q_pos);
    for (int i = threadIdx.x / 32; i < n; i += AT_ONCE * n_warps) {
        int first[AT_ONCE], k_pos[AT_ONCE][2];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int at = i + j * n_warps;
            u64 mask = at < n ? listed.seen[at] : 0;
            first[j] = at < n ? listed.first[at] : 0;
            for (int half = 0; half < 2; half++) {
                k_pos[j][half] = -1;
                if (mask >> (32 * half + lane) & 1) k_pos[j][half] = p.visible.cell_pos[first[j] + 32 * half + lane];
            }
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            u32 halves[2];
            for (int half = 0; half < 2; half++) {
                int pos = k_pos[j][half];
                halves[half] = __ballot_sync(ALL_LANES, pos >= 0 && sees(p, keys, first[j] + 32 * half + lane, pos));
            }
            if (lane == 0 && i + j * n_warps < n) listed.seen[i + j * n_warps] = halves[0] | (u64)halves[1] << 32;
        }
    }
    __syncthreads();
}

// Returns the page table entries of a block, which is one of `n_parts` blocks that share a token.
DEVICE int2 share_of(const Params &p, int token, int part) {
    int2 entries = entries_of(p.visible, token);
    int share = (entries.y - entries.x + p.n_parts - 1) / p.n_parts;
    entries.x = min(entries.x + part * share, entries.y);
    entries.y = min(entries.x + share, entries.y);
    return entries;
}

// Returns the ALiBi slope of a head. The slopes form a geometric series over the largest power of two of
// heads; the remaining heads interpolate.
DEVICE float slope_of(const Params &p, int head) {
    if (p.max_bias == 0.0f) return 0.0f;
    int power = 1 << (31 - __clz(p.q.ne[1]));
    float share = head < power ? (float)(head + 1) : 0.5f * (float)(2 * (head - power) + 1);
    return exp2f(-p.max_bias * share / (float)power);
}

// Converts a dot product to a score.
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

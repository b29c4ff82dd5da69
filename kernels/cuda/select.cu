// Sparse attention: scores of cells, their selection, and cells found by position.
//
// K: type of the keys. DK: key size.
#include "blocks.cuh"
#include "select.cuh"
#include "visible.cuh"

struct Params {
    Tensor q, k, weights, y;
    Visible visible;
    // Scratch memory for tables of `n_slots` blocks.
    u32 *tables;
    int n_slots, block_size, n_blocks, local, whole, tail, by_head, n_rows;
};

// Fills the result with minus infinity.
extern "C" __global__ void hide_all(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    u32 n = thread_number();
    u32 all = (u32)p.y.ne[0] * p.y.ne[1] * p.y.ne[2];
    if (n >= all) return;
    Index at = unravel(n, p.y.ne);
    *(float *)(p.y.data + row_offset(p.y, at) + at.i[0] * p.y.nb[0]) = -INF;
}

// Returns the dot product of a token's query of a head with a key, in all lanes.
DEVICE float product(const Params &p, const char *key, int head, int token) {
    using T = types::K;
    const char *q = p.q.data + head * p.q.nb[1] + token * p.q.nb[2];
    float sum = 0.0f;
    for (int c = threadIdx.x % 32; c < DK / T::N; c += 32) {
        float k[T::N];
        int block = c / T::CHUNKS, first = block * T::QK + chunk_start<T>(c % T::CHUNKS);
        T::chunk((const u8 *)key + (i64)block * T::BYTES, c % T::CHUNKS, k);
        for (int n = 0; n < T::N; n++) {
            sum += k[n] * *(const float *)(q + (first + n / T::RUN * T::GAP + n % T::RUN) * p.q.nb[0]);
        }
    }
    return warp_sum(sum);
}

// Scores the cells that a token sees. Grid: pages in groups of warps, tokens.
extern "C" __global__ void index_scores(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int token = blockIdx.y, q_pos = p.visible.pos[token], n_warps = gridDim.x * blockDim.x / 32;
    int2 entries = entries_of(p.visible, token);
    bool is_first = threadIdx.x % 32 == 0;
    for (int entry = entries.x + thread_number() / 32; entry < entries.y; entry += n_warps) {
        Page page = page_of(p.visible, entry);
        for (u64 left = page.mask; left; left &= left - 1) {
            int i = __ffsll(left) - 1, cell = page.first + i, k_pos;
            if (!lists(p.visible, page, i, k_pos) || k_pos > q_pos) continue;
            const char *key = p.k.data + cell * p.k.nb[2];
            char *y = p.y.data + cell * p.y.nb[0];
            float sum = 0.0f;
            for (int head = 0; head < p.q.ne[1]; head++) {
                float x = product(p, key, head, token);
                if (p.by_head) {
                    if (is_first) *(float *)(y + head * p.y.nb[1] + token * p.y.nb[2]) = x;
                } else {
                    const char *weight = p.weights.data + head * p.weights.nb[0] + token * p.weights.nb[1];
                    sum += *(const float *)weight * fmaxf(x, 0.0f);
                }
            }
            if (!p.by_head && is_first) *(float *)(y + token * p.y.nb[1]) = sum;
        }
    }
}

// Returns the lowest cell that a token sees at each of its last positions, or 0 if none exists. One warp per
// position.
extern "C" __global__ void last_cells(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    u32 n = thread_number() / 32, lane = threadIdx.x % 32;
    if (n >= (u32)p.y.ne[0] * p.y.ne[1]) return;
    int i = n % p.y.ne[0], token = n / p.y.ne[0], at = p.visible.pos[token] - (p.y.ne[0] - 1 - i);
    u32 lowest = 0xffffffffu;
    int2 entries = entries_of(p.visible, token);
    for (int entry = entries.x; entry < entries.y; entry++) {
        Page page = page_of(p.visible, entry);
        for (int j = lane; j < PAGE; j += 32) {
            int pos;
            if (lists(p.visible, page, j, pos) && pos == at) lowest = min(lowest, (u32)(page.first + j));
        }
    }
    for (int step = 16; step > 0; step /= 2) lowest = min(lowest, __shfl_xor_sync(ALL_LANES, lowest, step));
    if (lane == 0) *(int *)(p.y.data + i * p.y.nb[0] + token * p.y.nb[1]) = lowest == 0xffffffffu ? 0 : (int)lowest;
}

const int THREADS = 256;
const u32 NONE = 0xffffffffu;

// Hash table of blocks with open addressing. At least one slot stays empty.
struct Table {
    u32 *number, *score, *count;
    u32 mask;

    DEVICE void clear() {
        for (u32 i = threadIdx.x; i <= mask; i += THREADS) number[i] = NONE, score[i] = ordered(-INF), count[i] = 0;
        __syncthreads();
    }

    // Returns the slot of a block, inserting the block if necessary.
    DEVICE u32 add(u32 block) {
        u32 slot = block & mask;
        for (;;) {
            u32 there = atomicCAS(&number[slot], NONE, block);
            if (there == NONE || there == block) return slot;
            slot = (slot + 1) & mask;
        }
    }

    // Returns the slot of an existing block.
    DEVICE u32 find(u32 block) const {
        u32 slot = block & mask;
        while (number[slot] != block) slot = (slot + 1) & mask;
        return slot;
    }
};

// The selected blocks of a row.
struct Choice {
    const Params &p;
    Table table;
    int origin;
    u32 own;
    u64 least;

    // Returns the sort key of a slot: 0 if its block cannot be selected. Otherwise higher scores have larger
    // keys, and among equal scores lower block numbers.
    DEVICE u64 key(u32 slot) const {
        u32 number = table.number[slot];
        if (number == NONE || (p.whole && table.count[slot] < (u32)p.block_size)) return 0;
        bool is_local = !p.whole && own - number < (u32)p.local;
        return (u64)(is_local ? ordered(INF) : table.score[slot]) << 32 | (u32)~number;
    }

    DEVICE bool has(int pos) const {
        u32 number = (u32)(pos - origin) / p.block_size, slot = table.find(number);
        u64 x = key(slot);
        return x == 0 ? p.tail && number == own : x >= least;
    }
};

__shared__ u32 counts[N_COUNTS];
__shared__ u32 first_pos, warp_counts[THREADS / 32];

// Returns true if the token sees the cell assigned to this thread, where the threads process 4 pages at a
// time starting at `entry`.
DEVICE bool seen_cell(const Visible &v, int2 entries, int entry, int q_pos, int &cell, int &pos) {
    int mine = entry + threadIdx.x / PAGE, i = threadIdx.x % PAGE;
    if (mine >= entries.y) return false;
    Page page = page_of(v, mine);
    cell = page.first + i;
    return lists(v, page, i, pos) && pos <= q_pos;
}

// Returns the first cached position of a token's sequence, regardless of visibility, or 0 if no cell belongs
// to the sequence.
DEVICE int first_of(const Visible &v, int2 entries) {
    if (threadIdx.x == 0) first_pos = NONE;
    __syncthreads();
    for (int entry = entries.x; entry < entries.y; entry += THREADS / PAGE) {
        int cell, pos;
        if (seen_cell(v, entries, entry, 0x7fffffff, cell, pos)) atomicMin(&first_pos, (u32)pos);
    }
    __syncthreads();
    return first_pos == NONE ? 0 : (int)first_pos;
}

// Stores the selected cells of a row in order, followed by -1.
DEVICE void store_cells(const Params &p, const Choice &choice, int2 entries, int q_pos, char *out) {
    int n = 0, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int entry = entries.x; entry < entries.y; entry += THREADS / PAGE) {
        int cell, pos;
        bool is_chosen = seen_cell(p.visible, entries, entry, q_pos, cell, pos) && choice.has(pos);
        u32 chosen = __ballot_sync(ALL_LANES, is_chosen);
        if (lane == 0) warp_counts[warp] = __popc(chosen);
        __syncthreads();
        int at = n + __popc(chosen & ((1u << lane) - 1));
        for (int w = 0; w < THREADS / 32; w++) {
            if (w < warp) at += warp_counts[w];
            n += warp_counts[w];
        }
        if (is_chosen && at < p.y.ne[0]) *(int *)(out + at * p.y.nb[0]) = cell;
        __syncthreads();
    }
    for (int i = n + threadIdx.x; i < p.y.ne[0]; i += THREADS) *(int *)(out + i * p.y.nb[0]) = -1;
}

// Selects the cells of the best blocks of positions. A block of threads handles every `gridDim.x`th row. `q`
// holds the scores.
extern "C" __global__ void __launch_bounds__(THREADS) select_blocks(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    const Tensor &scores = p.q;
    u32 *memory = p.tables + (u64)blockIdx.x * p.n_slots * 3;
    Table table = {memory, memory + p.n_slots, memory + 2 * p.n_slots, (u32)p.n_slots - 1};
    for (int row = blockIdx.x; row < p.n_rows; row += gridDim.x) {
        int i1 = row % p.y.ne[1], i2 = row / p.y.ne[1], token = p.by_head ? i2 : i1;
        int q_pos = p.visible.pos[token];
        int2 entries = entries_of(p.visible, token);
        int origin = p.whole ? first_of(p.visible, entries) : 0;
        const char *from = scores.data + i1 * scores.nb[1] + i2 * scores.nb[2];
        table.clear();
        for (int entry = entries.x; entry < entries.y; entry += THREADS / PAGE) {
            int cell, pos;
            if (!seen_cell(p.visible, entries, entry, q_pos, cell, pos)) continue;
            int at = pos - origin;
            u32 slot = table.add((u32)at / p.block_size);
            atomicAdd(&table.count[slot], 1u);
            bool counts_for_score = !p.whole || at % p.block_size == p.block_size - 1;
            if (counts_for_score) atomicMax(&table.score[slot], ordered(*(const float *)(from + cell * scores.nb[0])));
        }
        __syncthreads();
        int own = q_pos - origin;
        Choice choice = {p, table, origin, own < 0 ? 0u : (u32)own / p.block_size, 1};
        choice.least = bound_of_computed(p.n_slots, p.n_blocks, [&](int slot) { return choice.key(slot); }, counts);
        store_cells(p, choice, entries, q_pos, p.y.data + i1 * p.y.nb[1] + i2 * p.y.nb[2]);
        __syncthreads();
    }
}

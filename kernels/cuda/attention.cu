// Attention with online softmax over the cells in a token's page table. Scores are never stored.
//
// A block computes a token with HEADS query heads of one KV head. Each warp takes a quarter of every page, CELLS cells
// at a time, and the lanes hold parts of keys and values. Within a step, loads are independent of each other, and each
// lane computes the score and the weight of one cell for one head. The warps' sums are added in order, so that results
// depend only on the page table and on the number of blocks per token.
//
// With few tokens, several blocks share the pages of a token (SPLIT), and `merge` (attention_merge.cu) adds
// their results in order.
//
// K, V: types of keys and values. DK, DV: their sizes. HEADS: query heads per block. CELLS: cells per step.
// Both are powers of two, and their product is at most 32. SELECTS, BIASES, SINKS: true if the corresponding
// operand exists. SPLIT: several blocks per token. ROUNDS: results are also quantized for matmuls; DV must then
// be a multiple of 32.
#include "blocks.cuh"
#include "partials.cuh"

using Keys = types::K;
using Values = types::V;

const int WARPS = 4, CELLS_OF_WARP = PAGE / WARPS;
// Scores per step, and number of adjacent lanes that hold the same score.
const int SCORES = HEADS * CELLS, SAME = 32 / SCORES;

// The chunks of a row of SIZE values that a lane holds. Lanes without a chunk repeat the last chunk, so that
// loads need no branch.
template <class T, int SIZE> struct Part {
    static const int N = T::N, CHUNKS = SIZE / N, PER_LANE = (CHUNKS + 31) / 32;
    // Returns true if the lane holds chunk `i`.
    static DEVICE bool has(int i) { return i * 32 + threadIdx.x % 32 < CHUNKS; }
    static DEVICE int chunk(int i) { return min(i * 32 + threadIdx.x % 32, CHUNKS - 1); }
    // Returns the index within the row of value `n` of chunk `i`.
    static DEVICE int place(int i, int n) {
        return chunk(i) / T::CHUNKS * T::QK + chunk_start<T>(chunk(i) % T::CHUNKS) + n / T::RUN * T::GAP + n % T::RUN;
    }
    static DEVICE void load(const char *row, int i, float (&v)[N]) {
        const u8 *block = (const u8 *)row + (i64)(chunk(i) / T::CHUNKS) * T::BYTES;
        T::chunk(block, chunk(i) % T::CHUNKS, v);
    }
};

using KeyPart = Part<Keys, DK>;
using ValuePart = Part<Values, DV>;

__shared__ Listed listed;
__shared__ Partials<WARPS, HEADS, DV> partials;

// The scores of a step: each lane has the scores of one head and one of the step's cells.
struct Scores {
    // Head within the block, head of the model, and cell within the step.
    int in_block, head, cell;
    float slope, largest, weights;

    DEVICE Scores(const Params &p, int first_head, int n_heads) {
        int i = threadIdx.x % 32 / SAME;
        in_block = i / CELLS, cell = i % CELLS;
        // Heads past the end of the group repeat the last head and are not stored.
        head = first_head + min(in_block, n_heads - 1);
        slope = slope_of(p, head), largest = -INF, weights = 0.0f;
    }

    // Combines values of the lanes with the same head.
    template <class F> DEVICE float of_head(float x, F combine) const {
#pragma unroll
        for (int distance = SAME; distance < SAME * CELLS; distance *= 2) x = combine(x, __shfl_xor_sync(ALL_LANES, x, distance));
        return x;
    }

    // Returns the weight of the lane's cell, and the factor for the sums before. A score of minus infinity has
    // weight 0.
    DEVICE float take(float score, float &factor) {
        float before = largest;
        largest = fmaxf(before, of_head(score, [](float a, float b) { return fmaxf(a, b); }));
        // While a head has seen no cell, all of its weights are 0.
        float shift = largest == -INF ? 0.0f : largest;
        factor = expf(before - shift);
        float weight = expf(score - shift);
        weights = weights * factor + weight;
        return weight;
    }

    static DEVICE float value_for(float x, int head, int cell) { return __shfl_sync(ALL_LANES, x, (head * CELLS + cell) * SAME); }
};

// The cells of a step, as indices within a page. Past the last cell, the first cell is repeated.
struct Step {
    int cells[CELLS], n;

    DEVICE Step(u64 &left) {
        n = min(__popcll(left), CELLS);
        cells[0] = __ffsll(left) - 1;
#pragma unroll
        for (int c = 0; c < CELLS; c++) {
            cells[c] = left ? __ffsll(left) - 1 : cells[0];
            left &= left - 1;
        }
    }

    // Returns the cell with an index that differs between lanes.
    DEVICE int cell(int i) const {
        int cell = cells[0];
#pragma unroll
        for (int c = 1; c < CELLS; c++) cell = i == c ? cells[c] : cell;
        return cell;
    }
};

// Loads the lane's part of the keys or values of a step.
template <class P> DEVICE void load_step(const Tensor &t, int head, int first, const Step &step, float (&x)[CELLS][P::PER_LANE][P::N]) {
    const char *from = t.data + head * t.nb[1];
#pragma unroll
    for (int c = 0; c < CELLS; c++) {
#pragma unroll
        for (int i = 0; i < P::PER_LANE; i++) P::load(from + (i64)(first + step.cells[c]) * t.nb[2], i, x[c][i]);
    }
}

// Stores the warp's sums in shared memory.
DEVICE void store_sums(const Scores &scores, const float (&sums)[HEADS][ValuePart::PER_LANE][Values::N]) {
    int warp = threadIdx.x / 32;
    float weights = scores.of_head(scores.weights, [](float a, float b) { return a + b; });
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < ValuePart::PER_LANE; i++) {
            if (!ValuePart::has(i)) continue;
            for (int n = 0; n < Values::N; n++) partials.values[warp][h][spread(ValuePart::place(i, n))] = sums[h][i][n];
        }
    }
    if (scores.cell == 0 && threadIdx.x % SAME == 0) {
        partials.largest[warp][scores.in_block] = scores.largest;
        partials.weights[warp][scores.in_block] = weights;
    }
    __syncthreads();
}

// Grid: tokens; KV heads times the number of blocks per group of query heads; blocks that share a token.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) attention(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int token = blockIdx.x, group = p.q.ne[1] / p.k.ne[1], per_group = (group + HEADS - 1) / HEADS;
    int head_kv = blockIdx.y / per_group, in_group = blockIdx.y % per_group * HEADS;
    int first_head = head_kv * group + in_group, n_heads = min(HEADS, group - in_group);
    mark_selected(p, token, head_kv);

    float q[HEADS][KeyPart::PER_LANE][Keys::N], sums[HEADS][ValuePart::PER_LANE][Values::N] = {};
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        const char *from = p.q.data + (first_head + min(h, n_heads - 1)) * p.q.nb[1] + token * p.q.nb[2];
        for (int i = 0; i < KeyPart::PER_LANE; i++) {
            for (int n = 0; n < Keys::N; n++) {
                q[h][i][n] = KeyPart::has(i) ? *(const float *)(from + KeyPart::place(i, n) * p.q.nb[0]) : 0.0f;
            }
        }
    }
    Scores scores(p, first_head, n_heads);
    int q_pos = p.visible.pos[token];
    bool needs_positions = BIASES || p.max_bias != 0.0f;
    int2 entries = share_of(p, token, blockIdx.z);
    for (int first_entry = entries.x; first_entry < entries.y; first_entry += MAX_LISTED) {
        int n_listed = min(entries.y - first_entry, MAX_LISTED);
        list_pages(p, listed, first_entry, n_listed, q_pos);
        for (int entry = 0; entry < n_listed; entry++) {
            int first = listed.first[entry];
            u64 left = listed.seen[entry] & ((1ull << CELLS_OF_WARP) - 1) << threadIdx.x / 32 * CELLS_OF_WARP;
            while (left) {
                Step step(left);
                float k[CELLS][KeyPart::PER_LANE][Keys::N], v[CELLS][ValuePart::PER_LANE][Values::N];
                load_step<KeyPart>(p.k, head_kv, first, step, k);
                load_step<ValuePart>(p.v, head_kv, first, step, v);
                int ahead = needs_positions ? p.visible.cell_pos[first + step.cell(scores.cell)] - q_pos : 0;
                float products[SCORES] = {};
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
#pragma unroll
                    for (int c = 0; c < CELLS; c++) {
                        for (int i = 0; i < KeyPart::PER_LANE; i++) {
                            for (int n = 0; n < Keys::N; n++) products[h * CELLS + c] += q[h][i][n] * k[c][i][n];
                        }
                    }
                }
                float score = score_of(p, warp_sums<SCORES>(products), scores.head, scores.slope, ahead), factor;
                float weight = scores.take(scores.cell < step.n ? score : -INF, factor);
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    float of_sums = Scores::value_for(factor, h, 0), of_cells[CELLS];
#pragma unroll
                    for (int c = 0; c < CELLS; c++) of_cells[c] = Scores::value_for(weight, h, c);
#pragma unroll
                    for (int i = 0; i < ValuePart::PER_LANE; i++) {
#pragma unroll
                        for (int n = 0; n < Values::N; n++) {
                            float sum = sums[h][i][n] * of_sums;
#pragma unroll
                            for (int c = 0; c < CELLS; c++) sum += of_cells[c] * v[c][i][n];
                            sums[h][i][n] = sum;
                        }
                    }
                }
            }
        }
    }
    store_sums(scores, sums);
    combine(p, partials, first_head, n_heads, token, 0);
}

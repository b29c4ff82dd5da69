// Mixtures of experts: selection of experts with their weights, and weighted sums of their results.
//
// VALUES: logits of a token per lane. GATE: function of the logits. BIAS: true if a bias is added for the selection.
// SOFTMAX: true if the weights of the selected experts are their softmax. NORMALIZES: true if they are divided by their
// sum.
#include "select.cuh"
#include "unary.cuh"

#ifdef VALUES
struct Params {
    Tensor logits, bias, ids, weights;
    // Factors of the logits before a softmax over all experts, and over the selected ones.
    float all_scale, used_scale;
    // Bounds of the sum of weights. Then factor and offset of a weight.
    float min_sum, max_sum, factor, offset;
    int n_used, n_tokens;
};

enum Gate { NO_GATE, SOFTMAX_OF_ALL, SIGMOID, SQRT_SOFTPLUS };

const u32 NONE = 0xffffffffu;

// Logits or gates of a token: lane `l` has the values of experts `l`, `l + 32`, ...
struct Gates {
    float x[VALUES];
    int n;

    DEVICE bool has(int i) const { return 32 * i + threadIdx.x % 32 < n; }

    DEVICE Gates(const Tensor &logits, int token) : n(logits.ne[0]) {
        const char *row = logits.data + token * logits.nb[1];
#pragma unroll
        for (int i = 0; i < VALUES; i++) x[i] = has(i) ? *(const float *)(row + (32 * i + threadIdx.x % 32) * logits.nb[0]) : -INF;
    }

    DEVICE void convert(float scale) {
        float largest = -INF, sum = 0.0f;
        if (GATE == SOFTMAX_OF_ALL) {
#pragma unroll
            for (int i = 0; i < VALUES; i++) largest = fmaxf(largest, has(i) ? x[i] * scale : -INF);
            largest = warp_max(largest);
        }
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            if (GATE == SOFTMAX_OF_ALL) sum += x[i] = has(i) ? expf(x[i] * scale - largest) : 0.0f;
            if (GATE == SIGMOID) x[i] = sigmoid(x[i]);
            if (GATE == SQRT_SOFTPLUS) x[i] = sqrt_of(softplus(x[i]));
        }
        if (GATE != SOFTMAX_OF_ALL) return;
        sum = warp_sum(sum);
#pragma unroll
        for (int i = 0; i < VALUES; i++) x[i] /= sum;
    }
};

// An expert and its weight. Lane `i` has the `i`th best.
struct Chosen {
    u32 expert;
    float weight;
};

// Selects the `k` best experts, in the order of `key_of`.
DEVICE Chosen choose(const Params &p, const Gates &gates) {
    int lane = threadIdx.x % 32;
    u32 keys[VALUES], left = 0;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        float bias = BIAS && gates.has(i) ? *(const float *)(p.bias.data + (32 * i + lane) * p.bias.nb[0]) : 0.0f;
        keys[i] = ordered(BIAS ? gates.x[i] + bias : gates.x[i]);
        if (gates.has(i)) left |= 1u << i;
    }
    Chosen chosen = {0, 0.0f};
    for (int place = 0; place < p.n_used; place++) {
        u32 best = 0, at = NONE;
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            if ((left >> i & 1) && (at == NONE || keys[i] > best)) best = keys[i], at = 32 * i + lane;
        }
        u32 best_of_all = highest_of_warp(best);
        u32 expert = lowest_of_warp(best == best_of_all ? at : NONE);
        float gate = 0.0f;
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            if (32 * i + lane == expert) gate = gates.x[i], left &= ~(1u << i);
        }
        gate = __shfl_sync(ALL_LANES, gate, expert % 32);
        if (lane == place) chosen = {expert, gate};
    }
    return chosen;
}

// One warp per token.
extern "C" __global__ void __launch_bounds__(128) route(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int token = thread_number() / 32, lane = threadIdx.x % 32;
    if (token >= p.n_tokens) return;
    Gates gates(p.logits, token);
    gates.convert(p.all_scale);
    Chosen chosen = choose(p, gates);
    bool is_used = lane < p.n_used;
    float weight = chosen.weight;
    if (SOFTMAX) {
        float score = is_used ? weight * p.used_scale : -INF, largest = warp_max(score);
        weight = is_used ? expf(score - largest) : 0.0f;
        weight /= warp_sum(weight);
    }
    if (NORMALIZES) weight /= fminf(fmaxf(warp_sum(is_used ? weight : 0.0f), p.min_sum), p.max_sum);
    if (!is_used) return;
    *(int *)(p.ids.data + lane * p.ids.nb[0] + token * p.ids.nb[1]) = chosen.expert;
    *(float *)(p.weights.data + lane * p.weights.nb[0] + token * p.weights.nb[1]) = weight * p.factor + p.offset;
}
#else
struct Params {
    // Results `[n, n_used, T]`, weights `[1, n_used, T]`, and sums `[n, T]`.
    Tensor x, weights, y;
};

// Adds the weighted results of a token's experts in order. Rounds like separate ops.
extern "C" __global__ void weighted_sum(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    u32 number = thread_number(), token = number / p.y.ne[0], at = number % p.y.ne[0];
    if (token >= p.y.ne[1]) return;
    const char *x = p.x.data + at * p.x.nb[0] + token * p.x.nb[2], *weights = p.weights.data + token * p.weights.nb[2];
    float sum = 0.0f;
#pragma unroll 8
    for (int i = 0; i < p.x.ne[1]; i++) {
        float part = __fmul_rn(*(const float *)(x + i * p.x.nb[1]), *(const float *)(weights + i * p.weights.nb[1]));
        sum = i == 0 ? part : __fadd_rn(sum, part);
    }
    *(float *)(p.y.data + at * p.y.nb[0] + token * p.y.nb[1]) = sum;
}
#endif

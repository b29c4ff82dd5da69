// Recurrences over channels. A thread owns a channel and its state.
//
// TAPS: taps of `short_conv`. SPREADS: see `cells.cuh`.
#include "cells.cuh"

struct Params {
    States states;
    Tensor y, operands[3];
    int i0, padding;
};

DEVICE float at(const Tensor &t, int i0, int i1, int i2) {
    return *(const float *)(t.data + i0 * t.nb[0] + i1 * t.nb[1] + i2 * t.nb[2]);
}

DEVICE float &result(const Params &p, int i0, int i1, int i2) {
    return *(float *)(p.y.data + i0 * p.y.nb[0] + i1 * p.y.nb[1] + i2 * p.y.nb[2]);
}

// Number of inputs that a thread loads ahead.
const int AHEAD = 4;

// Computes each token of `x [c, T]` from the N inputs before it, oldest first, and the state of N floats.
template <int N, class F> DEVICE void slide(const Params &p, F result_of) {
    const Tensor &x = p.operands[0];
    int c = thread_number(), n = count_tokens(p.states);
    bool is_there = c < x.ne[0];
    float past[N] = {}, next[AHEAD];
    auto load_ahead = [&](int first) {
        for (int i = 0; i < AHEAD; i++) next[i] = is_there && first + i < n ? at(x, c, token_at(first + i), 0) : 0.0f;
    };
    load_ahead(0);
    for (int first = 0; first < n; first += AHEAD) {
        float now[AHEAD];
        for (int i = 0; i < AHEAD; i++) now[i] = next[i];
        load_ahead(first + AHEAD);
        if (first % PREPARED == 0) {
            __syncthreads();
            prepare_cells(p.states, first, n);
            __syncthreads();
        }
        for (int i = 0; i < AHEAD; i++) {
            if (first + i >= n) return;
            TokenCells cells = prepared_cells[(first + i) % PREPARED];
            if (cells.to == INVALID) return;
            if (!is_there) continue;
            if (cells.from != KEPT) {
                for (int j = 0; j < N; j++) past[j] = cells.from == ZEROS ? 0.0f : cell_at(p.states, cells.from)[(i64)c * N + j];
            }
            result(p, c, cells.token, 0) = result_of(past, now[i]);
            for (int j = 0; j + 1 < N; j++) past[j] = past[j + 1];
            past[N - 1] = now[i];
            if (cells.to == NOWHERE) continue;
            for (int j = 0; j < N; j++) cell_at(p.states, cells.to)[(i64)c * N + j] = past[j];
        }
    }
}

#ifdef TAPS
// Convolution of a channel with its last inputs: `x [c, T]`, `weight [TAPS, c]`.
extern "C" __global__ void short_conv(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    const Tensor &weight = p.operands[1];
    int c = thread_number();
    float weights[TAPS];
    for (int j = 0; j < TAPS; j++) weights[j] = c < weight.ne[1] ? at(weight, j, c, 0) : 0.0f;
    slide<TAPS - 1>(p, [&](const float(&past)[TAPS - 1], float now) {
        float sum = 0.0f;
        for (int j = 0; j < TAPS - 1; j++) sum += past[j] * weights[j];
        return sum + now * weights[TAPS - 1];
    });
}
#endif

// Returns the previous token's `x [c, T]`.
extern "C" __global__ void previous(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    slide<1>(p, [](const float(&past)[1], float) { return past[0]; });
}

// Addresses of a state before and after a token.
struct Cells {
    // Null for zeros.
    const float *from;
    // Null if a cell is out of range.
    float *to;

    DEVICE Cells(const States &states, int token, i64 offset) : from(nullptr), to(nullptr) {
        TokenCells cells = cells_of(states, token);
        if (cells.to == INVALID) return;
        if (cells.from != ZEROS) from = cell_at(states, cells.from) + offset;
        to = cell_at(states, cells.to) + offset;
    }
};

// Like `short_conv`, with any number of taps, at a distance of `i0` tokens.
extern "C" __global__ void dilated_conv(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    const Tensor &x = p.operands[0], &weight = p.operands[1];
    int c = thread_number(), past = weight.ne[0] - 1, dilation = p.i0;
    if (c >= x.ne[0]) return;
    for (int t = 0; t < x.ne[1]; t++) {
        Cells s(p.states, t, (i64)c * past * dilation);
        if (!s.to) return;
        float now = at(x, c, t, 0), sum = 0.0f;
        for (int j = 0; j < past; j++) {
            float before = s.from ? s.from[j * dilation] : 0.0f;
            sum += before * at(weight, j, c, 0);
        }
        result(p, c, t, 0) = sum + now * at(weight, past, c, 0);
        // Elements are copied in ascending order, so that a state can be shifted in place.
        for (int j = 0; j + 1 < past * dilation; j++) s.to[j] = s.from ? s.from[j + 1] : 0.0f;
        s.to[past * dilation - 1] = now;
    }
}

// Adds a value to a softmax-weighted mean: the maximum score, the sum of exp(score - max), and the sum of the values
// with these weights.
DEVICE void take_in(float (&mean)[3], float score, float x) {
    float largest = mean[1] == 0.0f ? score : fmaxf(score, mean[0]);
    float before = mean[1] == 0.0f ? 0.0f : expf(mean[0] - largest), now = expf(score - largest);
    mean[0] = largest;
    mean[1] = mean[1] * before + now;
    mean[2] = mean[2] * before + x * now;
}

// Softmax-weighted means of groups of tokens: `x` and `gate [w, T]`, `places [w, n]`. One thread per channel;
// `i0` is 1 if groups overlap.
extern "C" __global__ void compress(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    const Tensor &x = p.operands[0], &gate = p.operands[1], &places = p.operands[2];
    int c = thread_number(), n_channels = p.y.ne[0], size = p.i0 ? 7 : 4;
    if (c >= n_channels) return;
    for (int t = 0; t < x.ne[1]; t++) {
        Cells s(p.states, t, (i64)c * size);
        if (!s.to) return;
        float count = s.from ? s.from[0] : 0.0f, own[3], next[3];
        for (int i = 0; i < 3; i++) {
            own[i] = s.from ? s.from[1 + i] : 0.0f;
            next[i] = p.i0 && s.from ? s.from[4 + i] : 0.0f;
        }
        if (count >= (float)places.ne[1]) {
            for (int i = 0; i < 3; i++) own[i] = next[i], next[i] = 0.0f;
            count = 0.0f;
        }
        int place = (int)count, late = p.i0 ? n_channels + c : c;
        if (p.i0) take_in(next, at(gate, c, t, 0) + at(places, c, place, 0), at(x, c, t, 0));
        take_in(own, at(gate, late, t, 0) + at(places, late, place, 0), at(x, late, t, 0));
        s.to[0] = count + 1.0f;
        for (int i = 0; i < 3; i++) {
            s.to[1 + i] = own[i];
            if (p.i0) s.to[4 + i] = next[i];
        }
        result(p, c, t, 0) = own[2] / own[1];
    }
}

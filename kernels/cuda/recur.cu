// Recurrences over tokens in order. Each thread or warp owns lanes of the state, which no other thread
// accesses.
#include "common.cuh"

struct Params {
    Tensor states, from, to, y, operands[6];
    Fault *fault;
    u32 node;
    int i0;
};

// State cells that a token reads and writes.
struct Cells {
    // Address of the lane's previous state, or null for zeros.
    const float *from;
    // Address of the lane's new state, or null if the token's cells are invalid.
    float *to;
};

DEVICE int int_at(const Tensor &list, int i) {
    return *(const int *)(list.data + i * list.nb[0]);
}

// Returns the cells of a token at a row offset of `offset` floats. Records an error if a cell is out of
// range.
DEVICE Cells cells_of(const Params &p, int token, i64 offset) {
    int from = int_at(p.from, token), to = int_at(p.to, token), n = p.states.ne[1];
    Cells cells = {nullptr, nullptr};
    if (from >= n || (u32)to >= (u32)n) {
        report(p.fault, p.node, from >= n ? from : to, n);
        return cells;
    }
    if (from >= 0) cells.from = (const float *)(p.states.data + from * p.states.nb[1]) + offset;
    cells.to = (float *)(p.states.data + to * p.states.nb[1]) + offset;
    return cells;
}

DEVICE float at(const Tensor &t, int i0, int i1, int i2) {
    return *(const float *)(t.data + i0 * t.nb[0] + i1 * t.nb[1] + i2 * t.nb[2]);
}

DEVICE float &result(const Params &p, int i0, int i1, int i2) {
    return *(float *)(p.y.data + i0 * p.y.nb[0] + i1 * p.y.nb[1] + i2 * p.y.nb[2]);
}

// Convolution of a channel with its last inputs: `x [c, T]`, `weight [k, c]`. One thread per channel; `i0` is
// the dilation.
extern "C" __global__ void short_conv(const __grid_constant__ Params p) {
    const Tensor &x = p.operands[0], &weight = p.operands[1];
    int c = thread_number(), past = weight.ne[0] - 1, dilation = p.i0;
    if (c >= x.ne[0]) return;
    for (int t = 0; t < x.ne[1]; t++) {
        Cells s = cells_of(p, t, (i64)c * past * dilation);
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

// Returns the previous token's `x [c, T]`.
extern "C" __global__ void previous(const __grid_constant__ Params p) {
    const Tensor &x = p.operands[0];
    int c = thread_number();
    if (c >= x.ne[0]) return;
    for (int t = 0; t < x.ne[1]; t++) {
        Cells s = cells_of(p, t, c);
        if (!s.to) return;
        result(p, c, t, 0) = s.from ? *s.from : 0.0f;
        *s.to = at(x, c, t, 0);
    }
}

// Adds a value to a mean: the maximum score, the sum of exp(score - max), and the sum of the values weighted
// by the same factors.
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
    const Tensor &x = p.operands[0], &gate = p.operands[1], &places = p.operands[2];
    int c = thread_number(), n_channels = p.y.ne[0], size = p.i0 ? 7 : 4;
    if (c >= n_channels) return;
    for (int t = 0; t < x.ne[1]; t++) {
        Cells s = cells_of(p, t, (i64)c * size);
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

// Selective scan: `x [p, h, T]`, `dt [h, T]`, `a [n or 1, h]`, `b` and `c [n, g, T]`. One warp per element of
// a head, with `n` state values.
extern "C" __global__ void ssm_scan(const __grid_constant__ Params p) {
    const Tensor &x = p.operands[0], &dt = p.operands[1], &a = p.operands[2], &b = p.operands[3], &c = p.operands[4];
    int warp = thread_number() / 32, lane = threadIdx.x % 32, n_elements = x.ne[0], n_heads = x.ne[1], n = b.ne[0];
    if (warp >= n_elements * n_heads) return;
    int i = warp % n_elements, head = warp / n_elements, group = head / (n_heads / b.ne[1]);
    for (int t = 0; t < x.ne[2]; t++) {
        Cells s = cells_of(p, t, ((i64)head * n_elements + i) * n);
        if (!s.to) return;
        float step = at(dt, head, t, 0), input = step * at(x, i, head, t), sum = 0.0f;
        for (int j = lane; j < n; j += 32) {
            float decay = expf(step * at(a, a.ne[0] == 1 ? 0 : j, head, 0));
            float now = (s.from ? s.from[j] : 0.0f) * decay + input * at(b, j, group, t);
            s.to[j] = now;
            sum += now * at(c, j, group, t);
        }
        sum = warp_sum(sum);
        if (lane == 0) result(p, i, head, t) = sum;
    }
}

// RWKV 6: `r`, `k`, `v`, `w [d, h, T]`, `u [d, h]`. One warp per row of a head's state.
extern "C" __global__ void wkv6(const __grid_constant__ Params p) {
    const Tensor &r = p.operands[0], &k = p.operands[1], &v = p.operands[2], &w = p.operands[3], &u = p.operands[4];
    int warp = thread_number() / 32, lane = threadIdx.x % 32, d = r.ne[0];
    if (warp >= d * r.ne[1]) return;
    int i = warp % d, head = warp / d;
    for (int t = 0; t < r.ne[2]; t++) {
        Cells s = cells_of(p, t, ((i64)head * d + i) * d);
        if (!s.to) return;
        float value = at(v, i, head, t), sum = 0.0f;
        for (int j = lane; j < d; j += 32) {
            float before = s.from ? s.from[j] : 0.0f, kv = at(k, j, head, t) * value;
            sum += at(r, j, head, t) * (before + at(u, j, head, 0) * kv);
            s.to[j] = at(w, j, head, t) * before + kv;
        }
        sum = warp_sum(sum);
        if (lane == 0) result(p, i, head, t) = sum;
    }
}

// RWKV 7: `r`, `w`, `k`, `v`, `a`, `b [d, h, T]`. One warp per row of a head's state.
extern "C" __global__ void wkv7(const __grid_constant__ Params p) {
    const Tensor &r = p.operands[0], &w = p.operands[1], &k = p.operands[2], &v = p.operands[3];
    const Tensor &a = p.operands[4], &b = p.operands[5];
    int warp = thread_number() / 32, lane = threadIdx.x % 32, d = r.ne[0];
    if (warp >= d * r.ne[1]) return;
    int i = warp % d, head = warp / d;
    for (int t = 0; t < r.ne[2]; t++) {
        Cells s = cells_of(p, t, ((i64)head * d + i) * d);
        if (!s.to) return;
        float value = at(v, i, head, t), held = 0.0f, sum = 0.0f;
        for (int j = lane; j < d; j += 32) held += at(a, j, head, t) * (s.from ? s.from[j] : 0.0f);
        held = warp_sum(held);
        for (int j = lane; j < d; j += 32) {
            float before = s.from ? s.from[j] : 0.0f;
            float now = at(w, j, head, t) * before + at(k, j, head, t) * value + at(b, j, head, t) * held;
            s.to[j] = now;
            sum += at(r, j, head, t) * now;
        }
        sum = warp_sum(sum);
        if (lane == 0) result(p, i, head, t) = sum;
    }
}

// Linear attention: `q` and `k [dk, m, T]`, `v [dv, n, T]`, `decay [1 or dk, n, T]`, `beta [1, n, T]`.
struct LinearParams {
    Params p;
    float scale, slope;
    int delta, tiled, has_decay, has_beta;
};

// Returns the decay factor of row `i` of a head's state.
DEVICE float kept(const LinearParams &l, int i, int head, int t) {
    const Tensor &decay = l.p.operands[3];
    if (l.has_decay) return expf(at(decay, decay.ne[0] == 1 ? 0 : i, head, t));
    return expf(-l.slope * exp2f(-8.0f * (float)(head + 1) / (float)l.p.operands[2].ne[1]));
}

// Each thread owns a column of a head's state: the values that contribute to element `j` of the result.
extern "C" __global__ void linear_attention(const __grid_constant__ LinearParams l) {
    const Params &p = l.p;
    const Tensor &q = p.operands[0], &k = p.operands[1], &v = p.operands[2], &beta = p.operands[4];
    int n = thread_number(), dk = q.ne[0], m = q.ne[1], dv = v.ne[0], n_heads = v.ne[1];
    if (n >= dv * n_heads) return;
    int j = n % dv, head = n / dv, key_head = l.tiled ? head % m : head / (n_heads / m);
    for (int t = 0; t < v.ne[2]; t++) {
        Cells s = cells_of(p, t, (i64)head * dk * dv + j);
        if (!s.to) return;
        float d = at(v, j, head, t), sum = 0.0f;
        if (l.delta && s.from) {
            float known = 0.0f;
            for (int i = 0; i < dk; i++) known += s.from[i * dv] * kept(l, i, head, t) * at(k, i, key_head, t);
            d -= known;
        }
        if (l.has_beta) d *= at(beta, 0, head, t);
        for (int i = 0; i < dk; i++) {
            float before = s.from ? s.from[i * dv] * kept(l, i, head, t) : 0.0f;
            float now = before + at(k, i, key_head, t) * d;
            sum += now * at(q, i, key_head, t);
            s.to[i * dv] = now;
        }
        result(p, j, head, t) = sum * l.scale;
    }
}

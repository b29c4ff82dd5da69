// Rotary position embeddings. One block per token; each thread handles some pairs of all heads.
#include "rope.cuh"

struct Params {
    Tensor x, y;
    Rope rope;
};

extern "C" __global__ void rope(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int token = blockIdx.x;
    const char *x = p.x.data + token * p.x.nb[2];
    char *y = p.y.data + token * p.y.nb[2];
    for (int pair = threadIdx.x; pair < p.rope.n_dims / 2; pair += blockDim.x) {
        float2 r = rotation_of(p.rope, token, pair);
        int2 at = elements_of(p.rope, pair);
        int a = at.x, b = at.y;
        for (int head = 0; head < p.x.ne[1]; head++) {
            const char *from = x + head * p.x.nb[1];
            char *to = y + head * p.y.nb[1];
            float xa = *(const float *)(from + a * p.x.nb[0]), xb = *(const float *)(from + b * p.x.nb[0]);
            *(float *)(to + a * p.y.nb[0]) = xa * r.y - xb * r.x;
            *(float *)(to + b * p.y.nb[0]) = xa * r.x + xb * r.y;
        }
    }
    int n_rest = p.x.ne[0] - p.rope.n_dims;
    for (int i = threadIdx.x; i < n_rest * p.x.ne[1]; i += blockDim.x) {
        int at = p.rope.n_dims + i % n_rest, head = i / n_rest;
        float rest = *(const float *)(x + head * p.x.nb[1] + at * p.x.nb[0]);
        *(float *)(y + head * p.y.nb[1] + at * p.y.nb[0]) = rest;
    }
}

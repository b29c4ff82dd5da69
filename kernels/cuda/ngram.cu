// Table rows of n-grams, computed as a hash of their tokens.
#include "common.cuh"

struct Params {
    Tensor numbers, y;
    u64 multipliers[8];
    u32 n, end, first, size;
};

// Returns the number of a token in the table. NaN and negative values count as 0, and values that are too
// large as the maximum.
DEVICE u64 number_at(const Params &p, u32 i, u32 token) {
    float x = *(const float *)(p.numbers.data + i * p.numbers.nb[0] + token * p.numbers.nb[1]);
    if (!(x > 0.0f)) return 0;
    return x >= 18446744073709551616.0f ? ~0ull : (u64)x;
}

extern "C" __global__ void ngram_hash(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    u32 token = thread_number();
    if (token >= (u32)p.y.ne[0]) return;
    bool ended = false;
    u64 mixed = 0;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        if (i >= p.n) break;
        u64 number = number_at(p, i, token), id = number - 1;
        // N-grams do not extend across the end of a document: the end token and all tokens before it count as
        // the end.
        ended = ended || (i > 0 && (number == 0 || id == p.end));
        id = ended ? p.end : number == 0 ? 0 : id;
        mixed ^= id * p.multipliers[i];
    }
    *(int *)(p.y.data + token * p.y.nb[0]) = (int)(mixed % p.size) + (int)p.first;
}

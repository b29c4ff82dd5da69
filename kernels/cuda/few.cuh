// Matmuls with few columns. A launch multiplies up to three matrices with the same columns and includes the
// subsequent sums or gated unit.
//
// PARTS: number of matrices. GLU: an activation function of `unary.cuh`; if defined, the single result is
// GLU(first) * second. IDS: a list of expert ids selects the matrix of each column.
#pragma once
#include "unary.cuh"

struct Part {
    Tensor w, y;
    // Optional addends. A stride is 0 for broadcast dimensions.
    Tensor adds[2];
};

struct Params {
    Part parts[3];
    Tensor x, ids;
    // Contiguous quantized columns, for integer matmuls.
    const char *columns;
    // Destination of the quantized results, if requested.
    char *rounded;
    Fault *fault;
    u32 node;
    // Number of blocks before the blocks of the second and third matrix.
    int first[2];
    // Groups of results that a warp of `mul_vec_int.cu` or a block of `mul_few_int.cu` computes in sequence.
    int iterations;
};

// Returns the matrix of this block, and sets `block` to the block's index within the matrix. With GLU,
// returns the first matrix.
DEVICE const Part &part_of(const Params &p, int &block) {
    block = blockIdx.x;
#if PARTS > 2
    if (block >= p.first[1]) {
        block -= p.first[1];
        return p.parts[2];
    }
#endif
#if PARTS > 1
    if (block >= p.first[0]) {
        block -= p.first[0];
        return p.parts[1];
    }
#endif
    return p.parts[0];
}

// Returns the offset in bytes of the matrix for outer indices `i2` and `i3` of the columns.
DEVICE i64 outer_offset(const Params &p, const Part &part, int i2, int i3) {
    return i2 / (p.x.ne[2] / part.w.ne[2]) * part.w.nb[2] + i3 / (p.x.ne[3] / part.w.ne[3]) * part.w.nb[3];
}

// Starts to load up to 4 KB of rows `first` to `end` to the L2 cache, with each warp. With GLU, also loads rows of the
// second matrix. `offset` is the offset of the matrices in bytes.
DEVICE void prefetch_rows(const Params &p, const Part &part, i64 offset, int first, int end) {
    i64 start = first * part.w.nb[1], bytes = end * part.w.nb[1] - start;
    prefetch(part.w.data + offset + start, bytes);
#ifdef GLU
    prefetch(p.parts[1].w.data + offset + start, bytes);
#endif
}

// Destination and addends of a column of the result.
struct Output {
    char *y;
    const char *adds[2];
    i64 stride, added_strides[2];

    DEVICE Output(const Part &part, int i1, int i2, int i3) {
        y = part.y.data + i1 * part.y.nb[1] + i2 * part.y.nb[2] + i3 * part.y.nb[3];
        stride = part.y.nb[0];
        for (int i = 0; i < 2; i++) {
            const Tensor &t = part.adds[i];
            adds[i] = t.data ? t.data + i1 * t.nb[1] + i2 * t.nb[2] + i3 * t.nb[3] : 0;
            added_strides[i] = t.nb[0];
        }
    }

    DEVICE void store(int row, float sum) const {
        for (int i = 0; i < 2; i++) {
            if (adds[i]) sum += *(const float *)(adds[i] + row * added_strides[i]);
        }
        *(float *)(y + row * stride) = sum;
    }
};

#if IDS
// Returns the matrix that slot `place` of a token selects. If the id is out of range, records an error and
// returns -1.
DEVICE int chosen(const Params &p, int place, int token) {
    int id = *(const int *)(p.ids.data + place * p.ids.nb[0] + token * p.ids.nb[1]), n = p.parts[0].w.ne[2];
    if ((u32)id < (u32)n) return id;
    report(p.fault, p.node, id, n);
    return -1;
}
#endif

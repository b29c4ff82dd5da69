// Products of few columns: up to three matrices multiply the same columns in one launch, and results go on to what is done with each of them.
//
// PARTS: matrices. GLU: a function of `unary.cuh`; then two matrices give one result, the function of the first one's times the second one's. IDS: the
// matrix of each column is chosen by a list of numbers.
#pragma once
#include "unary.cuh"

struct Part {
    Tensor w, y;
    // Added to the result, if they are there. Strides are 0 where they are repeated.
    Tensor adds[2];
};

struct Params {
    Part parts[3];
    Tensor x, ids;
    // Columns of integers, one behind the other, if they are wanted so.
    const char *columns;
    // Where results go as such columns, if they are rounded.
    char *rounded;
    Fault *fault;
    u32 node;
    // Blocks before those of the second and of the third matrix.
    int first[2];
    // Results of a warp of `mul_vec_int.cu`, or of two matrices with GLU, one after the other.
    int turns;
};

// What a block works at: its matrix, and how many blocks of this matrix come before it. With GLU the first matrix.
DEVICE Part part_of(const Params &p, int &block) {
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

// Where elements of a column of the result go, and what is added to them.
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
// The number of the matrix that a place of a token chooses; -1, which is noted, if there is none.
DEVICE int chosen(const Params &p, int place, int token) {
    int id = *(const int *)(p.ids.data + place * p.ids.nb[0] + token * p.ids.nb[1]), n = p.parts[0].w.ne[2];
    if ((u32)id < (u32)n) return id;
    report(p.fault, p.node, id, n);
    return -1;
}
#endif

// The state cells that the tokens of a batch read and write.
//
// A state stays in registers from a token to the next token of the same sequence. It is stored only if the next token
// does not replace it.
//
// SPREADS: true if blocks with a different `blockIdx.z` compute different sequences. A batch with SPREADS has at most
// 32 tokens, and the grid has a block for each token.
#pragma once
#include "common.cuh"

struct States {
    Tensor cells, from, to;
    Fault *fault;
    u32 node;
    int n_tokens;
};

// Special values of `TokenCells::from`: a new state of zeros, and the state in registers.
const int ZEROS = -1, KEPT = -2;
// Special values of `TokenCells::to`: the next token replaces the state, and an index out of range.
const int NOWHERE = -1, INVALID = -2;

// A token, the cell that its state is read from, and the cell that its state is stored in.
struct TokenCells {
    int token, from, to;
};

// Number of tokens whose cells are prepared together.
const int PREPARED = 128;

__shared__ TokenCells prepared_cells[PREPARED];

#if SPREADS
// Tokens of the block in order.
__shared__ int own_tokens[32];
__shared__ int n_own_tokens;
#endif

DEVICE int int_at(const Tensor &list, int i) {
    return *(const int *)(list.data + i * list.nb[0]);
}

// Finds the tokens of this block, and returns their number: the tokens that depend on token `blockIdx.z`. If that token
// depends on an earlier token, the block has no tokens. Two tokens depend on each other if one of them writes a cell of
// the other.
DEVICE int count_tokens(const States &s) {
#if SPREADS
    int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        bool is_there = lane < s.n_tokens;
        int from = is_there ? int_at(s.from, lane) : -1, to = is_there ? int_at(s.to, lane) : -2 - lane;
        u32 tokens = 1u << lane;
        for (int i = 0; i < s.n_tokens; i++) {
            int other_from = __shfl_sync(ALL_LANES, from, i), other_to = __shfl_sync(ALL_LANES, to, i);
            if (other_to == to || other_to == from || other_from == to) tokens |= 1u << i;
        }
        // Computes the transitive closure with Warshall's algorithm.
        for (int i = 0; i < s.n_tokens; i++) {
            u32 others = __shfl_sync(ALL_LANES, tokens, i);
            if (tokens >> i & 1) tokens |= others;
        }
        tokens = __shfl_sync(ALL_LANES, tokens, blockIdx.z);
        bool is_first = !(tokens & ((1u << blockIdx.z) - 1));
        if (tokens >> lane & 1) own_tokens[__popc(tokens & ((1u << lane) - 1))] = lane;
        if (lane == 0) n_own_tokens = is_first ? __popc(tokens) : 0;
    }
    __syncthreads();
    return n_own_tokens;
#else
    return s.n_tokens;
#endif
}

// Returns the `i`th token of this block.
DEVICE int token_at(int i) {
#if SPREADS
    return own_tokens[i];
#else
    return i;
#endif
}

// Returns the cells of a token, regardless of its neighbors. Records an error if a cell is out of range.
DEVICE TokenCells checked_cells(const States &s, int token, int from, int to) {
    int n = s.cells.ne[1];
    TokenCells cells = {token, max(from, ZEROS), to};
    if (cells.from < n && (u32)cells.to < (u32)n) return cells;
    report(s.fault, s.node, cells.from >= n ? cells.from : cells.to, n);
    cells.to = INVALID;
    return cells;
}

// Returns the cells of a token.
DEVICE TokenCells cells_of(const States &s, int token) {
    return checked_cells(s, token, int_at(s.from, token), int_at(s.to, token));
}

// Cells of a token and of its neighbors. Cells of missing neighbors are invalid.
struct Neighbors {
    int token, from, to, previous_to, next_from, next_to;

    // Loads the cells around the `i`th of `n` tokens. The loads are independent.
    DEVICE Neighbors(const States &s, int i, int n) : token(token_at(i)), from(int_at(s.from, token)), to(int_at(s.to, token)) {
        int previous = token_at(max(i - 1, 0)), next = token_at(min(i + 1, n - 1));
        previous_to = i > 0 ? int_at(s.to, previous) : INVALID;
        next_from = i + 1 < n ? int_at(s.from, next) : INVALID;
        next_to = i + 1 < n ? int_at(s.to, next) : INVALID;
    }

    DEVICE TokenCells own_cells(const States &s) const {
        TokenCells cells = checked_cells(s, token, from, to);
        if (cells.to == INVALID) return cells;
        if (cells.from != ZEROS && previous_to == cells.from) cells.from = KEPT;
        if (next_from == cells.to && next_to == cells.to) cells.to = NOWHERE;
        return cells;
    }
};

// Prepares the cells of up to `PREPARED` tokens, starting with token `first` of `n`. The caller synchronizes the
// block before and after.
DEVICE void prepare_cells(const States &s, int first, int n) {
    for (int i = threadIdx.x; i < min(PREPARED, n - first); i += blockDim.x) prepared_cells[i] = Neighbors(s, first + i, n).own_cells(s);
}

// Returns the state of a cell, or the new state of a token.
DEVICE float *cell_at(const States &s, int cell) {
    return (float *)(s.cells.data + cell * s.cells.nb[1]);
}

// Distributes bytes that the host copied to the device in one piece.
#include "common.cuh"

// Destination of `bytes` bytes, which start `at` bytes after the start of the piece.
struct Range {
    char *to;
    u32 at, bytes;
};

struct Params {
    const char *from;
    Range ranges[16];
};

// Copies elements of a range; the threads of all blocks of the range share them.
template <class T> DEVICE void copy(const Range &range, const char *from) {
    u32 n = range.bytes / sizeof(T), step = gridDim.x * blockDim.x;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) ((T *)range.to)[i] = ((const T *)from)[i];
}

// Grid: x covers a range, y the ranges. Ranges start at multiples of 16 bytes in the piece.
extern "C" __global__ void scatter(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    Range range = p.ranges[blockIdx.y];
    const char *from = p.from + range.at;
    u32 end = (u32)(u64)range.to | range.bytes;
    if (end % 16 == 0) {
        copy<int4>(range, from);
    } else if (end % 4 == 0) {
        copy<int>(range, from);
    } else {
        copy<char>(range, from);
    }
}

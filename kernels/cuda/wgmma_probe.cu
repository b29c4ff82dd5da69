// Loads only on GPUs with `wgmma`, if compiler and driver support it.
#include "wgmma.cuh"

extern "C" __global__ void wgmma_probe() {
    begin_products();
}

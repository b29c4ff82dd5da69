// Sines and cosines of rotary position embeddings, shared by the layers of a step.
#include "rope.cuh"

struct Params {
    Rope rope;
    int n, padding;
};

// One thread per pair of each token.
extern "C" __global__ void __launch_bounds__(64) angles(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    int number = thread_number(), n_pairs = p.rope.n_dims / 2;
    if (number < p.n) p.rope.table[number] = computed_rotation(p.rope, number / n_pairs, number % n_pairs);
}

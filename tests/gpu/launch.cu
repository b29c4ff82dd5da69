// Measures latencies of a GPU: a launch within a CUDA graph, a dependent load, and a shuffle. Prints JSON lines.
//
//     nvcc -O3 -arch=native -o launch tests/gpu/launch.cu && ./launch

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        cudaError_t error = (call);                                                                                    \
        if (error != cudaSuccess) {                                                                                    \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

__global__ void empty() {}

// Starts before the previous kernel has ended, and then waits for it.
__global__ void overlapped() {
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
    cudaGridDependencySynchronize();
#endif
}

__global__ void chase(const unsigned *next, unsigned n, long long *clocks, unsigned *end) {
    unsigned at = 0;
    long long start = clock64();
    for (unsigned i = 0; i < n; i++)
        at = __ldcg(next + at);
    *clocks = clock64() - start;
    *end = at;
}

__global__ void shuffle(unsigned n, long long *clocks, unsigned *end) {
    unsigned value = threadIdx.x;
    long long start = clock64();
    for (unsigned i = 0; i < n; i++)
        value = __shfl_sync(~0u, value, (value + 1) & 31);
    if (threadIdx.x == 0)
        *clocks = clock64() - start;
    end[threadIdx.x] = value;
}

static void launch(cudaStream_t stream, bool overlaps) {
    cudaLaunchConfig_t config = {};
    config.gridDim = 1;
    config.blockDim = 32;
    config.stream = stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = overlaps;
    CHECK(cudaLaunchKernelEx(&config, overlaps ? overlapped : empty));
}

// Returns the microseconds of a graph of n dependent kernels: the median of 20 runs.
static float graph_us(int n, bool overlaps) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t start, end;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n; i++)
        launch(stream, overlaps);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    std::vector<float> times;
    for (int i = 0; i < 23; i++) {
        CHECK(cudaEventRecord(start, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaStreamSynchronize(stream));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, start, end));
        if (i >= 3)
            times.push_back(1e3f * ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// Returns a number that a kernel wrote.
static long long fetched(const long long *clocks) {
    long long value;
    CHECK(cudaMemcpy(&value, clocks, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}

// Returns the clock cycles of a load that depends on the previous one, in a table of this size. The first run reads
// memory, because the table is larger than the L2 cache; later runs hit the cache.
static double load_clocks(size_t bytes, int runs, long long *clocks, unsigned *end) {
    const unsigned n = 4096;
    size_t count = bytes / sizeof(unsigned), step = count / n;
    std::vector<unsigned> table(count);
    for (unsigned i = 0; i < n; i++)
        table[i * step] = (i + 1) % n * step;
    unsigned *next;
    CHECK(cudaMalloc(&next, bytes));
    CHECK(cudaMemcpy(next, table.data(), bytes, cudaMemcpyHostToDevice));
    // Replaces the contents of the cache.
    void *other;
    CHECK(cudaMalloc(&other, size_t(1) << 28));
    CHECK(cudaMemset(other, 0, size_t(1) << 28));
    CHECK(cudaFree(other));
    long long last = 0;
    for (int i = 0; i < runs; i++) {
        chase<<<1, 1>>>(next, n, clocks, end);
        CHECK(cudaDeviceSynchronize());
        last = fetched(clocks);
    }
    CHECK(cudaFree(next));
    return double(last) / n;
}

int main() {
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    for (int n : {1, 10, 300}) {
        float us = graph_us(n, false);
        printf("{\"nodes\": %d, \"us\": %.3f, \"us_a_node\": %.3f}\n", n, us, us / n);
    }
    if (properties.major >= 9)
        printf("{\"overlapped_nodes\": 300, \"us_a_node\": %.3f}\n", graph_us(300, true) / 300);
    long long *clocks;
    unsigned *end;
    CHECK(cudaMalloc(&clocks, sizeof *clocks));
    CHECK(cudaMalloc(&end, 32 * sizeof *end));
    printf("{\"load_clocks_memory\": %.1f}\n", load_clocks(size_t(1) << 28, 1, clocks, end));
    printf("{\"load_clocks_l2\": %.1f}\n", load_clocks(size_t(1) << 20, 3, clocks, end));
    for (int i = 0; i < 2; i++) {
        shuffle<<<1, 32>>>(4096, clocks, end);
        CHECK(cudaDeviceSynchronize());
    }
    printf("{\"shfl_clocks\": %.1f}\n", double(fetched(clocks)) / 4096);
}

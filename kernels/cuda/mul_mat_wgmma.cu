// Matmuls of `mul_mat_tensor.cu` for compute capability 9.0. Groups of four warps have different roles. Each consumer
// multiplies 64 rows by all columns of the tile. The producer decodes weights to shared memory, and starts the copies
// of columns. Barriers in shared memory connect them, so that decoding runs ahead of the tensor cores.
// Definitions: see `tiles.cuh`.
//
// STAGES: steps in shared memory.

// Threads of the producer.
#define LOADERS 128
#include "mbarrier.cuh"
#include "tiles.cuh"
#include "wgmma.cuh"

static_assert(M == 1 && WARPS_OF_COLUMNS == 1 && ROWS % 64 == 0, "warps of a group must have adjacent rows");
// Tensor cores read two steps while the next ones are loaded.
static_assert(STAGES >= 3, "the producer must not wait for the running step");

// The swizzle depends on bits of addresses, so stages start at a multiple of its period.
const u32 PERIOD = 1024;

// Registers of a thread of a consumer and of the producer. At launch, each of the 384 threads has 168 registers.
const int CONSUMER_REGISTERS = 160, PRODUCER_REGISTERS = 184;
static_assert(THREADS * CONSUMER_REGISTERS + LOADERS * PRODUCER_REGISTERS <= (THREADS + LOADERS) * 168, "roles must share the registers");

// Phase `i` of a stage's first barrier ends when its step `i` is loaded. Phase `i` of the second ends when this step is
// multiplied.
__shared__ Mbarrier loaded[STAGES], multiplied[STAGES];

// Starts to multiply a step and to add to a group's sums.
DEVICE void start_step(const u16 *step, float (&sums)[N][4]) {
    u32 address = (u32)__cvta_generic_to_shared(step);
    u64 rows = descriptor_of(address + threadIdx.x / 128 * 64 * STEP * 2), columns = descriptor_of(address + ROWS * STEP * 2);
    begin_products();
    // A descriptor contains the address in units of 16 bytes.
#pragma unroll
    for (int i = 0; i < STEP / 16; i++) start_product(sums, rows + 2 * i, columns + 2 * i);
    end_products();
}

// Multiplies `n` steps.
DEVICE void consume(u16 *stages, int n, float (&sums)[N][4]) {
    clear(sums);
    loaded[0].wait(0);
    start_step(stages, sums);
#pragma unroll 1
    for (int i = 1; i < n; i++) {
        loaded[i % STAGES].wait(i / STAGES);
        start_step(stages + i % STAGES * STAGE, sums);
        // The tensor cores may still read this step, but no earlier step.
        wait_for_products<1>();
        if (threadIdx.x % 32 == 0) multiplied[(i - 1) % STAGES].arrive();
    }
    wait_for_products<0>();
}

// The columns that a thread of the producer copies if columns are grouped, as offsets in a step. Offsets are in units
// of 16 bytes, or -1 for missing columns.
struct GroupedColumns {
#if IDS
    int offsets[COPIES];

    DEVICE GroupedColumns() {
        int thread = threadIdx.x % LOADERS;
        for (int i = 0; i < COPIES; i++) {
            int number = from[thread / (STEP / 8) + i * (LOADERS / (STEP / 8))];
            offsets[i] = number < 0 ? -1 : number * (STEP / 8) + place_in_column(number, thread % (STEP / 8)) / 16;
        }
    }

    // Starts to copy values `k` to `k + STEP - 1`.
    DEVICE void copy(const Params &p, u16 *step, int k) const {
        int thread = threadIdx.x % LOADERS;
        const char *columns = address_of_column(p, 0, k);
        u32 to = (u32)__cvta_generic_to_shared(place_of_columns(step, thread / (STEP / 8), thread % (STEP / 8)));
        static_assert(LOADERS / (STEP / 8) % 8 == 0, "all copies of a thread have the same swizzle");
#pragma unroll
        for (int i = 0; i < COPIES; i++) start_copy<16>(to + i * LOADERS * 16, columns + 16 * (i64)offsets[i], offsets[i] >= 0);
    }
#endif
};

// Loads step `i` of `n`, whose weights are in registers, and fetches the weights of the next step. Returns true if
// there is a next step.
DEVICE bool load_step(const Params &p, const Work &work, const GroupedColumns &columns, u16 *stages, int i, int n, const Weights (&own)[PIECES], Weights (&next)[PIECES]) {
    Mbarrier &barrier = loaded[i % STAGES];
    u16 *step = stages + i % STAGES * STAGE;
    multiplied[i % STAGES].wait(i / STAGES - 1);
#if IDS
    columns.copy(p, step, i * STEP);
#else
    if (threadIdx.x == THREADS) {
        u32 bytes = work.columns_of_step() * STEP * 2;
        barrier.arrive_and_expect(bytes);
        barrier.copy(step + ROWS * STEP, address_of_column(p, work.first_column, i * STEP), bytes);
    }
#endif
    // Some types combine loaded words. The assembler can move this work after the decoding of the current step.
    if (i + 1 < n) fetch_weights(p, work, (i + 1) * STEP, next);
    store_weights(step, own);
#if IDS
    wait_for_copies();
#endif
    publish();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier.arrive();
    return i + 1 < n;
}

// Loads `n` steps.
DEVICE void produce(const Params &p, const Work &work, u16 *stages, int n) {
    GroupedColumns columns;
    Weights even[PIECES], odd[PIECES];
    fetch_weights(p, work, 0, even);
    for (int i = 0;; i += 2) {
        if (!load_step(p, work, columns, stages, i, n, even, odd)) break;
        if (!load_step(p, work, columns, stages, i + 1, n, odd, even)) break;
    }
}

// Prepares the barriers, and stores zeros for missing columns, which are not copied.
DEVICE void prepare(const Work &work, u16 *stages) {
    if (threadIdx.x < STAGES) {
        // Each warp of the producer arrives, and so does the thread that copies columns.
        loaded[threadIdx.x].begin(LOADERS / 32 + !IDS);
        multiplied[threadIdx.x].begin(THREADS / 32);
    }
#if !IDS
    int first = (ROWS + work.columns_of_step()) * STEP / 8;
    for (int unit = first + threadIdx.x; unit < STAGE / 8; unit += blockDim.x) {
        for (int i = 0; i < STAGES; i++) *(uint4 *)(stages + i * STAGE + 8 * unit) = make_uint4(0, 0, 0, 0);
    }
#endif
    publish();
    __syncthreads();
}

// Grid: see `find_work`.
extern "C" __global__ void __launch_bounds__(THREADS + LOADERS, 1) mul_mat_wgmma(const __grid_constant__ Params p) {
    wait_for_previous_kernels();
    Work work = find_work(p);
    if (!work.w) return;
    u32 start = (u32)__cvta_generic_to_shared(shared);
    u16 *stages = shared + (PERIOD - start % PERIOD) % PERIOD / 2;
    int n = (p.w.ne[0] + STEP - 1) / STEP;
    prepare(work, stages);
    if (threadIdx.x >= THREADS) {
        request_registers<PRODUCER_REGISTERS>();
        produce(p, work, stages, n);
    } else {
        keep_registers<CONSUMER_REGISTERS>();
        float sums[M][N][4];
        consume(stages, n, sums[0]);
        store_sums(p, work, threadIdx.x / 32 * WARP_ROWS, 0, sums);
    }
}

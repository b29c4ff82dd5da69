#!/usr/bin/env bash
# Measures and checks the CUDA backend on a machine with a GPU and no network. Run in the root of the repository, with
# the files that tests/gpu/pack.sh wrote to .gpu-pack/:
#
#     tests/gpu/run.sh 1    correctness: ceilings of the GPU, recorded models, ops, first speeds
#     tests/gpu/run.sh 2    tests of the backend, compute-sanitizer, time of each kernel, profile
#     tests/gpu/run.sh 3    precisions on a real model, speeds, parallel sequences, experts, and llama.cpp's speeds
#
# Each call ends within nine minutes, and each phase has its own limit: a phase that fails or hangs does not stop the
# others. Results are in $OUT (default: .gpu-pack/out): report.json and the logs of all phases. The last lines of the
# output are the summary of the report. Without NVRTC, only the speeds of models whose kernels are in the archive
# (.ci/kernels) are measured.
#
# LLAMA_GPU_REHEARSAL=1 uses tiny models, for a rehearsal on the emulated driver. LLAMA_GPU_LIMIT=N replaces the limit
# of every phase. LLAMA_GPU_PACK and LLAMA_GPU_WORK replace the directories of the pack and of unpacked files.
set -uo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
call=${1-}
[[ $call == [123] ]] || {
    echo "usage: tests/gpu/run.sh 1|2|3" >&2
    exit 2
}
pack=${LLAMA_GPU_PACK:-$root/.gpu-pack}/$call
OUT=${OUT:-$root/.gpu-pack/out}
# Programs and models, which later calls on the same machine reuse.
W=${LLAMA_GPU_WORK:-/var/tmp/llama-gpu}
logs=$W/logs-$call
rehearsal=${LLAMA_GPU_REHEARSAL-}
end=$((SECONDS + 540))
rm -rf "$logs" "$W"/*.failed
mkdir -p "$OUT" "$logs"

# unpack NAME: unpacks a file of the pack. Returns 1 if there is none.
unpack() {
    [[ -x $W/$1 ]] && return
    [[ -e $pack/$1.xz ]] || return 1
    if command -v xz > /dev/null; then
        xz -dc "$pack/$1.xz" > "$W/$1"
    else
        python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' "$pack/$1.xz" "$W/$1"
    fi && chmod +x "$W/$1"
}

# NVRTC finds its builtins only on the library path.
add_libraries() {
    local directory
    for directory in /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib /usr/lib/x86_64-linux-gnu \
        /opt/*/lib/python3*/site-packages/nvidia/*/lib /opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib \
        /usr/lib/python3*/site-packages/nvidia/*/lib /usr/local/lib/python3*/{site,dist}-packages/nvidia/*/lib; do
        if compgen -G "$directory/libnvrtc.so*" > /dev/null; then
            LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$directory
        fi
    done
    # Give containers the driver in a separate directory.
    for directory in /usr/local/nvidia/lib64 /usr/local/nvidia/lib; do
        if [[ -e $directory/libcuda.so.1 ]]; then
            LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$directory
        fi
    done
    for directory in /usr/local/cuda*/bin; do
        [[ -d $directory ]] && PATH=$PATH:$directory
    done
    export LD_LIBRARY_PATH PATH
}

# Prints the path of NVRTC. Returns 1 if there is none.
find_compiler() {
    local directory
    while IFS= read -r -d : directory; do
        compgen -G "$directory/libnvrtc.so*" && return
    done <<< "${LD_LIBRARY_PATH-}:"
    ldconfig -p 2> /dev/null | grep -o '/.*libnvrtc\.so.*'
}

# Creates a directory of invalid libraries. On the library path, they hide NVRTC.
hide_compiler() {
    mkdir -p "$W/no-compiler"
    touch "$W"/no-compiler/libnvrtc.so{,.1,.9,.10,.11,.12,.13}
}

# needs_compiler NAME: skips a phase if its kernels cannot be compiled.
needs_compiler() {
    [[ -n $compiler ]] && return
    leave_out "$1" "NVRTC is not installed"
    return 1
}

# phase NAME LIMIT COMMAND: runs a command of at most LIMIT seconds. Its output goes to a log, and its last lines are
# printed.
phase() {
    local name=$1 limit=$2 start=$SECONDS code=
    local left=$((end - SECONDS))
    if ((left < 10)); then
        leave_out "$name" "no time is left"
        return
    fi
    limit=${LLAMA_GPU_LIMIT:-$limit}
    ((limit > left)) && limit=$left
    timeout -k 5 "$limit" bash -c "$3" > "$logs/$name.log" 2>&1 &
    local pid=$!
    # A process blocked on a hung GPU cannot be killed, so `wait` would also hang.
    while kill -0 $pid 2> /dev/null && ((SECONDS < start + limit + 10)); do sleep 0.2; done
    if kill -0 $pid 2> /dev/null; then
        code=137
    else
        wait $pid
        code=$?
    fi
    echo "$name $code $((SECONDS - start))" >> "$logs/phases"
    echo "== $name: status $code, $((SECONDS - start)) s"
    tail -n 3 "$logs/$name.log" | cut -c 1-200
}

leave_out() {
    echo "$1: $2" >> "$logs/left_out"
    echo "== $1: left out: $2"
}

# needs NAME PROGRAM...: skips a phase if a program is missing.
needs() {
    local name=$1 program
    shift
    for program; do
        command -v "$program" > /dev/null || {
            leave_out "$name" "$program is not installed"
            return 1
        }
    done
}

# await FILE...: waits until another process has written the files. Returns 1 if the process failed.
await() {
    local file
    for file; do
        while [[ ! -e $file ]]; do
            [[ -e $file.failed ]] && echo "error: $file was not written: $(tail -n 1 "$logs/synth.log")" && return 1
            sleep 0.5
        done
    done
}
export -f await

# check_model NAME: compares a recorded model in a separate process, since all later calls in a process fail after a
# kernel error.
check_model() {
    timeout --foreground -k 5 60 "$L" arch check "$1" $on_gpu --limit 1e-6 --fixtures tests/data/archs
    local code=$?
    ((code <= 1)) || echo "$1 - FAIL the process ended with status $code"
    return $code
}
export -f check_model

# alone PHASE LIMIT PROGRAM: repeats each failed test of a phase in a separate process, so that errors do not affect
# other tests.
alone() {
    failed=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$logs/$1.log" 2> /dev/null | sort -u | head -n 40)
    [[ -n $failed ]] || return
    export failed
    phase "$1-alone" "$2" "echo \"\$failed\" | xargs -P 4 -n 1 timeout --foreground -k 5 40 $3 --include-ignored --exact"
}

# model NAME ARGUMENTS...: writes a model of random weights, unless an earlier call has written it.
model() {
    local file=$W/$1.gguf
    shift
    [[ -e $file ]] && return
    nice "$L" synth "$@" -o "$file.part" > /dev/null 2>> "$logs/synth.log" && mv "$file.part" "$file" || touch "$file.failed"
}

finish() {
    python3 -B "$root/tests/gpu/report.py" "$call" "$logs" "$W/report.json" && cp "$W/report.json" "$OUT/" || {
        echo "no report: python3 is missing or failed; the phases with their status and seconds:"
        cat "$logs/phases"
    }
    tar -czf "$OUT/logs-$call.tar.gz" -C "$logs" .
}

unpack llama || {
    echo "tests/gpu/run.sh: $pack/llama.xz cannot be unpacked; run tests/gpu/pack.sh first" >&2
    exit 1
}
unpack engine-tests
unpack llama-tests
add_libraries
compiler=$(find_compiler | head -n 1)
hide_compiler
export L=$W/llama W OUT LLAMA_CUDA=here LLAMA_CACHE=$W/cache CUDA_CACHE_PATH=$W/driver-cache RUST_BACKTRACE=1 logs root
export LLAMA_TESTS_ROOT=$root
export on_gpu="--device cuda0 -ngl 99"
large="8b-q4_k_m 8b-q8_0"
small="1b-q4_k_m 1b-f16"
prompts=512 tokens=64 depths=0,256,1024,8192 repeats=3 sequences=1,2,4,8,16,32 batch_depth=1024
fixtures=$(cd tests/data/archs && ls ./*.logits | sed 's|./||; s|\.logits$||')
filter_ops="ops:: soundness:: scheduler_devices:: profile::"
filter_tests="cuda:: cuda_captures:: cuda_experts:: cuda_forms:: cuda_fusion:: cuda_multi_gpu:: cuda_rounding:: cuda_router:: cuda_stream:: cuda_times:: cuda_wgmma::"
filter_sums=cuda_halves::
tiny="--shape tiny --type q4_k_m"
expert_shape=3b reduced=() n_compared=400 archived=1b-q4_k_m
if [[ -n $rehearsal ]]; then
    large=tiny-q4_k_m small=135m-q4_k_m archived=135m-q4_k_m
    prompts=8 tokens=2 depths=0 repeats=1 sequences=1,2 batch_depth=4
    fixtures=$'llama-dense\nllama-moe'
    n_compared=3 expert_shape=tiny reduced=(--set n_layer=1 --set n_vocab=512)
    filter_ops=profile:: filter_tests=cuda_times:: filter_sums=cuda_halves::largest
fi
export fixtures

# Writes the models that speeds are measured with, while other phases run.
speeds_models() {
    local name
    trap 'kill $(jobs -p) 2> /dev/null' TERM
    for name in $large $small; do
        model "$name" --shape "${name%%-*}" --type "${name#*-}" "${reduced[@]}" &
    done
    wait
}

first() {
    phase probe 30 'nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit --format=csv
        nvcc --version | tail -2; ldd --version | head -1; $L devices'
    speeds_models &
    needs ceilings python3 && phase ceilings 60 'python3 -B tests/gpu/ceilings.py'
    needs latencies nvcc && phase latencies 60 'nvcc -O3 -arch=native -o $W/launch tests/gpu/launch.cu && $W/launch'
    # With blocking launches, an error names the kernel that caused it.
    needs_compiler smoke &&
        phase smoke 60 'export CUDA_LAUNCH_BLOCKING=1
            $L arch check llama-dense llama-moe $on_gpu --limit 1e-6 --fixtures tests/data/archs'
    local speed="bench -m \$W/${large%% *}.gguf \$on_gpu"
    phase first-speed 110 "await \$W/${large%% *}.gguf || exit
        \$L $speed -p $prompts -n $tokens -d $depths -r $repeats -o json > \$logs/bench-first.json"
    # Kernels of the binary, which run on machines without NVRTC.
    if [[ -e $pack/has-archive ]]; then
        phase archive 40 "await \$W/$archived.gguf || exit
            LD_LIBRARY_PATH=\$W/no-compiler:\${LD_LIBRARY_PATH-} LLAMA_CACHE=\$W/no-cache \
                \$L bench -m \$W/$archived.gguf \$on_gpu -p $prompts -n $tokens -r 1 -o json > \$logs/bench-archive.json"
    else
        leave_out archive "the pack has no archive of kernels"
    fi
    needs_compiler fixtures && phase fixtures 170 'echo "$fixtures" | xargs -P 12 -I {} bash -c "check_model {}"'
    if [[ -x $W/engine-tests ]]; then
        needs_compiler ops && phase ops 120 "\$W/engine-tests $filter_ops --test-threads=4" && alone ops 60 "\$W/engine-tests"
    else
        leave_out ops "the pack has no engine-tests"
    fi
}

second() {
    if [[ -x $W/llama-tests ]]; then
        needs_compiler tests && phase tests 120 "\$W/llama-tests $filter_tests --test-threads=2" && alone tests 60 "\$W/llama-tests"
        # All GPUs can run the kernels for GeForce GPUs.
        needs_compiler f16-sums && phase f16-sums 40 "LLAMA_CUDA_F16_SUMS=1 \$W/llama-tests $filter_sums --test-threads=2"
    else
        leave_out tests "the pack has no llama-tests"
    fi
    model tiny --arch llama $tiny --set n_layer=2
    speeds_models &
    local tool checked="bench -m \$W/tiny.gguf \$on_gpu -r 1"
    if needs sanitizer compute-sanitizer; then
        for tool in memcheck:120:"-p 70 -n 2 -d 600" racecheck:80:"-p 70 -n 1 -d 70" initcheck:50:"-p 70 -n 1" synccheck:50:"-p 70 -n 1 -d 600"; do
            IFS=: read -r name limit arguments <<< "$tool"
            phase "$name" "$limit" "compute-sanitizer --tool $name --print-limit 5 --error-exitcode 9 \$L $checked $arguments"
        done
        needs_compiler memcheck-models && phase memcheck-models 80 'compute-sanitizer --tool memcheck --print-limit 5 --error-exitcode 9 $L arch check \
            gpt-oss-moe mamba2-dense deepseek2-moe rwkv7-dense $on_gpu --limit 1e-6 --fixtures tests/data/archs'
    fi
    local name
    for name in $large; do
        phase "times-$name" 70 "await \$W/$name.gguf || exit
            LLAMA_CUDA_TIMES=\$logs/times-$name.json \$L bench -m \$W/$name.gguf \$on_gpu -p $prompts -n $tokens -d $depths -r 1"
    done
    name=${large%% *}
    needs profile ncu && phase profile 90 "ncu --clock-control none --set full --launch-skip 400 -c 24 --csv --page raw \
        -k 'regex:mul_vec_int|mul_few_int|attention|mul_mat|rms_norm|heads' \
        \$L bench -m \$W/$name.gguf \$on_gpu -p $prompts -n 2 -d 1024 -r 1 > \$logs/ncu.csv"
}

# speed MODEL: measures prompts and decode at several depths.
speed() {
    phase "speed-$1" 80 "await \$W/$1.gguf || exit
        \$L bench -m \$W/$1.gguf \$on_gpu -p $prompts -n $tokens -d $depths -r $repeats -o json > \$logs/bench-$1.json"
}

# Prints the directory of llama.cpp's benchmarks. Returns 1 and prints the reason if the benchmarks cannot run here.
unpack_peer() {
    local capability missing
    if ! unpack peer.tar; then
        echo "the pack has no other engine"
        return 1
    fi
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -n 1)
    if [[ $capability != 9.0 ]]; then
        echo "the machine code of the other engine is for compute capability 9.0"
        return 1
    fi
    mkdir -p "$W/peer"
    if ! tar -xf "$W/peer.tar" -C "$W/peer"; then
        echo "the other engine cannot be unpacked"
        return 1
    fi
    # Without its CUDA library, the other engine would compute on the CPU.
    missing=$(ldd "$W/peer/libggml-cuda.so" 2> /dev/null | sed -n 's/ => not found//p' | xargs)
    if [[ -n $missing ]]; then
        echo "the other engine needs $missing"
        return 1
    fi
    echo "$W/peer"
}

# compare MODEL: measures prompts and decode alternately with llama.cpp.
compare() {
    local options="-m \$W/$1.gguf -ngl 99 -fa on -p $prompts -n $tokens -d $depths -r 1 -o json"
    phase "peer-$1" 80 "await \$W/$1.gguf || exit
        \$L bench -m \$W/$1.gguf \$on_gpu -p $prompts -n $tokens -d $depths -r $repeats -o json \
            --compare \"$peer/llama-bench $options\" > \$logs/bench-peer-$1.json"
}

# compare_parallel MODEL: measures parallel sequences alternately with llama.cpp.
compare_parallel() {
    local cells=$((${sequences##*,} * (batch_depth + tokens)))
    local options="-m \$W/$1.gguf -ngl 99 -fa on -npp $batch_depth -ntg $tokens -npl $sequences -c $cells --output-format jsonl"
    phase peer-parallel 90 "await \$W/$1.gguf || exit
        \$L bench -m \$W/$1.gguf \$on_gpu -p 0 -n $tokens -d $batch_depth --n-parallel $sequences -r 1 -o json \
            --compare \"$peer/llama-batched-bench $options\" > \$logs/bench-peer-parallel.json"
}

third() {
    speeds_models &
    model moe --arch qwen3moe --shape "$expert_shape" --type q4_k_m --set n_expert=128 --set n_expert_used=8 --set n_ff=768 \
        "${reduced[@]}" &
    if [[ -e $pack/tokens ]] && unpack model.gguf; then
        phase precisions 90 "cut -d, -f1-$n_compared $pack/tokens > \$W/tokens
            for p in exact high fast; do
                for d in cpu cuda0; do
                    \$L logits \$W/model.gguf --tokens-file \$W/tokens --device \$d -ngl 99 --precision \$p -o \$W/\$d-\$p.logits
                done
            done
            python3 -B tests/gpu/divergence.py \$W/cpu-exact.logits \$W/cuda0-exact.logits \$W/cuda0-high.logits \$W/cuda0-fast.logits \$W/cpu-fast.logits"
    else
        leave_out precisions "the pack has no real model"
    fi
    local first=${large%% *}
    speed "$first"
    # Decode with kernels that start after the previous kernel has ended.
    phase in-order 50 "LLAMA_CUDA_EARLY=0 \$L bench -m \$W/$first.gguf \$on_gpu -p 0 -n $tokens -d $depths -r $repeats \
        -o json > \$logs/bench-in-order.json"
    phase parallel 90 "\$L bench -m \$W/$first.gguf \$on_gpu -p 0 -n $tokens -d $batch_depth --n-parallel $sequences -r 1 \
        -o json > \$logs/bench-parallel.json"
    phase experts 60 "await \$W/moe.gguf || exit
        \$L bench -m \$W/moe.gguf \$on_gpu -p $prompts -n $tokens -r $repeats -o json > \$logs/bench-experts.json"
    local name peer
    for name in $large $small; do
        [[ $name == "$first" ]] || speed "$name"
    done
    peer=$(unpack_peer) || {
        leave_out peer "$peer"
        return
    }
    compare "$first"
    compare_parallel "$first"
    for name in $large $small; do
        [[ $name == "$first" ]] || compare "$name"
    done
}

case $call in
1) first ;;
2) second ;;
3) third ;;
esac
finish
# Models that are still being written.
kill $(jobs -p) 2> /dev/null
true

#!/usr/bin/env bash
# Fills .gpu-pack/ with the programs that tests/gpu/run.sh needs on a machine with a GPU and no network. That machine
# needs the repository next to the programs, an NVIDIA driver, and NVRTC; python3 with PyTorch, nvcc, compute-sanitizer,
# and ncu are used if present.
#
#     tests/gpu/pack.sh           builds everything, and prints the size of each part
#     tests/gpu/pack.sh --check   only checks the sizes
#
# .gpu-pack/N holds the files of call N of run.sh. Each part is complete and has at most 40 MB, so that it can be sent
# alone. The programs contain the archive of kernels for machines without NVRTC. If it is missing or outdated,
# .ci/kernels builds it first, which takes minutes; LLAMA_GPU_REHEARSAL=1 packs the programs as they are.
# LLAMA_GPU_MODEL is the real model for call 3 (default: SmolLM2-135M-Instruct.Q4_1.gguf in the model cache), which is
# cut to two layers. Call 3 also compares with llama.cpp, whose benchmarks tests/gpu/peer.sh builds.
set -euo pipefail
cd "$(dirname "$0")/../.."
limit=40000000
pack=${LLAMA_GPU_PACK:-.gpu-pack}
model=${LLAMA_GPU_MODEL:-${LLAMA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llama}/SmolLM2-135M-Instruct.Q4_1.gguf}

# put FILE NAME CALL...: compresses a stripped program into the parts of some calls.
put() {
    local file=$1 name=$2 first=$3
    shift 2
    strip -o "$pack/stripped" "$file"
    xz -T0 -6 -c "$pack/stripped" > "$pack/$first/$name.xz"
    rm "$pack/stripped"
    local call
    for call in "${@:2}"; do
        ln -f "$pack/$first/$name.xz" "$pack/$call/$name.xz"
    done
}

# Prints the executables of test targets as "PACKAGE TARGET PATH".
test_programs() {
    cargo test --release --workspace --test all --no-run --message-format=json 2> /dev/null | python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["profile"]["test"]:
        package = message["package_id"].rsplit("/", 1)[-1].split("#")[0]
        print(package, message["target"]["name"], message["executable"])'
}

fill() {
    rm -rf "$pack"
    mkdir -p "$pack"/{1,2,3}
    [[ -n ${LLAMA_GPU_REHEARSAL-} ]] || .ci/kernels
    cargo build --release --workspace --bin llama
    put "${CARGO_TARGET_DIR:-target}/release/llama" llama 1 2 3
    local programs
    programs=$(test_programs)
    put "$(awk '$1 == "engine" && $2 == "all" { print $3 }' <<< "$programs")" engine-tests 1
    put "$(awk '$1 == "tests" && $2 == "all" { print $3 }' <<< "$programs")" llama-tests 2
    [[ ! -e kernels/cuda/shipped.lzma ]] || touch "$pack/1/has-archive"
    local peer
    if [[ -z ${LLAMA_GPU_REHEARSAL-} ]] && peer=$(tests/gpu/peer.sh); then
        cp "$peer" "$pack/3/peer.tar.xz"
    else
        echo "no other engine; call 3 leaves out the comparison of speeds"
    fi
    if [[ -e $model ]]; then
        python3 tests/gpu/shorten.py "$model" "$pack/model.gguf" 2
        # The token embedding is most of the model.
        "${CARGO_TARGET_DIR:-target}/release/llama" quantize "$pack/model.gguf" "$pack/3/model.gguf" q4_1 --allow-requantize \
            --token-embedding-type q2_0 > /dev/null
        rm "$pack/model.gguf"
        xz -9 "$pack/3/model.gguf"
        "${CARGO_TARGET_DIR:-target}/release/llama" tokenize -m "$model" --ids -p "$(head -c 3000 docs/guide.md)" |
            tr -d '[] ' | cut -d, -f1-400 > "$pack/3/tokens"
    else
        echo "no real model: $model does not exist; call 3 leaves out the comparison of precisions"
    fi
}

check() {
    local call size failed=
    for call in 1 2 3; do
        size=$(du -cb "$pack/$call" | tail -1 | cut -f1)
        echo "call $call: $((size / 1000000)) MB: $(ls "$pack/$call" | xargs)"
        if ((size > limit)); then
            failed=1
            echo "call $call has more than $((limit / 1000000)) MB" >&2
        fi
    done
    [[ -z $failed ]]
}

[[ ${1-} == --check ]] || fill
check

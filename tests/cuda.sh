#!/usr/bin/env bash
# Runs `llama ARGS...` on the emulated CUDA driver of tests/cuda-driver, with the real NVRTC: how to try the CUDA backend without a card.
#
#     tests/cuda.sh ARGS...            e.g. tests/cuda.sh devices
#     eval "$(tests/cuda.sh --env)"    for this shell: NVRTC and the emulated driver on the loader's path, ptxas on the path of programs
#     tests/cuda.sh --setup            only fetches NVRTC and ptxas from PyPI and says where they are
#
# What is fetched lies in $XDG_CACHE_HOME or ~/.cache, below llama-tests. CARGO_PROFILE names the profile to build with (default: release).
# LLAMA_CUDA_EMU configures the device (documented in tests/cuda-driver/src/config.rs).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The toolkit of one release, so that tests see the same compiler everywhere.
packages=(nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cuda-nvcc-cu12==12.9.86 nvidia-cuda-runtime-cu12==12.9.79)
toolkit=${XDG_CACHE_HOME:-$HOME/.cache}/llama-tests/cuda-12.9
target=${CARGO_TARGET_DIR:-$root/target}
profile=${CARGO_PROFILE:-release}
folder=$profile
[[ $profile == dev ]] && folder=debug

# Installed aside and moved at once: what is there is whole.
setup() {
    [[ -d $toolkit ]] && return
    mkdir -p "$(dirname "$toolkit")"
    local aside
    aside=$(mktemp -d "$toolkit.XXXXXX")
    python3 -m pip install --quiet --no-deps --target "$aside" "${packages[@]}" >&2 || {
        rm -rf "$aside"
        echo "tests/cuda.sh: NVRTC and ptxas could not be fetched from PyPI (${packages[*]})" >&2
        exit 1
    }
    mv -T "$aside" "$toolkit" 2>/dev/null || rm -rf "$aside"
}

# The driver gets a folder of its own: beside other libraries of a build it would take a real driver's place in every test.
build_driver() {
    cargo build --quiet --profile "$profile" --manifest-path "$root/Cargo.toml" -p llama-cuda-driver >&2
    mkdir -p "$target/$folder/cuda"
    ln -sf ../libcuda_driver.so "$target/$folder/cuda/libcuda.so"
}

use() {
    export LD_LIBRARY_PATH="$target/$folder/cuda:$toolkit/nvidia/cuda_nvrtc/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    export PATH="$toolkit/nvidia/cuda_nvcc/bin:$PATH"
    # Where cuda_fp16.h and the like are.
    export LLAMA_CUDA_INCLUDE="$toolkit/nvidia/cuda_runtime/include"
}

setup
case ${1-} in
--setup) echo "$toolkit" ;;
--env)
    build_driver
    use
    printf 'export %s=%q\n' LD_LIBRARY_PATH "$LD_LIBRARY_PATH" PATH "$PATH" LLAMA_CUDA_INCLUDE "$LLAMA_CUDA_INCLUDE"
    ;;
*)
    build_driver
    cargo build --quiet --profile "$profile" --manifest-path "$root/Cargo.toml" --bin llama >&2
    use
    exec "$target/$folder/llama" "$@"
    ;;
esac

#!/usr/bin/env bash
# Runs `llama ARGS...` on the emulated CUDA driver of tests/cuda-driver, with the real NVRTC. This tries the CUDA
# backend without a GPU.
#
#     tests/cuda.sh ARGS...            e.g. tests/cuda.sh devices
#     eval "$(tests/cuda.sh --env)"    adds NVRTC and the emulated driver to this shell's library path, and ptxas to PATH
#     tests/cuda.sh --setup            downloads NVRTC and ptxas from PyPI and prints their location
#
# Downloads go to llama-tests in $XDG_CACHE_HOME or ~/.cache. LLAMA_CUDA_TOOLKIT selects the CUDA version (12.9, 13.0, or
# 13.5; default: 12.9), and CARGO_PROFILE the build profile (default: release). LLAMA_CUDA_EMU configures the device
# (documented in tests/cuda-driver/src/device/config.rs).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Pinned versions, so that all tests use the same compiler.
version=${LLAMA_CUDA_TOOLKIT:-12.9}
nvrtc=cu13/lib nvcc=cu13/bin include=cu13/include
case $version in
12.9)
    packages=(nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cuda-nvcc-cu12==12.9.86 nvidia-cuda-runtime-cu12==12.9.79)
    nvrtc=cuda_nvrtc/lib nvcc=cuda_nvcc/bin include=cuda_runtime/include
    ;;
13.0) packages=(nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvcc==13.0.88 nvidia-cuda-runtime==13.0.96) ;;
13.5) packages=(nvidia-cuda-nvrtc==13.5.37 nvidia-cuda-nvcc==13.5.37 nvidia-cuda-runtime==13.5.37) ;;
*)
    echo "tests/cuda.sh: LLAMA_CUDA_TOOLKIT=$version is not supported; set 12.9, 13.0, or 13.5" >&2
    exit 1
    ;;
esac
toolkit=${XDG_CACHE_HOME:-$HOME/.cache}/llama-tests/cuda-$version
target=${CARGO_TARGET_DIR:-$root/target}
profile=${CARGO_PROFILE:-release}
directory=$profile
[[ $profile == dev ]] && directory=debug

# Installs into a temporary directory and renames it, so that the toolkit is complete or absent.
setup() {
    [[ -d $toolkit ]] && return
    if ! command -v python3 >/dev/null; then
        echo "tests/cuda.sh: the download of NVRTC needs python3 with pip in PATH; LLAMA_CUDA=skip skips the CUDA tests" >&2
        exit 1
    fi
    mkdir -p "$(dirname "$toolkit")"
    local temporary
    temporary=$(mktemp -d "$toolkit.XXXXXX")
    python3 -m pip install --quiet --no-deps --target "$temporary" "${packages[@]}" >&2 || {
        rm -rf "$temporary"
        echo "tests/cuda.sh: cannot download NVRTC and ptxas from PyPI (${packages[*]})" >&2
        exit 1
    }
    mv -T "$temporary" "$toolkit" 2>/dev/null || rm -rf "$temporary"
}

# The driver gets its own directory. Next to other build outputs, it would replace a real driver in every test.
build_driver() {
    cargo build --quiet --profile "$profile" --manifest-path "$root/Cargo.toml" -p llama-cuda-driver >&2
    mkdir -p "$target/$directory/cuda"
    ln -sf ../libcuda_driver.so "$target/$directory/cuda/libcuda.so"
}

use() {
    export LD_LIBRARY_PATH="$target/$directory/cuda:$toolkit/nvidia/$nvrtc${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    export PATH="$toolkit/nvidia/$nvcc:$PATH"
    # Directory of cuda_fp16.h and other headers.
    export LLAMA_CUDA_INCLUDE="$toolkit/nvidia/$include"
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
    exec "$target/$directory/llama" "$@"
    ;;
esac

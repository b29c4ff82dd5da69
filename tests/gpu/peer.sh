#!/usr/bin/env bash
# Prints the path of an archive with llama.cpp's benchmarks and CUDA library, which tests/gpu/run.sh compares with. The
# library is the one that node-llama-cpp publishes for npm. Its PTX is too new for common drivers, so the archive has
# machine code for compute capability 9.0 (H100, H200). The machine with the GPU needs the CUDA runtime and cuBLAS of
# CUDA 13.
#
# The archive is built once, which takes ten minutes, and cached in llama-tests under $XDG_CACHE_HOME or ~/.cache.
# Needs npm, git, g++, xz, and python3 with pip.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=3.22.1
# The library was built with CUDA 13.1.
tools=(nvidia-cuda-cuobjdump==13.4.92 "nvidia-cuda-nvcc==13.1.*")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/llama-tests
archive=$cache/peer-$version.tar.xz
if [[ -e $archive ]]; then
    echo "$archive"
    exit
fi
for program in npm git g++ xz python3; do
    command -v "$program" > /dev/null || {
        echo "tests/gpu/peer.sh: $program is not installed" >&2
        exit 1
    }
done
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# published PACKAGE DIRECTORY: downloads and unpacks an npm package.
published() {
    mkdir "$2"
    tar -xzf "$(npm pack --silent "$1@$version")" -C "$2" --strip-components=1
}

published @node-llama-cpp/linux-x64-cuda binaries
published node-llama-cpp package
git -c init.defaultBranch=main clone --quiet package/llama/gitRelease.bundle sources
python3 -m pip install --quiet --no-deps --target toolkit "${tools[@]}" >&2
export PATH=$work/toolkit/nvidia/cu13/bin:$PATH

mkdir peer
python3 -B "$root/tests/gpu/peer.py" binaries/bins/linux-x64-cuda/libggml-cuda.so peer/libggml-cuda.so
cd binaries/bins/linux-x64-cuda
# Computation on the CPU is not measured, so the library for all CPUs suffices.
cp libggml-base.so libggml-cpu-x64.so libggml.cuda.*.so libllama.cuda.*.so libllama-common.so "$work/peer"
cd "$work"
for tool in llama-bench batched-bench; do
    name=llama-${tool#llama-}
    g++ -O1 -std=c++17 -pthread -Isources/{include,ggml/include,common,vendor} "sources/tools/$tool"/{"$tool",main}.cpp -o "peer/$name" \
        -Wl,-rpath,'$ORIGIN',--allow-shlib-undefined peer/libllama-common.so peer/libllama.cuda.*.so peer/libggml.cuda.*.so peer/libggml-base.so
done
strip peer/llama-*
mkdir -p "$cache"
tar -cJf peer.tar.xz -C peer .
mv peer.tar.xz "$archive"
echo "$archive"

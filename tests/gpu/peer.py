#!/usr/bin/env python3
"""Replaces the GPU code of a library by machine code for compute capability 9.0.

    peer.py LIBRARY OUT

Needs cuobjdump, ptxas, and fatbinary in PATH. Removes the kernels that tests/gpu/run.sh does not measure. The remaining matmuls are of the
types Q8_0, Q4_K, and Q6_K, and the remaining attention has heads of 64 and 128. The library
loads kernels lazily, so only the launch of a removed kernel fails.
"""

import os
import re
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Header of a container of GPU code: magic number, version, size of the header, and size of the rest.
HEADER = struct.Struct("<IHHQ")
MAGIC = struct.pack("<I", 0xBA55ED50)
# Type ids of ggml.
MEASURED_TYPES = {"8", "12", "14"}
MEASURED_HEADS = {"64", "128"}
EMPTY = ".version 8.0\n.target sm_90\n.address_size 64\n"


def containers(library):
    """Returns offset and size of each container."""
    found, start = [], 0
    while (start := library.find(MAGIC, start)) >= 0:
        _, _, header, size = HEADER.unpack_from(library, start)
        found.append((start, header + size))
        start += header + size
    return found


def is_measured(kernel):
    """Returns true for the mangled name of a kernel that measured models may launch."""
    matmul = re.search(r"mul_mat_q.*9ggml_type(\d+)E", kernel)
    if matmul:
        return matmul[1] in MEASURED_TYPES
    attention = re.match(r"_ZL?\d+flash_attn_(?:ext_f16|tile|ext_vec)ILi(\d+)", kernel)
    if attention:
        return attention[1] in MEASURED_HEADS
    # Small kernels that every attention file contains in addition.
    return "flash_attn_" not in kernel


def texts(library):
    """Returns the PTX for compute capability 9.0 of each container, in the order of the containers."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["cuobjdump", "-xptx", "sm_90", library.resolve()], cwd=directory, check=True, stdout=subprocess.DEVNULL)
        files = sorted(Path(directory).glob("*.ptx"), key=lambda file: int(file.name.split(".")[-3]))
        return [file.read_text() for file in files]


def assembled(text, room):
    """Returns a container of at most `room` bytes with the machine code of a PTX text; without measured kernels, the
    code is empty."""
    if not any(map(is_measured, re.findall(r"\.entry (\w+)", text))):
        text = EMPTY
    with tempfile.TemporaryDirectory() as directory:
        ptx, code, container = (Path(directory, name) for name in ("a.ptx", "a.cubin", "a.fatbin"))
        ptx.write_text(text)
        subprocess.run(["ptxas", "-O3", "-arch=sm_90", "-o", code, ptx], check=True)
        image = f"--image3=kind=elf,sm=90,file={code}"
        # Uncompressed code becomes smaller when the archive of the library is compressed.
        for mode in ("none", "size"):
            subprocess.run(["fatbinary", "--64", "--compress-all", f"--compress-mode={mode}", f"--create={container}", image], check=True)
            if (size := container.stat().st_size) <= room:
                return container.read_bytes().ljust(room, b"\0")
    sys.exit(f"peer.py: compressed machine code has {size} bytes, and its container has {room}")


def main(source, out):
    library = bytearray(Path(source).read_bytes())
    places, found = containers(library), texts(Path(source))
    if len(places) != len(found):
        sys.exit(f"peer.py: {source} has {len(places)} containers of GPU code, but PTX for compute capability 9.0 in {len(found)}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (start, size), code in zip(places, pool.map(assembled, found, [size for _, size in places])):
            library[start : start + size] = code
    Path(out).write_bytes(library)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])

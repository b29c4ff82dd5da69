#!/usr/bin/env python3
"""Measures a GPU with PyTorch: bandwidth of copies, and rate of bf16 matmuls (f16 before compute capability 8.0).
Prints JSON lines."""

import json


def seconds(torch, run):
    """Returns the median time of ten runs after three warm-up runs."""
    times = []
    for i in range(13):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if i >= 3:
            times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


def main():
    try:
        import torch
    except ImportError as error:
        print(f"no ceilings of memory and products: {error}")
        return
    if not torch.cuda.is_available():
        print("no ceilings of memory and products: PyTorch finds no GPU")
        return
    for n_bytes in (1 << 28, 1 << 30, 1 << 32):
        a = torch.empty(n_bytes, dtype=torch.uint8, device="cuda")
        b = torch.empty_like(a)
        t = seconds(torch, lambda: b.copy_(a))
        print(json.dumps({"copy_bytes": n_bytes, "tb_s": 2 * n_bytes / t / 1e12}))
        del a, b
    name, dtype = ("bf16", torch.bfloat16) if torch.cuda.get_device_capability() >= (8, 0) else ("f16", torch.float16)
    for n in (2048, 4096, 8192):
        a, b = (torch.randn(n, n, device="cuda", dtype=dtype) for _ in range(2))
        t = seconds(torch, lambda: torch.matmul(a, b))
        print(json.dumps({"product": n, f"{name}_tflops": 2 * n**3 / t / 1e12}))


if __name__ == "__main__":
    main()

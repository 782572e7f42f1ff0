"""What PyTorch computes in one process on one thread; prints one line of JSON.

A forward and backward pass of a small GPT alone (no optimizer, nobody else), the best of several,
as `cargo bench -p everstep-kernels --bench step` does it; and MKL's f32 matrix product.
"""
import argparse
import json
import time

import torch

import gptm


def best(times: int, job) -> float:
    def seconds() -> float:
        start = time.perf_counter()
        job()
        return time.perf_counter() - start

    return min(seconds() for _ in range(times))


def pass_seconds(flags: argparse.Namespace) -> float:
    model = gptm.GPT(L=flags.layers, d=flags.width, h=flags.heads, T=flags.context)
    shape = (flags.micro_batch, flags.context)
    x, y = torch.randint(0, 256, shape), torch.randint(0, 256, shape)

    def once() -> None:
        model.zero_grad()
        model(x, y).backward()

    return best(12, once)


def product_gflops(size: int) -> float:
    a, b, c = (torch.ones(size, size) for _ in range(3))
    return 2 * size**3 / best(20, lambda: torch.mm(a, b, out=c)) / 1e9


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    for name, default in [("layers", 6), ("width", 384), ("heads", 6), ("context", 256),
                          ("micro-batch", 4)]:
        flags.add_argument(f"--{name}", type=int, default=default)
    flags = flags.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokens = flags.micro_batch * flags.context
    print(json.dumps({"tokens_per_s": round(tokens / pass_seconds(flags), 1),
                      "gemm_gflops": round(product_gflops(1024), 1)}))


if __name__ == "__main__":
    main()

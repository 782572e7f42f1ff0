"""Steps of the small GPT of the peers by Everstep's package, one thread a worker.

`everstep launch everstep_gpt.py …` starts it, and the run's directory has the times of the steps.
Each step has `--data-shards` micro-batches, clipped to a norm of 1 and applied by AdamW. Samples
are random bytes that are there before the clock starts.
"""
import argparse

import torch

import everstep
import gptm


class RandomBytes:
    """Sequences of bytes and as many targets."""

    def __init__(self, count: int, context: int) -> None:
        self.tokens = torch.randint(0, 256, (count, 2, context))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple:
        return tuple(self.tokens[index])


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    for name, default in {"layers": 6, "width": 384, "heads": 6, "context": 256, "micro-batch": 4,
                          "data-shards": 2, "steps": 12}.items():
        flags.add_argument(f"--{name}", type=int, default=default)
    flags = flags.parse_args()
    torch.manual_seed(0)
    model = gptm.GPT(L=flags.layers, d=flags.width, h=flags.heads, T=flags.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run = everstep.Run(
        model, optimizer, data=RandomBytes(64, flags.context), steps=flags.steps,
        data_shards=flags.data_shards, micro_batch=flags.micro_batch, clip_norm=1.0)
    for x, y in run:
        run.backward(model(x, y))


if __name__ == "__main__":
    main()

"""A small GPT that learns to continue a sequence of numbers."""

import argparse
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import everstep

VOCABULARY, CONTEXT = 64, 32


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.attention(self.norm1(x)).view(rows, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight  # tied
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.tokens(x) + self.places.weight[: x.shape[1]])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Sequences:
    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        # An augmentation: the beginning is random, and follows from epoch and index.
        begin = index + int(torch.randint(0, 8, ()))
        text = torch.tensor([(begin * 7 + k * (1 + index % 5)) % VOCABULARY for k in range(CONTEXT + 1)])
        return text[:-1], text[1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--loaders", type=int, default=0)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16 where autocast does")
    parser.add_argument("--save")
    parser.add_argument("--gate", help="at step 20, wait for this file")
    parser.add_argument("--slow", help="from step 20 on, take 0.2 s for each turn until there is this file")
    flags = parser.parse_args()
    torch.manual_seed(flags.seed)
    model = GPT(flags.layers, flags.width, 2, flags.dropout)
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    warm = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: min(1.0, (t + 1) / 5) * 0.5 * (1 + math.cos(math.pi * t / flags.steps))
    )
    run = everstep.Run(
        model, optimizer, warm, data=Sequences(), steps=flags.steps, data_shards=4, micro_batch=2,
        accumulate=flags.accumulate, clip_norm=1.0, loaders=flags.loaders,
    )
    for x, y in run:
        with torch.autocast("cpu", torch.bfloat16, enabled=flags.bf16):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        run.backward(loss)
        # Between its turns a script may take its time.
        while flags.gate and run.step >= 20 and not Path(flags.gate).exists():
            time.sleep(0.01)
        if flags.slow and run.step >= 20 and not Path(flags.slow).exists():
            time.sleep(0.2)
    if flags.save:
        run.save(flags.save)
    capability, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    print(f"cpu {capability} with {threads} threads")
    print("hash", run.report.state_hash)


if __name__ == "__main__":
    main()

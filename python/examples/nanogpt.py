"""A GPT on the characters of a text, in the style of nanoGPT.

    everstep launch --workers 4 --respawn nanogpt.py --text shakespeare.txt --steps 5000
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import everstep


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.attention(self.norm1(x)).view(rows, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), dropout)


class GPT(nn.Module):
    def __init__(self, vocabulary: int, flags: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, flags.width)
        self.places = nn.Embedding(flags.context, flags.width)
        blocks = [Block(flags.width, flags.heads, flags.dropout) for _ in range(flags.layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(flags.width)
        self.head = nn.Linear(flags.width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


class Characters:
    """Windows of a text: each begins one character later than the one before."""

    def __init__(self, text: str, context: int) -> None:
        self.letters = sorted(set(text))
        numbers = {letter: number for number, letter in enumerate(self.letters)}
        self.text = torch.tensor([numbers[letter] for letter in text])
        self.context = context

    def __len__(self) -> int:
        return len(self.text) - self.context

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.text[index : index + self.context + 1]
        return window[:-1], window[1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=Path, help="a text file [default: a made-up text]")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.1)
    flags = parser.parse_args()
    made_up = "".join(f"{n} and {n + 1} are {2 * n + 1}. " for n in range(500))
    data = Characters(flags.text.read_text() if flags.text else made_up, flags.context)

    torch.manual_seed(1)
    model = GPT(len(data.letters), flags)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    warmup = max(1, flags.steps // 20)

    def rate(step: int) -> float:
        cosine = 0.55 + 0.45 * math.cos(math.pi * step / flags.steps)
        return min(1.0, (step + 1) / warmup) * cosine

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    run = everstep.Run(
        model, optimizer, schedule, data=data, steps=flags.steps, data_shards=4, micro_batch=8,
        clip_norm=1.0,
    )
    for x, y in run:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        run.backward(loss)
    run.save("nanogpt.safetensors")
    print("hash", run.report.state_hash)


if __name__ == "__main__":
    main()

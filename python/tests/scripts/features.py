"""What models of PyTorch use, each named by an argument: a small transformer that learns to repeat."""

import contextlib
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import everstep

features = set(sys.argv[1:])
WIDTH, LENGTH, VOCABULARY, STEPS = 32, 16, 32, 6


class LowRank(nn.Module):
    """LoRA: a frozen matrix, and a trained change of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)
        if "lora" in features:
            self.up, self.down = LowRank(self.up), LowRank(self.down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.dropout(self.down(F.gelu(self.up(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if "tied" in features:
            self.head.weight = self.tokens.weight
        if "unused" in features:
            self.unused = nn.Linear(5, 7)
        if "frozen" in features:
            self.blocks[0].requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            if "checkpoint" in features or "reentrant" in features:
                x = checkpoint(block, x, use_reentrant="reentrant" in features)
            else:
                x = block(x)
        return self.head(x)


class Sequences:
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> torch.Tensor:
        begin = int(torch.randint(0, VOCABULARY, ()))
        return (begin + torch.arange(LENGTH) * (1 + index % 3)) % VOCABULARY


def autocast():
    if "bf16" in features:
        return torch.autocast("cpu", torch.bfloat16)
    return torch.autocast("cpu", torch.float16) if "fp16" in features else contextlib.nullcontext()


torch.manual_seed(1)
model = Model()
forward = model
if "compile" in features:
    forward = torch.compile(model)
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=3e-3)
schedule = None
if "onecycle" in features:
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS)
run = everstep.Run(
    model, optimizer, schedule, data=Sequences(), steps=STEPS, data_shards=2, micro_batch=2,
    accumulate=3, clip_norm=1.0, loss_scaling="fp16" in features,
)
for tokens in run:
    with autocast():
        loss = F.cross_entropy(forward(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    run.backward(loss)
print("hash", run.report.state_hash)

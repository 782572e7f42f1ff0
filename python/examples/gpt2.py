"""Fine-tunes a GPT-2 of Hugging Face `transformers`.

    everstep launch --workers 2 --respawn gpt2.py --model FOLDER --text notes.txt

Without a folder of a trained model it begins with a small one of random weights.
"""

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import everstep


class Windows:
    """Windows of a text. Its bytes are the tokens."""

    def __init__(self, text: bytes, context: int) -> None:
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.context = context

    def __len__(self) -> int:
        return len(self.text) // self.context

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self.text[index * self.context : (index + 1) * self.context]
        return {"input_ids": window, "labels": window}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, help="a folder of save_pretrained")
    parser.add_argument("--text", type=Path, help="a text file [default: a made-up text]")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    flags = parser.parse_args()
    made_up = b"the more it changes, the more it stays. " * 200
    text = flags.text.read_bytes() if flags.text else made_up
    torch.manual_seed(1)
    if flags.model:
        model = GPT2LMHeadModel.from_pretrained(flags.model)
    else:
        config = GPT2Config(
            vocab_size=256, n_positions=64, n_layer=flags.layers, n_embd=flags.width, n_head=4,
            bos_token_id=0, eos_token_id=0,
        )
        model = GPT2LMHeadModel(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, flags.steps)
    run = everstep.Run(
        model, optimizer, schedule, data=Windows(text, 64), steps=flags.steps, data_shards=4,
        micro_batch=2, clip_norm=1.0,
    )
    for batch in run:
        run.backward(model(**batch).loss)
    model.save_pretrained("gpt2")
    print("hash", run.report.state_hash)


if __name__ == "__main__":
    main()

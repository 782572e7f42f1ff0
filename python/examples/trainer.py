"""Trains a GPT-2 with a `Trainer` of Hugging Face `transformers`, on as many workers as there are.

    everstep launch --workers 2 --respawn trainer.py --steps 100
"""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed

import everstep.hf


class Rows:
    """Rows of numbers that count up, each from a place of its own."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = (torch.arange(32) + 7 * index) % 64
        return {"input_ids": row, "labels": row}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--layers", type=int, default=2)
    flags = parser.parse_args()
    set_seed(1)
    config = GPT2Config(
        vocab_size=64, n_positions=32, n_layer=flags.layers, n_embd=32, n_head=4, bos_token_id=0,
        eos_token_id=0,
    )
    arguments = TrainingArguments(
        output_dir="trainer", max_steps=flags.steps, per_device_train_batch_size=2,
        learning_rate=1e-3, warmup_steps=2, use_cpu=True, report_to=[],
    )
    trainer = everstep.hf.Trainer(
        GPT2LMHeadModel(config), arguments, train_dataset=Rows(), eval_dataset=Rows(), data_shards=4
    )
    trainer.train()
    trainer.save_model()
    print("hash", trainer.run.report.state_hash, "loss", trainer.evaluate()["eval_loss"])


if __name__ == "__main__":
    main()

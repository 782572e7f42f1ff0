"""One step of a `Trainer` of `transformers` on rows with unequal numbers of targets, and the same
rows in one batch. Some micro-batches have no target. Other arguments are settings of the trainer."""

import sys

import plain_step
import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed

import everstep.hf

SHARDS, ROWS, ACCUMULATE, LENGTH, KINDS = 3, 2, 2, 12, 32


class Rows:
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = (torch.arange(LENGTH) * (1 + index % 3) + index) % KINDS
        labels = row.clone()
        labels[0 if index % 2 == 0 else 1 + index % LENGTH :] = -100
        return {"input_ids": row, "labels": labels}


def make() -> GPT2LMHeadModel:
    set_seed(3)
    config = GPT2Config(
        vocab_size=KINDS, n_positions=LENGTH, n_layer=1, n_embd=16, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


data, model = Rows(), make()
arguments = TrainingArguments(
    output_dir="trainer", max_steps=1, per_device_train_batch_size=ROWS, max_grad_norm=0.0,
    gradient_accumulation_steps=ACCUMULATE, lr_scheduler_type="constant", use_cpu=True,
    report_to=[], bf16="bf16" in sys.argv, neftune_noise_alpha=5.0 if "noise" in sys.argv else None,
    eval_strategy="steps" if "evaluate" in sys.argv else "no", eval_steps=1,
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = everstep.hf.Trainer(
    model, arguments, train_dataset=data, optimizers=(optimizer, None), data_shards=SHARDS,
    eval_dataset=[data[index] for index in range(1, 2 * LENGTH, 2)],
)
trainer.train()
trained = [parameter.detach().clone() for parameter in model.parameters()]

places = [(1, shard, micro) for shard in range(SHARDS) for micro in range(ACCUMULATE)]
rows = [data[index] for place in places for _, index in trainer.run._engine.rows(*place)]
counts = [int((row["labels"] >= 0).sum()) for row in rows]
batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
# As the trainer would do it: how it counts targets depends on the version of transformers.
[batch], items = trainer.get_batch_samples(iter([batch]), 1, arguments.device)
model = make()
loss = trainer.compute_loss(model, batch, num_items_in_batch=items)
plain_step.write(sys.argv[1], model, loss, trained, targets=counts)

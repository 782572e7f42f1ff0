#!/usr/bin/env bash
# What `checkpoint export` writes is what Hugging Face transformers loads: no tensor is missing or left over, the loss is
# Everstep's own, and what transformers saves is read back to the same bits.
# Needs python3 with venv and PyPI (torch there has some GB), or PYTHON: a Python with torch, transformers, numpy.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/checkpoint/common.sh
python=$(python_with torch transformers numpy)
gpt=$(example gpt_checkpoint)
"$gpt" "$out" > /dev/null
export HF_HUB_OFFLINE=1
"$python" - "$out" <<'PYTHON'
import json
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM

out = sys.argv[1]
expected = json.load(open(f"{out}/expected.json"))
tokens, targets = torch.tensor(expected["tokens"]), torch.tensor(expected["targets"])
torch.set_num_threads(1)
weights = {}
for name, dtype, bound in [("f32", torch.float32, 1e-5), ("bf16", torch.bfloat16, 0.1)]:
    model, info = AutoModelForCausalLM.from_pretrained(f"{out}/{name}", dtype=dtype, output_loading_info=True)
    for what in ["missing_keys", "unexpected_keys", "mismatched_keys"]:
        assert not info[what], (what, info[what])
    weights[name] = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    model.save_pretrained(f"{out}/saved-{name}")
    model.eval()
    with torch.no_grad():
        logits = model.to(torch.float32)(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    difference = abs(loss - expected["loss"])
    print(f"{name}: transformers {loss:.7f}, Everstep {expected['loss']:.7f}, difference {difference:.1e}")
    assert difference <= bound * abs(expected["loss"]), name
for key, tensor in weights["f32"].items():
    assert torch.equal(tensor.to(torch.bfloat16), weights["bf16"][key]), f"{key} is rounded otherwise"
print("transformers", transformers.__version__, "torch", torch.__version__)
PYTHON
# read_back FOLDER: a digest of the weights that `init` reads there.
read_back() {
    "$gpt" --loss "$out/$1" "$out" > "$out/loss.json" || fail "the weights in $1 cannot be read"
    "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["weights"])' "$out/loss.json"
}
wanted=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["weights"])' "$out/expected.json")
for folder in f32 saved-f32; do
    [ "$(read_back "$folder")" = "$wanted" ] || fail "$folder has other weights than the checkpoint"
done
rounded=$(read_back bf16)
[ "$rounded" != "$wanted" ] || fail "the weights in bf16 are not rounded"
[ "$(read_back saved-bf16)" = "$rounded" ] || fail "what transformers saves in bf16 has other weights"
echo "transformers: all right"

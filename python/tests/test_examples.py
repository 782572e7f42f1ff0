"""The examples, on the small data that they make."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = {
    "nanogpt.py": ("--steps", "6", "--layers", "1", "--width", "32"),
    "resnet.py": ("--epochs", "2", "--samples", "192", "--width", "8"),
    "gpt2.py": ("--steps", "4", "--layers", "1"),
    "trainer.py": ("--steps", "4", "--layers", "1"),
    "lora.py": ("--steps", "10"),
    "lightning_module.py": ("--epochs", "2", "--samples", "96", "--width", "8"),
    "flax_gpt.py": ("--steps", "6", "--layers", "1", "--width", "32"),
    "equinox_transformer.py": ("--steps", "6", "--layers", "1", "--width", "32"),
}
#: The packages that examples need. The others need PyTorch alone.
NEEDS = {
    "gpt2.py": ("torch", "transformers"),
    "trainer.py": ("torch", "accelerate"),
    "lightning_module.py": ("torch", "lightning"),
    "flax_gpt.py": ("jax", "flax", "optax"),
    "equinox_transformer.py": ("jax", "equinox"),
}


def test_each_example_is_listed_and_run():
    found = {path.name for path in EXAMPLES.glob("*.py")}
    assert found == set(SMALL)
    readme = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in found)


@pytest.mark.parametrize("name", SMALL)
def test_an_example_trains_on_2_workers_with_one_result(train, name, monkeypatch):
    monkeypatch.delenv("PYTHONPATH")  # as users start it
    missing = [it for it in NEEDS.get(name, ("torch",)) if importlib.util.find_spec(it) is None]
    if missing:
        pytest.skip(f"there is no package {missing[0]} here")
    ended = train(str(EXAMPLES / name), *SMALL[name], flags=("--workers", "2"))
    assert ended.out.count(f"hash {ended.hash}") == 2
    assert ended.report["bitwise"] is True
    assert ended.report["loss"]["last"] < ended.report["loss"]["first"]

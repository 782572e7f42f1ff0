"""The step of a script once more, by a plain model on all of its rows at once."""

import json
import os
from typing import Any

import torch


def write(path: str, model: torch.nn.Module, loss: torch.Tensor, trained: Any, **told: Any) -> None:
    """Takes a step of SGD with the rate 0.1 from this loss. Writes loss, norm of the gradient, and
    the largest difference from the ``trained`` parameters, with what else is ``told``."""
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    pairs = zip(trained, model.parameters())
    differs = max(float((one - other).detach().abs().max()) for one, other in pairs)
    partial = f"{path}-{os.getpid()}"
    with open(partial, "w") as file:
        found = {"loss": float(loss.detach()), "norm": float(norm), "weights": differs}
        json.dump({**found, **told}, file)
    os.replace(partial, path)

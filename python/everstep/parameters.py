"""The trained parameters of a model as one flat vector, and the gradients on their way out."""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

import torch

from everstep import _everstep, device, mirror
from everstep.buffers import FixedBuffers
from everstep.samples import bytes_of


class Parameters:
    """The trained parameters: views of one f32 tensor on the model's device, in the order of their
    names in the model.

    Each stays the same object, so optimizers, tied modules and ``state_dict`` notice nothing. After
    them the vector has room for ``statistics`` elements.
    """

    def __init__(self, model: torch.nn.Module, statistics: int = 0) -> None:
        #: Name, parameter, and where it begins in the flat vector.
        self.trained: list[tuple[str, torch.nn.Parameter, int]] = []
        offset = 0
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad or parameter.numel() == 0:
                continue
            if parameter.dtype != torch.float32:
                raise TypeError(
                    f"{name} is of {parameter.dtype}: trained parameters are torch.float32, as after "
                    "model.float(). For less precise arithmetic use torch.autocast in the loop"
                )
            self.trained.append((name, parameter, offset))
            offset += parameter.numel()
        #: Where the model computes.
        self.device = device.of((name, parameter) for name, parameter, _ in self.trained)
        #: The memory that the parameters share with the engine.
        self.memory = mirror.of(self.device, offset + statistics)
        self.flat = self.memory.flat
        #: The part of it that has the parameters.
        self.weights = self.flat[:offset]
        with torch.no_grad():
            for _, parameter, at in self.trained:
                view = self.flat[at : at + parameter.numel()].view(parameter.shape)
                view.copy_(parameter)
                parameter.data = view

    def layout(self) -> list[tuple[str, list[int]]]:
        """The names and shapes, in the order of the flat vector."""
        return [(name, list(parameter.shape)) for name, parameter, _ in self.trained]

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """Takes the values of tensors with the same names."""
        with torch.no_grad():
            for name, parameter, _ in self.trained:
                parameter.copy_(tensors[name])

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters by their names."""
        return {name: parameter.detach() for name, parameter, _ in self.trained}


def fixed_digest(model: torch.nn.Module, buffers: FixedBuffers) -> str:
    """A hexadecimal digest of what training leaves as it is: every worker's is equal."""
    digest = hashlib.blake2b()
    for name, tensor in model.named_parameters():
        if not tensor.requires_grad:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(bytes_of(tensor))
    buffers.digest(digest)
    return digest.hexdigest()


class Gradients:
    """Hands over each gradient as soon as the backward pass has finished it.

    The first pass counts how often PyTorch adds to each gradient. Its gradients go out when the
    pass ends.
    """

    def __init__(self, engine: _everstep.Engine, parameters: Parameters) -> None:
        self._engine = engine
        self._memory = parameters.memory
        self._trained = parameters.trained
        self._expected: list[int] | None = None
        self._calls = [0] * len(self._trained)
        self._sent = [False] * len(self._trained)
        self._is_open = False
        self._is_last = False
        for number, (_, parameter, _) in enumerate(self._trained):
            parameter.register_post_accumulate_grad_hook(self._hook(number))

    def _hook(self, number: int) -> Any:
        return lambda parameter: self._added(number, parameter)

    def begin(self, is_first: bool, is_last: bool) -> None:
        """A backward pass begins, the first or the last of a data shard, or one in between. After
        the last one the gradients are final."""
        if is_first:
            # The data shard before may have been given up between its micro-batches.
            for _, parameter, _ in self._trained:
                parameter.grad = None
        self._calls = [0] * len(self._trained)
        self._sent = [False] * len(self._trained)
        self._is_open, self._is_last = True, is_last

    def finish(self) -> None:
        """The backward pass is over: hands over what has not been handed over."""
        self._is_open = False
        if self._is_last:
            for number, (_, parameter, _) in enumerate(self._trained):
                if not self._sent[number]:
                    self._send(number, parameter)
            self._memory.finish(self._engine)
        # A micro-batch that weighs nothing has no backward pass.
        if self._expected is None and any(self._calls):
            self._expected = self._calls
            self._warn_of_unused()

    def _warn_of_unused(self) -> None:
        unused = [name for (name, _, _), calls in zip(self._trained, self._calls) if calls == 0]
        if unused:
            warnings.warn(
                f"no gradient for {', '.join(unused[:3])}{' and others' if unused[3:] else ''}: it "
                "counts as zero, where PyTorch's optimizers leave such a parameter as it is. So "
                "weight decay and momentum apply to it. To keep it, freeze it with "
                "requires_grad_(False), or give it a group with weight_decay=0",
                stacklevel=3,
            )

    def _added(self, number: int, parameter: torch.nn.Parameter) -> None:
        if not self._is_open:
            parameter.grad = None
            raise RuntimeError(
                "a gradient was computed outside of run.backward: write run.backward(loss) in "
                "place of loss.backward()"
            )
        self._calls[number] += 1
        if self._sent[number]:
            raise RuntimeError(
                f"the gradient of {self._trained[number][0]} was added to more often than in the "
                "first pass: every pass must use the same parameters as often as the first"
            )
        if self._is_last and self._expected and self._calls[number] == self._expected[number]:
            self._send(number, parameter)

    def _send(self, number: int, parameter: torch.nn.Parameter) -> None:
        name, _, offset = self._trained[number]
        gradient = parameter.grad
        parameter.grad = None
        if gradient is None:
            gradient = torch.zeros_like(parameter).view(-1)
        if gradient.layout != torch.strided or gradient.dtype != torch.float32:
            raise TypeError(
                f"the gradient of {name} is {gradient.layout} of {gradient.dtype}, and has to be dense "
                "and of torch.float32: make an nn.Embedding without sparse=True"
            )
        self._sent[number] = True
        self._memory.publish(self._engine, offset, gradient.contiguous())

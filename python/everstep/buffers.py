"""The buffers of a model: tensors beside the parameters, which training may change.

A buffer that training changes would differ from worker to worker. So such buffers are elements of
the flat vector, after the parameters: statistics. Each data shard begins with the values of its
step, and announces what its passes have made of them. The owners make the next values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.modules.batchnorm import SyncBatchNorm, _NormBase

from everstep import _everstep
from everstep.mirror import Memory
from everstep.samples import bytes_of

#: What becomes of a buffer that training changes.
POLICIES = ("mean", "first", "local")
#: The greatest count that f32 has exactly.
MAX_COUNT = 1 << 24


class _Place:
    """A buffer of a module. The module may replace the tensor."""

    def __init__(self, model: torch.nn.Module, name: str) -> None:
        module, _, self._leaf = name.rpartition(".")
        self._owner = model.get_submodule(module)
        self.name = name

    @property
    def tensor(self) -> torch.Tensor:
        found = self._owner._buffers[self._leaf]
        if found is None:
            raise RuntimeError(f"the buffer {self.name} is None, and was a tensor when the run began")
        return found


class Statistics:
    """The buffers that training changes: their values in the flat vector, and in the model."""

    def __init__(self, model: torch.nn.Module, policies: Mapping[str, str] | None) -> None:
        known = dict(model.named_buffers())
        asked = dict(policies or {})
        for name, policy in asked.items():
            if name not in known:
                raise ValueError(f"buffers: the model has no buffer {name}")
            if policy not in POLICIES:
                raise ValueError(f"buffers: {name} is {policy!r}, and may be one of {POLICIES}")
        chosen = {**dict.fromkeys(_of_norms(model), "mean"), **asked}
        #: Buffers of which each process has its own.
        self.local = {name for name, policy in chosen.items() if policy == "local"}
        #: Each statistic with its kind and its first element, in the order of the model.
        self._parts: list[tuple[_Place, str, int, int]] = []
        count = 0
        for name, buffer in known.items():
            if chosen.get(name, "local") == "local" or buffer.numel() == 0:
                continue
            if buffer.is_complex():
                raise TypeError(f"buffers: {name} is of {buffer.dtype}, which no f32 has")
            kind = chosen[name]
            if kind == "mean" and not buffer.is_floating_point():
                kind = "count"
            self._parts.append((_Place(model, name), kind, count, buffer.numel()))
            count += buffer.numel()
        #: How many elements all statistics have.
        self.count = count
        self._offset = 0
        #: The values of the step, on the device of the model, and as the engine has them.
        self._values = self._host_values = torch.empty(0, dtype=torch.float32)
        #: What the turn under way began with.
        self._begun = self._values

    @property
    def names(self) -> set[str]:
        """The names of the buffers that are statistics."""
        return {place.name for place, *_ in self._parts}

    def layout(self) -> list[tuple[str, list[int], str]]:
        """Names, shapes and kinds, in the order of the flat vector."""
        return [(place.name, list(place.tensor.shape), kind) for place, kind, *_ in self._parts]

    def live_in(self, memory: Memory) -> None:
        """The values are the last elements of ``memory`` from now on. They are those of the model."""
        self._offset = memory.flat.numel() - self.count
        self._values, self._host_values = (it[self._offset :] for it in (memory.flat, memory.host))
        self._values.copy_(self._read())
        self._check_counts(self._values.cpu())

    def begin(self, is_first: bool, is_again: bool) -> None:
        """A turn begins, or begins again since the script's loop was interrupted. The first turn of
        a data shard has the values of the flat vector. The others go on with what is there."""
        if is_first:
            self._begun = self._values
        elif not is_again:
            self._begun = self._read()
        self._write(self._begun)

    def load(self) -> None:
        """Has the model's buffers have the values of the flat vector."""
        self._write(self._values)

    def _write(self, values: torch.Tensor) -> None:
        with torch.no_grad():
            for place, _, start, count in self._parts:
                buffer = place.tensor
                buffer.copy_(values[start : start + count].view(buffer.shape))

    def take(self, tensors: dict[str, torch.Tensor]) -> None:
        """Takes the values of tensors with the same names, also in the model."""
        for place, _, start, count in self._parts:
            self._values[start : start + count].copy_(tensors[place.name].view(-1))
        self.load()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The values in the flat vector, by name."""
        return {
            place.name: self._values[start : start + count].view(place.tensor.shape)
            for place, _, start, count in self._parts
        }

    def publish(
        self, engine: _everstep.Engine, data_shard: int, data_shards: int, scale: float
    ) -> torch.Tensor | None:
        """Announces what a data shard has made of the statistics, times the loss scale, which the
        engine takes away again. The engine reads the tensor that is returned."""
        if not self._parts:
            return None
        now = self._read().cpu()
        self._check_counts(now)
        for _, kind, start, count in self._parts:
            part, before = now[start : start + count], self._host_values[start : start + count]
            if kind == "first":
                # The scale is a power of two, and changes no bit of a value.
                part.mul_(scale if data_shard == 0 else 0.0)
            else:
                part.sub_(before).mul_(scale / data_shards)
        engine.publish(self._offset, now.data_ptr(), self.count)
        return now

    def _read(self) -> torch.Tensor:
        """The model's values, as one vector on its device."""
        vector = torch.empty(self.count, dtype=torch.float32, device=self._values.device)
        for place, _, start, count in self._parts:
            buffer = place.tensor.detach()
            if buffer.numel() != count:
                raise RuntimeError(
                    f"the buffer {place.name} had {count} elements, and has {buffer.numel()}"
                )
            vector[start : start + count].copy_(buffer.reshape(-1))
        return vector

    def _check_counts(self, values: torch.Tensor) -> None:
        """Whether f32 has all integers among the model's values, which are in the host's memory."""
        for place, _, start, count in self._parts:
            is_integer = not place.tensor.is_floating_point()
            if is_integer and float(values[start : start + count].abs().max()) >= MAX_COUNT:
                raise RuntimeError(
                    f"the buffer {place.name} counts beyond {MAX_COUNT}, where f32 has gaps"
                )


def _of_norms(model: torch.nn.Module) -> list[str]:
    """The running statistics of the batch norms and instance norms of a model."""
    found: list[str] = []
    for prefix, module in model.named_modules():
        if isinstance(module, SyncBatchNorm):
            raise TypeError(
                f"{prefix or 'the model'} is a SyncBatchNorm, which adds up the statistics of "
                "workers in each pass, and a pass has one worker here: use torch.nn.BatchNorm. Its "
                "running statistics are the means of all data shards"
            )
        if isinstance(module, _NormBase) and module.running_mean is not None:
            found.extend(f"{prefix}.{leaf}" if prefix else leaf for leaf in module._buffers)
    return found


class FixedBuffers:
    """The buffers that training must not change."""

    def __init__(self, model: torch.nn.Module, statistics: Statistics) -> None:
        others = statistics.names | statistics.local
        names = [name for name, _ in model.named_buffers() if name not in others]
        self._places = [_Place(model, name) for name in names]
        #: Each tensor with its version, by which PyTorch counts its changes, and its digest.
        self._seen = [self._look(place) for place in self._places]

    @staticmethod
    def _look(place: _Place) -> tuple[torch.Tensor, int, bytes]:
        tensor = place.tensor
        return tensor, tensor._version, hashlib.blake2b(bytes_of(tensor)).digest()

    def check(self) -> None:
        """Looks for a buffer that has changed since the run began."""
        for number, place in enumerate(self._places):
            tensor, (before, version, digest) = place.tensor, self._seen[number]
            if tensor is before and tensor._version == version:
                continue
            self._seen[number] = self._look(place)
            if self._seen[number][2] != digest:
                raise RuntimeError(
                    f"training changes the buffer {place.name}, and would change it on each "
                    "worker in another way: say "
                    f'everstep.Run(..., buffers={{"{place.name}": "mean"}}), which adds the mean '
                    'of the changes of all data shards; or "first", which takes the value of the '
                    'first data shard; or "local" for a buffer, such as a cache, on which no '
                    "result depends"
                )

    def digest(self, digest: Any) -> None:
        """Adds the buffers to a digest."""
        for place in self._places:
            tensor = place.tensor
            digest.update(f"{place.name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(bytes_of(tensor))

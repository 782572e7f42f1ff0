"""The samples of a run: by which number each is read, and what its batches are made of.

The run plans which samples a micro-batch has. Before a sample is read, the random generators are
seeded by its epoch and its number. So augmentations do not depend on the reading process. This
module needs no framework.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any

from everstep import seeds

#: A micro-batch's place: its step, its data shard, and its number in the data shard.
Place = tuple[int, int, int]
#: The epoch and the number of a sample.
SampleKey = tuple[int, int]

#: How many turns compute the first micro-batch, if all have the same result.
PASSES = 3
#: How many samples the fingerprint of a data set reads.
FINGERPRINT_SAMPLES = 16


class SeededDataset:
    """A map-style data set. The loader asks for a sample by its epoch and its number."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def __getitem__(self, row: SampleKey) -> Any:
        epoch, index = row
        seeds.seed_generators(seeds.key(seeds.SAMPLE, self.seed, epoch, index))
        return self.dataset[index]


def check(dataset: Any) -> int:
    """Returns the number of samples. Refuses a data set without numbered samples."""
    loading = sys.modules.get("torch.utils.data")
    if loading is not None and isinstance(dataset, loading.DataLoader):
        raise TypeError(
            "data is a DataLoader: give its data set, loader.dataset. Its batch_size is micro_batch=, "
            "its num_workers is loaders=, and its collate_fn is collate="
        )
    if loading is not None and isinstance(dataset, loading.IterableDataset):
        raise TypeError(
            "data is an IterableDataset, whose samples have no numbers: Everstep could not read "
            "each of them once. Give a map-style data set, with __len__ and __getitem__"
        )
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError("data has no __len__ or no __getitem__: give a map-style data set")
    return len(dataset)


def fingerprint(keyed: SeededDataset, samples: int) -> str:
    """A hexadecimal digest of the length and of some samples: every worker must have the same."""
    digest = hashlib.blake2b(str(samples).encode())
    for place in range(min(samples, FINGERPRINT_SAMPLES)):
        add_to_digest(digest, keyed[0, place * samples // min(samples, FINGERPRINT_SAMPLES)])
    return digest.hexdigest()


def add_to_digest(digest: Any, value: Any) -> None:
    """Adds a value to a digest. Of a type without known bytes, only its name counts."""
    digest.update(type(value).__name__.encode())
    if is_of_torch(value):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(bytes_of(value))
    elif isinstance(value, Mapping):
        for name in value:
            digest.update(repr(name).encode())
            add_to_digest(digest, value[name])
    elif isinstance(value, (list, tuple)):
        for part in value:
            add_to_digest(digest, part)
    elif isinstance(value, (bool, int, float, str, bytes)):
        digest.update(repr(value).encode())
    elif hasattr(value, "tobytes"):
        digest.update(value.tobytes())


class FirstBatch:
    """The first micro-batch of a process, which is read several times and must have equal values."""

    def __init__(self) -> None:
        #: How many turns have read it.
        self.passes = 0
        self._digest: str | None = None

    def check(self, batch: Any) -> None:
        """A turn has read this micro-batch. Refuses a data set that does not repeat."""
        if self.passes == PASSES:
            return
        self.passes += 1
        digest = hashlib.blake2b()
        add_to_digest(digest, batch)
        found = digest.hexdigest()
        if self._digest not in (None, found):
            raise RuntimeError(
                "the data set does not repeat here: the first micro-batch has other values when "
                "it is read again. Draw random numbers from torch, random or numpy.random alone, "
                "which are seeded for each sample, and keep nothing from one sample to the next"
            )
        self._digest = found


def is_of_torch(value: Any) -> bool:
    """Whether a value is a tensor of PyTorch, which may not be here."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def bytes_of(tensor: Any) -> bytes:
    """The elements of a tensor of PyTorch, as they lie in memory."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    torch = sys.modules["torch"]
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""

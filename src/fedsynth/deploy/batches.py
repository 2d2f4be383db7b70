"""Batches of requests that travel, or are answered, together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

LARGEST = 1 << 26  # bytes of a batch; Flower splits arrays into objects of 5 MiB itself
_Item = TypeVar("_Item")


def in_batches(items: Iterable[_Item], size: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """Yield ``items`` in runs of at most :data:`LARGEST` bytes by their ``size``; a larger one goes alone."""
    batch: list[_Item] = []
    used = 0
    for item in items:
        if batch and used + size(item) > LARGEST:
            yield batch
            batch, used = [], 0
        batch.append(item)
        used += size(item)
    if batch:
        yield batch

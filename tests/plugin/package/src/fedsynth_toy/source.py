"""A toy source: ``toy://NUMBER`` is a table of so many rows, the same for whoever opens it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedsynth.errors import SchemaError, Unsupported
from fedsynth.rows import BadLine, Rows, Source, absent_columns
from fedsynth.schema import Schema
from fedsynth.schema.columns import Column


@dataclass(frozen=True)
class ToyRows:
    """Rows that are drawn when they are read: a :class:`~fedsynth.rows.Source`."""

    rows: int
    file: ClassVar[None] = None
    is_text: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The address."""
        return f"toy://{self.rows}"

    def columns(self) -> list[str]:
        """Return the names of both columns."""
        return ["age", "sick"]

    def unfit(self, columns: Sequence[Column]) -> dict[str, str]:
        """Return nothing: columns of all types can be read."""
        return {}

    def require(self, wanted: Mapping[str, Column | None]) -> None:
        """Refuse columns that are not there."""
        if absent := absent_columns(self.name, self.columns(), wanted):
            raise SchemaError(absent)

    def batches(
        self, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
    ) -> Iterator[tuple[Any, Sequence[BadLine]]]:
        """Yield the wanted columns in one Arrow table."""
        import pyarrow as pa

        rng = np.random.default_rng(0)
        drawn = {"age": rng.integers(18, 90, self.rows), "sick": rng.choice(["no", "yes"], self.rows, p=[0.8, 0.2])}
        yield pa.table({name: drawn[name] for name in wanted}), ()

    def snapshot(self) -> AbstractContextManager[Source]:
        """Return the rows themselves, which never change."""
        return nullcontext(self)

    def counted(self, schema: Schema) -> AbstractContextManager[Rows]:
        """Raise :class:`Unsupported`: nothing here counts."""
        raise Unsupported(f"{self.name} does not count its rows; write streamed = true instead")


def open_toy(address: str) -> ToyRows:
    """Return the rows of an address; the entry point names this function."""
    return ToyRows(int(address.removeprefix("toy://")))

"""A site's rows as its questions need them: read and encoded, kept as an encoded copy, or counted in the database.

Rule: whatever holds rows is readable by its owner only.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedsynth.archive import pack, unpack
from fedsynth.errors import FedsynthError
from fedsynth.schema import Schema
from fedsynth.table import Table

if TYPE_CHECKING:
    from fedsynth.data.source import Source
    from fedsynth.deploy.site_config import SiteConfig

_CACHE = 2  # format of the encoded copy of the rows
_REST = 2 * 10**9  # ns; a file that changed later than this before it was read may change again unseen by its stamp
_log = logging.getLogger(__name__)


def load_rows(config: SiteConfig, schema: Schema, run: str = "") -> Table:
    """Return the source's rows as codes, from the encoded copy where that is as good.

    A file's copy is good when size, times and inode of the source are those it was made from, or else its SHA-256
    is, and when the schema is the same. It is refreshed otherwise. A database table, which may change at any time, is
    read once for each ``run``: all of its questions are about the same rows. Raises :class:`SchemaError` where a
    column is missing or of a type that cannot be read, and :class:`FedsynthError` for a source that is missing or is
    being written to.
    """
    if not isinstance(config.data, Path):
        return _snapshot(config, schema, run)
    if not config.data.is_file():
        raise FedsynthError(
            f"the source {config.data} is not there; correct [source] data in the site.toml of {config.folder}"
        )
    stamp = _stamp(config.data)
    copy = _read_copy(config.cache, schema)
    if copy is not None and copy[0].get("stamp") == stamp and copy[0]["at_rest"]:
        return copy[1]
    at_rest = time.time_ns() - max(stamp["mtime_ns"], stamp["ctime_ns"]) > _REST
    with config.data.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    table = copy[1] if copy is not None and copy[0].get("sha256") == sha256 else _read(config.data, schema)
    if _stamp(config.data) != stamp:
        raise FedsynthError(f"{config.data} changed while it was read; try again when it is complete")
    _write_copy(config.cache, {"stamp": stamp, "at_rest": at_rest, "sha256": sha256}, table)
    return table


def counted(config: SiteConfig, schema: Schema) -> contextlib.AbstractContextManager[Table]:
    """Return one snapshot of a database table that answers what counts can: all that the marginal methods ask."""
    from fedsynth.data.pushdown import count_in_database

    assert not isinstance(config.data, Path)
    # It has what counting queries use of a table, and says Unsupported to the rest.
    return cast("contextlib.AbstractContextManager[Table]", count_in_database(config.data, schema))


def _snapshot(config: SiteConfig, schema: Schema, run: str) -> Table:
    of = {"run": run, "source": repr(config.data)}
    copy = _read_copy(config.cache, schema) if run else None
    if copy is not None and all(copy[0].get(key) == value for key, value in of.items()):
        return copy[1]
    table = _read(config.data, schema)
    if run:
        _write_copy(config.cache, of, table)
    return table


def _read(source: Source, schema: Schema) -> Table:
    from fedsynth.data.source import read_table  # pyarrow's readers: not needed where the copy is good

    return read_table(source, schema)


def _stamp(path: Path) -> dict[str, int]:
    found = path.stat()
    return {name: getattr(found, f"st_{name}") for name in ("size", "mtime_ns", "ctime_ns", "ino")}


def _read_copy(path: Path, schema: Schema) -> tuple[dict[str, Any], Table] | None:
    """Return the copy and what it was made from; none if there is none, or none of this schema and format."""
    if not path.is_file() or is_exposed(path):
        return None
    try:
        head, arrays = unpack(path.read_bytes())
    except FedsynthError:
        _log.warning("%s is damaged; the rows are read and encoded again", path)
        return None
    if head.get("format") != _CACHE or head["schema"] != schema.digest:
        return None
    codes = tuple(arrays[f"codes{j}"] for j in range(len(schema.columns)))
    numbers = {int(name.removeprefix("numbers")): a for name, a in arrays.items() if name.startswith("numbers")}
    return head, Table(schema, codes, numbers, head["left_out"])


def _write_copy(path: Path, head: Mapping[str, Any], table: Table) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {f"codes{j}": column for j, column in enumerate(table.codes)}
    arrays |= {f"numbers{j}": values for j, values in table.numbers.items()}
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
        file.write(pack({"format": _CACHE, "schema": table.schema.digest, "left_out": table.left_out, **head}, arrays))
    os.replace(partial, path)


def is_exposed(path: Path) -> bool:
    """Whether anybody but the owner may read, write or enter."""
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)

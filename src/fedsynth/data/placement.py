"""The place of a row in a simulated run: the hold-out, or a site.

A run publishes the seed of its split, so that the guarantee must hold for readers who know it. Two ways keep it:

Row by row (:func:`held_out`, :func:`placed`): the place of a row is a function of the seed and that row (and its
    person). One row more is one row more at one place, under every seed, and no other row moves: at each site,
    neighbouring tables stay neighbours. Equal rows are told apart by their number among them; one more of them has the
    next number, and which of them lies where makes no difference.
By a secret permutation (:func:`dealt`): where sites' numbers of rows are public, neighbouring tables differ by a
    replaced row, and numbers of rows that depend on the rows' content would reveal it. They are fixed beforehand from
    the number of rows, and a uniform permutation deals the rows. Under one permutation, replacing a row replaces one
    row at one place. The permutation's key must be secret: a reader of the key who knew in which order the rows lie
    could tell more than the guarantee admits if the order depended on the replaced row, as in a sorted table.

Partitions that look at other rows (:func:`looks_at_other_rows`) have neither property; the statement of such a run says
so, and the run is not for publication.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.data.partition import IID, ByColumn, ByValue, LabelSkew, Partition, Quantity
from fedsynth.errors import Unsupported
from fedsynth.persons import UNKNOWN, identify
from fedsynth.rows import Table
from fedsynth.schema.canonical import canonical_texts
from fedsynth.schema.columns import distinct_values, is_missing, readable

if TYPE_CHECKING:
    import pandas as pd

_WORD = 8  # bytes of a random number


def looks_at_other_rows(how: Partition, *, public_sizes: bool) -> bool:
    """Return whether this partition cannot place rows without regard to other rows.

    With ``public_sizes``, which must not depend on the rows, that is so for all but ``iid`` and ``quantity``.
    """
    if public_sizes:
        return not isinstance(how, IID | Quantity)
    if isinstance(how, LabelSkew):
        return how.minimum is not None
    return not isinstance(how, IID | Quantity | ByColumn | ByValue)


def random_numbers(table: Table, seed: int) -> NDArray[np.float64]:
    """Return two random numbers in [0, 1) for each row, shape ``(rows, 2)``: for the hold-out, and for the site.

    They are a hash (BLAKE2b, keyed by ``seed``) of the row's person if the table has persons, and otherwise of the
    row's encoded content and its number among equal rows, from 0.
    """
    key = _key(seed)
    if table.persons is None:
        return _numbers(_hashed_rows(_content(table), key))
    return _numbers(_hashed_persons(table.persons[: len(table)], key))


def held_out_of_frame(frame: pd.DataFrame, share: float, seed: int, person: str = "") -> NDArray[np.bool_]:
    """Return which rows of a data frame are held out, shape ``(rows,)``: each with probability ``share``.

    It is decided row by row, as :func:`held_out` decides it: by a hash of the row's cells and its number among equal
    rows or, if ``person`` names a column, of the row's person. A row without a person stands for itself. Cells are
    compared so that no type that another row gives a column makes a difference: numbers and booleans (1 and 0) by their
    value, times by their instant, other cells by their text.
    """
    key = _key(seed)
    words = _hashed_rows(_cells(frame, key), key)
    if person:
        persons = identify(frame[person])
        words = np.where((persons == UNKNOWN)[:, None], words, _hashed_persons(persons, key))
    held: NDArray[np.bool_] = _numbers(words)[:, 0] < share
    return held


def held_out(table: Table, share: float, seed: int) -> NDArray[np.bool_]:
    """Return which rows are held out, shape ``(rows,)``: each row, or each person, with probability ``share``."""
    return random_numbers(table, seed)[:, 0] < share


def placed(table: Table, sites: int, how: Partition, seed: int) -> NDArray[np.int64]:
    """Return the site of each row, or -1, shape ``(rows,)``, as ``how`` decides it row by row.

    Raises :class:`Unsupported` for a partition that looks at other rows, or cannot divide rows over so many sites.
    """
    if looks_at_other_rows(how, public_sizes=False):
        raise Unsupported("this partition cannot place rows one by one; use iid, quantity:A or label-skew:A")
    assert isinstance(how, IID | Quantity | LabelSkew | ByColumn | ByValue)
    return how.place(table, sites, seed, random_numbers(table, seed)[:, 1])


def dealt(table: Table, share: float, sites: int, how: IID | Quantity, seed: int, key: bytes) -> NDArray[np.int64]:
    """Return the place of each row that was read: a site, or -1 for the hold-out, shape ``(rows_read,)``.

    The rows of the table come first, those left out of it last. A permutation that the secret ``key`` determines deals
    ``share`` of them to the hold-out and the others to the ``sites``, whose numbers of rows ``seed`` draws from the
    number of all rows. If the table has persons, persons are dealt in place of rows.
    """
    # Position of each row, or of its person, in the permutation.
    of = np.arange(table.rows_read) if table.persons is None else np.unique(table.persons, return_inverse=True)[1]
    number = int(of.max(initial=-1)) + 1
    order = np.argsort(_words(np.arange(number, dtype=np.uint64).tobytes(), _WORD, key)[:, 0], kind="stable")
    held = round(share * number)
    sizes = how.sizes(number - held, sites, np.random.default_rng(seed))
    place = np.empty(number, dtype=np.int64)
    place[order] = np.repeat(np.arange(-1, sites), [held, *sizes])
    return place[of]


def _key(seed: int) -> bytes:
    return hashlib.sha256(f"places of rows {seed}".encode()).digest()


def _numbers(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _content(table: Table) -> NDArray[np.uint8]:
    """Return the encoded content of each row, shape ``(rows, bytes)``."""
    parts = [np.ascontiguousarray(column)[:, None].view(np.uint8) for column in table.codes]
    for _, numbers in sorted(table.numbers.items()):
        plain = np.where(np.isnan(numbers), np.nan, numbers + 0.0)  # one NaN, and no negative zero
        parts.append(plain[:, None].view(np.uint8))
    return np.concatenate(parts, axis=1)


def _cells(frame: pd.DataFrame, key: bytes) -> NDArray[np.uint8]:
    """Return a keyed hash of each cell of a data frame, 16 bytes a column, shape ``(rows, bytes)``."""
    parts = [np.zeros((len(frame), 1), dtype=np.uint8)]  # of a frame without columns, too
    for at in range(frame.shape[1]):  # by position: names may occur twice
        which, distinct = distinct_values(readable(frame.iloc[:, at]))
        texts = [*map(_cell_text, distinct), _cell_text(None)]
        hashes = b"".join(hashlib.blake2b(text, key=key, digest_size=2 * _WORD).digest() for text in texts)
        parts.append(np.frombuffer(hashes, dtype=np.uint8).reshape(-1, 2 * _WORD)[which])
    return np.concatenate(parts, axis=1)


def _cell_text(value: Any) -> bytes:
    """Return bytes that are equal for cells that every schema reads alike, whatever the type of their column."""
    if isinstance(value, str):
        return b"text " + value.encode("utf-8", "surrogatepass")
    if is_missing(value):
        return b"missing"
    found = next(iter(canonical_texts(value)), None) or (hex(value) if isinstance(value, int) else repr(type(value)))
    return b"value " + {"True": "1", "False": "0"}.get(found, found).encode("utf-8", "surrogatepass")


def _hashed_persons(persons: NDArray[np.uint64], key: bytes) -> NDArray[np.uint64]:
    """Return two hashes for the person of each row, shape ``(rows, 2)``."""
    distinct, which = np.unique(persons, return_inverse=True)
    return _words(distinct.tobytes(), _WORD, key)[which]


def _hashed_rows(content: NDArray[np.uint8], key: bytes) -> NDArray[np.uint64]:
    """Return two hashes for each row of bytes, shape ``(rows, 2)``, of its content and its number among equal rows."""
    words = _words(content.tobytes(), content.shape[1], key)
    # Rows with equal hashes are equal rows; the second and later ones are hashed again with their number.
    order = np.lexsort((words[:, 1], words[:, 0]))
    new = np.append(True, (words[order][1:] != words[order][:-1]).any(axis=1))
    starts = np.flatnonzero(new)
    number = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    repeated = order[number > 0]
    again = np.column_stack([words[repeated], number[number > 0].astype(np.uint64)])
    words[repeated] = _words(again.tobytes(), 3 * _WORD, key)
    return words


def _words(content: bytes, width: int, key: bytes) -> NDArray[np.uint64]:
    """Return two keyed hashes (uint64) of each piece of ``width`` bytes of ``content``, shape ``(pieces, 2)``."""
    view = memoryview(content)
    start = hashlib.blake2b(key=key, digest_size=2 * _WORD)
    hashes = []
    for at in range(0, len(content), width):
        hashed = start.copy()
        hashed.update(view[at : at + width])
        hashes.append(hashed.digest())
    return np.frombuffer(b"".join(hashes), dtype="<u8").reshape(-1, 2).copy()

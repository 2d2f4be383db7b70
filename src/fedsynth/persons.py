"""The persons of rows: who they are, and a limit on each one's rows, which turns a guarantee for rows into theirs."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter, SchemaError
from fedsynth.schema.canonical import canonical_texts
from fedsynth.schema.columns import distinct_values, is_missing, readable

if TYPE_CHECKING:
    import pandas as pd

    from fedsynth.rows import Source

UNKNOWN = np.frombuffer(hashlib.sha256(b"").digest()[:8], dtype=np.uint64)[0]
"""What :func:`identify` returns for a row without an identifier (missing, or empty text)."""


def require_persons(source: Source, column: str) -> None:
    """Raise :class:`SchemaError` unless the source has the ``column`` that identifies persons; reads no row."""
    if column not in source.columns():
        raise SchemaError(
            f"{source.name} lacks the column {column!r}, which identifies the person of each row; name another one"
        )


def keep_rows(ids: Sequence[Any] | NDArray[Any] | pd.Series[Any], most: int, key: bytes) -> NDArray[np.bool_]:
    """Return a mask of the rows to keep, shape ``(rows,)``: at most ``most`` rows of each person.

    ``ids`` has the identifier of each row's person, and ``key`` is a secret that the choice depends on. A person's rows
    are numbered in their order, and the rows with the smallest HMAC-SHA256 (a keyed hash) of number and person are
    kept. Under one key, which numbers are kept therefore depends only on the person and on how many rows that person
    has, and one person's rows never displace those of another. Identifiers are compared by value
    (:mod:`fedsynth.schema.canonical`): the numbers ``7``, ``7.0`` and ``Decimal("7.00")``, the texts ``"7"``, ``"+7"``
    and ``"7.0"`` and the bytes ``b"7"`` are one person, whatever the type of the column, while ``"07"`` and ``" 7"``
    are two others. Rows without an identifier (missing, or empty text) are left out, because nothing would limit how
    many of them belong to one person.

    Raises :class:`InvalidParameter` unless ``most`` is at least 1.
    """
    if most < 1:
        raise InvalidParameter(f"rows per person must be at least 1, not {most}")
    which, texts = _identifiers(ids)
    spelled: dict[str, int] = {}
    persons = np.array([spelled.setdefault(text, len(spelled)) for text in texts])[which]
    counts = np.bincount(persons, minlength=len(spelled))
    named = np.array([text != "" for text in spelled], dtype=bool)
    kept: NDArray[np.bool_] = named[persons] & (counts[persons] <= most)
    many = np.flatnonzero(named[persons] & ~kept)  # most persons have few rows, which need no HMAC
    if not len(many):
        return kept
    many = many[np.argsort(persons[many], kind="stable")]
    person_of = persons[many]
    occurrence = _rank(person_of)
    names = [str(text).encode("utf-8", "surrogatepass") for text in spelled]
    macs = b"".join(
        hmac.digest(key, number.to_bytes(8, "big") + names[person], "sha256")
        for person, number in zip(person_of.tolist(), occurrence.tolist(), strict=True)
    )
    words = np.frombuffer(macs, dtype=">u8").reshape(-1, 4)
    order = np.lexsort((words[:, 3], words[:, 2], words[:, 1], words[:, 0], person_of))
    kept[many[order[_rank(person_of[order]) < most]]] = True
    return kept


def keep_sites(
    ids: Mapping[str, Sequence[Any] | pd.Series[Any]], most: int, key: bytes
) -> dict[str, NDArray[np.bool_]]:
    """Return for each site a mask of the rows to keep, so that each person has rows at no more than ``most`` sites.

    ``ids`` has the identifiers of the rows' persons by site. Of a person's sites, those with the smallest HMAC-SHA256
    of site and person under ``key`` are kept: the choice depends on that person's rows only. Rows without an identifier
    are kept here; :func:`keep_rows` leaves them out.
    """
    known = {name: _identifiers(of) for name, of in ids.items()}
    sites_of: dict[str, list[str]] = {}
    for name, (_, texts) in known.items():
        for text in {*texts} - {""}:
            sites_of.setdefault(text, []).append(name)
    left_out: dict[str, set[str]] = {name: set() for name in ids}
    for text, names in sites_of.items():
        person = text.encode("utf-8", "surrogatepass")
        ranked = sorted(names, key=lambda name: hmac.digest(key, name.encode() + b"\0" + person, "sha256"))
        for name in ranked[most:]:
            left_out[name].add(text)
    return {
        name: np.array([text not in left_out[name] for text in texts], dtype=bool)[which]
        for name, (which, texts) in known.items()
    }


def require_one_row(rows: int, sites: int) -> None:
    """Raise :class:`InvalidParameter` unless both limits are 1: rows that nobody assigns to persons have no others."""
    if (rows, sites) != (1, 1):
        raise InvalidParameter(
            f"rows per person = {rows} and sites per person = {sites} limit nobody unless a column tells "
            "persons apart: name it (--person COLUMN, person= in Python), or leave both out to protect single rows"
        )


def require_limited(persons: Mapping[str, NDArray[np.uint64] | None], most: int, most_sites: int) -> None:
    """Raise :class:`InvalidParameter` if a person has more than ``most`` rows at a site, or rows at too many sites.

    ``persons`` has, by site, the person of each row (:func:`identify`), or ``None`` if they are not known. A person
    with no more than ``most`` rows at all sites together may be at any number of sites: no release then costs that
    person more than one with as many rows at one site. Single rows (both limits are 1) need no persons.
    """
    if (most, most_sites) == (1, 1):
        return
    known = [found for found in persons.values() if found is not None]
    if len(known) < len(persons):
        require_one_row(most, most_sites)
    each = [np.unique(found, return_counts=True) for found in known]
    ids = np.concatenate([found for found, _ in each])
    _, which = np.unique(ids, return_inverse=True)
    rows = np.concatenate([counts for _, counts in each])
    total, sites = np.bincount(which, rows), np.bincount(which)
    at_one = np.zeros(len(total))
    np.maximum.at(at_one, which, rows)
    if ((total > most) & ((at_one > most) | (sites > most_sites))).any() or UNKNOWN in ids:
        raise InvalidParameter(
            f"a person of these tables has more than {most} rows at a site, or rows at more than {most_sites} "
            "sites, or a row is of nobody; leave rows out first, or pass data frames and the person column (person=)"
        )


def identify(ids: Sequence[Any] | NDArray[Any] | pd.Series[Any]) -> NDArray[np.uint64]:
    """Return an integer for the person of each row, shape ``(rows,)``; equal identifiers have equal integers.

    It is the start of the SHA-256 of the identifier's text. Two of a billion persons share an integer with a
    probability of a few percent; they are then held out, or put at a site, together. Limits on rows and sites compare
    whole identifiers.
    """
    which, texts = _identifiers(ids)
    starts = b"".join(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8] for text in texts)
    return np.frombuffer(starts, dtype=np.uint64)[which]


def _identifiers(ids: Sequence[Any] | NDArray[Any] | pd.Series[Any]) -> tuple[NDArray[np.int64], list[str]]:
    """Return for each row the position of its identifier in a list of texts, and this list."""
    import pandas as pd  # takes longer to import than all else

    which, distinct = distinct_values(readable(ids if isinstance(ids, pd.Series) else pd.Series(ids, dtype=object)))
    return which, [*map(_identifier, distinct), ""]


def _rank(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of each entry within its run of equal entries."""
    starts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
    return np.arange(len(groups)) - np.repeat(starts, np.diff(np.append(starts, len(groups))))


def _identifier(value: Any) -> str:
    """Return an identifier as text, equal for an integer, a whole float or decimal, and text; empty if missing."""
    if is_missing(value):
        return ""
    return next(iter(canonical_texts(value)), None) or (hex(value) if isinstance(value, int) else "")

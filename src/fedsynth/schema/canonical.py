"""Canonical texts: one text for each value, so that a column's cells are compared by value and not by type or spelling.

One more row can change the type of a whole column: a missing value turns integers into doubles, a number turns booleans
into integers, a text turns both into text. If cells were compared as they are spelled, all other rows would then change
their codes with it. They are compared by these texts instead, which such changes of type keep:

* numbers of any type: the exact decimal, without an exponent and without trailing zeros (``1``, ``1.0`` and
  ``Decimal("1.00")`` are ``"1"``); for a double that is not whole, the shortest decimal that identifies it;
* booleans: ``"True"`` and ``"False"``;
* days and times: ``"2026-03-31 12:30:00"``, the day alone at midnight; times with a zone in UTC, with ``"+00:00"``;
* text that spells such a value as programs write it: the same. Other text is its own canonical text.

Numbers are ``1``, ``+1``, ``-1.50``, ``1.``, ``.5``, ``1e+16`` and ``1E5``, as programs that guess types read them:
``pandas.read_csv`` makes the numbers 1, 0 and -1 of the labels ``+1``, ``0`` and ``-1``, unless another record of the
file has a word in this column. Truth values are ``true``, ``True`` and ``TRUE``, times ``2026-03-31T00:00:00`` and
``2026-03-31 00:00:00.000000Z``. Text with leading zeros (``01``, ``007``) or with spaces (``" 1"``) is a label of its
own, since these tell codes apart. A canonical text is its own canonical text. Cells of bytes are text in UTF-8
(:func:`decode_cell`): a single one makes a whole column binary.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import Any

import numpy as np

# PostgreSQL matches the same patterns (fedsynth.data.sources.postgres), so they use only what all regex dialects share.
DECIMAL = r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)"
POWER = r"[+-]?((0|[1-9][0-9]{0,99})(\.[0-9]{0,100})?|\.[0-9]{1,100})[eE][+-]?[0-9]{1,3}"
TIME = r"-?[0-9]{4,}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|\+00(:?00)?)?"
DAY = r"-?[0-9]{4,}-[0-9]{2}-[0-9]{2}"
TRUTH_VALUES = {"true": "True", "TRUE": "True", "True": "True", "false": "False", "FALSE": "False", "False": "False"}

_NUMBER = re.compile(rf"(?:{DECIMAL}|{POWER})")
_SHORTEST = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]*[1-9])?")  # canonical already, except "-0"
_TIME = re.compile(TIME)
_DAY = re.compile(DAY)
_EPOCH = datetime(1970, 1, 1)


def canonical_text(text: str) -> str:
    """Return the canonical text of the value that ``text`` spells, or ``text`` itself if it spells none."""
    if _NUMBER.fullmatch(text):
        return text if _SHORTEST.fullmatch(text) and text != "-0" else _decimal(text)
    if _TIME.fullmatch(text):
        return _time(text)
    return TRUTH_VALUES.get(text, text)


def decode_cell(cell: bytes | bytearray | memoryview) -> str:
    """Return the text of a cell of bytes, by UTF-8; U+FFFD stands for bytes that are not."""
    return bytes(cell).decode("utf-8", "replace")


def spells_value(text: str) -> bool:
    """Return whether a text spells a number, a boolean, a day or a time, and is therefore compared by value."""
    return any(pattern.fullmatch(text) for pattern in (_NUMBER, _TIME, _DAY)) or text in TRUTH_VALUES


def canonical_texts(value: Any) -> tuple[str, ...]:
    """Return the canonical text of a cell, of any type; a column looks up several texts in turn.

    There are two for a double that is not whole and that single precision represents exactly: its own shortest decimal,
    then that of single precision. The value ``0.1`` of a column in single precision is therefore read for ``"0.1"``,
    also when another row turns the column into one of doubles. There is none for an integer too long for Python to
    format.
    """
    if isinstance(value, str):
        return (canonical_text(value),)
    value = real_part(value)
    if isinstance(value, float | np.floating):
        return _double(float(value))
    if isinstance(value, datetime | np.datetime64):
        return (canonical_text(_in_utc(value)),)
    try:
        return (canonical_text(str(value)),)
    except (ValueError, NotImplementedError):
        return ()


def real_part(value: Any) -> Any:
    """Return the real part of a complex number without an imaginary one, and any other value unchanged.

    A single complex number turns a column of numbers into complex ones.
    """
    return value.real if isinstance(value, complex | np.complexfloating) and value.imag == 0 else value


def since_1970(time: datetime) -> int:
    """Return microseconds from 1970 to a ``time``; one without a time zone is in UTC."""
    return (time.replace(tzinfo=None) - _EPOCH - (time.utcoffset() or timedelta(0))) // timedelta(microseconds=1)


def _decimal(text: str) -> str:
    """Return a number, written with or without sign, exponent and digits before the point, in its canonical form."""
    mantissa, _, power = text.lower().partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("+-").partition(".")
    digits, point = whole + fraction, len(whole) + int(power or 0)
    whole, fraction = digits[: max(point, 0)].ljust(point, "0"), "0" * -point + digits[max(point, 0) :]
    fraction = fraction.rstrip("0")
    number = (whole.lstrip("0") or "0") + ("." + fraction if fraction else "")
    return number if number == "0" else sign + number


def _time(text: str) -> str:
    """Return a time, of which seconds, fractions and a zone (always UTC) may be missing, in its canonical form."""
    zone = re.search(r"(Z|\+[0-9:]+)?$", text)
    assert zone is not None
    day, clock = re.split("[ T]", text[: zone.start()])
    clock, _, fraction = clock.partition(".")
    clock, fraction = clock.ljust(8, "x").replace("xxx", ":00"), fraction.rstrip("0")
    if not zone.group() and clock == "00:00:00" and not fraction:
        return day
    return f"{day} {clock}" + ("." + fraction if fraction else "") + ("+00:00" if zone.group() else "")


def _double(number: float) -> tuple[str, ...]:
    if not math.isfinite(number):
        return (str(number),)
    if number.is_integer():
        return (str(int(number)),)
    with np.errstate(over="ignore", under="ignore"):
        single = np.float32(number)
    texts = (repr(number), str(single)) if float(single) == number else (repr(number),)
    return tuple(dict.fromkeys(map(canonical_text, texts)))


def _in_utc(time: datetime | np.datetime64) -> str:
    """Return a time as text, in UTC and with its offset if it has a time zone."""
    if isinstance(time, np.datetime64):
        return str(time)
    # The stamp of a pandas time is in UTC. It has years that Python's times lack, which pandas cannot format.
    stamp = getattr(time, "asm8", None)
    text = str(np.datetime64(since_1970(time), "us") if stamp is None else stamp)
    return text if time.tzinfo is None else f"{text}+00:00"

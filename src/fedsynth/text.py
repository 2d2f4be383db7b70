"""Text for people: lines wrapped at words, aligned tables, rounded numbers, and texts of others made harmless."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence

_START = re.compile(r" *(?:[-*] |-> )?")  # an indentation, and the mark of a list's item
_GAP = re.compile(r"(?<=\S) {2,}(?=\S)")  # between two columns of a table
_PERCENT = re.compile(r"(?<=\d) %")
_NARROWEST = 16  # characters that the last column of a table needs beside the others


def wrapped(text: str, width: int) -> str:
    """Return ``text`` with each line that is longer than ``width`` broken at spaces; words stay whole.

    A line goes on below its own text: after its indentation, the mark of a list's item and, in a table, the columns
    before its last one.
    """
    return "\n".join(_wrapped(line, width) for line in text.split("\n"))


def _wrapped(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    starts = [match.end() for match in _GAP.finditer(line) if match.end() <= width - _NARROWEST]
    match = _START.match(line)
    assert match is not None  # it may be empty
    at = max([match.end(), *starts])
    rest = _PERCENT.sub("\0%", line[at:])  # a number keeps its sign
    parts = textwrap.wrap(rest, max(width - at, 1), break_long_words=False, break_on_hyphens=False)
    return (line[:at] + ("\n" + " " * at).join(parts)).replace("\0", " ")


def table(rows: Sequence[Sequence[str]], *, right: bool = True) -> str:
    """Return rows of cells as lines with aligned columns, each as wide as its longest cell, two spaces apart.

    Columns after the first are aligned to the ``right``, or else to the left.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [
            f"{cell:>{width}}" if right else f"{cell:{width}}" for cell, width in zip(others, widths[1:], strict=True)
        ]
        lines.append("  ".join([f"{first:{widths[0]}}", *cells]).rstrip())
    return "\n".join(lines)


def printable(text: str, most: int | None = None) -> str:
    """Return a text of others on one line: without characters that control terminals, cut after ``most`` characters."""
    line = "".join(one if one.isprintable() else " " if one.isspace() else "" for one in text)
    return line if most is None or len(line) <= most else f"{line[: most - 1]}…"


def two_digits(number: float) -> str:
    """Return a number with two significant digits, without an exponent."""
    if number <= 0:
        return "0"
    rounded = round(number, 1 - math.floor(math.log10(number)))
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


def rows_text(number: float) -> str:
    """Return a number of rows in words, with two significant digits, such as "49 rows"."""
    return f"{two_digits(number)} rows"

"""The record of what encoding did to values that do not fit a schema: counts and a few examples, by column.

It is about real rows. It is for the people who may see those rows: in a terminal, a Python warning or a site's own log.
It is part of no message, file, digest or ``repr``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.schema.columns import Encoded, Fault, Handling, distinct_values

if TYPE_CHECKING:
    import pandas as pd

_EXAMPLES = 3  # different values kept for each column and kind of misfit
_LOOKED = 256  # rows in which examples are first looked for
_LONGEST = 60  # characters of a value that are shown
_LISTED = 40  # names of ignored columns that are shown
_FIRST = 20  # findings shown unless all are asked for


@dataclass(frozen=True, repr=False)
class Misfit:
    """Values of one column that do not fit it for one reason: their number of ``rows``, and the first ``examples``.

    ``column`` is the column's name. ``wrong``, ``handled`` and ``fix`` are clauses for a message: what is wrong with
    the values, how they were encoded, and how to fix them. ``examples`` are pairs of a row (its position, from 0) and
    the value in it as text, of at most three different values.
    """

    column: str
    wrong: str
    handled: Handling
    fix: str
    rows: int
    examples: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        (row, value), *others = self.examples
        also = f", also {', '.join(text for _, text in others)}" if others else ""
        count = f" ({self.rows} rows{also})" if self.rows > 1 else ""
        return f"column {self.column!r}, row {row}: {value} {self.wrong}: {self.handled}{count}; {self.fix}"


@dataclass(frozen=True, repr=False)
class Misfits:
    """What encoding changed or left out: the record that an encoded :class:`~fedsynth.rows.Table` carries.

    ``broken`` counts the rows that violate a rule or a bound of a derived column, which are encoded all the same.
    ``ignored`` names the columns that the schema does not name. ``remarks`` are further sentences, on malformed lines
    and on rows beyond a person's limit.
    """

    found: tuple[Misfit, ...] = ()
    broken: Mapping[str, int] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(cls, columns: Iterable[tuple[str, Encoded]]) -> Misfits:
        """Return the record of encoded columns by name."""
        return cls(
            tuple(
                Misfit(name, fault.wrong, fault.handled, fault.mend, len(fault.rows), fault.examples)
                for name, encoded in columns
                for fault in encoded.faults
            )
        )

    @classmethod
    def merged(cls, parts: Iterable[Misfits]) -> Misfits:
        """Return one record of several tables, such as the batches of a file, in order."""
        found: dict[tuple[str, str, str, str], Misfit] = {}
        broken: Counter[str] = Counter()
        ignored: dict[str, None] = {}
        remarks: dict[str, None] = {}
        for part in parts:
            for one in part.found:
                key = (one.column, one.wrong, one.handled, one.fix)
                found[key] = _added(found[key], one) if key in found else one
            broken.update(part.broken)
            ignored |= dict.fromkeys(part.ignored)
            remarks |= dict.fromkeys(part.remarks)
        return cls(tuple(found.values()), dict(broken), tuple(ignored), tuple(remarks))

    def renumbered(self, rows: NDArray[np.int64]) -> Misfits:
        """Return the record with other row numbers: ``rows`` has the position in the source of each encoded row."""
        return replace(
            self,
            found=tuple(
                replace(one, examples=tuple((int(rows[row]), value) for row, value in one.examples))
                for one in self.found
            ),
        )

    def sentences(self, most: int | None = None) -> list[str]:
        """Return a sentence for each finding, at most ``most`` of them on values; those on rows left out come first."""
        found = sorted(self.found, key=lambda one: one.handled != "row left out")
        values = [str(one) for one in found[:most]]
        if len(found) > len(values):
            values.append(f"and {len(found) - len(values)} more such findings; fedsynth schema check lists all of them")
        return [*values, *breaking(self.broken), *self.remarks, *self.on_ignored()]

    def reasons(self) -> list[str]:
        """Return those sentences that say why rows were left out."""
        return [str(one) for one in self.found if one.handled == "row left out"] + list(self.remarks)

    def on_ignored(self) -> list[str]:
        """Return a sentence that names the ignored columns, or nothing if there are none."""
        if not self.ignored:
            return []
        named = ", ".join(map(repr, self.ignored[:_LISTED]))
        more = f" and {len(self.ignored) - _LISTED} more" if len(self.ignored) > _LISTED else ""
        count = "1 column is" if len(self.ignored) == 1 else f"{len(self.ignored)} columns are"
        return [f"{count} not in the schema and ignored: {named}{more}"]


def findings(rows: int, left_out: int, misfits: Misfits, *, everything: bool = False) -> list[str]:
    """Return sentences on what became of ``rows`` that were read, of which encoding ``left_out`` some.

    Unless ``everything`` is true, only the first 20 of those on values are included.
    """
    head = [f"{left_out} of the {rows} rows do not fit the schema and are left out"] if left_out else []
    return head + misfits.sentences(None if everything else _FIRST)


def breaking(counts: Mapping[str, int]) -> list[str]:
    """Return a sentence for each rule or bound (a sentence) that real rows violate, with their number."""
    handled = "they are still encoded (stored forms are clipped), but synthetic rows that break it are redrawn"
    return [f"rows that break '{sentence}': {count}; {handled}" for sentence, count in counts.items() if count]


def with_lines(head: str, sentences: Iterable[str]) -> str:
    """Return a message with one line for each sentence below its first line."""
    return "".join([head, *(f"\n- {sentence}" for sentence in sentences)])


def with_examples(encoded: Encoded, values: pd.Series[Any]) -> Encoded:
    """Return an encoded column whose faults have their first examples from the ``values`` that were encoded."""
    if not encoded.faults:
        return encoded
    return replace(
        encoded, faults=tuple(replace(fault, examples=_examples(values, fault.rows)) for fault in encoded.faults)
    )


def repeated(fault: Fault, index: NDArray[np.integer[Any]]) -> Fault:
    """Return a fault of distinct values as that of the rows in which they occur, by ``index`` into these values."""
    faulty = np.zeros(int(index.max()) + 1, dtype=bool)
    faulty[fault.rows] = True
    firsts = ((int(np.argmax(index == at)), value) for at, value in fault.examples)
    return replace(fault, rows=np.flatnonzero(faulty[index]), examples=tuple(sorted(firsts)))


def shown(value: Any) -> str:
    """Return a value as text for a message: its ``repr``, cut to 60 characters."""
    try:
        text = repr(value.item() if isinstance(value, np.generic) else value)
    except (ValueError, NotImplementedError):  # integers with thousands of digits, years that pandas cannot format
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _examples(values: pd.Series[Any], rows: NDArray[np.int64]) -> tuple[tuple[int, str], ...]:
    """Return the first rows with a different value each, and these values as text."""
    found: tuple[tuple[int, str], ...] = ()
    for looked in (rows[:_LOOKED], rows):  # mostly the first rows suffice
        which, _ = distinct_values(values.iloc[looked])
        firsts = np.sort(np.unique(which, return_index=True)[1])
        found = _different((int(row), shown(values.iloc[row])) for row in looked[firsts[: 2 * _EXAMPLES]])
        if len(found) == _EXAMPLES or len(looked) == len(rows):
            break
    return found


def _added(one: Misfit, other: Misfit) -> Misfit:
    return replace(one, rows=one.rows + other.rows, examples=_different([*one.examples, *other.examples]))


def _different(examples: Iterable[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    texts: dict[str, int] = {}
    for row, text in examples:
        texts.setdefault(text, row)
    kept: Sequence[tuple[str, int]] = list(texts.items())[:_EXAMPLES]
    return tuple((row, text) for text, row in kept)

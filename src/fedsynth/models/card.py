"""What travels with a model: what is lost, what is proved, how far its counts can be trusted, and what it relates.

A :class:`ModelCard` holds the facts (:attr:`Synthesizer.card <fedsynth.models.synthesizer.Synthesizer.card>` returns
it), and :func:`card_text`, :func:`card_html` and :func:`card_markdown` print them. They follow from released numbers
and public facts alone, so a card may be published with its table. A model's file may be hostile: its texts are shown
without control characters, and escaped in HTML and Markdown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import number_of
from fedsynth.privacy.cost import best_guess
from fedsynth.privacy.ledger import Releases, releases_table
from fedsynth.schema.bins import MOST_COLUMNS
from fedsynth.text import printable, rows_text, wrapped

RELIABLE = 5.0
"""From so many times the smallest group on, noise moves a count by less than a fifth, in 19 of 20 cases."""
_SHOWN = 12  # pairs, and lost columns, that are named
_WIDTH = 80  # of text, in characters
_PAIRS = 100  # pairs of columns that a card holds by name
_LONGEST = 80  # characters of one name
_MARKS = re.compile(r"[\\`*\[\]<>&|~#$]|(?<![^\W_])_|_(?![^\W_])")  # of Markdown, which also admits HTML

_Text = Annotated[str, msgspec.Meta(max_length=2000)]
_Rows = Annotated[float, msgspec.Meta(ge=0, le=2.0**60)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**60)]


def shown(name: object) -> str:
    """Return a column's name or a category as a card has it: printable, and at most 80 characters long."""
    return printable(str(name), _LONGEST)


class HiddenGroups(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Groups of rows of one column, or of its pair with the target, that a run's noise hides.

    ``kind`` says what is hidden: "count", numbers of rows of the column's values; "crossings", of other values, their
    combinations with those of at least half of the columns that were counted with it; "target", of values that are
    large enough, combinations with the target's. ``column`` is the column's name, for "target" followed by that of the
    target. Hidden are ``hidden`` of ``of`` groups, which have ``rows`` estimated rows together, and fewer than
    ``below`` each. ``names`` are those with most rows, up to three, with their estimated rows.
    """

    kind: Literal["count", "crossings", "target"]
    column: _Text
    hidden: _Count
    of: _Count
    below: _Rows
    rows: _Rows
    names: Annotated[tuple[tuple[_Text, _Rows], ...], msgspec.Meta(max_length=3)]

    @property
    def says(self) -> str:
        """What is hidden, without the column's name."""
        many = f"{self.hidden:,} of {self.of:,}"
        what = {
            "count": f"the counts of {many} values",
            "crossings": f"most crossings of {many} values",
            "target": f"{many} crossings",
        }
        named = ", ".join(f"{printable(name)} ({rows:,.0f})" for name, rows in self.names)
        more = ", ..." if self.hidden > len(self.names) else ""
        return f"{what[self.kind]} (below {rows_text(self.below)}): {named}{more}"

    def __str__(self) -> str:
        return f"{printable(self.column)}: {self.says}"


class LostColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column of which a model holds next to nothing, or not where some of its values lie.

    ``kind`` is "one value" if all rows have the same, or "wide cell" if more than half of the known values lie in one
    interval of numbers, within which they are drawn evenly though it could be divided further, and "hidden values" if
    noise hid which values some rows have. ``values`` is that value or interval in words ("" for hidden ones), ``share``
    its share of the known values (0 to 1), or that of the drawn rows in place of hidden ones, and ``bounds`` are the
    column's bounds in the schema, in words; "" for a category and for hidden values.
    """

    kind: Literal["one value", "wide cell", "hidden values"]
    column: _Text
    values: _Text
    share: Annotated[float, msgspec.Meta(ge=0, le=1)]
    bounds: _Text = ""

    @property
    def says(self) -> str:
        """What is lost, as a sentence about the column."""
        if self.kind == "one value":
            return f"All synthetic rows have the same value, {printable(self.values)}: how rows differ is lost."
        if self.kind == "hidden values":
            return (
                f"Noise hides which values about {100 * self.share:.2g} % of the rows have. How many these are can "
                "be estimated, how large their values are is lost."
            )
        return (
            f"{100 * self.share:.0f} % of the synthetic values are spread evenly from {printable(self.values)}: where "
            "the real ones lie in this interval is lost."
        )

    @property
    def advice(self) -> str:
        """What to do about it, in one or two sentences."""
        if self.kind == "hidden values":
            return (
                "The other values can be used; the mean, the total and the largest values of this column cannot. Take "
                "a larger epsilon or more rows."
            )
        if self.bounds:
            return (
                f"Do not use this column. Its bounds in the schema are {printable(self.bounds)}: if real values are "
                "publicly known to lie within narrower ones, agree on these and run again; otherwise take a larger "
                "epsilon or more rows."
            )
        return (
            "Do not use this column, unless it is known to have one value. Take a larger epsilon or more rows, or "
            "leave it out."
        )


class Limitations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run's noise hides in the rows of its model, from released numbers alone.

    ``value`` and ``crossing`` are the smallest groups that stand out, in rows: twice the typical noise in a count of a
    value of one column, and of a combination of values of two; ``None`` if the run counted none. ``carried`` is among
    how many columns strong relations stand out; ``None`` where that is not known. ``warnings`` are sentences about what
    the noise drowns, and ``weakest`` are, with a warning about the number of columns, up to five whose relations are
    the weakest. ``groups`` are up to eight groups that noise hides, and ``others`` is the number of those left out.
    ``lost`` are the columns of which next to nothing is left, or of which noise hides values.
    """

    value: _Rows | None = None
    crossing: _Rows | None = None
    carried: _Count | None = None
    warnings: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=8)] = ()
    weakest: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=8)] = ()
    groups: Annotated[tuple[HiddenGroups, ...], msgspec.Meta(max_length=8)] = ()
    others: _Count = 0
    lost: Annotated[tuple[LostColumn, ...], msgspec.Meta(max_length=MOST_COLUMNS)] = ()

    @property
    def smallest(self) -> tuple[str, ...]:
        """The smallest trustworthy groups, and those that are noise alone, as two sentences; none without noise."""
        return smallest_groups(self.value, self.crossing)

    @property
    def alarm(self) -> str:
        """The lost columns by name in one sentence; "" if there are none."""
        hidden = [one.column for one in self.lost if one.kind == "hidden values"]
        gone = [one.column for one in self.lost if one.kind != "hidden values"]
        kinds = (("noise took most of what these columns held", gone), ("noise hides some values of", hidden))
        said = [f"{what}: {listed_names(names)}" for what, names in kinds if names]
        return f"{'; '.join(said)}: about.md says what to do" if said else ""

    @property
    def loud(self) -> list[str]:
        """Lines of text that are read first: lost columns, and warnings of what noise drowns."""
        lines = [
            f"{'HIDDEN' if one.kind == 'hidden values' else 'LOST'}: {printable(one.column)}: {one.says} {one.advice}"
            for one in self.lost
        ]
        return [*lines, *(f"WARNING: {printable(warning)}" for warning in self.warnings)]

    @property
    def quiet(self) -> list[str]:
        """All other lines of text: the smallest groups, and what noise hides; eleven at most."""
        lines = list(self.smallest)
        lines += [f"the weakest relations have {', '.join(map(printable, self.weakest))}"] if self.weakest else []
        lines += [f"hidden by noise: {group}" for group in self.groups]
        return lines + ([f"and {self.others} more columns or pairs"] if self.others else [])


class ModelCard(msgspec.Struct, frozen=True):
    """The facts about a fitted model that follow from releases and public facts alone.

    ``method`` names the method, ``columns`` is the number of columns and ``records`` the estimated number of real rows.
    ``headline``, ``sentence``, ``conditions`` and ``publishable`` are those of the privacy statement; "", empty and
    false without one.
    ``guarantee`` is the (epsilon, delta) of the statement, by exact accounting where that applies; ``None`` if nothing
    is guaranteed, or if a seed makes the noise known. ``unknown`` is what the guarantee hides, such as "whether any one
    row is in the data". ``held`` is the number of pairs of columns whose relation the model holds, ``None`` if it does
    not say, and ``pairs`` are up to a hundred of them, by name. ``limitations`` are ``None`` for a model whose run did
    not describe them. ``releases`` summarise the run's ledger.
    """

    method: str
    columns: int
    records: float
    headline: str = ""
    sentence: str = ""
    conditions: tuple[str, ...] = ()
    publishable: bool = False
    guarantee: tuple[float, float] | None = None
    unknown: str = ""
    held: int | None = None
    pairs: tuple[tuple[str, str], ...] = ()
    limitations: Limitations | None = None
    releases: tuple[Releases, ...] = ()

    @property
    def certainty(self) -> float:
        """How often the best attacker is right at even prior odds, 1/2 to 1; 1 if nothing is guaranteed.

        :func:`~fedsynth.privacy.cost.best_guess` has the formula and its proof.
        """
        return 1.0 if self.guarantee is None else best_guess(*self.guarantee)

    @property
    def summary(self) -> str:
        """The model in one line."""
        said = printable(self.headline) or "without a privacy statement"
        return f"Synthesizer: {self.method}, {self.columns} columns, about {self.records:,.0f} records, {said}"


def listed_names(names: Sequence[str]) -> str:
    """Return the first dozen names, printable, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(map(printable, names[:_SHOWN]))}{more}"


def smallest_groups(value: float | None, crossing: float | None) -> tuple[str, ...]:
    """Return two sentences: the smallest trustworthy groups, and those that may be noise alone; none without noise.

    ``value`` and ``crossing`` are twice the noise in a count of a value of one column, and of a combination of two, in
    rows. If the noise is normal, it is smaller than that in 19 of 20 counts, and than a fifth of a group that is
    :data:`RELIABLE` times as large.
    """
    known = [(rows, of) for rows, of in ((value, "a value of one column"), (crossing, "a crossing of two")) if rows]
    if not known:
        return ()
    large, small = (", ".join(f"{rows_text(times * rows)} for {of}" for rows, of in known) for times in (RELIABLE, 1.0))
    return (
        f"the smallest trustworthy groups: {large} (noise moves their counts by less than a fifth, in 19 of 20 cases)",
        f"the smallest groups that stand out from the noise: {small}",
    )


# ---------------------------------------------------------------------------------------------------------------------
# Printing


class Section(NamedTuple):
    """A part of a card: its title, and its items, of which an item of a list begins with a name."""

    title: str
    items: tuple[tuple[str, str], ...]
    """(name, text): the name is "" for a plain paragraph."""


def card_sections(card: ModelCard) -> list[Section]:
    """Return a card in the order in which it is read: what is lost comes first."""
    limits = card.limitations
    sections = []
    if limits is not None and limits.lost:
        lost = [(printable(one.column), f"{one.says} {one.advice}") for one in limits.lost[:_SHOWN]]
        more = [("", f"and {len(limits.lost) - _SHOWN} more columns")] if len(limits.lost) > _SHOWN else []
        sections.append(Section("What is lost", (*lost, *more)))
    if card.headline:
        sections.append(Section("What is proved", tuple(("", text) for text in _proved(card))))
    if limits is not None and (known := [*limits.smallest, *(f"noise: {printable(one)}" for one in limits.warnings)]):
        sections.append(Section("How far counts can be trusted", tuple(("", _sentence(text)) for text in known)))
    if card.columns > 1:
        sections.append(Section("Which relations of columns it holds", (("", _related(card)),)))
    if limits is not None and (hidden := _hidden(limits)):
        sections.append(Section("What noise hides", hidden))
    return sections


def card_text(card: ModelCard) -> str:
    """Return a card as text of at most 80 characters a line, with a summary of the run's ledger."""
    parts = [card.summary]
    for title, items in card_sections(card):
        lines = [f"- {name}: {text}" if name else text for name, text in items]
        parts.append("\n".join([title, "-" * len(title), *lines]))
    if card.releases:
        parts.append(releases_table(card.releases))
    return "\n\n".join(wrapped(part, _WIDTH) for part in parts)


def card_html(card: ModelCard) -> str:
    """Return a card as HTML, for notebooks."""
    parts = [f"<p><strong>{escape(card.summary)}</strong></p>"]
    for title, items in card_sections(card):
        lines = "".join(
            f"<li><strong>{escape(name)}</strong>: {escape(text)}</li>" if name else f"<li>{escape(text)}</li>"
            for name, text in items
        )
        parts.append(f"<p><strong>{title}</strong></p><ul>{lines}</ul>")
    if card.releases:
        parts.append(f"<pre>{escape(releases_table(card.releases))}</pre>")
    return "".join(parts)


def card_markdown(card: ModelCard, rows: int, table: str, missing: Mapping[str, float] | None = None) -> str:
    """Return a card as a page in Markdown that goes with ``rows`` synthetic rows in the file ``table``.

    ``missing`` has the share of missing values (0 to 1) in these rows, by column, of columns that may have some.
    """
    parts = [
        "# About this synthetic table",
        markdown(
            f"{printable(table)} has {rows:,} synthetic rows of {number_of(card.columns, 'column')}, drawn from a "
            f"model that fedsynth fitted with the method {card.method} to about {card.records:,.0f} real rows. Each "
            "row is made up. This page follows from released numbers and public facts: no real row was read for it, "
            "so it does not say how close the table is to the real rows."
        ),
    ]
    for title, items in [*card_sections(card), *([_missing(missing)] if missing else [])]:
        lines = [f"- **{markdown(name)}**: {markdown(text)}" if name else markdown(text) for name, text in items]
        listed = any(name for name, _ in items)
        parts += [f"## {title}", ("\n" if listed else "\n\n").join(lines)]
    parts += [
        "## Before it is analysed",
        "Programs that take these rows for real ones compute standard errors that are too small. A relation that is "
        "absent here may have been lost. No statement about one person follows from this table.",
    ]
    return "\n\n".join(parts) + "\n"


def _missing(shares: Mapping[str, float]) -> Section:
    """Return the section on missing values, which a site without the column has in every row."""
    most = sorted(shares, key=lambda name: -shares[name])
    items = [(printable(name), f"missing in {100 * shares[name]:.1f} % of the rows") for name in most[:_SHOWN]]
    more = [("and more", f"{len(most) - _SHOWN} columns that may have missing values")] if len(most) > _SHOWN else []
    said = (
        "a record without a value, or a site that does not record the column: it may declare the column absent, and "
        "all its rows are then missing in it. This page cannot tell which: such a declaration never leaves the site. "
        "Relations of the column are those of the rows that have it, and noise weighs more on these."
    )
    return Section("What missing values stand for", (*items, *more, ("how to read them", said)))


def certainty_text(certainty: float, unknown: str) -> str:
    """Return the guarantee as what the best attacker can know: one sentence without formulas."""
    return (
        f"Nobody who guesses {unknown}, and would be right in 50 % of cases without the table, is right in more than "
        f"{percent_up(certainty)} with it, whatever else they know and however they compute."
    )


def percent_up(share: float) -> str:
    """Return a share (0 to 1) in percent, rounded up to a tenth, so that it stays a bound."""
    return f"{math.ceil(round(1000 * share, 6)) / 10:g} %"


def _proved(card: ModelCard) -> list[str]:
    said = [] if card.guarantee is None else [certainty_text(card.certainty, card.unknown)]
    return [*said, printable(" ".join([card.sentence, *card.conditions]))]


def _related(card: ModelCard) -> str:
    every = card.columns * (card.columns - 1) // 2
    if card.held is None:
        return "This kind of model does not say which pairs of columns it relates: a neural network draws whole rows."
    if card.held == every:
        return f"The model relates all {number_of(every, 'pair')} of columns."
    named = ", ".join(f"{one} × {two}" for one, two in card.pairs[:_SHOWN])
    more = f" and {card.held - _SHOWN} more" if card.held > _SHOWN else ""
    listed = f": {named}{more}" if named else ""
    return (
        f"The model holds {card.held} of {number_of(every, 'pair')} of columns{listed}. Others are related only "
        "as far as these relate them."
    )


def _hidden(limits: Limitations) -> tuple[tuple[str, str], ...]:
    named = [(printable(group.column), group.says) for group in limits.groups]
    weakest = ", ".join(map(printable, limits.weakest))
    weak = [("the weakest relations", f"those of {weakest}")] if limits.weakest else []
    more = [("and more", f"{limits.others} columns or pairs")] if limits.others else []
    return (*weak, *named, *more)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def markdown(text: str) -> str:
    """Return a text in which no character marks up Markdown or HTML."""
    return _MARKS.sub(r"\\\g<0>", text)


def pair_names(
    related: NDArray[np.bool_] | None, names: Sequence[str]
) -> tuple[int | None, tuple[tuple[str, str], ...]]:
    """Return how many pairs of columns are related, and the names of the first hundred, in the order of columns.

    ``related`` is symmetric, shape ``(columns, columns)``; ``None`` if the model does not say, as is the number then.
    """
    if related is None:
        return None, ()
    upper = np.triu(related, 1)
    first = np.argwhere(upper)[:_PAIRS].tolist()
    return int(upper.sum()), tuple((shown(names[one]), shown(names[two])) for one, two in first)

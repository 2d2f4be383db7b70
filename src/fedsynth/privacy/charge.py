"""Charges: a question as it is charged to a book, its entry there, and what is charged after a loss."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from fedsynth.errors import InvalidParameter
from fedsynth.privacy.cost import Budget, Cost, ProtectedChange


@dataclass(frozen=True)
class Charge:
    """A question to be charged: the run and query, the cost to one person, and the limits that apply.

    * ``key``: identifies the question, one request of a run, charged once however often its messages are repeated: at a
      site the hash (hex) of the question and of the public key of the server that asks.
    * ``run``, ``step`` (its number there), ``verb`` ("sum", ...), ``kind`` (the query's class, such as "counts"),
      ``release`` (as JSON), ``trust`` (its name), ``method`` (as the run's agreement names it): written to the audit.
    * ``agreement``: the run's :class:`~fedsynth.federation.agreement.Agreement` as bytes. It is kept with the run,
      which is charged under no other; the audit has its digest.
    * ``terms``: everything on which the answer depends besides the query and the rows.
    * ``rows``: keyed digest (a hash under the site's secret) of the encoded rows that the run reads; empty if
      :meth:`Book.pin <fedsynth.privacy.book.Book.pin>` stores it only after the first charge.
    * ``cost``: to one person of the request's unit under its neighbour relation, ``change``. The site's policy demands
      at least ``least``. If the book counts for more (:attr:`~fedsynth.privacy.book.Book.change`), as much is charged
      as its own persons may pay.
    * ``total``, ``per_run``, ``own``: limits of everything ever spent here; of the run (the budget of an approved plan
      if there is one); and then the site's own of a run. All are checked, because limits with different orders
      (:attr:`Budget.order <fedsynth.privacy.cost.Budget.order>`) need not imply each other.
    * ``slots``: the questions that an approved plan grants the run in this ``group`` (those of one verb, kind and class
      of release): pairs of a cost, in the measure of ``per_run`` and to the persons of ``change``, and the number of
      questions that may cost up to that much; ``None`` if no plan is needed. A charge uses up the cheapest of the
      remaining slots that cover its cost.
    * ``stored``: the most bytes that the book will store for the question, from public facts alone; ``most_stored``:
      how many it may store for the run's questions.

    Raises :class:`InvalidParameter` for a negative or undefined cost.
    """

    key: str
    run: str
    step: int
    verb: str
    release: str
    cost: Cost
    terms: str
    total: Budget
    per_run: Budget
    change: ProtectedChange
    least: ProtectedChange
    kind: str = ""
    trust: str = ""
    method: str = ""
    agreement: bytes = b""
    rows: str = ""
    own: Budget | None = None
    group: str = ""
    slots: tuple[tuple[float, int], ...] | None = None
    stored: int = 0
    most_stored: float = math.inf

    def __post_init__(self) -> None:
        if not (self.cost.epsilon >= 0 and self.cost.rho >= 0):
            raise InvalidParameter(f"a question cannot cost {self.cost}; costs must be zero or more")

    @property
    def facts(self) -> dict[str, object]:
        """What an audit row says of the question, beside its cost."""
        names = ("key", "run", "step", "verb", "kind", "trust", "method", "terms")
        agreed = {"agreement": hashlib.sha256(self.agreement).hexdigest() if self.agreement else ""}
        release = {"release": msgspec.json.decode(self.release)}
        return {name: getattr(self, name) for name in names} | agreed | release

    @property
    def price(self) -> float:
        """The question's cost in the measure of ``slots``."""
        return self.per_run.price(self.cost)


@dataclass(frozen=True)
class Opened:
    """A question's entry in a book, which may now be answered (:meth:`~fedsynth.privacy.book.Book.begin`).

    ``row`` and ``chain`` (32 bytes) are the number and the hash of its audit row. ``charged`` is false while a secure
    sum has not come to the message that makes the site read its rows.
    """

    salt: bytes = field(repr=False)
    row: int
    chain: bytes
    charged: bool


class BegunRun(NamedTuple):
    """A run that began after a backup was made: its ``limit``, and its ``agreement`` as data, empty if unknown."""

    limit: Budget
    agreement: bytes = b""


class LostRun(NamedTuple):
    """A run whose last charges a restored backup may lack.

    ``limit`` is the most that the run may cost one person, ``spent`` what the backup knows of, and ``rest`` what
    :meth:`Book.restored <fedsynth.privacy.book.Book.restored>` charges.
    """

    run: str
    limit: Budget
    spent: Cost
    rest: Cost


@dataclass(frozen=True)
class LostCharges:
    """What is charged for all that a restored backup lacks; ``before`` is the total as the backup knows it."""

    runs: tuple[LostRun, ...]
    before: Cost

    @property
    def after(self) -> Cost:
        """The total after the restoration."""
        return sum((lost.rest for lost in self.runs), self.before)

"""A small federation with knobs: a schema, rows, questions, and a channel whose messages go wrong as a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from fedsynth.encoding import encode
from fedsynth.errors import DataWarning
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.federation import Federation
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import AnyQuery, Counts, Query
from fedsynth.federation.simulate import federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import Message
from fedsynth.federation.trust import Trust, settings_of
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.wire import AuditPosition, Reply, Request
from fedsynth.keys import Keys
from fedsynth.methods.flaim_scores import FLAIMSelection, MeasuredTables
from fedsynth.privacy.cost import Budget, Unit
from fedsynth.rows import Rows, Table
from fedsynth.schema import Categorical, Numeric, Schema
from fedsynth.schema.bins import Axis
from fedsynth.secure.site import SecureSum

SCHEMA = Schema(
    (Categorical("sex", ("f", "m")), Categorical("region", ("n", "e", "s", "w")), Numeric("age", 0, 100, bins=10))
)
SEX, REGION, AGE = 0, 1, 2
COLUMNS = 3
BUDGET = Budget(1.0, 1e-6)
TRUSTS: dict[str, Trust] = {"trusted": TrustedServer(), "local": LocalNoise(), "secure": SecureSum()}


def counts(*cliques: tuple[int, ...], weights: Sequence[int] = ()) -> Counts:
    """Return the question for contingency tables over the schema's own bins."""
    return Counts.of(COLUMNS, cliques, weights)


def table(rows: int, seed: int = 0) -> Table:
    """Return encoded rows at random."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "sex": rng.choice(["f", "m"], rows),
            "region": rng.choice(["n", "e", "s", "w"], rows, p=[0.6, 0.2, 0.1, 0.1]),
            "age": rng.uniform(0, 100, rows),
        }
    )
    return encode(SCHEMA, frame)


def tables(number: int, rows: int = 30) -> list[Table]:
    """Return the rows of several sites, of different numbers."""
    return [table(rows + 7 * k, k) for k in range(number)]


def of_strangers(held: Sequence[Table] | Mapping[str, Table]) -> Any:
    """Return the tables with a person of its own for each row, so that every unit of protection holds."""
    if isinstance(held, Mapping):
        return dict(zip(held, of_strangers(list(held.values())), strict=True))
    ends = np.cumsum([len(one) for one in held])
    ids = [np.arange(end - len(one), end, dtype=np.uint64) for one, end in zip(held, ends, strict=True)]
    return [replace(one, persons=of) for one, of in zip(held, ids, strict=True)]


def scores(steps: int = 1, records: int = 30) -> FLAIMSelection:
    """Return FLAIM's selection among the three columns and their pairs, against a uniform model."""
    sizes = SCHEMA.sizes
    ones = tuple((column,) for column in range(COLUMNS))
    candidates = (*ones, (SEX, REGION), (SEX, AGE), (REGION, AGE))
    uniform = np.concatenate([np.full(size, 1 / size) for size in sizes])
    measured = MeasuredTables(ones, 100 * uniform, np.full(COLUMNS, 3.0), 100.0, 20)
    return FLAIMSelection(
        records=records,
        candidates=candidates,
        weights=np.ones(len(candidates), dtype=np.int64),
        penalties=np.zeros(len(candidates), dtype=np.int64),
        factors=ones,
        potentials=np.log(uniform),
        measured=measured if steps > 1 else None,
        steps=steps,
        look_share=0.5 if steps > 1 else 0.0,
    )


def warned_of_empty(tables: Sequence[Table] | Mapping[str, Table]) -> AbstractContextManager[Any]:
    """Return a context in which ``federate`` must warn of sites without rows if there are any, else of nothing."""
    held = tables.values() if isinstance(tables, Mapping) else tables
    return nullcontext() if all(map(len, held)) else pytest.warns(DataWarning, match="no rows")


def contingencies(rows: Rows, cliques: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
    """Return the contingency tables of columns, by the schema's own bins."""
    axes = [Axis(column) for column in range(len(rows.schema.columns))]
    return rows.tables(axes, [tuple(clique) for clique in cliques])


def contingency(rows: Rows, clique: Sequence[int]) -> NDArray[np.int64]:
    """Return the contingency table of some columns, by the schema's own bins."""
    (table,) = contingencies(rows, [clique])
    return table


# ---------------------------------------------------------------------------------------------------------------------
# Channels

Ask = Callable[[Message], Reply]
Rule = Callable[[Message, Ask], Reply]


@dataclass
class Faulty:
    """A channel to sites in this process that notes what it carries; ``rule`` stands between the server and the sites.

    ``rule(message, ask)`` returns what the server receives: ``ask(message)``, the same changed, or
    ``message.lost(why)``; or it raises. The server's process ends before message number ``dies_at`` (from 0). Handed
    over as ``transport=channel``, it stays with its first sites when a run is started again.
    """

    rule: Rule = lambda message, ask: ask(message)
    dies_at: int | None = None
    doors: dict[str, Site] = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    exchanges: int = 0

    def __call__(self, sites: Sequence[Site]) -> Faulty:
        self.doors = self.doors or {site.name: site for site in sites}
        return self

    @property
    def sites(self) -> Sequence[str]:
        return tuple(self.doors)

    def ask(self, message: Message) -> Reply:
        reply = message.reply(self.doors[message.site].answer(message.data).data)
        self.replies.append(reply)
        return reply

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        asked = list(messages)
        self.exchanges += bool(asked)
        for message in asked:
            if self.dies_at is not None and len(self.sent) >= self.dies_at:
                raise ConnectionError("the server's process ended here")
            self.sent.append(message)
            yield self.rule(message, self.ask)

    def back(self) -> Faulty:
        """Return a channel to the same sites in which all is well."""
        return Faulty(doors=self.doors)

    @property
    def sizes(self) -> list[tuple[str, int, int]]:
        """Each answered message's site, and the bytes of message and reply."""
        pairs = zip(self.sent, self.replies, strict=True)
        return [(message.site, len(message.data), len(reply.data)) for message, reply in pairs]

    @property
    def rho(self) -> dict[str, float]:
        """What each site's own account says was spent."""
        return {name: site.account.spent().rho for name, site in self.doors.items()}

    @property
    def epsilon(self) -> dict[str, float]:
        """Likewise, of pure budgets."""
        return {name: site.account.spent().epsilon for name, site in self.doors.items()}


def losing(loses: Callable[[Message], bool]) -> Rule:
    """Messages for which ``loses`` is true are lost on their way."""
    return lambda message, ask: message.lost("it is silent") if loses(message) else ask(message)


def silent(lost: Mapping[int, Iterable[str]]) -> Rule:
    """Sites of ``lost[turn]`` are silent from that turn on."""
    return losing(lambda message: any(message.request.turn >= turn and message.site in lost[turn] for turn in lost))


def changing(change: Callable[[Message, bytes], bytes]) -> Rule:
    """The bytes of a reply are changed on their way."""
    return lambda message, ask: message.reply(change(message, ask(message).data))


# ---------------------------------------------------------------------------------------------------------------------
# Federations and questions


AGREED = Agreement("", "local", {}, 1, public_sizes=False, budget=Budget(1.0, 1e-6), unit=Unit())


def agreed(**fields: Any) -> Agreement:
    """Return an agreement of a run under local noise that protects single rows, with other fields as given."""
    return msgspec.structs.replace(AGREED, **fields)


def request_of(query: AnyQuery, **fields: Any) -> Request:
    """Return the first message of a question.

    ``fields`` are those of its head and of its agreement, or a ``plan``; ``neighbours`` stands for public sizes, and a
    ``trust`` may be given whole.
    """
    if isinstance(trust := fields.get("trust"), Trust):
        fields |= {"trust": trust.name, "trust_options": settings_of(trust)}
    if "neighbours" in fields:
        fields["public_sizes"] = fields.pop("neighbours") == "replace"
    terms = {name: fields.pop(name) for name in Agreement.__struct_fields__ if name in fields}
    return Request.of(query, fields.pop("plan", None) or agreed(**terms), **fields)


def asked(of: Site, coordinator: Keys, query: AnyQuery, **fields: Any) -> Reply:
    """Put a question (:func:`request_of`) to a site, and return its reply."""
    message = Message.of(of.name, Keys(of.secret).identity, request_of(query, **fields), coordinator, AuditPosition())
    return message.reply(of.answer(message.data).data)


def last_reason(of: Site) -> str:
    """Return what the site's steward reads of its last refusal."""
    return str(msgspec.json.decode(list(of.account.export())[-1])["reason"])


def start(
    network: Faulty | None = None,
    held: Sequence[Table] | Mapping[str, Table] | None = None,
    trust: Trust | None = None,
    budget: Budget = BUDGET,
    transcript: Path | None = None,
    **options: Any,
) -> Federation:
    """Return a seeded federation over a network: of five sites under local noise, if nothing else is said."""
    held = tables(5) if held is None else held
    if "unit" in options:
        held = of_strangers(held)
    with warned_of_empty(held):
        return federate(
            held,
            SCHEMA,
            budget,
            trust=trust or LocalNoise(),
            **{"seed": 1, "transport": network or Faulty(), "transcript": transcript, **options},
        )


def exact(query: Query, held: Iterable[Table]) -> NDArray[np.int64]:
    """Return the sum without noise, flat."""
    total: NDArray[np.int64] = np.sum([query.answer(rows) for rows in held], axis=0)
    return total

"""Real sites of three columns, and a network between them and the server that notes, loses and cuts off messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tests.tables import warned_of_empty

from fedsynth.federation.federation import Federation
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import Counts, Query
from fedsynth.federation.simulate import federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess, Message
from fedsynth.federation.trust import Trust
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.wire import Reply
from fedsynth.methods.flaim_scores import FLAIMSelection, MeasuredTables
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Numeric, Schema
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
    return SCHEMA.encode(frame)


def tables(number: int, rows: int = 30) -> list[Table]:
    """Return the rows of several sites, of different numbers."""
    return [table(rows + 7 * k, k) for k in range(number)]


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


@dataclass
class Network(InProcess):
    """Sites in this process, reached by ``transport=network``; they stay the same when a run is started again.

    A message for which ``loses`` is true is lost on its way. The server's process ends before message number
    ``dies_at`` (from 0, of each exchange counted on). ``accounts`` is the folder of durable accounts.
    """

    loses: Callable[[Message], bool] = lambda message: False
    dies_at: int | None = None
    change: Callable[[Message, bytes], bytes] = lambda message, data: data
    doors: dict[str, Site] = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    exchanges: int = 0

    def __call__(self, sites: Sequence[Site]) -> Network:
        """Reach the sites, or those that were there before."""
        self.doors = self.doors or {site.name: site for site in sites}
        super().__init__(list(self.doors.values()))
        return self

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield each site's reply."""
        asked = list(messages)
        self.exchanges += bool(asked)
        for message in asked:
            if self.dies_at is not None and len(self.sent) >= self.dies_at:
                raise ConnectionError("the server's process ended here")
            self.sent.append(message)
            if self.loses(message):
                yield message.lost("it is silent")
                continue
            data = self.change(message, self.doors[message.site].answer(message.data).data)
            self.replies.append(message.reply(data))
            yield message.reply(data)

    def back(self) -> Network:
        """Return the network once all is well again, to the same sites."""
        return Network(doors=self.doors)

    @property
    def rho(self) -> dict[str, float]:
        """What each site's own account says was spent."""
        return {name: site.account.spent().rho for name, site in self.doors.items()}

    @property
    def epsilon(self) -> dict[str, float]:
        """Likewise, of pure budgets."""
        return {name: site.account.spent().epsilon for name, site in self.doors.items()}


def silent(lost: Mapping[int, set[str]]) -> Callable[[Message], bool]:
    """Return the loss of sites: those of ``lost[turn]`` are silent from that turn on."""
    return lambda message: any(message.request.turn >= turn and message.site in names for turn, names in lost.items())


def start(
    network: Network | None = None,
    held: Sequence[Table] | Mapping[str, Table] | None = None,
    trust: Trust | None = None,
    budget: Budget = BUDGET,
    transcript: Path | None = None,
    **options: Any,
) -> Federation:
    """Return a seeded federation over a network: of five sites under local noise, if nothing else is said."""
    held = tables(5) if held is None else held
    with warned_of_empty(held):
        return federate(
            held,
            SCHEMA,
            budget,
            trust=trust or LocalNoise(),
            **{"seed": 1, "transport": network or Network(), "transcript": transcript, **options},
        )


def exact(query: Query, held: Iterable[Table]) -> NDArray[np.int64]:
    """Return the sum without noise, flat."""
    total: NDArray[np.int64] = np.sum([query.answer(rows) for rows in held], axis=0)
    return total

"""A small world for the contract suite: a schema, sites of very different rows, and transports to reach them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess, Message
from fedsynth.federation.trust import Trust
from fedsynth.federation.trust.local import LocalNoise
from fedsynth.federation.trust.secure.site import SecureSum
from fedsynth.federation.trust.trusted import TrustedServer
from fedsynth.federation.wire import Reply
from fedsynth.methods import (
    AIM,
    FLAIM,
    AdaFedPrivSyn,
    AllMarginals,
    AugFLAIM,
    AugFLAIMOracle,
    FedChowLiu,
    FedMigration,
    FedNaiveBayes,
    FedPrivSyn,
    FedTDA,
    Method,
    OneShot,
    PrivBayes,
    PrivSyn,
    RandomFLAIM,
    RandomMarginals,
)
from fedsynth.methods.generators import PGM
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Schema

SIZES = (2, 3, 4, 5)
SCHEMA = Schema(tuple(Categorical(f"c{j}", tuple(f"v{v}" for v in range(size))) for j, size in enumerate(SIZES)))

METHODS: dict[str, Method] = {
    "oneshot": OneShot(),
    "aim": AIM(rounds=3),
    "aim-annealed": AIM(),
    "flaim": FLAIM(rounds=3, rate=0.6),
    "flaim-steps": FLAIM(rounds=2, rate=0.6, steps=3),
    "augflaim": AugFLAIM(rounds=3, rate=0.6),
    "augflaim-capped": AugFLAIM(rounds=4, rate=0.6, cap=2),
    "augflaim-oracle": AugFLAIMOracle(rounds=2, rate=0.6),
    "randomflaim": RandomFLAIM(rounds=3, rate=0.6),
    "fednaivebayes": FedNaiveBayes(rate=0.6),
    "privsyn": PrivSyn(),
    "fedprivsyn": FedPrivSyn(),
    "fedprivsyn-pgm": FedPrivSyn(width=4, generator=PGM()),
    "adafedprivsyn": AdaFedPrivSyn(bound=1.0, batch=2),
    "allmarginals": AllMarginals(),
    "randommarginals": RandomMarginals(),
    "tda": FedTDA(),
    "tda-target": FedTDA(target=1),
    "fedchowliu": FedChowLiu(),
    "fedchowliu-tree": FedChowLiu(degree=1, survey_share=0.25, pair_share=0.75),
    "fedmigration": FedMigration(rounds=2, interval=3, population=12, selection=3),
    "privbayes": PrivBayes(),
}
CENTRAL = ("aim", "aim-annealed", "privsyn", "privbayes")
TRUSTS: dict[str, Trust] = {"trusted": TrustedServer(), "local": LocalNoise(), "secure": SecureSum()}


def random_table(rows: int, seed: int) -> Table:
    """Return dependent columns: each follows its predecessor most of the time."""
    rng = np.random.default_rng(seed)
    columns = [rng.integers(0, SIZES[0], rows)]
    for size in SIZES[1:]:
        noise = rng.integers(0, size, rows)
        columns.append(np.where(rng.random(rows) < 0.7, columns[-1] % size, noise))
    return Table(SCHEMA, tuple(column.astype(np.uint8) for column in columns))


def tables() -> list[Table]:
    """Return five sites: big, middling, small, one row, none."""
    return [random_table(rows, seed) for seed, rows in enumerate((400, 150, 40, 1, 0))]


@dataclass
class Watched(InProcess):
    """Notes the bytes of every reply, and loses the sites named in ``dead``; dies at exchange number ``dies_at``."""

    members: Sequence[Site]
    dead: frozenset[str] = frozenset()
    dies_at: int | None = None
    replies: list[tuple[int, str, int]] = field(default_factory=list)
    exchanges: int = 0

    def __post_init__(self) -> None:
        """Reach the members."""
        super().__init__(self.members)

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield replies, a loss for each dead site."""
        self.exchanges += 1
        for message in messages:
            if self.dies_at is not None and self.exchanges >= self.dies_at:
                raise ConnectionError("the server's process ended here")
            if message.site in self.dead:
                yield message.lost("it is silent")
                continue
            (reply,) = super().exchange([message])
            self.replies.append((message.request.head.step, message.site, len(reply.data)))
            yield reply

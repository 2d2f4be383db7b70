"""What a secure sum costs a site and the server, against a plain sum of the same tables, into docs/benchmarks.md.

python -m benchmarks.secure_sum
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import PAGE
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess, Message
from fedsynth.federation.trust import Trust
from fedsynth.federation.trust.secure.site import SecureSum
from fedsynth.federation.trust.trusted import TrustedServer
from fedsynth.federation.wire import Reply
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table
from fedsynth.runs.bench_page import write_section
from fedsynth.schema import Categorical, Schema

SIDES = (32, 100, 316, 1000)  # of a table of two columns: 1e3 to 1e6 cells
SITES = (3, 10, 30, 100)
ROWS = 2000
REPEATS = 3


@dataclass
class Metered(InProcess):
    """Counts the CPU seconds within sites, and the bytes of one site's messages."""

    members: Sequence[Site]
    seconds: float = 0.0
    down: int = 0
    up: int = 0

    def __post_init__(self) -> None:
        """Reach the members."""
        super().__init__(self.members)

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield each site's reply."""
        for message in messages:
            site = self._sites[message.site]
            began = time.process_time()
            data = site.answer(message.data)
            self.seconds += time.process_time() - began
            if site is self.members[0]:
                self.down += len(message.data)
                self.up += len(data)
            yield message.reply(data)


@dataclass(frozen=True)
class Cost:
    """CPU seconds of one sum at a site (mean over sites) and at the server; bytes that a site receives and sends."""

    site: float
    server: float
    down: int
    up: int


def cost(trust: Trust, schema: Schema, tables: Sequence[Table]) -> Cost:
    """Return what one noisy sum of the whole table costs: the best of some repeats, as the machine has other work."""
    links: list[Metered] = []

    def link(members: Sequence[Site]) -> Metered:
        links.append(Metered(members))
        return links[-1]

    federation = federate(tables, schema, Budget(1.0, 1e-6), trust=trust, seed=0, transport=link)
    query = Counts.of(len(schema.stored), [(0, 1)])
    best: list[tuple[float, float]] = []
    for _ in range(REPEATS if len(tables) * schema.sizes[0] ** 2 < 1e7 else 1):
        links[0].seconds, links[0].down, links[0].up = 0.0, 0, 0
        began = time.process_time()
        federation.sum(query, 1 / REPEATS)
        best.append((links[0].seconds / len(tables), time.process_time() - began - links[0].seconds))
    return Cost(min(site for site, _ in best), min(server for _, server in best), links[0].down, links[0].up)


def lines(sides: Sequence[int], sites: Sequence[int]) -> Iterator[str]:
    """Yield the rows of the table, biggest last."""
    rng = np.random.default_rng(0)
    yield (
        "| sites | cells | site CPU s, plain | secure | server CPU s, plain | secure | "
        "site receives, plain | secure | site sends, plain | secure |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for number in sites:
        for side in sides:
            schema = Schema(tuple(Categorical(name, tuple(range(side))) for name in "ab"))
            tables = [
                Table(schema, tuple(rng.integers(0, side, ROWS).astype(np.uint16) for _ in "ab")) for _ in range(number)
            ]
            plain, secure = (cost(trust, schema, tables) for trust in (TrustedServer(), SecureSum()))
            yield (
                f"| {number} | {side**2:,} | {plain.site:.4f} | {secure.site:.4f} | {plain.server:.4f} | "
                f"{secure.server:.4f} | {size(plain.down)} | {size(secure.down)} | {size(plain.up)} | "
                f"{size(secure.up)} |"
            )


def size(count: int) -> str:
    """Return a number of bytes in thousands."""
    return f"{count / 1000:,.1f} kB"


def main() -> None:
    """Print and write down one line per number of sites and cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write into")
    parser.add_argument("--sites", type=int, nargs="+", default=SITES)
    parser.add_argument("--sides", type=int, nargs="+", default=SIDES)
    arguments = parser.parse_args()
    rows = []
    for line in lines(arguments.sides, arguments.sites):
        print(line, flush=True)
        rows.append(line)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    text = (
        "One noisy sum of a whole table, in process, per site and at the server: five turns of messages against one. "
        f"Plain: a trusted server, which adds the noise itself. {ROWS:,} rows a site, more than half of the sites "
        "honest, nobody drops out. CPU seconds are those of protocol, noise and table, with the packing of messages "
        "and a site's account in memory. Bytes are those of the messages as they travel (uncompressed, so that their "
        f"length says nothing). Peak memory of the whole simulation: {peak:.0f} MB.\n\n"
    ) + "\n".join(rows)
    write_section(arguments.out, "secure-sum", "Secure sum", text)


if __name__ == "__main__":
    main()

"""Cost of a secure sum at a site and at the server, beside a plain sum of the same tables, into benchmarks/tables.md.

python -m benchmarks.secure_sum
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks import PAGE
from fedsynth import keys
from fedsynth.bench.page import write_section
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess, Message
from fedsynth.federation.trust import Trust
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.wire import Reply
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Schema
from fedsynth.secure.site import SecureSum

SIDES = (32, 100, 316, 1000)  # values of each of the two columns: 1e3 to 1e6 cells
SITES = (3, 10, 30, 100)
ROWS = 2000
REPEATS = 3


GROWTH = ((1000, 100), (10, 3162))  # sites, and values of each column: 1e4 and 1e7 cells


@dataclass
class Metered(InProcess):
    """In-process transport that meters CPU seconds of all sites, and CPU seconds and bytes of the first site.

    The first site is measured as if it ran in its own process: it does not share caches with the other sites.
    """

    members: Sequence[Site]
    seconds: float = 0.0
    alone: float = 0.0
    down: int = 0
    up: int = 0
    shared: dict[tuple[bytes, bytes], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Connect the members."""
        super().__init__(self.members)

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield each site's reply, metered."""
        for message in messages:
            site = self._sites[message.site]
            first = site is self.members[0]
            with self._alone() if first else nullcontext():
                began = time.process_time()
                data = site.answer(message.data).data
                took = time.process_time() - began
            self.seconds += took
            if first:
                self.alone += took
                self.down += message.size
                self.up += len(data)
            yield message.reply(data)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hide the caches of other sites: verified signatures, and keys agreed on by pairs."""
        kept = keys._shared, keys._valid
        keys._shared, keys._valid = self.shared, set()
        try:
            yield
        finally:
            keys._shared, keys._valid = kept

    def reset(self) -> None:
        """Set all meters to zero."""
        self.seconds, self.alone, self.down, self.up = 0.0, 0.0, 0, 0


@dataclass(frozen=True)
class Cost:
    """Cost of one sum: CPU seconds at a site (mean over sites) and at the server; bytes a site receives and sends."""

    site: float
    server: float
    down: int
    up: int


def cost(trust: Trust, schema: Schema, tables: Sequence[Table]) -> Cost:
    """Return the cost of one noisy sum of the whole table: the minimum over repeats, as the machine is shared."""
    links: list[Metered] = []

    def link(members: Sequence[Site]) -> Metered:
        links.append(Metered(members))
        return links[-1]

    federation = federate(tables, schema, Budget(1.0, 1e-6), trust=trust, seed=0, transport=link)
    query = Counts.of(len(schema.stored), [(0, 1)])
    best: list[tuple[float, float]] = []
    for _ in range(REPEATS if len(tables) * schema.sizes[0] ** 2 < 1e7 else 1):
        links[0].reset()
        began = time.process_time()
        federation.sum(query, 1 / REPEATS)
        best.append((links[0].seconds / len(tables), time.process_time() - began - links[0].seconds))
    return Cost(min(site for site, _ in best), min(server for _, server in best), links[0].down, links[0].up)


def lines(sides: Sequence[int], sites: Sequence[int]) -> Iterator[str]:
    """Yield the lines of the table, in ascending size."""
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


def growth(sites: int, side: int) -> str:
    """Return the line of a large secure sum: the first sum of a run, in which sites agree on keys, and the next."""
    rng = np.random.default_rng(0)
    schema = Schema(tuple(Categorical(name, tuple(range(side))) for name in "ab"))
    tables = [Table(schema, tuple(rng.integers(0, side, ROWS).astype(np.uint16) for _ in "ab")) for _ in range(sites)]
    links: list[Metered] = []

    def link(members: Sequence[Site]) -> Metered:
        links.append(Metered(members))
        return links[-1]

    federation = federate(tables, schema, Budget(1.0, 1e-6), trust=SecureSum(), seed=0, transport=link)
    query = Counts.of(len(schema.stored), [(0, 1)])
    took, alone = [], []
    for _ in range(2):
        links[0].reset()
        began = time.process_time()
        federation.sum(query, 1 / 2)
        took.append(time.process_time() - began)
        alone.append(links[0].alone)
    link_ = links[0]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    degree = SecureSum(roster={str(at): at.to_bytes(32) for at in range(sites)}).layout(sites).degree
    return (
        f"| {sites:,} | {side**2:,} | {degree} | {alone[0]:.3f} | {alone[1]:.3f} | {took[1] - link_.seconds:.2f} | "
        f"{took[0]:.1f} | {took[1]:.1f} | {size(link_.down)} | {size(link_.up)} | {peak:,.0f} MB |"
    )


def growth_lines() -> Iterator[str]:
    """Yield the lines of the table of large sums, each measured in its own process because of peak memory."""
    yield (
        "| sites | cells | neighbours | a site's CPU s, first sum of a run | next sums | server CPU s | "
        "whole simulation, first sum | next sums | site receives | site sends | peak of the simulation |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        yield from pool.map(growth, *zip(*GROWTH, strict=True))


def size(count: int) -> str:
    """Return a number of bytes as text, in kB (1000 bytes)."""
    return f"{count / 1000:,.1f} kB"


def main() -> None:
    """Measure, print, and write one line for each number of sites and cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write into")
    parser.add_argument("--sites", type=int, nargs="+", default=SITES)
    parser.add_argument("--sides", type=int, nargs="+", default=SIDES)
    arguments = parser.parse_args()
    large = []
    for line in growth_lines():
        print(line, flush=True)
        large.append(line)
    rows = []
    for line in lines(arguments.sides, arguments.sites):
        print(line, flush=True)
        rows.append(line)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    text = (
        "One noisy sum of a whole table, in process, per site and at the server: five exchanges of messages against "
        f"one. Plain: a trusted server, which adds the noise itself. {ROWS:,} rows a site, more than half of the sites "
        "honest, nobody drops out. CPU seconds are those of protocol, noise and table, with the encoding of messages "
        "and a site's account in memory. Bytes are those of the messages as sent (uncompressed, so that their "
        f"length reveals nothing). Peak memory of the whole simulation: {peak:.0f} MB.\n\n"
        + "\n".join(rows)
        + "\n\nLarge sums. Beyond 64 sites a site exchanges masks and shares with some neighbours only. A site's "
        "seconds are those of its own process, which keeps running between messages: it verifies every signature "
        "itself, and agrees on keys with each neighbour in the first sum of a run. The simulation verifies each "
        "signature once, and agrees on keys once for each pair.\n\n" + "\n".join(large)
    )
    write_section(arguments.out, "secure-sum", "Secure sum", text)


if __name__ == "__main__":
    main()

"""One party of several draws, as a process of its own: ``python -m tests.servers.draw_party PARTY CASES FD FD ...``.

``CASES`` is an ``.npz`` file with the arrays of all cases, and each case has two connections. Prints what came out.
MPyC's own `pickle` is replaced by nothing at all: whoever needs it fails.
"""

from __future__ import annotations

import json
import resource
import socket
import sys
from typing import Any

import numpy as np

from fedsynth.errors import FedsynthError
from fedsynth.privacy.noise import KeyedBits, discrete_gumbel
from fedsynth.servers import draw as draws
from fedsynth.servers.draw import Candidates, draw


class PlainLink:
    """A connection of two sockets' ends, without any protection: both processes are of one test."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(60)

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def receive(self, size: int | None = None) -> bytes:
        try:
            if size is None:
                return self.connection.recv(2**16)
            return self.connection.recv(size, socket.MSG_WAITALL)
        except OSError:
            return b""

    def finish(self) -> None:
        self.connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.connection.close()


async def opened_roots(
    mpc: Any, party: int, candidates: Candidates, shares: np.ndarray, noise: np.ndarray | None
) -> Any:
    """Open the square roots, which no draw does."""
    await mpc.parties[party].protocol
    root = await draws._roots(mpc, mpc.SecInt(draws._SECURE_BITS), shares)
    return [int(number) for number in await mpc.output(root)]


async def everything_opened(
    mpc: Any, party: int, candidates: Candidates, shares: np.ndarray, noise: np.ndarray | None
) -> Any:
    """Make the draw's own computation, and return what all openings of it showed this party.

    How many numbers there were, how many of them zero, and how often the others ended in which byte.
    """
    seen: list[int] = []
    output = mpc.output

    def noted(*args: Any, **options: Any) -> Any:
        opened = output(*args, **options)
        opened.add_done_callback(lambda done: seen.extend(numbers_in(done.result())))
        return opened

    mpc.output = noted
    index = await kept(mpc, party, candidates, shares, noise)
    seen.remove(index)
    ends = np.bincount([number & 255 for number in seen if number], minlength=256)
    return [len(seen), seen.count(0), ends.tolist()]


def many_draws(count: int, scale: float) -> Any:
    """Return a computation of the indices of ``count`` draws: by the same roots, each with new Gumbel numbers."""

    async def indices(
        mpc: Any, party: int, candidates: Candidates, shares: np.ndarray, noise: np.ndarray | None
    ) -> Any:
        await mpc.parties[party].protocol
        secint = mpc.SecInt(draws._SECURE_BITS)
        root = await draws._roots(mpc, secint, shares)
        found: list[int] = []
        for number in range(count):
            own = None
            if party in draws.NOISY:
                own = discrete_gumbel(scale, shares.shape[1], gumbel_bits(party, number))
            index = draws._largest(mpc, secint, candidates, root, own)
            found.append(int(await mpc.output(index)))
        return found

    return indices


def gumbel_bits(party: int, number: int) -> KeyedBits:
    """Return the random bits of one party's Gumbel numbers in one draw."""
    return KeyedBits(bytes([party + 1]) * 32, str(number).encode())


def numbers_in(opened: Any) -> list[int]:
    """Return the integers of whatever form MPyC opened something in."""
    if isinstance(opened, list):
        return [number for one in opened for number in numbers_in(one)]
    values = opened.value if hasattr(opened, "value") else opened
    return [int(number) for number in np.asarray(values, dtype=object).ravel()]


kept = draws._computed


def main() -> None:
    party, path, descriptors = int(sys.argv[1]), sys.argv[2], [int(text) for text in sys.argv[3:]]
    setattr(draws._load(), "pickle", None)  # noqa: B010
    found: list[Any] = []
    with np.load(path) as cases:
        for case in range(int(cases["count"])):
            others = [other for other in range(3) if other != party]
            pair = descriptors[2 * case : 2 * case + 2]
            links = {other: PlainLink(socket.socket(fileno=fd)) for other, fd in zip(others, pair, strict=True)}
            kind = str(cases[f"kind {case}"])
            draws._computed = {"roots": opened_roots, "view": everything_opened}.get(kind, kept)
            if kind.startswith("draws "):
                draws._computed = many_draws(int(kind.split()[1]), float(kind.split()[2]))
            if kind == f"away {party}":
                for link in links.values():
                    link.close()
                found.append("away")
                continue
            noise = cases.get(f"noise {case} {party}")
            candidates = Candidates(cases[f"weights {case}"], cases[f"penalties {case}"])
            try:
                found.append(draw(party, links, candidates, cases[f"shares {case} {party}"], noise, 1800.0).index)
            except FedsynthError as error:
                found.append(f"{type(error).__name__}: {error}")
    print(json.dumps({"found": found, "cpu": resource.getrusage(resource.RUSAGE_SELF).ru_utime}))


if __name__ == "__main__":
    main()

"""One draw (private selection) among three servers: from shares of squared distances to one candidate's index.

The parties hold additive shares modulo 2^128 of a squared distance S < 2^126 for each candidate: that of a table from
its expected counts. Under Shamir's scheme (threshold 1 of 3, MPyC) they compute

    r = isqrt(min(S, 2^51 - 1)),
    utility = weight * (r - penalty) * GRAIN + the Gumbel numbers of each of two parties,

exactly, in integers, and open the index of the largest utility (the first one if several are equal). Apart from this
index they only open numbers that are masked or random.

Lift. A share has a low and a high word of 64 bits. The three low words add up, as integers, to L, the high ones to H,
and S = L + 2^64 H modulo 2^128. Let u be the sum of the leading 13 bits of the low words and
v = [u >= 2^13 - 2] + [u >= 2^14 - 2], two comparisons of 16 bits; w is the same for the high words. Claim: S < 2^51 if
and only if both rest = L - v 2^64 < 2^51 and more = H + v - w 2^64 = 0, and then rest = S.

    If both hold, S = rest modulo 2^128. As -2^65 <= rest < 2^51 and 0 <= S < 2^126, S = rest.
    If S < 2^51, then L = S + a 2^64 with a in {0, 1, 2}. The bits below the leading 13 are three numbers less than
    2^51, so that L - 3 * 2^51 < u 2^51 <= L: u lies in {0}, {2^13 - 2, ..., 2^13} or {2^14 - 2, ..., 2^14} for a = 0,
    1, 2. So v = a, rest = S, and H + a = b 2^64 with b in {0, 1, 2} (it is at most 3 (2^64 - 1) + 2). The sum of the
    high words' leading 13 bits is 0 if b = 0, since then H = 0. Otherwise the three numbers below them add up to at
    most 3 * 2^51 - 3, so that the sum is at least (b 2^64 - 2 - 3 * 2^51 + 3) / 2^51 > b 2^13 - 3 and at most b 2^13:
    w = b, and more = 0.

So min(S, 2^51 - 1) is rest where both tests say so, and 2^51 - 1 elsewhere. rest and more lie between -2^65 and
3 * 2^64 + 2, so that each test is of ``_LIFT_BITS`` = 67 bits.

Square root. From here on S stands for this minimum. For j = 25, ..., 0, with D = S - r^2 and step = (2 r + 2^j) 2^j:
where D >= step, r grows by 2^j and D falls by step. Both D and step are less than 2^(j + 29), so that the comparison of
step j has j + 30 bits (at most 53).

Security. The parties follow the protocol; one of them may be curious. A comparison opens a number under a mask that
is, for each single party, at least ``_HIDING`` - 2 bits longer than the number, so the opened value is within
statistical distance 2^-60 of one that depends on no secret. A draw of n candidates makes fewer than 34 n comparisons.

MPyC sends vectors as pickles unless it is told that platforms may differ (``mix32_64bit``). With this option, which is
always set here, it sends plain numbers of a fixed length, and reading them cannot execute anything. MPyC's own
connections are not used: a :class:`Link` carries bytes to another party, and its caller must make it secure.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import struct
import sys
import threading
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import FedsynthError, InvalidParameter, Unsupported, from_extra
from fedsynth.servers.questions import GRAIN, MOST_CANDIDATES, MOST_PENALTY, MOST_WEIGHT
from fedsynth.servers.shares import LARGEST_SQUARE, SERVERS

NOISY = (0, 1)
"""The two parties that add Gumbel numbers."""
LARGEST_NOISE = 2**58

_SQUARE_BITS = 51
_ROOT_BITS = 26
_TOP_BITS = 64 - _SQUARE_BITS
_LIFT_BITS = 67
_SECURE_BITS = 68  # of a number in shares: those of the lift, and differences of utilities, which are below 2^61
_HIDING = 64  # bits by which a mask is longer than what it hides
_LARGEST_FRAME = 2**28
_NUMBER = 32
_DONE = -1  # in place of a program counter, which is a hash of 64 bits
_running = threading.Lock()  # MPyC knows one runtime in a process


class DrawFailed(FedsynthError):
    """Raised if a draw (:func:`draw`) could not be finished, so that this party has no result."""


class Link(Protocol):
    """A connection to another server in a joint draw (:func:`draw`): bytes arrive in order, and from it alone."""

    def send(self, data: bytes) -> None:
        """Send bytes; raise :class:`OSError` if the connection is broken."""

    def receive(self, size: int | None = None) -> bytes:
        """Wait for bytes and return them, exactly ``size`` if given; fewer or none if the connection ended."""

    def finish(self) -> None:
        """Tell the other party that nothing more will be sent."""

    def close(self) -> None:
        """Close the connection; a pending :meth:`receive` returns no bytes."""


@dataclass(frozen=True)
class Drawn:
    """Result of :func:`draw` at one party: the drawn candidate's ``index``, and how many bytes the party ``sent``."""

    index: int
    sent: int


@dataclass(frozen=True, eq=False)
class Candidates:
    """The public part of a draw (:func:`draw`): a weight in [1, 2^16] and a penalty in [0, 2^25] for each candidate.

    Both arrays have shape (candidates,), with at most :data:`MOST_CANDIDATES`. Other numbers raise
    :class:`InvalidParameter`: a utility that wraps would reveal a threshold.
    """

    weights: NDArray[np.int64]
    penalties: NDArray[np.int64]

    def __post_init__(self) -> None:
        size = self.weights.size
        if not 1 <= size <= MOST_CANDIDATES or {self.weights.shape, self.penalties.shape} != {(size,)}:
            raise InvalidParameter(f"a draw needs a weight and a penalty for each of 1 to {MOST_CANDIDATES} candidates")
        if int(self.weights.min()) < 1 or int(self.weights.max()) > MOST_WEIGHT:
            raise InvalidParameter(f"the weights of a draw must lie in [1, {MOST_WEIGHT}]")
        if int(self.penalties.min()) < 0 or int(self.penalties.max()) > MOST_PENALTY:
            raise InvalidParameter(f"the penalties of a draw must lie in [0, {MOST_PENALTY}]")


def draw(
    party: int,
    links: Mapping[int, Link],
    candidates: Candidates,
    shares: NDArray[np.uint64],
    noise: NDArray[np.int64] | None,
    timeout: float = 600.0,
) -> Drawn:
    """Take part in a joint private selection as ``party`` (0, 1 or 2); return the index that all three parties get.

    ``shares`` are this party's additive shares (modulo 2^128, shape (2, candidates): low and high words) of the squared
    distances, of which those from 2^51 on count as 2^51 - 1. ``noise`` holds the Gumbel number that this party adds for
    each candidate, in units of 1 / ``GRAIN`` weighted record; ``None`` means zeros, and party 2 must give ``None``.
    ``links`` are the connections to the other two parties, by their numbers; they are closed at the end, however it
    ends once the arguments are accepted. Draws of one process wait for each other.

    Raises :class:`DrawFailed` if a party is lost, or if the draw takes longer than ``timeout`` seconds once all three
    have begun, :class:`InvalidParameter` for arguments that do not fit each other, and :class:`Unsupported` for noise
    beyond :data:`LARGEST_NOISE`, or without MPyC.
    """
    size = candidates.weights.size
    if shares.shape != (2, size) or (noise is not None and noise.shape != (size,)):
        raise InvalidParameter(
            f"a draw of {size} candidates needs {size} shares and, at parties 0 and 1, {size} Gumbel numbers"
        )
    if (noise is not None and party not in NOISY) or set(links) != set(range(SERVERS)) - {party}:
        raise InvalidParameter("only parties 0 and 1 of a draw add noise, and each party needs links to the two others")
    if noise is not None and int(np.abs(noise).max()) > LARGEST_NOISE:
        raise Unsupported("the noise of a draw is too large for its arithmetic; spend more budget on the draw")
    try:
        with _running, asyncio.Runner() as runner:
            return runner.run(_drawn(party, links, candidates, shares, noise, timeout))
    except RuntimeError as error:  # MPyC stops the loop if one of its steps fails
        raise DrawFailed(f"the draw was interrupted ({error})") from error
    finally:
        for link in links.values():
            link.close()


async def _drawn(
    party: int,
    links: Mapping[int, Link],
    candidates: Candidates,
    shares: NDArray[np.uint64],
    noise: NDArray[np.int64] | None,
    timeout: float,
) -> Drawn:
    """Run the protocol in the running event loop until it is done or a link breaks."""
    await asyncio.to_thread(_meet, party, links)
    mpc = _runtime(party)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)  # of steps that are given up: what failed is awaited below
    broken: asyncio.Future[None] = loop.create_future()
    ends = [_End(mpc, party, other, link, loop, broken) for other, link in links.items()]
    computing = asyncio.ensure_future(_computed(mpc, party, candidates, shares, noise))
    awaited: set[asyncio.Future[Any]] = {computing, broken}
    await asyncio.wait(awaited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    if not computing.done():
        why = broken.exception() if broken.done() else None
        raise why or DrawFailed(f"the draw took longer than {timeout:g} seconds")
    index = computing.result()
    for end in ends:  # the others may still need what is on its way: a connection is closed when both have finished
        end.finish()
    for end in ends:
        await asyncio.to_thread(end.reader.join, timeout)
    return Drawn(index, sum(end.exchanger.nbytes_sent for end in ends))


def _meet(party: int, links: Mapping[int, Link]) -> None:
    """Make sure that all links belong to the same attempt at a draw, even if the coordinator mixes attempts.

    Each party sends a fresh random number, then a digest of all three, so messages of different attempts never mix.
    """
    numbers = {party: os.urandom(_NUMBER)}
    for said in ("number", "digest"):
        own = numbers[party] if said == "number" else _digest(numbers)
        for other, link in links.items():
            _send(other, link, own)
        for other, link in links.items():
            heard = link.receive(_NUMBER)
            if len(heard) < _NUMBER:
                raise DrawFailed(f"server {other + 1} is lost")
            if said == "number":
                numbers[other] = heard
            elif heard != own:
                raise DrawFailed(f"server {other + 1} is in another attempt at this draw")


def _digest(numbers: Mapping[int, bytes]) -> bytes:
    return hashlib.sha256(b"".join(numbers[party] for party in range(SERVERS))).digest()


def _send(other: int, link: Link, data: bytes) -> None:
    try:
        link.send(data)
    except OSError as error:
        raise DrawFailed(f"server {other + 1} is lost ({error})") from error


async def _computed(
    mpc: Any, party: int, candidates: Candidates, shares: NDArray[np.uint64], noise: NDArray[np.int64] | None
) -> int:
    """Return the index that is drawn: the protocol itself."""
    await mpc.parties[party].protocol  # until all are connected
    secint = mpc.SecInt(_SECURE_BITS)
    root = await _roots(mpc, secint, shares)
    return int(await mpc.output(_largest(mpc, secint, candidates, root, noise)))


def _largest(mpc: Any, secint: Any, candidates: Candidates, root: Any, noise: NDArray[np.int64] | None) -> Any:
    """Return the index, still secret, of the largest utility once both parties have added their Gumbel numbers."""
    utility = (root - candidates.penalties.astype(object)) * (candidates.weights.astype(object) * GRAIN)
    added = np.zeros(candidates.weights.size, dtype=object) if noise is None else noise.astype(object)
    for gumbel in mpc.input(secint.array(added), senders=list(NOISY)):
        utility = utility + gumbel
    return mpc.np_argmax(utility)


async def _roots(mpc: Any, secint: Any, shares: NDArray[np.uint64]) -> Any:
    """Return the integer square roots, still secret, of the numbers whose shares these are, or of 2^51 - 1 if less."""
    size = shares.shape[1]
    own = np.concatenate((shares, shares >> np.uint64(_SQUARE_BITS))).ravel().astype(object)
    total = sum(mpc.input(secint.array(own)))
    low, high, tops = total[:size], total[size : 2 * size], total[2 * size :]
    edges = np.repeat([2**_TOP_BITS - 2, 2 * 2**_TOP_BITS - 2], 2 * size).astype(object)
    below = mpc.np_sgn(np.concatenate((tops, tops)) - edges, l=_TOP_BITS + 3, LT=True)
    wraps = 2 - below[: 2 * size] - below[2 * size :]
    rest, more = low - wraps[:size] * 2**64, high + wraps[:size] - wraps[size:] * 2**64
    small = mpc.np_sgn(rest - 2**_SQUARE_BITS, l=_LIFT_BITS, LT=True) * mpc.np_sgn(more, l=_LIFT_BITS, EQ=True)
    rest = small * (rest - LARGEST_SQUARE) + LARGEST_SQUARE
    root: Any = np.zeros(size, dtype=object)
    for digit in reversed(range(_ROOT_BITS)):
        step = (root * 2 + 2**digit) * 2**digit
        fits = 1 - mpc.np_sgn(rest - step, l=min(digit + 30, _SQUARE_BITS + 2), LT=True)
        root = root + fits * 2**digit
        rest = rest - fits * step
        await mpc.gather(rest)  # one digit after the other: random bits for all of them would fill the memory
    return root


class _End:
    """This party's end of a link in the form that MPyC needs: writes go to the link, a thread reads from it."""

    def __init__(
        self,
        mpc: Any,
        party: int,
        other: int,
        link: Link,
        loop: asyncio.AbstractEventLoop,
        broken: asyncio.Future[None],
    ) -> None:
        """Start reading; the party with the lower number introduces itself and sends keys for common randomness."""
        self.link, self._other, self._loop, self._broken = link, other, loop, broken
        # MPyC is told who a peer is by the peer of the lower number, and believes it: compared in `_take`.
        self.exchanger = _load().asyncoro.MessageExchanger(mpc, other if party < other else None)
        self.exchanger.connection_made(self)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def write(self, data: bytes) -> None:
        try:
            self.link.send(data)
        except OSError as error:
            self._fail(f"server {self._other + 1} is lost ({error})")

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def _read(self) -> None:
        try:
            while data := self.link.receive():
                self._loop.call_soon_threadsafe(self._take, data)
            self._loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # the loop is closed: the draw is over, whichever way
            return

    def _take(self, data: bytes) -> None:
        if self._broken.done():
            return
        self.exchanger.data_received(data)
        held = self.exchanger.bytes
        if self.exchanger.peer_pid not in (None, self._other):
            self._fail(f"server {self._other + 1} claimed to be another server")
        elif len(held) >= 12 and struct.unpack_from("<qI", held)[1] > _LARGEST_FRAME:
            self._fail(f"server {self._other + 1} announced a message that is too large")

    def finish(self) -> None:
        """Tell the other party that this one has its result and sends nothing more."""
        self.exchanger.send(_DONE, b"")
        self.link.finish()

    def _end(self) -> None:
        if _DONE not in self.exchanger.buffers:  # it has not finished
            self._fail(f"server {self._other + 1} is lost")

    def _fail(self, why: str) -> None:
        if not self._broken.done():
            self._broken.set_exception(DrawFailed(why))
            self._broken.exception()  # once the draw is done, nobody asks why a link ended


@lru_cache(maxsize=1)
def _load() -> ModuleType:
    """Import MPyC without letting it read the command line and set up logging, which it does on import."""
    words, sys.argv = sys.argv, ["mpyc", "--no-log", "--no-uvloop"]
    logging.disable(logging.INFO)
    try:
        with from_extra("mpc", "compute servers need MPyC"):
            import mpyc.runtime
    finally:
        sys.argv = words
        logging.disable(logging.NOTSET)
    module: ModuleType = mpyc.runtime
    return module


def _runtime(party: int) -> Any:
    """Return a fresh runtime for one draw, and make it the one that MPyC's types compute with.

    Its program counter starts at 0 and the parties' common randomness is new, so nothing of an interrupted draw is used
    again.
    """
    module = _load()
    options = Namespace(**vars(module.mpc.options))
    options.__dict__.update(threshold=1, no_async=False, no_prss=False, mix32_64bit=True, sec_param=_HIDING)
    mpc = module.Runtime(party, [module.Party(pid) for pid in range(SERVERS)], options)
    for name in ("sectypes", "asyncoro", "mpctools"):
        getattr(module, name).runtime = mpc
    for name in ("seclists", "secpols", "secgroups", "random", "statistics"):
        getattr(module.mpyc, name).runtime = mpc
    mpc.parties[party].protocol = asyncio.get_running_loop().create_future()
    return mpc

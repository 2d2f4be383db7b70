"""Who adds the noise, and who may see what: a value handed to the federation.

A trust decides two things: what a site sends in reply to a statistic (:meth:`Trust.answer`), and how the server
turns the replies into the released sum (:meth:`Trust.session`), in one message to each site or in several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import FedsynthError, SiteLost, Unsupported
from fedsynth.federation.wire import Reply, Request
from fedsynth.privacy import noise
from fedsynth.privacy.release import Exact, Gaussian, Laplace, Public, Release, Sensitivity

Counts = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]


class Desk(Protocol):
    """What a trust may use of the site that it answers for, for one question."""

    @property
    def name(self) -> str:
        """Name of the site."""

    @property
    def identity(self) -> bytes:
        """Seed (32 bytes) of the key that the site signs with; never leaves."""

    def statistic(self) -> tuple[Counts, Sensitivity]:
        """Charge the question to the site's ledger (once), and return its exact answer and sensitivity."""

    def bits(self, purpose: str) -> noise.RandomBits:
        """Return random bits bound to the site's secret, the question, the rows and the purpose."""

    def key(self, purpose: str) -> bytes:
        """Return 32 secret bytes bound likewise."""

    def first(self, part: str, value: bytes) -> bytes:
        """Return what this part of the question's session was first, durably: ``value``, if it was not said yet."""

    def said(self, part: str) -> bytes | None:
        """Return what this part of the question's session was, if it was said."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """A released sum: flat values, the noise's standard deviation in each, and the sites that are in it."""

    values: Counts
    std: float
    sites: tuple[str, ...]


class Session(Protocol):
    """One sum at the server: whom to ask what next, what they reply, and at the end the released sum."""

    def ask(self) -> Mapping[str, Request]:
        """Return the next turn's message to each site, after the last turn's replies; nothing when there is none."""

    def hear(self, reply: Reply) -> None:
        """Take in one site's answer, or raise :class:`FedsynthError`; a site that is not heard in a turn is lost."""

    def result(self) -> Outcome | None:
        """Return the sum, ``None`` if nobody answered at all; raise :class:`SiteLost` if too few went through."""


class Trust(Protocol):
    """The seam between a method and whoever has to be trusted."""

    @property
    def name(self) -> str:
        """Name in requests, policies and on the command line."""

    @property
    def confidential(self) -> bool:
        """Whether a site's contribution is itself secret (and must not be written down by the server)."""

    @property
    def turns(self) -> int:
        """Messages that a sum takes to each site."""

    @property
    def assumption(self) -> str:
        """What the guarantee rests on beside the sites' own noise; empty if nothing."""

    def among(self, roster: Mapping[str, bytes]) -> Trust:
        """Return the trust among these sites: their names and public identity keys."""

    def answer(self, request: Request, desk: Desk) -> Arrays:
        """Return what leaves the site: ``values`` (int64) in place of the answer, or the arrays of another turn."""

    def session(
        self,
        request: Request,
        sites: Sequence[str],
        sensitivity: Sensitivity,
        bits: Callable[[Counts], noise.RandomBits],
    ) -> Session:
        """Return one sum over ``sites``; ``bits(exact)`` gives the server's noise source for an exact sum."""

    def std(self, release: Release, sensitivity: Sensitivity, sites: int) -> float:
        """Return the standard deviation of the noise in each cell of a sum over ``sites`` sites."""

    def vault(self, contributions: Iterable[Counts]) -> Counts:
        """Return a sum that only a vault may hold, or raise :class:`Unsupported`."""


@dataclass(eq=False)
class OneMessage:
    """A sum that takes one message: ``finish`` turns the total into what is released, ``std(sites)`` says how exact."""

    request: Request
    sites: tuple[str, ...]
    finish: Callable[[Counts], Counts]
    std: Callable[[int], float]
    _asked: bool = False
    _total: Counts | None = None
    _heard: list[str] = field(default_factory=list)

    def ask(self) -> Mapping[str, Request]:
        """Return the question, once."""
        if self._asked:
            return {}
        self._asked = True
        return dict.fromkeys(self.sites, self.request)

    def hear(self, reply: Reply) -> None:
        """Add up; no more than two vectors are held."""
        if reply.values is None:
            raise FedsynthError(f"site {reply.site} sent no numbers; install the same fedsynth version everywhere")
        self._total = reply.values.copy() if self._total is None else np.add(self._total, reply.values, out=self._total)
        self._heard.append(reply.site)

    def result(self) -> Outcome | None:
        """Return the released sum, or ``None`` if nobody answered."""
        if self._total is None:
            return None
        return Outcome(self.finish(self._total), self.std(len(self._heard)), tuple(self._heard))


def add_noise(answer: Counts, release: Release, sensitivity: Sensitivity, bits: noise.RandomBits) -> Counts:
    """Return ``answer`` plus the noise that ``release`` stands for; exact integers throughout.

    Raises :class:`Unsupported` for a release that is not a noisy sum.
    """
    match release:
        case Gaussian():
            return answer + noise.discrete_gaussian(release.sigma(sensitivity), answer.size, bits)
        case Laplace():
            return answer + noise.discrete_laplace(release.scale(sensitivity), answer.size, bits)
        case Exact() | Public():
            return answer
        case _:
            raise Unsupported(f"a sum cannot be released as {release}; use Gaussian or Laplace")


def noise_std(release: Release, sensitivity: Sensitivity) -> float:
    """Return the standard deviation of the noise that :func:`add_noise` adds to each cell."""
    match release:
        case Gaussian():
            return release.sigma(sensitivity)  # the discrete law's deviation is never larger (arXiv 2004.00010, cor. 9)
        case Laplace():
            return float(np.sqrt(2.0)) * release.scale(sensitivity)  # likewise: the discrete law's is smaller
        case Exact() | Public():
            return 0.0
        case _:
            raise Unsupported(f"a sum cannot be released as {release}; use Gaussian or Laplace")


def total(contributions: Iterable[Counts]) -> Counts:
    """Return the sum of at least one contribution, holding no more than two in memory."""
    result: Counts | None = None
    for contribution in contributions:
        result = contribution.copy() if result is None else np.add(result, contribution, out=result)
    if result is None:
        raise SiteLost("no site answered; check that the sites run, then start the run again: it resumes")
    return result

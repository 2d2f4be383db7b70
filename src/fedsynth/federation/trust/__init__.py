"""Who adds the noise, and who may see what: a value handed to the federation.

A trust decides two things: what a site sends in answer to a sum (:meth:`Trust.answer`), and how the server turns the
answers into the released sum (:meth:`Trust.aggregation`), in one turn or in several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from fedsynth.errors import FedsynthError, Unsupported
from fedsynth.federation.events import Answer, Event, Values
from fedsynth.federation.query import MOST_ROWS
from fedsynth.privacy import noise
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.release import Exact, Gaussian, Laplace, Public, Release
from fedsynth.schema.bins import Integers

if TYPE_CHECKING:
    from fedsynth.federation.query import Query
    from fedsynth.federation.vault import Vault, VaultTerms
    from fedsynth.privacy.cost import Budget, Neighbours, Unit
    from fedsynth.schema import Schema


class SiteTurn(Protocol):
    """One turn of one question at a site: what a trust may use of the site that it answers for."""

    @property
    def name(self) -> str:
        """Name of the site."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the question, terms included."""

    @property
    def identity(self) -> bytes:
        """Seed (32 bytes) of the key that the site signs with; never leaves."""

    @property
    def release(self) -> Release:
        """The price, and with it the law of the noise."""

    @property
    def norms(self) -> Norms:
        """How far one person moves what noise is added to: this site's answer, or the sum over all sites."""

    def statistic(self, most: int = MOST_ROWS) -> Integers:
        """Return the exact answer; the question must be charged by this turn, and fails beyond ``most`` rows."""

    def bits(self, purpose: str) -> noise.RandomBits:
        """Return random bits bound to the site's secret, the salt of the question, its terms and the purpose."""

    def key(self, purpose: str) -> bytes:
        """Return 32 secret bytes bound likewise."""

    def run_key(self, purpose: str) -> bytes:
        """Return 32 secret bytes bound to the site's secret, the question's run, its salt and the purpose."""

    def first(self, part: str, value: bytes) -> bytes:
        """Return what this part of the question's session was first, durably: ``value``, if it was not said yet."""

    def said(self, part: str) -> bytes | None:
        """Return what this part of the question's session was, if it was said."""


class Released(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """A released sum as it is written down: whose it is, the noise's standard deviation, and the integers."""

    sites: tuple[str, ...]
    std: float
    values: Integers


class Aggregation(Protocol):
    """One sum at the server: whom to ask what next, what they answer, and at the end the released sum."""

    def ask(self) -> Mapping[str, Event | None]:
        """Return the next turn's event for each site, after the last turn's answers; nothing when there is none."""

    def hear(self, site: str, answer: Answer) -> None:
        """Take in one site's answer, or raise :class:`FedsynthError`; a site that is not heard in a turn is lost."""

    def result(self) -> Released | None:
        """Return the sum, ``None`` if nobody answered at all; raise :class:`SiteLost` if too few went through."""


@dataclass(frozen=True)
class SimulationTerms:
    """What a simulation is about, for whoever takes part beside its sites and the server; ``coordinator`` is public."""

    schema: Schema
    budget: Budget
    unit: Unit
    neighbours: Neighbours
    coordinator: bytes


class Trust(Protocol):
    """The seam between a method and whoever has to be trusted."""

    @property
    def name(self) -> str:
        """Name in requests, policies and on the command line."""

    @property
    def confidential(self) -> bool:
        """Whether a site's answer to a sum is itself secret: it is sealed for the coordinator."""

    @property
    def deposits(self) -> bool:
        """Whether sites answer deposits: somebody holds exact sums, or shares of them."""

    @property
    def pooled(self) -> bool:
        """Whether noise is added to the sum over sites, rather than by each site to its own answer in full."""

    @property
    def turns(self) -> int:
        """Messages that a sum takes to each site."""

    @property
    def reads(self) -> int:
        """The turn in which a site reads its rows."""

    @property
    def terms(self) -> str:
        """What a site's answer depends on beside the question: its own settings of this trust, as text."""

    @property
    def assumption(self) -> str:
        """What the guarantee rests on beside the sites' own noise; empty if nothing."""

    def among(self, roster: Mapping[str, bytes]) -> Trust:
        """Return the trust among these sites: their names and public identity keys."""

    def in_process(self, secret: Callable[[str], bytes], terms: SimulationTerms) -> Trust:
        """Return the trust with whoever it takes beside sites and server in this process, for a simulation.

        ``secret(name)`` gives 32 secret bytes for whoever has that name.
        """

    def answer(self, site: SiteTurn, turn: int, event: Event | None) -> Answer:
        """Return what leaves the site in one turn of a sum; raise :class:`Refused` for an event out of turn."""

    def deposit(self, site: SiteTurn, query: Query) -> Answer:
        """Return what leaves the site in answer to a deposit; raise :class:`Refused` where nobody can hold it."""

    def aggregation(
        self,
        digest: str,
        release: Release,
        norms: Norms,
        sites: Sequence[str],
        bits: Callable[[Integers], noise.RandomBits],
    ) -> Aggregation:
        """Return one sum over ``sites`` for the question of that digest.

        ``bits(exact)`` gives the server's own noise source for an exact sum, where the server adds the noise.
        """

    def std(self, release: Release, norms: Norms, sites: int) -> float:
        """Return the standard deviation of the noise in each cell of a sum over ``sites`` sites."""

    def vault(self, terms: VaultTerms) -> Vault | None:
        """Return an empty vault for deposits under these terms; ``None`` where nobody can hold exact sums."""


@dataclass(eq=False)
class OneMessage:
    """A sum that takes one turn: ``finish`` turns the total into what is released, ``std(sites)`` says how exact."""

    sites: tuple[str, ...]
    finish: Callable[[Integers], Integers]
    std: Callable[[int], float]
    _asked: bool = False
    _total: Integers | None = None
    _heard: list[str] = field(default_factory=list)

    def ask(self) -> Mapping[str, Event | None]:
        """Ask every site, once."""
        if self._asked:
            return {}
        self._asked = True
        return dict.fromkeys(self.sites)

    def hear(self, site: str, answer: Answer) -> None:
        """Add up; no more than two vectors are held."""
        values = values_of(site, answer)
        self._total = values.copy() if self._total is None else np.add(self._total, values, out=self._total)
        self._heard.append(site)

    def result(self) -> Released | None:
        """Return the released sum, or ``None`` if nobody answered."""
        if self._total is None:
            return None
        return Released(tuple(self._heard), self.std(len(self._heard)), self.finish(self._total))


def values_of(site: str, answer: Answer) -> Integers:
    """Return the integers of an answer; raise :class:`FedsynthError` for one that has none."""
    if not isinstance(answer, Values) or answer.values.ndim != 1:
        raise FedsynthError(f"site {site} sent no numbers; install the same fedsynth version everywhere")
    return answer.values


def add_noise(answer: Integers, release: Release, norms: Norms, bits: noise.RandomBits) -> Integers:
    """Return ``answer`` plus the noise that ``release`` stands for; exact integers throughout.

    Raises :class:`Unsupported` for a release that is not a noisy sum.
    """
    match release:
        case Gaussian() if norms.l2 > 0:
            return answer + noise.discrete_gaussian(release.sigma(norms.l2), answer.size, bits)
        case Laplace() if norms.l1 > 0:
            return answer + noise.discrete_laplace(release.scale(norms.l1), answer.size, bits)
        case Exact() | Public() | Gaussian() | Laplace():  # what nobody can move needs no noise
            return answer
        case _:
            raise Unsupported(f"a sum cannot be released as {release}; use Gaussian or Laplace")


def noise_std(release: Release, norms: Norms) -> float:
    """Return the standard deviation of the noise that :func:`add_noise` adds to each cell."""
    match release:
        case Gaussian():
            return release.sigma(norms.l2)  # the discrete law's deviation is never larger (arXiv 2004.00010, cor. 9)
        case Laplace():
            return float(np.sqrt(2.0)) * release.scale(norms.l1)  # likewise: the discrete law's is smaller
        case Exact() | Public():
            return 0.0
        case _:
            raise Unsupported(f"a sum cannot be released as {release}; use Gaussian or Laplace")

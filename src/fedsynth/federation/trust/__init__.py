"""Trust models: the protocols that decide who adds the noise and who may see exact counts.

A trust model defines a site's answer to a sum (:meth:`Trust.answer`), and how the server turns the answers into the
released sum (:meth:`Trust.aggregation`), in one turn or in several.
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
    """One turn of one question at a site: the parts of the site that a trust model may use."""

    @property
    def name(self) -> str:
        """Name of the site."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the question, terms included."""

    @property
    def identity(self) -> bytes:
        """Seed (32 bytes) of the site's signing key; never leaves the site."""

    @property
    def release(self) -> Release:
        """The release: the price and the distribution of the noise."""

    @property
    def norms(self) -> Norms:
        """Sensitivity to one person of the vector that noise is added to: this site's answer, or the sum over sites."""

    def statistic(self, most: int = MOST_ROWS) -> Integers:
        """Return the exact answer, which charges the question if it is not charged yet; fails beyond ``most`` rows."""

    def bits(self, purpose: str) -> noise.RandomBits:
        """Return random bits bound to the site's secret, the salt of the question, its terms and the purpose."""

    def key(self, purpose: str) -> bytes:
        """Return 32 secret bytes, bound in the same way as :meth:`bits`."""

    def run_key(self, purpose: str) -> bytes:
        """Return 32 secret bytes bound to the site's secret, the question's run, its salt and the purpose."""

    def first(self, part: str, value: bytes) -> bytes:
        """Durably store ``value`` for this part of the session unless there is one, and return the stored value."""

    def said(self, part: str) -> bytes | None:
        """Return the stored value of this part of the question's session, if any."""


class Released(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """A released sum as recorded: the sites in it, the noise's standard deviation, and the integers."""

    sites: tuple[str, ...]
    std: float
    values: Integers


class Aggregation(Protocol):
    """The server's side of one sum: it makes the events for sites, takes their answers, and returns the sum."""

    def ask(self) -> Mapping[str, Event | None]:
        """Return the next turn's event for each site, after the last turn's answers; empty when the sum is complete."""

    def hear(self, site: str, answer: Answer) -> None:
        """Take in one site's answer, or raise :class:`FedsynthError`; a site without answer in a turn drops out."""

    def result(self) -> Released | None:
        """Return the sum, ``None`` if no site answered; raise :class:`SiteLost` if too few completed all turns."""


@dataclass(frozen=True)
class SimulationTerms:
    """Terms of a simulation, for parties other than its sites and server; ``coordinator`` holds its public keys."""

    schema: Schema
    budget: Budget
    unit: Unit
    neighbours: Neighbours
    coordinator: bytes


class Trust(Protocol):
    """A trust model: the protocol between the server, the sites and any further parties."""

    @property
    def name(self) -> str:
        """Name in requests, policies and on the command line."""

    @property
    def confidential(self) -> bool:
        """Whether a site's answer to a sum is exact, and must therefore be encrypted for the coordinator."""

    @property
    def deposits(self) -> bool:
        """Whether sites may deposit exact tables with a party that keeps their sums, or secret shares of the sums."""

    @property
    def pooled(self) -> bool:
        """Whether noise is added to the sum over sites, rather than by each site to its own answer in full."""

    @property
    def turns(self) -> int:
        """Number of turns of a sum, each of which sends one message to each site."""

    @property
    def reads(self) -> int:
        """The turn in which a site reads its rows."""

    @property
    def terms(self) -> str:
        """The site's own settings of this trust model, as text; its answers depend on these settings too."""

    @property
    def assumption(self) -> str:
        """The assumption about other parties on which the guarantee depends, as text; empty if there is none."""

    def among(self, roster: Mapping[str, bytes]) -> Trust:
        """Return the trust model for these sites, given their public identity keys by name."""

    def in_process(self, secret: Callable[[str], bytes], terms: SimulationTerms) -> Trust:
        """Return the trust model for a simulation, with any further parties created in this process.

        ``secret(name)`` gives 32 secret bytes for the party of that name.
        """

    def answer(self, site: SiteTurn, turn: int, event: Event | None) -> Answer:
        """Return a site's answer in one turn of a sum; raise :class:`Refused` for an event out of turn."""

    def deposit(self, site: SiteTurn, query: Query) -> Answer:
        """Return a site's answer to a deposit; raise :class:`Refused` if this trust model has no deposits."""

    def aggregation(
        self,
        digest: str,
        release: Release,
        norms: Norms,
        sites: Sequence[str],
        bits: Callable[[Integers], noise.RandomBits],
    ) -> Aggregation:
        """Return the server's side of one sum over ``sites``; ``digest`` is that of its question.

        ``bits(exact)`` gives the server's own noise source for an exact sum, where the server adds the noise.
        """

    def std(self, release: Release, norms: Norms, sites: int) -> float:
        """Return the standard deviation of the noise in each cell of a sum over ``sites`` sites.

        ``release`` is the kind and price of the noise; ``norms`` bound how far one person moves the sum.
        """

    def vault(self, terms: VaultTerms) -> Vault | None:
        """Return an empty vault for deposits under these terms; ``None`` if no party can hold exact sums."""


@dataclass(eq=False)
class OneMessage:
    """A sum in one turn: ``finish`` turns the total into the release, ``std(sites)`` gives its noise."""

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
        """Add the answer to the total, so that memory holds two vectors at most."""
        values = values_of(site, answer)
        self._total = values.copy() if self._total is None else np.add(self._total, values, out=self._total)
        self._heard.append(site)

    def result(self) -> Released | None:
        """Return the released sum, or ``None`` if nobody answered."""
        if self._total is None:
            return None
        return Released(tuple(self._heard), self.std(len(self._heard)), self.finish(self._total))


def values_of(site: str, answer: Answer) -> Integers:
    """Return the integers of an answer; raise :class:`FedsynthError` if it has none."""
    if not isinstance(answer, Values) or answer.values.ndim != 1:
        raise FedsynthError(f"site {site} sent no numbers; install the same fedsynth version everywhere")
    return answer.values


def add_noise(answer: Integers, release: Release, norms: Norms, bits: noise.RandomBits) -> Integers:
    """Return ``answer`` plus the noise of ``release``; exact integers throughout.

    Raises :class:`Unsupported` for a release that is not a noisy sum.
    """
    match release:
        case Gaussian() if norms.l2 > 0:
            return answer + noise.discrete_gaussian(release.sigma(norms.l2), answer.size, bits)
        case Laplace() if norms.l1 > 0:
            return answer + noise.discrete_laplace(release.scale(norms.l1), answer.size, bits)
        case Exact() | Public() | Gaussian() | Laplace():  # zero sensitivity needs no noise
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

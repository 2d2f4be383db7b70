"""The trusted server, which sees every site's exact counts: the central model of differential privacy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedsynth.errors import Refused
from fedsynth.federation.events import Answer, Event, PlainAnswer
from fedsynth.federation.trust import OneMessageSum, SiteTurn, add_noise, noise_std
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.noise import RandomBits
from fedsynth.privacy.release import Release
from fedsynth.schema.bins import Integers

if TYPE_CHECKING:
    from fedsynth.federation.query import Query
    from fedsynth.federation.vault import TrustedVault, VaultTerms
    from fedsynth.terms import Terms


@dataclass(frozen=True)
class TrustedServer:
    """Trust model in which sites send exact counts, sealed for the server, which adds noise once to their sum.

    The guarantee holds against everyone but the server. The sum of the sites' tables equals the table of the pooled
    rows, so under this model a method that uses only sums and deposits of tables at all sites computes, bit for bit,
    what it would compute on pooled rows. The class attributes are those of
    :class:`~fedsynth.federation.trust.Trust`.
    """

    name: ClassVar[str] = "trusted"
    confidential: ClassVar[bool] = True
    deposits: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    turns: ClassVar[int] = 1
    reads: ClassVar[int] = 0
    terms: ClassVar[str] = ""
    assumption: ClassVar[str] = ""

    def with_roster(self, roster: Mapping[str, bytes]) -> TrustedServer:
        """Return this trust model unchanged: it needs no ``roster`` of the sites' identity keys."""
        return self

    def in_process(self, secret: Callable[[str], bytes], terms: Terms, coordinator: bytes) -> TrustedServer:
        """Return this trust model unchanged: it has no parties besides sites and server, hence uses no argument."""
        return self

    def answer(self, site: SiteTurn, turn: int, event: Event | None) -> Answer:
        """Return the site's exact answer, which the site then encrypts for the server.

        ``site`` gives access to the question and the rows. Raises :class:`Refused` if ``event`` is not ``None``: each
        site gets one message in a sum (``turn`` 0), the question alone.
        """
        if event is not None:
            raise Refused("a sum by a trusted server takes one message; install the same fedsynth everywhere")
        return PlainAnswer(site.statistic())

    def deposit(self, site: SiteTurn, query: Query) -> Answer:
        """Return the site's exact tables for the server's vault, which keeps their sum over sites (:meth:`vault`).

        The site then encrypts them for the server. ``query`` is what the site was asked.
        """
        return PlainAnswer(site.statistic())

    def aggregation(
        self, digest: str, release: Release, norms: Norms, sites: Sequence[str], bits: Callable[[Integers], RandomBits]
    ) -> OneMessageSum:
        """Return the server's side of a sum over ``sites``: their exact answers added up, plus one sample of noise.

        ``release`` says which noise, and at what privacy cost; ``norms`` are the L1 and L2 sensitivity of the sum to
        one person. ``bits(exact)`` gives the server's random bits for the exact sum that the noise hides; ``digest`` is
        not used.
        """
        return OneMessageSum(
            tuple(sites),
            lambda exact: add_noise(exact, release, norms, bits(exact)),
            lambda heard: self.std(release, norms, heard),
        )

    def std(self, release: Release, norms: Norms, sites: int) -> float:
        """Return the standard deviation of the noise in each cell of a sum; ``sites`` does not change it.

        ``release`` says which noise is added, and at what privacy cost; ``norms`` are the L1 and L2 sensitivity of the
        sum to one person.
        """
        return noise_std(release, norms)

    def vault(self, terms: VaultTerms) -> TrustedVault:
        """Return an empty vault for the tables that ``terms`` describe, whose exact sums stay in the server's memory.

        The vault releases only noisy results of them (:class:`~fedsynth.federation.vault.Vault`). ``terms`` also say
        what the releases may cost together (:class:`~fedsynth.federation.vault.VaultTerms`).
        """
        from fedsynth.federation.vault import TrustedVault

        return TrustedVault(terms)

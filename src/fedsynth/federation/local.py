"""Local noise: each site adds the full noise to its own answer, and trusts no other party."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedsynth.errors import Refused
from fedsynth.federation.events import Answer, Event, PlainAnswer
from fedsynth.federation.trust import OneMessageSum, SiteTurn, add_noise, noise_std
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.noise import RandomBits
from fedsynth.privacy.release import Release
from fedsynth.schema.bins import Integers

if TYPE_CHECKING:
    from fedsynth.federation.query import Query
    from fedsynth.federation.vault import VaultTerms
    from fedsynth.terms import Terms


@dataclass(frozen=True)
class LocalNoise:
    """Trust model in which every site adds the full noise of a release to its own answer; the server only adds up.

    The guarantee holds against the server and all other sites together. In return, the noise variance of a sum over m
    sites is m times that under a trusted server where each person is at one site. The class attributes are those of
    :class:`~fedsynth.federation.trust.Trust`.
    """

    name: ClassVar[str] = "local"
    confidential: ClassVar[bool] = False
    deposits: ClassVar[bool] = False
    pooled: ClassVar[bool] = False
    turns: ClassVar[int] = 1
    reads: ClassVar[int] = 0
    terms: ClassVar[str] = ""
    assumption: ClassVar[str] = ""

    def with_roster(self, roster: Mapping[str, bytes]) -> LocalNoise:
        """Return this trust model unchanged: it needs no ``roster`` of the sites' identity keys."""
        return self

    def in_process(self, secret: Callable[[str], bytes], terms: Terms, coordinator: bytes) -> LocalNoise:
        """Return this trust model unchanged: it has no parties besides sites and server, hence uses no argument."""
        return self

    def answer(self, site: SiteTurn, turn: int, event: Event | None) -> Answer:
        """Return the site's exact answer plus its own sample of the whole noise that the question demands.

        ``site`` gives access to the question, the rows and the site's secrets. Raises :class:`Refused` if ``event`` is
        not ``None``: each site gets one message in a sum (``turn`` 0), the question alone.
        """
        if event is not None:
            raise Refused("a sum with local noise takes one message; install the same fedsynth everywhere")
        exact = site.statistic()
        return PlainAnswer(add_noise(exact, site.release, site.norms, site.bits("noise")))

    def deposit(self, site: SiteTurn, query: Query) -> Answer:
        """Raise :class:`Refused`, for any ``query``: no party may hold exact sums of the sites' tables (a vault)."""
        raise Refused("no vault exists under the trust 'local'; use a method without deposits")

    def aggregation(
        self, digest: str, release: Release, norms: Norms, sites: Sequence[str], bits: Callable[[Integers], RandomBits]
    ) -> OneMessageSum:
        """Return the server's side of a sum over ``sites``, which adds up their noisy answers and adds no noise.

        ``release`` says which noise each site adds, and at what privacy cost; ``norms`` are the L1 and L2 sensitivity
        of one site's answer to one person; ``digest`` and ``bits`` are not used.
        """
        return OneMessageSum(tuple(sites), lambda noisy: noisy, lambda heard: self.std(release, norms, heard))

    def std(self, release: Release, norms: Norms, sites: int) -> float:
        """Return the standard deviation of the noise in each cell of a sum over ``sites`` sites.

        It is the standard deviation of one site's noise (:func:`~fedsynth.federation.trust.noise_std`) times the square
        root of ``sites``. ``release`` says which noise a site adds, and at what privacy cost; ``norms`` are the L1 and
        L2 sensitivity of one site's answer to one person.
        """
        return noise_std(release, norms) * float(np.sqrt(sites))

    def vault(self, terms: VaultTerms) -> None:
        """Return ``None``: no party may hold exact sums of the sites' tables, so there is no vault."""

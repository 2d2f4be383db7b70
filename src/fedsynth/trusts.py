"""The trust models by name, with the facts of each that agreements, statements and reports state.

What a trust model does is in its class (:class:`~fedsynth.federation.trust.Trust`), which is imported only when it is
used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TrustFacts:
    """The facts of a trust model that hold under any of its settings.

    * ``place``: its class, as ``package.module:Class``.
    * ``against``: who learns no more than the guarantee allows, even if they collude, as a clause; ``basis``: what that
      rests on (:data:`~fedsynth.statement.Basis`).
    * ``demands``: whom one has to trust, in a sentence for reports.
    * ``pooled``: whether noise is added once, to the sum over sites, or by each site to its own answer.
    * ``whole``: whether the noise of a release is one sample of its law, and not a sum of samples of several sites.
    * ``sums``, ``vault``, ``scores``: whether it makes sums over sites, vaults, and noisy scores of what a vault holds.
    """

    place: str
    against: str
    basis: Literal["proved", "computational"]
    demands: str
    pooled: bool = True
    whole: bool = False
    sums: bool = True
    vault: bool = False
    scores: bool = False


TRUSTS = {
    "trusted": TrustFacts(
        "fedsynth.federation.trusted:TrustedServer",
        against="everyone but the server, which sees the exact counts of every site",
        basis="proved",
        demands="The server has to be trusted: it sees the exact counts of every site and adds the noise once.",
        whole=True,
        vault=True,
        scores=True,
    ),
    "local": TrustFacts(
        "fedsynth.federation.local:LocalNoise",
        against="the server and all other sites together",
        basis="proved",
        demands="Nobody has to be trusted: every site adds the full noise to its own answers before they leave.",
        pooled=False,
        whole=True,
    ),
    "secure": TrustFacts(
        "fedsynth.secure.site:SecureSum",
        against="the server together with all sites but those assumed to be honest",
        basis="computational",
        demands="Enough sites have to be trusted not to collude with the server: each adds a share of the noise, under "
        "masks that cancel only in the sum, and nobody sees exact counts.",
    ),
    "three-servers": TrustFacts(
        "fedsynth.servers.trust:ThreeServers",
        against="the coordinator together with one of three servers and all other sites",
        basis="computational",
        demands="No two of the three servers may collude, and all have to follow the protocol: each holds secret "
        "shares, which reveal nothing by themselves, and nobody sees exact counts. Their noise has 1.5 times the "
        "variance of a trusted server's (up to 3 times if that noise is very small or very large), and each selection "
        "adds two Gumbel variables instead of one.",
        sums=False,
        vault=True,
    ),
}
"""The built-in trust models, by their names on the command line."""


def default_trust(sites: int) -> str:
    """Return the name of the trust model of a run over ``sites`` sites for which none is named.

    Three sites and more keep their counts to themselves at little cost in noise ("secure"). With two, each would read
    the other's counts off the sum, so that each adds its own noise ("local"). One table lies in one hand ("trusted").
    """
    return "secure" if sites > 2 else "local" if sites == 2 else "trusted"

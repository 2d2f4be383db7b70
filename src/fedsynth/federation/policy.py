"""What a site agrees to: decided by its data steward, enforced at the site, and by nobody else.

Rule 1: a policy is checked before anything is computed. Rule 2: a refusal is made of the policy and the request
alone, so its reason may leave; it costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedsynth.errors import Refused
from fedsynth.federation.trust import Trust
from fedsynth.federation.wire import Request
from fedsynth.privacy.release import Budget, Exact, Public, Reserved

# What a verb may be released as.
RELEASES = {
    "sum": ("Gaussian", "Laplace", "Public", "Exact"),
    "choose": ("Exponential", "Steered"),
    "deposit": ("Reserved",),
}


@dataclass(frozen=True)
class Policy:
    """What a site agrees to, decided by its data steward and by nobody else.

    ``budget`` bounds everything that the site ever spends on these rows, ``per_run`` (if given) one run.
    ``trusts`` are the trust models that it accepts, ``schemas`` the digests of schemas (empty: the table's
    own only). ``exact`` allows releases without noise and thereby gives up every guarantee: for experiments
    only. ``size_is_public`` says that the number of rows is no secret.
    """

    budget: Budget
    trusts: Mapping[str, Trust] = field(default_factory=dict)
    per_run: Budget | None = None
    schemas: frozenset[str] = frozenset()
    exact: bool = False
    size_is_public: bool = False

    def check(self, request: Request, schema_digest: str) -> None:
        """Raise :class:`Refused` if the request is not what this site agreed to; ``schema_digest`` is its table's."""
        if request.schema_digest not in (self.schemas or {schema_digest}):
            raise Refused("the request was made under another schema; agree on one schema file and compare digests")
        if request.trust not in self.trusts:
            raise Refused(f"this site does not accept the trust {request.trust!r}; it accepts {sorted(self.trusts)}")
        if type(request.release).__name__ not in RELEASES.get(request.verb, ()):
            raise Refused(
                f"no {request.verb!r} can be released as {request.release}; this site knows {sorted(RELEASES)}"
            )
        if isinstance(request.release, Exact) and not self.exact:
            raise Refused("this site releases nothing without noise; use a private method")
        if isinstance(request.release, Public) and not (request.task == "size" and self.size_is_public):
            raise Refused(f"this site does not declare {request.task!r} public; ask for it with noise")
        if isinstance(request.release, Reserved) and not self.trusts[request.trust].confidential:
            raise Refused(f"no vault exists under the trust {request.trust!r}; use a method without deposits")

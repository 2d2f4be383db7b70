"""Enrolment at the coordinator: issues certificates for requests, and makes the roster of all sites.

The federation's folder holds what was admitted: ``admitted/NAME.request`` with the certificate ``NAME.pem`` and the
public key ``NAME.pub`` of the site's node (Flower's program there) beside it, ``roster.toml``, and
``admissions/NAME.toml``, which goes to the site.

Rule 1: a site is admitted by its request, whose signatures prove that the sender has the keys; a person verifies whose
they are, by the fingerprint. Rule 2: an admitted site gets other keys only if that is requested explicitly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import tomli_w

import fedsynth
from fedsynth.deploy.certificates import Authority
from fedsynth.deploy.roster import (
    Acceptance,
    Admission,
    Invitation,
    JoinRequest,
    Member,
    Roster,
    SignedRoster,
    Terms,
    load,
    to_text,
)
from fedsynth.errors import FedsynthError, InvalidParameter
from fedsynth.files import private_folder, read_text, write_private, write_whole
from fedsynth.runs.job import Job
from fedsynth.runs.state import load_coordinator

AUTHORITY = "authority/ca.key"  # the private key of the certificate authority, to be kept offline
_PEERS = re.compile(r"^\[deployment\.peers\]\n(?:(?!\[).*(?:\n|\Z))*", re.MULTILINE)


@dataclass(frozen=True)
class Enrolment:
    """The state of a federation's enrolment: which sites have asked to join, as kept in the coordinator's ``folder``.

    ``terms`` are what a site accepts when it joins (coordinator, schema, method, budget), the same in all invitations.
    ``sites`` are the names of all sites of the job, ``admitted`` maps the name of each site that has its certificate to
    the site's request to join.
    """

    folder: Path
    terms: Terms
    sites: tuple[str, ...]
    admitted: dict[str, JoinRequest] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Enrolment:
        """Read the enrolment from the folder of a federation, which ``fedsynth deploy init`` wrote.

        Raises :class:`~fedsynth.errors.FedsynthError` for any other folder, and if it holds no invitation.
        """
        if not (folder / "job.toml").is_file():
            raise FedsynthError(f"{folder} holds no job.toml; give the folder that `fedsynth deploy init` wrote")
        job = Job.load(folder / "job.toml")
        if job.deployment is None:
            raise FedsynthError(f"{folder / 'job.toml'} has no [deployment]; `fedsynth deploy init` writes one")
        sites = job.deployment.sites
        invited = [file for name in sites if (file := folder / "invitations" / f"{name}.toml").is_file()]
        if not invited:
            raise FedsynthError(
                f"{folder / 'invitations'} holds no invitation of a site of job.toml; restore one from the backup"
            )
        terms = load(invited[0], Invitation).terms
        files = {name: folder / "admitted" / f"{name}.request" for name in sites}
        admitted = {name: load(file, JoinRequest) for name, file in files.items() if file.exists()}
        return cls(folder, terms, sites, admitted)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the sites of the job that are not admitted yet."""
        return tuple(name for name in self.sites if name not in self.admitted)

    @cached_property
    def members(self) -> SignedRoster | None:
        """The roster (list of all sites with their keys) as last written, with the signatures under it.

        ``None`` until all sites are admitted and :meth:`publish` has written it, and after a site got other keys.
        """
        file = self.folder / "roster.toml"
        if self.missing or not file.exists():
            return None
        found = load(file, SignedRoster)
        return found if found.roster.digest == self.roster.digest else None

    @property
    def roster(self) -> Roster:
        """The roster, made now: the list of all sites of the job with their public keys, without signatures.

        Raises ``KeyError`` before all sites are admitted, and :class:`~fedsynth.errors.FedsynthError` if two have the
        same key.
        """
        found = [self.admitted[name] for name in sorted(self.sites)]
        return Roster(self.terms.digest, tuple(Member(one.site, one.identity, one.node_key) for one in found))

    def check(self, request: JoinRequest, *, replace: bool = False) -> bool:
        """Check a site's request to join; return whether its keys are new, so that a person must compare fingerprints.

        Raises :class:`~fedsynth.errors.FedsynthError` for a request not signed by its own keys, from an unknown site,
        for other terms, from another version of fedsynth, with a key that another site has or, without ``replace``,
        with other keys than the site was admitted with.
        """
        name = request.site
        if name not in self.sites:
            raise FedsynthError(f"{name} is not a site of this federation; its sites are {', '.join(self.sites)}")
        if not request.signed:
            raise FedsynthError(f"the request of {name} is not signed by its own identity key, or was changed")
        keys = request.keys
        if request.terms != self.terms.digest:
            raise FedsynthError(
                f"the request of {name} is for another federation, or for terms that were changed on their way; "
                f"compare the invitation's fingerprint with {name} by phone: {self.terms.fingerprint}"
            )
        if request.fedsynth != fedsynth.__version__:
            raise FedsynthError(
                f"{name} has fedsynth {request.fedsynth} and this host {fedsynth.__version__}; install the same "
                "version everywhere, then let the site join again"
            )
        for other, found in self.admitted.items():
            if other != name and set(keys) & set(found.keys):
                raise FedsynthError(f"the request of {name} has a key of {other}; each site needs its own")
        known = self.admitted.get(name)
        if known is None:
            return True
        if known.keys != keys and not replace:
            raise FedsynthError(
                f"{name} is admitted with other keys. Another key for {name} changes who can read what is meant for "
                f"it: ask {name} why, by phone, then give --replace"
            )
        return known.keys != keys

    def admit(self, request: JoinRequest, authority: Authority) -> Enrolment:
        """Issue the certificate for a request that :meth:`check` passed; return the enrolment with this site admitted.

        ``authority`` signs it. Certificate, request and the key of the site's node (Flower's program there) are written
        to ``admitted/`` in the federation's folder. Only the public key is taken from the request; name and role (OU)
        of the certificate are set here.
        """
        home = private_folder(self.folder / "admitted")
        write_whole(home / f"{request.site}.pem", authority.issue(request.tls_key, request.site, "site"))
        write_whole(home / f"{request.site}.pub", request.node_key + "\n")
        write_whole(home / f"{request.site}.request", to_text(request))
        return Enrolment(self.folder, self.terms, self.sites, {**self.admitted, request.site: request})

    def publish(self, acceptances: Mapping[str, Acceptance]) -> SignedRoster | None:
        """Write the roster, an admission for each site, and the sites' keys into the job; return the signed roster.

        The roster is the list of all sites with their keys. ``acceptances`` are the sites' signatures under it, by site
        name; earlier ones are kept. Until all sites are admitted, nothing is written and ``None`` is returned. Raises
        :class:`~fedsynth.errors.FedsynthError` for an acceptance that comes before the roster, is of another roster, or
        is not signed by the site's own key.
        """
        if self.missing:
            if acceptances:
                raise FedsynthError(
                    f"there is no roster to accept before all sites are admitted; missing: {self.missing}"
                )
            return None
        members = self.members or self.roster.signed(load_coordinator(self.folder))
        for acceptance in acceptances.values():
            members = members.with_acceptance(acceptance)
        self._write_peers(members.roster)
        private_folder(self.folder / "admissions")
        for name in self.sites:
            certificate = read_text(self.folder / "admitted" / f"{name}.pem")
            write_whole(self.folder / "admissions" / f"{name}.toml", to_text(Admission(name, certificate, members)))
        write_private(self.folder / "roster.toml", to_text(members))
        return members

    def _write_peers(self, roster: Roster) -> None:
        """Write the identity keys into the job file, and leave the rest of its text unchanged."""
        file = self.folder / "job.toml"
        text = read_text(file)
        peers = tomli_w.dumps({"deployment": {"peers": {one.name: one.identity for one in roster.members}}})
        changed = f"{_PEERS.sub('', text).rstrip()}\n\n{peers}"
        if changed != text:
            Job.from_toml(changed, str(file))  # raises if the job's peers are written elsewhere
            write_private(file, changed)


def terms_of(
    job: Job, schema: str, coordinator: bytes, authority: str, superlink: str, kinds: Mapping[str, str]
) -> Terms:
    """Return the terms of a federation for its invitations: what a site accepts when it joins.

    ``schema`` is the agreed schema (TOML text), ``coordinator`` the coordinator's two public keys (64 bytes),
    ``authority`` the certificate of the federation's certificate authority (PEM), ``superlink`` the server's HOST:PORT.
    ``kinds`` maps the kinds of questions that another package's method asks to their classes
    (``package.module:Class``), which sites would import. Raises :class:`~fedsynth.errors.InvalidParameter` for an
    infinite epsilon.
    """
    if job.budget.exact:
        raise InvalidParameter("--epsilon inf releases everything without noise; only simulations run so")
    return Terms(
        superlink,
        coordinator.hex(),
        authority,
        schema,
        job.method,
        job.epsilon,
        job.delta,
        job.trust,
        job.rows_per_person,
        job.sites_per_person,
        dict(kinds),
    )

"""The handle that a method holds: a closed set of verbs, and nothing leaves a site without a release.

Verbs: ``cohort`` (who takes part), ``sum`` and ``sums`` (noisy sums over sites), ``choose`` (each site's own
private pick) and ``deposit`` (a sum that only a vault may hold).
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedsynth import errors
from fedsynth.errors import BudgetExceeded, FedsynthError, InvalidParameter, SiteLost
from fedsynth.federation.task import Choice, Query, marginals
from fedsynth.federation.transport import Transport
from fedsynth.federation.trust import Counts, Outcome, Session, Trust
from fedsynth.federation.vault import Clique, Vault
from fedsynth.federation.wire import Reply, Request
from fedsynth.privacy.ledger import Entry, Ledger
from fedsynth.privacy.noise import KeyedBits
from fedsynth.privacy.release import Exponential, Release, Reserved, Steered
from fedsynth.schema import Schema

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Sum:
    """A released sum: integer ``values`` (flat), the noise's ``std`` in each, and the ``sites`` that are in it."""

    params: Mapping[str, Any]
    values: Counts
    std: float
    sites: tuple[str, ...]


Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, eq=False)
class Federation:
    """Sites under one schema, one trust and one budget.

    ``run`` names the run in every request; ``secret`` keys the server's noise; ``rng`` serves everything that
    needs no secrecy (drawing cohorts, sampling rows). ``sizes`` are the sites' row counts where they are
    public. A round goes on without sites that fail, as long as ``min_sites`` answer; who failed is in
    ``lost``. A sum that fails for good is asked up to ``attempts`` times, each charged anew. ``plan`` is
    the digest of the approved plan that every request names. Methods call ``progress(what, done, of_how_many)``.
    """

    schema: Schema
    ledger: Ledger
    trust: Trust
    transport: Transport
    sites: tuple[str, ...]
    rng: np.random.Generator
    run: str
    secret: bytes
    sizes: Mapping[str, int] | None = None
    min_sites: int = 1
    attempts: int = 1
    plan: str = ""
    lost: list[str] = field(default_factory=list)
    progress: Progress = silent
    _steps: Iterator[int] = field(default_factory=itertools.count)
    _joined: dict[str, int] = field(default_factory=dict)

    @property
    def rho(self) -> float:
        """What a method may still spend at the most charged site, in zCDP."""
        return self.ledger.budget.rho - self.ledger.rho

    def available(self, cap: int | None) -> tuple[str, ...]:
        """Return the sites that took part in fewer than ``cap`` cohorts (all, without a cap)."""
        return tuple(site for site in self.sites if cap is None or self._joined.get(site, 0) < cap)

    def cohort(self, rate: float, cap: int | None = None) -> Federation:
        """Return the sites of one round: each available one joins with probability ``rate``, redrawn until one does.

        Who joins depends on no data. No amplification by sampling is claimed: every site is charged in full
        for each round that it joins. Raises :class:`BudgetExceeded` when ``cap`` leaves nobody.
        """
        if not 0 < rate <= 1:
            raise InvalidParameter(f"a cohort's rate must lie in (0, 1], not {rate}; 0.1 asks a tenth of the sites")
        pool = self.available(cap)
        if not pool:
            raise BudgetExceeded(f"every site has taken part in {cap} rounds; allow more, or run fewer rounds")
        joining: tuple[str, ...] = ()
        while not joining:
            joining = tuple(site for site, draw in zip(pool, self.rng.random(len(pool)), strict=True) if draw < rate)
        for site in joining:
            self._joined[site] = self._joined.get(site, 0) + 1
        return replace(self, sites=joining)

    def sum(self, query: Query, release: Release, **params: Any) -> Sum:
        """Return the released sum of ``query(**params)`` over the sites."""
        (result,) = self.sums(query, release, dict.fromkeys(self.sites, (params,)))
        return result

    def sums(self, query: Query, release: Release, per_site: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Sum]:
        """Return one released sum for each distinct set of parameters, over the sites that were given it.

        One exchange with every site for each turn that the trust takes. A site with several sets of parameters
        pays ``release`` for each.
        """
        step = next(self._steps)
        groups: dict[str, tuple[Request, list[str]]] = {}
        for site, asked in per_site.items():
            for params in asked:
                request = self._request(step, "sum", query.name, release, params)
                groups.setdefault(request.digest, (request, []))[1].append(site)
        outcomes: dict[str, Outcome | None] = {}
        waiting = list(groups)
        for attempt in range(self.attempts):
            sessions = {key: self._session(query, groups[key][0].again(attempt), groups[key][1]) for key in waiting}
            self._converse(
                [(session, query.cells(self.schema, **groups[k][0].params)) for k, session in sessions.items()]
            )
            waiting = []
            for key, session in sessions.items():
                try:
                    outcomes[key] = session.result()
                except SiteLost:
                    if attempt + 1 == self.attempts:
                        raise
                    waiting.append(key)
        results = [
            Sum(request.params, outcome.values, outcome.std, outcome.sites)
            for key, (request, _) in groups.items()
            if (outcome := outcomes[key]) is not None
        ]
        self._require({site for result in results for site in result.sites})
        return results

    def choose(
        self,
        choice: Choice,
        release: Exponential | Steered,
        *,
        per_site: Mapping[str, Mapping[str, Any]] | None = None,
        **params: Any,
    ) -> dict[str, tuple[int, ...]]:
        """Return the candidates that each site picked on its own rows, one per step of the release.

        ``per_site`` adds parameters of one site's own (public ones, such as its size) to the shared
        ``params``.
        """
        shared = self._request(next(self._steps), "choose", choice.name, release, params)
        requests = {site: shared if per_site is None else shared.addressed(per_site[site]) for site in self.sites}
        steps = release.steps if isinstance(release, Steered) else 1
        self._charge(shared, self.sites, steps)
        replies = self.transport.exchange(list(requests.items()))
        answers = self._answers(replies, steps)
        picks = {site: tuple(int(index) for index in values) for site, values in answers}
        self._require(picks)
        return picks

    def deposit(self, cliques: Sequence[Clique], rho: float) -> Vault:
        """Pool the exact tables of ``cliques`` where the trust has a vault; ``rho`` pays for all that it releases.

        Raises :class:`Unsupported` under a trust without one.
        """
        if not self.trust.confidential:
            self.trust.vault(())  # says why, before anybody is asked
        request = self._request(next(self._steps), "deposit", marginals.name, Reserved(rho), {"cliques": cliques})
        self._charge(request, self.sites, marginals.cells(self.schema, cliques))
        answered: list[str] = []
        replies = self.transport.exchange([(site, request) for site in self.sites])
        cells = marginals.cells(self.schema, cliques)
        pooled = self.trust.vault(values for _, values in self._answers(replies, cells, answered))
        self._require(answered)
        tables = dict(zip(cliques, split_marginals(self.schema, cliques, pooled), strict=True))
        bits = lambda purpose: KeyedBits(self.secret, f"vault {request.digest} {purpose}".encode())  # noqa: E731
        return Vault(self.schema, tables, rho, bits, self.ledger.note, tuple(answered), request.step)

    def std(self, query: Query, release: Release, sites: int, **params: Any) -> float:
        """Return the noise's standard deviation in each cell of a sum over ``sites`` sites, before it is asked for."""
        return self.trust.std(release, query.sensitivity(self.schema, **params), sites)

    def _request(self, step: int, verb: str, task: str, release: Release, params: Mapping[str, Any]) -> Request:
        return Request(self.run, step, verb, task, release, self.trust.name, self.schema.digest, params, plan=self.plan)

    def _charge(self, request: Request, sites: tuple[str, ...], cells: int) -> None:
        self.ledger.record(Entry(request.step, request.verb, request.task, request.release, sites, cells))

    def _session(self, query: Query, request: Request, sites: Sequence[str]) -> Session:
        """Return one sum, charged to the server's ledger and yet to be asked."""
        sensitivity = query.sensitivity(self.schema, **request.params)
        session = self.trust.session(request, sites, sensitivity, self._bits(request))
        self._charge(request, tuple(sites), query.cells(self.schema, **request.params))
        return session

    def _converse(self, sessions: Sequence[tuple[Session, int]]) -> None:
        """Run sums (with their sizes) in lockstep: one exchange for a turn of all, however many messages each takes."""
        while any(messages := [session.ask() for session, _ in sessions]):
            replies = self.transport.exchange([one for asked in messages for one in asked.items()])
            for (session, cells), asked in zip(sessions, messages, strict=True):
                for reply in itertools.islice(replies, len(asked)):
                    if self._accept(reply, cells):
                        self._hear(session, reply)

    def _hear(self, session: Session, reply: Reply) -> None:
        """Hand an answer to its sum; a site that sends nonsense is lost like one that is silent."""
        try:
            session.hear(reply)
        except FedsynthError as error:
            _log.warning("%s", error)
            self.lost.append(reply.site)

    def _bits(self, request: Request) -> Callable[[Counts], KeyedBits]:
        """Return the server's noise source, bound to the question and to the very sum that it hides."""

        def bits(exact: Counts) -> KeyedBits:
            return KeyedBits(
                self.secret, f"reveal {request.question} {hashlib.sha256(exact.tobytes()).hexdigest()}".encode()
            )

        return bits

    def _answers(
        self, replies: Iterator[Reply], cells: int, answered: list[str] | None = None
    ) -> Iterator[tuple[str, Counts]]:
        """Yield the answers that came, note the sites that failed, and raise what a site refused."""
        for reply in replies:
            if not self._accept(reply, cells):
                continue
            if reply.values is None:
                self.lost.append(reply.site)
                continue
            if answered is not None:
                answered.append(reply.site)
            yield reply.site, reply.values

    def _accept(self, reply: Reply, cells: int) -> bool:
        """Whether a reply is an answer; note the site that failed or sent other numbers, and raise what it refused."""
        if reply.error in ("Refused", "BudgetExceeded", "Unsupported"):
            _raise(reply)
        values = reply.values
        fits = values is None or (values.dtype == np.int64 and values.shape == (cells,))
        if reply.error or not fits:
            self.lost.append(reply.site)
        return not reply.error and fits

    def _require(self, answered: Collection[str]) -> None:
        if len(answered) < self.min_sites:
            raise SiteLost(
                f"{len(answered)} sites answered and {self.min_sites} are required (lost: {sorted(set(self.lost))}); "
                "bring the sites back and start the run again: it resumes, and pays for live rounds only"
            )


def split_marginals(schema: Schema, cliques: Sequence[Clique], flat: NDArray[Any]) -> list[NDArray[Any]]:
    """Return the tables that :func:`~fedsynth.federation.task.marginals` laid end to end, each in its shape."""
    shapes = [schema.shape(clique) for clique in cliques]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]


def _raise(reply: Reply) -> NoReturn:
    kind: type[FedsynthError] = getattr(errors, reply.error)
    raise kind(f"site {reply.site}: {reply.reason}")

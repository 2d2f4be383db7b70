"""The federation, a method's only access to the sites: a few verbs (methods), whose releases are charged to a budget.

Verbs: ``sum`` and ``sums`` (noisy sums over sites), ``average`` (of the changes that sites make to a network by their
own training, each with its own noise), ``each`` (every site's own noisy answer), ``choose`` (each site's own private
selection) and ``deposit`` (exact sums in a vault). ``cohorts`` draws the sites of each round, at no cost.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

import msgspec
import numpy as np

from fedsynth.errors import (
    BudgetExceeded,
    FedsynthError,
    InvalidParameter,
    Refused,
    RunLost,
    SiteLost,
    Unsupported,
    number_of,
)
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.events import PlainAnswer, values_of
from fedsynth.federation.noise_record import NoiseRecord
from fedsynth.federation.query import (
    MOST_ROWS,
    AnyQuery,
    Counts,
    Query,
    RecordCount,
    Selection,
    Training,
    Weights,
    check_cells,
    is_built_in,
)
from fedsynth.federation.question import Verb
from fedsynth.federation.quote import Quote, noise_of
from fedsynth.federation.transport import DROPPED, Message, Recorded, Transport
from fedsynth.federation.trust import (
    Aggregation,
    Released,
    SumProtocol,
    Trust,
    VaultProtocol,
    roster_digest,
    sums_of,
)
from fedsynth.federation.vault import Vault, VaultQuestion
from fedsynth.federation.wire import ATTEMPT, AuditPosition, Reply, Request, decode, encode, sign_request
from fedsynth.keys import Keys
from fedsynth.plugins import named, place_of
from fedsynth.privacy.cost import Budget, Norms, protect, times_charged
from fedsynth.privacy.ledger import Entry, Ledger
from fedsynth.privacy.noise import KeyedBits, noise_std
from fedsynth.privacy.release import (
    AdaptiveSelection,
    Exact,
    Noise,
    Public,
    Release,
    SampledGaussian,
    deposit_for,
    draw_for,
    kind_of,
    noise_for,
    sampled_for,
)
from fedsynth.progress import Progress, ignore_progress
from fedsynth.schema import Schema
from fedsynth.schema.bins import Floats, Integers
from fedsynth.statement import ForeignPart, Role, Statement
from fedsynth.terms import Terms
from fedsynth.trusts import TRUSTS

_log = logging.getLogger(__name__)

Share = float | Exact
"""What a release may cost: a part of the budget, or :data:`EXACT`."""

EXACT = Exact()
"""In place of a share, a release without noise: for baselines that are NOT PRIVATE. Sites refuse it by default."""

_Asked = TypeVar("_Asked", Query, Selection)
_Recorded = TypeVar("_Recorded", Released, "VaultRecord")

_NAMED = 10  # most sites named in a message
_TAIL = 45.0  # noise of either law exceeds this many standard deviations less than once in 2^64


@dataclass(frozen=True, eq=False)
class Sum:
    """A released sum of a query over sites, or one site's own released answer.

    ``tables`` are the answer in parts, each in its own shape and units, such as contingency tables in records
    (:meth:`Query.split <fedsynth.federation.query.Query.split>`); ``stds`` are the noise's standard deviations in a
    cell of each part. ``values`` is the same answer as flat integers, shape ``(cells,)``, with noise of standard
    deviation ``std`` in each. ``std`` and ``stds`` leave out noise that sites add within their training
    (:meth:`Federation.average`). ``sites`` are the names of the sites in the sum.

    The noise of the ``release`` is independent from cell to cell of ``values``, and from sum to sum: its covariance is
    ``std`` squared times the identity, or slightly less (:func:`~fedsynth.privacy.noise.noise_std`).
    """

    query: Query
    tables: list[Floats]
    stds: list[float]
    values: Integers
    std: float
    sites: tuple[str, ...]
    release: Release

    @property
    def noise(self) -> str:
        """Kind of the noise: "gaussian", "sampled" (Gaussian, on sampled rows), "laplace", or none: "exact", "public".

        Where each site adds noise of its own, theirs adds up: under "laplace", the law is that of such a sum.
        """
        return kind_of(self.release)


class VaultRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record in a run's transcript: the ``sites`` whose tables a vault holds.

    A resumed run repeats the vault's earlier releases, so its vault must hold the tables of the same sites: releases of
    another total would be additional ones, which nobody paid for.
    """

    sites: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Federation:
    """Sites under one schema, one trust model and one budget: the object that a method is fitted to.

    Make one with :func:`~fedsynth.federation.simulate.federate`. Every verb (:meth:`sum`, :meth:`sums`,
    :meth:`average`, :meth:`each`, :meth:`choose`, :meth:`deposit`) puts a question to sites: a query with its price
    (privacy cost) and terms. A ``share`` is a positive fraction of the run's budget (1: all) that the release is
    charged, which determines its noise, or :data:`EXACT`. The verbs raise :class:`BudgetExceeded` if the run or a site
    cannot pay, :class:`Refused` if a site refuses, :class:`SiteLost` if fewer than ``min_sites`` sites answer (in its
    form :class:`RunLost` if they never will), :class:`Unsupported` if the trust model cannot release it, and
    :class:`InvalidParameter` for a query that does not fit the schema, a share below the smallest that sites accept, or
    a site that is not in this federation.

    Parameters
    ----------
    terms, ledger, trust, transport
        What was agreed; the server's record of releases and their costs; the trust model; the connection to the sites.
    sites
        Names of the sites that are asked.
    rng
        Generator for what needs no secrecy: the sites in cohorts, a method's own random choices and synthetic rows.
    run
        Name of the run, in every request.
    secret, coordinator
        32 secret bytes from which the server's noise is derived; the keys that sign requests and decrypt confidential
        answers.
    identities
        Public identity key (32 bytes) of each site, with which its replies must be signed; a reply that is not counts
        as lost.
    sizes
        Number of rows of each site if public, else ``None``.
    min_sites
        Fewest sites that must answer a round (or all, if fewer are asked), which then continues without the others;
        ``lost`` lists these.
    agreed
        The approved plan, or another agreement that states the method; ``None``: one that states the terms alone.
        Every question names it, and each request to a site has it attached until the site has answered one.
    largest_site_rows
        Bound on the rows of one site, to recognise impossible answers.
    simulated, seeded, looks_at_other_rows, rfc4180, typed_elsewhere
        As in :class:`~fedsynth.statement.Statement`.
    unproved
        Classes of other packages (``package.module:Class``) that whoever makes the run accepts as parts on which its
        guarantee rests (:meth:`rest_on`).
    lost
        Names of sites whose answer was missing or malformed, once for each such answer.
    seen
        The last row of each site's audit log that the server knows, from this and earlier runs
        (:class:`~fedsynth.federation.wire.AuditPosition`).
    noise
        The noise of the questions so far; it warns before a question is sent whose noise would drown the rows, once
        their number is known.
    part
        Part of the budget that shares are shares of, from 0 to 1: what a run's first questions have left of it.
    progress, loop
        ``progress(what, done, total)`` shows how far a method is; ``loop(times)`` gives the numbers of the training
        steps that :meth:`repeat` yields.
    released
        ``released(question, release)`` records a released sum, or the sites of a vault, and returns what was recorded
        first for this question (:meth:`~fedsynth.federation.transport.Recorded.released`); ``None``: not recorded.
    """

    terms: Terms
    ledger: Ledger
    trust: Trust
    transport: Transport
    sites: tuple[str, ...]
    rng: np.random.Generator
    run: str
    secret: bytes = field(repr=False)
    coordinator: Keys
    identities: Mapping[str, bytes]
    sizes: Mapping[str, int] | None = None
    min_sites: int = 1
    agreed: Agreement | None = None
    largest_site_rows: int = MOST_ROWS
    simulated: bool = True  # unless said otherwise: it states less
    seeded: bool = False
    looks_at_other_rows: bool = False
    rfc4180: bool = False
    typed_elsewhere: bool = False
    unproved: tuple[str, ...] = ()
    lost: list[str] = field(default_factory=list)
    seen: dict[str, AuditPosition] = field(default_factory=dict)
    noise: NoiseRecord = field(default_factory=NoiseRecord)
    part: float = 1.0
    progress: Progress = ignore_progress
    loop: Callable[[int], Iterable[int]] = range
    released: Callable[[str, bytes], bytes] | None = None
    _steps: Iterator[int] = field(default_factory=itertools.count)
    _foreign: dict[ForeignPart, None] = field(default_factory=dict)  # in order of their first use
    _told: set[str] = field(default_factory=set)  # the sites that have answered
    _reached: set[str] = field(default_factory=set)  # those of them that answered this process: they have the agreement
    _missing: dict[str, str] = field(default_factory=dict)  # why the last exchange has no answer of these sites

    @property
    def schema(self) -> Schema:
        """The agreed schema."""
        return self.terms.schema

    @property
    def budget(self) -> Budget:
        """The budget that the run started with."""
        return self.terms.budget

    @cached_property
    def agreement(self) -> Agreement:
        """What the run is agreed to be."""
        if self.agreed is not None:
            return self.agreed
        return Agreement.of(self.terms, len(self.identities), roster=roster_digest(self.identities))

    @property
    def statement(self) -> Statement:
        """The privacy statement of the run so far: the guarantee, the unit of protection and the assumptions."""
        exact, epsilon, delta = self.agreement.guarantee, self.budget.epsilon, self.budget.delta
        kind, built_in = type(self.trust), TRUSTS.get(self.trust.name)
        if built_in is None or named(built_in.place) is not kind:
            self.rest_on("trust", self.trust.name, place_of(kind))
        return Statement(
            terms=self.terms,
            spent=self.ledger.spent,
            exact_releases=self.ledger.exact_releases,
            simulated=self.simulated,
            assumption=self.trust.assumption,
            seeded=self.seeded,
            looks_at_other_rows=self.looks_at_other_rows,
            exact=exact.epsilon if exact.delta == delta and exact.epsilon < epsilon else None,
            sampled=any(isinstance(entry.release, SampledGaussian) for entry in self.ledger.entries),
            rfc4180=self.rfc4180,
            typed_elsewhere=self.typed_elsewhere,
            foreign=tuple(self._foreign),
            records=None if self.sizes is None else float(sum(self.sizes.values())),
        )

    def rest_on(self, role: Role, name: str, place: str) -> None:
        """Note that the guarantee rests on a part that another package provides, at ``place`` (package.module:Class).

        ``role`` and ``name`` are those of :class:`~fedsynth.statement.ForeignPart`. The part is accepted if its
        place is among :attr:`unproved`, and the class of a question also where real sites answer it: their policies
        name it.
        """
        accepted = place in self.unproved or (role == "query" and not self.simulated)
        self._foreign[ForeignPart.of(role, name, place, accepted=accepted)] = None

    def cohorts(self, rate: float, rounds: int = 1, cap: int | None = None) -> list[Federation]:
        """Draw the sites of up to ``rounds`` rounds, all in advance, and return one federation for each round.

        Each is this federation with some of its ``sites``, in the same order, and with the same ledger and ``lost``. A
        site joins a round with probability ``rate`` in (0, 1] (else :class:`InvalidParameter`), as long as it is in
        fewer than ``cap`` rounds (``None``: any number). A round is redrawn until it has a site; the list is shorter if
        ``cap`` leaves no site for more.

        The draw depends on no data, so it costs no privacy to know it beforehand, and a method can calibrate its noise
        to it. No amplification by sampling is claimed: a site is charged in full for each round that it is drawn for.
        """
        if not 0 < rate <= 1:
            raise InvalidParameter(f"a cohort's rate must lie in (0, 1], not {rate}; 0.1 asks a tenth of the sites")
        joined = dict.fromkeys(self.sites, 0)
        found: list[Federation] = []
        while len(found) < rounds and (pool := [site for site in self.sites if cap is None or joined[site] < cap]):
            joining: tuple[str, ...] = ()
            while not joining:
                draws = self.rng.random(len(pool))
                joining = tuple(site for site, draw in zip(pool, draws, strict=True) if draw < rate)
            for site in joining:
                joined[site] += 1
            found.append(replace(self, sites=joining))
        return found

    def repeat(self, what: str, times: int) -> Iterator[int]:
        """Yield the numbers 0 to ``times - 1`` of training steps, and report progress under the name ``what``.

        A method must loop over it if its steps send the same queries at the same prices and differ only in a network's
        weights. A dry run, which forecasts costs, then takes one step and counts it ``times`` times.
        """
        for step in self.loop(times):
            self.progress(what, step, times)
            yield step
        self.progress(what, times, times)

    def sum(self, query: Query, share: Share, weights: Weights | None = None) -> Sum:
        """Return the released sum of ``query`` over the sites, for ``share`` of the budget.

        ``weights`` are the weights of the network (float32, flat), for queries that train
        (:class:`~fedsynth.federation.query.Training`); others take none. R sums in R rounds cost R times as much as
        one, so give each 1 / R of the share. Since training samples rows, the same share buys it smaller noise; it
        raises :class:`Unsupported` under a budget with delta = 0.
        """
        (result,) = self.sums(dict.fromkeys(self.sites, (query,)), share, weights)
        return result

    def sums(self, per_site: Mapping[str, Sequence[Query]], share: Share, weights: Weights | None = None) -> list[Sum]:
        """Return one released sum for each distinct query, over the sites to which ``per_site`` assigns it.

        ``per_site`` maps a site's name to its queries. Sums are in the order in which queries first appear there; a sum
        that no site answered is left out, so tell them apart by the content of :attr:`Sum.query`, a copy of the query.
        All queries are asked at the same time, in as many exchanges of messages as a single one would take. A site with
        several queries is charged ``share`` of the budget for each.
        """
        return self._summed("sum", per_site, share, weights)

    def average(self, query: Training, share: Share, weights: Weights) -> Sum:
        """Return the weighted sum over sites of the changes that each site's own training makes to ``weights``.

        For ``share``, every site adds its own noise to each step of its training. The trust model adds none; a secure
        sum only hides the single sites' updates. The query gives each site a weight in the sum, by the number of rows
        that it names for the site, not by the site's own count; divide the sum by the total weight of the sites in
        :attr:`Sum.sites` to get the average.
        """
        (result,) = self._summed("average", dict.fromkeys(self.sites, (query,)), share, weights)
        return result

    def each(self, query: Query, share: Share) -> dict[str, Sum]:
        """Return every answering site's own answer to ``query`` by the site's name.

        Under any trust model, each site itself adds the full noise of ``share``.
        """
        return self._each(query, self._noise(query, share, pooled=False))

    def public_sizes(self) -> dict[str, int]:
        """Return the number of rows of each site that answers, by the site's name, at no cost.

        Raises :class:`Refused` if a site's policy does not declare this number public.
        """
        return {site: int(found.values[0]) for site, found in self._each(RecordCount(), Public()).items()}

    def choose(self, selection: Selection | Mapping[str, Selection], share: Share) -> dict[str, tuple[int, ...]]:
        """Return the candidates that each site selected privately on its own rows, by the site's name.

        Give one selection for all sites, or a mapping from each site's name to a selection
        (:class:`~fedsynth.federation.query.Selection`). ``share`` pays for all its steps. The result lists the index of
        one candidate per step; sites that do not answer are missing.
        """
        step = next(self._steps)
        per_site = selection if isinstance(selection, Mapping) else dict.fromkeys(self.sites, selection)
        self._refuse_unknown(per_site)
        groups = self._grouped(
            {site: (one,) for site, one in per_site.items()},
            lambda one: self._request(step, "choose", one, self._draw(one, share)),
        )
        requests: dict[str, Request] = {}
        for request, sites in groups.values():
            self._charge(self._quote(request), sites)
            requests |= dict.fromkeys(sites, request)
        picks: dict[str, tuple[int, ...]] = {}
        for request, reply in self._exchange([(site, requests[site]) for site in per_site]):
            drawn = request.query
            assert isinstance(drawn, Selection)
            values = self._numbers(reply, drawn.steps, 0, drawn.candidate_count - 1)
            if values is not None:
                picks[reply.site] = tuple(values.tolist())
        self._require(picks, per_site)
        return picks

    def deposit(self, query: Counts, share: float) -> Vault:
        """Pool the exact tables of ``query`` in a vault; ``share`` pays for everything that the vault will release.

        Each site is charged the whole of ``share`` when it deposits. Called on a cohort (:meth:`cohorts`), only its
        sites deposit now; others may later (:meth:`deposit_into`). Raises :class:`InvalidParameter` for a query that
        bins one column in two ways.
        """
        protocol = self.require_vault()
        if len({axis.column for axis in query.axes}) < len(query.axes):
            raise InvalidParameter("a vault holds each column over one axis; deposit one for each")
        request = self._request(next(self._steps), "deposit", query, deposit_for(self.budget, share * self.part))
        digest = request.question

        def bits(purpose: str) -> KeyedBits:
            return KeyedBits(self.secret, f"vault {digest} {purpose}".encode())

        asked = VaultQuestion(query, self.ledger, share, self.part, request.head.step, digest, bits, self._note)
        vault = protocol.create(self.terms, asked)
        self._fill(vault, request, self.sites)
        return vault

    def deposit_into(self, vault: Vault) -> None:
        """Let those sites of this federation or cohort that were not asked yet deposit their tables in ``vault``.

        Each of these sites is charged the deposit's whole share. A site that was asked and lost is not asked again,
        since it may have paid. Raises :class:`InvalidParameter` for a vault of another run, whose releases these sites
        would not have paid.
        """
        if vault.question.ledger is not self.ledger:
            raise InvalidParameter("this vault belongs to another run; deposit into a vault of this one")
        new = [site for site in self.sites if site not in vault.asked]
        if new:
            release = deposit_for(self.budget, vault.question.share * vault.question.part)
            self._fill(vault, self._request(next(self._steps), "deposit", vault.question.query, release), new)

    def require_vault(self, *, scores: bool = False) -> VaultProtocol:
        """Return how the trust model makes vaults; raises :class:`Unsupported` if it has none.

        Methods that put other questions before they deposit call it first. With ``scores``, the method also needs noisy
        scores of all candidates (:meth:`Vault.scores <fedsynth.federation.vault.Vault.scores>`), which a vault in
        secret shares cannot give.
        """
        found = self.trust.vault
        if found is None:
            raise Unsupported(
                "this method needs a server that may see exact counts (--trust trusted), or three servers that hold "
                f"shares of them (--trust three-servers); with --trust {self.trust.name} use oneshot or flaim"
            )
        if scores and not found.opens_scores:
            raise Unsupported(
                f"this method needs noisy scores of every candidate, which --trust {self.trust.name} cannot release; "
                "use aim, mst or privbayes, or fedprivsyn with --trust secure"
            )
        return found

    def std(self, query: Query, share: Share, sites: int | None = None) -> float:
        """Return the noise's standard deviation in each cell of a sum of ``query``, without asking any site.

        ``sites`` is the number of sites in the sum (default: all). The unit is that of the answer's integers
        (:attr:`Sum.std`). Raises :class:`Unsupported` under a trust model without sums.
        """
        count = len(self.sites) if sites is None else sites
        release = noise_of(self._noise(query, share, pooled=self.trust.pooled))
        return sums_of(self.trust).std(release, self._norms(query, pooled=self.trust.pooled), count)

    # -----------------------------------------------------------------------------------------------------------------
    # Prices

    def _noise(self, query: Query, share: Share, *, pooled: bool) -> Noise | SampledGaussian:
        """Return the noise for a share; a person at several sites is charged once per site that adds its own noise."""
        if isinstance(share, Exact):
            return share
        times, share = times_charged(self.terms.unit, pooled=pooled), share * self.part
        if not isinstance(query, Training):
            return noise_for(self.budget, share, times)
        rows = self._norms(query, pooled=pooled).rows
        return sampled_for(self.budget, share, query.rate, query.steps, rows, times)

    def _draw(self, selection: Selection, share: Share) -> Release:
        """Return the selection mechanism for a share, of which noisy looks get the selection's ``look_share``."""
        times, steps = times_charged(self.terms.unit, pooled=False), selection.steps
        if isinstance(share, Exact):
            return share if steps == 1 else AdaptiveSelection(share, share, steps)
        share *= self.part
        if steps == 1:
            return draw_for(self.budget, share, times)
        pick = draw_for(self.budget, share * (1 - selection.look_share) / steps, times)
        look = noise_for(self.budget, share * selection.look_share / (steps - 1), times)
        return AdaptiveSelection(pick, look, steps)

    def _norms(self, query: Query, *, pooled: bool) -> Norms:
        return protect(query.sensitivity(self.schema), self.terms.change, pooled=pooled)

    def _charge(self, quote: Quote, sites: Sequence[str]) -> Entry:
        request, entry = quote.request, quote.entry(sites)
        if not is_built_in(kind := type(request.query)):
            self.rest_on("query", kind.kind, place_of(kind))
        self.ledger.record(entry)
        self.noise.add(quote, entry, self.budget, len(self.identities))
        return entry

    def _quote(self, request: Request) -> Quote:
        return Quote.of(request, self.schema, self.trust)

    def _note(self, entry: Entry, tables: Counts | None) -> None:
        self.ledger.note(entry)
        if tables is not None:
            self.noise.count(tables, self.schema, entry.std * len(self.identities) / max(1, len(entry.sites)))
            self.noise.warn(self.budget)

    # -----------------------------------------------------------------------------------------------------------------
    # Questions and answers

    def _grouped(
        self, per_site: Mapping[str, Sequence[_Asked]], request_of: Callable[[_Asked], Request]
    ) -> dict[str, tuple[Request, list[str]]]:
        """Return every distinct question by its digest, with the sites that it is sent to, each once."""
        groups: dict[str, tuple[Request, list[str]]] = {}
        known: dict[int, str] = {}  # by id: most sites get the same query object, which is encoded once
        for site, queries in per_site.items():
            for query in queries:
                if id(query) not in known:
                    request = request_of(query)
                    known[id(query)] = request.question
                    groups.setdefault(request.question, (request, []))
                asked = groups[known[id(query)]][1]
                if asked[-1:] != [site]:
                    asked.append(site)
        return groups

    def _request(self, step: int, verb: Verb, query: AnyQuery, release: Release) -> Request:
        request = Request.of(query, self.agreement, run=self.run, step=step, verb=verb, release=release)
        request.query.check(self.schema)
        if isinstance(request.query, Query):
            check_cells(request.query, self.schema)
        return request

    def _each(self, query: Query, release: Release) -> dict[str, Sum]:
        request = self._request(next(self._steps), "each", query, release)
        entry = self._charge(self._quote(request), self.sites)
        found = {}
        for _, reply in self._exchange([(site, request) for site in self.sites]):
            values = self._numbers(reply, entry.cells, *self._range(query, reply.site, release))
            if values is not None:
                found[reply.site] = self._sum(request, Released((reply.site,), entry.std * query.unit, values))
        self._require(found, self.sites)
        return found

    def _fill(self, vault: Vault, request: Request, sites: Sequence[str]) -> None:
        """Ask ``sites`` to deposit their tables in a vault; a resumed run admits the same sites again."""
        vault.asked.update(sites)
        self._charge(self._quote(request), sites)
        answered = self._taken(vault, request, sites)
        self._require({*vault.sites, *answered}, {*vault.sites, *sites})
        first = self._first(request.question, VaultRecord(answered)).sites
        if first != answered:  # resumed run: earlier releases hid the total of these sites
            answered = self._taken(vault, request, first)
        if missing := sorted(set(first) - set(answered)):
            raise SiteLost(
                f"{', '.join(missing)} deposited in this run's vault, which cannot be rebuilt without "
                "them; restart them and run the same command again, or start another run"
            )
        vault.keep()

    def _taken(self, vault: Vault, request: Request, sites: Sequence[str]) -> tuple[str, ...]:
        """Hand the answers of ``sites`` to a vault, and return the sites whose answers it accepted."""
        query = request.query
        assert isinstance(query, Query)
        request.signature = sign_request(self.coordinator, request.body)
        vault.begin(request)
        answered = []
        for _, reply in self._exchange([(site, request) for site in sites]):
            if reply.answer is None:
                continue
            bounds = self._range(query, reply.site, Exact())
            if (
                isinstance(reply.answer, PlainAnswer)
                and self._numbers(reply, query.cells(self.schema), *bounds) is None
            ):
                continue
            try:
                vault.take(reply.site, reply.answer)
            except SiteLost:
                raise
            except FedsynthError as error:
                self._reject(reply, str(error))
                continue
            answered.append(reply.site)
        return tuple(answered)

    def _first(self, question: str, found: _Recorded) -> _Recorded:
        """Return what was recorded first for the question: ``found``, unless the run was resumed."""
        if self.released is None:
            return found
        written = encode(found)
        first = self.released(question, written)
        settled: _Recorded = found if first == written else decode(first, type(found))
        return settled

    def _sum(self, request: Request, released: Released) -> Sum:
        query = request.query
        assert isinstance(query, Query)
        tables, stds = query.split(self.schema, released.values), query.stds(released.std)
        return Sum(query, tables, stds, released.values, released.std, released.sites, request.head.release)

    def _summed(
        self, verb: Verb, per_site: Mapping[str, Sequence[Query]], share: Share, weights: Weights | None
    ) -> list[Sum]:
        step = next(self._steps)
        self._refuse_unknown(per_site)
        pooled = verb == "sum" and self.trust.pooled
        groups = self._grouped(
            per_site, lambda query: self._request(step, verb, query, self._noise(query, share, pooled=pooled))
        )
        protocol, sums = sums_of(self.trust), []
        for request, asked in groups.values():  # all are in the server's ledger before any message is sent
            quote = self._quote(request)
            bits = partial(self._bits, request.question)
            sums.append((request, protocol.aggregation(request.question, quote.noise, quote.norms, asked, bits)))
            self._charge(quote, asked)
        self._converse(protocol, sums, per_site, b"" if weights is None else weights.astype("<f4").tobytes())
        try:
            found = [(request, one.result()) for request, one in sums]
        except SiteLost as error:
            raise self._lost(str(error)) from error
        # Check before a release is recorded: a recorded sum of too few sites could not be replaced.
        self._require({site for _, one in found if one is not None for site in one.sites}, per_site)
        return [self._sum(of, self._first(of.question, one)) for of, one in found if one is not None]

    def _refuse_unknown(self, asked: Collection[str]) -> None:
        if unknown := sorted(set(asked) - set(self.sites)):
            raise InvalidParameter(
                f"this federation or cohort has no sites {', '.join(unknown)}; its sites are {', '.join(self.sites)}"
            )

    def _converse(
        self,
        protocol: SumProtocol,
        sums: Sequence[tuple[Request, Aggregation]],
        per_site: Collection[str],
        weights: bytes,
    ) -> None:
        """Run sums in lockstep: each exchange carries the same turn of all sums.

        If too few sites answer a turn before the values are sent, the run stops in that turn: once the remaining sites
        have been told that the others dropped out, a resumed run could not include them again.
        """
        turn, answered = 0, False
        while any(events := [one.ask() for _, one in sums]):
            asked: list[tuple[str, Request]] = []
            hearing: list[Aggregation] = []
            for (request, one), by_site in zip(sums, events, strict=True):
                shared: dict[int, Request] = {}
                for site, event in by_site.items():
                    beside = weights if turn == protocol.reads else b""
                    message = shared.get(id(event)) or request.at(turn, event, beside)
                    shared[id(event)] = message
                    asked.append((site, message))
                    hearing.append(one)
            heard: set[str] = set()  # names alone: answers are not kept once they are in their sum
            plain = False
            for one, (request, reply) in zip(hearing, self._exchange(asked), strict=True):
                if self._hear(protocol, one, request, reply):
                    heard.add(reply.site)
                    plain = plain or isinstance(reply.answer, PlainAnswer)
            if not answered:
                self._require(heard, per_site)
            answered = answered or plain
            turn += 1

    def _hear(self, protocol: SumProtocol, aggregation: Aggregation, request: Request, reply: Reply) -> bool:
        """Hand an answer to its sum, and return whether it was valid; a malformed reply counts as a dropout."""
        query = request.query
        assert isinstance(query, Query)
        if reply.answer is None:
            return False
        if protocol.turns == 1:
            release = Exact() if self.trust.pooled else noise_of(request.head.release)
            if self._numbers(reply, query.cells(self.schema), *self._range(query, reply.site, release)) is None:
                return False
        elif isinstance(reply.answer, PlainAnswer) and reply.answer.values.shape != (query.cells(self.schema),):
            self._reject(reply, f"it sent {reply.answer.values.size} numbers instead of {query.cells(self.schema)}")
            return False
        try:
            aggregation.receive(reply.site, reply.answer)
        except FedsynthError as error:
            self._reject(reply, str(error))
            return False
        return True

    def _exchange(self, asked: Sequence[tuple[str, Request]]) -> Iterator[tuple[Request, Reply]]:
        """Yield each request with its reply; record sizes and lost sites, and raise an error if a site refused."""
        attempt = bytes(ATTEMPT) if self.seeded else None  # a simulation with a seed sends the same bytes each time
        messages, told = [], set(self._told)
        self._missing.clear()
        for site, request in asked:
            seen = self.seen.get(site, AuditPosition())
            keys = (self.identities[site], request, self.coordinator)
            messages.append(Message.of(site, *keys, seen, attempt, agreed=site in self._reached))
        for message, reply in zip(messages, self.transport.exchange(messages), strict=True):
            request, head = message.request, message.request.head
            again = len(message.agreement) if message.site in told else 0  # a resumed run sends it once more
            self.ledger.count(request.question, request.turn, message.site, message.size - again, len(reply.data))
            if reply.code == "answered":
                self._told.add(reply.site)
                if reply.seen.row:  # from the site itself, not from a transcript
                    self._reached.add(reply.site)
            if reply.seen.row > self.seen.get(reply.site, AuditPosition()).row:
                self.seen[reply.site] = reply.seen
            if reply.code == "refused":
                raise Refused(
                    f"site {reply.site} refused step {head.step} ({head.verb} {head.kind}); its steward reads the "
                    "reason with fedsynth account"
                )
            if reply.code == "spent":
                raise BudgetExceeded(
                    f"site {reply.site} has too little budget left for step {head.step} ({head.verb} {head.kind}), of "
                    "its limit for one run or for all; ask for less, or ask its steward, who sees the limit (fedsynth "
                    "account), to raise it"
                )
            if reply.code != "answered":
                self.lost.append(reply.site)
                self._missing[reply.site] = reply.lost or reply.code
            yield request, reply

    def _numbers(self, reply: Reply, cells: int, low: float, high: float) -> Integers | None:
        """Return the integers of an answer; ``None`` if there are none, or their number or range is wrong."""
        if reply.answer is None:
            return None
        try:
            values = values_of(reply.site, reply.answer)
        except FedsynthError as error:
            self._reject(reply, str(error))
            return None
        if values.shape != (cells,):
            self._reject(reply, f"it sent {values.size} numbers instead of {cells}")
        elif cells and not (low <= int(values.min()) and int(values.max()) <= high):
            self._reject(reply, "it sent numbers out of the possible range")
        return None if reply.rejected else values

    def _reject(self, reply: Reply, why: str) -> None:
        _log.warning("site %s is left out of this round: %s", reply.site, why)
        reply.rejected = True
        self.lost.append(reply.site)
        self._missing[reply.site] = why

    def _range(self, query: Query, site: str, release: Release) -> tuple[float, float]:
        """Return the bounds of a site's valid answer: the range of sums over its rows, widened by the noise."""
        rows = self.largest_site_rows if self.sizes is None else self.sizes.get(site, self.largest_site_rows)
        norms = self._norms(query, pooled=False)
        return query.answer_range(self.schema, rows, _TAIL * noise_std(release, norms) if norms.l2 else 0.0)

    def _bits(self, question: str, exact: Integers) -> KeyedBits:
        """Return the server's noise source for a question, bound to the exact sum that the noise hides."""
        content = hashlib.sha256(exact.tobytes()).hexdigest()
        return KeyedBits(self.secret, f"sum {question} {content}".encode())

    def _require(self, answered: Collection[str], asked: Collection[str]) -> None:
        required = min(self.min_sites, len(asked))  # a cohort may have fewer sites
        if len(answered) < required:
            raise self._lost(f"{number_of(len(answered), 'site')} answered and {required} are required")

    def _lost(self, said: str) -> SiteLost:
        """Return the error of a round with too few answers: ``said``, why they are missing, and what helps."""
        by_why: dict[str, list[str]] = {}
        for site, why in sorted(self._missing.items()):
            by_why.setdefault(why, []).append(site)
        void, dropped, failed = (by_why.pop(why, []) for why in ("void", DROPPED, "failed"))
        told = [f"{_few(sites)}: {why}" for why, sites in by_why.items()]
        if by_why:
            told.append(
                "restart what is missing (the log of each site says what is wrong) and run the same command again: it "
                "resumes, and only unanswered rounds are charged"
            )
        if failed:
            told.append(
                f"{_few(failed)} could not answer: its steward reads why with `fedsynth account`; have that mended and "
                "run the same command again"
            )
        if dropped:
            told.append(f"{_few(dropped)} dropped out before the run was resumed: take another name of the run")
        if void:
            told.append(
                f"this question failed for good at {_few(void)}, which was charged for it: have what `fedsynth "
                "account` says there mended, and take another name of the run"
            )
        kind = SiteLost if by_why or failed or not told else RunLost
        return kind("; ".join([said, *told]))


def _few(sites: Sequence[str]) -> str:
    return ", ".join(sites[:_NAMED]) + (f" and {len(sites) - _NAMED} more" if len(sites) > _NAMED else "")


def begun(
    terms: Terms,
    trust: Trust,
    transport: Transport,
    *,
    run: str,
    rng: np.random.Generator,
    secret: bytes,
    coordinator: Keys,
    identities: Mapping[str, bytes],
    simulated: bool,
) -> Federation:
    """Return a :class:`Federation` of all sites that has asked nothing yet, ``simulated`` or over a network.

    Its sums are recorded where the ``transport`` records messages (:class:`~fedsynth.federation.transport.Recorded`).
    """
    released = transport.released if isinstance(transport, Recorded) else None
    ledger, sites = Ledger(terms.budget), tuple(identities)
    made = (terms, ledger, trust, transport, sites, rng, run, secret, coordinator, identities)
    return Federation(*made, simulated=simulated, released=released)

"""The proof of a run: recomputes every release from the transcript, and compares it with the ledger and the sites.

Three sources are compared. The *transcript* holds every question in the bytes that the coordinator signed; sensitivity,
noise and cost follow from the schema and the question alone, as at a site. The server's *ledger* holds what the run
reports. A site's *account extract*, signed by the site, lists the questions that the site was in fact asked and
charged. Without extracts, a sheet proves consistency only: the completeness of the transcript rests on the server.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedsynth.errors import FedsynthError, InvalidParameter
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.events import PlainAnswer
from fedsynth.federation.query import BUILT_IN, PUBLISHED, Counts, Query, Selection
from fedsynth.federation.question import QuestionHead
from fedsynth.federation.quote import Quote
from fedsynth.federation.transport import recorded_answer, records
from fedsynth.federation.trust import Released, Trust
from fedsynth.federation.wire import (
    DIGEST,
    MessageParts,
    Reply,
    Request,
    WireError,
    agreed_in,
    decode,
    read_reply,
    read_without_content,
)
from fedsynth.privacy.cost import ROUNDING, Budget, Cost, Norms, Unit, protect, to_json
from fedsynth.privacy.ledger import Entry, Ledger, LedgerFile
from fedsynth.privacy.losses import LEAST_STEP, fixed_epsilon, sampled_steps
from fedsynth.privacy.release import (
    AdaptiveSelection,
    Deposit,
    Exponential,
    Gaussian,
    Laplace,
    Public,
    Release,
    SampledGaussian,
)
from fedsynth.proof.extract import AccountExtract
from fedsynth.proof.sheet import ProofSheet, ProvedRelease, name_of, price
from fedsynth.runs.folder import RunFolder
from fedsynth.schema import Schema
from fedsynth.schema.bins import Integers
from fedsynth.trusts import TRUSTS

# ---------------------------------------------------------------------------------------------------------------------
# The transcript


@dataclass(eq=False)
class _Asked:
    """One question of the transcript; ``answers`` hold each site's integers and audit row, ``None`` if sealed.

    The integers are ``None`` where the transcript keeps their digest alone.
    """

    request: Request
    answers: dict[str, tuple[Integers | None, int] | None] = field(default_factory=dict)
    released: list[bytes] = field(default_factory=list)

    @property
    def name(self) -> str:
        return name_of(self.request.head)


@dataclass(eq=False)
class _Transcript:
    """All questions by digest, in their order, and the last audit row of each site in its recorded answers.

    Answers of sites whose ``identities`` are given must be signed with them. ``reads`` is the turn of a sum in which
    sites read their rows: the answer without content to it is the one that counts.
    """

    path: Path
    identities: Mapping[str, bytes]
    reads: int
    asked: dict[str, _Asked] = field(default_factory=dict)
    last_row: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _messages: dict[str, Request] = field(default_factory=dict)
    _parts: dict[str, MessageParts] = field(default_factory=dict)
    _agreed: dict[str, Agreement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, data in records(self.path):
            try:
                self._take(kind, data)
            except (FedsynthError, ValueError) as error:
                self.problems.append(f"a record ({kind}) of the transcript is not understood: {error}")

    def _take(self, kind: str, data: bytes) -> None:
        if kind == "question":
            request = Request.read(data, agreed_in(self._agreed), None)
            self._messages[request.digest] = request
            self._parts[request.digest] = MessageParts.of(data)
            self.asked.setdefault(request.question, _Asked(request))
        elif kind == "message":
            parts = MessageParts.read(data)
            if parts.question.hex() not in self.asked:
                self.problems.append("a message of a question is not in the transcript, but a later one is")
            self._parts[parts.digest.hex()] = parts
        elif kind == "agreement":
            agreement = Agreement.read(data)
            self._agreed[agreement.digest] = agreement
        elif kind == "released":
            asked = self.asked.get(data[:DIGEST].hex())
            if asked is None:
                self.problems.append("a sum was released for a question that is not in the transcript")
            else:
                asked.released.append(data[DIGEST:])
        elif kind == "signed":
            self._hear_signed(*recorded_answer(data))
        else:
            site, digest, reply = recorded_answer(data)
            answered = self._messages.get(digest)
            if answered is None:
                self.problems.append(f"site {site} answered a question that is not in the transcript")
            elif kind == "withheld":
                self.asked[answered.question].answers[site] = None
            else:
                self._hear(answered, read_reply(reply, answered, site, self.identities.get(site), _sealed))

    def _hear(self, request: Request, reply: Reply) -> None:
        row = reply.seen.row
        self.last_row[reply.site] = max(row, self.last_row.get(reply.site, 0))
        if isinstance(reply.answer, PlainAnswer):  # a secure sum's other answers carry no charge
            self.asked[request.question].answers[reply.site] = reply.answer.values, row

    def _hear_signed(self, site: str, digest: str, reply: bytes) -> None:
        """Take an answer without content: its signature is over the message, and the message over its question."""
        parts = self._parts.get(digest)
        asked = None if parts is None else self.asked.get(parts.question.hex())
        if parts is None or asked is None:
            self.problems.append(f"site {site} answered a question that is not in the transcript")
            return
        head, found = read_without_content(reply, site, self.identities.get(site))
        if head.message != digest or found.code != "answered":
            raise WireError(f"the reply of {site} answers another message, or says that there is no answer")
        row = found.seen.row
        self.last_row[site] = max(row, self.last_row.get(site, 0))
        if int.from_bytes(parts.turn, "little") == self.reads:
            asked.answers[site] = None, row


def _sealed(box: bytes | memoryview, site: str, digest: str) -> bytes:
    raise WireError("a transcript must not hold sealed answers")


# ---------------------------------------------------------------------------------------------------------------------
# The sheet


def prove(
    transcript: Path,
    ledger: Path,
    schema: Schema,
    trust: Trust,
    limit: Budget,
    *,
    extracts: Sequence[AccountExtract] = (),
    identities: Mapping[str, bytes] | None = None,
    settings: Agreement | None = None,
) -> ProofSheet:
    """Recompute every release of a run from its files; return a proof sheet of all releases and contradictions.

    Parameters
    ----------
    transcript
        The file in which the run recorded every message (:class:`~fedsynth.federation.transport.Recorded`).
    ledger
        The file in which the server reports releases and costs. A privacy statement in it is checked too.
    schema, trust, limit
        The run's schema, trust model (with the roster, if it has one) and budget.
    extracts
        Signed account extracts of some or all sites, to show that the transcript is complete.
    identities
        Public identity keys (32 bytes) by the site's name, from a source other than the server: extracts and recorded
        answers must be signed with them.
    settings
        What the run's settings say of its agreement: who is protected, whether sizes are public, and what is asked.

    Raises :class:`FedsynthError` for unreadable files; all other faults are listed in the sheet's ``problems``.
    """
    reads = trust.sums.reads if trust.sums else 0
    prover = _Prover(_Transcript(transcript, identities or {}, reads), LedgerFile.read(ledger), schema, trust, limit)
    if settings is not None:
        prover.check_settings(settings)
    return prover.sheet(extracts, identities or {})


def prove_run(
    run: RunFolder, extracts: Sequence[AccountExtract] = (), identities: Mapping[str, bytes] | None = None
) -> ProofSheet:
    """Recompute the privacy cost of every answer that a finished run released, and compare it with the run's ledger.

    ``extracts`` and ``identities`` are those of :func:`prove`. Raises :class:`~fedsynth.errors.FedsynthError` for a
    folder without a run, or without one of its files.
    """
    run.require(run.run_file, run.schema_file, run.ledger_file, run.transcript)
    return prove(
        run.transcript,
        run.ledger_file,
        run.schema,
        run.trust,
        run.job.budget,
        extracts=extracts,
        identities=identities,
        settings=Agreement.of(run.job.terms(run.schema), 1, answers=run.job.declared),
    )


@dataclass(eq=False)
class _Prover:
    transcript: _Transcript
    ledger: LedgerFile
    schema: Schema
    trust: Trust
    limit: Budget
    lines: dict[str, ProvedRelease] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)

    def sheet(self, extracts: Sequence[AccountExtract], identities: Mapping[str, bytes]) -> ProofSheet:
        self.problems += self.transcript.problems
        heads = [asked.request.head for asked in self.transcript.asked.values()]
        runs = sorted({head.run for head in heads})
        agreements = self._agreements
        if len(runs) > 1 or len(agreements) > 1:
            self._problem("the questions are of several runs, or name different agreements; one run has one of each")
        self._match()
        vault = list(self._vault_lines())
        book = Ledger(Budget.none())
        for line in self.lines.values():
            book.record(line.entry)
        exact = book.exact_releases
        for line in vault:
            book.note(line.entry)
        self._check_totals(book)
        run = runs[0] if runs else ""
        if self.ledger.statement is not None:
            self._check_statement(self.ledger.statement, exact)
        self._check_extracts(extracts, identities, run)
        return ProofSheet(
            run,
            self.trust.name,
            self.schema.digest,
            _protected(next(iter(agreements.values()))) if agreements else "nobody was asked anything",
            self.limit,
            (*self.lines.values(), *vault),
            book.per_site,
            exact,
            tuple(self.confirmed),
            tuple(self.notes),
            tuple(self.problems),
        )

    def check_settings(self, settings: Agreement) -> None:
        """Compare what the run's settings say with what its questions name as agreed."""
        for agreed in self._agreements.values():
            for name in ("unit", "public_sizes", "answers"):
                said, had = getattr(settings, name), getattr(agreed, name)
                if said != had:
                    self._problem(f"the run's settings say {name} = {said}, and what was agreed says {had}")

    @property
    def _agreements(self) -> dict[str, Agreement]:
        return {asked.request.head.agreement: asked.request.agreement for asked in self.transcript.asked.values()}

    def _problem(self, text: str) -> None:
        self.problems.append(text)

    # Releases

    def _match(self) -> None:
        """Recompute every question's release, and compare it with the ledger's entry for the question."""
        entries: dict[str, list[Entry]] = {}
        for entry in self.ledger.entries:
            if entry.sites and not entry.paid_by:
                entries.setdefault(entry.question, []).append(entry)
        for digest, asked in self.transcript.asked.items():
            found = entries.pop(digest, [])
            if not self._understood(asked):
                continue
            if not found:
                self._problem(f"{asked.name} was asked, and the ledger has no entry for it")
            if len(found) > 1:
                self._problem(f"{asked.name} was asked once, and the ledger has {len(found)} entries for it")
            self.problems += [f"{asked.name}: {wrong}" for entry in found for wrong in self._differences(asked, entry)]
            self.lines[digest] = self._line(asked, found[0] if found else None)
            self._check_released(asked, self.lines[digest].entry.cells)
        for entry in (entry for same in entries.values() for entry in same):
            self._problem(f"the ledger has {name_of(entry)}, and the transcript has no such question")

    def _understood(self, asked: _Asked) -> bool:
        """Whether a question can be recomputed: it is valid under the run's schema and trust model."""
        agreed = asked.request.agreement
        if (agreed.schema, agreed.trust) != (self.schema.digest, self.trust.name):
            self._problem(
                f"{asked.name} was asked under schema {agreed.schema[:12]} and trust {agreed.trust!r}, not the run's"
            )
            return False
        try:
            asked.request.query.check(self.schema)
        except InvalidParameter as error:
            self._problem(f"{asked.name} is not valid under this schema: {error}")
            return False
        return True

    def _quote(self, asked: _Asked) -> Quote:
        return Quote.of(asked.request, self.schema, self.trust)

    def _line(self, asked: _Asked, told: Entry | None) -> ProvedRelease:
        """Return the proved release of a question; what proves nothing is taken from its entry in the ledger."""
        head, query, quote = asked.request.head, asked.request.query, self._quote(asked)
        noise = _law(head.release, quote.norms)
        if isinstance(query, Selection) and isinstance(head.release, AdaptiveSelection):
            looked = query.look(0, self.schema).sensitivity(self.schema)
            noise = _law(head.release, protect(looked, asked.request.agreement.change, pooled=False))
        sites, turns = (tuple(asked.answers), []) if told is None else (told.sites, told.turns)
        return ProvedRelease(
            msgspec.structs.replace(quote.entry(sites), turns=turns),
            noise,
            tuple(sorted(asked.answers)),
            _tables(query, self.schema),
            quote.norms if isinstance(query, Query) else None,
            quote.pooled,
            quote.times,
        )

    def _differences(self, asked: _Asked, entry: Entry) -> Iterator[str]:
        right = self._quote(asked).entry(entry.sites)
        if name_of(right) != name_of(entry):
            yield f"the ledger calls it {name_of(entry)}"
        if right.release != entry.release:
            yield f"its price is {_law(right.release, None)}, and the ledger says {_law(entry.release, None)}"
        if right.cells != entry.cells:
            yield f"it has {right.cells} cells, and the ledger says {entry.cells}"
        if not _same(right.cost, entry.cost):
            yield f"it costs {self._price(right.cost)}, and the ledger says {self._price(entry.cost)}"
        if not (math.isnan(right.std) and math.isnan(entry.std)) and not _close(right.std, entry.std):
            yield f"its noise has a standard deviation of {right.std:.6g}, and the ledger says {entry.std:.6g}"
        if missing := sorted(set(asked.answers) - set(entry.sites)):
            yield f"{', '.join(missing)} answered, and the ledger does not charge them"

    def _check_released(self, asked: _Asked, cells: int) -> None:
        """Check a released sum: released once, of the right size and, without pooled noise, the sum of the answers."""
        if asked.request.head.verb not in ("sum", "average"):
            return
        if len(asked.released) != 1:
            if asked.released or (
                asked.answers and self.trust.sums and self.trust.sums.turns == 1
            ):  # a secure sum may fail
                self._problem(
                    f"{asked.name} was released {len(asked.released)} times; the transcript has one for each sum"
                )
            return
        try:
            released = decode(asked.released[0], Released)
        except WireError as error:
            self._problem(f"the released sum of {asked.name} is not understood: {error}")
            return
        if released.values.shape != (cells,):
            self._problem(f"{asked.name} released {released.values.size} numbers instead of {cells}")
        elif not set(released.sites) <= set(asked.answers):
            self._problem(f"{asked.name} released a sum with sites that have not answered")
        elif not self.trust.pooled:
            heard = [asked.answers[site] for site in released.sites]
            answers = [answer[0] for answer in heard if answer is not None and answer[0] is not None]
            if len(answers) < len(released.sites) or not np.array_equal(np.sum(answers, axis=0), released.values):
                self._problem(f"{asked.name} did not release the sum of the sites' noisy answers")

    def _vault_lines(self) -> Iterator[ProvedRelease]:
        """Yield the releases from vaults, and check that their prices add up to no more than their deposit's."""
        deposits = {digest: line for digest, line in self.lines.items() if line.entry.verb == "deposit"}
        deposited_by = {site for line in deposits.values() for site in line.answered}  # over all cohorts
        spent: dict[str, Cost] = {}
        for entry in self.ledger.entries:
            if not entry.paid_by:
                continue
            cost = entry.release.cost(Norms(1.0, 1.0))
            spent[entry.question] = spent.get(entry.question, Cost()) + cost
            deposit = deposits.get(entry.question)
            if deposit is None or entry.paid_by != f"deposit of step {deposit.entry.step}":
                self._problem(f"{name_of(entry)} is paid by the {entry.paid_by}, which is not in the transcript")
            elif not set(entry.sites) <= deposited_by:
                self._problem(f"{name_of(entry)} is of sites that deposited nothing")
            if not _same(cost, entry.cost):
                self._problem(
                    f"{name_of(entry)} costs {self._price(cost)}, and the ledger says {self._price(entry.cost)}"
                )
            yield ProvedRelease(msgspec.structs.replace(entry, cost=cost), _law(entry.release, None), entry.sites)
        for digest, cost in spent.items():
            if digest in deposits and not _covers((paying := deposits[digest].entry).cost, cost):
                name = f"deposit of step {paying.step}"
                self._problem(
                    f"releases of {self._price(cost)} are paid by the {name}, which is {self._price(paying.cost)}"
                )

    def _price(self, cost: Cost) -> str:
        return price(cost, self.limit)

    # Totals

    def _check_totals(self, book: Ledger) -> None:
        """Compare the ledger's totals with those of the recomputed releases."""
        told = self.ledger
        if told.budget != self.limit and not (told.budget.exact and self.limit.exact):
            self._problem(f"the ledger was held to {told.budget}, and the run's limit is {self.limit}")
        for site in sorted(set(told.per_site) | set(book.per_site)):
            cost, says = book.per_site.get(site, Cost()), told.per_site.get(site, Cost())
            if not _same(cost, says):
                self._problem(f"site {site} paid {self._price(cost)}, and the ledger says {self._price(says)}")
            if not self.limit.covers(cost):
                self._problem(f"site {site} paid {self._price(cost)}, more than the limit of the run")
        if not _same(book.spent, told.spent):
            self._problem(
                f"one person paid at most {self._price(book.spent)}, and the ledger says {self._price(told.spent)}"
            )
        if book.exact_releases != told.exact_releases:
            self._problem(f"releases without noise: {book.exact_releases}; the ledger says {told.exact_releases}")

    def _check_statement(self, stated: Mapping[str, Any], exact: int) -> None:
        requests = [asked.request for asked in self.transcript.asked.values()]
        heads = [request.head for request in requests]
        found = {"limit": to_json(self.limit), "trust": self.trust.name}
        if requests:
            change = requests[0].agreement.change
            found |= {"unit": to_json(change.unit), "neighbours": change.neighbours}
        for name, value in found.items():
            if stated.get(name) != value:
                self._problem(f"the statement says {name} = {stated.get(name)}, and the run had {value}")
        if sampled := any(isinstance(head.release, SampledGaussian) for head in heads):
            self.notes.append(
                "training on samples: that a row's gradient does not depend on other rows is tested, not proved"
            )
        if sampled and (not stated.get("sampled") or stated.get("basis") in ("proved", "computational")):
            self._problem("the statement calls the guarantee proved, and the run trained on samples, which is tested")
        self._check_foreign(stated, {head.kind for head in heads})
        if stated.get("private") and not stated.get("publishable"):
            self.notes.append(f"{stated.get('headline')}; this sheet is about costs, which do not cover that")
        if (epsilon := stated.get("exact")) is not None:
            self._check_exact(epsilon, [head for head in heads if not isinstance(head.release, Public)])
        if exact and stated.get("private"):
            self._problem(f"the statement gives a guarantee, and {exact} of the releases have no noise")

    def _check_foreign(self, stated: Mapping[str, Any], kinds: Set[str]) -> None:
        """Check that a statement names the kinds of questions whose sensitivity fedsynth does not prove."""
        foreign = sorted(kinds - BUILT_IN.keys() - PUBLISHED.keys())
        parts = stated.get("foreign")
        told = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        named = {str(part.get("name")) for part in told if part.get("role") == "query"}
        if missing := sorted(set(foreign) - named):
            self._problem(f"the statement does not name questions of other packages: {', '.join(missing)}")
        if foreign and stated.get("private") and stated.get("basis") != "assumed":
            self._problem(f"the statement calls proved what packages declare of questions: {', '.join(foreign)}")
        if foreign:
            self.notes.append(f"the sensitivity of {', '.join(foreign)} is declared by another package, not proved")

    def _check_exact(self, epsilon: float, heads: Sequence[QuestionHead]) -> None:
        """Check a stated epsilon by exact accounting, which requires Gaussian noise alone under one approved plan."""
        known = all(isinstance(head.release, Gaussian | SampledGaussian) for head in heads)
        agreed = self._agreements
        if not known or len(agreed) != 1 or not all(run.slots for run in agreed.values()):
            self._problem("the statement's exact epsilon is for Gaussian noise alone, under one approved plan")
        elif self.trust.name not in TRUSTS or not TRUSTS[self.trust.name].whole:
            self._problem(f"the statement's exact epsilon does not hold under the trust {self.trust.name!r}")
        elif (least := self._exact_epsilon(next(iter(agreed.values())).unit)) > epsilon * ROUNDING:
            self._problem(f"the statement says epsilon = {epsilon:.4g} by exact accounting; it is {least:.4g}")

    def _exact_epsilon(self, unit: Unit) -> float:
        """Return the epsilon of what was asked as a plan's guarantee (:attr:`Agreement.guarantee`) computes it."""
        spent: dict[str, float] = {}
        prices = [0.0]
        sampled: dict[tuple[str, str, bool], tuple[SampledGaussian, Counter[str]]] = {}
        for line in self.lines.values():
            entry = line.entry
            if isinstance(entry.release, SampledGaussian):
                if line.norms is None or line.norms.l2 < LEAST_STEP * line.norms.rows * math.sqrt(entry.cells):
                    return math.inf
                group = entry.verb, entry.kind, line.pooled
                weakest, asked = sampled.setdefault(group, (entry.release, Counter()))
                asked.update(entry.sites)
                sampled[group] = weakest.weakest(entry.release), asked
            elif isinstance(entry.release, Gaussian):
                prices.append(entry.cost.rho)
                for site in entry.sites:
                    spent[site] = spent.get(site, 0.0) + entry.cost.rho
        steps = [
            sampled_steps(weakest, unit, max(asked.values(), default=0), pooled=pooled)
            for (_, _, pooled), (weakest, asked) in sampled.items()
        ]
        return fixed_epsilon(self.limit.delta, max(spent.values(), default=0.0), max(prices), tuple(steps))

    # Accounts of the sites

    def _check_extracts(self, extracts: Sequence[AccountExtract], identities: Mapping[str, bytes], run: str) -> None:
        for site, count in Counter(extract.site for extract in extracts).items():
            if count > 1:
                self._problem(f"there are {count} extracts of site {site}; give the newest one")
        if len({extract.coordinator for extract in extracts}) > 1:
            self._problem("the sites of the extracts answer different coordinators")
        for extract in extracts:
            wrong = list(self._faults(extract, identities, run))
            self.problems += [f"extract of {extract.site}: {text}" for text in wrong]
            if not wrong:
                self.confirmed.append(extract.site)
                if extract.site not in identities:
                    self.notes.append(
                        f"the extract of {extract.site} is signed with the key {extract.identity}; compare it with the "
                        "identity key that the site gave you"
                    )

    def _faults(self, extract: AccountExtract, identities: Mapping[str, bytes], run: str) -> Iterator[str]:
        known = identities.get(extract.site)
        if not extract.signed:
            yield "its signature is wrong: it was changed after it was signed, or is not the site's"
            return
        if known is not None and known.hex() != extract.identity:
            yield "it is signed with another key than the site's identity"
            return
        if extract.run != run:
            yield f"it is of run {extract.run!r}, not of {run!r}"
            return
        if extract.row < self.transcript.last_row.get(extract.site, 0):
            yield "its account ends before the last row that the server saw; was a backup put back?"
        prefix = bytes.fromhex(extract.coordinator)
        charges = {charge.key: charge for charge in extract.charges}
        for digest, asked in self.transcript.asked.items():
            charge = charges.pop(hashlib.sha256(prefix + bytes.fromhex(digest)).hexdigest(), None)
            line = self.lines.get(digest)
            if charge is None:
                if extract.site in asked.answers:
                    yield f"{asked.name} was answered by the site, and its account has no charge for it"
                continue
            if line is None:
                continue  # reported already
            if not _same(charge.cost, line.entry.cost):
                yield f"{asked.name} was charged {self._price(charge.cost)} and costs {self._price(line.entry.cost)}"
            if extract.site not in line.entry.sites:
                yield f"{asked.name} was charged there, and the ledger does not name the site"
            answer = asked.answers.get(extract.site)
            if answer is not None and answer[1] != charge.row:
                yield f"{asked.name} was answered from audit row {answer[1]}, and was charged in row {charge.row}"
        for charge in charges.values():
            what = f"{charge.verb} {charge.kind}" if charge.key else "a restored backup wrote off the rest of the run"
            yield f"it was charged {self._price(charge.cost)} in row {charge.row} ({what}), not in the transcript"


# ---------------------------------------------------------------------------------------------------------------------
# Helpers


def _tables(query: Query | Selection, schema: Schema) -> tuple[tuple[str, ...], ...]:
    if not isinstance(query, Counts):
        return ()
    names = [schema.stored[axis.column].name for axis in query.axes]
    return tuple(tuple(names[at] for at in table) for table in query.tables)


def _law(release: Release, norms: Norms | None) -> str:
    """Return the noise distribution with its scale, or with its price if only a vault knows the scale."""
    match release:
        case Gaussian():
            return (
                f"gaussian rho {release.rho:.4g}" if norms is None else f"gaussian sigma {release.sigma(norms.l2):.4g}"
            )
        case SampledGaussian():
            noise = f"multiplier {release.multiplier:.4g}" if norms is None else _law(release.noise, norms)
            return f"{release.steps} x {noise} on samples of {release.rate:g}"
        case Laplace():
            return (
                f"laplace epsilon {release.epsilon:.4g}"
                if norms is None
                else f"laplace scale {release.scale(norms.l1):.4g}"
            )
        case Exponential():
            return f"exponential epsilon {release.epsilon:.4g}"
        case AdaptiveSelection():
            return f"{release.steps} x {_law(release.pick, norms)}, looks {_law(release.look, norms)}"
        case Deposit():
            return "none yet (deposit)"
        case _:
            return "none"


def _protected(agreed: Agreement) -> str:
    rows, sites = agreed.unit.rows, agreed.unit.sites
    who = "each row" if rows == sites == 1 else f"each person with up to {rows} rows at up to {sites} sites"
    return f"{who}, {'replaced by others' if agreed.public_sizes else 'added or removed'}"


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9)


def _same(one: Cost, other: Cost) -> bool:
    curves = len(one.curve) == len(other.curve) and all(map(_close, one.curve, other.curve))
    return _close(one.epsilon, other.epsilon) and _close(one.rho, other.rho) and curves


def _covers(deposit: Cost, spent: Cost) -> bool:
    """Whether a deposit covers releases, in its own currency (rho or epsilon)."""
    if math.isinf(deposit.epsilon):
        return spent.rho <= deposit.rho * ROUNDING
    return spent.epsilon <= deposit.epsilon * ROUNDING

"""The vault that three servers hold in shares: nobody can read it, and only noisy results are released from it.

:class:`Servers` is the coordinator's side of all calls, whether the servers are in this process (`ideal`) or three
processes (`remote`). The same command resumes a run and repeats the interrupted question: servers that had answered it
return the answers in their ledgers, and each charges it once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from typing_extensions import override

from fedsynth.cliques import Clique, integer_weights
from fedsynth.errors import BudgetExceeded, FedsynthError, Refused, SiteLost, Unsupported
from fedsynth.federation.events import Answer, DealtShares
from fedsynth.federation.query import Counts
from fedsynth.federation.trust import Traffic
from fedsynth.federation.vault import CandidateScores, Vault
from fedsynth.federation.wire import Request, WireError, decode, encode
from fedsynth.privacy.cost import Norms, Sensitivity, protect
from fedsynth.privacy.release import draw_for, noise_for
from fedsynth.schema.bins import Floats, Integers
from fedsynth.servers.calls import (
    Agree,
    Answered,
    AnyCall,
    AnyResult,
    Ask,
    Asked,
    Begin,
    Call,
    Confirm,
    Confirmations,
    Confirmed,
    Done,
    Drop,
    Failure,
    Keep,
    Recall,
    Take,
)
from fedsynth.servers.questions import MOST_PENALTY, OpenTables, Question, SelectTable, opened_std
from fedsynth.servers.server import part_for
from fedsynth.servers.shares import SERVERS, total

_Result = TypeVar("_Result", bound=Call)
DRAW_SECONDS = 3.1 / 161
"""CPU seconds that a server needs for one candidate of a draw, measured with 161 candidates."""

SendAll = Callable[[Sequence[bytes]], Sequence[bytes]]
"""The way to three servers: sends each one its frame, and returns their replies, or raises :func:`lost`."""


def lost(what: str) -> SiteLost:
    """Return the error of a server that does not answer; ``what`` names it."""
    return SiteLost(
        f"{what}; without all three servers nothing is opened. Restart what is missing and run the same command again: "
        "questions that were answered are not charged again"
    )


_ERRORS: dict[str, Callable[[str], FedsynthError]] = {
    "refused": Refused,
    "spent": BudgetExceeded,
    "lost": lost,
    "failed": FedsynthError,
}
"""The errors for the codes of a failure. A refusal goes first, since other failures may follow from it."""


@dataclass(eq=False)
class Servers:
    """The coordinator's side of three compute servers: it passes on sealed shares and asks questions of all three.

    ``send`` carries the calls, and ``traffic`` counts the bytes of each server's calls and results. Every method raises
    :class:`~fedsynth.errors.SiteLost`, naming a server that does not answer, :class:`~fedsynth.errors.Refused` or
    :class:`~fedsynth.errors.BudgetExceeded` if one of them refuses, except for what one refuses of a site
    (:meth:`take`), and :class:`~fedsynth.errors.FedsynthError` for any other failure. A repeated question gets the same
    answer, and is not charged again.
    """

    send: SendAll
    traffic: tuple[Traffic, Traffic, Traffic] = field(default_factory=lambda: (Traffic(), Traffic(), Traffic()))

    def begin(self, vault: str, agreement: bytes, body: bytes, signature: bytes) -> None:
        """Begin a vault, or let more sites join it.

        Arguments are those of :meth:`ComputeParty.begin <fedsynth.servers.server.ComputeParty.begin>`.
        """
        agreed, asked = (np.frombuffer(part, dtype=np.uint8) for part in (agreement, body))
        self._same(Begin(vault, agreed, asked, signature), Done)

    def take(self, vault: str, site: str, dealt: DealtShares) -> bool:
        """Pass one site's sealed shares to all three servers; return whether they accept them.

        They do if each server can open its two shares, and the two servers that have a share in common hold the same.
        Otherwise, all three leave the site out.
        """
        first, others = (Take(vault, site, part_for(dealt, number)) for number in range(2))
        found: Sequence[AnyResult] = self._call([first, others, others])
        said = [one for one in found if isinstance(one, Confirmations)]
        if len(said) == SERVERS:
            ring = range(SERVERS)
            found = self._call(
                [Confirm(vault, site, said[at - 1].after, said[(at + 1) % SERVERS].before) for at in ring]
            )
            if all(isinstance(one, Confirmed) and one.same for one in found):
                return True
        if any(isinstance(one, Failure) and one.code != "refused" for one in found):
            raise _error_of(found)  # what a server refuses of a site is the site's fault, anything else is not
        self._same(Drop(vault, site), Done)
        return False

    def keep(self, vault: str, sites: Sequence[str]) -> None:
        """Let ``sites`` into the vault: all those whose shares were accepted, in the order of :meth:`take`."""
        self._same(Keep(vault, tuple(sites)), Done)

    def open(self, question: OpenTables) -> Integers:
        """Return the noisy tables that ``question`` asks for, one after the other, int64 and flat."""
        return total([reply.reply.view(np.uint64) for reply in self._answers(question)])

    def draw(self, question: SelectTable) -> int:
        """Return the index of the candidate of ``question`` that the servers drew together, privately."""
        replies = {reply.reply.tobytes() for reply in self._answers(question)}
        if len(replies) > 1:
            raise Refused(
                "the servers drew different candidates, so nothing is opened; install the same fedsynth on all"
            )
        return int.from_bytes(replies.pop())

    def _answers(self, question: Question, tries: int = 2) -> list[Answered]:
        """Ask all three servers; once more if they lost each other but all answer, as after the restart of one."""
        asked = self._same(Ask(question), Asked)
        if all(one.answered for one in asked):
            return self._same(Recall(question), Answered)
        found = self._call([Agree(tuple(one.statement for one in asked), os.urandom(16))] * SERVERS)
        if tries > 1 and any(isinstance(one, Failure) and one.code == "lost" for one in found):
            return self._answers(question, tries - 1)
        answers = _of_kind(found, Answered)
        for moved, one in zip(self.traffic, answers, strict=True):
            moved.among += one.sent
            moved.draw_seconds += DRAW_SECONDS * len(question.cliques) if isinstance(question, SelectTable) else 0.0
        return answers

    def _same(self, call: AnyCall, kind: type[_Result]) -> list[_Result]:
        """Make the same call to all three servers, whose results must all be of one kind."""
        return _of_kind(self._call([call] * SERVERS), kind)

    def _call(self, calls: Sequence[AnyCall]) -> list[AnyResult]:
        frames = {id(call): encode(call) for call in calls}
        sent = [frames[id(call)] for call in calls]
        found: list[AnyResult] = []
        for moved, frame, reply in zip(self.traffic, sent, self.send(sent), strict=True):
            moved.down += len(frame)
            moved.up += len(reply)
            try:
                found.append(decode(reply, AnyResult))
            except WireError as error:
                raise lost(f"no valid answer from server {len(found) + 1} ({error})") from error
        return found


def _of_kind(found: Sequence[AnyResult], kind: type[_Result]) -> list[_Result]:
    results: list[_Result] = [one for one in found if isinstance(one, kind)]
    if len(results) < len(found):
        raise _error_of(found)
    return results


def _error_of(found: Sequence[AnyResult]) -> FedsynthError:
    for code, kind in _ERRORS.items():
        for number, one in enumerate(found):
            if isinstance(one, Failure) and one.code == code:
                return kind(f"server {number + 1}: {one.reason or 'it failed; its operator reads why in its log'}")
    return FedsynthError("the servers' answers are not of the expected kind; install the same fedsynth everywhere")


@dataclass(eq=False)
class SharedVault(Vault):
    """The vault of the trust model :class:`~fedsynth.servers.trust.ThreeServers`, which states the noise.

    Distances are L2 distances, since these need one secure product for each cell instead of a comparison; expected
    counts and noise are rounded to whole records, negative ones to 0, and weights to integers
    (:func:`~fedsynth.cliques.integer_weights`). None of this changes the privacy cost of a release. There are no
    scores. The methods also raise what those of :class:`Servers` raise.
    """

    servers: Servers = field(kw_only=True)
    _staged: list[str] = field(default_factory=list)
    _number: int = 0

    @override
    def begin(self, request: Request) -> None:
        if request.signature is None:
            raise FedsynthError("the deposit question is not signed; sign it with the coordinator's key")
        self._staged = []
        self.servers.begin(self.question.digest, request.agreement.data, request.body, request.signature)

    @override
    def take(self, site: str, answer: Answer) -> None:
        if not isinstance(answer, DealtShares):
            raise Refused("its answer holds no shares; install the same fedsynth there")
        if not self.servers.take(self.question.digest, site, answer):
            raise Refused("its shares cannot be opened, or two servers hold different ones; compare its servers.toml")
        self._staged.append(site)

    @override
    def keep(self) -> None:
        self.servers.keep(self.question.digest, self._staged)
        self.sites += tuple(self._staged)
        self._staged = []

    @override
    def select(self, distances: CandidateScores, share: float) -> int:
        cliques = distances.candidates
        self._held(cliques)
        release = draw_for(self.terms.budget, share * self.question.part, at_site=False)
        expected = np.concatenate([np.rint(np.clip(table, 0.0, 2.0**31 - 1)).ravel() for table in distances.expected])
        penalties = np.minimum(np.rint(np.maximum(distances.noise, 0.0)), MOST_PENALTY)
        question = SelectTable(
            self.question.digest,
            self._number,
            cliques,
            expected.astype(np.int32),
            integer_weights(distances.weights).astype(np.int32),
            penalties.astype(np.int32),
            release,
        )
        self.charge("select", release, share, len(cliques), float("nan"))
        self._number += 1
        return self.servers.draw(question)

    @override
    def scores(self, distances: CandidateScores, share: float) -> tuple[Floats, float]:
        raise Unsupported("three servers draw by scores and never open them; use a method that draws")

    @override
    def open(self, query: Counts, share: float) -> tuple[list[Floats], list[float]]:
        release = noise_for(self.terms.budget, share * self.question.part, at_site=False)
        self.check_axes(query)
        self._held(query.cliques)
        question = OpenTables(self.question.digest, self._number, tuple(query.cliques), release, query.weights)
        std = opened_std(release, question.norms(self.terms.schema, self.terms.change))
        self.charge("open", release, share, query.cells(self.terms.schema), std, query)
        self._number += 1
        return query.split(self.terms.schema, self.servers.open(question)), query.stds(std)

    @override
    def std(self, share: float) -> float:
        one = protect(Sensitivity(1, 1, 2, 2**0.5), self.terms.change, pooled=True)
        return opened_std(noise_for(self.terms.budget, share * self.question.part, at_site=False), Norms(*one))

    def _held(self, cliques: Sequence[Clique]) -> None:
        deposited = [set(clique) for clique in self.question.query.cliques]
        for clique in cliques:
            if not any(set(clique) <= held for held in deposited):
                raise Unsupported(
                    f"columns {clique} were not deposited together; deposit one table that contains all of them"
                )

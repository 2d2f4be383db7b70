"""Calls of the coordinator to one of three servers, and the server's results: data in the wire format.

A vault is the sum of the sites' tables, held in secret shares; its name ``vault`` is the digest (hex) of the question
that it began with. The calls are the methods of :class:`~fedsynth.servers.server.ComputeParty` of the same names.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec

from fedsynth.federation.events import Bytes, DealtShares
from fedsynth.federation.question import HexDigest
from fedsynth.servers.questions import OpenTables, SelectTable, Signature, SignedStatement, Sites

_Site = Annotated[str, msgspec.Meta(max_length=64)]
_Mac = Annotated[bytes, msgspec.Meta(max_length=32)]
MOST_REASON = 1000
"""Largest number of characters in the reason of a :class:`Failure`."""


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """Base class of calls and results; it fixes their encoding."""


class Begin(Call, frozen=True, tag="begin"):
    """Call: begin a vault, or let more sites join it; the result is :class:`Done`."""

    vault: HexDigest
    agreement: Bytes
    body: Bytes
    signature: Signature


class Take(Call, frozen=True, tag="take"):
    """Call: open the shares that one site sealed for this server; the result is :class:`Confirmations`."""

    vault: HexDigest
    site: _Site
    dealt: DealtShares


class Confirm(Call, frozen=True, tag="confirm"):
    """Call: compare a site's shares with those of the two other servers; the result is :class:`Confirmed`.

    ``before`` and ``after`` are the keyed digests of the shares that this server has in common with the previous server
    (its number less 1, modulo 3) and with the next one, as these two sent them.
    """

    vault: HexDigest
    site: _Site
    before: _Mac
    after: _Mac


class Drop(Call, frozen=True, tag="drop"):
    """Call: leave out the site whose shares were taken last; the result is :class:`Done`."""

    vault: HexDigest
    site: _Site


class Keep(Call, frozen=True, tag="keep"):
    """Call: let into the vault all sites whose shares were confirmed, in order; the result is :class:`Done`."""

    vault: HexDigest
    sites: Sites


class Ask(Call, frozen=True, tag="ask"):
    """Call: check a ``question``, without a charge; the result is :class:`Asked`."""

    question: OpenTables | SelectTable


class Recall(Call, frozen=True, tag="recall"):
    """Call: return the stored answer to a ``question``; the result is :class:`Answered`, or else :class:`Failure`."""

    question: OpenTables | SelectTable


class Agree(Call, frozen=True, tag="agree"):
    """Call: charge and answer the last question, if all servers state the same; the result is :class:`Answered`.

    ``attempt`` (16 random bytes) is new in each call, so that servers which meet for a draw take no connection that an
    earlier attempt left behind. A coordinator that repeats it only makes them lose each other.
    """

    statements: Annotated[tuple[SignedStatement, ...], msgspec.Meta(min_length=3, max_length=3)]
    attempt: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]

    @property
    def meeting(self) -> bytes:
        """The name (32 bytes) under which the servers meet for this attempt at a draw."""
        return hashlib.sha256(self.statements[0].statement.body + self.attempt).digest()


AnyCall = Begin | Take | Confirm | Drop | Keep | Ask | Recall | Agree


class Done(Call, frozen=True, tag="done"):
    """Result of a call that was carried out, where there is nothing else to say."""


class Confirmations(Call, frozen=True, tag="confirmations"):
    """Result of :class:`Take`: keyed digests of the site's two shares at this server.

    ``before`` is for the previous server, ``after`` for the next one, each of which holds one of these shares too.
    """

    before: _Mac
    after: _Mac


class Confirmed(Call, frozen=True, tag="confirmed"):
    """Result of :class:`Confirm`: whether each of the other servers holds the same share of a site as this one."""

    same: bool


class Asked(Call, frozen=True, tag="asked"):
    """Result of :class:`Ask`: this server's signed statement, and whether it has answered the question before."""

    statement: SignedStatement
    answered: bool


class Answered(Call, frozen=True, tag="answered"):
    """Result of :class:`Agree` and :class:`Recall`: the server's answer to a question, as bytes (uint8).

    ``reply`` is the server's noisy additive share of the opened tables (uint64 numbers), or the index of the drawn
    candidate (4 bytes, big endian). ``sent`` is the number of bytes that this server sent to the two others during a
    draw; it is 0 for opened tables and for an earlier answer.
    """

    reply: Bytes
    sent: Annotated[int, msgspec.Meta(ge=0)] = 0


class Failure(Call, frozen=True, tag="failure"):
    """Result of any call that was not carried out, with the ``reason`` for the coordinator.

    ``code`` is ``refused`` if the call is invalid, or the server's terms or ledger forbid it; ``spent`` if the privacy
    budget does not cover the question; ``lost`` if another server did not finish a draw; ``failed`` for any other
    error, whose reason stays in the server's log.
    """

    code: Literal["refused", "spent", "lost", "failed"]
    reason: Annotated[str, msgspec.Meta(max_length=MOST_REASON)]


AnyResult = Done | Confirmations | Confirmed | Asked | Answered | Failure

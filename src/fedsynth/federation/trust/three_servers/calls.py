"""What a coordinator asks one of three servers, and what it answers: data alone, in the wire format."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from fedsynth.federation.events import Bytes, Dealt
from fedsynth.federation.trust.three_servers.questions import Draw, Open, Signature, SignedRoster, Sites
from fedsynth.federation.wire import HexDigest

_Site = Annotated[str, msgspec.Meta(max_length=64)]
_Mac = Annotated[bytes, msgspec.Meta(max_length=32)]


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """What all calls and results have in common: nothing but their form."""


class Begin(Call, frozen=True, tag="begin"):
    """The deposit question of a vault, as the coordinator signed it for the sites."""

    vault: HexDigest
    body: Bytes
    signature: Signature


class Take(Call, frozen=True, tag="take"):
    """What one site dealt."""

    vault: HexDigest
    site: _Site
    dealt: Dealt


class Confirm(Call, frozen=True, tag="confirm"):
    """What the servers before and after this one said of the shares that they have in common with it."""

    vault: HexDigest
    site: _Site
    before: _Mac
    after: _Mac


class Drop(Call, frozen=True, tag="drop"):
    """Leave out the site that was taken last."""

    vault: HexDigest
    site: _Site


class Keep(Call, frozen=True, tag="keep"):
    """Let the sites in that were taken."""

    vault: HexDigest
    sites: Sites


class Ask(Call, frozen=True, tag="ask"):
    """A question."""

    question: Open | Draw


class Recall(Call, frozen=True, tag="recall"):
    """A question that this server has answered: what it answered is said again."""

    question: Open | Draw


class Agree(Call, frozen=True, tag="agree"):
    """The rosters of all three servers for the question that was asked last."""

    rosters: Annotated[tuple[SignedRoster, ...], msgspec.Meta(min_length=3, max_length=3)]


AnyCall = Begin | Take | Confirm | Drop | Keep | Ask | Recall | Agree


class Done(Call, frozen=True, tag="done"):
    """Nothing to say but that it is done."""


class Confirmations(Call, frozen=True, tag="confirmations"):
    """Keyed digests of a site's two shares, for the server before and the one after."""

    before: _Mac
    after: _Mac


class Confirmed(Call, frozen=True, tag="confirmed"):
    """Whether the three servers hold the same shares, as far as this one can tell."""

    same: bool


class Asked(Call, frozen=True, tag="asked"):
    """This server's roster of a question, and whether it has answered it before."""

    roster: SignedRoster
    answered: bool


class Answered(Call, frozen=True, tag="answered"):
    """What came of a question: a noisy share of tables, or the index of a candidate (4 bytes).

    ``sent`` are the bytes that the draw took this server to the two others.
    """

    reply: Bytes
    sent: Annotated[int, msgspec.Meta(ge=0)] = 0


class Failure(Call, frozen=True, tag="failure"):
    """Why a call was not answered: this server refuses it, has no budget left, lost another server, or failed."""

    code: Literal["refused", "spent", "lost", "failed"]
    reason: Annotated[str, msgspec.Meta(max_length=1000)]


AnyResult = Done | Confirmations | Confirmed | Asked | Answered | Failure

"""Calls of the coordinator to one of three servers, and the server's results: data in the wire format."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from fedsynth.federation.events import Bytes, Dealt
from fedsynth.federation.trust.three_servers.questions import Draw, Open, Signature, SignedRoster, Sites
from fedsynth.federation.wire import HexDigest

_Site = Annotated[str, msgspec.Meta(max_length=64)]
_Mac = Annotated[bytes, msgspec.Meta(max_length=32)]


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """Base class of all calls and results; it only fixes their form."""


class Begin(Call, frozen=True, tag="begin"):
    """Begin a vault: its deposit question, as the coordinator signed it for the sites."""

    vault: HexDigest
    body: Bytes
    signature: Signature


class Take(Call, frozen=True, tag="take"):
    """Open the shares that one site dealt to this server."""

    vault: HexDigest
    site: _Site
    dealt: Dealt


class Confirm(Call, frozen=True, tag="confirm"):
    """Compare shares: the keyed digests that the previous and the next server sent for the shares held in common."""

    vault: HexDigest
    site: _Site
    before: _Mac
    after: _Mac


class Drop(Call, frozen=True, tag="drop"):
    """Leave out the site whose shares were taken last."""

    vault: HexDigest
    site: _Site


class Keep(Call, frozen=True, tag="keep"):
    """Let the sites whose shares were taken into the vault."""

    vault: HexDigest
    sites: Sites


class Ask(Call, frozen=True, tag="ask"):
    """Ask a question; the server answers with its roster and charges nothing yet."""

    question: Open | Draw


class Recall(Call, frozen=True, tag="recall"):
    """Ask for the stored answer to a question that this server has answered already."""

    question: Open | Draw


class Agree(Call, frozen=True, tag="agree"):
    """Answer the question that was asked last: the rosters of all three servers for it."""

    rosters: Annotated[tuple[SignedRoster, ...], msgspec.Meta(min_length=3, max_length=3)]


AnyCall = Begin | Take | Confirm | Drop | Keep | Ask | Recall | Agree


class Done(Call, frozen=True, tag="done"):
    """The call was carried out; there is no other result."""


class Confirmations(Call, frozen=True, tag="confirmations"):
    """Keyed digests of a site's two shares, one for the previous server and one for the next."""

    before: _Mac
    after: _Mac


class Confirmed(Call, frozen=True, tag="confirmed"):
    """Whether this server's two shares agree with those of the other two servers."""

    same: bool


class Asked(Call, frozen=True, tag="asked"):
    """This server's signed roster of a question, and whether it has answered the question before."""

    roster: SignedRoster
    answered: bool


class Answered(Call, frozen=True, tag="answered"):
    """The answer to a question: a noisy share of the tables, or the index of the drawn candidate (4 bytes).

    ``sent`` is the number of bytes that this server sent to the two others during a draw.
    """

    reply: Bytes
    sent: Annotated[int, msgspec.Meta(ge=0)] = 0


class Failure(Call, frozen=True, tag="failure"):
    """Why a call was not answered: the server refused it, has no budget left, lost another server, or failed."""

    code: Literal["refused", "spent", "lost", "failed"]
    reason: Annotated[str, msgspec.Meta(max_length=1000)]


AnyResult = Done | Confirmations | Confirmed | Asked | Answered | Failure

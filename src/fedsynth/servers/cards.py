"""Files of server cards, which hold a compute server's address, public keys and certificate: one card, or all three."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import tomli_w

from fedsynth.deploy.roster import fingerprint
from fedsynth.errors import FedsynthError
from fedsynth.files import load_toml, write_whole
from fedsynth.keys import canonical
from fedsynth.servers.links import ServerCard
from fedsynth.servers.shares import SERVERS, check_publics

_Kind = TypeVar("_Kind", ServerCard, "ServerCards")

SERVERS_FILE = "servers.toml"
"""Name of the file with the three cards, in the folder of a server, a site or the coordinator."""


class ServerCards(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file ``servers.toml``: the cards of all three compute servers, in the order of their numbers 0, 1, 2.

    Whoever has this file accepts no other servers. The order must be the same everywhere.
    """

    servers: tuple[ServerCard, ...]

    def __post_init__(self) -> None:
        check_publics(tuple(card.keys for card in self.servers))
        if len({card.address for card in self.servers}) < SERVERS:
            raise FedsynthError("two of the three servers have the same address; pin three different servers")


def card_fingerprint(card: ServerCard) -> str:
    """Return 30 digits that identify a server's card, for a comparison by phone."""
    return fingerprint("compute server", canonical(card))


def write_card(path: Path, card: ServerCard) -> None:
    """Write a server's own card to the file ``path`` (TOML)."""
    said = "# A compute server's address and public keys; fedsynth compute-server agree takes three of them\n"
    write_whole(path, said + tomli_w.dumps(msgspec.to_builtins(card), multiline_strings=True))


def load_card(path: Path) -> ServerCard:
    """Read a server's card from a TOML file; raises :class:`FedsynthError` for any other file."""
    return _converted(path, ServerCard, "card of a compute server")


def write_cards(path: Path, cards: Sequence[ServerCard]) -> None:
    """Write the three servers' cards to a TOML file; raises :class:`FedsynthError` unless the servers are different."""
    said = "# The three compute servers, as they were compared by phone; written by fedsynth compute-server agree\n"
    content = msgspec.to_builtins(ServerCards(tuple(cards)))
    write_whole(path, said + tomli_w.dumps(content, multiline_strings=True))


def load_cards(path: Path) -> tuple[ServerCard, ...]:
    """Read the three servers' cards, in order of their numbers; raises :class:`FedsynthError` for any other file."""
    return _converted(path, ServerCards, "file of three compute servers").servers


def _converted(path: Path, kind: type[_Kind], what: str) -> _Kind:
    try:
        return msgspec.convert(load_toml(path), kind)
    except OSError as error:
        raise FedsynthError(f"{path} cannot be read ({error}); `fedsynth compute-server agree` writes it") from error
    except (msgspec.ValidationError, FedsynthError) as error:
        raise FedsynthError(f"{path} is not a {what} of this version ({error}); have it sent again") from error

"""A compute server's machine: its folder, what its operator agreed to, and the server that is made from them.

Rule 1: the secret and the ledger are created once (:func:`make`, :func:`agree`) and never anew: a fresh ledger would
    forget what was released. Rule 2: both are readable by their owner only. Rule 3: terms come from files that the
    operator compared by phone, never over the network.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import tomli_w

from fedsynth.errors import FedsynthError
from fedsynth.federation.enrolment import Invitation, SignedRoster, Terms, load
from fedsynth.federation.trust.three_servers.book import BookFile
from fedsynth.federation.trust.three_servers.cards import SERVERS_FILE, load_cards, write_card, write_cards
from fedsynth.federation.trust.three_servers.links import Card, card_of
from fedsynth.federation.trust.three_servers.process import ComputeServer
from fedsynth.federation.trust.three_servers.server import Server, ServerTerms
from fedsynth.federation.trust.three_servers.trust import ThreeServers
from fedsynth.files import load_toml, private_folder, write_private, write_whole
from fedsynth.host.rows import is_exposed
from fedsynth.privacy.cost import Budget, Unit
from fedsynth.schema import Schema

SECRET = "secret.key"
CARD = "card.toml"
TERMS = "terms.toml"
LEDGER = "ledger.sqlite"


class Agreed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a server's operator agreed to: the federation's terms and sites, and how many questions a vault may have.

    ``public_sizes`` says that the sites' numbers of rows are public, so that neighbouring tables differ by replacement.
    """

    questions: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    public_sizes: bool
    terms: Terms
    members: SignedRoster


def make(folder: Path, address: str) -> Card:
    """Make a server's folder with its secret, and return its card; a secret that is there is kept."""
    private_folder(folder)
    path = folder / SECRET
    if not path.exists():
        write_private(path, os.urandom(32).hex() + "\n")
    card = card_of(server_secret(folder), address)
    write_card(folder / CARD, card)
    return card


def server_secret(folder: Path) -> bytes:
    """Return the secret of a server's folder; raises :class:`FedsynthError` where others could read it."""
    path = folder / SECRET
    if not path.is_file():
        raise FedsynthError(f"{path} is not there; `fedsynth compute-server init` makes it")
    if is_exposed(path):
        raise FedsynthError(f"{path} can be read by other users; run chmod go-rwx {path}")
    try:
        secret = bytes.fromhex(path.read_text())
    except ValueError:
        secret = b""
    if len(secret) != 32:
        raise FedsynthError(f"{path} is damaged; put its backup back")
    return secret


def pin(folder: Path, cards: Sequence[Card]) -> None:
    """Pin the three servers' cards in the folder of a server, a site or the coordinator."""
    write_cards(folder / SERVERS_FILE, cards)


def read_terms(invitation: Path, roster: Path) -> tuple[Terms, SignedRoster]:
    """Return terms and sites of a federation, from a site's invitation and the roster.

    Raises :class:`FedsynthError` for a roster of other terms, or that the coordinator of the terms did not sign.
    """
    terms, members = load(invitation, Invitation).terms, load(roster, SignedRoster)
    if members.roster.terms != terms.digest:
        raise FedsynthError(f"{roster} is of other terms than {invitation}; ask the coordinator for both again")
    members.check(bytes.fromhex(terms.coordinator))
    return terms, members


def agree(folder: Path, agreed: Agreed) -> None:
    """Write down what the server's operator agreed to, and make the ledger if there is none yet."""
    server_secret(folder)
    content = tomli_w.dumps(msgspec.to_builtins(agreed), multiline_strings=True)
    write_whole(
        folder / TERMS, f"# What this compute server agreed to; written by fedsynth compute-server agree\n{content}"
    )
    if not (folder / LEDGER).exists():
        BookFile(folder / LEDGER, agreed.questions, make=True).close()


def load_agreed(folder: Path) -> Agreed:
    """Return what the server's operator agreed to."""
    path = folder / TERMS
    if not path.is_file():
        raise FedsynthError(f"{path} is not there; `fedsynth compute-server agree` writes it")
    try:
        found = msgspec.convert(load_toml(path), Agreed)
    except msgspec.ValidationError as error:
        raise FedsynthError(f"{path} is not what this version wrote ({error})") from error
    found.members.check(bytes.fromhex(found.terms.coordinator))
    return found


def open_ledger(folder: Path) -> BookFile:
    """Return the server's ledger; raises :class:`FedsynthError` where it is missing or others could read it."""
    path = folder / LEDGER
    if path.is_file() and is_exposed(path):
        raise FedsynthError(f"{path} can be read by other users; run chmod go-rwx {path}")
    return BookFile(path, load_agreed(folder).questions)


def server_terms(agreed: Agreed, cards: Sequence[Card], position: int) -> ServerTerms:
    """Return the terms that a server holds questions to."""
    publics = tuple(card.keys for card in cards)
    sites: Mapping[str, bytes] = agreed.members.roster.identities
    terms = agreed.terms
    return ServerTerms(
        position,
        publics,
        sites,
        bytes.fromhex(terms.coordinator),
        Schema.from_toml(terms.schema),
        Budget(terms.epsilon, terms.delta),
        ThreeServers(publics).among(sites).terms,
        Unit(terms.rows_per_person, terms.sites_per_person),
        "replace" if agreed.public_sizes else "add-remove",
    )


def open_server(folder: Path) -> ComputeServer:
    """Return the server of a folder, listening; raises :class:`FedsynthError` where something is missing or wrong."""
    secret, cards, agreed = server_secret(folder), load_cards(folder / SERVERS_FILE), load_agreed(folder)
    own = card_of(secret, cards[0].address).public
    position = next((number for number, card in enumerate(cards) if card.public == own), None)
    if position is None:
        raise FedsynthError(f"none of the three cards in {folder / SERVERS_FILE} is this server's own; pin them again")
    return ComputeServer(Server(server_terms(agreed, cards, position), secret, open_ledger(folder)), cards)

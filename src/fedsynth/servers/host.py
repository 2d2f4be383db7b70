"""A compute server's host: its folder, the terms that its operator accepted, and the server made from them.

Rule 1: the server's secret and its ledger (the record of what it released) are created once (:func:`make`,
:func:`agree`) and never again: a new ledger would forget past releases. Rule 2: both are readable by their owner only.
Rule 3: terms come from files whose fingerprints the operator compared by phone, never over the network.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomli_w

from fedsynth.deploy.roster import Invitation, InvitedTerms, SignedRoster, load
from fedsynth.errors import FedsynthError
from fedsynth.files import load_toml, private_folder, write_private, write_whole
from fedsynth.keys import SecretBytes
from fedsynth.platforms import is_exposed
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import Budget, Unit
from fedsynth.schema import Schema
from fedsynth.servers.cards import SERVERS_FILE, load_cards, write_card, write_cards
from fedsynth.servers.links import ServerCard, card_of
from fedsynth.servers.process import ComputeServer
from fedsynth.servers.server import ComputeParty, ServerTerms
from fedsynth.servers.trust import ThreeServers
from fedsynth.terms import Terms

SECRET = "secret.key"
CARD = "card.toml"
TERMS = "terms.toml"
LEDGER = "ledger.sqlite"


class AgreedTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The terms that a compute server's operator accepted, as stored in ``terms.toml`` of the server's folder.

    ``questions`` is the largest number of questions that the server answers about one deposit. ``terms`` are the
    federation's, ``members`` is the signed list of its sites.
    """

    questions: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    public_sizes: bool
    terms: InvitedTerms
    members: SignedRoster


def make(folder: Path, address: str) -> ServerCard:
    """Create the folder of a compute server with its secret key and its public card, and return the card.

    ``address`` is the HOST:PORT at which the server will listen. An existing secret is kept, so a second call can
    change the address. Raises :class:`~fedsynth.errors.FedsynthError` if it is damaged or readable by others, and
    :class:`~fedsynth.errors.InvalidParameter` for an address of another form.
    """
    private_folder(folder)
    path = folder / SECRET
    if not path.exists():
        write_private(path, os.urandom(32).hex() + "\n")
    card = card_of(server_secret(folder), address)
    write_card(folder / CARD, card)
    return card


def server_secret(folder: Path) -> bytes:
    """Return the secret (32 bytes) in the folder of a compute server, from which its keys are derived.

    Raises :class:`~fedsynth.errors.FedsynthError` if it is missing, damaged or readable by others.
    """
    path = folder / SECRET
    if not path.is_file():
        raise FedsynthError(f"{path} is missing; `fedsynth compute-server init` creates it")
    if is_exposed(path):
        raise FedsynthError(f"{path} can be read by other users; run chmod go-rwx {path}")
    try:
        secret = bytes.fromhex(path.read_text(encoding="ascii"))
    except ValueError:
        secret = b""
    if len(secret) != 32:
        raise FedsynthError(f"{path} is damaged; restore it from its backup")
    return SecretBytes(secret)


def pin(folder: Path, cards: Sequence[ServerCard]) -> None:
    """Write the cards of the three compute servers into a folder: from then on, its owner trusts these three only.

    ``folder`` is that of a compute server, a site or the coordinator. The caller had the cards' fingerprints compared
    by phone.
    """
    write_cards(folder / SERVERS_FILE, cards)


def read_terms(invitation: Path, roster: Path) -> tuple[InvitedTerms, SignedRoster]:
    """Return a federation's terms and the signed list of its sites, for the operator of a compute server to accept.

    ``invitation`` is that of any one site; ``roster`` is the coordinator's ``roster.toml``. Raises
    :class:`~fedsynth.errors.FedsynthError` for files that are not these, a roster of other terms, and one that the
    coordinator named in the terms did not sign.
    """
    terms, members = load(invitation, Invitation).terms, load(roster, SignedRoster)
    if members.roster.terms != terms.digest:
        raise FedsynthError(f"{roster} and {invitation} state different terms; ask the coordinator for both again")
    members.check(bytes.fromhex(terms.coordinator))
    return terms, members


def agree(folder: Path, agreed: AgreedTerms) -> None:
    """Store the terms that a compute server's operator accepted; the first call also creates the server's ledger.

    Earlier terms are replaced, a ledger never. Raises :class:`~fedsynth.errors.FedsynthError` if the folder holds no
    valid secret, or earlier terms but no ledger.
    """
    server_secret(folder)
    if not (folder / TERMS).exists():
        Book(folder / LEDGER)
    open_ledger(folder)  # one that was lost is not made anew
    content = tomli_w.dumps(msgspec.to_builtins(agreed), multiline_strings=True)
    write_whole(
        folder / TERMS, f"# What this compute server agreed to; written by fedsynth compute-server agree\n{content}"
    )


def load_agreed(folder: Path) -> AgreedTerms:
    """Return the terms that :func:`agree` stored.

    Raises :class:`~fedsynth.errors.FedsynthError` if their file is missing or of another version, or if the
    coordinator's or a site's signature of the list of sites in it is wrong.
    """
    path = folder / TERMS
    if not path.is_file():
        raise FedsynthError(f"{path} is missing; `fedsynth compute-server agree` writes it")
    try:
        found = msgspec.convert(load_toml(path), AgreedTerms)
    except msgspec.ValidationError as error:
        raise FedsynthError(f"{path} is not a terms file of this version ({error})") from error
    found.members.check(bytes.fromhex(found.terms.coordinator))
    return found


def open_ledger(folder: Path) -> Book:
    """Open the ledger of a compute server, its record of all questions that it answered and of their privacy cost.

    Raises :class:`~fedsynth.errors.FedsynthError` if it is missing, damaged or readable by others.
    """
    path = folder / LEDGER
    if not path.is_file() or not path.stat().st_size:
        raise FedsynthError(
            f"{path} is missing or empty, and without its ledger a server does not know what it released; restore its "
            "newest backup, or make a new server in another folder (fedsynth compute-server init)"
        )
    if is_exposed(path):
        raise FedsynthError(f"{path} can be read by other users; run chmod go-rwx {path}")
    return Book(path)


def charged_questions(folder: Path) -> list[dict[str, Any]]:
    """Return the questions that a compute server charged, oldest first, from the audit in its ledger.

    Each has the ``time``, the ``vault`` (a digest, hex), the question's ``number`` in it and digest (``question``), and
    its ``price`` in rho, or epsilon if delta is 0. Raises :class:`~fedsynth.errors.FedsynthError` if anything in the
    ledger was changed.
    """
    book = open_ledger(folder)
    if found := book.verify().fault:
        raise FedsynthError(
            f"{folder / LEDGER}: {found}; keep the file as evidence, and stop this server until it is known who "
            "changed it"
        )
    return [
        {
            "time": row["time"],
            "vault": row["run"].removeprefix("vault "),
            "number": row["step"],
            "question": row["terms"],
            "price": row["cost"]["rho"] if row["cost"]["epsilon"] is None else row["cost"]["epsilon"],
        }
        for row in book.charges()
        if row["verb"] != "deposit"
    ]


def server_terms(agreed: AgreedTerms, cards: Sequence[ServerCard], position: int) -> ServerTerms:
    """Return the terms against which a compute server checks every question, from what its operator accepted.

    ``position`` (0, 1 or 2) is the server's own place among the pinned ``cards``.
    """
    publics = tuple(card.keys for card in cards)
    sites: Mapping[str, bytes] = agreed.members.roster.identities
    terms = agreed.terms
    return ServerTerms(
        position,
        publics,
        sites,
        bytes.fromhex(terms.coordinator),
        Terms(
            Schema.from_toml(terms.schema),
            Budget(terms.epsilon, terms.delta),
            ThreeServers.name,
            unit=Unit(terms.rows_per_person, terms.sites_per_person),
            public_sizes=agreed.public_sizes,
        ),
        ThreeServers(publics).with_roster(sites).terms,
        questions=agreed.questions,
    )


def open_server(folder: Path) -> ComputeServer:
    """Return the compute server of a folder, already listening at the address in its card; call its ``run`` to answer.

    Raises :class:`~fedsynth.errors.FedsynthError` if a file of the folder is missing or invalid, if none of the three
    servers' cards there is the server's own, and if its address cannot be used.
    """
    secret, cards, agreed = server_secret(folder), load_cards(folder / SERVERS_FILE), load_agreed(folder)
    own = card_of(secret, cards[0].address).public
    position = next((number for number, card in enumerate(cards) if card.public == own), None)
    if position is None:
        raise FedsynthError(f"none of the three cards in {folder / SERVERS_FILE} is this server's own; pin them again")
    return ComputeServer(ComputeParty(server_terms(agreed, cards, position), secret, open_ledger(folder)), cards)

"""The commands of a compute server: ``compute-server init|pin|agree|serve|ledger``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedsynth import errors
from fedsynth.cli.enrol import Fingerprint, compare
from fedsynth.cli.options import Json, PublicSizes, say

compute_app = typer.Typer(
    no_args_is_help=True,
    help="One of the three servers of the trust three-servers, which hold shares and see nothing.",
)
ServerDir = Annotated[Path, typer.Argument(help="The server's folder, which `fedsynth compute-server init` makes.")]


@compute_app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The server's folder, readable by its owner only.")],
    address: Annotated[str, typer.Option("--address", help="Where the server listens: HOST:PORT.")],
    json_: Json = False,
) -> None:
    """Make a server's folder and secret, and its card: address, public keys and certificate.

    The card goes to the two other servers, to all sites and to the coordinator, who pin it: no secret is in it.

    Example:

      fedsynth compute-server init /etc/fedsynth-compute --address one.example.org:9500
    """
    from fedsynth.federation.trust.three_servers.cards import card_fingerprint
    from fedsynth.host.compute import CARD, make

    card = make(folder, address)
    shown = card_fingerprint(card)
    say(
        json_,
        {"folder": str(folder), "card": str(folder / CARD), "fingerprint": shown, "public_key": card.public},
        f"{folder / CARD} is the server's card. Send it to the other servers, the sites and the coordinator, by any\n"
        f"way, and read out its fingerprint to each by phone:\n\n    {shown}",
    )


@compute_app.command()
def pin(
    folder: Annotated[Path, typer.Argument(help="The folder of a compute server, of a site, or of the coordinator.")],
    cards: Annotated[list[Path], typer.Argument(help="The three servers' cards, everywhere in the same order.")],
    fingerprint: Fingerprint = None,
    json_: Json = False,
) -> None:
    """Pin the three compute servers, in a server's own folder, at a site or at the coordinator.

    Shows the fingerprint of each card, to compare by phone with that server's operator: whoever could put keys of its
    own in the place of two servers' would see everything.

    Example:

      fedsynth compute-server pin /etc/fedsynth one.toml two.toml three.toml
    """
    from fedsynth.federation.trust.three_servers.cards import SERVERS_FILE, Cards, card_fingerprint, load_card
    from fedsynth.host.compute import pin as pinned

    if not folder.is_dir():
        raise errors.FedsynthError(f"{folder} is no folder; name that of a compute server, a site or the coordinator")
    found = Cards(tuple(load_card(path) for path in cards)).servers
    for number, card in enumerate(found, 1):
        shown = f"The card of server {number}, at {card.address}:"
        compare(
            shown, card_fingerprint(card), "Does its operator read out the same, by phone?", fingerprint or (), json_
        )
    pinned(folder, found)
    addresses = [card.address for card in found]
    say(json_, {"servers": addresses}, f"{folder / SERVERS_FILE} pins the servers at {', '.join(addresses)}.")


@compute_app.command()
def agree(
    folder: ServerDir,
    invitation: Annotated[Path, typer.Argument(help="Any site's invitation: it holds the federation's terms.")],
    roster: Annotated[Path, typer.Argument(help="The coordinator's roster.toml, with all sites' keys.")],
    questions: Annotated[
        int,
        typer.Option("--questions", min=1, help="Most draws and openings of a vault: about twice the rounds."),
    ] = 64,
    public_sizes: PublicSizes = False,
    fingerprint: Fingerprint = None,
    json_: Json = False,
) -> None:
    """Agree to a federation's terms and sites: what this server will answer, and to whom.

    Shows two fingerprints to compare by phone: that of the terms with the coordinator, as sites do, and that of the
    roster with the sites. Makes the server's ledger, if there is none yet.

    Example:

      fedsynth compute-server agree /etc/fedsynth-compute north.toml roster.toml --questions 24
    """
    from fedsynth.host.compute import LEDGER, Agreed, read_terms
    from fedsynth.host.compute import agree as agreed

    terms, members = read_terms(invitation, roster)
    shown = (
        f"The terms of a federation:\n  job      {terms.method}, epsilon {terms.epsilon:g}, delta {terms.delta:g}\n"
        f"  protects a person with {terms.rows_per_person} rows at each of {terms.sites_per_person} sites\n"
        f"  answers  at most {questions} draws and openings of a vault"
    )
    told = fingerprint or ()
    compare(shown, terms.fingerprint, "Does the coordinator read out the same, by phone?", told, json_)
    names = ", ".join(members.roster.identities)
    shown = f"The roster of the federation: {names}"
    compare(shown, members.roster.fingerprint, "Do the sites read out the same, by phone?", told, json_)
    agreed(folder, Agreed(questions, public_sizes, terms, members))
    serve = shlex.join(["fedsynth", "compute-server", "serve", str(folder)])
    facts = {"folder": str(folder), "sites": list(members.roster.identities), "ledger": str(folder / LEDGER)}
    say(json_, facts, f"{folder / LEDGER} keeps account of what this server releases: back it up.\nNext: {serve}")


@compute_app.command()
def serve(folder: ServerDir) -> None:
    """Answer the coordinator, and draw with the two other servers, until the process is ended (SIGTERM, Ctrl-C).

    Shares are in memory only. A server that was started again gets them anew from the coordinator's transcript, which
    holds them sealed.

    Example:

      fedsynth compute-server serve /etc/fedsynth-compute
    """
    import logging
    import signal
    import threading

    from fedsynth.host.compute import open_server

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    server = open_server(folder)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    answering = threading.Thread(target=server.run, daemon=True)
    answering.start()
    position = server.server.terms.position
    print(f"server {position + 1} of three listens at {server.cards[position].address}", flush=True)
    ended.wait()
    server.close()
    answering.join()


@compute_app.command()
def ledger(folder: ServerDir, json_: Json = False) -> None:
    """Show what a server released: every question that it charged, and whether the audit is whole.

    Example:

      fedsynth compute-server ledger /etc/fedsynth-compute
    """
    import msgspec

    from fedsynth.host.compute import open_ledger

    book = open_ledger(folder)
    rows = book.audit()
    book.close()
    lines = [f"{row.at}  vault {row.vault[:12]}  question {row.number:3d}  {row.price:.6g}" for row in rows]
    lines.append(f"{len(rows)} questions, {sum(row.price for row in rows):.6g} in all; the audit is whole")
    say(json_, {"audit": [msgspec.to_builtins(row) for row in rows]}, "\n".join(lines))

"""The commands of a compute server: ``compute-server init|agree|serve``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from fedsynth import errors
from fedsynth.cli.options import log_to_stderr, say
from fedsynth.deploy.commands.enrol import compare
from fedsynth.platforms import require_posix
from fedsynth.privacy.cost import in_full


def init(folder: Path, /, *, address: str, json_: bool = False) -> None:
    r"""Make a compute server's folder, keys and card (a file to send).

    A run with --trust three-servers has three compute servers, at organisations that do not collude. Together they sum
    the sites' tables and add noise, and none of them sees a table.

    The card is the file card.toml in the folder, with the server's address, public keys and certificate, and no secret.
    Send it to the two other servers, to all sites and to the coordinator: each passes it to `fedsynth compute-server
    agree`. An existing key is kept.

    Example:

      fedsynth compute-server init /etc/fedsynth-compute \
        --address one.example.org:9500

    Parameters
    ----------
    folder
        Folder to make for this compute server, readable by its owner only.
    address
        HOST:PORT at which this server will listen for the coordinator and the two other servers.
    """
    from fedsynth.servers.cards import card_fingerprint
    from fedsynth.servers.host import CARD, make

    card = make(folder, address)
    shown = card_fingerprint(card)
    say(
        json_,
        {"folder": str(folder), "card": str(folder / CARD), "fingerprint": shown, "public_key": card.public},
        f"{folder / CARD} is the server's card. Send it to the other servers, the sites and the coordinator by any\n"
        f"channel, and read out its fingerprint to each by phone:\n\n    {shown}",
    )


def agree(
    folder: Path,
    files: tuple[Path, ...],
    /,
    *,
    questions: Annotated[int, Meta(ge=1)] = 64,
    public_sizes: bool = False,
    fingerprint: tuple[str, ...] = (),
    json_: bool = False,
) -> None:
    r"""Agree to the three servers' cards, or to a federation's terms.

    Given the three cards (files with each server's address and public keys), stores them in your folder: from then on,
    your site or server accepts these three servers only. Each server, each site and the coordinator must do this. An
    attacker who could replace the keys of two servers would see the tables of all sites: so you are asked to compare
    the fingerprint of each card with that server's operator by phone.

    Given any site's invitation and the coordinator's roster, makes a compute server agree to the terms of the
    federation (the coordinator, the schema, the budget, and how many rows of one person are protected together) and to
    its sites: it will answer this coordinator about these sites, within these terms, and nobody else. Compare the
    fingerprint of the terms with the coordinator, and that of the roster with the sites. The first time, this makes the
    server's ledger, the record of what it releases.

    Examples:

      fedsynth compute-server agree /etc/fedsynth one.toml two.toml three.toml

      fedsynth compute-server agree /etc/fedsynth-compute north.toml \
        roster.toml --questions 24

    Parameters
    ----------
    folder
        Folder of your compute server or site, or of the federation if you are its coordinator.
    files
        The three servers' cards, files card.toml made by `fedsynth compute-server init`, in the same order everywhere;
        or the file of any site's invitation, which holds the terms, and the coordinator's file roster.toml, the list of
        all sites with their keys.
    questions
        Largest number of questions that this server answers about one deposit of the sites' tables. The method aim
        needs two for each of its rounds, and one more.
    public_sizes
        Accept that each site's number of rows is public. Give it if the coordinator's job.toml says public_sizes =
        true, and only then: otherwise this server refuses all questions.
    """
    if len(files) == 3:
        _pin(folder, files, fingerprint, json_)
    elif len(files) == 2:
        _agree(folder, *files, questions, public_sizes, fingerprint, json_)
    else:
        raise errors.InvalidParameter(
            "give the three servers' cards, or an invitation and the coordinator's roster.toml; there are "
            f"{len(files)} files"
        )


def _pin(folder: Path, cards: Sequence[Path], fingerprint: Sequence[str], json_: bool) -> None:
    """Store the cards of the three servers."""
    from fedsynth.servers.cards import SERVERS_FILE, ServerCards, card_fingerprint, load_card
    from fedsynth.servers.host import pin as pinned

    if not folder.is_dir():
        raise errors.FedsynthError(
            f"{folder} is not a folder; give the folder of a compute server, a site or the coordinator"
        )
    found = ServerCards(tuple(load_card(path) for path in cards)).servers
    for number, card in enumerate(found, 1):
        shown = f"The card of server {number}, at {card.address}:"
        compare(shown, card_fingerprint(card), "Does its operator read out the same by phone?", fingerprint, json_)
    pinned(folder, found)
    addresses = [card.address for card in found]
    say(json_, {"servers": addresses}, f"Servers pinned in {folder / SERVERS_FILE}: {', '.join(addresses)}.")


def _agree(
    folder: Path,
    invitation: Path,
    roster: Path,
    questions: int,
    public_sizes: bool,
    fingerprint: Sequence[str],
    json_: bool,
) -> None:
    """Store the terms and the sites of a federation."""
    from fedsynth.servers.host import LEDGER, AgreedTerms, read_terms
    from fedsynth.servers.host import agree as agreed

    terms, members = read_terms(invitation, roster)
    shown = (
        "The terms of a federation:\n"
        f"  job      {terms.method}, epsilon {in_full(terms.epsilon)}, delta {in_full(terms.delta)}\n"
        f"  protects a person with {terms.rows_per_person} rows at each of {terms.sites_per_person} sites\n"
        f"  answers  at most {questions} questions about one vault of shares"
    )
    compare(shown, terms.fingerprint, "Does the coordinator read out the same by phone?", fingerprint, json_)
    names = ", ".join(members.roster.identities)
    shown = f"The roster of the federation: {names}"
    compare(shown, members.roster.fingerprint, "Do the sites read out the same by phone?", fingerprint, json_)
    agreed(folder, AgreedTerms(questions, public_sizes, terms, members))
    serve = shlex.join(["fedsynth", "compute-server", "serve", str(folder)])
    facts = {"folder": str(folder), "sites": list(members.roster.identities), "ledger": str(folder / LEDGER)}
    say(json_, facts, f"{folder / LEDGER} records everything that this server releases: back it up.\nNext: {serve}")


def serve(folder: Path, /) -> None:
    """Answer the coordinator and the two other servers until stopped.

    SIGTERM or Ctrl-C stops the server. The secret shares of the sites' tables are kept in memory only: a server that is
    restarted receives them again from the coordinator, whose record of the run's messages holds them encrypted.

    Example:

      fedsynth compute-server serve /etc/fedsynth-compute

    Parameters
    ----------
    folder
        Folder of the compute server, made by `fedsynth compute-server init`.
    """
    require_posix("`fedsynth compute-server serve`")
    import signal
    import threading

    # Blocked in all threads and waited for here: a handler would run in this thread only, and a signal that the kernel
    # gives to another thread does not wake it.
    stopping = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping)
    from fedsynth.servers.host import open_server

    log_to_stderr(json_=False)
    server = open_server(folder)
    answering = threading.Thread(target=server.run, daemon=True)
    answering.start()
    position = server.server.terms.position
    print(f"server {position + 1} of three listens at {server.cards[position].address}", flush=True)
    signal.sigwait(stopping)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stopping)  # a second one ends the process at once
    server.close()
    answering.join()


def show_ledger(folder: Path, noted: str, json_: bool) -> None:
    """Print the questions that a compute server charged, for ``fedsynth account``, which verifies its ledger.

    Costs are in rho of zero-concentrated differential privacy (zCDP), or in epsilon if the federation's delta is 0.
    """
    if noted:
        raise errors.InvalidParameter("--noted is for sites and exported rows; a compute server's ledger has no head")
    from fedsynth.servers.host import charged_questions

    rows = charged_questions(folder)
    lines = [
        f"{row['time']}  vault {row['vault'][:12]}  question {row['number']:3d}  {row['price']:.6g}" for row in rows
    ]
    lines.append(f"{len(rows)} questions, {sum(row['price'] for row in rows):.6g} in all; the audit is intact")
    say(json_, {"audit": rows}, "\n".join(lines))

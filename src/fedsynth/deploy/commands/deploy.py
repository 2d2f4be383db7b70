"""The commands that set up a deployment and run a site: ``deploy init`` and ``site serve``."""

from __future__ import annotations

import dataclasses
import datetime
import secrets
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

from fedsynth import errors
from fedsynth.cli.adapter import Fields
from fedsynth.cli.options import log_to_stderr, say, serve_until_stopped
from fedsynth.platforms import require_posix
from fedsynth.runs.job import Deployment, Job

# ---------------------------------------------------------------------------------------------------------------------
# The server's side


def deploy_init(
    folder: Path,
    /,
    *,
    schema: Path,
    sites: str,
    job: Annotated[
        partial[Job],
        Fields(
            *("epsilon", "delta", "weak_delta", "unproved", "options", "rows_per_person", "sites_per_person"),
            method="auto",
            trust="",
        ),
    ],
    superlink: str = "fed.example.org:443",
    json_: bool = False,
) -> None:
    r"""Write the server's folder and an invitation for each site.

    The folder holds the coordinator's keys, the settings of the run (job.toml), and files for two programs: Flower,
    which carries the messages between server and sites, and a proxy (nginx) in front of it. Each site makes its own
    keys from its invitation, with `fedsynth site join`.

    Example:

      fedsynth deploy init federation --schema agreed.toml \
        --sites north,south,east --method oneshot \
        --epsilon 1 --delta 1e-6 --superlink fed.example.org:443

    Parameters
    ----------
    folder
        Folder to write, on the server's machine; it must not exist yet.
    sites
        Names of the sites, separated by commas: each a lower-case letter, then up to 30 lower-case letters, digits and
        -. Names of roles and files of a deployment, such as server, admin or state, are refused.
    superlink
        HOST:PORT at which the sites will reach the SuperLink, Flower's server program: put your own server's name in
        place of the default.
    """
    from fedsynth.deploy.enrolment import AUTHORITY
    from fedsynth.deploy.flower.files import NO_UNITS
    from fedsynth.deploy.flower.setup import write_federation
    from fedsynth.runs.state import COORDINATOR
    from fedsynth.schema import Schema

    if folder.exists():
        raise errors.FedsynthError(f"{folder} exists and may hold a federation; choose another folder")
    agreed = Schema.load(schema)
    names = tuple(name.strip(" ") for name in sites.split(",") if name.strip(" "))
    run = f"{datetime.date.today():%Y-%m-%d}-{secrets.token_hex(3)}"
    made = job(schema="schema.toml", deployment=Deployment(run, names))
    root = folder.resolve()
    terms = write_federation(root, made, agreed, superlink)
    facts = {
        "folder": str(root),
        "run": run,
        "trust": made.trust,
        "sites": names,
        "schema_digest": agreed.digest,
        "coordinator_key": terms.coordinator,
        "fingerprint": terms.fingerprint,
        "invitations": [str(root / "invitations" / f"{name}.toml") for name in names],
    }
    units = "" if (root / "server" / "compose.yaml").exists() else f"\n\n{NO_UNITS}"
    say(
        json_,
        facts,
        f"In {root}: the job (job.toml), the Flower app (app/), the server's files (server/), the certificate\n"
        f"authority and an invitation for each site. Schema {agreed.digest[:12]}, run {run}, trust {made.trust}.\n\n"
        f"Send each site its file from invitations/ by any channel: it holds no secret. Each site then reads out to\n"
        f"you, by phone, the fingerprint that it sees. It must be\n\n    {terms.fingerprint}\n\n"
        f"{COORDINATOR} is the coordinator's secret: back it up and show it to nobody. {AUTHORITY} signs\n"
        f"certificates: keep it offline, on a medium of its own, and pass its path by --ca-key.\n\n"
        f"Next, once requests come back: {shlex.join(['fedsynth', 'deploy', 'admit', str(folder), 'FILE'])} ..."
        f"{units}",
    )


# ---------------------------------------------------------------------------------------------------------------------
# A site's side


def site_serve(
    folder: Path,
    /,
    *,
    superlink: str = "",
    exchange: Path | None = None,
    once: bool = False,
    json_: bool = False,
) -> None:
    r"""Answer a federation's questions until stopped.

    Run it under a supervisor such as systemd. It is the site's only process: it fetches messages from Flower's server
    (SuperLink), and answers them within the policy (rules for what may be answered) in site.toml, a file that is read
    again for each message (with --exchange, at each search for requests). Code that a server sends is not even fetched.
    When the server comes back after a fault, the site goes on by itself.

    With --exchange DIR, neither Flower nor a network is needed: requests are signed files in DIR/SITE/requests, replies
    signed files in DIR/SITE/replies. The folder may be shared, copied or carried on a stick; each request is answered
    once.

    Exit codes: 0 stopped by a signal or, with --once, no valid request is left without a reply; docs/cli.md lists the
    others.

    Examples:

      fedsynth site serve /etc/fedsynth

      fedsynth site serve /etc/fedsynth --superlink 127.0.0.1:8443

      fedsynth site serve /etc/fedsynth --exchange /media/stick --once

    Parameters
    ----------
    folder
        Folder of the site, made by `fedsynth site join`; it holds site.toml.
    superlink
        HOST:PORT of Flower's server (SuperLink), or of a proxy in front of it. Default: the one that site.toml names.
    json_
        Write the log, which goes to standard error, as JSON, one object to a line. Without it: text for people.
    """
    require_posix("`fedsynth site serve`")
    from fedsynth.deploy.host.config import load_site_config

    if exchange is not None and superlink:
        raise errors.InvalidParameter("--superlink belongs to Flower. Leave it out with --exchange")
    if once and exchange is None:
        raise errors.InvalidParameter(
            "--once needs --exchange FOLDER. Without it, the command answers until it is stopped"
        )
    log_to_stderr(json_)
    if exchange is not None:
        _serve_files(folder, exchange, once=once, json_=json_)
        return
    from fedsynth.deploy.flower.node import FlowerNode

    config = load_site_config(folder)
    node = FlowerNode(folder, dataclasses.replace(config, superlink=superlink or config.superlink))
    serve_until_stopped(node.serve, node.stop)


def _serve_files(folder: Path, exchange: Path, *, once: bool, json_: bool) -> None:
    import logging

    from fedsynth.deploy.files.site import FileAnswerer
    from fedsynth.deploy.host.config import load_site_config

    if not once:
        answerer = FileAnswerer(folder, exchange)
        serve_until_stopped(answerer.serve, answerer.stop)
        return
    tell: Callable[[str], None] = logging.getLogger("fedsynth.site").info if json_ else print
    answerer = FileAnswerer(folder, exchange, tell)
    answered = answerer.answer_once()
    home = exchange / load_site_config(folder).name
    if answered:
        tell(f"Answered {answered} request{'s'[: answered > 1]}. Carry {home / 'replies'} back to the server.")
    else:
        tell(f"There was nothing to answer in {home / 'requests'}.")

"""The commands that set a deployment up and keep it: ``deploy init``, ``site check|serve|account|close``."""

from __future__ import annotations

import datetime
import secrets
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fedsynth import errors
from fedsynth.cli.options import (
    Delta,
    Epsilon,
    Json,
    JsonLines,
    JsonStream,
    MethodName,
    RowsPerPerson,
    SchemaFile,
    Set,
    SitesPerPerson,
    SuperLink,
    TrustName,
    check_text,
    say,
)

deploy_app = typer.Typer(
    help="Set a real federation up and run it: the server's side.", no_args_is_help=True, suggest_commands=False
)
site_app = typer.Typer(help="Set a real federation up: one site's side.", no_args_is_help=True, suggest_commands=False)
SiteDir = Annotated[Path, typer.Argument(help="The folder that holds the site's site.toml.")]


# ---------------------------------------------------------------------------------------------------------------------
# The server's side


@deploy_app.command("init")
def deploy_init(
    folder: Annotated[Path, typer.Argument(help="Folder to write, on the host of the SuperLink.")],
    schema: SchemaFile,
    sites: Annotated[str, typer.Option("--sites", help="Names of the sites, separated by commas.")],
    epsilon: Epsilon,
    delta: Delta,
    method: MethodName = "auto",
    trust: TrustName = "local",
    superlink: SuperLink = "fed.example.org:443",
    set_: Set = None,
    rows_per_person: RowsPerPerson = 1,
    sites_per_person: SitesPerPerson = 1,
    json_: Json = False,
) -> None:
    """Write what the server of a federation needs, and an invitation for each site: keys, job, Flower app, proxy.

    No key of a site is made here. docs/deploy.md goes on from here.

    Example:

      fedsynth deploy init federation --schema agreed.toml --sites north,south,east --method oneshot --epsilon 1
      --delta 1e-6 --trust local --superlink fed.example.org:443
    """
    from fedsynth.runs.enrolment import AUTHORITY
    from fedsynth.runs.job import Deployment, Job, parse_option
    from fedsynth.runs.state import COORDINATOR
    from fedsynth.schema import Schema
    from fedsynth.transports.flower.services import NO_UNITS
    from fedsynth.transports.flower.setup import write_federation

    if folder.exists():
        raise errors.FedsynthError(f"{folder} exists and may hold a federation; choose another folder")
    agreed = Schema.load(schema)
    options = dict(parse_option(text) for text in set_ or ())
    names = tuple(name.strip(" ") for name in sites.split(",") if name.strip(" "))
    run = f"{datetime.date.today():%Y-%m-%d}-{secrets.token_hex(3)}"
    job = Job(
        method,
        epsilon,
        delta,
        schema="schema.toml",
        trust=trust,
        rows_per_person=rows_per_person,
        sites_per_person=sites_per_person,
        options=options,
        deployment=Deployment(run, names),
    )
    root = folder.resolve()
    terms = write_federation(root, job, agreed, superlink)
    facts = {
        "folder": str(root),
        "run": run,
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
        f"authority and an invitation for each site. Schema {agreed.digest[:12]}, run {run}.\n\n"
        f"Send each site its file of invitations/, by any way: no secret is in it. Each site reads out to you, by\n"
        f"phone, the fingerprint that it sees. It must be\n\n    {terms.fingerprint}\n\n"
        f"{COORDINATOR} is the coordinator's secret: back it up, show it to nobody. {AUTHORITY} makes certificates:\n"
        f"keep it away from the network, on a medium of its own, and name it by --ca-key.\n\n"
        f"Next, once requests come back: {shlex.join(['fedsynth', 'deploy', 'admit', str(folder), 'FILE'])} ..."
        f"{units}",
    )


# ---------------------------------------------------------------------------------------------------------------------
# A site's side


@site_app.command("check")
def site_check(folder: SiteDir, json_: Json = False) -> None:
    """Say whether a site is ready to answer, and mend by mend what is missing; nothing is sent or charged.

    Exit codes: 0 ready, 3 rows or schema do not fit, 4 nothing left of the budget, 8 anything else.

    Example:

      fedsynth site check /etc/fedsynth
    """
    from fedsynth.host.checks import check_site
    from fedsynth.host.config import load_site_config

    config = load_site_config(folder)
    found = list(check_site(config))
    code = next((one.code for one in found if one.state == "failure"), 0)
    verdict = f"{config.name} is {'ready' if not code else 'NOT ready'}"
    facts = {"name": config.name, "ready": not code, "checks": [one.to_json() for one in found]}
    say(json_, facts, f"{check_text(found)}\n\n{verdict}")
    if code:
        raise typer.Exit(code)


@site_app.command("serve")
def site_serve(
    folder: SiteDir,
    supernode: Annotated[
        str, typer.Option("--supernode", help="Host and port of the SuperNode's runtime API.")
    ] = "127.0.0.1:9094",
    secret: Annotated[
        Path | None,
        typer.Option(
            "--secret", help="The SuperNode's --superexec-auth-secret-file; default: superexec.secret in the folder."
        ),
    ] = None,
    root_certificates: Annotated[
        Path | None, typer.Option("--root-certificates", help="The federation's CA certificate (PEM).")
    ] = None,
    exchange: Annotated[
        Path | None, typer.Option("--exchange", help="Folder of request and reply files, in place of Flower.")
    ] = None,
    once: Annotated[
        bool,
        typer.Option("--once", help="With --exchange: do what can be done now, say what to carry, then exit."),
    ] = False,
    json_: JsonStream = False,
) -> None:
    """Answer a federation's questions until it is stopped: run it beside flower-supernode, under a supervisor.

    It stands in the place of flower-superexec: nothing that a server sends is unpacked, installed or run here. What is
    asked is answered by the installed fedsynth, within the policy of site.toml, which is read anew for each message.
    Without --root-certificates, the CA certificate is the one that site.toml names.

    With --exchange there is neither Flower nor a network: requests are files in DIR/SITE/requests, replies files in
    DIR/SITE/replies, both signed. However the folder gets here, as a share, by a copy or on a stick, it answers each
    request once.

    Exit codes: 0 stopped by a signal, or all answered, 5 the SuperNode does not take the secret, 8 anything else.

    Examples:

      fedsynth site serve /etc/fedsynth

      fedsynth site serve /etc/fedsynth --supernode 127.0.0.1:9095 --secret other.secret

      fedsynth site serve /etc/fedsynth --exchange /media/stick --once
    """
    import logging

    from fedsynth.host.config import load_site_config
    from fedsynth.host.state import NODE_SECRET, node_secret

    if exchange is not None and (secret or root_certificates):
        raise typer.BadParameter("--secret and --root-certificates are a SuperNode's; --exchange needs neither")
    if once and exchange is None:
        raise typer.BadParameter("--once goes with --exchange; a SuperNode is answered until the command is stopped")
    written = logging.StreamHandler()
    written.setFormatter(JsonLines() if json_ else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[written])
    if exchange is not None:
        _serve_files(folder, exchange, once=once)
        return
    from fedsynth.transports.flower.client import Answerer

    certificates = root_certificates or load_site_config(folder).root_certificates
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each look for a message
    logging.getLogger("flwr").propagate = False  # it prints by itself
    answerer = Answerer(folder, supernode, certificates.read_bytes(), node_secret(secret or folder / NODE_SECRET))
    _serve_until_stopped(answerer.serve, answerer.stop)


def _serve_files(folder: Path, exchange: Path, *, once: bool) -> None:
    """Answer what lies in the folder of an exchange, until stopped or just once."""
    from fedsynth.host.config import load_site_config
    from fedsynth.transports.files.site import Answerer

    if not once:
        answerer = Answerer(folder, exchange)
        _serve_until_stopped(answerer.serve, answerer.stop)
        return
    answerer = Answerer(folder, exchange, print)
    answered = answerer.answer_once()
    home = exchange / load_site_config(folder).name
    if answered:
        print(f"Answered {answered} request{'s'[: answered > 1]}. Bring {home / 'replies'} back to the server.")
    else:
        print(f"There was nothing to answer in {home / 'requests'}.")


def _serve_until_stopped(serve: Callable[[], None], stop: Callable[[], None]) -> None:
    """Run ``serve``, which prints what it does, and end it by a signal."""
    import signal

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())
    serve()


@site_app.command("account")
def site_account(
    folder: SiteDir,
    restored: Annotated[
        int | None,
        typer.Option(
            "--restored",
            min=1,
            help="After a backup was put back: write off what is missing up to this row.",
        ),
    ] = None,
    began: Annotated[
        list[str] | None,
        typer.Option("--began", help="With --restored: run that began after the backup was made; may be repeated."),
    ] = None,
    extract: Annotated[
        str, typer.Option("--extract", help="Run of which to print the charges, signed: for `fedsynth prove`.")
    ] = "",
    json_: Json = False,
) -> None:
    """Show what a site has spent, its open runs, and the head of its audit, to be noted elsewhere.

    A site whose account is older than what the coordinator saw refuses everything. Its log says which audit row that
    was; --restored then charges every run in full for what the backup does not know.

    Examples:

      fedsynth site account /etc/fedsynth

      fedsynth site account /etc/fedsynth --restored 4711 --began 2026-05-02-9f31c0

      fedsynth site account /etc/fedsynth --extract 2026-05-02-9f31c0 > north.json
    """
    from fedsynth.federation.extract import extract as extract_of
    from fedsynth.host.checks import account_text
    from fedsynth.host.config import load_site_config
    from fedsynth.host.state import open_account, site_secret
    from fedsynth.privacy.cost import to_json

    config = load_site_config(folder)
    account = open_account(config)
    if extract:
        secret = site_secret(config, account)
        print(extract_of(account, secret, config.name, extract, config.coordinator).to_json().decode())
        return
    if began and restored is None:
        raise typer.BadParameter("--began goes with --restored: runs that a backup does not know")
    if restored is not None:
        account.restored(restored, dict.fromkeys(began or (), config.policy.per_run or config.policy.budget))
    row, chain = account.head()
    delta = config.policy.budget.delta
    runs = [
        {"run": run, "last_used": used.isoformat(timespec="seconds"), "spent": to_json(account.spent(run))}
        for run, used in account.open_runs()
    ]
    facts = {
        "name": config.name,
        "spent": to_json(account.spent()),
        "limit": {"epsilon": config.policy.budget.epsilon, "delta": delta},
        "exact_releases": account.exact,
        "open_runs": runs,
        "row": row,
        "head": chain.hex(),
    }
    lines = [f"{config.name}: {account_text(config, account)}"]
    lines += [
        f"  run {run}: epsilon {account.spent(run).at(delta):.4g}, last used {used:%Y-%m-%d %H:%M}"
        for run, used in account.open_runs()
    ]
    say(json_, facts, "\n".join([*lines, f"head: {chain.hex()}"]))


@site_app.command("close")
def site_close(
    folder: SiteDir,
    run: Annotated[str, typer.Argument(help="Name of the run; `fedsynth site account` lists those that are open.")],
    json_: Json = False,
) -> None:
    """Close a run for good: delete its replies, its salts and its copy of the rows. What it spent stays spent.

    A closed run is answered nothing more and cannot resume. Runs that have asked nothing for keep_runs_days (policy,
    90) are closed by themselves.

    Example:

      fedsynth site close /etc/fedsynth 2026-05-02-9f31c0
    """
    from fedsynth.host.config import load_site_config
    from fedsynth.host.rows import close_run
    from fedsynth.host.state import open_account

    config = load_site_config(folder)
    questions = close_run(config, open_account(config), run)
    say(json_, {"run": run, "questions": questions}, f"closed {run}: {questions} questions are answered no more")

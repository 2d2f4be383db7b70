"""The commands that set a deployment up and keep it (``deploy init``, ``site init|check|account|close``); its job."""

from __future__ import annotations

import datetime
import os
import re
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tomli_w
import typer

from fedsynth import __version__, errors
from fedsynth.cli.options import (
    Delta,
    Epsilon,
    Json,
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
from fedsynth.federation.names import parse_address
from fedsynth.files import private_folder, write_private

if TYPE_CHECKING:
    from fedsynth.federation.query import AnyQuery

deploy_app = typer.Typer(
    help="Set a real federation up: the server's side.", no_args_is_help=True, suggest_commands=False
)
site_app = typer.Typer(help="Set a real federation up: one site's side.", no_args_is_help=True, suggest_commands=False)
COORDINATOR = "coordinator.key"  # beside the job: the secret that signs requests and opens confidential answers
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NGINX_WORD = re.compile(r"[A-Za-z0-9.:-]+")  # without any character that nginx gives a meaning
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
    """Write what the server of a federation needs, and a folder for each site: job, Flower app, certificates, proxy.

    docs/deploy.md goes on from here.

    Example:

      fedsynth deploy init federation --schema agreed.toml --sites north,south,east --method oneshot --epsilon 1
      --delta 1e-6 --trust local --superlink fed.example.org:443
    """
    from fedsynth.cli.services import server_services, site_services
    from fedsynth.federation.coordinator import KEY, Coordinator
    from fedsynth.host.config import FILE
    from fedsynth.methods import find_method
    from fedsynth.runs.job import Deployment, Job, parse_option
    from fedsynth.runs.state import COORDINATOR
    from fedsynth.schema import Schema

    if folder.exists():
        raise errors.FedsynthError(f"{folder} exists and may hold a federation; choose another folder")
    host, port = parse_address(superlink)
    if ":" in host:
        raise errors.InvalidParameter(f"--superlink {superlink}: give the server a host name, for its certificate")
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
    if job.budget.exact:
        raise errors.InvalidParameter("--epsilon inf releases rows without noise; only simulations run so")
    job.build_method(agreed)
    job.build_trust()
    root = folder.resolve()
    coordinator = Coordinator(os.urandom(KEY))
    key = coordinator.public.hex()
    texts = {
        COORDINATOR: coordinator.secret.hex(),
        "app/pyproject.toml": _toml("app.toml", job=str(root / "job.toml"), version=__version__),
        "job.toml": job.to_file(),
        "schema.toml": agreed.to_toml(),
        "server/certificates.sh": _template("certificates.sh"),
        "server/nginx.conf": _nginx("nginx.conf", host=host, port=port),
        "server/config.toml": _toml("config.toml", ca=str(root / "server" / "ca.crt")),
    }
    texts |= {f"server/{file}": text for file, text in server_services(root, port).items()}
    for name in names:
        home, address = f"sites/{name}", f"{host}:{port}"
        texts |= {f"{home}/{file}": text for file, text in site_services(name).items()}
        texts[f"{home}/{FILE}"] = _toml(
            "site.toml",
            name=name,
            superlink=address,
            epsilon=epsilon,
            delta=delta,
            trust=trust,
            rows=rows_per_person,
            sites=sites_per_person,
            coordinator=key,
        ) + _kinds(find_method(method).queries)
        texts[f"{home}/schema.toml"] = agreed.to_toml()
        texts[f"{home}/nginx.conf"] = _nginx("site-nginx.conf", name=name, host=host, superlink=address)
    _write_folder(root, texts)
    facts = {
        "folder": str(root),
        "run": run,
        "sites": names,
        "schema_digest": agreed.digest,
        "coordinator_key": key,
    }
    say(
        json_,
        facts,
        f"In {root}: the job (job.toml), the Flower app (app/), the server's files (server/) and a folder for each\n"
        f"site (sites/). Schema {agreed.digest[:12]}, run {run}.\n"
        f"The coordinator's key, which each site pins and should compare: {key}\n"
        f"Its secret is {COORDINATOR}: back it up, show it to nobody.\n"
        f"Next, in server/: {shlex.join(['sh', 'certificates.sh', host, *names])}\n"
        "Then send each site its folder (docs/deploy.md).",
    )


def _write_folder(root: Path, texts: Mapping[str, str]) -> None:
    """Write a folder, whole or not at all, that its owner alone may enter: keys and databases will lie in it."""
    root.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{root.name}.", dir=root.parent))
    try:
        for name, text in texts.items():
            private_folder((partial / name).parent)
            write_private(partial / name, text)
        os.replace(partial, root)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _template(file: str) -> str:

    return (files("fedsynth.transports.flower") / "templates" / file).read_text(encoding="utf-8")


def _toml(file: str, **values: str | float) -> str:
    """Return a template in which each ``"@VALUE@"``, quotes included, has become that value as TOML writes it."""
    literals = {key: tomli_w.dumps({"value": value}).removeprefix("value = ").strip() for key, value in values.items()}
    return re.sub('"@([A-Z]+)@"', lambda mark: literals[mark[1].lower()], _template(file))


def _kinds(queries: Sequence[type[AnyQuery]]) -> str:
    """Return the section of a policy that names the queries of another package's method."""
    if not queries:
        return ""
    kinds = {query.kind: f"{query.__module__}:{query.__qualname__}" for query in queries}
    said = "# Code of another package, which runs here with this site's rights: install it, and read it first."
    return f"\n{said}\n{tomli_w.dumps({'policy': {'kinds': kinds}})}"


def _nginx(file: str, **values: str | int) -> str:
    """Return a template in which each ``@VALUE@`` has become that value, a word that nginx reads as nothing else."""
    for key, value in values.items():
        if not _NGINX_WORD.fullmatch(str(value)):
            raise errors.InvalidParameter(f"{key} = {value!r} cannot go into {file}; use letters, digits, '.' and '-'")
    return re.sub("@([A-Z]+)@", lambda mark: str(values[mark[1].lower()]), _template(file))


# ---------------------------------------------------------------------------------------------------------------------
# A site's side


@site_app.command("init")
def site_init(folder: SiteDir, json_: Json = False) -> None:
    """Create a site's account, its secret and its node's key, and say what to send to the consortium.

    What is there already is left alone: run it again to see the keys.

    Example:

      fedsynth site init /etc/fedsynth
    """
    from fedsynth.federation.trust.secure.masking import identity
    from fedsynth.host.config import load_site_config
    from fedsynth.host.state import NODE_SECRET, create_state, make_node_key, make_node_secret, site_secret
    from fedsynth.schema import Schema

    config = load_site_config(folder)
    schema = Schema.load(config.schema)
    created = create_state(config)
    node_key = make_node_key(config.key)
    make_node_secret(config.folder / NODE_SECRET)
    facts = {
        "name": config.name,
        "created": created,
        "node_public_key": node_key,
        "identity_key": identity(site_secret(config)).hex(),
        "schema_digest": schema.digest,
        "fedsynth": __version__,
    }
    say(
        json_,
        facts,
        f"{'Created' if created else 'Kept'} {config.account}: back it up after every run, restore nothing older.\n\n"
        "Send to the consortium, by a way that proves who you are:\n"
        f"  name            {config.name}\n"
        f"  node's key      {config.key}.pub\n"
        f"  identity key    {facts['identity_key']}\n"
        f"  schema          {schema.digest}\n"
        f"  fedsynth        {__version__}\n\n"
        f"Next: fedsynth site check {folder}",
    )


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
) -> None:
    """Answer a federation's questions until it is stopped: run it beside flower-supernode, under a supervisor.

    It stands in the place of flower-superexec: nothing that a server sends is unpacked, installed or run here. What is
    asked is answered by the installed fedsynth, within the policy of site.toml, which is read anew for each message.
    Without --root-certificates, the CA certificate is the one that site.toml names.

    Exit codes: 0 stopped by a signal, 5 the SuperNode does not take the secret, 8 anything else.

    Examples:

      fedsynth site serve /etc/fedsynth

      fedsynth site serve /etc/fedsynth --supernode 127.0.0.1:9095 --secret other.secret
    """
    import logging
    import signal

    from fedsynth.host.config import load_site_config
    from fedsynth.host.state import NODE_SECRET, node_secret
    from fedsynth.transports.flower.client import Answerer

    certificates = root_certificates or load_site_config(folder).root_certificates
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each look for a message
    logging.getLogger("flwr").propagate = False  # it prints by itself
    answerer = Answerer(folder, supernode, certificates.read_bytes(), node_secret(secret or folder / NODE_SECRET))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: answerer.stop())
    answerer.serve()


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

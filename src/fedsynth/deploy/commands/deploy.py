"""The commands that set up a deployment and run a site: ``deploy init``, ``site check|serve|account|close``."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import secrets
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedsynth import errors
from fedsynth.cli.adapter import Fields
from fedsynth.cli.options import check_text, confirm, log_to_stderr, say, serve_until_stopped
from fedsynth.runs.job import Deployment, Job

if TYPE_CHECKING:
    from fedsynth.deploy.host.config import SiteConfig
    from fedsynth.privacy.book_file import LostCharges

_LISTED = 10  # questions of a run that `site account` prints


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
        Fields("epsilon", "delta", "options", "rows_per_person", "sites_per_person", method="auto", trust="local"),
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
        --sites north,south,east --method oneshot --trust local \
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
    from fedsynth.deploy.flower.services import NO_UNITS
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
        f"Send each site its file from invitations/ by any channel: it holds no secret. Each site then reads out to\n"
        f"you, by phone, the fingerprint that it sees. It must be\n\n    {terms.fingerprint}\n\n"
        f"{COORDINATOR} is the coordinator's secret: back it up and show it to nobody. {AUTHORITY} signs\n"
        f"certificates: keep it offline, on a medium of its own, and pass its path by --ca-key.\n\n"
        f"Next, once requests come back: {shlex.join(['fedsynth', 'deploy', 'admit', str(folder), 'FILE'])} ..."
        f"{units}",
    )


# ---------------------------------------------------------------------------------------------------------------------
# A site's side


def site_check(folder: Path, /, *, json_: bool = False) -> int:
    """Check that a site is ready to answer; nothing is sent.

    Checks the rows, the account (record of privacy spending), the policy (what the site may answer), keys and
    certificates; each failed check comes with its fix. Nothing is charged to the site's budget. Exit codes: 0 ready;
    else that of the first failed check: 3 rows or schema do not fit, 4 no budget left, 8 anything else.

    Example:

      fedsynth site check /etc/fedsynth

    Parameters
    ----------
    folder
        Folder of the site, made by `fedsynth site join`; it holds site.toml.
    """
    from fedsynth.deploy.host.checks import check_site
    from fedsynth.deploy.host.config import load_site_config

    config = load_site_config(folder)
    found = list(check_site(config))
    code = next((one.code for one in found if one.state == "failure"), 0)
    verdict = f"{config.name} is {'ready' if not code else 'NOT ready'}"
    facts = {"name": config.name, "ready": not code, "checks": [one.to_json() for one in found]}
    say(json_, facts, f"{check_text(found)}\n\n{verdict}")
    return code


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
    from fedsynth.deploy.flower.node import Connection, FlowerNode

    connection = Connection.of(load_site_config(folder))
    if superlink:
        connection = dataclasses.replace(connection, superlink=superlink)
    node = FlowerNode(folder, connection)
    serve_until_stopped(node.serve, node.stop)


def _serve_files(folder: Path, exchange: Path, *, once: bool, json_: bool) -> None:
    """Answer what lies in the folder of an exchange, until stopped or just once."""
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


def site_account(
    folder: Path,
    /,
    *,
    restored: str = "",
    began: tuple[str, ...] = (),
    yes: bool = False,
    extract: str = "",
    json_: bool = False,
) -> None:
    r"""Show a site's privacy spending and its open runs.

    What is spent is the cost to one person of the stated unit: the largest that the policy has demanded so far. An open
    run is one that is not closed yet (`fedsynth site close`); its last questions are listed with their keys (a key is
    the SHA-256 of the coordinator's public keys and the question's digest, as in an extract) and the bytes that the
    account holds for them, and all of them with --json. Also prints the head (last hash) of the audit,
    the record of all questions; write it down elsewhere and check it later with `fedsynth audit --noted`. A site that
    was restored from a backup refuses every request if the coordinator has seen later audit rows; its log names the
    last of these rows, which the site signed. Pass it as --restored: the rows up to there are lost, so every open run,
    and every run given by --began, is charged the rest of its limit and closed. The command first prints these charges,
    their sum and the account after them, and asks; where nobody can be asked, it charges nothing and ends with the exit
    code 9, unless --yes is given.

    Examples:

      fedsynth site account /etc/fedsynth

      fedsynth site account /etc/fedsynth \
        --restored 4711:aIWf...:9kQ2... --began 2026-05-02-9f31c0

      fedsynth site account /etc/fedsynth \
        --extract 2026-05-02-9f31c0 > north.json

    Parameters
    ----------
    folder
        Folder of the site, made by `fedsynth site join`; it holds site.toml.
    restored
        After `fedsynth site restore`: the last audit row that the coordinator has seen of this site, as the site signed
        it (ROW:CHAIN:SIGNATURE). Says what is lost and, once that is confirmed, charges every open run up to its limit
        and closes it. Without it, nothing is charged.
    began
        With --restored: name of a run that began after the backup was made, which is charged too: per_run in [policy]
        of site.toml or, without that, the site's whole budget. Repeat it for several.
    yes
        With --restored: charge without asking, as a script needs.
    extract
        Name of a run: print its charges at this site, signed by the site (JSON), as a file for `fedsynth prove`, and
        nothing else.
    """
    from fedsynth.deploy.backup import lost_row
    from fedsynth.deploy.host.checks import account_text
    from fedsynth.deploy.host.config import load_site_config
    from fedsynth.deploy.host.state import open_account, site_secret
    from fedsynth.privacy.cost import Budget, to_json
    from fedsynth.proof.extract import extract as extract_of

    if began and not restored:
        raise errors.InvalidParameter("--began needs --restored: it names runs that began after the backup was made")
    if yes and not restored:
        raise errors.InvalidParameter("--yes needs --restored: nothing else is asked")
    if extract and restored:
        raise errors.InvalidParameter("--extract charges nothing: give --restored first, in a command of its own")
    config = load_site_config(folder)
    account = open_account(config)
    if extract:
        secret = site_secret(config, account)
        print(extract_of(account, secret, config.name, extract, config.coordinator).to_json().decode())
        return
    if restored:
        policy, row = config.policy, lost_row(config, account, restored)
        most = Budget.none() if policy.exact else policy.per_run or policy.budget
        begun = dict.fromkeys(began, most)
        lost = account.lost(begun, sampled=policy.samples)
        _announce(config, lost, json_, asks=not yes)
        account.restored(row, begun, sampled=policy.samples, announced=lost)
    row, chain = account.head()
    delta = config.policy.budget.delta
    runs, lines = [], [f"{config.name}: {account_text(config, account)}"]
    charges, kept = account.charges(), account.kept()
    for run, idle in account.open_runs():
        spent = account.spent(run)
        asked = [
            {name: charge[name] for name in ("key", "step", "verb", "kind", "cost", "row")}
            | {"bytes": kept.get(charge["key"], 0)}
            for charge in charges
            if charge["run"] == run and "key" in charge
        ]
        facts = {"run": run, "idle_days": round(idle, 3), "spent": to_json(spent), **to_json(account.change_of(run))}
        runs.append({**facts, "questions": asked})
        lines.append(
            f"  run {run}: epsilon {spent.at(delta):.4g}, idle for {idle:.1f} of {config.policy.keep_runs_days:g} "
            f"days, {len(asked)} questions" + (", the last of them:" if len(asked) > _LISTED else "")
        )
        lines += [
            f"    {one['key'][:12]}  step {one['step']} ({one['verb']} {one['kind']}), audit row {one['row']}, "
            f"{one['bytes']:,} bytes"
            for one in asked[-_LISTED:]
        ]
    repriced = None
    with contextlib.suppress(errors.Refused):
        repriced = account.spent_under(config.policy.change)
    facts = {
        "name": config.name,
        "spent": to_json(account.spent()),
        **to_json(account.change),
        "repriced": to_json(repriced),
        "limit": {"epsilon": config.policy.budget.epsilon, "delta": delta},
        "exact_releases": account.exact,
        "open_runs": runs,
        "row": row,
        "head": chain.hex(),
    }
    say(json_, facts, "\n".join([*lines, f"head: {chain.hex()}"]))


def _announce(config: SiteConfig, lost: LostCharges, json_: bool, *, asks: bool) -> None:
    """Print what a restored backup lacks, and what that is charged; ask, unless ``asks`` is false."""
    from fedsynth.privacy.cost import ROUNDING, to_json

    limit = config.policy.budget
    unit = limit.measure
    costs = [(one, limit.price(one.spent), limit.price(one.rest)) for one in lost.runs]
    before, after = (total.at(limit.delta) for total in (lost.before, lost.after))
    lines = [f"{config.name}: the backup lacks charges. Charged is each run that was open then, or given by --began:"]
    for one, known, rest in costs:
        said = f"epsilon {one.limit.epsilon:g}" + (f" at delta {one.limit.delta:g}" if one.limit.delta else "")
        lines.append(f"  run {one.run}: up to its limit, {said}: {unit} {rest:.6g} more than the known {known:.6g}")
    if not limit.exact and any(rest > limit.price(one.limit.rest(one.spent)) * ROUNDING for one, _, rest in costs):
        lines.append(
            "  what is lost may be training, whose cost is known at the order of a run's limit alone: at the order of "
            "this site's budget it counts for more than the limit (docs/policy.md)"
        )
    lines.append(f"  in all {unit} {sum(rest for *_, rest in costs):.6g}; these {len(costs)} runs are closed")
    lines.append(f"  account: epsilon {before:.4g} of {limit.epsilon:g} now, {after:.4g} afterwards")
    if asks and json_:
        runs = [{**to_json(one._asdict()), "price": rest} for one, _, rest in costs]
        facts = {"name": config.name, "charged": False, "runs": runs}
        say(True, {**facts, "before": to_json(lost.before), "after": to_json(lost.after)}, "")
        raise SystemExit(9)
    if not json_:
        print("\n".join(lines))
    if asks and not (sys.stdin.isatty() and confirm("Charge this?")):
        raise errors.Incomplete("nothing is charged yet; give the same command with --yes to charge it")


def site_close(folder: Path, run: str, /, *, json_: bool = False) -> None:
    """Close a run for good at this site, and delete its data here.

    Deletes the site's replies to the run, the random values from which its noise was drawn, and the run's copy of the
    rows, unless another open run uses the same copy. What the run has spent of the privacy budget stays spent. A closed
    run gets no more answers and cannot resume. While `fedsynth site serve` runs, it closes the runs that have asked
    nothing for keep_runs_days (in [policy] of site.toml, default 14).

    Example:

      fedsynth site close /etc/fedsynth 2026-05-02-9f31c0

    Parameters
    ----------
    folder
        Folder of the site, made by `fedsynth site join`; it holds site.toml.
    run
        Name of the run, as `fedsynth site account` lists it.
    """
    from fedsynth.deploy.host.config import load_site_config
    from fedsynth.deploy.host.rows import close_run
    from fedsynth.deploy.host.state import open_account

    config = load_site_config(folder)
    questions = close_run(config, open_account(config), run)
    asked = f"closed {run}, which asked {questions} questions" if questions else f"{run} was closed before this command"
    say(json_, {"run": run, "questions": questions}, asked)

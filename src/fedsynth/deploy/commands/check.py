"""The commands that check a site and what was charged: ``site check`` and ``account``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsynth import errors
from fedsynth.cli.options import check_text, confirm, say, score_table
from fedsynth.cli.output import tell
from fedsynth.keys import KEY_BYTES, Keys
from fedsynth.plugins import named
from fedsynth.privacy.cost import in_full, rounded_up, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedsynth.deploy.host.account import AuditVerdict, SiteAccount
    from fedsynth.deploy.host.config import SiteConfig
    from fedsynth.federation.agreement import Agreement
    from fedsynth.privacy.book import Book
    from fedsynth.privacy.charge import LostCharges

_LISTED = 10  # questions of a run that `account` prints
_SERVER = "ledger.sqlite"  # in the folder of a compute server, which has its own feature


def site_check(
    folder: Path | None = None,
    /,
    *,
    machine: bool = False,
    superlink: str = "",
    root_certificates: Path | None = None,
    state: Path | None = None,
    private: tuple[Path, ...] = (),
    bind: tuple[str, ...] = (),
    flwr: str = "",
    table: Path | None = None,
    json_: bool = False,
) -> int:
    r"""Check that a site, or a machine that is to be one, is ready.

    Of the site in FOLDER: its rows, account (record of privacy spending), policy (what the site may answer), keys and
    certificates, and the certificate and the clock of the server that site.toml names, if it can be reached. Nothing
    about the site is sent, and nothing is charged to its budget. Without FOLDER, or with --machine as well, of this
    machine: versions, clock, certificates, ports, proxies, files, disk space and random numbers, and the connection to
    the server; this changes nothing and reads no secret. Each failed check comes with its fix. Exit
    codes: 0 ready; else that of the first failed check: 3 rows or schema do not fit, 4 no budget left, 8 anything else.

    Examples:

      fedsynth site check /etc/fedsynth

      fedsynth site check --superlink fed.example.org:443 \
        --root-certificates ca.crt

      fedsynth site check hospital-a --machine --bind 127.0.0.1:9094

      fedsynth site check hospital-a --table synthetic.csv

    Parameters
    ----------
    folder
        Folder of the site, made by `fedsynth site join`; it holds site.toml.
    machine
        Check this machine too, and the server that site.toml names. So does each of the options below.
    superlink
        HOST:PORT at which sites reach the SuperLink, Flower's server program, to check connection, certificate and
        clock. Default: that of site.toml; without either, these are not checked.
    root_certificates
        Certificate of the federation's certificate authority (PEM file, ca.crt), with which the certificate of the
        server is verified. Default: that of site.toml, else the certificates of the system.
    state
        Folder where a site keeps its record of spent budget, its secret and its copies of rows, to check that it is
        writable, has space and is on a local disk. Default: that of site.toml; without either, not checked.
    private
        File, such as a key, to check that only its owner, you, can read it; repeat it for several files.
    bind
        HOST:PORT of this machine that a program will listen at, such as 127.0.0.1:9094, to check that it is free;
        repeat it for several.
    flwr
        Version of the package flwr (Flower) at the server, e.g. 1.41.0: the first two numbers must be the same on this
        machine. Default: the version that this fedsynth needs.
    table
        Synthetic table (CSV or Parquet) of a run of this site, to score it against the site's own rows, in place of all
        checks. The scores are for the site alone: they are computed without noise. Nothing is sent or charged.
    """
    from fedsynth.deploy.host.checks import check_host
    from fedsynth.deploy.host.config import load_site_config

    if table is not None:
        from fedsynth.deploy.host.table_scores import table_scores

        if folder is None:
            raise errors.InvalidParameter("--table needs the site's folder, as in: site check hospital-a --table FILE")
        scores = list(table_scores(load_site_config(folder), table).scores)
        noted = "(computed on this site's rows without noise: for the site alone, do not pass them on)"
        say(json_, {"scores": [score.to_json() for score in scores]}, f"{score_table(scores)}\n{noted}")
        return 0
    found = check_host(
        None if folder is None else load_site_config(folder),
        machine=machine,
        superlink=superlink,
        roots=root_certificates,
        state=state,
        private=private,
        bind=bind,
        lockstep=flwr,
    )
    verdict = f"{found.name or 'this machine'} is {'NOT ready' if found.code else 'ready'}"
    say(json_, found.to_json(), f"{check_text(found.checks)}\n\n{verdict}")
    return found.code


def account(
    place: Path,
    /,
    *,
    noted: str = "",
    export: Path | None = None,
    close: str = "",
    extract: str = "",
    sign: Path | None = None,
    restored: str = "",
    began: tuple[str, ...] = (),
    yes: bool = False,
    json_: bool = False,
) -> int:
    r"""Show and verify what a site or a compute server has charged.

    The record has an audit row for each question that was charged, and rows for refused questions (many in one hour
    share a row), closed runs and restored backups. The rows form a hash chain: every row must follow from the one
    before it. A chain alone cannot show that its last rows were cut off or that all of it was rewritten: so write down
    the head (last hash) that this command prints from time to time, and pass it as --noted later.

    Of a site, it shows what is spent, the cost to one person of the stated unit (the largest that the policy has
    demanded so far), and its open runs, which are not closed yet. The last questions of each are listed with their keys
    (a key is the SHA-256 of the coordinator's public keys and the question's digest, as in an extract) and the bytes
    that the account holds for them, and all of them with --json. The last messages that the site did not answer follow,
    each with the reason. While `fedsynth site serve` runs, it closes the runs that have asked nothing for
    keep_runs_days (in [policy] of site.toml, default 14).

    A site that was restored from a backup refuses every request if the coordinator has seen later audit rows; its log
    names the last of these rows, which the site signed. Pass it as --restored: the rows up to there are lost, so every
    open run, and every run given by --began, is charged the rest of its limit and closed. The command first prints
    these charges, their sum and the account after them, and asks; where nobody can be asked, it charges nothing and
    ends with the exit code 9, unless --yes is given.

    Exit codes: 0 intact, 8 something is wrong; docs/cli.md lists the others.

    Examples:

      fedsynth account /etc/fedsynth

      fedsynth account audit.jsonl --noted 5f0c...

      fedsynth account /etc/fedsynth \
        --restored 4711:aIWf...:9kQ2... --began 2026-05-02-9f31c0

      fedsynth account /etc/fedsynth \
        --extract 2026-05-02-9f31c0 > north.json

    Parameters
    ----------
    place
        Folder of a site, which holds its site.toml, or of a compute server; or a file of audit rows that --export
        wrote.
    noted
        Head (last hash, 64 hex digits) that this command printed earlier. If the chain of audit rows no longer contains
        it, rows were removed or rewritten. Without it, that is not checked.
    export
        File to write the audit rows of a site to (JSON lines), so that others can verify them; replaced if it exists.
        Without it, nothing is written.
    close
        Name of a run to close for good at this site. Deletes the site's replies to the run, the random values from
        which its noise was drawn, and the run's copy of the rows, unless another open run uses the same copy. What the
        run has spent stays spent. A closed run gets no more answers and cannot resume.
    extract
        Name of a run: print its charges at this site, signed by the site (JSON), as a file for `fedsynth publish` and
        `fedsynth verify`, and nothing else.
    sign
        Folder of a pack that the coordinator made of a run: verify it, and sign it as this site. The signature is
        written into the pack, as signatures/NAME.json.
    restored
        After `fedsynth restore`: the last audit row that the coordinator has seen of this site, as the site signed it
        (ROW:CHAIN:SIGNATURE). Says what is lost and, once that is confirmed, charges every open run up to its limit and
        closes it. Without it, nothing is charged.
    began
        With --restored: name of a run that began after the backup was made, which is charged too: per_run in [policy]
        of site.toml or, without that, the site's whole budget, as if it had been training. RUN=PLAN.toml names the plan
        that you had approved for the run, which is then charged its budget, and as training only if the plan has some;
        compare the digest that is shown with your own record. Repeat it for several.
    yes
        With --restored: charge without asking, as a script needs.
    """
    from fedsynth.deploy.host.account import audit_verdict, site_account
    from fedsynth.deploy.host.config import load_site_config
    from fedsynth.deploy.host.rows import close_run
    from fedsynth.deploy.host.state import open_account, site_secret
    from fedsynth.files import write_private
    from fedsynth.privacy.book_file import verify_export
    from fedsynth.proof.extract import extract as extract_of

    if (began or yes) and not restored:
        raise errors.InvalidParameter("--began and --yes need --restored: nothing else is charged or asked")
    if sum(map(bool, (close, extract, sign, restored))) > 1:
        raise errors.InvalidParameter(
            "--restored, --close, --extract and --sign do different things: give one at a time"
        )
    place.stat()  # an error that says so, if there is no such file or folder
    server = not place.is_file() and (place / _SERVER).is_file()
    if (place.is_file() and place.suffix != ".toml") or server:
        if export or close or extract or sign or restored:
            raise errors.InvalidParameter(
                f"{place} is no site: --export, --close, --extract, --sign and --restored are for one"
            )
        if server:
            named("fedsynth.servers.commands:show_ledger")(place, noted, json_)
            return 0
        return _tell(audit_verdict(verify_export(place, noted), noted), json_, {}, [])
    config = load_site_config(place)
    book = open_account(config)
    if extract:
        secret = site_secret(config, book)
        print(extract_of(book, secret, config.name, extract, config.coordinator).to_json().decode())
        return 0
    if sign:
        keys = Keys(site_secret(config, book))
        signature = named("fedsynth.publish.pack:sign_pack")(sign, config.name, keys, config.coordinator[:KEY_BYTES])
        file = sign / signature.file
        say(json_, {"signature": str(file)}, f"signed as {config.name}: {file}")
        return 0
    if close:
        questions = close_run(config, book, close)
        gone = f"closed {close}, which asked {errors.number_of(questions, 'question')}"
        said = gone if questions else f"{close} was closed before this command"
        say(json_, {"run": close, "questions": questions}, said)
        return 0
    if restored:
        _charge_lost(config, book, restored, began, yes, json_)
    shown = site_account(config, book)
    lines = _account_lines(shown)
    if export is not None:
        write_private(export, "".join(f"{row}\n" for row in book.export()))
        lines.append(f"exported to {export}")
    return _tell(audit_verdict(book.verify(noted), noted), json_, shown.to_json(), lines)


def _tell(audit: AuditVerdict, json_: bool, account: dict[str, Any], lines: list[str]) -> int:
    """Print an account, as JSON values or as ``lines``, and the verdict on its audit; return the exit code."""
    said = list(audit.problems) or [f"{errors.number_of(audit.rows, 'audit row')}, each follows from the one before it"]
    if audit.noted_at:
        later = errors.number_of(audit.rows - audit.noted_at, "row")
        said.append(f"the head given by --noted is row {audit.noted_at}, with {later} after it")
    say(json_, {**account, **to_json(audit)}, "\n".join([*lines, *said, f"head: {audit.head}"]))
    return 0 if audit.intact else 8


def _account_lines(account: SiteAccount) -> list[str]:
    """Return a site's account as lines of text: what is spent, the open runs and their last questions, refusals."""
    from fedsynth.deploy.host.checks import account_text

    delta, lines = account.spending.limit.delta, [f"{account.name}: {account_text(account.spending)}"]
    for run in account.open_runs:
        terms = f"{run.method or 'method not told'}, {run.trust}, sites: {run.sites}, agreement {run.agreement[:12]}"
        asked = errors.number_of(len(run.questions), "question")
        lines.append(
            f"  run {run.run} ({terms}): epsilon {rounded_up(run.spent.at(delta))}, idle for {run.idle_days:.1f} of "
            f"{account.keep_runs_days:g} days, {asked}"
            + (", the last of them:" if len(run.questions) > _LISTED else "")
        )
        lines += [
            f"    {question.key[:12]}  step {question.step} ({question.verb} {question.kind}), audit row "
            f"{question.row}, {question.bytes:,} bytes"
            for question in run.questions[-_LISTED:]
        ]
    if account.refusals:
        lines.append("the last messages that were not answered:")
    for row in account.refusals:
        asked_for = f"run {row['run']}, step {row['step']}: " if row.get("run") else ""
        why = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in row["reason"])  # for a terminal
        lines.append(f"  row {row['row']}, {row['time'][:16]}: {asked_for}{row['outcome']}: {why}")
    return lines


def _charge_lost(config: SiteConfig, book: Book, restored: str, began: tuple[str, ...], yes: bool, json_: bool) -> None:
    from fedsynth.deploy.backup import lost_row
    from fedsynth.federation.agreement import Agreement
    from fedsynth.privacy.charge import BegunRun
    from fedsynth.privacy.cost import Budget

    policy, row = config.policy, lost_row(config, book, restored)
    limit = Budget.none() if policy.exact else policy.per_run or policy.budget
    begun, plans = {}, {}
    for text in began:
        name, planned, file = text.partition("=")
        begun[name] = BegunRun(limit)
        if planned:
            plans[name] = plan = Agreement.load(Path(file))
            if not plan.slots:
                raise errors.InvalidParameter(f"{file} is no plan; give the one under which the run {name} was made")
            begun[name] = BegunRun(plan.budget, plan.data)
    lost = book.lost(begun, samples=policy.samples)
    _announce(config, lost, plans, json_, asks=not yes)
    book.restored(row, begun, samples=policy.samples, announced=lost)


def _announce(
    config: SiteConfig, lost: LostCharges, plans: Mapping[str, Agreement], json_: bool, *, asks: bool
) -> None:
    """Print what a restored backup lacks, and what that is charged; ask, unless ``asks`` is false."""
    from fedsynth.privacy.cost import ROUNDING

    limit = config.policy.budget
    unit = limit.measure
    costs = [(one, limit.price(one.spent), limit.price(one.rest)) for one in lost.runs]
    before, after = (total.at(limit.delta) for total in (lost.before, lost.after))
    lines = [f"{config.name}: the backup lacks charges. Charged is each run that was open then, or given by --began:"]
    for one, known, rest in costs:
        at = f" at delta {in_full(one.limit.delta)}" if one.limit.delta else ""
        said = f"epsilon {in_full(one.limit.epsilon)}{at}"
        said += f", that of plan {plans[one.run].digest}" if one.run in plans else ""
        lines.append(f"  run {one.run}: up to its limit, {said}: {unit} {rest:.6g} more than the known {known:.6g}")
    if not limit.exact and any(rest > limit.price(one.limit.rest(one.spent)) * ROUNDING for one, _, rest in costs):
        lines.append(
            "  what is lost may be training, whose cost is known at the order of a run's limit alone: at the order of "
            "this site's budget it counts for more than the limit (docs/policy.md). For a run that began since under "
            "a plan without training, give --began RUN=PLAN.toml"
        )
    lines.append(f"  in all {unit} {sum(rest for *_, rest in costs):.6g}; {errors.number_of(len(costs), 'run')} closed")
    lines.append(
        f"  account: epsilon {rounded_up(before)} of {in_full(limit.epsilon)} now, {rounded_up(after)} afterwards"
    )
    if asks and json_:
        runs = [{**to_json(one._asdict()), "price": rest} for one, _, rest in costs]
        facts = {"name": config.name, "charged": False, "runs": runs}
        say(True, {**facts, "before": to_json(lost.before), "after": to_json(lost.after)}, "")
        raise SystemExit(9)
    if not json_:
        tell("\n".join(lines))
    if asks and not (sys.stdin.isatty() and confirm("Charge this?")):
        raise errors.Incomplete("nothing is charged yet; give the same command with --yes to charge it")

"""The commands that check a machine and an account: ``fedsynth doctor`` and ``audit``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from fedsynth.cli.options import check_text, say
from fedsynth.errors import InvalidParameter

if TYPE_CHECKING:
    from fedsynth.privacy.book_file import AuditResult


def doctor(
    *,
    site: Path | None = None,
    superlink: str = "",
    root_certificates: Path | None = None,
    state: Path | None = None,
    private: tuple[Path, ...] = (),
    bind: tuple[str, ...] = (),
    flwr: str = "",
    json_: bool = False,
) -> int:
    r"""Check that this machine can join a federation.

    Checks versions, clock, certificates, ports, proxies, files, disk space and random numbers; each failure comes with
    its fix. Changes nothing and reads no secret. Exit codes: 0 no failure, 8 something would keep the machine from
    taking part.

    Examples:

      fedsynth doctor --superlink fed.example.org:443 \
        --root-certificates ca.crt

      fedsynth doctor --site hospital-a --bind 127.0.0.1:9094

    Parameters
    ----------
    site
        Folder of a site on this machine, which holds its site.toml: checks its files too, and the server named there.
        Without it, only the machine and what other options name are checked.
    superlink
        HOST:PORT at which sites reach the SuperLink, Flower's server program, to check connection, certificate and
        clock. Default: that of --site; without either, these are not checked.
    root_certificates
        Certificate of the federation's certificate authority (PEM file, ca.crt), with which the certificate of the
        server is verified. Default: that of --site, else the certificates of the system.
    state
        Folder where a site keeps its record of spent budget, its secret and its copies of rows, to check that it is
        writable, has space and is on a local disk. Default: that of --site; without either, not checked.
    private
        File, such as a key, to check that only its owner, you, can read it; repeat it for several files.
    bind
        HOST:PORT of this machine that a program will listen at, such as 127.0.0.1:9094, to check that it is free;
        repeat it for several.
    flwr
        Version of the package flwr (Flower) at the server, e.g. 1.41.0: the first two numbers must be the same on this
        machine. Default: the version that this fedsynth needs.
    """
    from fedsynth.deploy.host.checks import examine

    guarded = {f"private file {one.name}": one for one in private}
    if site is not None:
        from fedsynth.deploy.host.config import load_site_config

        config = load_site_config(site)
        superlink = superlink or config.superlink
        root_certificates = root_certificates or config.root_certificates
        state = state or config.state
        guarded = {
            "account and secret": config.account,
            "node key": config.key,
            "state folder": config.state,
            **guarded,
        }
    checks = examine(
        superlink=superlink, roots=root_certificates, state=state, private=guarded, bind=bind, lockstep=flwr
    )
    bad = [one for one in checks if one.state == "failure"]
    facts = {"fit": not bad, "checks": [one.to_json() for one in checks]}
    say(json_, facts, f"{check_text(checks)}\n\n{len(checks)} checks, {len(bad)} failures")
    return 8 if bad else 0


def audit(
    file: Path | None = None,
    /,
    *,
    site: Path | None = None,
    noted: str = "",
    export: Path | None = None,
    json_: bool = False,
) -> int:
    """Verify a site's record of its charges and refusals.

    The record, called the site's account, has an audit row for each question that was charged to the site's budget,
    and rows for refused questions (many in one hour share a row), closed runs and restored backups. The rows form a
    hash chain: every row must follow from the one before it. A chain alone cannot show that
    its last rows were cut off or that all of it was rewritten. So write down the head (last hash) that this command
    prints from time to time, and pass it as --noted later; the coordinator also remembers the last row that it saw of
    each site. Exit codes: 0 intact, 8 something is wrong.

    Examples:

      fedsynth audit --site /etc/fedsynth

      fedsynth audit --site /etc/fedsynth --export audit.jsonl

      fedsynth audit audit.jsonl --noted 5f0c...

    Parameters
    ----------
    file
        File of audit rows that --export wrote (JSON lines); leave it out with --site.
    site
        Folder of the site, which holds its site.toml: verifies the record there. Give this or FILE.
    noted
        Head (last hash, 64 hex digits) that this command or `fedsynth site account` printed earlier. If the chain of
        audit rows no longer contains it, rows were removed or rewritten. Without it, that is not checked.
    export
        File to write the audit rows of --site to (JSON lines), so that others can verify them; replaced if it exists.
        Without it, nothing is written.
    """
    from fedsynth.privacy.book_file import verify_export

    if (file is None) == (site is None) or (export is not None and site is None):
        raise InvalidParameter(
            "pass either FILE, a file of exported audit rows, or --site FOLDER; --export is optional and needs --site"
        )
    if site is not None:
        found = _audited(site, noted, export)
    else:
        assert file is not None
        found = verify_export(file, noted)
    wrong = [found.fault] if found.fault else []
    if noted and not found.noted_at:
        wrong.append("the head given by --noted does not occur: rows were cut off the end, or the chain was rewritten")
    facts = {"whole": not wrong, "problems": wrong, **dataclasses.asdict(found)}
    said = wrong or [f"{found.rows} rows, each follows from the one before it"]
    if noted and found.noted_at:
        said.append(f"the head given by --noted is row {found.noted_at}; {found.rows - found.noted_at} rows follow it")
    said += [f"exported to {export}"] if export is not None else []
    say(json_, facts, "\n".join([*said, f"head: {found.head}"]))
    return 8 if wrong else 0


def _audited(site: Path, noted: str, export: Path | None) -> AuditResult:
    """Verify a site's account, export its audit rows if ``export`` is a path, and return the findings."""
    from fedsynth.deploy.host.config import load_site_config
    from fedsynth.deploy.host.state import open_account
    from fedsynth.files import write_private

    account = open_account(load_site_config(site))
    if export is not None:
        write_private(export, "".join(f"{row}\n" for row in account.export()))
    return account.verify(noted)

"""The commands that keep a deployment from loss: ``site backup|restore`` and ``deploy backup|restore``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedsynth.cli.deploy import SiteDir
from fedsynth.cli.options import Json, say

Archive = Annotated[Path, typer.Argument(help="File that a backup wrote.")]
To = Annotated[Path, typer.Argument(help="File to write, on another disk than the folder; one that exists is refused.")]
ServerDir = Annotated[Path, typer.Argument(help="The folder that `fedsynth deploy init` wrote.")]


def site_backup(
    folder: SiteDir,
    to: To,
    with_rows: Annotated[
        bool, typer.Option("--with-rows", help="Also the encoded rows that open runs read: single rows of people.")
    ] = False,
    json_: Json = False,
) -> None:
    """Write a site's account, its configuration and its keys to one file, also while the site answers.

    The file holds the site's secret, with which the noise can be taken out of everything that the site answered: keep
    it like the rows. It is not encrypted; its owner alone can read it. Make one after every run.

    Example:

      fedsynth site backup /etc/fedsynth /mnt/backup/north-2026-05-02.backup
    """
    from fedsynth.host.config import load_site_config
    from fedsynth.host.keep import back_up_site

    config = load_site_config(folder)
    made = back_up_site(config, to, with_rows=with_rows)
    contents = made.contents
    facts = {
        "name": config.name,
        "backup": str(to),
        "made": contents.made,
        "row": contents.row,
        "files": sorted(contents.files),
        "elsewhere": [str(path) for path in made.elsewhere],
    }
    lines = [
        f"{to}: {config.name} as of audit row {contents.row}, {len(contents.files)} files; it holds the site's secret"
    ]
    lines += [f"not in it, since it lies elsewhere: {path}" for path in made.elsewhere]
    if not with_rows:
        lines.append("No rows are in it: without state/rows, runs that are open now end at this site (--with-rows).")
    say(json_, facts, "\n".join(lines))


def site_restore(
    archive: Archive,
    folder: Annotated[Path, typer.Argument(help="Folder for the site: new, empty, or that of the damaged site.")],
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Put the backup in the place of what is there, which is kept under other names."
        ),
    ] = False,
    json_: Json = False,
) -> None:
    """Put a site's backup back, once all of it has been checked. Stop `fedsynth site serve` before.

    Whatever the site answered after the backup was made is not in the account. The site refuses a coordinator that has
    seen more, until `fedsynth site account --restored` has written the difference off.

    Examples:

      fedsynth site restore /mnt/backup/north-2026-05-02.backup /etc/fedsynth

      fedsynth site restore /mnt/backup/north-2026-05-02.backup /etc/fedsynth --replace
    """
    from fedsynth.host.keep import restore_site

    contents, aside = restore_site(archive, folder, replace=replace)
    facts = {
        "name": contents.name,
        "made": contents.made,
        "row": contents.row,
        "files": sorted(contents.files),
        "aside": [str(path) for path in aside],
    }
    where = shlex.quote(str(folder))
    lines = [f"{folder}: {contents.name} as of {contents.made}, audit row {contents.row}, {len(contents.files)} files"]
    lines += [f"kept aside: {path}" for path in aside]
    lines += [
        "",
        f"Next: ask the coordinator for the number under {contents.name!r} in state/seen.json. If it is at most "
        f"{contents.row}, nothing is",
        "missing. Else charges are: write them off, with --began for each run that began since the backup was made:",
        f"  fedsynth site account {where} --restored NUMBER --began RUN",
        f"  fedsynth site check {where}",
    ]
    say(json_, facts, "\n".join(lines))


def deploy_backup(folder: ServerDir, to: To, json_: Json = False) -> None:
    """Write the server's folder to one file, also while a run is going on.

    The file holds the coordinator's secret and, in superlink.db, every message: under the trust "trusted", each site's
    sealed tables and the key that opens them. Keep it like the rows. It is not encrypted; its owner alone can read it.

    Example:

      fedsynth deploy backup federation /mnt/backup/server-2026-05-02.backup
    """
    from fedsynth.runs.keep import back_up_server

    contents = back_up_server(folder, to)
    facts = {"backup": str(to), "made": contents.made, "files": sorted(contents.files)}
    say(json_, facts, f"{to}: {folder}, {len(contents.files)} files; it holds the coordinator's secret")


def deploy_restore(
    archive: Archive,
    folder: Annotated[Path, typer.Argument(help="Folder for the server: a new or an empty one.")],
    json_: Json = False,
) -> None:
    """Put a server's backup into a new folder, once all of it has been checked.

    Example:

      fedsynth deploy restore /mnt/backup/server-2026-05-02.backup federation
    """
    from fedsynth.runs.keep import restore_server

    contents = restore_server(archive, folder)
    facts = {"made": contents.made, "files": sorted(contents.files)}
    lines = [
        f"{folder}: {contents.name} as of {contents.made}, {len(contents.files)} files",
        "If the folder has another path than before, correct it in app/pyproject.toml and server/config.toml.",
        "Where an open run has asked more since the backup was made, give the job another run name.",
    ]
    say(json_, facts, "\n".join(lines))

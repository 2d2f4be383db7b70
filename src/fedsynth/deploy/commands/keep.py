"""The commands that back up a deployment: ``site backup|restore`` and ``deploy backup|restore``."""

from __future__ import annotations

import shlex
from pathlib import Path

from fedsynth.cli.options import say


def site_backup(folder: Path, to: Path, /, *, with_rows: bool = False, json_: bool = False) -> None:
    r"""Back up a site: its record of spent budget, settings and keys.

    The site may go on answering meanwhile. The file holds the site's secret, with which the noise can be removed from
    everything that the site answered: protect it like the rows themselves. It is not encrypted; only its owner can read
    it. Make a backup after every run.

    Example:

      fedsynth site backup /etc/fedsynth \
        /mnt/backup/north-2026-05-02.backup

    Parameters
    ----------
    folder
        Folder of the site, made by `fedsynth site join`; it holds site.toml.
    to
        Backup file to write; it must not exist yet. Use a different disk from the folder's.
    with_rows
        Include the copies of the site's rows from which runs that are not closed yet are answered: rows of real people.
        Without it, the site cannot go on with these runs after a restore.
    """
    from fedsynth.deploy.backup import back_up_site
    from fedsynth.deploy.host.config import load_site_config

    config = load_site_config(folder)
    contents, elsewhere = back_up_site(config, to, with_rows=with_rows)
    facts = {
        "name": config.name,
        "backup": str(to),
        "made": contents.made,
        "row": contents.row,
        "files": sorted(contents.files),
        "elsewhere": [str(path) for path in elsewhere],
    }
    lines = [
        f"{to}: {config.name} as of audit row {contents.row}, {len(contents.files)} files, the site's secret among them"
    ]
    lines += [f"not included, since it is outside the folder: {path}" for path in elsewhere]
    if not with_rows:
        lines.append(
            "Rows are not included: after a restore, this site cannot go on with the runs that are open now "
            "(--with-rows)."
        )
    say(json_, facts, "\n".join(lines))


def site_restore(archive: Path, folder: Path, /, *, replace: bool = False, json_: bool = False) -> None:
    r"""Restore a site from a backup, which is checked first.

    Stop `fedsynth site serve` first. Answers given after the backup was made are missing from its record of spent
    budget, so the site refuses the coordinator until `fedsynth site account --restored` has charged for them.

    Examples:

      fedsynth site restore /mnt/backup/north-2026-05-02.backup /etc/fedsynth

      fedsynth site restore /mnt/backup/north-2026-05-02.backup \
        /etc/fedsynth --replace

    Parameters
    ----------
    archive
        Backup file to restore, made by `fedsynth site backup`.
    folder
        Folder for the site: new or empty, or the damaged one with --replace.
    replace
        Replace files that exist already; they are kept beside the restored ones, as NAME.before-restore-... Without it,
        FOLDER must be new or empty.
    """
    from fedsynth.deploy.backup import restore_site

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
        f"Next: ask the coordinator for the entry of {contents.name!r} in state/seen.json. If the number that it "
        f"begins with is not above {contents.row}, nothing is missing.",
        "If it is larger, charges are missing. Add them, with --began for each run that began after the backup;",
        "the command says first what that costs, and asks:",
        f"  fedsynth site account {where} --restored ENTRY --began RUN",
        f"  fedsynth site check {where}",
    ]
    say(json_, facts, "\n".join(lines))


def deploy_backup(folder: Path, to: Path, /, *, json_: bool = False) -> None:
    r"""Back up the server: write its whole folder to one file.

    A run may go on meanwhile. The file holds the coordinator's secret and, in superlink.db (Flower's database), every
    message: with --trust trusted, each site's encrypted tables and the key that decrypts them. Protect it like the rows
    themselves. It is not encrypted; only its owner can read it.

    Example:

      fedsynth deploy backup federation \
        /mnt/backup/server-2026-05-02.backup

    Parameters
    ----------
    folder
        Folder of the federation, written by `fedsynth deploy init`.
    to
        Backup file to write; it must not exist yet. Use a different disk from the folder's.
    """
    from fedsynth.deploy.backup import back_up_server

    contents = back_up_server(folder, to)
    facts = {"backup": str(to), "made": contents.made, "files": sorted(contents.files)}
    say(json_, facts, f"{to}: {folder}, {len(contents.files)} files, the coordinator's secret among them")


def deploy_restore(archive: Path, folder: Path, /, *, json_: bool = False) -> None:
    r"""Restore the server's folder from a backup (checked first).

    An unfinished run can be resumed afterwards if it has asked nothing since the backup was made; otherwise start
    another one: write a new name as `run` into the section [deployment] of FOLDER/job.toml.

    Example:

      fedsynth deploy restore /mnt/backup/server-2026-05-02.backup \
        federation

    Parameters
    ----------
    archive
        Backup file to restore, made by `fedsynth deploy backup`.
    folder
        Folder to restore the server's folder into: new or empty.
    """
    from fedsynth.deploy.backup import restore_server

    contents = restore_server(archive, folder)
    facts = {"made": contents.made, "files": sorted(contents.files)}
    lines = [
        f"{folder}: {contents.name} as of {contents.made}, {len(contents.files)} files",
        "If the folder's path has changed, correct it in app/pyproject.toml and server/config.toml.",
        "If a run has asked anything since the backup was made, write a new name as `run` into the section "
        "[deployment] of job.toml.",
    ]
    say(json_, facts, "\n".join(lines))

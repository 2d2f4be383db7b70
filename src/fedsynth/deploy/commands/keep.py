"""The commands ``backup`` and ``restore``, for the folder of a site and for that of the server."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsynth.cli.options import say
from fedsynth.errors import InvalidParameter

if TYPE_CHECKING:
    from fedsynth.deploy.backup import BackupContents


def backup(folder: Path, to: Path, /, *, with_rows: bool = False, json_: bool = False) -> None:
    r"""Back up a site, or the server of a federation, to one file.

    A site may go on answering meanwhile, and a run go on. Of a site, the file holds the record of spent budget,
    settings and keys, its secret among them, with which the noise can be removed from everything that it answered. Of a
    server, it holds the whole folder, with the coordinator's secret and, in superlink.db (Flower's database), every
    message: with --trust trusted, each site's encrypted tables and the key that decrypts them. Protect it like the rows
    themselves. It is not encrypted; only its owner can read it. Make a backup of a site after every run.

    Examples:

      fedsynth backup /etc/fedsynth /mnt/backup/north-2026-05-02.backup

      fedsynth backup federation /mnt/backup/server-2026-05-02.backup

    Parameters
    ----------
    folder
        Folder of the site, which holds its site.toml, or of the federation, written by `fedsynth deploy init`.
    to
        Backup file to write; it must not exist yet. Use a different disk from the folder's.
    with_rows
        Include the copies of a site's rows from which runs that are not closed yet are answered: rows of real people.
        Without it, the site cannot go on with these runs after a restore.
    """
    from fedsynth.deploy.backup import back_up_server, back_up_site
    from fedsynth.deploy.host.config import FILE, load_site_config

    if not (folder / FILE).is_file():
        if with_rows:
            raise InvalidParameter(f"--with-rows is for a site, and {folder} has no {FILE}; leave it out")
        contents = back_up_server(folder, to)
        facts = {"backup": str(to), "made": contents.made, "files": sorted(contents.files)}
        say(json_, facts, f"{to}: {folder}, {len(contents.files)} files, the coordinator's secret among them")
        return
    contents, elsewhere = back_up_site(load_site_config(folder), to, with_rows=with_rows)
    files = f"{len(contents.files)} files, the site's secret among them"
    lines = [f"{to}: {contents.name} as of audit row {contents.row}, {files}"]
    lines += [f"not included, since it is outside the folder: {path}" for path in elsewhere]
    if not with_rows:
        lines.append(
            "Rows are not included: after a restore, this site cannot go on with the runs that are open now "
            "(--with-rows)."
        )
    facts = {**_facts(contents), "backup": str(to), "elsewhere": [str(path) for path in elsewhere]}
    say(json_, facts, "\n".join(lines))


def _facts(contents: BackupContents) -> dict[str, Any]:
    made = {name: getattr(contents, name) for name in ("name", "made", "row")}
    return {**made, "files": sorted(contents.files)}


def restore(archive: Path, folder: Path, /, *, replace: bool = False, json_: bool = False) -> None:
    r"""Restore a site or a server from a backup (checked first).

    A site: stop `fedsynth site serve` first. Answers given after the backup was made are missing from its record of
    spent budget, so the site refuses the coordinator until `fedsynth account --restored` has charged for them. A
    server: an unfinished run can be resumed afterwards if it has asked nothing since the backup was made; otherwise
    start another one: write a new name as `run` into the section [deployment] of FOLDER/job.toml.

    Examples:

      fedsynth restore /mnt/backup/north-2026-05-02.backup /etc/fedsynth

      fedsynth restore /mnt/backup/north-2026-05-02.backup \
        /etc/fedsynth --replace

      fedsynth restore /mnt/backup/server-2026-05-02.backup federation

    Parameters
    ----------
    archive
        Backup file to restore, made by `fedsynth backup`.
    folder
        Folder to restore into: new or empty, or a site's damaged one with --replace.
    replace
        Replace files of a site that exist already; they are kept beside the restored ones, as NAME.before-restore-...
        Without it, FOLDER must be new or empty.
    """
    from fedsynth.deploy.backup import kind_of, restore_server, restore_site

    if kind_of(archive) == "server":
        if replace:
            raise InvalidParameter(f"{archive} is the backup of a server, and --replace is for a site; leave it out")
        contents = restore_server(archive, folder)
        facts = {"made": contents.made, "files": sorted(contents.files)}
        lines = [
            f"{folder}: {contents.name} as of {contents.made}, {len(contents.files)} files",
            "If the folder's path has changed, correct it in server/config.toml.",
            "If a run has asked anything since the backup was made, write a new name as `run` into the section "
            "[deployment] of job.toml.",
        ]
        say(json_, facts, "\n".join(lines))
        return
    contents, aside = restore_site(archive, folder, replace=replace)
    where = shlex.quote(str(folder))
    lines = [
        f"{folder}: {contents.name} as of {contents.made}, audit row {contents.row}, {len(contents.files)} files",
        *(f"kept aside: {path}" for path in aside),
        "",
        f"Next: ask the coordinator for the entry of {contents.name!r} in state/seen.json. If the number that it "
        f"begins with is not above {contents.row}, nothing is missing.",
        "If it is larger, charges are missing. Add them, with --began for each run that began after the backup;",
        "the command says first what that costs, and asks:",
        f"  fedsynth account {where} --restored ENTRY --began RUN=PLAN.toml",
        f"  fedsynth site check {where}",
    ]
    say(json_, {**_facts(contents), "aside": [str(path) for path in aside]}, "\n".join(lines))

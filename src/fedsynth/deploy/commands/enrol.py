"""The commands by which sites join a federation: ``site join`` and ``deploy admit``; ``deploy try`` for a trial run.

People compare fingerprints, or a script that got them by another channel: no option skips the comparison.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedsynth import errors
from fedsynth.cli.options import confirm, say
from fedsynth.files import Records
from fedsynth.platforms import require_posix
from fedsynth.privacy.cost import in_full

if TYPE_CHECKING:
    from fedsynth.deploy.enrolment import Enrolment
    from fedsynth.deploy.roster import Admission, Invitation, JoinRequest, SignedRoster


def site_join(
    file: Path,
    folder: Path,
    /,
    *,
    fingerprint: tuple[str, ...] = (),
    replace: bool = False,
    coordinator_sees_exact_counts: bool = False,
    json_: bool = False,
) -> None:
    """Join a federation, in two steps, by files from the coordinator.

    Step 1: given the invitation, makes the site's folder, its keys and a request to join, which you send back to the
    coordinator, who then sends an admission. Step 2: given the admission, stores the site's certificate and the roster
    (the list of all sites with their keys), and writes the site's signature under the roster, SITE.signed, to send
    back. Each step asks you to compare a fingerprint by phone: the invitation's with the coordinator, the roster's with
    all other sites. Private keys are made here and never leave the folder. The command never overwrites keys, so it can
    be repeated with the same file at any time.

    Examples:

      fedsynth site join north.toml /etc/fedsynth

      fedsynth site join admission-of-north.toml /etc/fedsynth

    Parameters
    ----------
    file
        File from the coordinator: first the invitation, later the admission.
    folder
        Folder of the site: a new or empty one for the invitation, which fills it; later the same one.
    replace
        Accept a roster (list of all sites with their keys) that differs from the one accepted before. You then rely on
        other sites or keys than before: phone the changed sites first. Without it, an admission with such a roster is
        refused.
    coordinator_sees_exact_counts
        Agree that the coordinator gets this site's exact counts, over any columns, and can rebuild single rows from
        them. Required for an invitation to the trust trusted; written into [policy] of site.toml.
    """
    from fedsynth.deploy.roster import Admission, Invitation, load_either

    found = load_either(file, Invitation, Admission)
    if isinstance(found, Invitation):
        _join(found, folder, fingerprint, coordinator_sees_exact_counts, json_)
    else:
        _accept(found, folder, fingerprint, replace, json_)


def _join(invitation: Invitation, folder: Path, given: Sequence[str], sees_counts: bool, json_: bool) -> None:
    from fedsynth.deploy.enrolment import check_folder, join
    from fedsynth.deploy.flower.files import NO_UNITS, site_files
    from fedsynth.schema import Schema

    terms = invitation.terms
    kinds = "".join(f"\n  imports  {place}, code of another package" for place in terms.kinds.values())
    shown = (
        f"An invitation of site {invitation.site} to a federation:\n"
        f"  server   {terms.superlink}\n"
        f"  schema   {Schema.from_toml(terms.schema).digest[:12]}, which is schema.toml in the folder\n"
        f"  job      {terms.method}, epsilon {in_full(terms.epsilon)}, delta {in_full(terms.delta)}, trust "
        f"{terms.trust}\n"
        f"  protects a person with {errors.number_of(terms.rows_per_person, 'row')} at each of "
        f"{errors.number_of(terms.sites_per_person, 'site')}{kinds}"
    )
    if not check_folder(invitation, folder):
        compare(shown, terms.fingerprint, "Does the coordinator read out the same by phone?", given, json_)
    request, path = join(invitation, folder, site_files(invitation, folder, sees_counts=sees_counts))
    units = "" if (folder / "compose.yaml").exists() else f"\n\n{NO_UNITS}"
    facts = {
        "site": request.site,
        "folder": str(folder),
        "invitation": terms.fingerprint,
        "request": str(path),
        "fingerprint": request.fingerprint,
        "identity_key": request.identity,
        "node_public_key": request.node_key,
        "fedsynth": request.fedsynth,
    }
    say(
        json_,
        facts,
        f"{folder} is the folder of site {request.site}; its keys stay there. Make a backup (fedsynth backup)\n"
        "after every run, and never restore an older one.\n\n"
        f"Send {path} to the coordinator by any channel: it holds no secret. Read out its fingerprint by phone:\n\n"
        f"    {request.fingerprint}\n\n"
        f"Meanwhile, edit {folder / 'site.toml'} (where the rows are, what this site agrees to), then run\n"
        f"{shlex.join(['fedsynth', 'site', 'check', str(folder)])}{units}",
    )


def _accept(admission: Admission, folder: Path, given: Sequence[str], replace: bool, json_: bool) -> None:
    from fedsynth.deploy.enrolment import accept, check_admission, difference

    config, old = check_admission(admission, folder, replace=replace)
    roster = admission.members.roster
    if old is not None or config.roster is None:
        names = "\n".join(f"  {one.name:16} identity key {one.identity[:16]}..." for one in roster.members)
        changed = "" if old is None else f"\nThis roster DIFFERS from the one before: {difference(old, roster)}."
        shown = f"The roster of the federation, {errors.number_of(len(roster.members), 'site')}:\n{names}{changed}"
        compare(shown, roster.fingerprint, "Do all other sites read out the same by phone?", given, json_)
    _, path = accept(admission, config)
    facts = {
        "site": config.name,
        "roster": roster.fingerprint,
        "acceptance": str(path),
        "sites": list(roster.identities),
    }
    lacking = [name for name in admission.members.unsigned if name != config.name]
    others = f"not signed yet by {', '.join(lacking)}" if lacking else "all other sites have signed the roster"
    known = config.name in admission.members.accepted
    send = "" if known else f"Send {path} to the coordinator by any channel.\n"
    say(
        json_,
        {**facts, "lacking": lacking},
        f"Certificate and roster are in {folder}; {others}.\n{send}"
        f"Next: {shlex.join(['fedsynth', 'site', 'check', str(folder)])}",
    )


def deploy_admit(
    folder: Path,
    received: tuple[Path, ...] = (),
    /,
    *,
    fingerprint: tuple[str, ...] = (),
    replace: bool = False,
    ca_key: Path | None = None,
    json_: bool = False,
) -> None:
    r"""Admit sites: sign their certificates and list their keys.

    Asks you to compare the fingerprint of each request with its site by phone. Once all sites of FOLDER/job.toml have
    sent their requests, writes the roster (the list of all sites with their keys) and for each site an admission, the
    file to send to it, and prints the commands that register new nodes (Flower's programs at sites) with Flower's
    server. Each site then sends back its signature under the roster, SITE.signed. If a site never answers, delete it
    from `sites` in job.toml. Certificates of the server and the administrator that end within two months are renewed
    as well.

    Examples:

      fedsynth deploy admit federation north.request south.request

      fedsynth deploy admit federation \
        north.signed south.signed east.signed

    Parameters
    ----------
    received
        Files that sites have sent: first SITE.request (to join), later SITE.signed (the site's signature under the
        roster). Without any: show who has joined.
    replace
        Accept new keys from a site that was admitted before, for example because its machine was lost. Whoever has the
        new keys can then read what is meant for the site: phone it first. Without it, such a request is refused.
    ca_key
        File of the private key that signs the sites' certificates, if you keep it elsewhere (offline); default:
        FOLDER/authority/ca.key.
    """
    from fedsynth.deploy.certificates import Authority
    from fedsynth.deploy.enrolment import AUTHORITY, Enrolment
    from fedsynth.deploy.roster import JoinRequest, SignedRoster, load_either

    enrolment = Enrolment.load(folder)
    files = [load_either(path, JoinRequest, SignedRoster) for path in received]
    requests = [file for file in files if isinstance(file, JoinRequest)]
    signed = [file for file in files if isinstance(file, SignedRoster)]
    key = ca_key or folder / AUTHORITY
    authority = Authority.load(key, folder / "server" / "ca.crt") if requests or key.is_file() else None
    before = enrolment.members is not None
    replaced = [request.site for request in requests if _has_new_key(request, enrolment)]
    for request in requests:
        if enrolment.check(request, replace=replace):
            shown = f"The request of {request.site}:"
            question = f"Does {request.site} read out the same by phone?"
            compare(shown, request.fingerprint, question, fingerprint, json_)
    for request in requests:
        enrolment.check(request, replace=replace)  # again: two of them may have one key
        assert authority is not None
        enrolment = enrolment.admit(request, authority)
    members = enrolment.publish(signed)
    renewed = [] if authority is None else enrolment.renew(authority)
    home = folder / "admitted"
    register = [
        shlex.join(["flwr", "supernode", "register", str(home / f"{name}.pub"), "federation", "--name", name])
        for name in (replaced if before and requests else enrolment.admitted)
    ]
    facts = {
        "admitted": list(enrolment.admitted),
        "missing": list(enrolment.missing),
        "requests": {request.site: request.fingerprint for request in requests},
        "roster": members.roster.fingerprint if members else "",
        "admissions": [str(folder / "admissions" / f"{name}.toml") for name in enrolment.sites] if members else [],
        "lacking": list(members.unsigned) if members else [],
        "register": register,
        "unregister": replaced,
        "renewed": [str(file) for file in renewed],
    }
    if members is None:
        text = f"admitted: {', '.join(enrolment.admitted) or 'nobody'}; missing: {', '.join(enrolment.missing)}"
    else:
        text = _next_steps(folder / "admissions", members, register, replaced)
    if renewed:
        text += f"\n\nRenewed as well: {', '.join(map(str, renewed))}. Restart nginx and the SuperLink."
    say(json_, facts, text)


def _has_new_key(request: JoinRequest, enrolment: Enrolment) -> bool:
    known = enrolment.admitted.get(request.site)
    return known is not None and known.node_key != request.node_key


def _next_steps(admissions: Path, members: SignedRoster, register: Sequence[str], replaced: Sequence[str]) -> str:
    """Return what a coordinator does once all sites are admitted; ``replaced`` are sites with new keys."""
    then = (
        "Each site sends SITE.signed back: pass it to `fedsynth deploy admit`. Still missing: "
        f"{', '.join(members.unsigned)}."
        if members.unsigned
        else "All sites have signed the roster. Send the admissions again, so that each site can check this."
    )
    unregister = (
        f"The former nodes of {', '.join(replaced)} can still answer. Unregister them first, by the id printed when\n"
        "they were registered: flwr supernode unregister ID federation\n\n"
        if replaced
        else ""
    )
    commands = "\n".join(f"    {command}" for command in register)
    flower = f"If Flower carries the messages, register the nodes once the server runs:\n\n{commands}"
    return (
        f"All {len(members.roster.identities)} sites are admitted. Send each its file from {admissions} by any\n"
        "channel: it holds no secret. The sites compare the roster's fingerprint with each other by phone:\n\n"
        f"    {members.roster.fingerprint}\n\n{then}\n\n{unregister}"
        + (flower if register else "The nodes stay registered as they are.")
    )


def deploy_try(
    folder: Path,
    /,
    *,
    data: str,
    records: Records | None = None,
    partition: str = "iid",
    target: str = "",
    out: Path = Path("fedsynth-rehearsal"),
    force: bool = False,
    json_: bool = False,
) -> None:
    r"""Rehearse the run on this machine with a test table.

    The run is the one that job.toml describes. The server, the sites and Flower's programs run as processes of this
    machine, with temporary keys. The test table is split over the sites of job.toml, and each site is set up to accept
    the run. Nothing leaves this machine; real keys are not read and real budgets not charged. Numbers of the test table
    are first replaced by random ones in the same bin of the schema. All processes end with the command, also on Ctrl-C.
    A run over compute servers (trust three-servers) cannot be rehearsed: rehearse it with trust trusted in job.toml.

    Example:

      fedsynth deploy try federation --data test.csv \
        --partition label-skew:0.5 --out rehearsal

    Parameters
    ----------
    data
        Test table to split over the sites of job.toml: CSV or Parquet file, or postgresql://USER@HOST/DB?table=NAME
        (without a password: put that into ~/.pgpass).
    target
        Label column of --partition label-skew or capped-label-skew; default: the last column.
    """
    require_posix("`fedsynth deploy try`")
    import signal
    import tempfile

    import numpy as np

    from fedsynth.data.partition import parse_partition, split
    from fedsynth.data.read import read_fitting
    from fedsynth.data.sources import open_source
    from fedsynth.deploy.flower.rehearsal import rehearse
    from fedsynth.runs.folder import refuse_existing
    from fedsynth.runs.job import Job
    from fedsynth.schema import Schema

    def tell(text: str) -> None:
        if not json_:
            print(text, flush=True)

    refuse_existing(out, force=force)
    job = Job.load(folder / "job.toml")
    names = job.deployment.sites if job.deployment else ()
    schema = Schema.load(job.schema)
    table = read_fitting(open_source(data, records=records), schema)
    parts = split(table, len(names), parse_partition(partition, schema, target), np.random.default_rng())
    tables = dict(zip(names, parts, strict=True))
    tell(f"{', '.join(f'{name} gets {len(part)}' for name, part in tables.items())} rows of {data}.")
    for number in (signal.SIGTERM, signal.SIGINT):  # under `nohup`, SIGINT is ignored otherwise
        signal.signal(number, signal.default_int_handler)
    place = Path(tempfile.mkdtemp(prefix="fedsynth-rehearsal-"))
    try:
        seconds, exchanges = rehearse(folder, tables, place, out, force=force, tell=tell)
    except (errors.FedsynthError, TimeoutError) as error:
        kind = type(error) if isinstance(error, errors.FedsynthError) else errors.FedsynthError
        raise kind(f"{error} (logs of the processes are in {place}; delete it when you are done)") from error
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    shutil.rmtree(place)
    each = seconds / max(1, exchanges)
    facts = {"folder": str(out), "seconds": round(seconds, 1), "exchanges": exchanges}
    say(
        json_,
        {**facts, "rows": {name: len(part) for name, part in tables.items()}},
        f"The run took {seconds:.0f} s with {errors.number_of(exchanges, 'exchange')}, {each:.1f} s each, on this "
        "machine.\n"
        f"The result is in {out}, laid out like that of a real run. All processes have ended.",
    )


def compare(shown: str, fingerprint: str, question: str, given: Sequence[str], json_: bool) -> None:
    """Return once the fingerprint of a received file is confirmed as the one that its sender read out by phone.

    ``fingerprint`` is the file's, as groups of digits, and ``shown`` describes the file. Both are printed, and
    ``question`` is asked of the person at the terminal. If ``given`` holds the fingerprints from the command line
    (``--fingerprint``), nobody is asked: it must be one of them. Raises :class:`~fedsynth.errors.FedsynthError` if it
    is not, or the person says no, and ``InvalidParameter`` if nobody can be asked, since ``json_`` asks for JSON
    output.
    """
    plain = fingerprint.replace(" ", "")
    if given:
        if plain not in {"".join(one.split()) for one in given}:
            raise errors.FedsynthError(
                f"the file's fingerprint {fingerprint} is not one of those given by --fingerprint, so nothing was "
                "written: somebody may have changed the file on its way, or the other side has another one; have it "
                "sent again and compare by phone"
            )
        return
    if json_:
        raise errors.InvalidParameter(
            "--json cannot ask you to compare: pass --fingerprint, as it was read out by phone"
        )
    print(f"{shown}\n\n    {fingerprint}\n")
    if not confirm(question):
        raise errors.FedsynthError(
            "the fingerprints differ or were not compared, so nothing was written; have the file sent again by "
            "another channel"
        )

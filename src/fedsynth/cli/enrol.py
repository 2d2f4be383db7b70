"""The commands by which sites join a federation: ``site join``, ``deploy admit``, and ``deploy try`` before them.

Fingerprints are compared by people, or by a script that was told one by another way: there is no option that skips it.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsynth import errors
from fedsynth.cli.options import Data, Force, Json, Out, Partition, Target, say

if TYPE_CHECKING:
    from fedsynth.federation.enrolment import Admission, Invitation

Fingerprint = Annotated[
    list[str] | None,
    typer.Option(
        "--fingerprint",
        help="Fingerprint that was read out by phone: nothing is asked if it is the right one; repeatable.",
    ),
]
Replace = Annotated[
    bool,
    typer.Option("--replace", help="Take another key or roster than before: it changes who can read."),
]


def site_join(
    file: Annotated[Path, typer.Argument(help="The invitation, or later the admission, that the coordinator sent.")],
    folder: Annotated[Path, typer.Argument(help="The site's folder, which the invitation makes.")],
    fingerprint: Fingerprint = None,
    replace: Replace = False,
    json_: Json = False,
) -> None:
    """Join a federation: an invitation makes the site's folder, keys and request, an admission brings the roster.

    Shows a fingerprint to compare by phone: the invitation's with the coordinator, the roster's with all other sites.
    Private keys are made here and never leave the folder. What is there already is left alone: run it again with the
    same file at any time.

    Examples:

      fedsynth site join north.toml /etc/fedsynth

      fedsynth site join admission-of-north.toml /etc/fedsynth
    """
    from fedsynth.federation.enrolment import Admission, Invitation, load_either

    found = load_either(file, Invitation, Admission)
    if isinstance(found, Invitation):
        _join(found, folder, fingerprint or (), json_)
    else:
        _accept(found, folder, fingerprint or (), replace, json_)


def _join(invitation: Invitation, folder: Path, told: Sequence[str], json_: bool) -> None:
    from fedsynth.host.enrolment import check_folder, join
    from fedsynth.schema import Schema
    from fedsynth.transports.flower.files import site_files
    from fedsynth.transports.flower.services import NO_UNITS

    terms = invitation.terms
    kinds = "".join(f"\n  imports  {place}, code of another package" for place in terms.kinds.values())
    shown = (
        f"An invitation of the site {invitation.site} to a federation:\n"
        f"  server   {terms.superlink}\n"
        f"  schema   {Schema.from_toml(terms.schema).digest[:12]}, which is schema.toml in the folder\n"
        f"  job      {terms.method}, epsilon {terms.epsilon:g}, delta {terms.delta:g}, trust {terms.trust}\n"
        f"  protects a person with {terms.rows_per_person} rows at each of {terms.sites_per_person} sites{kinds}"
    )
    if not check_folder(invitation, folder):
        compare(shown, terms.fingerprint, "Does the coordinator read out the same, by phone?", told, json_)
    request, path = join(invitation, folder, site_files(invitation, folder))
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
        f"{folder} is the folder of the site {request.site}; its keys are in it and stay there. Back up state/ after\n"
        f"every run, restore nothing older.\n\n"
        f"Send {path} to the coordinator, by any way: no secret is in it. On the phone, read out its fingerprint:\n\n"
        f"    {request.fingerprint}\n\n"
        f"Meanwhile: edit {folder / 'site.toml'} (where the rows are, what this site agrees to), then\n"
        f"{shlex.join(['fedsynth', 'site', 'check', str(folder)])}{units}",
    )


def _accept(admission: Admission, folder: Path, told: Sequence[str], replace: bool, json_: bool) -> None:
    from fedsynth.host.enrolment import accept, check_admission, difference

    config, old = check_admission(admission, folder, replace=replace)
    roster = admission.members.roster
    if old is not None or config.roster is None:
        names = "\n".join(f"  {one.name:16} identity key {one.identity[:16]}..." for one in roster.members)
        changed = "" if old is None else f"\nOTHER than the roster before: {difference(old, roster)}."
        shown = f"The roster of the federation, {len(roster.members)} sites:\n{names}{changed}"
        compare(shown, roster.fingerprint, "Do all other sites read out the same, by phone?", told, json_)
    acceptance, path = accept(admission, config)
    facts = {
        "site": config.name,
        "roster": roster.fingerprint,
        "acceptance": str(path),
        "sites": list(roster.identities),
    }
    lacking = [name for name in admission.members.lacking if name != acceptance.site]
    others = f"{', '.join(lacking)} did not sign it yet" if lacking else "all other sites have signed it"
    known = config.name in admission.members.accepted
    send = "" if known else f"Send {path} to the coordinator, by any way.\n"
    say(
        json_,
        {**facts, "lacking": lacking},
        f"Certificate and roster are in {folder}; {others}.\n{send}"
        f"Next: {shlex.join(['fedsynth', 'site', 'check', str(folder)])}",
    )


def deploy_admit(
    folder: Annotated[Path, typer.Argument(help="The federation's folder, which `fedsynth deploy init` wrote.")],
    received: Annotated[
        list[Path] | None, typer.Argument(help="What sites sent: SITE.request, later SITE.signed; none: who is in.")
    ] = None,
    fingerprint: Fingerprint = None,
    replace: Replace = False,
    ca_key: Annotated[
        Path | None,
        typer.Option("--ca-key", help="The authority's private key; default: authority/ca.key in the folder."),
    ] = None,
    json_: Json = False,
) -> None:
    """Admit sites to a federation: sign certificates, write the roster and an admission for each site.

    Shows the fingerprint of each request, to compare with its site by phone. Once the requests of all sites of job.toml
    are in, the admissions are written, and the commands that register the nodes printed. A site that never answers is
    taken out of `sites` in job.toml.

    Examples:

      fedsynth deploy admit federation north.request south.request

      fedsynth deploy admit federation north.signed south.signed east.signed
    """
    from fedsynth.federation.enrolment import Acceptance, JoinRequest, load_either
    from fedsynth.runs.certificates import Authority
    from fedsynth.runs.enrolment import AUTHORITY, Enrolment

    enrolment = Enrolment.load(folder)
    found = [load_either(path, JoinRequest, Acceptance) for path in received or ()]
    requests = [one for one in found if isinstance(one, JoinRequest)]
    acceptances = {one.site: one for one in found if isinstance(one, Acceptance)}
    authority = Authority.load(ca_key or folder / AUTHORITY, folder / "server" / "ca.crt") if requests else None
    compared = {}
    replaced = []
    for request in requests:
        known = enrolment.admitted.get(request.site)
        if known is not None and known.node_key != request.node_key:
            replaced.append(request.site)
        new = enrolment.check(request, replace=replace)
        compared[request.site] = request.fingerprint
        if new:
            shown = f"A request of {request.site}:"
            question = f"Does {request.site} read out the same, by phone?"
            compare(shown, request.fingerprint, question, fingerprint or (), json_)
    for request in requests:
        enrolment.check(request, replace=replace)  # again: two of them may have one key
        assert authority is not None
        enrolment = enrolment.admit(request, authority)
    members = enrolment.publish(acceptances)
    home = folder / "admitted"
    register = [
        shlex.join(["flwr", "supernode", "register", str(home / f"{name}.pub"), "federation", "--name", name])
        for name in enrolment.admitted
    ]
    unregister = (
        f"The nodes that {', '.join(replaced)} had before can still answer: unregister them first, by the id that was\n"
        "printed when they were registered (flwr supernode unregister ID federation).\n\n"
        if replaced
        else ""
    )
    facts = {
        "admitted": list(enrolment.admitted),
        "missing": list(enrolment.missing),
        "requests": compared,
        "roster": members.roster.fingerprint if members else "",
        "admissions": [str(folder / "admissions" / f"{name}.toml") for name in enrolment.sites] if members else [],
        "lacking": list(members.lacking) if members else [],
        "register": register,
        "unregister": replaced,
    }
    if members is None:
        said = f"admitted: {', '.join(enrolment.admitted) or 'nobody'}; missing: {', '.join(enrolment.missing)}"
    else:
        lacking = ", ".join(members.lacking)
        then = (
            f"They send SITE.signed back, which deploy admit takes too; missing: {lacking}."
            if lacking
            else "All sites have signed it: send the admissions once more, so that each site can check that."
        )
        commands = "\n".join(f"    {command}" for command in register)
        said = (
            f"All {len(enrolment.sites)} sites are admitted. Send each its file of {folder / 'admissions'}, by any\n"
            "way: no secret is in it. The sites compare the roster's fingerprint with each other, by phone:\n\n"
            f"    {members.roster.fingerprint}\n\n{then}\n\n{unregister}"
            f"Over Flower, register the nodes once the server runs:\n\n{commands}"
        )
    say(json_, facts, said)


def deploy_try(
    folder: Annotated[Path, typer.Argument(help="The federation's folder, which `fedsynth deploy init` wrote.")],
    data: Data,
    partition: Partition = "iid",
    target: Target = "",
    out: Out = Path("fedsynth-rehearsal"),
    force: Force = False,
    json_: Json = False,
) -> None:
    """Rehearse the job over a test table: server, nodes and sites as processes of this machine, with throw-away keys.

    The sites of job.toml get parts of the table and a policy that agrees to the job. Nothing leaves this machine, no
    real key is read and no real site's budget touched. Every process is ended, also on Ctrl-C. Values are drawn anew
    within the schema's bins.

    Example:

      fedsynth deploy try federation --data test.csv --partition label-skew:0.5 --out rehearsal
    """
    import signal
    import tempfile

    import numpy as np

    from fedsynth.data.partition import parse_partition, split
    from fedsynth.data.read import read_table
    from fedsynth.data.sources import open_source
    from fedsynth.runs.folder import refuse_existing
    from fedsynth.runs.job import Job
    from fedsynth.schema import Schema
    from fedsynth.transports.flower.rehearsal import rehearse

    def tell(text: str) -> None:
        if not json_:
            print(text, flush=True)

    refuse_existing(out, force=force)
    job = Job.load(folder / "job.toml")
    names = job.deployment.sites if job.deployment else ()
    schema = Schema.load(job.schema)
    table = read_table(open_source(data), schema)
    parts = split(table, len(names), parse_partition(partition, schema, target), np.random.default_rng())
    tables = dict(zip(names, parts, strict=True))
    tell(f"{', '.join(f'{name} gets {len(part)}' for name, part in tables.items())} rows of {data}.")
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # so that what was started is ended
    place = Path(tempfile.mkdtemp(prefix="fedsynth-rehearsal-"))
    try:
        took = rehearse(folder, tables, place, out, force=force, tell=tell)
    except (errors.FedsynthError, TimeoutError) as error:
        kind = type(error) if isinstance(error, errors.FedsynthError) else errors.FedsynthError
        raise kind(f"{error} (what the processes printed, to be deleted once it is read: {place})") from error
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    shutil.rmtree(place)
    each = took.seconds / max(1, took.exchanges)
    facts = {"folder": str(out), "seconds": round(took.seconds, 1), "exchanges": took.exchanges}
    say(
        json_,
        {**facts, "rows": {name: len(part) for name, part in tables.items()}},
        f"The run took {took.seconds:.0f} s with {took.exchanges} exchanges, {each:.1f} s each, on this machine.\n"
        f"The result is in {out}, as a run of real sites leaves it; every process has ended.",
    )


def compare(shown: str, fingerprint: str, question: str, told: Sequence[str], json_: bool) -> None:
    """Return once somebody, or a script that was told the fingerprint, says that it is the right one."""
    plain = fingerprint.replace(" ", "")
    if told:
        if plain not in {"".join(one.split()) for one in told}:
            raise errors.FedsynthError(
                f"the fingerprint is {fingerprint}, and none that was given by --fingerprint: somebody may have "
                "changed the file on its way, or the other side has another one; nothing was written"
            )
        return
    if json_:
        raise typer.BadParameter("--json asks nothing; give --fingerprint, as it was read out by phone")
    print(f"{shown}\n\n    {fingerprint}\n")
    if not typer.confirm(question):
        raise errors.FedsynthError(
            "the fingerprints differ or were not compared, and nothing was written; have it sent again by another way"
        )

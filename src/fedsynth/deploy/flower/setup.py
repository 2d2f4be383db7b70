"""The folder of a new federation on the server's host: keys, certificates, settings, Flower app, proxy, invitations."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fedsynth import __version__
from fedsynth.deploy.certificates import Authority
from fedsynth.deploy.enrolment import AUTHORITY
from fedsynth.deploy.flower.files import nginx_file, server_services, toml_file
from fedsynth.deploy.roster import Invitation, InvitedTerms, to_text
from fedsynth.errors import InvalidParameter
from fedsynth.federation.names import parse_address
from fedsynth.files import private_folder, write_private
from fedsynth.keys import KEY_BYTES, Keys
from fedsynth.methods import find_method
from fedsynth.runs.job import Job
from fedsynth.runs.state import COORDINATOR
from fedsynth.schema import Schema


def write_federation(root: Path, job: Job, schema: Schema, superlink: str) -> InvitedTerms:
    """Write a federation's new folder ``root`` for a job, completely or not at all; return the terms for its sites.

    ``superlink`` is the HOST:PORT at which sites reach the server, where HOST is no IPv6 address. The keys of
    coordinator, authority, server and administrator are drawn here, but no keys of sites. Raises
    :class:`InvalidParameter` for an invalid ``superlink`` and an infinite epsilon, :class:`Unsupported` for a job
    without the section ``[deployment]``, what the job raises for invalid options, and ``OSError`` if ``root`` exists
    and is not an empty folder.
    """
    host, port = parse_address(superlink)
    if ":" in host:
        raise InvalidParameter(f"--superlink {superlink}: give the server a host name, for its certificate")
    sites = job.deployed.sites
    declared = find_method(job.method)
    declared.check_trust(job.trust)
    job.build_method(schema)
    job.build_trust()
    coordinator, authority = Keys(os.urandom(KEY_BYTES)), Authority.create()
    kinds = {query.kind: f"{query.__module__}:{query.__qualname__}" for query in declared.queries}
    if job.budget.exact:
        raise InvalidParameter("--epsilon inf releases everything without noise; only simulations run so")
    terms = InvitedTerms(
        f"{host}:{port}",
        coordinator.public.hex(),
        authority.text,
        schema.to_toml(),
        job.method,
        job.epsilon,
        job.delta,
        job.trust,
        job.rows_per_person,
        job.sites_per_person,
        kinds,
    )
    server, server_key = authority.issue_with_key("server", "server", host)
    admin, admin_key = authority.issue_with_key("admin", "admin")
    contents: dict[str, str | bytes] = {
        COORDINATOR: coordinator.secret.hex(),
        AUTHORITY: authority.key,
        "app/pyproject.toml": toml_file("app.toml", version=__version__),
        "job.toml": job.to_file(),
        "schema.toml": terms.schema,
        "server/ca.crt": terms.authority,
        "server/server.pem": server,
        "server/server.key": server_key,
        "server/admin.pem": admin,
        "server/admin.key": admin_key,
        "server/superexec.secret": os.urandom(32),
        "server/nginx.conf": nginx_file("nginx.conf", host=host, port=port),
        "server/config.toml": toml_file("config.toml", ca=str(root / "server" / "ca.crt")),
    }
    contents |= {f"server/{file}": text for file, text in server_services(root, port).items()}
    for name in sites:
        contents[f"invitations/{name}.toml"] = to_text(Invitation(name, terms))
    _write_folder(root, contents)
    return terms


def _write_folder(root: Path, contents: Mapping[str, str | bytes]) -> None:
    """Write a folder, completely or not at all, accessible to its owner alone."""
    root.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{root.name}.", dir=root.parent))
    try:
        for name, content in contents.items():
            private_folder((partial / name).parent)
            write_private(partial / name, content)
        os.replace(partial, root)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise

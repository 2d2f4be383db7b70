"""The configuration files of a deployment over Flower, from templates: the server's, and a site's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import tomli_w

from fedsynth import __version__
from fedsynth.deploy.roster import Invitation
from fedsynth.errors import InvalidParameter
from fedsynth.federation.names import parse_address

NO_UNITS = (
    "No systemd units and no compose file were written: the folder's path has characters with another meaning there. "
    "Letters, digits, '/', '.', '_' and '-' mean themselves."
)
_SERVER = {name: name for name in ("flower-superlink.service", "fedsynth-server.service", "compose.yaml")}
_SITE = {"fedsynth-site.service": "fedsynth-site.service", "site-compose.yaml": "compose.yaml"}
_WORD = re.compile(r"[A-Za-z0-9/._-]+")  # without any character that systemd or YAML gives a meaning
_NGINX_WORD = re.compile(r"[A-Za-z0-9.:-]+")  # the same for nginx


def site_files(invitation: Invitation, folder: Path, *, sees_counts: bool = False) -> dict[str, str]:
    """Return the texts of the configuration files of a new site, by their names in its ``folder``; writes nothing.

    They are ``site.toml`` with the site's policy, the configuration of its proxy (nginx), and :func:`site_services`.
    ``sees_counts`` is the site's yes that the coordinator may see its exact counts, which the trust ``trusted`` needs.
    """
    terms = invitation.terms
    agreed = {name: getattr(terms, name) for name in ("superlink", "epsilon", "delta", "trust", "coordinator")}
    unit = {"rows": terms.rows_per_person, "sites": terms.sites_per_person}
    policy = toml_file("site.toml", name=invitation.site, sees=sees_counts, **agreed, **unit)
    host, _ = parse_address(terms.superlink)
    forwarder = nginx_file("site-nginx.conf", name=invitation.site, host=host, superlink=terms.superlink)
    services = site_services(invitation.site, str(folder.resolve()))
    return {"site.toml": policy + _kinds(terms.kinds), "nginx.conf": forwarder, **services}


def server_services(root: Path, port: int) -> dict[str, str]:
    """Return the files that keep the server's processes running: systemd units, and a compose file with a Dockerfile.

    The result maps names of files in the folder ``server`` of the federation ``root`` to their texts. ``port`` is that
    at which sites reach the server's proxy. It is empty for a folder whose path contains characters with a meaning of
    their own in systemd's files or YAML, such as a space; :data:`NO_UNITS` is what to tell the user then.
    """
    return _services(_SERVER, root=str(root), folder=str(root / "server"), port=str(port))


def site_services(name: str, folder: str) -> dict[str, str]:
    """Return the same (:func:`server_services`) for the site ``name`` with this ``folder``, an absolute path."""
    return _services(_SITE, name=name, folder=folder)


def _services(templates: Mapping[str, str], **values: str) -> dict[str, str]:
    if not all(_WORD.fullmatch(value) for value in values.values()):
        return {}
    values |= {"version": __version__, "hardening": _template("hardening.conf")}
    named = {**templates, "Dockerfile": "Dockerfile"}
    return {name: _filled("@([A-Z]+)@", template, values) for template, name in named.items()}


def toml_file(file: str, **values: str | float) -> str:
    """Return the text of a template in which each ``"@NAME@"``, quotes included, is replaced by a value in TOML."""
    literals = {key: tomli_w.dumps({"value": value}).removeprefix("value = ").strip() for key, value in values.items()}
    return _filled('"@([A-Z]+)@"', file, literals)


def nginx_file(file: str, **values: str | int) -> str:
    """Return the text of a template for nginx in which each ``@NAME@`` is replaced by a value, a single word.

    Raises :class:`InvalidParameter` for a value with characters that mean something to nginx.
    """
    for key, value in values.items():
        if not _NGINX_WORD.fullmatch(str(value)):
            raise InvalidParameter(f"{key} = {value!r} cannot go into {file}; use letters, digits, '.' and '-'")
    return _filled("@([A-Z]+)@", file, {key: str(value) for key, value in values.items()})


def _filled(marks: str, file: str, values: Mapping[str, str]) -> str:
    return re.sub(marks, lambda mark: values[mark[1].lower()], _template(file))


def _template(file: str) -> str:
    return (files("fedsynth.deploy.flower") / "templates" / file).read_text(encoding="utf-8")


def _kinds(kinds: Mapping[str, str]) -> str:
    if not kinds:
        return ""
    said = "# Code of another package, which runs here with this site's rights: install it, and read it first."
    return f"\n{said}\n{tomli_w.dumps({'policy': {'kinds': dict(kinds)}})}"

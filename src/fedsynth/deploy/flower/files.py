"""The configuration files of a deployment over Flower, from templates: the server's, and a site's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import tomli_w

from fedsynth.deploy.flower.services import site_services
from fedsynth.deploy.roster import Invitation
from fedsynth.errors import InvalidParameter
from fedsynth.federation.names import parse_address

_NGINX_WORD = re.compile(r"[A-Za-z0-9.:-]+")  # without any character that nginx gives a meaning


def site_files(invitation: Invitation, folder: Path, *, sees_counts: bool = False) -> dict[str, str]:
    """Return the texts of the configuration files of a new site, by their names in its ``folder``.

    They are ``site.toml`` with the site's policy (which requests it answers), the configuration of its proxy (nginx),
    and the files of :func:`~fedsynth.deploy.flower.services.site_services`, all from the templates of the fedsynth
    that is installed here. ``invitation`` is the coordinator's, with the site's name and the federation's terms.
    ``sees_counts`` is the site's yes that the coordinator may see its exact counts, which the trust ``trusted`` needs.
    Nothing is written.
    """
    terms = invitation.terms
    host, _ = parse_address(terms.superlink)
    policy = toml_file(
        "site.toml",
        name=invitation.site,
        superlink=terms.superlink,
        epsilon=terms.epsilon,
        delta=terms.delta,
        trust=terms.trust,
        sees=sees_counts,
        rows=terms.rows_per_person,
        sites=terms.sites_per_person,
        coordinator=terms.coordinator,
    )
    forwarder = nginx_file("site-nginx.conf", name=invitation.site, host=host, superlink=terms.superlink)
    services = site_services(invitation.site, str(folder.resolve()))
    return {"site.toml": policy + _kinds(terms.kinds), "nginx.conf": forwarder, **services}


def toml_file(file: str, **values: str | float) -> str:
    """Return the text of a template in which each ``"@NAME@"``, quotes included, is replaced by a value in TOML.

    ``file`` is the template's name in the folder ``templates`` beside this module; each of ``values`` is passed by its
    name in lower case.
    """
    literals = {key: tomli_w.dumps({"value": value}).removeprefix("value = ").strip() for key, value in values.items()}
    return re.sub('"@([A-Z]+)@"', lambda mark: literals[mark[1].lower()], _template(file))


def nginx_file(file: str, **values: str | int) -> str:
    """Return the text of a template for nginx in which each ``@NAME@`` is replaced by a value, a single word.

    ``file`` is the template's name in the folder ``templates`` beside this module; each of ``values`` is passed by its
    name in lower case. Raises :class:`InvalidParameter` for a value with characters that mean something to nginx.
    """
    for key, value in values.items():
        if not _NGINX_WORD.fullmatch(str(value)):
            raise InvalidParameter(f"{key} = {value!r} cannot go into {file}; use letters, digits, '.' and '-'")
    return re.sub("@([A-Z]+)@", lambda mark: str(values[mark[1].lower()]), _template(file))


def _template(file: str) -> str:
    return (files("fedsynth.deploy.flower") / "templates" / file).read_text(encoding="utf-8")


def _kinds(kinds: Mapping[str, str]) -> str:
    """Return the section of a policy that names the queries of another package's method."""
    if not kinds:
        return ""
    said = "# Code of another package, which runs here with this site's rights: install it, and read it first."
    return f"\n{said}\n{tomli_w.dumps({'policy': {'kinds': dict(kinds)}})}"

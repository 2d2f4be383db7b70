"""Service definitions for a deployment's processes: systemd units or, alternatively, a compose file."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from fedsynth import __version__

NO_UNITS = (
    "No systemd units and no compose file were written: the folder's path has characters with another meaning there. "
    "Letters, digits, '/', '.', '_' and '-' mean themselves."
)
_SERVER = {name: name for name in ("flower-superlink.service", "fedsynth-server.service", "compose.yaml")}
_SITE = {
    "fedsynth-site.service": "fedsynth-site.service",
    "site-compose.yaml": "compose.yaml",
}
_WORD = re.compile(r"[A-Za-z0-9/._-]+")  # without any character that systemd or YAML gives a meaning


def server_services(root: Path, port: int) -> dict[str, str]:
    """Return the files that keep the server's processes running: systemd units, and a compose file with a Dockerfile.

    The result maps names of files, to be written to the federation's folder ``server``, to their texts. ``root`` is the
    folder of the federation, ``port`` the port at which sites reach the server's proxy. The result is empty for a
    folder whose path contains characters with a meaning of their own in systemd's files or YAML, such as a space;
    :data:`NO_UNITS` is what to tell the user then.
    """
    return _rendered(_SERVER, root=str(root), folder=str(root / "server"), port=str(port), version=__version__)


def site_services(name: str, folder: str) -> dict[str, str]:
    """Return the files that keep a site's processes running: systemd units, and a compose file with a Dockerfile.

    The result maps names of files, to be written to the site's ``folder`` (an absolute path), to their texts. ``name``
    is the site's. The result is empty for a folder whose path contains characters with a meaning of their own in
    systemd's files or YAML, such as a space; :data:`NO_UNITS` is what to tell the user then.
    """
    return _rendered(_SITE, name=name, folder=folder, version=__version__)


def _rendered(templates: dict[str, str], **values: str) -> dict[str, str]:
    if not all(_WORD.fullmatch(value) for value in values.values()):
        return {}
    held = files("fedsynth.deploy.flower") / "templates"
    values["hardening"] = (held / "hardening.conf").read_text(encoding="utf-8")
    found = {}
    for template, name in {**templates, "Dockerfile": "Dockerfile"}.items():
        text = (held / template).read_text(encoding="utf-8")
        found[name] = re.sub("@([A-Z]+)@", lambda mark: values[mark[1].lower()], text)
    return found

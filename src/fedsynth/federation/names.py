"""Names in files and commands: of sites, and of a server's address.

A site's name becomes a folder, a certificate and its key, a line of a proxy's configuration and a heading of reports.
"""

from __future__ import annotations

import ipaddress
import re

from fedsynth.errors import InvalidParameter

RESERVED = frozenset({  # roles and hosts of a deployment, and its files and folders
    "admin", "administrator", "coordinator", "fedsynth", "federation", "flower", "localhost", "nginx", "root", "server",
    "steward", "superexec", "superlink", "supernode", "vault",
    "app", "ca", "job", "node-key", "runs", "schema", "site", "sites", "state",
})  # fmt: skip
_SITE = re.compile(r"[a-z][a-z0-9-]{0,30}")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")
_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})")


def check_site_name(name: str) -> str:
    """Return ``name`` if a site may have it; raises :class:`InvalidParameter` otherwise.

    A name has up to 31 lower-case letters, digits and hyphens, begins with a letter and is not in :data:`RESERVED`.
    """
    if not isinstance(name, str) or not _SITE.fullmatch(name):
        raise InvalidParameter(
            f"{repr(name)[:80]} is not a valid site name; use a lower-case letter, then up to 30 lower-case letters, "
            "digits and '-', such as north-2"
        )
    if name in RESERVED:
        raise InvalidParameter(
            f"{name!r} cannot be a site's name, since a role or file of the deployment has it; choose another, such "
            f"as {name}-a"
        )
    return name


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` or ``[IPv6]:PORT``; raises :class:`InvalidParameter` for another text."""
    found = _ADDRESS.fullmatch(text)
    if found and 0 < int(found["port"]) < 2**16:
        if found["host"] and _HOST.fullmatch(found["host"]):
            return found["host"], int(found["port"])
        if found["ipv6"] and _is_ipv6(found["ipv6"]):
            return found["ipv6"], int(found["port"])
    raise InvalidParameter(f"{repr(text)[:80]} is not of the form HOST:PORT; for example fed.example.org:443")


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True

"""A site's configuration file ``site.toml``, which its data steward writes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsynth.deploy.roster import SignedRoster, load
from fedsynth.errors import FedsynthError, InvalidParameter
from fedsynth.federation.names import check_site_name, parse_address
from fedsynth.federation.policy import Policy
from fedsynth.federation.policy_file import policy_from_toml
from fedsynth.files import load_toml, refuse_format
from fedsynth.keys import PUBLIC_BYTES

if TYPE_CHECKING:
    from fedsynth.rows import Source

FILE = "site.toml"
ROSTER = "roster.toml"  # beside it: all sites with their keys, from the admission
FORMAT = 1  # of the file; a file without a number has this format
_MARK = "fedsynth_site"
_log = logging.getLogger(__name__)

_WAYS = ("counted", "streamed")
_CHOICES = (*_WAYS, "rows_are_persons")  # entries of [source] that are true or false
_SECTIONS = {  # required and optional entries
    "site": (("name",), ("state",)),
    "source": (("data", "schema"), ("counted", "streamed", "person", "rows_are_persons", "records")),
    "flower": (("superlink",), ("root_certificates", "key")),
    "coordinator": (("key",), ()),
}


@dataclass(frozen=True)
class SiteConfig:
    """The configuration of a deployed site, read from its ``site.toml``; all paths are absolute.

    ``folder`` is where ``site.toml`` lies, ``name`` the site's name, and ``state`` the folder of its account (its
    record of spent budget) and its copies of rows. ``data`` is the source of its rows, a file (a CSV file with the kind
    of its records) or a database table, encoded under the schema in the file ``schema``. Rows are read and encoded at
    most once per run, unless they are ``counted`` (the database counts them for every question)
    or ``streamed`` (every question reads all of them batch by batch, and none is kept). ``person`` is the column that
    identifies a row's person; it is empty if the steward has declared, by ``rows_are_persons``, that no person has more
    rows than the policy's unit says, or has declared nothing yet.

    ``policy`` decides what the site answers. ``coordinator`` (64 bytes) holds the two public keys of the only server
    that is answered. ``superlink`` is HOST:PORT of Flower's server process, ``root_certificates`` the file (PEM) of the
    authorities to trust there, and ``key`` the file of the private key of the site's Flower node. ``roster`` is the
    signed list of all sites with their keys; ``None`` until the coordinator has admitted the site.
    """

    folder: Path
    name: str
    state: Path
    data: Source
    schema: Path
    policy: Policy
    coordinator: bytes
    superlink: str
    root_certificates: Path
    key: Path
    roster: SignedRoster | None = None
    counted: bool = False
    streamed: bool = False
    person: str = ""
    rows_are_persons: bool = False

    def require_persons(self) -> None:
        """Raise :class:`~fedsynth.errors.FedsynthError` unless the steward has said which rows are about one person.

        A site answers nothing before, since the guarantee is for persons.
        """
        if not (self.person or self.rows_are_persons):
            raise FedsynthError(
                f"{self.folder / FILE}: [source] must say who a person is, since the guarantee is for persons. Write "
                'person = "COLUMN", the column that tells persons apart, and no more rows of each are used than '
                "[policy] unit says; or rows_are_persons = true, if no person has more rows here than that"
            )

    @property
    def peers(self) -> Mapping[str, bytes]:
        """Public identity keys (32 bytes) of all sites of the federation by name; empty until this site is admitted."""
        return self.roster.roster.identities if self.roster else {}

    @property
    def certificate(self) -> Path:
        """File (PEM) of the site's own TLS certificate, which comes with its admission to the federation."""
        return self.folder / f"{self.name}.pem"

    @property
    def certificate_key(self) -> Path:
        """File (PEM) of the private key of the site's TLS certificate, which never leaves the site."""
        return self.folder / f"{self.name}.key"

    @property
    def holds_rows(self) -> bool:
        """Whether each run gets its own copy of the rows; ``False`` if they are counted or streamed where they are."""
        return not (self.counted or self.streamed)

    @property
    def account(self) -> Path:
        """File (SQLite) of the site's privacy account: spent budget, questions, replies, and the site's secret."""
        return self.state / "account.sqlite"

    @property
    def copies(self) -> Path:
        """Folder of the copies of rows, encoded under the schema, that open runs read."""
        return self.state / "rows"

    @property
    def cache(self) -> Path:
        """File of the source's encoded rows, which saves a new run from reading an unchanged source again."""
        return self.state / "table.fedsynth"


def load_site_config(path: Path) -> SiteConfig:
    """Return the configuration of a site, read from its ``site.toml``, and the roster of all sites beside it.

    ``path`` is that file, or its folder. Raises :class:`~fedsynth.errors.FedsynthError` for a missing file, for an
    entry that is unknown, missing or of the wrong type (the message names it), and for a roster that the coordinator
    did not sign or that lacks this site.
    """
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise FedsynthError(f"{file} is missing; `fedsynth site join` creates it from the coordinator's invitation")
    content = load_toml(file)
    mend = "use the fedsynth that it was written for, or write it again from the template of `fedsynth site join`"
    refuse_format(content.pop(_MARK, FORMAT), FORMAT, str(file), mend)
    _check(f"{file}:", content, dict, (*_SECTIONS, "policy"), ())
    for section, (needed, others) in _SECTIONS.items():
        texts = {name: entry for name, entry in content[section].items() if name not in _CHOICES}
        _check(f"{file}: [{section}]", texts, str, needed, [one for one in others if one not in _CHOICES])
    site, source, flower = content["site"], content["source"], content["flower"]
    chosen = [name for name in _WAYS if _choice(file, source, name)]
    declared = _choice(file, source, "rows_are_persons")
    if declared and "person" in source:
        raise FedsynthError(f"{file}: [source] names a person column and says rows_are_persons = true; delete one")
    folder = file.parent.resolve()
    with _entry(f"{file}: [site] name"):
        check_site_name(site["name"])
    with _entry(f"{file}: [flower] superlink"):
        parse_address(flower["superlink"])
    if len(chosen) > 1:
        raise FedsynthError(f"{file}: [source] is counted or streamed, not both; delete one of the entries")
    if "person" in source and chosen:
        raise FedsynthError(
            f"{file}: [source] person limits the rows of a person while a run's copy of them is made; rows that are "
            f"{chosen[0]} have none: delete {chosen[0]}, or name a view with at most that many rows a person"
        )
    data = _source(file, folder, source)
    if "counted" in chosen and data.file is not None:
        raise FedsynthError(
            f"{file}: [source] counted = true is for a database, which counts its own rows; for a file, write "
            "streamed = true: it is read batch by batch, and no copy is kept"
        )
    coordinator = _coordinator(file, content["coordinator"]["key"])
    return SiteConfig(
        folder,
        site["name"],
        folder / site.get("state", "state"),
        data,
        folder / source["schema"],
        policy_from_toml(content["policy"], folder),
        coordinator,
        flower["superlink"],
        folder / flower.get("root_certificates", "ca.crt"),
        folder / flower.get("key", "node-key"),
        _roster(folder / ROSTER, site["name"], coordinator),
        "counted" in chosen,
        "streamed" in chosen,
        source.get("person", ""),
        declared,
    )


def _check(where: str, content: Mapping[str, Any], kind: type, needed: Sequence[str], others: Sequence[str]) -> None:
    """Raise :class:`FedsynthError` unless all entries are known and of type ``kind``, and no needed one is missing."""
    if unknown := sorted({*content} - {*needed, *others}):
        raise FedsynthError(f"{where} has unknown entries {unknown}; known are {sorted([*needed, *others])}")
    if lacking := sorted({*needed} - {*content}):
        raise FedsynthError(f"{where} lacks {lacking}; add them")
    if wrong := [name for name, value in content.items() if not isinstance(value, kind)]:
        raise FedsynthError(f"{where} {wrong} must be {'text in quotes' if kind is str else 'sections'}")


@contextlib.contextmanager
def _entry(where: str) -> Iterator[None]:
    """Add the entry's name to the message of an :class:`InvalidParameter`."""
    try:
        yield
    except InvalidParameter as error:
        raise InvalidParameter(f"{where}: {error}") from error


def _choice(file: Path, section: Mapping[str, Any], name: str) -> bool:
    chosen = section.get(name, False)
    if not isinstance(chosen, bool):
        raise FedsynthError(f"{file}: [source] {name} must be true or false; name the table or file in data")
    return chosen


def _source(file: Path, folder: Path, section: Mapping[str, Any]) -> Source:
    from fedsynth.data.sources import open_source

    with _entry(f"{file}: [source]"):
        return open_source(section["data"], folder, section.get("records"))


def _coordinator(file: Path, text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != PUBLIC_BYTES:
        raise FedsynthError(
            f"{file}: [coordinator] key must be the coordinator's public key, {2 * PUBLIC_BYTES} hexadecimal digits; "
            "`fedsynth site join` writes it there"
        )
    return key


def _roster(file: Path, name: str, coordinator: bytes) -> SignedRoster | None:
    if not file.exists():
        return None
    found = load(file, SignedRoster)
    try:
        found.check(coordinator)
    except FedsynthError as error:
        raise FedsynthError(f"{file}: {error}; then delete the file and `fedsynth site join` the admission") from error
    if name not in found.roster.identities:
        raise FedsynthError(f"{file} names no site {name}; `fedsynth site join` takes the roster from the admission")
    return found

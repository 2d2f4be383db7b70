"""A site's configuration file ``site.toml``, which its data steward writes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from fedsynth.deploy.roster import SignedRoster, load
from fedsynth.errors import FedsynthError, InvalidParameter, said
from fedsynth.federation.names import check_site_name, parse_address
from fedsynth.federation.policy import Policy
from fedsynth.federation.policy_file import PolicySection
from fedsynth.files import Records, load_toml, refuse_format
from fedsynth.keys import PUBLIC_BYTES
from fedsynth.settings import Settings, read_settings

if TYPE_CHECKING:
    from fedsynth.rows import Source

FILE = "site.toml"
INVITATION = "invitation.toml"  # beside it: the invitation that the folder was made from
ROSTER = "roster.toml"  # beside it: all sites with their keys, from the admission
FORMAT = 1  # of the file; a file without a number has this format
_MARK = "fedsynth_site"
_log = logging.getLogger(__name__)

_Key = Annotated[
    str,
    Meta(
        pattern=rf"^[0-9a-fA-F]{{{2 * PUBLIC_BYTES}}}\Z",
        description=f"the coordinator's public key, {2 * PUBLIC_BYTES} hexadecimal digits, which `fedsynth site join` "
        "writes there",
    ),
]


class SiteSection(Settings, frozen=True):
    """The section ``[site]`` of ``site.toml``."""

    name: str
    """Name of the site, as in the coordinator's job."""
    state: str = "state"
    """Folder of the site's account (its record of spent budget) and its copies of rows."""


class SourceSection(Settings, frozen=True):
    """The section ``[source]`` of ``site.toml``: where the rows are, and which of them are about one person."""

    schema: str
    """Schema file (TOML) of the federation."""
    data: str = ""
    """File with the rows (.csv, .tsv, .txt, also .gz, .xlsx or .parquet), postgresql://USER@HOST/DB?table=NAME,
    duckdb:///FILE?table=NAME, or the address of a table in an engine of ibis."""
    file: str = ""
    """In place of data: source file (TOML), which says where the rows are and in what form. A run is bound to it."""
    counted: bool = False
    """The database counts the rows for every question; no copy is made."""
    streamed: bool = False
    """Every question reads all rows batch by batch, and none is kept."""
    immutable: bool = False
    """Nobody writes to the table during a run: a promise that data in an engine of ibis needs."""
    person: str = ""
    """Column that tells persons apart: no more rows of each are used than `unit` of [policy] says."""
    rows_are_persons: bool = False
    """No person has more rows here than `unit` of [policy] says."""
    records: Records | None = None
    """Kind of a CSV file: lines (default) or rfc4180."""


class FlowerSection(Settings, frozen=True):
    """The section ``[flower]`` of ``site.toml``."""

    superlink: str
    """HOST:PORT of Flower's server (SuperLink)."""
    root_certificates: str = "ca.crt"
    """Certificate (PEM file) of the authorities to trust there."""
    key: str = "node-key"
    """File of the private key of the site's Flower node."""


class CoordinatorSection(Settings, frozen=True):
    """The section ``[coordinator]`` of ``site.toml``."""

    key: _Key
    """The two public keys of the only server that is answered, as `fedsynth site join` wrote them."""


class SiteFile(Settings, frozen=True):
    """A file ``site.toml``, which a site's data steward writes."""

    site: SiteSection
    source: SourceSection
    flower: FlowerSection
    coordinator: CoordinatorSection
    policy: PolicySection


@dataclass(frozen=True)
class SiteConfig:
    """The configuration of a deployed site, read from its ``site.toml``; all paths are absolute.

    ``data`` is the source of its rows. They are read and encoded at most once per run, unless they are ``counted`` or
    ``streamed``. ``person`` is the column that identifies a row's person; it is empty if the steward has declared
    ``rows_are_persons``, or nothing yet. ``coordinator`` (64 bytes) holds the two public keys of the only server that
    is answered. ``roster`` is ``None`` until the coordinator has admitted the site.
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
        """Raise :class:`~fedsynth.errors.FedsynthError` unless the steward has said which rows are about one person."""
        if not (self.person or self.rows_are_persons):
            raise FedsynthError(
                f"{self.folder / FILE}: [source] must say who a person is, since the guarantee is for persons. Write "
                'person = "COLUMN", the column that tells persons apart, and no more rows of each are used than '
                "[policy] unit says; or rows_are_persons = true, if no person has more rows here than that"
            )

    @property
    def peers(self) -> Mapping[str, bytes]:
        """Public identity keys (32 bytes) of all sites by name; empty until this site is admitted."""
        return self.roster.roster.identities if self.roster else {}

    @property
    def certificate(self) -> Path:
        """File (PEM) of the site's own TLS certificate, from its admission."""
        return self.folder / f"{self.name}.pem"

    @property
    def certificate_key(self) -> Path:
        """File (PEM) of its private key, which never leaves the site."""
        return self.folder / f"{self.name}.key"

    @property
    def holds_rows(self) -> bool:
        """Whether each run gets its own copy of the rows, not counted or streamed ones."""
        return not (self.counted or self.streamed)

    @property
    def account(self) -> Path:
        """File (SQLite) of the site's account: spent budget, questions, replies, and the site's secret."""
        return self.state / "account.sqlite"

    @property
    def copies(self) -> Path:
        """Folder of the copies of rows, encoded under the schema, that open runs read."""
        return self.state / "rows"

    @property
    def cache(self) -> Path:
        """File of the source's encoded rows, which saves reading an unchanged source again."""
        return self.state / "table.fedsynth"


def load_site_config(path: Path) -> SiteConfig:
    """Return the configuration of a site, from its ``site.toml`` (or its folder) and the roster beside it.

    Raises :class:`~fedsynth.errors.FedsynthError` for a missing file, an entry that is unknown, missing or of the wrong
    type (the message names it), and a roster that the coordinator did not sign or that lacks this site.
    """
    from fedsynth.data.sources import open_source
    from fedsynth.data.sources.declared import DeclaredRows

    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise FedsynthError(f"{file} is missing; `fedsynth site join` creates it from the coordinator's invitation")
    content = load_toml(file)
    mend = "use the fedsynth that it was written for, or write it again from the template of `fedsynth site join`"
    refuse_format(content.pop(_MARK, FORMAT), FORMAT, str(file), mend)
    told = read_settings(SiteFile, content, str(file))
    site, source, flower, policy = told.site, told.source, told.flower, told.policy
    if source.rows_are_persons and source.person:
        raise FedsynthError(f"{file}: [source] names a person column and says rows_are_persons = true; delete one")
    folder = file.parent.resolve()
    with _entry(f"{file}: [site] name"):
        check_site_name(site.name)
    with _entry(f"{file}: [flower] superlink"):
        parse_address(flower.superlink)
    if source.counted and source.streamed:
        raise FedsynthError(f"{file}: [source] is counted or streamed, not both; delete one of the entries")
    if source.person and (source.counted or source.streamed):
        way = "counted" if source.counted else "streamed"
        raise FedsynthError(
            f"{file}: [source] person limits the rows of a person while a run's copy of them is made; rows that are "
            f"{way} have none: delete {way}, or name a view with at most that many rows a person"
        )
    if bool(source.data) == bool(source.file):
        raise FedsynthError(f"{file}: [source] needs data or file, and not both; name the rows, or the source file")
    if source.file and not source.file.lower().endswith(".toml"):
        raise FedsynthError(f"{file}: [source] file is a source file (.toml); name a file with rows as data")
    with _entry(f"{file}: [source]"):
        data = open_source(source.file or source.data, folder, source.records, immutable=source.immutable)
        if isinstance(data, DeclaredRows):
            data.check(source.person)
    if source.counted and (data.file is not None or isinstance(data, DeclaredRows)):
        raise FedsynthError(
            f"{file}: [source] counted = true is for a database, which counts its own rows as they are; for a file, "
            "write streamed = true: it is read batch by batch, and no copy is kept"
        )
    coordinator = bytes.fromhex(told.coordinator.key)
    return SiteConfig(
        folder,
        site.name,
        folder / site.state,
        data,
        folder / source.schema,
        policy.policy(folder),
        coordinator,
        flower.superlink,
        folder / flower.root_certificates,
        folder / flower.key,
        _roster(folder / ROSTER, site.name, coordinator),
        source.counted,
        source.streamed,
        source.person,
        source.rows_are_persons,
    )


@contextlib.contextmanager
def _entry(where: str) -> Iterator[None]:
    """Add the entry's name to the message of an :class:`InvalidParameter`."""
    try:
        yield
    except InvalidParameter as error:
        raise InvalidParameter(f"{where}: {error}") from error


def _roster(file: Path, name: str, coordinator: bytes) -> SignedRoster | None:
    if not file.exists():
        return None
    found = load(file, SignedRoster)
    with said(f"{file}: {{error}}; then delete the file and `fedsynth site join` the admission", FedsynthError):
        found.check(coordinator)
    if name not in found.roster.identities:
        raise FedsynthError(f"{file} names no site {name}; `fedsynth site join` takes the roster from the admission")
    return found

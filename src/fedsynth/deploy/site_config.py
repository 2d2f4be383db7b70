"""A site's own files: from ``site.toml`` to the :class:`Site` that answers, for data stewards and for transports.

Rule 1: what a site must never lose is created by :func:`create_state` alone. A ledger that is gone is an error:
    a fresh one would forget what was spent. Rule 2: ledger and secret live in one file, so that no backup
    can restore one without the other: old charges with a new secret would release the same rows twice.
Rule 3: whatever holds rows or secrets is readable by its owner only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsynth.deploy.site_rows import counted, is_exposed, load_rows
from fedsynth.errors import BudgetExceeded, FedsynthError, SchemaError
from fedsynth.federation.audit import AuditLog
from fedsynth.federation.policy import Policy
from fedsynth.federation.policy_file import policy_from_toml
from fedsynth.federation.site import Site
from fedsynth.federation.trust.masking import identity
from fedsynth.privacy.ledger import SiteLedger
from fedsynth.schema import Schema

if TYPE_CHECKING:
    from fedsynth.data.source import Source

FILE = "site.toml"
SECRET = "site"  # its name in the ledger's file
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_SOON = 30  # days before a certificate ends from which a check says so

_SECTIONS = {  # entries that are needed, and others
    "site": (("name",), ("state",)),
    "source": (("schema",), ("data", "counted")),
    "flower": (("superlink",), ("root_certificates", "key")),
}


@dataclass(frozen=True)
class SiteConfig:
    """What a ``site.toml`` says, with paths made absolute.

    ``data`` is a file or a database table; ``counted`` says that the table's rows stay in the database, which counts
    them for every question (they are read and encoded otherwise). ``peers`` are the other sites' identity keys by
    name: the roster of a trust in which sites talk to each other through the server.
    """

    folder: Path
    name: str
    state: Path
    data: Source
    schema: Path
    policy: Policy
    superlink: str
    root_certificates: Path
    key: Path
    peers: Mapping[str, bytes] = field(default_factory=dict)
    counted: bool = False

    @property
    def ledger(self) -> Path:
        """The file that holds the site's charges and its secret."""
        return self.state / "ledger.sqlite"

    @property
    def audit(self) -> Path:
        """The log of every request and of what became of it."""
        return self.state / "audit.jsonl"

    @property
    def cache(self) -> Path:
        """The encoded copy of the rows, which spares every message a reading of the source."""
        return self.state / "table.fedsynth"


def load_site_config(path: Path) -> SiteConfig:
    """Return what a ``site.toml`` (or the folder that holds one) says.

    Raises :class:`FedsynthError` that names the entry and what is known, for anything unknown, missing or of
    the wrong type.
    """
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise FedsynthError(f"{file} is not there; `fedsynth deploy init` writes a template for each site")
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise FedsynthError(f"{file} is not TOML: {error}") from error
    _check(f"{file}:", content, dict, (*_SECTIONS, "policy"), ("peers",))
    for section, (needed, others) in _SECTIONS.items():
        _check(f"{file}: [{section}]", content[section], str, needed, others)
    site, source, flower = content["site"], content["source"], content["flower"]
    folder = file.parent.resolve()
    if not NAME.fullmatch(site["name"]) or site["name"] == "server":
        raise FedsynthError(
            f"{file}: [site] name = {site['name']!r} is no site's name; use up to 63 letters, digits, '.', '_' and '-'"
        )
    return SiteConfig(
        folder,
        site["name"],
        folder / site.get("state", "state"),
        _source(file, folder, source),
        folder / source["schema"],
        policy_from_toml(content["policy"], folder),
        flower["superlink"],
        folder / flower.get("root_certificates", "ca.crt"),
        folder / flower.get("key", "node-key"),
        {str(name): _peer(file, str(name), text) for name, text in content.get("peers", {}).items()},
        "counted" in source,
    )


def create_state(config: SiteConfig) -> bool:
    """Create the state folder, the ledger and the secret of a site; return whether there was none yet.

    Never touches a ledger that is there.
    """
    config.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if config.ledger.exists():
        return False
    fresh = config.state / f".ledger.{os.getpid()}"
    os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        SiteLedger(fresh).secret(SECRET, os.urandom(32))
        try:
            os.link(fresh, config.ledger)  # unlike a rename, refuses to replace a ledger made meanwhile
        except FileExistsError:
            return False
    finally:
        fresh.unlink()
    return True


@contextlib.contextmanager
def open_site(config: SiteConfig, run: str = "") -> Iterator[Site]:
    """Give the site, ready to answer the questions of a run while the block lasts.

    Raises :class:`FedsynthError` where the ledger is missing or readable by others, and whatever is wrong with
    schema or rows.
    """
    require_state(config)
    schema, secret = Schema.load(config.schema), site_secret(config)
    policy, ledger = _among_peers(config, secret), SiteLedger(config.ledger)
    with counted(config, schema) if config.counted else contextlib.nullcontext(load_rows(config, schema, run)) as table:
        yield Site(config.name, table, policy, ledger, secret, AuditLog(config.audit))


def site_secret(config: SiteConfig) -> bytes:
    """Return the secret that :func:`create_state` drew: the key of the site's noise, and of its identity."""
    secret = SiteLedger(config.ledger).secret(SECRET, b"")  # never a fresh one
    if not secret:
        raise FedsynthError(f"{config.ledger} holds no secret, so fedsynth did not make it; restore it from the backup")
    return secret


def _among_peers(config: SiteConfig, secret: bytes) -> Policy:
    """Return the policy, its trusts told who the other sites are."""
    if not config.peers:
        return config.policy
    roster = {**config.peers, config.name: identity(secret)}
    if config.peers.get(config.name, roster[config.name]) != roster[config.name]:
        raise FedsynthError(
            f"[peers] gives {config.name} a key that is not this site's own; `fedsynth site init` prints the right one"
        )
    trusts = {name: trust.among(roster) for name, trust in config.policy.trusts.items()}
    return dataclasses.replace(config.policy, trusts=trusts)


def require_state(config: SiteConfig) -> None:
    """Raise :class:`FedsynthError` unless the ledger is there and private to its owner."""
    if not config.ledger.is_file():
        raise FedsynthError(
            f"{config.ledger} is missing; restore it from the backup if this site ever answered (a new one forgets "
            f"what was spent), otherwise run `fedsynth site init {config.folder}`"
        )
    for path in (config.state, config.ledger):
        if is_exposed(path):
            raise FedsynthError(f"{path} can be read by other users; run chmod go-rwx {path}")


def _check(where: str, content: Mapping[str, Any], kind: type, needed: Sequence[str], others: Sequence[str]) -> None:
    """Raise :class:`FedsynthError` unless all entries are known and of one kind, and all that are needed are there."""
    if unknown := sorted({*content} - {*needed, *others}):
        raise FedsynthError(f"{where} has unknown entries {unknown}; known are {sorted([*needed, *others])}")
    if lacking := sorted({*needed} - {*content}):
        raise FedsynthError(f"{where} lacks {lacking}; add them")
    if wrong := [name for name, value in content.items() if not isinstance(value, kind)]:
        raise FedsynthError(f"{where} {wrong} must be {'text in quotes' if kind is str else 'sections'}")


def _source(file: Path, folder: Path, section: Mapping[str, str]) -> Source:
    if ("data" in section) == ("counted" in section):
        raise FedsynthError(
            f"{file}: [source] needs data (rows that are read) or counted (a database table that counts its own rows)"
        )
    data = section.get("data", section.get("counted", ""))
    if "://" not in data:
        if "counted" in section:
            raise FedsynthError(f"{file}: [source] counted = {data!r} is no database table; files are read: use data")
        return folder / data
    from fedsynth.data.source import open_source

    return open_source(data, folder)


def _peer(file: Path, name: str, text: Any) -> bytes:
    try:
        return bytes.fromhex(text)
    except (TypeError, ValueError) as error:
        raise FedsynthError(f"{file}: [peers] {name} must be that site's public key in hexadecimal") from error


# ---------------------------------------------------------------------------------------------------------------------
# Is it ready?


@dataclass(frozen=True)
class Finding:
    """One thing that a check looked at: ``says`` what is, or what is wrong and how to mend it; ``code`` 0 is fine."""

    what: str
    says: str
    code: int = 0


def inspect_site(config: SiteConfig) -> Iterator[Finding]:
    """Yield what there is to say about every part of a site, each looked at whatever the others say."""
    checks: dict[str, Callable[[SiteConfig], str]] = {
        "rows": _rows,
        "ledger": _ledger,
        "policy": _policy,
        "certificate": _certificate,
        "node key": _key,
    }
    for what, check in checks.items():
        try:
            yield Finding(what, check(config))
        except SchemaError as error:
            yield Finding(what, str(error), 3)
        except BudgetExceeded as error:
            yield Finding(what, str(error), 4)
        except (FedsynthError, OSError) as error:
            yield Finding(what, str(error), 8)


def _rows(config: SiteConfig) -> str:
    from fedsynth.data.source import check_table

    schema = Schema.load(config.schema)
    config.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with counted(config, schema) if config.counted else contextlib.nullcontext(load_rows(config, schema)) as table:
            rows, left_out = len(table), table.left_out
    except SchemaError as error:  # the first fault; say all of them
        raise SchemaError("; ".join(check_table(config.data, schema).problems) or str(error)) from error
    # Rows that a database counts are read for a check only where some are left out.
    found = "" if config.counted and not left_out else "; ".join(check_table(config.data, schema).problems)
    if rows == 0:
        without = found and f" ({found})"
        raise SchemaError(f"{config.data} has no rows that fit the schema; name the file that has{without}")
    if config.policy.budget.delta > 1 / rows:
        raise FedsynthError(
            f"[policy] delta = {config.policy.budget.delta:g} is more than one over the {rows} rows: that "
            "promises a single record nothing; choose one well below, such as 1e-6"
        )
    without = f", {left_out} do not and are left out" if left_out else ""
    return f"{rows} rows fit schema {schema.digest[:12]}{without}" + (found and f": {found}")


def _ledger(config: SiteConfig) -> str:
    from fedsynth.privacy.release import epsilon_of

    require_state(config)
    site_secret(config)
    ledger = SiteLedger(config.ledger)
    budget, spent = config.policy.budget, ledger.spent()
    said = f"spent epsilon = {epsilon_of(spent, budget.delta):.4g} of {budget.epsilon:g} at delta = {budget.delta:g}"
    if spent >= budget.rho * (1 - 1e-9):
        raise BudgetExceeded(f"{said}: nothing is left; only the data steward may raise [policy] budget")
    return f"{said} (rho {spent:.4g} of {budget.rho:.4g}) in {len(ledger.charges())} charges"


def _policy(config: SiteConfig) -> str:
    policy = _among_peers(config, site_secret(config)) if config.peers else config.policy
    alone = [name for name, trust in policy.trusts.items() if trust.turns > 1 and not config.peers]
    if alone:
        raise FedsynthError(
            f"the trust {alone[0]} needs [peers]: the identity keys of all other sites, from each of them"
        )
    holds = "".join(f" ({trust.assumption})" for trust in policy.trusts.values() if trust.assumption)
    per_run = f"epsilon {policy.per_run.epsilon:g} a run" if policy.per_run else "one run may spend everything"
    size = "public" if policy.size_is_public else "secret"
    known = f"; {len(policy.plans)} approved plans, {len(config.peers)} peers"
    return f"trusts {', '.join(sorted(policy.trusts))}{holds}; {per_run}; the number of rows is {size}{known}"


def _certificate(config: SiteConfig) -> str:
    from cryptography import x509

    if not config.root_certificates.is_file():
        raise FedsynthError(f"{config.root_certificates} is missing; ask the consortium for its CA certificate")
    try:
        found = x509.load_pem_x509_certificates(config.root_certificates.read_bytes())
    except ValueError as error:
        raise FedsynthError(f"{config.root_certificates} is no PEM certificate ({error}); get it anew") from error
    now = datetime.datetime.now(datetime.UTC)
    end = min(one.not_valid_after_utc for one in found)
    if now < max(one.not_valid_before_utc for one in found):
        raise FedsynthError(f"{config.root_certificates} is not valid yet; is this machine's clock right?")
    if end < now:
        raise FedsynthError(f"{config.root_certificates} ended on {end:%Y-%m-%d}; get the new one")
    soon = ", SOON: ask for the next one" if (end - now).days < _SOON else ""
    return f"valid until {end:%Y-%m-%d}{soon}; for {config.superlink}"


def _key(config: SiteConfig) -> str:
    if not config.key.is_file():
        raise FedsynthError(f"{config.key} is missing; run `fedsynth site init {config.folder}`")
    if is_exposed(config.key):
        raise FedsynthError(f"{config.key} can be read by other users; run chmod 600 {config.key}")
    try:
        public = public_part(config.key.read_bytes())
    except (TypeError, ValueError) as error:  # the first for a key with a passphrase
        raise FedsynthError(f"{config.key} is no key that Flower takes ({error}); move it away and run init") from error
    return f"{public.split()[0]}, sha256 {hashlib.sha256(public.encode()).hexdigest()[:16]}"


def public_part(private: bytes) -> str:
    """Return the public key of a private one, as OpenSSH writes it; raises ``ValueError`` unless Flower takes it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = serialization.load_ssh_private_key(private, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic-curve key of the ECDSA kind")
    form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return key.public_key().public_bytes(*form).decode()

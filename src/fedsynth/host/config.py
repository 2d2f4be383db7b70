"""A site's own files: from ``site.toml`` to the :class:`Site` that answers, for data stewards and for transports.

Rule 1: what a site must never lose is created by :func:`create_state` alone. An account that is gone is an error:
    a fresh one would forget what was spent. Rule 2: account and secret live in one file, so that no backup
    can restore one without the other: old charges with a new secret would release the same rows twice.
Rule 3: whatever holds rows or secrets is readable by its owner only. Rule 4: a transport hands bytes in and carries
    bytes out (:func:`answer`); whatever goes wrong here leaves as one of the codes of a reply, never as a text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsynth.errors import BudgetExceeded, FedsynthError, InvalidParameter, SchemaError
from fedsynth.federation.coordinator import PUBLIC
from fedsynth.federation.names import check_site_name, parse_address
from fedsynth.federation.policy import Policy
from fedsynth.federation.policy_file import policy_from_toml
from fedsynth.federation.query import query_class
from fedsynth.federation.site import Site, digest_of
from fedsynth.federation.trust.secure.masking import identity
from fedsynth.federation.wire import Seen, write_reply
from fedsynth.files import load_toml, private_folder
from fedsynth.host.rows import RunRows, is_exposed, load_rows, rows_in_place
from fedsynth.privacy.account import Account
from fedsynth.schema import Schema

if TYPE_CHECKING:
    from fedsynth.rows import Source

FILE = "site.toml"
SECRET = "site"  # its name in the account's file
_SOON = 30  # days before a certificate ends from which a check says so
_log = logging.getLogger(__name__)

_CHOICES = ("counted", "streamed")  # entries of [source] that are true or false
_SECTIONS = {  # entries that are needed, and others
    "site": (("name",), ("state",)),
    "source": (("data", "schema"), ("counted", "streamed", "person")),
    "flower": (("superlink",), ("root_certificates", "key")),
    "coordinator": (("key",), ()),
}


@dataclass(frozen=True)
class SiteConfig:
    """What a ``site.toml`` says, with paths made absolute.

    ``data`` is a file or a database table. Its rows are read and encoded once a run, unless they are ``counted``: the
    database counts them for every question, DuckDB those of a file; or ``streamed``: every question reads all of them
    batch by batch, and none is kept. ``person`` is the column that names the person of a
    row, empty if each row is a person's only one. ``coordinator`` (64 bytes) are the public keys of the only server
    that is answered. ``peers`` are the other sites' identity keys by name: the roster of a trust in which sites talk to
    each other through the server.
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
    peers: Mapping[str, bytes] = field(default_factory=dict)
    counted: bool = False
    streamed: bool = False
    person: str = ""

    @property
    def holds_rows(self) -> bool:
        """Whether rows are read into a copy that each run has."""
        return not (self.counted or self.streamed)

    @property
    def account(self) -> Path:
        """The file that holds the site's charges, its audit rows, its replies and its secret."""
        return self.state / "account.sqlite"

    @property
    def copies(self) -> Path:
        """The folder of the encoded rows that open runs read."""
        return self.state / "rows"

    @property
    def cache(self) -> Path:
        """The encoded rows of the source as they last were, which spares a new run a reading of the source."""
        return self.state / "table.fedsynth"


def load_site_config(path: Path) -> SiteConfig:
    """Return what a ``site.toml`` (or the folder that holds one) says.

    Raises :class:`FedsynthError` that names the entry and what is known, for anything unknown, missing or of
    the wrong type.
    """
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise FedsynthError(f"{file} is not there; `fedsynth deploy init` writes a template for each site")
    content = load_toml(file)
    _check(f"{file}:", content, dict, (*_SECTIONS, "policy"), ("peers",))
    for section, (needed, others) in _SECTIONS.items():
        texts = {name: entry for name, entry in content[section].items() if name not in _CHOICES}
        _check(f"{file}: [{section}]", texts, str, needed, [one for one in others if one not in _CHOICES])
    site, source, flower = content["site"], content["source"], content["flower"]
    chosen = [name for name in _CHOICES if _choice(file, source, name)]
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
    return SiteConfig(
        folder,
        site["name"],
        folder / site.get("state", "state"),
        _source(folder, source["data"]),
        folder / source["schema"],
        policy_from_toml(content["policy"], folder),
        _coordinator(file, content["coordinator"]["key"]),
        flower["superlink"],
        folder / flower.get("root_certificates", "ca.crt"),
        folder / flower.get("key", "node-key"),
        {name: _peer(file, name, text) for name, text in content.get("peers", {}).items()},
        "counted" in chosen,
        "streamed" in chosen,
        source.get("person", ""),
    )


def create_state(config: SiteConfig) -> bool:
    """Create the state folder, the account and the secret of a site; return whether there was none yet.

    Never touches an account that is there.
    """
    private_folder(config.state)
    if config.account.exists():
        return False
    fresh = config.state / f".account.{os.getpid()}"
    try:
        Account(fresh).secret(SECRET, os.urandom(32))
        try:
            os.link(fresh, config.account)  # unlike a rename, refuses to replace an account made meanwhile
        except FileExistsError:
            return False
    finally:
        fresh.unlink(missing_ok=True)
    return True


def open_account(config: SiteConfig) -> Account:
    """Return the site's account; raise :class:`FedsynthError` where it is missing, damaged or readable by others."""
    require_state(config)
    return Account(config.account)


def open_site(config: SiteConfig) -> Site:
    """Return the site, ready to answer; its rows are opened for the first question that is charged.

    Raises :class:`FedsynthError` where the account is missing or readable by others, and :class:`SchemaError` for a
    schema that cannot be read.
    """
    account = open_account(config)
    secret = site_secret(config, account)
    rows = RunRows(config, Schema.load(config.schema), account, secret)
    return Site(config.name, rows, _among_peers(config, secret), account, secret, config.coordinator, rows.digest)


def site_secret(config: SiteConfig, account: Account | None = None) -> bytes:
    """Return the secret that :func:`create_state` drew: the key of the site's noise, and of its identity."""
    secret = (account or open_account(config)).secret(SECRET, b"")  # never a fresh one
    if not secret:
        raise FedsynthError(
            f"{config.account} holds no secret, so fedsynth did not make it; restore it from the backup"
        )
    return secret


# ---------------------------------------------------------------------------------------------------------------------
# Messages


def answer(config: SiteConfig, messages: Sequence[bytes], refuse: str = "") -> list[bytes]:
    """Return the reply to each message of a transport; never raises, and no text but the site's name leaves.

    With a reason to ``refuse``, all are refused; the reason is for the site's own log.
    """
    try:
        if refuse:
            raise FedsynthError(refuse)
        site = open_site(config)
    except Exception as error:
        reason = refuse or f"{type(error).__name__}: {error}"
        _log.warning("site %s: %s", config.name, reason)
        return [_turned_down(config, data, reason, refused=bool(refuse)) for data in messages]
    return [site.answer(data) for data in messages]


def wait_until_due(
    began: float,
    every: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Sleep until the first whole multiple of ``every`` seconds after ``began``, both on the same clock.

    Every reply leaves then, whatever is in it: the time that an answer took shows in these steps only, be it for the
    number of rows or for what they hold.
    """
    if every <= 0:
        return
    due = began + every * max(1, math.ceil((clock() - began) / every))
    while (left := due - clock()) > 0:
        sleep(left)


def _turned_down(config: SiteConfig, data: bytes, reason: str, *, refused: bool) -> bytes:
    """Return the reply to a message that no site could be opened for; write down why, where that is possible."""
    digest, seen = digest_of(data), Seen()
    try:
        seen = Seen(*open_account(config).note("refused" if refused else "failed", request=digest, reason=reason))
    except Exception:  # the very thing that may be wrong
        _log.exception("site %s: the account cannot be written to", config.name)
    return write_reply(config.name, digest, "refused" if refused else "failed", seen)


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
    """Raise :class:`FedsynthError` unless the account is there and private to its owner."""
    if not config.account.is_file():
        raise FedsynthError(
            f"{config.account} is missing; restore it from the backup if this site ever answered (a new one forgets "
            f"what was spent), otherwise run `fedsynth site init {config.folder}`"
        )
    for path in (config.state, config.account):
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


@contextlib.contextmanager
def _entry(where: str) -> Iterator[None]:
    """Say in which entry of a file a parameter is wrong."""
    try:
        yield
    except InvalidParameter as error:
        raise InvalidParameter(f"{where}: {error}") from error


def _choice(file: Path, section: Mapping[str, Any], name: str) -> bool:
    chosen = section.get(name, False)
    if not isinstance(chosen, bool):
        raise FedsynthError(f"{file}: [source] {name} is true or false; the table or file itself is named by data")
    return chosen


def _source(folder: Path, data: str) -> Source:
    from fedsynth.data.sources import open_source

    return open_source(data, folder)


def _coordinator(file: Path, text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != PUBLIC:
        raise FedsynthError(
            f"{file}: [coordinator] key must be the coordinator's public key, {2 * PUBLIC} hexadecimal digits; "
            "`fedsynth deploy init` prints it"
        )
    return key


def _peer(file: Path, name: str, text: Any) -> bytes:
    with _entry(f"{file}: [peers]"):
        check_site_name(name)
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
        "account": _account,
        "policy": _policy,
        "coordinator": _coordinator_key,
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
    from fedsynth.data.read import check_table

    schema = Schema.load(config.schema)
    private_folder(config.state)
    secret = site_secret(config) if config.account.is_file() else b""
    try:
        with rows_in_place(config, schema) or contextlib.nullcontext(load_rows(config, schema, secret)) as table:
            rows, left_out = len(table), table.rows_read - len(table)
    except SchemaError as error:  # the first fault; say all of them
        raise SchemaError("; ".join(check_table(config.data, schema).problems) or str(error)) from error
    # Rows that are not held are read for a check only where some are left out.
    found = "; ".join(check_table(config.data, schema).problems) if config.holds_rows or left_out else ""
    if rows == 0:
        without = found and f" ({found})"
        raise SchemaError(f"{config.data} has no rows that fit the schema; name the file that has{without}")
    if config.policy.budget.delta > 1 / rows:
        raise FedsynthError(
            f"[policy] delta = {config.policy.budget.delta:g} is more than one over the {rows} rows: that "
            "promises a single record nothing; choose one well below, such as 1e-6"
        )
    said = f"{rows} rows fit schema {schema.digest[:12]}"
    said += f", {left_out} do not and are left out" if left_out else ""
    said += "; the schema is a DRAFT: its bounds and categories are not covered" if schema.draft else ""
    if config.person:
        said += f"; at most {config.policy.unit.rows} rows of each {config.person!r}"
    if not config.holds_rows:
        where = "streamed" if config.streamed else "counted where they are"
        said += f"; {where}, each question as the rows are then"
    return said + (found and f": {found}")


def _account(config: SiteConfig) -> str:
    account = open_account(config)
    site_secret(config, account)
    if fault := account.verify().wrong:
        raise FedsynthError(fault)
    said = account_text(config, account)
    if config.policy.budget.share_of(account.spent()) >= 1 - 1e-9:
        raise BudgetExceeded(f"{said}: nothing is left; only the data steward may raise [policy] budget")
    return said


def account_text(config: SiteConfig, account: Account) -> str:
    """Return what was spent of a site's limit, and in how many runs, as a clause."""
    limit, spent, row = config.policy.budget, account.spent(), account.head()[0]
    at = f" at delta = {limit.delta:g}" if limit.delta else ""
    ended = "; releases without noise were made, so nothing is guaranteed" if account.exact else ""
    return (
        f"spent epsilon = {spent.at(limit.delta):.4g} of {limit.epsilon:g}{at}, {len(account.open_runs())} open runs, "
        f"audit row {row}{ended}"
    )


def _policy(config: SiteConfig) -> str:
    policy = _among_peers(config, site_secret(config)) if config.peers else config.policy
    alone = [name for name, trust in policy.trusts.items() if trust.turns > 1 and not config.peers]
    if alone:
        raise FedsynthError(
            f"the trust {alone[0]} needs [peers]: the identity keys of all other sites, from each of them"
        )
    for kind in policy.kinds:
        query_class(kind, policy.kinds)
    if not policy.plans and not policy.any_plan:
        raise FedsynthError(
            "no plan is approved, so that nothing is answered; write digest and file of one into [policy.plans], or "
            'plans = "any" into [policy]'
        )
    holds = "".join(f" ({trust.assumption})" for trust in policy.trusts.values() if trust.assumption)
    per_run = f"epsilon {policy.per_run.epsilon:g} a run" if policy.per_run else "one run may spend everything"
    size = "public" if policy.size_is_public else "secret"
    plans = f"{len(policy.plans)} approved plans" if policy.plans else "ANY run, planned or not"
    exact = "; RELEASES WITHOUT NOISE are allowed: nothing is guaranteed" if policy.exact else ""
    others = "".join(f"; asks of {place} are answered" for place in policy.kinds.values())
    return (
        f"trusts {', '.join(sorted(policy.trusts))}{holds}; {per_run}; the number of rows is {size}; {plans}, "
        f"{len(config.peers)} peers{others}{exact}"
    )


def _coordinator_key(config: SiteConfig) -> str:
    return f"answers the coordinator of key {config.coordinator.hex()[:16]}... alone"


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

"""Preflight checks for a host that joins a federation; each failure comes with its fix.

Rule 1: a check reports its finding; a check that could not run is reported as a warning, never as "ok". Rule 2:
:func:`examine` changes nothing and reads no secret: of files that hold one, only the permissions are checked.
:func:`check_site` reads the site's own secrets and rows, and may write the cache of its rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib.machinery
import importlib.metadata
import math
import os
import platform
import re
import shutil
import socket
import ssl
import stat
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal

from fedsynth.deploy.host.account import Spending, site_spending
from fedsynth.deploy.host.config import INVITATION, SiteConfig
from fedsynth.deploy.host.rows import load_rows, person_limit, rows_in_place
from fedsynth.deploy.host.state import among_peers, open_account, public_part, site_secret
from fedsynth.deploy.roster import Invitation, load
from fedsynth.errors import BudgetExceeded, FedsynthError, SchemaError, number_of, said
from fedsynth.federation.names import parse_address
from fedsynth.federation.query import Training, query_class
from fedsynth.files import private_folder
from fedsynth.platforms import ALLOW_NOBODY, NOT_CHECKED, POSIX
from fedsynth.privacy.cost import Budget, Cost, in_full, rounded_up
from fedsynth.schema import Schema
from fedsynth.schema.misfits import with_lines

AHEAD, BEHIND = 5.0, 305.0  # seconds beyond which Flower refuses a node's signature (flwr 1.41)
_TIMEOUT = 10.0  # seconds to connect and to answer
_SOON = 30  # days before a certificate's end from which a check warns
_ROOMY, _TIGHT = 2**30, 100 * 2**20  # bytes free in the state's file system
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p")
_MESSAGES = {  # OpenSSL's X509_V_ERR codes
    9: "its certificate is not valid yet; is this host's clock behind?",
    10: "the server's certificate, or one above it, has expired: the coordinator renews it; or set this host's clock",
    18: "its certificate is signed by itself and not among the root certificates; get the federation's ca.crt anew",
    19: "it is signed by another authority than --root-certificates; get the federation's ca.crt anew",
    20: "it is signed by another authority than --root-certificates; get the federation's ca.crt anew",
    21: "it is signed by another authority than --root-certificates; get the federation's ca.crt anew",
    62: "its certificate is for another host name; use the name that is in it, or have one made for this name",
    64: "its certificate is for another address; use the name that is in it, or have one made for this address",
}


@dataclass(frozen=True)
class PreflightCheck:
    """Result of one preflight check of a host, as ``fedsynth site check`` prints it.

    ``state`` is ``failure`` if the host cannot take part like this, ``warning`` if something needs a look or the check
    could not run. ``mend`` says how to fix the finding; it is empty for ``ok``, and where ``found`` already says so.
    ``code`` is the exit code if this check failed: 3 if rows and schema do not fit, 4 if no budget is left, else 8.
    """

    name: str
    state: Literal["ok", "warning", "failure"]
    found: str
    mend: str = ""
    code: int = 8

    def to_json(self) -> dict[str, Any]:
        """Return the check's fields by name, as JSON values; ``code`` is 0 unless the check failed."""
        return {**asdict(self), "code": self.code if self.state == "failure" else 0}


@dataclass(frozen=True)
class HostChecks:
    """The preflight checks of a host: of the site called ``name``, or of a machine alone if that is empty."""

    name: str
    checks: tuple[PreflightCheck, ...]

    @property
    def code(self) -> int:
        """Exit code of the first check that failed; 0 if the host is ready."""
        return next((check.code for check in self.checks if check.state == "failure"), 0)

    def to_json(self) -> dict[str, Any]:
        """Return name, verdict and checks as JSON values."""
        return {"name": self.name, "ready": not self.code, "checks": [check.to_json() for check in self.checks]}


def _ok(name: str, found: str) -> PreflightCheck:
    return PreflightCheck(name, "ok", found)


def _warning(name: str, found: str, mend: str) -> PreflightCheck:
    return PreflightCheck(name, "warning", found, mend)


def _failure(name: str, found: str, mend: str = "", code: int = 8) -> PreflightCheck:
    return PreflightCheck(name, "failure", found, mend, code)


# ---------------------------------------------------------------------------------------------------------------------
# The host alone


def check_packages(
    lockstep: str = "", installed: Callable[[str], str] = importlib.metadata.version
) -> list[PreflightCheck]:
    """Check the versions of Python, fedsynth, its core packages and flwr (Flower) on this host.

    The first two numbers of flwr must be those of ``lockstep``, the version at the SuperLink, or else those that the
    installed fedsynth requires. Another version is a failure, no flwr or one whose SuperLink cannot work a warning.
    """
    core = [f"{name} {installed(name)}" for name in ("fedsynth", "numpy", "cryptography")]
    checks = [_ok("packages", ", ".join([f"python {platform.python_version()}", *core]))]
    try:
        here = installed("flwr")
    except importlib.metadata.PackageNotFoundError:
        mend = "a host that joins a federation needs it: pip install 'fedsynth[flower]'"
        return [*checks, _warning("flower", "flwr is not installed", mend)]
    minor = _minor(here)
    wanted = _minor(lockstep) if lockstep else _required_minor()
    if minor != wanted:
        who = f"the SuperLink has {lockstep}" if lockstep else f"this fedsynth is made for {wanted}"
        mend = f"all hosts upgrade together: pip install 'flwr=={wanted}.*'"
        return [*checks, _failure("flower", f"flwr {here} here, and {who}", mend)]
    if folder := folder_with_spaces():
        what = f"flwr {here} is in a folder with a space in its path, where its SuperLink makes no tables: {folder}"
        mend = "before this host is a server, install fedsynth in a folder without spaces; a site needs nothing"
        return [*checks, _warning("flower", what, mend)]
    return [*checks, _ok("flower", f"flwr {here}")]


def folder_with_spaces(path: Sequence[str] | None = None) -> str:
    """Return the folder of flwr (Flower) if there is a space in its path, else "".

    The SuperLink of flwr 1.41 joins the paths of its migrations with spaces, finds none of them there, and answers
    every request with an internal error. ``path`` lists the folders to look in, in place of ``sys.path``.
    """
    found = importlib.machinery.PathFinder.find_spec("flwr", path)
    folder = str(Path(found.origin).parent) if found and found.origin else ""
    return folder if " " in folder else ""


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _required_minor() -> str:
    """Return the first minor release of flwr that fedsynth's own metadata asks for."""
    for requirement in importlib.metadata.requires("fedsynth") or ():
        if found := re.match(r"flwr\b[^;]*>=\s*(\d+\.\d+)", requirement):
            return found[1]
    raise LookupError("fedsynth's metadata names no flwr; install the package anew")


def check_entropy() -> PreflightCheck:
    """Check that the system's random source is seeded, which it is not only shortly after a machine has started."""
    if not hasattr(os, "getrandom"):
        return _ok("entropy", f"{len(os.urandom(32))} bytes from the operating system")
    try:
        drawn = os.getrandom(32, os.GRND_NONBLOCK)
    except BlockingIOError:
        mend = "wait until the machine has been up for a while, or give it a virtio-rng device"
        return _failure("entropy", "the random source is not seeded yet", mend)
    return _ok("entropy", f"{len(drawn)} bytes from a seeded source")


def check_environment(host: str = "", environment: Mapping[str, str] = os.environ) -> list[PreflightCheck]:
    """Check the environment variables about proxies and TLS, which can break connections or give away their keys.

    ``host`` is the SuperLink's name without a port; if it is empty, only connections to this host itself are
    considered. A proxy that would carry those is a failure, and so is SSLKEYLOGFILE, which writes the keys of all
    connections to a file. A proxy that would carry connections to ``host``, and a variable that replaces the system's
    certificate authorities, are warnings.
    """
    checks = [_proxy(host, {name: value for name, value in environment.items() if value})]
    if environment.get("SSLKEYLOGFILE"):
        mend = "unset SSLKEYLOGFILE: it writes the keys of every TLS connection to a file"
        checks.append(_failure("tls environment", "SSLKEYLOGFILE is set", mend))
    elif trust := [name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE") if environment.get(name)]:
        mend = "these replace the system's authorities; Flower is told its own by --root-certificates"
        checks.append(_warning("tls environment", f"{', '.join(trust)} set", mend))
    return checks


def _proxy(host: str, environment: Mapping[str, str]) -> PreflightCheck:
    proxies = [name for name in sorted(environment) if name.lower() in ("http_proxy", "https_proxy", "all_proxy")]
    if not proxies:
        return _ok("proxy", "none in the environment")
    named, direct = ", ".join(proxies), {"no": environment.get("no_proxy") or environment.get("NO_PROXY", "")}
    asked = urllib.request.proxy_bypass_environment  # type: ignore[attr-defined]  # what Python's own clients ask
    if around := [one for one in ("127.0.0.1", "localhost") if not asked(one, direct)]:
        mend = "Flower's own processes talk over loopback: export NO_PROXY=localhost,127.0.0.1,$NO_PROXY"
        return _failure("proxy", f"{named} would also catch {' and '.join(around)}", mend)
    if host and not asked(host, direct):
        mend = f"if the proxy opens TLS, certificates will not match: add {host} to NO_PROXY, or let it tunnel"
        return _warning("proxy", f"{named} would carry connections to {host}", mend)
    return _ok("proxy", f"{named} set, and bypassed where it must be")


def check_private(name: str, path: Path) -> PreflightCheck:
    """Check that a secret file belongs to this user alone, by its permissions; a missing one is a warning."""
    mend = "run as the user that the site runs as"
    try:
        held = path.stat()
    except FileNotFoundError:
        return _warning(name, f"{path} is not there", "a site that never ran has none: fedsynth site join")
    except PermissionError:
        return _failure(name, f"{path} cannot be reached by this user", mend)
    if not POSIX:
        return _warning(name, NOT_CHECKED.format(path), ALLOW_NOBODY)
    mode = stat.S_IMODE(held.st_mode)
    if mode & 0o077:
        return _failure(name, f"{path} has mode {mode:o}: others may read or write", f"chmod go-rwx {path}")
    if held.st_uid != os.geteuid():
        return _failure(name, f"{path} belongs to user {held.st_uid}", mend)
    return _ok(name, f"{path} is its owner's alone (mode {mode:o})")


def check_state(folder: Path, mounts: Path = Path("/proc/mounts")) -> list[PreflightCheck]:
    """Check that the folder of a site's state is writable, roomy (100 MiB; less than 1 GiB warns) and on a local disk.

    ``mounts`` lists the mounted file systems in the format of ``/proc/mounts``; where it is missing, as on macOS and
    Windows, the disk's type is a warning. A network file system is a failure, since its locks are not reliable.
    """
    if not folder.is_dir():
        return [_failure("state", f"{folder} is not a folder", "fedsynth site join makes it")]
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        mend = "give the user that the site runs as the right to write there"
        return [_failure("state", f"{folder} cannot be written to ({error.strerror})", mend)]
    checks = [_ok("state", f"{folder} can be written to")]
    free = shutil.disk_usage(folder).free
    told = f"{free / 2**20:.0f} MiB free in {folder}"
    mend = "make room: an account that cannot be written stops the site" if free < _ROOMY else ""
    state: Literal["ok", "warning", "failure"] = "failure" if free < _TIGHT else "warning" if mend else "ok"
    checks.append(PreflightCheck("disk", state, told, mend))
    mend = "file locks over a network are not to be relied on; put the state on a local disk"
    if not mounts.is_file():
        checks.append(_warning("file system", f"whether {folder} is on a local disk was not checked", mend))
    elif (kind := _file_system(folder, mounts)) in _REMOTE:
        checks.append(_failure("file system", f"{folder} is on {kind}", mend))
    return checks


def _file_system(folder: Path, mounts: Path) -> str:
    entries = [line.split()[1:3] for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()]
    place = folder.resolve()
    # A later mount covers an earlier one of the same place.
    holding = [(len(point), n, kind) for n, (point, kind) in enumerate(entries) if place.is_relative_to(point)]
    return max(holding)[2] if holding else ""


def check_bind(address: str) -> PreflightCheck:
    """Check that a server on this host can listen at an address (HOST:PORT): it is free, and its port allowed."""
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            mend = "stop what holds it, or choose another port (below 1024 needs rights)"
            return _failure("bind", f"{address} cannot be bound ({error.strerror})", mend)
    return _ok("bind", f"{address} is free")


# ---------------------------------------------------------------------------------------------------------------------
# The host and the SuperLink


def check_roots(
    path: Path,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    name: str = "root certificates",
    mend: str = "ask the coordinator for the authority's certificate, in PEM",
) -> PreflightCheck:
    """Check that a file holds certificates (PEM), and that all of them are valid now and for 30 days (else a warning).

    ``mend`` is the fix for a file that is missing or unreadable, or whose certificates end.
    """
    from cryptography import x509

    if not path.is_file():
        return _failure(name, f"{path} is missing", mend)
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        return _failure(name, f"{path} holds no certificate that can be read", mend)
    end = min(one.not_valid_after_utc for one in found)
    if end < now():
        return _failure(name, f"{path} ended on {end:%Y-%m-%d}", mend)
    if max(one.not_valid_before_utc for one in found) > now():
        return _failure(name, f"{path} is not valid yet", "set this host's clock")
    return _lasting(name, f"{path}", end, now(), mend)


def check_superlink(address: str, roots: Path | None, clock: Callable[[], float] = time.time) -> list[PreflightCheck]:
    """Connect to the SuperLink, as a site would; check reachability, certificate and clock until one fails.

    ``roots`` is a file (PEM) of the certificate authorities to trust (``None``: the system's), ``clock`` returns this
    host's Unix time. Proxies are not used. Clocks are compared to about a second; Flower refuses a host that is more
    than 5 s ahead or 305 s behind, so that is a failure.
    """
    host, port = parse_address(address)
    try:
        plain = socket.create_connection((host, port), timeout=_TIMEOUT)
    except OSError as error:
        found = f"{address} cannot be reached ({error.strerror or error})"
        mend = "is it running, is the name right, does a firewall let this host through?"
        return [_failure("superlink", found, mend)]
    checks = [_ok("superlink", f"{address} can be reached")]
    with plain:
        try:
            context = ssl.create_default_context(cafile=None if roots is None else str(roots))
            tls = context.wrap_socket(plain, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            told = error.verify_message or "certificate verification failed"
            mend = _MESSAGES.get(error.verify_code, f"{address}: {told}")
            return [*checks, _failure("certificate", told, mend)]
        except (ssl.SSLError, OSError) as error:
            mend = "does it speak TLS on this port? is a proxy in between? is the root file a PEM file?"
            return [*checks, _failure("certificate", f"no TLS connection ({error})", mend)]
        with tls:
            held = tls.getpeercert() or {}
            end = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(held["notAfter"])), UTC)
            fits, mend = (
                f"chain and name are right ({tls.version()})",
                "the coordinator renews it with `fedsynth deploy admit`",
            )
            valid = _lasting("certificate", fits, end, datetime.now(UTC), mend)
            return [*checks, valid, _clock(tls, host, clock)]


def check_server(config: SiteConfig) -> list[PreflightCheck]:
    """Check, as :func:`check_superlink` does, the server that a site's file names; unreachable, it is a warning.

    It may not run yet, and a site whose messages are carried as files needs none.
    """
    unreached = "nothing, if it does not run yet or files are carried; else --machine looks at more"
    return [
        _warning(one.name, one.found, unreached) if (one.name, one.state) == ("superlink", "failure") else one
        for one in check_superlink(config.superlink, config.root_certificates)
    ]


def _lasting(name: str, what: str, end: datetime, now: datetime, mend: str) -> PreflightCheck:
    if (end - now).days < _SOON:
        return _warning(name, f"{what}; ends on {end:%Y-%m-%d}", f"in time: {mend}")
    return _ok(name, f"{what}; valid until {end:%Y-%m-%d}")


def _clock(tls: ssl.SSLSocket, host: str, clock: Callable[[], float]) -> PreflightCheck:
    """Compare this host's clock with the ``Date`` of one answer, exact to a second plus the network delay."""
    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT)
    connection.sock = tls
    mend = "synchronise this host's clock (chrony or systemd-timesyncd)"
    try:
        before = clock()
        connection.request("HEAD", "/")
        answer = connection.getresponse()
        after = clock()
        stated = parsedate_to_datetime(answer.headers["Date"] or "").timestamp()
    except (http.client.HTTPException, OSError, ValueError) as error:
        found = f"not compared: the server states no time ({type(error).__name__})"
        return _warning("clock", found, f"compare by hand; {mend}")
    ahead = before - (stated + 1) if before > stated + 1 else min(0.0, after - stated)
    found = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the SuperLink"
    if ahead > AHEAD or ahead < -BEHIND:
        found += f"; Flower refuses a node more than {AHEAD:.0f} s ahead or {BEHIND:.0f} s behind"
        return _failure("clock", found, mend)
    if abs(ahead) > AHEAD / 2:
        return _warning("clock", found, mend)
    return _ok("clock", f"within {AHEAD / 2:.1f} s of the SuperLink")


def examine(
    *,
    superlink: str = "",
    roots: Path | None = None,
    state: Path | None = None,
    private: Mapping[str, Path] | None = None,
    bind: Sequence[str] = (),
    lockstep: str = "",
) -> list[PreflightCheck]:
    """Run the preflight checks of a machine that the arguments ask for; a failure does not stop the others.

    Without ``superlink`` (HOST:PORT), certificate and clock are not checked. ``private`` maps names of checks to files
    that only their owner may read, ``bind`` holds addresses that servers on this host need, and ``lockstep`` is the
    version of flwr at the SuperLink. Raises :class:`~fedsynth.errors.InvalidParameter` for an address that is not
    HOST:PORT.
    """
    host = parse_address(superlink)[0] if superlink else ""
    checks = [*check_packages(lockstep), check_entropy(), *check_environment(host)]
    checks += [check_private(name, path) for name, path in (private or {}).items()]
    checks += check_state(state) if state is not None else []
    checks += [check_bind(address) for address in bind]
    checks += [check_roots(roots)] if roots is not None else []
    if superlink:
        checks += check_superlink(superlink, roots)
    else:
        checks.append(_warning("clock", "not compared", "give --superlink HOST:PORT"))
    return checks


# ---------------------------------------------------------------------------------------------------------------------
# A site


def check_host(
    config: SiteConfig | None,
    *,
    machine: bool = False,
    superlink: str = "",
    roots: Path | None = None,
    state: Path | None = None,
    private: Sequence[Path] = (),
    bind: Sequence[str] = (),
    lockstep: str = "",
) -> HostChecks:
    """Run the preflight checks of a site, of this machine, or of both; a failure does not stop the others.

    The machine is checked without a site's ``config``, with ``machine``, and if a further argument of :func:`examine`
    is given; ``superlink``, ``roots`` and ``state`` are by default the site's. Raises the errors of :func:`examine`.
    """
    checks = [] if config is None else list(check_site(config))
    guarded = {f"private file {path.name}": path for path in private}
    if config is None or machine or any((superlink, roots, state, private, bind, lockstep)):
        if config is not None:
            superlink = superlink or config.superlink
            roots, state = roots or config.root_certificates, state or config.state
            own = {"account and secret": config.account, "node key": config.key, "state folder": config.state}
            guarded = {**own, **guarded}
        checks += examine(superlink=superlink, roots=roots, state=state, private=guarded, bind=bind, lockstep=lockstep)
    else:
        checks += check_server(config)
    return HostChecks("" if config is None else config.name, tuple(checks))


def check_site(config: SiteConfig) -> Iterator[PreflightCheck]:
    """Yield the preflight checks of a deployed site; a failure does not stop the others.

    Nothing is sent, and no budget is spent. The rows are read; those of a file are kept, encoded, in the cache of the
    state folder, unless they are counted or streamed.
    """
    for name, look in (("rows", _rows), ("account", _account), ("policy", _policy)):
        yield _found(name, look, config)
    if (config.folder / INVITATION).is_file():
        yield _invited(config)
    yield _ok("coordinator", f"answers the coordinator of key {config.coordinator.hex()[:16]}... alone")
    yield _roster(config)
    yield check_roots(config.root_certificates)
    if config.certificate_key.exists():  # some sites connect in another way
        yield check_private("certificate key", config.certificate_key)
    if config.certificate.exists():
        mend = "fedsynth site join INVITATION again, and send the request: the admission brings the new certificate. "
        mend += "Then restart `fedsynth site serve`"
        yield check_roots(config.certificate, name="certificate", mend=mend)
    private = check_private("node key", config.key)
    yield _found("node key", _node_key, config) if private.state == "ok" else replace(private, state="failure")


def _found(name: str, look: Callable[[SiteConfig], str], config: SiteConfig) -> PreflightCheck:
    """Return the finding of ``look``, or the error that it raises, whose message includes the fix."""
    try:
        return _ok(name, look(config))
    except (FedsynthError, OSError) as error:
        code = 3 if isinstance(error, SchemaError) else 4 if isinstance(error, BudgetExceeded) else 8
        return _failure(name, str(error), code=code)


def _rows(config: SiteConfig) -> str:
    from fedsynth.data.read import check_table, kind_problems
    from fedsynth.data.sources.cells import AMBIGUOUS

    config.require_persons()
    schema = Schema.load(config.schema)
    private_folder(config.state)
    secret = site_secret(config) if config.account.is_file() else b""
    try:
        with rows_in_place(config, schema) or contextlib.nullcontext(
            load_rows(config, schema, secret, quiet=True)
        ) as table:
            rows, left_out = len(table), table.rows_read - len(table)
    except SchemaError as error:  # only the first fault; report all of them
        problems = check_table(config.data, schema).problems
        raise SchemaError(with_lines(f"{config.data} does not fit the schema", problems or [str(error)])) from error
    if kind_problems(config.data):
        raise SchemaError(with_lines(f"{config.data} does not fit", check_table(config.data, schema).problems))
    # Rows without a copy are read once more for the report only if some were left out.
    looked = config.holds_rows or left_out
    found = check_table(config.data, schema, persons=person_limit(config, secret)).problems if looked else []
    if twofold := [sentence for sentence in found if AMBIGUOUS in sentence]:
        raise SchemaError(with_lines(f"{config.data}: a run would take these cells for missing", twofold))
    if rows == 0:
        all_lost = f" (all {left_out} that were read are left out)" if left_out else ""
        head = f"{config.data} has no rows that fit the schema{all_lost}; correct them, or name the file that has some"
        raise SchemaError(with_lines(head, found))
    if config.policy.budget.delta > 1 / rows:
        below = 10.0 ** math.floor(math.log10(0.1 / rows))
        raise FedsynthError(
            f"[policy] delta = {in_full(config.policy.budget.delta)} is more than one over the {rows} rows, "
            f"{1 / rows:.2g}: that promises a single record nothing; choose one well below that, such as {below:g}, "
            "and agree with the coordinator on a job with the same"
        )
    told = f"{rows} rows fit schema {schema.digest[:12]}"
    told += f", {left_out} do not and are left out" if left_out else ""
    if rows > config.policy.timed_rows:
        told += f", more than the {config.policy.timed_rows} of timed_rows: how long training takes would show that"
    told += "; the schema is a DRAFT: its bounds and categories are not covered" if schema.drafted else ""
    if config.person:
        told += f"; at most {number_of(config.policy.unit.rows, 'row')} of each {config.person!r}"
    if not config.holds_rows:
        where = "streamed" if config.streamed else "counted where they are"
        told += f"; {where}, each question as the rows are then"
    if not looked:
        told += "; values that are clipped or recoded are not listed here (fedsynth schema check lists them)"
    return with_lines(told, found)


def _account(config: SiteConfig) -> str:
    account = open_account(config)
    site_secret(config, account)
    if fault := account.verify().wrong:
        raise FedsynthError(fault)
    told = account_text(site_spending(config, account))
    if config.policy.budget.share_of(account.spent_under(config.policy.change)) >= 1 - 1e-9:
        raise BudgetExceeded(f"{told}: nothing is left; only the data steward may raise [policy] budget")
    return told


def account_text(spending: Spending) -> str:
    """Return a clause that tells a site's steward how much is spent, how many runs are open, and the last audit row.

    It also says whether the policy demands a larger unit than the account has, which then re-prices what is spent, and
    whether answers without noise were given, after which nothing is guaranteed.
    """
    limit, spent, demanded = spending.limit, spending.spent, spending.demanded
    at = f" at delta = {in_full(limit.delta)}" if limit.delta else ""
    ended = "; releases without noise were made, so nothing is guaranteed" if spending.exact_releases else ""
    change = demanded if spent == Cost() else spending.change
    if demanded != change:
        ended += (
            f"; nothing is answered: {spending.refusal}"
            if spending.repriced is None
            else f"; for {demanded}, as [policy] demands now, it is epsilon = "
            f"{rounded_up(spending.repriced.at(limit.delta))}"
        )
    return (
        f"spent epsilon = {rounded_up(spent.at(limit.delta))} of {in_full(limit.epsilon)}{at} for {change}, "
        f"{spending.open_runs} open runs, audit row {spending.row}{ended}"
    )


def _policy(config: SiteConfig) -> str:
    policy = among_peers(config, site_secret(config)) if config.peers else config.policy
    alone = [name for name, trust in policy.trusts.items() if trust.sums and trust.sums.turns > 1 and not config.peers]
    if alone:
        raise FedsynthError(
            f"the trust {alone[0]} needs the roster of all sites, which comes with the admission: fedsynth site join"
        )
    planned = {slot.kind for plan in policy.plans.values() for slot in plan.slots}
    for kind in {*policy.kinds, *planned}:
        asked = query_class(kind, policy.kinds)
        if issubclass(asked, Training):
            asked.require()
    if not policy.plans and not policy.any_plan:
        raise FedsynthError(
            "no plan is approved, so that nothing is answered; write digest and file of one into [policy.plans], or "
            'plans = "any" into [policy]'
        )
    holds = "".join(f" ({trust.assumption})" for trust in policy.trusts.values() if trust.assumption)
    unlimited = "a run is limited by its plan" if policy.plans else "one run may spend everything"
    per_run = f"epsilon {policy.per_run.epsilon:g} a run" if policy.per_run else unlimited
    size = "public" if policy.size_is_public else "secret"
    plans = number_of(len(policy.plans), "approved plan") if policy.plans else "ANY run, planned or not"
    exact = "; RELEASES WITHOUT NOISE are allowed: nothing is guaranteed" if policy.exact else ""
    others = "".join(f"; asks of {place} are answered" for place in policy.kinds.values())
    return (
        f"trusts {', '.join(sorted(policy.trusts))}{holds}; {per_run}; the number of rows is {size}; {plans}, "
        f"{number_of(len(config.peers), 'site')} in the roster{others}{exact}"
    )


def _invited(config: SiteConfig) -> PreflightCheck:
    """Compare the run that the invitation names with the policy, which may rightly refuse it."""
    run, policy = load(config.folder / INVITATION, Invitation).terms, config.policy
    asked, limit = Budget(run.epsilon, run.delta), policy.per_run or policy.budget
    told = f"the invitation names {run.method} under {run.trust}, epsilon {in_full(run.epsilon)} at delta "
    told += in_full(run.delta)
    against = []
    if policy.methods and run.method not in policy.methods:
        against.append(f"methods are {', '.join(sorted(policy.methods))}")
    if run.trust not in policy.trusts:
        against.append(f"trusts are {', '.join(sorted(policy.trusts)) or 'none'}")
    if not (policy.plans or policy.exact or limit.covers(Cost.of(asked.amount, pure=asked.pure))):
        which = "per_run" if policy.per_run else "budget"
        against.append(f"{which} is epsilon {in_full(limit.epsilon)} at delta {in_full(limit.delta)}")
    if run.rows_per_person < policy.unit.rows or run.sites_per_person < policy.unit.sites:
        against.append(f"unit is rows = {policy.unit.rows}, sites = {policy.unit.sites}")
    if not against:
        return _ok("intended run", told)
    mend = "if it shall refuse that run, nothing; else change site.toml, or agree on another run with the coordinator"
    return _warning("intended run", f"{told}, and [policy] refuses it: {'; '.join(against)}", mend)


def _roster(config: SiteConfig) -> PreflightCheck:
    if config.roster is None:
        mend = f"send {config.name}.request to the coordinator; fedsynth site join takes the admission that comes back"
        return _warning("roster", "this site is not admitted yet", mend)
    found = f"{number_of(len(config.peers), 'site')}, fingerprint {config.roster.roster.fingerprint}"
    if lacking := config.roster.unsigned:
        told = f"{found}; NOT signed by all: {', '.join(lacking)} did not say that they have the same one"
        mend = "they run fedsynth site join and send what it writes; then take the coordinator's newest admission"
        return _warning("roster", told, mend)
    return _ok("roster", f"{found}; signed by all")


def _node_key(config: SiteConfig) -> str:
    unfit = f"{config.key} is not a key that Flower accepts ({{error}}); move it away and run fedsynth site join again"
    with said(unfit, TypeError, ValueError):  # the first for a key with a passphrase
        public = public_part(config.key.read_bytes())
    return f"{public.split()[0]}, sha256 {hashlib.sha256(public.encode()).hexdigest()[:16]}"

"""A site's state on its own disk, from which the :class:`Site` that answers is made, for stewards and for transports.

Rule 1: what a site must never lose is created by :func:`create_state` alone. An account that is gone is an error:
    a fresh one would forget what was spent. Rule 2: account and secret live in one file, so that no backup
    can restore one without the other: old charges with a new secret would release the same rows twice.
Rule 3: whatever holds rows or secrets is readable by its owner only. Rule 4: a transport hands bytes in and carries
    bytes out (:func:`answer`); whatever goes wrong here leaves as one of the codes of a reply, never as a text.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedsynth.errors import FedsynthError
from fedsynth.federation.policy import Policy
from fedsynth.federation.site import Site, digest_of
from fedsynth.federation.trust.secure.masking import identity
from fedsynth.federation.wire import Seen, write_reply
from fedsynth.files import private_folder, write_private, write_whole
from fedsynth.host.config import SiteConfig
from fedsynth.host.rows import RunRows, is_exposed
from fedsynth.privacy.account import Account
from fedsynth.schema import Schema

SECRET = "site"  # its name in the account's file
NODE_SECRET = "superexec.secret"  # beside site.toml, named as Flower names its kind
_log = logging.getLogger(__name__)


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
    return Site(config.name, rows, among_peers(config, secret), account, secret, config.coordinator, rows.digest)


def site_secret(config: SiteConfig, account: Account | None = None) -> bytes:
    """Return the secret that :func:`create_state` drew: the key of the site's noise, and of its identity."""
    secret = (account or open_account(config)).secret(SECRET, b"")  # never a fresh one
    if not secret:
        raise FedsynthError(
            f"{config.account} holds no secret, so fedsynth did not make it; restore it from the backup"
        )
    return secret


def require_state(config: SiteConfig) -> None:
    """Raise :class:`FedsynthError` unless the account is there and private to its owner."""
    if not config.account.is_file():
        raise FedsynthError(
            f"{config.account} is missing; restore it from the backup if this site ever answered (a new one forgets "
            "what was spent); for a new site, `fedsynth site join` makes it from the invitation"
        )
    for path in (config.state, config.account):
        if is_exposed(path):
            raise FedsynthError(f"{path} can be read by other users; run chmod go-rwx {path}")


def make_node_secret(path: Path) -> None:
    """Draw what a SuperNode and ``fedsynth site serve`` know each other by, if there is none yet."""
    if not path.exists():
        write_private(path, os.urandom(32))


def node_secret(path: Path) -> bytes:
    """Return what :func:`make_node_secret` drew; raises :class:`FedsynthError` where others could read it."""
    if not path.is_file() or not path.stat().st_size:
        raise FedsynthError(f"{path} is missing or empty; `fedsynth site join` makes it, the SuperNode needs the same")
    if is_exposed(path):
        raise FedsynthError(f"{path} can be read by other users; run chmod go-rwx {path}")
    return path.read_bytes()


def make_node_key(path: Path) -> str:
    """Return the public key of the node, having made a private one (P-384, OpenSSH format) if there was none."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if not path.exists():
        private = ec.generate_private_key(ec.SECP384R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        write_private(path, private)
    public = public_part(path.read_bytes())
    write_whole(path.with_name(path.name + ".pub"), public + "\n")
    return public


def public_part(private: bytes) -> str:
    """Return the public key of a private one, as OpenSSH writes it; raises ``ValueError`` unless Flower takes it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = serialization.load_ssh_private_key(private, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic-curve key of the ECDSA kind")
    form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return key.public_key().public_bytes(*form).decode()


# ---------------------------------------------------------------------------------------------------------------------
# Messages


class Answers(NamedTuple):
    """Replies to messages, and the ``seconds`` that they may take to make, by public numbers alone."""

    replies: list[bytes]
    seconds: float = 0.0


def answer(config: SiteConfig, messages: Sequence[bytes], refuse: str = "") -> Answers:
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
        return Answers([_turned_down(config, data, reason, refused=bool(refuse)) for data in messages])
    seconds = sum(site.seconds(data) for data in messages)
    return Answers([site.answer(data) for data in messages], seconds)


def wait_until_due(
    began: float,
    every: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    *,
    seconds: float = 0.0,
) -> None:
    """Sleep until the first whole multiple of ``every`` seconds after ``began``, both on the same clock.

    Replies that may take ``seconds`` leave at multiples of the next whole multiple of ``every`` above that. Every reply
    leaves then, whatever is in it: the time that an answer took shows in these steps only, be it for the number of rows
    or for what they hold.
    """
    if every <= 0:
        return
    every *= max(1, math.ceil(seconds / every))
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


def among_peers(config: SiteConfig, secret: bytes) -> Policy:
    """Return the policy, its trusts told who the sites of the roster are."""
    if not config.peers:
        return config.policy
    if config.peers[config.name] != identity(secret):
        raise FedsynthError(
            f"the roster gives {config.name} a key that is not this site's own: somebody put another one in its place, "
            "or this folder has another site's account; ask the coordinator"
        )
    trusts = {name: trust.among(config.peers) for name, trust in config.policy.trusts.items()}
    return dataclasses.replace(config.policy, trusts=trusts)

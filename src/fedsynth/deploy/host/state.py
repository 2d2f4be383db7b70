"""A site's state on its own disk, from which commands and transports make the :class:`Site` that answers.

Rule 1: the account (the site's record of spent budget) and the secret are created by :func:`create_state` alone. A
missing account is an error, since a new one would forget what was spent. Rule 2: account and secret are in one file, so
that no backup can restore one without the other: old charges with a new secret would release the same rows twice. Rule
3: all files with rows or secrets are readable by their owner only. Rule 4: transports pass bytes in and out
(:func:`answer`); an error here leaves the site only as a reply's code, never as text.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedsynth.deploy.host.config import SiteConfig, load_site_config
from fedsynth.deploy.host.rows import RunRows, close_idle_runs, close_run
from fedsynth.errors import FedsynthError, is_fault, reason_of
from fedsynth.federation.ending import is_end, read_end, write_acknowledgement
from fedsynth.federation.policy import Policy
from fedsynth.federation.site import Site, SiteReply
from fedsynth.federation.wire import (
    UNKNOWN,
    AuditPosition,
    ReplyHead,
    WireError,
    read_request,
    write_answer,
    write_reply,
)
from fedsynth.files import private_folder, write_private, write_whole
from fedsynth.keys import Keys, SecretBytes
from fedsynth.platforms import is_exposed
from fedsynth.privacy.book import Book
from fedsynth.schema import Schema

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

SECRET = "site"  # name of the site's secret in the account's file
_SWEEP = 3600.0  # s between two searches for idle runs
_log = logging.getLogger(__name__)


def create_state(config: SiteConfig) -> bool:
    """Create a new site's state folder, account and secret; ``False`` if there was an account: it is never changed."""
    private_folder(config.state)
    if config.account.exists():
        return False
    fresh = config.state / f".account.{os.getpid()}"
    try:
        Book(fresh).first("", SECRET, os.urandom(32))
        try:
            os.link(fresh, config.account)  # unlike a rename, refuses to replace an account made meanwhile
        except FileExistsError:
            return False
    finally:
        fresh.unlink(missing_ok=True)
    return True


def open_account(config: SiteConfig) -> Book:
    """Open a site's account; raises what :func:`require_state` raises, and :class:`FedsynthError` for a damaged one."""
    require_state(config)
    return Book(config.account)


def open_site(config: SiteConfig) -> Site:
    """Return the site of a configuration, ready to answer; its rows are not opened before a question is charged.

    Raises :class:`~fedsynth.errors.FedsynthError` for a file of the configuration that is missing or cannot be used.
    """
    account = open_account(config)
    secret = site_secret(config, account)
    rows = RunRows(config, Schema.load(config.schema), account, secret)
    return Site(config.name, rows, among_peers(config, secret), account, secret, config.coordinator, rows.digest)


def site_secret(config: SiteConfig, account: Book | None = None) -> bytes:
    """Return the secret (32 bytes) that :func:`create_state` drew: the key of the site's noise, and of its identity.

    ``account`` is the site's if it is open already. Raises :class:`~fedsynth.errors.FedsynthError` if it is missing or
    holds no secret.
    """
    secret = (account or open_account(config)).said("", SECRET)
    if not secret:
        raise FedsynthError(
            f"{config.account} holds no secret, so fedsynth did not make it; restore it from the backup"
        )
    return SecretBytes(secret)


def require_state(config: SiteConfig) -> None:
    """Raise :class:`~fedsynth.errors.FedsynthError` unless a site's account exists and only its owner can read it."""
    if not config.account.is_file():
        raise FedsynthError(
            f"{config.account} is missing; restore it from the backup if this site ever answered (a new one forgets "
            "what was spent); for a new site, `fedsynth site join` creates it from the invitation"
        )
    for path in (config.state, config.account):
        if is_exposed(path):
            raise FedsynthError(f"{path} can be read by other users; run chmod go-rwx {path}")


def make_node_key(path: Path) -> str:
    """Return a node's public key (OpenSSH); create both keys if ``path`` is missing, the public one as ``NAME.pub``."""
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
    """Return the public key (OpenSSH text) of a private key; raises the errors of :func:`load_node_key`."""
    from cryptography.hazmat.primitives import serialization

    form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return load_node_key(private).public_key().public_bytes(*form).decode()


def load_node_key(private: bytes) -> EllipticCurvePrivateKey:
    """Return a node's private key from the bytes of an OpenSSH file.

    Raises ``ValueError`` for a key of a type that Flower does not accept, and ``TypeError`` for one with a passphrase.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = serialization.load_ssh_private_key(private, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic-curve key of the ECDSA kind")
    return key


# ---------------------------------------------------------------------------------------------------------------------
# Messages


class TimedReplies(NamedTuple):
    """A site's replies to messages, in the messages' order, and the time (s) to allow for making them.

    It depends on public numbers alone, never on rows; :func:`wait_until_due` uses it.
    """

    replies: list[bytes]
    seconds: float = 0.0


def answer(config: SiteConfig, messages: Sequence[bytes]) -> TimedReplies:
    """Return a site's reply to each message that a transport received, as bytes of the wire; never raises.

    The reason of an error is written only to the site's own log and account. A message that a run has ended is answered
    by :func:`end_of_run`.
    """
    try:
        site: Site | Exception = open_site(config)
    except Exception as error:
        _log.warning("site %s: %s", config.name, reason_of(error))
        site = error
    replies = [_reply(config, site, data) for data in messages]
    return TimedReplies([reply.data for reply in replies], sum(reply.seconds for reply in replies))


def _reply(config: SiteConfig, site: Site | Exception, data: bytes) -> SiteReply:
    """Return the reply to one message by ``site``, or the error for which it could not be opened."""
    if is_end(data):
        return SiteReply(end_of_run(config, data))
    if isinstance(site, Site):
        return site.answer(data)
    return SiteReply(_failed(config, data, reason_of(site)))


def end_of_run(config: SiteConfig, data: bytes) -> bytes:
    """Close the run that has ended, as the message ``data`` says, and return the site's acknowledgement; never raises.

    A run that is unknown or closed already is acknowledged without any effect. The result is empty, and the reason in
    the site's log, if the site's coordinator did not sign the message, or the run cannot be closed now.
    """
    try:
        run = read_end(data, config.coordinator).run
        account = open_account(config)
        if account.pinned(run) is not None and (questions := close_run(config, account, run, "coordinator")):
            _log.info("site %s: run %s has ended after %d questions and is closed", config.name, run, questions)
        return write_acknowledgement(Keys(site_secret(config, account)).seed, config.name, data)
    except Exception as error:
        _log.warning("site %s: the end of a run has no effect: %s", config.name, error)
        return b""


def wait_until_due(
    began: float,
    every: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    *,
    seconds: float = 0.0,
) -> None:
    """Sleep until a reply may leave: at the end of a whole number of time steps since its message came at ``began``.

    A step lasts ``every`` seconds, or, if ``seconds`` is longer, its smallest multiple that is not shorter. So the time
    of an answer, which may depend on the number of rows and their values, shows only in whole steps. If ``every`` is
    not positive, the function returns at once.
    """
    if every <= 0:
        return
    every *= max(1, math.ceil(seconds / every))
    due = began + every * max(1, math.ceil((clock() - began) / every))
    while (left := due - clock()) > 0:
        sleep(left)


class IdleRuns:
    """Closes the idle runs (:func:`~fedsynth.deploy.host.rows.close_idle_runs`) of a site that waits for messages."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the parameters and read nothing yet."""
        self._folder = folder
        self._clock = clock
        self._due = -math.inf

    def close(self) -> None:
        """Close the idle runs at the first call, and at calls an hour or more after the last time; never raises."""
        if self._clock() < self._due:
            return
        self._due = self._clock() + _SWEEP
        try:
            config = load_site_config(self._folder)
            close_idle_runs(config, open_account(config))
        except Exception as error:
            _log.warning("idle runs could not be closed: %s", error)


def _failed(config: SiteConfig, data: bytes, reason: str) -> bytes:
    """Return the reply to a message for which the site could not be opened; empty if no account can sign it."""
    try:
        account = open_account(config)
        seed = Keys(site_secret(config, account)).seed
    except Exception as error:
        said = reason_of(error)
        _log.error(
            "site %s: no reply can be signed without the account: %s", config.name, said, exc_info=is_fault(error)
        )
        return b""
    try:
        found = read_request(data, config.name, config.coordinator)
    except WireError as error:
        _log.warning("site %s: %s", config.name, error)
        return write_reply(seed, config.name, UNKNOWN, write_answer("failed", AuditPosition()))
    seen = AuditPosition()
    try:
        seen = AuditPosition.signed(seed, config.name, *account.note("failed", request=found.message, reason=reason))
    except Exception as error:  # the account itself may be the fault
        said = reason_of(error)
        _log.error("site %s: the account cannot be written to: %s", config.name, said, exc_info=is_fault(error))
    return write_reply(seed, config.name, ReplyHead(found.digest, found.message), write_answer("failed", seen))


def among_peers(config: SiteConfig, secret: bytes) -> Policy:
    """Return a site's policy with the keys of the other parties, which some of its trust models need.

    They are the identity keys of the roster and, for ``three-servers``, the compute servers' keys, from the cards in
    the site's folder. A site without a roster gets its policy unchanged. Raises :class:`~fedsynth.errors.FedsynthError`
    if the roster holds another key than the site's own under its name, or if these cards are missing.
    """
    if not config.peers:
        return config.policy
    if config.peers[config.name] != Keys(secret).identity:
        raise FedsynthError(
            f"the roster gives {config.name} a key that is not this site's own: somebody put another one in its place, "
            "or this folder has another site's account; ask the coordinator"
        )
    trusts = {
        name: trust.with_roster(config.peers).pinned(config.folder) for name, trust in config.policy.trusts.items()
    }
    return dataclasses.replace(config.policy, trusts=trusts)

"""Connections of three servers with each other and with a coordinator: TLS 1.3, with certificates known beforehand.

Rule 1: a server's certificate is signed by its own identity key, and by nobody else. A client accepts only the
    certificate in the server's :class:`ServerCard`. A client that presents a certificate must be one of the two other
    servers; a client without one must sign a challenge as the coordinator before anything else is read.
Rule 2: every call of the coordinator and every result is a length and a frame of the wire format, of at most
    :data:`LARGEST_MESSAGE` bytes.
Rule 3: each draw has connections of its own, one in each direction between two servers, and its own form of messages
    (`draw`).
"""

from __future__ import annotations

import datetime
import hashlib
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedsynth.errors import FedsynthError
from fedsynth.federation.names import parse_address
from fedsynth.federation.wire import LARGEST_MESSAGE, WireError
from fedsynth.files import write_private
from fedsynth.keys import KEY_BYTES, Keys
from fedsynth.servers.draw import DrawFailed
from fedsynth.servers.shares import SERVERS

_LENGTH = struct.Struct("<I")
_CHUNK = 2**16
_PAUSE = 1.0  # s before the port is listened at again, after an error
_HELLO = 32
HANDSHAKE = 20.0
"""Time limit in seconds to establish a connection, and for a client to identify itself."""


class ServerCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The public data of a compute server, which all others pin: they store it and accept no other in its place.

    ``address`` is the HOST:PORT at which it listens, ``public`` its identity key (Ed25519, for signatures) and its box
    key (X25519, to encrypt for it) in hexadecimal, and ``certificate`` its TLS certificate (PEM).
    :class:`FedsynthError` is raised for an invalid address, or a certificate that its identity key did not sign.
    """

    address: str
    public: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{128}\Z")]
    certificate: str

    def __post_init__(self) -> None:
        parse_address(self.address)
        try:
            found = x509.load_pem_x509_certificate(self.certificate.encode())
            found.verify_directly_issued_by(found)
            key = found.public_key()
        except Exception as error:
            raise FedsynthError(
                f"the certificate of the server at {self.address} cannot be read ({error}); get its card again"
            ) from error
        if not isinstance(key, Ed25519PublicKey) or key.public_bytes_raw() != self.keys[:KEY_BYTES]:
            raise FedsynthError(
                f"the certificate of the server at {self.address} does not hold its identity key; get its card again"
            )

    @property
    def keys(self) -> bytes:
        """Both public keys (64 bytes)."""
        return bytes.fromhex(self.public)

    @cached_property
    def der(self) -> bytes:
        """The certificate in DER, as it is presented when a connection begins."""
        return x509.load_pem_x509_certificate(self.certificate.encode()).public_bytes(serialization.Encoding.DER)


def card_of(secret: bytes, address: str) -> ServerCard:
    """Return the card of the server with this ``secret`` (32 bytes), the same each time."""
    return ServerCard(address, Keys(secret).public.hex(), _certificate(secret))


def _certificate(secret: bytes) -> str:
    key = _signing(secret)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, Keys(secret).identity.hex())])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(int.from_bytes(hashlib.sha256(Keys(secret).identity).digest()[:16]))
        .not_valid_before(datetime.datetime(2020, 1, 1))
        .not_valid_after(datetime.datetime(9999, 12, 31, 23, 59, 59))  # pinned: no date makes it another one
        .sign(key, None)
    )
    return made.public_bytes(serialization.Encoding.PEM).decode()


def _signing(secret: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(Keys(secret).seed)


def _context(purpose: int, cards: Sequence[ServerCard], own: bytes | None) -> ssl.SSLContext:
    """Return a context that trusts these cards alone, and presents the certificate made from the secret ``own``."""
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate itself is pinned
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata="\n".join(card.certificate for card in cards))
    if own is not None:
        key = _signing(own).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with tempfile.TemporaryDirectory() as folder:  # Python reads keys from files alone
            write_private(Path(folder, "key"), key)
            write_private(Path(folder, "certificate"), _certificate(own))
            context.load_cert_chain(Path(folder, "certificate"), Path(folder, "key"))
    return context


def connect(card: ServerCard, own: bytes | None, timeout: float) -> ssl.SSLSocket:
    """Return a TLS connection to the server of a ``card``.

    If a server connects, ``own`` is its secret, which proves who it is; for the coordinator it is ``None``. Every later
    operation may take ``timeout`` seconds. Raises :class:`OSError` if the connection cannot be established, or for
    another certificate than the card's.
    """
    raw = socket.create_connection(parse_address(card.address), timeout=min(timeout, HANDSHAKE))
    try:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made = _context(ssl.PROTOCOL_TLS_CLIENT, [card], own).wrap_socket(raw)
        if made.getpeercert(binary_form=True) != card.der:
            raise OSError("its certificate is not the pinned one")
    except BaseException:
        raw.close()
        raise
    made.settimeout(timeout)
    return made


def send(connection: socket.socket, data: bytes) -> None:
    """Send one frame: the length of ``data``, then ``data``. Raises :class:`OSError` if the connection is broken."""
    connection.sendall(_LENGTH.pack(len(data)) + data if len(data) < _CHUNK else _LENGTH.pack(len(data)))
    if len(data) >= _CHUNK:
        connection.sendall(data)


def receive(connection: socket.socket, most: int = LARGEST_MESSAGE) -> bytes:
    """Return the bytes of the next frame.

    Raises :class:`OSError` if the connection ended, and :class:`WireError` for a frame of more than ``most`` bytes.
    """
    (size,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if size > most:
        raise WireError(f"a message of {size} bytes is too large (at most {most})")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(min(size - len(found), 2**20))
        if not part:
            raise ConnectionError("the connection ended")
        found += part
    return bytes(found)


@dataclass
class DrawLink:
    """The link of a server to another one for one draw (:class:`~fedsynth.servers.draw.Link`), of two connections."""

    outgoing: socket.socket
    incoming: socket.socket

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.outgoing.sendall(data)

    def receive(self, size: int | None = None) -> bytes:
        """Wait for bytes and return them; none if the connection ended or timed out."""
        try:
            return self.incoming.recv(_CHUNK) if size is None else _exactly(self.incoming, size)
        except OSError:  # broken or silent: what is missing shows that it ended
            return b""

    def finish(self) -> None:
        """Tell the other server that nothing more will be sent."""
        _end(self.outgoing)

    def close(self) -> None:
        """Close both connections."""
        for connection in (self.outgoing, self.incoming):
            _end(connection)
            connection.close()


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it has ended already
        return


@dataclass(eq=False)
class Meetings:
    """Establishes a compute server's connections for joint draws: it connects to the two others, and is given theirs.

    ``position`` is this server's number among the ``cards``, and ``secret`` its own secret.
    """

    cards: Sequence[ServerCard]
    position: int
    secret: bytes = field(repr=False)
    _waiting: dict[tuple[int, bytes], socket.socket] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def offer(self, other: int, connection: socket.socket) -> None:
        """Keep a connection that server number ``other`` has opened until the draw for which it was made uses it.

        The first 32 bytes on it name the draw. Only one such connection of each other server is kept: an unused older
        one is closed.
        """
        purpose = _exactly(connection, _HELLO)
        with self._changed:
            for key in [key for key in self._waiting if key[0] == other]:  # a server takes part in one draw at a time
                self._waiting.pop(key).close()
            self._waiting[other, purpose] = connection
            self._changed.notify_all()

    def links(self, purpose: bytes, patience: float, timeout: float) -> Mapping[int, DrawLink]:
        """Return links to both other servers, by their numbers, for the draw that ``purpose`` (32 bytes) identifies.

        The others must connect within ``patience`` seconds, and send each message within ``timeout`` seconds. Raises
        :class:`DrawFailed`, naming a server that is missing.
        """
        made: dict[int, DrawLink] = {}
        outgoing: dict[int, socket.socket] = {}
        others = [other for other in range(SERVERS) if other != self.position]
        try:
            for other in others:
                outgoing[other] = self._outgoing(other, purpose, timeout)
            until = time.monotonic() + patience
            for other in others:
                made[other] = DrawLink(outgoing[other], self._incoming(other, purpose, until))
                made[other].incoming.settimeout(timeout)
        except BaseException:
            for connection in (*outgoing.values(), *(link.incoming for link in made.values())):
                connection.close()
            raise
        return made

    def _outgoing(self, other: int, purpose: bytes, timeout: float) -> socket.socket:
        try:
            connection = connect(self.cards[other], self.secret, timeout)
            connection.sendall(purpose)
        except OSError as error:
            raise DrawFailed(f"server {other + 1} cannot be reached ({error}); restart it") from error
        return connection

    def _incoming(self, other: int, purpose: bytes, until: float) -> socket.socket:
        with self._changed:
            while (other, purpose) not in self._waiting:
                if not self._changed.wait(until - time.monotonic()):
                    raise DrawFailed(f"server {other + 1} did not join the draw in time")
            return self._waiting.pop((other, purpose))


@dataclass(eq=False)
class Listener:
    """The port of a compute server, at which it accepts the two other servers and the coordinator.

    For each client ``serve(number, connection)`` is called in a thread of its own; ``number`` is the client's number if
    it is a server, or ``None`` for a client without a certificate, which may be the coordinator. ``failed(error)`` is
    called for a client that was rejected, whose ``serve`` failed, or that could not be accepted, such as for too many
    open files.
    """

    cards: Sequence[ServerCard]
    position: int
    secret: bytes = field(repr=False)
    serve: Callable[[int | None, ssl.SSLSocket], None]
    failed: Callable[[Exception], Any]

    def __post_init__(self) -> None:
        others = [card for number, card in enumerate(self.cards) if number != self.position]
        self._context = _context(ssl.PROTOCOL_TLS_SERVER, others, self.secret)
        self._context.verify_mode = ssl.CERT_OPTIONAL
        self._context.num_tickets = 0  # nothing is left unread on a connection that is written in one direction
        address = parse_address(self.cards[self.position].address)
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.create_server(address, family=family, backlog=64)
        self._closed = threading.Event()

    def run(self) -> None:
        """Accept clients until another thread calls :meth:`close`, each in a thread of its own."""
        while True:
            try:
                raw, _ = self._socket.accept()
                threading.Thread(target=self._accept, args=(raw,), daemon=True).start()
            except (OSError, RuntimeError) as error:  # too many open files, or threads; or closed
                if self._closed.is_set():
                    return
                self.failed(error)
                self._closed.wait(_PAUSE)

    def close(self) -> None:
        """Stop accepting clients."""
        self._closed.set()
        _end(self._socket)
        self._socket.close()

    def _accept(self, raw: socket.socket) -> None:
        try:
            raw.settimeout(HANDSHAKE)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = self._context.wrap_socket(raw, server_side=True)
        except (OSError, ValueError) as error:
            raw.close()
            self.failed(error)
            return
        shown = client.getpeercert(binary_form=True)
        known = {card.der: number for number, card in enumerate(self.cards) if number != self.position}
        try:
            self.serve(known[shown] if shown else None, client)
        except Exception as error:  # a client must not end the server
            client.close()
            self.failed(error)

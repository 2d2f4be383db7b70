"""The server's state on disk: of a deployed run, until it is complete, and of its federation, for all runs."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec

from fedsynth.errors import FedsynthError, InvalidParameter
from fedsynth.federation.transport import Message, Transport
from fedsynth.federation.wire import AuditPosition, Reply
from fedsynth.files import load_json, private_folder, write_private
from fedsynth.keys import KEY_BYTES, Keys, SecretBytes
from fedsynth.locks import exclusive
from fedsynth.platforms import is_exposed

FORMAT = 1  # of run.json
SEEN_FORMAT = 1  # of seen.json
COORDINATOR = "coordinator.key"  # beside the job: the secret that signs requests and opens confidential answers


def load_coordinator(folder: Path) -> Keys:
    """Load the coordinator's secret: the key that signs requests and opens sealed answers.

    It is never created here, since sites answer only the coordinator whose key they got when they joined. Raises
    :class:`~fedsynth.errors.FedsynthError` if it is missing, damaged or readable by others.
    """
    file = folder / COORDINATOR
    if not file.is_file():
        raise FedsynthError(
            f"{file} is missing; restore it from the backup. If it is lost for good, set the federation up again: "
            "every site must then join again, and keeps its account"
        )
    if is_exposed(file):
        raise FedsynthError(f"{file} can be read by other users; run chmod go-rwx {file}")
    try:
        secret = bytes.fromhex(file.read_text(encoding="ascii"))
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise FedsynthError(f"{file} holds no coordinator's secret; restore it from the backup")
    return Keys(secret)


@contextmanager
def claimed(state: Path) -> Iterator[None]:
    """A context manager that locks a run for this process; ``state`` is its state folder, created if missing.

    If two servers asked under one run name, the sites would be charged for the questions of both. Raises
    :class:`~fedsynth.errors.FedsynthError` if another process holds the lock.
    """
    busy = f"the run {state.name!r} is in progress in another process; wait for that, or stop it"
    with exclusive(private_folder(state) / "lock", busy):
        yield


_Hex = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Witnessed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of ``seen.json``: each site's last audit row that a reply showed, with the site's signature."""

    format: int
    seen: dict[str, str]  # AuditPosition, as the text that `fedsynth account --restored` takes


class _Begun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of ``run.json``: the digest of job and schema, the seed of public draws, and the server's secret."""

    format: int
    job: _Hex
    seed: int
    secret: _Hex

    def __repr__(self) -> str:
        return f"{type(self).__name__}(job={self.job!r})"


class WitnessTransport:
    """Wraps a run's transport, and stores the last audit row that each reply names before it passes the reply on.

    A site whose account was restored from an old backup lacks the row that the server saw and names in its requests,
    and so refuses them; this works even after a power failure at the server. ``seen`` maps names of sites to the last
    row seen in this run and earlier ones. All runs of a federation share the file, which keeps the newest row of each
    site.
    """

    def __init__(self, transport: Transport, file: Path) -> None:
        """Wrap ``transport``, and read the rows seen in earlier runs from ``file`` (``seen.json``), if it exists."""
        self._transport = transport
        self._file = file
        self.seen = self._written()

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites that can be reached."""
        return self._transport.sites

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Send the messages, and yield each reply after its audit row is on disk."""
        for reply in self._transport.exchange(messages):
            if reply.seen.row > self.seen.get(reply.site, AuditPosition()).row:
                self.seen[reply.site] = reply.seen
                self._write()
            yield reply

    def _written(self) -> dict[str, AuditPosition]:
        if not self._file.exists():
            return {}
        mend = (
            "use the fedsynth that wrote it, or restore the file from the backup: without it, a site's outdated "
            "account goes unnoticed"
        )
        told = load_json(self._file, _Witnessed, "what the server saw of the sites' audits", mend, SEEN_FORMAT)
        try:
            return {site: AuditPosition.parse(text) for site, text in told.seen.items()}
        except InvalidParameter as error:
            raise FedsynthError(f"{self._file} is damaged ({error}); {mend}") from error

    def _write(self) -> None:
        with exclusive(self._file.with_suffix(".lock")):
            for site, known in self._written().items():
                self.seen[site] = max(known, self.seen.get(site, AuditPosition()), key=lambda seen: seen.row)
            content = {site: str(known) for site, known in self.seen.items()}
            write_private(self._file, msgspec.json.encode(_Witnessed(SEEN_FORMAT, content)))


def begin(state: Path, digest: str) -> tuple[int, bytes]:
    """Return the seed of a run's public random draws and the server's secret (32 bytes), the same when it is resumed.

    Both are kept in ``run.json`` of its ``state`` folder: with another secret, a resumed run would release the same
    sums again with other noise, for one charge. Raises :class:`~fedsynth.errors.FedsynthError` if ``digest``, that of
    job and schema (:meth:`~fedsynth.runs.job.Job.digest`), is not the one with which the run began.
    """
    file = state / "run.json"
    if not file.exists():
        fresh = _Begun(FORMAT, digest, secrets.randbits(63), secrets.token_hex(32))
        write_private(file, msgspec.json.encode(fresh))
    renamed = "set another run = ... under [deployment] in job.toml"
    mend = f"resume the run with the fedsynth that began it, restore the file, or {renamed} to begin anew"
    begun = load_json(file, _Begun, "the beginning of a run", mend, FORMAT)
    if begun.job != digest:
        raise FedsynthError(
            f"job.toml or the schema has changed since the run {state.name!r} began; restore it to resume, or "
            f"{renamed} to begin anew"
        )
    return begun.seed, SecretBytes.fromhex(begun.secret)

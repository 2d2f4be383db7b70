"""The server's side of the file exchange: the transport, and a federation's run over it.

Rule 1: a file that is not the site's signed reply to the message is passed over, and the site's own is waited for.
Rule 2: whatever else is in the folder or happens to it, the worst result is a lost site, never a lost run. Rule 3: a
request that is in the folder already is not written again: a server that was killed, or stopped until somebody has
carried the files, finds its requests and the replies that have arrived. Rule 4: the end of a run lies among the
requests until its site has acknowledged it; nothing waits for that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from fedsynth.deploy.files.folder import ExchangeFolder, ReadTimes, require_exchange
from fedsynth.deploy.files.messages import MessageName
from fedsynth.errors import FedsynthError, Incomplete, InvalidParameter, explained
from fedsynth.federation.ending import LARGEST
from fedsynth.federation.transport import Message
from fedsynth.federation.wire import LARGEST_MESSAGE, LARGEST_REQUEST_HEAD, ForeignReply, Reply, WireError
from fedsynth.files import read_text, write_private
from fedsynth.runs.ending import EndNotice
from fedsynth.runs.job import Job

POLL = 1.0  # s between two searches for replies
_log = logging.getLogger(__name__)


class RepliesMissing(Incomplete):
    """Raised by a run over files that does not wait: says which files (``missing``, by site) to carry where."""

    def __init__(self, message: str, missing: Mapping[str, Sequence[Path]]) -> None:
        """Take the message, and the unanswered request files by site."""
        super().__init__(message)
        self.missing = missing


@dataclass(eq=False)
class FileTransport:
    """Transport over files: writes requests to sites as files in a folder, and reads their replies there.

    It is a :class:`~fedsynth.federation.transport.Transport`. A request is the file ``SITE/requests/NAME.request`` of
    ``folder``, which must exist, its reply ``SITE/replies/NAME.reply``. If a site sends no valid reply within
    ``deadline`` seconds (maybe several days; a resumed run starts from zero), :meth:`exchange` yields a reply with the
    code ``lost`` in its place, and the request is withdrawn: its file is removed, and a late reply to it is ignored.

    Unless ``wait`` is true, there is no deadline: a call of :meth:`exchange` with missing replies raises
    :class:`RepliesMissing` once all requests are written. ``without`` names sites that are not asked and count as lost;
    unknown ones raise :class:`InvalidParameter`. ``withdrawn`` is the file that lists the requests that were refused or
    given up, so that an old copy of such a request and its reply is ignored; without it, the list is kept in memory
    only. ``poll`` is the time in seconds between two searches for replies.
    """

    folder: Path
    sites: Sequence[str]
    deadline: float
    _: KW_ONLY
    wait: bool = True
    without: Collection[str] = ()
    withdrawn: Path | None = None
    poll: float = POLL
    _going_on: Generator[Reply, None, None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        listed = self.withdrawn is not None and self.withdrawn.exists()
        self._withdrawn = set(read_text(self.withdrawn).split() if self.withdrawn is not None and listed else ())
        if unknown := sorted(set(self.without) - set(self.sites)):
            raise InvalidParameter(f"--without {', '.join(unknown)}: no such site; sites are {', '.join(self.sites)}")

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Write ``messages`` as files, and yield one reply per message, in their order, read when it is needed.

        Raises :class:`RepliesMissing` if replies are missing and this transport does not wait, and
        :class:`FedsynthError` if the folder of the files does not exist.
        """
        self._going_on = self._replies(messages)
        return self._going_on

    def close(self) -> None:
        """End a call of :meth:`exchange` that an error interrupted: requests that a site refused are withdrawn."""
        if self._going_on is not None:
            self._going_on.close()

    def _replies(self, messages: Iterable[Message]) -> Generator[Reply, None, None]:
        asked = [_Asked(message, self._folder(message.site, "requests")) for message in messages]
        if not asked:
            return
        require_exchange(self.folder)
        end = time.monotonic() + self.deadline
        turned_down: list[_Asked] = []
        stopped = False
        try:
            for one in asked:
                while (reply := self._reply(one, asked)) is None:
                    if not self.wait:
                        stopped = True
                        raise self._missing(asked)
                    if (left := end - time.monotonic()) <= 0:
                        why = f"no answer within {self.deadline:g} s"
                        reply = self._lost(one, f"{why}; {one.said}" if one.said else why)
                        break
                    if not one.awaited:
                        _log.info("waiting for %s's reply to %s", one.message.site, MessageName.of(one.message).said)
                    one.awaited = True
                    time.sleep(min(self.poll, left))
                one.done = True
                if reply.code != "answered":
                    turned_down.append(one)
                yield reply
        finally:
            # A refused question is sent again as a new request, since the reason may be gone by then. A run that stops
            # here to have files carried keeps the refusal; otherwise it would ask a failed site again without end.
            if not stopped:
                self._withdraw([*turned_down, *(one for one in asked if self._is_turned_down(one))])

    def tell(self, notices: Sequence[EndNotice], accept: Callable[[EndNotice, bytes], bool], patience: float) -> None:
        """Write each notice to its site as a file, and pass the acknowledgements that are there to ``accept``.

        It waits for nobody, however long ``patience`` is. The files of an accepted acknowledgement are removed.
        """
        for notice in notices:
            requests, replies = self._folder(notice.site, "requests"), self._folder(notice.site, "replies")
            told, acknowledged = f"{notice.run}.end", f"{notice.run}.ended"
            try:
                data = replies.read(acknowledged, LARGEST)
                if data is not None and accept(notice, data):
                    requests.remove(told)
                    replies.remove(acknowledged)
                    continue
                if requests.stamp(told) is None:
                    requests.write(told, notice.data)
            except OSError as error:
                _log.warning("%s cannot be used (%s): %s is told later", requests.path, error, notice.site)

    def remove_run(self, run: str) -> None:
        """Remove the requests of a complete run and their replies; the log names files that cannot be removed."""
        for site in self.sites:
            for part in ("requests", "replies"):
                folder = self._folder(site, part)
                try:
                    folder.remove_run(run)
                except OSError as error:
                    _log.warning("files of the run stay in %s (%s); delete them", folder.path, error)

    def _folder(self, site: str, part: str) -> ExchangeFolder:
        return ExchangeFolder(self.folder, site, part)

    def _reply(self, one: _Asked, asked: Sequence[_Asked]) -> Reply | None:
        """Write all unwritten requests; return the reply to one request if it has arrived."""
        listed: dict[str, list[MessageName]] = {}
        for other in asked:
            if other.done or other.name is not None:
                continue
            try:
                if other.message.site not in listed:
                    listed[other.message.site] = other.requests.requests()
                self._place(other, listed[other.message.site])
            except OSError as error:  # the share may be mounted again
                other.say(f"{other.requests.path} cannot be used ({explained(error)})")
        if one.message.site in self.without:
            return self._lost(one, "left out (--without)")
        try:
            return None if one.name is None else self._read(one)
        except OSError as error:
            one.say(f"{self._folder(one.message.site, 'replies').path} cannot be used ({explained(error)})")
            return None

    def _place(self, one: _Asked, listed: Iterable[MessageName]) -> None:
        """Find the request in the folder, or write it; a site that is left out gets no request."""
        name = MessageName.of(one.message)
        for found in listed:
            if found.without_attempt != name.without_attempt or str(found) in self._withdrawn:
                continue
            if self._is_ours(one, found):
                one.name = found
                return
        if one.message.site in self.without:
            return
        one.requests.write(name.request, one.message.data)
        one.name = name

    def _is_ours(self, one: _Asked, name: MessageName) -> bool:
        """Whether a request file in the folder is complete and this coordinator's own: then its reply is read."""
        try:
            earlier = one.message.as_sent(
                one.requests.read(name.request, one.message.size + LARGEST_REQUEST_HEAD) or b""
            )
        except (WireError, OSError):
            return False
        if MessageName.of(earlier) != name:
            return False
        one.message = earlier
        return True

    def _read(self, one: _Asked) -> Reply | None:
        assert one.name is not None
        replies, file = self._folder(one.message.site, "replies"), one.name.reply
        stamp = replies.stamp(file)
        if stamp is None or not one.known.worth_reading(file, stamp):
            return None
        data = replies.read(file, LARGEST_MESSAGE)
        if data is None:
            one.say(f"{replies.path / file} is larger than any reply")
            return None
        try:
            reply = one.message.own_reply(data)
        except ForeignReply as error:
            one.say(f"{replies.path / file} is not a valid reply: {error}")
            return None
        return self._lost(one, reply.lost) if reply.code == "lost" else reply

    def _lost(self, one: _Asked, why: str) -> Reply:
        _log.warning("lost site %s in step %d: %s", one.message.site, one.message.request.head.step, why)
        return one.message.lost(why)

    def _is_turned_down(self, one: _Asked) -> bool:
        """Whether a reply that was not read, because another one ended the run, is a refusal too."""
        if one.done or one.name is None:
            return False
        try:
            reply = self._read(one)
        except OSError:
            return False
        return reply is not None and reply.code != "answered"

    def _withdraw(self, turned_down: Sequence[_Asked]) -> None:
        names = {str(one.name) for one in turned_down if one.name is not None} - self._withdrawn
        self._withdrawn |= names
        if names and self.withdrawn is not None:
            write_private(self.withdrawn, "\n".join(sorted(self._withdrawn)))
        for one in turned_down:
            if one.name is None:
                continue
            try:
                one.requests.remove(one.name.request)
                self._folder(one.message.site, "replies").remove(one.name.reply)
            except OSError as error:
                _log.warning("%s was refused or given up and stays in the folder (%s)", one.name.request, error)

    def _missing(self, asked: Sequence[_Asked]) -> RepliesMissing:
        """Return the error that says what to carry where; raises :class:`FedsynthError` for an unwritable request."""
        missing: dict[str, list[Path]] = {}
        for one in asked:
            replies, site = self._folder(one.message.site, "replies"), one.message.site
            if one.done or site in self.without:
                continue
            if one.name is None:
                raise FedsynthError(
                    f"the request to {site} cannot be written: {one.said}; fix that and run the same command again"
                )
            if one.said or replies.stamp(one.name.reply) is None:
                missing.setdefault(site, []).append(one.requests.path / one.name.request)
        lines = ["replies are missing:"]
        for site, files in missing.items():
            lines.append(
                f"  {site}: carry {files[0].parent} ({len(files)} new) there, let the site answer "
                f"(fedsynth site serve FOLDER --exchange DIR --once), bring {self._folder(site, 'replies').path} back"
            )
        lines += [f"  {one.message.site}: {one.said}" for one in asked if one.said]
        lines.append(
            "Then run the same command again. --without SITE goes on without a site that cannot answer, where "
            "min_sites of job.toml is less than all."
        )
        return RepliesMissing("\n".join(lines), missing)


@dataclass(eq=False)
class _Asked:
    """A message of an exchange, with its file, whether it is settled, and its current problem, if any."""

    message: Message
    requests: ExchangeFolder
    name: MessageName | None = None
    done: bool = False
    awaited: bool = False
    said: str = ""
    known: ReadTimes = field(default_factory=ReadTimes)

    def say(self, what: str) -> None:
        """Log a problem, once."""
        if what != self.said:
            _log.warning("site %s: %s", self.message.site, what)
        self.said = what


@contextmanager
def over_files(
    job: Job, folder: Path, exchange: Path, *, wait: bool = True, without: Collection[str] = ()
) -> Iterator[FileTransport]:
    """A context manager that yields the :class:`FileTransport` to a run's sites; the ``with`` block makes the run.

    If the block ends without an error, the run is taken for complete, and its requests and replies are removed from
    ``exchange``. What stays is a file to each site that says that the run has ended, until the site has acknowledged
    it. Raises :class:`Unsupported` for a job without ``[deployment]``, :class:`InvalidParameter` for unknown sites in
    ``without``, and :class:`FedsynthError` if ``[deployment.peers]`` lacks a site's identity key or ``exchange`` does
    not exist.
    """
    deployment = job.deployed
    require_exchange(exchange)
    transport = FileTransport(
        exchange,
        tuple(deployment.identities),
        deployment.deadline,
        wait=wait,
        without=without,
        withdrawn=folder / "state" / deployment.run / "withdrawn",
    )
    if (folder / "runs" / deployment.run).exists():  # complete; perhaps the server was killed before it tidied up
        transport.remove_run(deployment.run)
    try:
        yield transport
    finally:
        transport.close()
    transport.remove_run(deployment.run)

"""The site's side of the file exchange: answers each request in a folder once.

Rule 1: a request is answered only if the coordinator signed it for this site, in the file that it was written to;
    every other file is left alone. Rule 2: a reply that is missing, incomplete or not this site's is written again,
    from the answers stored in the site's privacy account. Rule 3: replies are sent at whole multiples of
    ``answer_every`` seconds (from the site's policy; of a longer time if they took training), so their timing, which
    may depend on the rows, shows only in such steps. Rule 4: a site never removes requests or replies from the
    exchange, because several independent copies of it may exist. Rule 5: a file that tells the end of a run closes the
    run before anything is answered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedsynth.deploy.batches import in_batches
from fedsynth.deploy.files.folder import ExchangeFolder, ReadTimes, Stamp, require_exchange
from fedsynth.deploy.files.messages import MessageName, run_of
from fedsynth.deploy.host.config import SiteConfig, load_site_config
from fedsynth.deploy.host.state import IdleRuns, answer, end_of_run, site_secret, wait_until_due
from fedsynth.errors import FedsynthError, explained, is_fault
from fedsynth.federation.ending import LARGEST, acknowledges, read_end
from fedsynth.federation.wire import LARGEST_MESSAGE, Received, WireError, code_of, open_reply, read_request
from fedsynth.keys import Keys

POLL = 1.0  # s between two searches for requests
_log = logging.getLogger("fedsynth.site")


@dataclass(frozen=True)
class _Asked:
    name: MessageName
    message: bytes


class FileAnswerer:
    """Answers the requests that the server's files bring to a site, in ``EXCHANGE/SITE/requests``, by ``SITE/replies``.

    ``folder`` is that of ``site.toml``, which is read again at each search, every ``poll`` seconds. ``exchange`` must
    exist. ``say`` is called with a sentence for each answered request, and with the reason for each unanswered one.
    """

    def __init__(
        self, folder: Path, exchange: Path, say: Callable[[str], None] = _log.info, poll: float = POLL
    ) -> None:
        """Read nothing yet; raises :class:`FedsynthError` if the exchange does not exist."""
        require_exchange(exchange)
        self._folder = folder
        self._exchange = exchange
        self._say = say
        self._poll = poll
        self._stopped = threading.Event()
        self._idle = IdleRuns(folder)
        self._known = ReadTimes()
        self._done: dict[str, tuple[Stamp, Stamp]] = {}
        self._told: dict[str, str] = {}
        self._ended: set[str] = set()
        self._ends: set[str] = set()

    def stop(self) -> None:
        """Make :meth:`serve` return once the current batch of requests is answered; called from another thread."""
        self._stopped.set()

    def serve(self) -> None:
        """Answer requests until :meth:`stop`; errors are logged and retried, since the files may come back."""
        trouble = ""
        while not self._stopped.is_set():
            try:
                self.answer_once()
                trouble = ""
            except Exception as error:
                said = explained(error) if isinstance(error, OSError) else str(error)
                if said != trouble:
                    _log.warning("this site cannot answer: %s", said, exc_info=is_fault(error))
                trouble = said
            self._stopped.wait(self._poll)

    def answer_once(self) -> int:
        """Answer all requests that have no reply yet, once the replies are due, and return their number.

        Raises :class:`FedsynthError` if ``site.toml`` or the account cannot be read. If a reply cannot be written, the
        others are written first and then the error is raised. Afterwards, at most once an hour, idle runs are closed.
        """
        try:
            return self._answer_all()
        finally:
            self._idle.close()  # after the answers: a run that comes back is not idle

    def _answer_all(self) -> int:
        config = load_site_config(self._folder)
        key = Keys(site_secret(config)).identity
        replies = self._replies(config)
        self._end_runs(config, key)
        answered, unwritten = 0, ""
        began = time.monotonic()
        for batch in in_batches(self._requests(config, key), lambda asked: len(asked.message)):
            found = answer(config, [asked.message for asked in batch])
            wait_until_due(began, config.policy.answer_every, seconds=found.seconds)
            for asked, message in zip(batch, found.replies, strict=True):
                try:
                    replies.write(asked.name.reply, message)
                except OSError as error:
                    unwritten = f"a reply cannot be written: {explained(error)}"
                else:
                    answered += 1
                    self._say(f"{asked.name.said}: {_said(message)}")
            if self._stopped.is_set():
                break
            began = time.monotonic()
        if unwritten:
            raise FedsynthError(unwritten)
        return answered

    def _end_runs(self, config: SiteConfig, key: bytes) -> None:
        requests, replies = self.requests(config), self._replies(config)
        self._ended.clear()
        self._ends = {f"{run}.end" for run in requests.ends()}
        for file in sorted(self._ends):
            run = run_of(file)
            try:
                data = requests.read(file, LARGEST) or b""
                if read_end(data, config.coordinator).run != run:
                    raise WireError("it tells the end of another run")
            except (WireError, OSError) as error:
                self._say_once(file, error)
                continue
            self._ended.add(run)
            known = replies.read(f"{run}.ended", LARGEST) or b""
            if not acknowledges(known, data, config.name, key) and (told := end_of_run(config, data)):
                replies.write(f"{run}.ended", told)
                self._say(f"run {run} has ended, and is closed here")

    def _say_once(self, file: str, error: Exception) -> None:
        if self._told.get(file) != str(error):
            self._say(f"{file} is left unanswered: {error}")
        self._told[file] = str(error)

    def requests(self, config: SiteConfig) -> ExchangeFolder:
        """Return the folder of the requests to this site; ``config`` is the content of its ``site.toml``."""
        return ExchangeFolder(self._exchange, config.name, "requests")

    def _replies(self, config: SiteConfig) -> ExchangeFolder:
        return ExchangeFolder(self._exchange, config.name, "replies")

    def _requests(self, config: SiteConfig, key: bytes) -> Iterator[_Asked]:
        """Yield the requests to answer, in order."""
        names = self.requests(config).requests()
        present = {name.request for name in names}
        self._known.keep(present)
        self._done = {file: stamps for file, stamps in self._done.items() if file in present}
        self._told = {file: what for file, what in self._told.items() if file in present | self._ends}
        for name in names:
            # A copy of an ended run's request, carried late, would open the run again.
            if name.run not in self._ended and (asked := self._asked(config, name, key)) is not None:
                yield asked

    def _asked(self, config: SiteConfig, name: MessageName, key: bytes) -> _Asked | None:
        """Return a request to answer; ``None`` if it has been answered or is not a request to this site."""
        try:
            return self._read(config, name, key)
        except (WireError, OSError) as error:
            self._say_once(name.request, error)
            return None

    def _read(self, config: SiteConfig, name: MessageName, key: bytes) -> _Asked | None:
        """Do the work of :meth:`_asked`; raises :class:`WireError` if the file is not a request to this site."""
        requests, replies = self.requests(config), self._replies(config)
        stamp, replied = requests.stamp(name.request), replies.stamp(name.reply)
        if stamp is None:
            raise WireError("it is not a regular file")
        if replied is not None and self._done.get(name.request) == (stamp, replied):
            return None
        if not self._known.worth_reading(name.request, stamp):
            return None
        data = requests.read(name.request, config.policy.largest_message)
        if data is None:
            raise WireError("it is larger than largest_message in [policy] of site.toml")
        found = read_request(data, config.name, config.coordinator)
        if MessageName.received(found) != name:
            raise WireError("it was written under another name")
        if replied is not None and self._is_answered(replies, config, name, found, key):
            self._done[name.request] = (stamp, replied)
            return None
        return _Asked(name, data)

    def _is_answered(
        self, replies: ExchangeFolder, config: SiteConfig, name: MessageName, request: Received, key: bytes
    ) -> bool:
        try:
            head, _ = open_reply(replies.read(name.reply, LARGEST_MESSAGE) or b"", config.name, key)
        except WireError:
            return False
        return head.request == request.digest


def _said(reply: bytes) -> str:
    code = code_of(reply)
    return code if code == "answered" else f"{code}; this site's log and fedsynth account have the reason"

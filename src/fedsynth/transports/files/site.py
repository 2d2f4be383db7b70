"""The site's side of the file exchange: answers each request in a folder once.

Rule 1: only a request that the coordinator signed for this site, under this very file name, is answered; every other
    file is left alone. Rule 2: a reply that is missing, not whole or somebody else's is written again, from what the
    account has stored. Rule 3: replies leave at whole multiples of the policy's ``answer_every``, so that their time
    tells neither how many rows there are nor what they hold. Rule 4: nothing is ever removed here: files may be carried
    by copies that know nothing of each other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import fedsynth
from fedsynth.errors import FedsynthError
from fedsynth.federation.trust.secure.masking import identity, identity_seed
from fedsynth.federation.wire import LARGEST_MESSAGE, WireError, code_of
from fedsynth.host.config import SiteConfig, load_site_config
from fedsynth.host.state import Answers, answer, site_secret, wait_until_due
from fedsynth.transports.files.folder import Folder, Known, Stamp, require_exchange
from fedsynth.transports.files.messages import OVERHEAD, Name, read_reply_file, read_request, write_reply_file

LARGEST_BATCH = 1 << 26  # bytes of requests that are answered together
POLL = 1.0  # s between two looks for requests
_log = logging.getLogger("fedsynth.site")


@dataclass(frozen=True)
class _Asked:
    """A request to this site that has no reply yet."""

    name: Name
    digest: bytes
    message: bytes
    refuse: str


class Answerer:
    """Answers the requests of ``EXCHANGE/SITE/requests`` for the site of a folder's ``site.toml``.

    Parameters
    ----------
    folder
        Folder of ``site.toml``, which is read anew at each look.
    exchange
        The exchange's folder, which must be there.
    say
        Called with a sentence for each answered request, and for each unanswered one with the reason.
    poll
        Seconds between two looks of :meth:`serve`.
    """

    def __init__(
        self, folder: Path, exchange: Path, say: Callable[[str], None] = _log.info, poll: float = POLL
    ) -> None:
        """Read nothing yet; raises :class:`FedsynthError` where there is no exchange."""
        require_exchange(exchange)
        self._folder = folder
        self._exchange = exchange
        self._say = say
        self._poll = poll
        self._stopped = threading.Event()
        self._known = Known()
        self._done: dict[str, tuple[Stamp, Stamp]] = {}
        self._told: dict[str, str] = {}

    def stop(self) -> None:
        """Return from :meth:`serve` once the requests at hand are answered."""
        self._stopped.set()

    def serve(self) -> None:
        """Answer until :meth:`stop`; a look that fails is repeated, since a carrier that is away may come back."""
        trouble = ""
        while not self._stopped.is_set():
            try:
                self.answer_once()
                trouble = ""
            except Exception as error:
                if str(error) != trouble:
                    traceback = not isinstance(error, (FedsynthError, OSError))
                    _log.warning("this site cannot answer: %s", error, exc_info=traceback)
                trouble = str(error)
            self._stopped.wait(self._poll)

    def answer_once(self) -> int:
        """Answer the requests that are there and have no reply; return how many they were.

        Raises :class:`FedsynthError` where ``site.toml`` or the account cannot be read, and where a reply cannot be
        written, once all others are: a later look writes it.
        """
        config = load_site_config(self._folder)
        secret = site_secret(config)
        replies = self._replies(config)
        answered, unwritten = 0, ""
        began = time.monotonic()
        for batch in self._batches(config, identity(secret)):
            found = _answers(config, batch)
            wait_until_due(began, config.policy.answer_every, seconds=found.seconds)
            for asked, message in zip(batch, found.replies, strict=True):
                try:
                    replies.write(
                        asked.name.reply, write_reply_file(identity_seed(secret), config.name, asked.digest, message)
                    )
                except OSError as error:
                    unwritten = (
                        f"{replies.path / asked.name.reply} cannot be written ({error}); free space or fix the cause"
                    )
                else:
                    answered += 1
                    self._say(f"{asked.name.said}: {_said(message)}")
            if self._stopped.is_set():
                break
            began = time.monotonic()
        if unwritten:
            raise FedsynthError(unwritten)
        return answered

    def requests(self, config: SiteConfig) -> Folder:
        """Return the folder that requests lie in."""
        return Folder(self._exchange, config.name, "requests")

    def _replies(self, config: SiteConfig) -> Folder:
        return Folder(self._exchange, config.name, "replies")

    def _batches(self, config: SiteConfig, key: bytes) -> Iterator[list[_Asked]]:
        """Yield what is to be answered, in its order and in batches of at most ``LARGEST_BATCH`` bytes."""
        batch: list[_Asked] = []
        used = 0
        names = self.requests(config).requests()
        present = {name.request for name in names}
        self._known.keep(present)
        self._done = {file: stamps for file, stamps in self._done.items() if file in present}
        self._told = {file: what for file, what in self._told.items() if file in present}
        for name in names:
            asked = self._asked(config, name, key)
            if asked is None:
                continue
            if batch and used + len(asked.message) > LARGEST_BATCH:
                yield batch
                batch, used = [], 0
            batch.append(asked)
            used += len(asked.message)
        if batch:
            yield batch

    def _asked(self, config: SiteConfig, name: Name, key: bytes) -> _Asked | None:
        """Return a request that is to be answered; ``None`` for one that is answered, or is none."""
        try:
            return self._read(config, name, key)
        except (WireError, OSError) as error:
            if self._told.get(name.request) != str(error):
                self._say(f"{name.request} is left unanswered: {error}")
            self._told[name.request] = str(error)
            return None

    def _read(self, config: SiteConfig, name: Name, key: bytes) -> _Asked | None:
        """Return what :meth:`_asked` does; raises :class:`WireError` for what is no request to this site."""
        requests, replies = self.requests(config), self._replies(config)
        stamp, replied = requests.stamp(name.request), replies.stamp(name.reply)
        if stamp is None:
            raise WireError("it is no file")
        if replied is not None and self._done.get(name.request) == (stamp, replied):
            return None
        if not self._known.worth_reading(name.request, stamp):
            return None
        data = requests.read(name.request, config.policy.largest_message + OVERHEAD)
        if data is None:
            raise WireError("it is larger than this site reads (largest_message)")
        found, digest = read_request(data, config.coordinator)
        if (found.site, found.name) != (config.name, str(name)):
            raise WireError(f"it was written for {found.site}, as {found.name}")
        if replied is not None and self._is_answered(replies, name, digest, key):
            self._done[name.request] = (stamp, replied)
            return None
        here, server = fedsynth.__version__, found.fedsynth
        why = "" if here == server else f"it runs fedsynth {here} and the server {server!r}; upgrade both together"
        return _Asked(name, digest, found.message.tobytes(), why)

    def _is_answered(self, replies: Folder, name: Name, digest: bytes, key: bytes) -> bool:
        """Whether this site's own reply to the request is there, and whole."""
        data = replies.read(name.reply, LARGEST_MESSAGE + OVERHEAD)
        if data is None:
            return False
        try:
            return read_reply_file(data, key).request == digest
        except WireError:
            return False


def _answers(config: SiteConfig, batch: Sequence[_Asked]) -> Answers:
    """Return the reply to each request of a batch."""
    found = answer(config, [asked.message for asked in batch if not asked.refuse])
    answered = iter(found.replies)
    replies = [
        answer(config, [asked.message], asked.refuse).replies[0] if asked.refuse else next(answered) for asked in batch
    ]
    return Answers(replies, found.seconds)


def _said(reply: bytes) -> str:
    code = code_of(reply)
    return code if code == "answered" else f"{code}; the reason is in this site's log and in its audit"

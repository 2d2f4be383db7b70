"""Tells the sites of complete runs that these have ended, until every site has acknowledged it.

Rule 1: a run's end is told once its folder is complete and on the disk, since a site then deletes its stored replies.
Rule 2: which sites have not acknowledged it is noted in the run's state folder, before the run is complete; they are
told again whenever a run of the federation starts or ends. A site that never hears of it closes the run after
``keep_runs_days`` (in its policy). Rule 3: no result waits for a site longer than :data:`PATIENCE`, and nothing here
fails a run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from fedsynth.errors import FedsynthError
from fedsynth.federation.ending import acknowledges, write_end
from fedsynth.federation.transport import Transport
from fedsynth.files import load_json, write_private
from fedsynth.keys import Keys

FORMAT = 1  # of the file
PATIENCE = 15.0  # s for which acknowledgements are waited for
_FILE = "ended.json"  # in a run's state folder
_log = logging.getLogger(__name__)


class EndNotice(NamedTuple):
    """A message to ``site`` that ``run`` has ended; ``data`` are its bytes."""

    site: str
    run: str
    data: bytes


@runtime_checkable
class NoticeTransport(Protocol):
    """A transport to sites in other processes or places, which can also be told that a run has ended."""

    def tell(self, notices: Sequence[EndNotice], accept: Callable[[EndNotice, bytes], bool], patience: float) -> None:
        """Send each notice to its site, and call ``accept(notice, reply)`` with the replies that come.

        ``accept`` returns whether the reply is the site's acknowledgement. Replies are waited for at most ``patience``
        seconds; a site that cannot be reached now is passed over.
        """


class _Waiting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of ``ended.json``: the sites that have not acknowledged the end of the run."""

    format: int
    sites: tuple[str, ...]


def note_end(folder: Path, run: str, sites: Collection[str]) -> None:
    """Note, before a run's folder appears among the complete ones, which ``sites`` have to acknowledge its end."""
    write_private(folder / "state" / run / _FILE, msgspec.json.encode(_Waiting(FORMAT, tuple(sites))))


def unacknowledged(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the sites that have not acknowledged the end of a complete run of the federation in ``folder``, by run."""
    found = {}
    for file in sorted(folder.glob(f"state/*/{_FILE}")):
        run = file.parent.name
        mend = "use the fedsynth that wrote it, or delete the file: the sites then close the run as idle"
        waiting = load_json(file, _Waiting, "the sites that were not told of a run's end", mend, FORMAT)
        if waiting.sites and (folder / "runs" / run).is_dir():
            found[run] = waiting.sites
    return found


def tell_ends(
    folder: Path,
    transport: Transport,
    coordinator: Keys,
    keys: Mapping[str, bytes],
    *,
    patience: float = PATIENCE,
) -> None:
    """Tell all sites that have not acknowledged the end of a complete run of the federation in ``folder``.

    Sites in this process are not told, since they end with it. ``keys`` are the public identity keys of the
    federation's sites by name. Acknowledgements are waited for at most ``patience`` seconds. An error is a warning in
    the log.
    """
    if not isinstance(transport, NoticeTransport):
        return
    try:
        waiting = {run: set(sites) for run, sites in unacknowledged(folder).items()}

        def accept(notice: EndNotice, reply: bytes) -> bool:
            if not acknowledges(reply, notice.data, notice.site, keys[notice.site]):
                return False
            waiting[notice.run].discard(notice.site)
            note_end(folder, notice.run, sorted(waiting[notice.run]))
            return True

        notices = [
            EndNotice(site, run, write_end(coordinator, run))
            for run, sites in waiting.items()
            for site in sorted(sites)
            if site in keys
        ]
        if notices:
            transport.tell(notices, accept, patience)
    except (FedsynthError, OSError) as error:
        _log.warning("sites could not be told of a run's end: %s", error)
    else:
        for run, sites in waiting.items():
            if sites:
                _log.info(
                    "%s did not acknowledge yet that the run %s has ended; told again when a run starts, else closed "
                    "there after keep_runs_days",
                    ", ".join(sorted(sites)),
                    run,
                )

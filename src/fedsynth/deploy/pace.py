"""How often a site asks the server for messages: the more seldom, the more sites there are, and while nothing is due.

Each request costs Flower's server (SuperLink) some milliseconds of its one process. All sites together, up to some two
hundred, therefore make at most a fixed number of requests a second. Rule 1: the pace follows from what a site knows by
itself: the number of sites in the roster, the time since it last took a message or replied, and how promptly the server
answers. No message of the server's sets it. Rule 2: no pause is longer than a minute, so that a roster of any size, or
a slow server, only delays the coordinator's own runs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

DUE, DUE_RATE = 0.5, 10.0  # s between polls of a site, and polls a second of all sites, while a message is due
IDLE, IDLE_RATE = 5.0, 3.5  # the same while none is
HEARTBEAT, HEARTBEAT_RATE = 5.0, 3.0  # the same for heartbeats
LONGEST = 60.0  # s; of any pause
DECAY = 0.1  # part of the time since the last message for which the next one may have to wait
SPREAD = 0.2  # part by which a pause is drawn shorter, so that sites do not ask in step
MISSED = 3  # heartbeats in a row after which a site is away, and
AWAY = 30.0  # s without a heartbeat before which it never is


@dataclass(frozen=True)
class Pace:
    """Pauses between the requests of one site in a federation of ``sites``, in seconds; see :func:`uneven`."""

    sites: int

    @property
    def due(self) -> float:
        """Longest pause between two polls for a message just after the one before."""
        return _shared(self.sites, DUE, DUE_RATE)

    @property
    def idle(self) -> float:
        """Longest pause between two polls: so long can a run's first message wait for a site that is connected."""
        return _shared(self.sites, IDLE, IDLE_RATE)

    @property
    def heartbeat(self) -> float:
        """Longest pause between two heartbeats."""
        return _shared(self.sites, HEARTBEAT, HEARTBEAT_RATE)

    @property
    def away(self) -> float:
        """Time without a heartbeat after which a site counts as not connected."""
        return max(AWAY, MISSED * self.heartbeat)

    def pause(self, quiet: float, lag: float = 0.0) -> float:
        """Return the longest pause until the next poll if the last message or reply was ``quiet`` seconds ago.

        Apart from the first of a run, a message waits at most for :attr:`due` or, if that is longer, for a tenth of the
        time since the one before. ``lag`` is by how many seconds the server answered the last poll more slowly than the
        fastest: polls must not keep a busy server from its messages.
        """
        return min(self.idle, max(self.due * (1 + lag), DECAY * quiet))


def uneven(pause: float) -> float:
    """Return a random pause up to a fifth shorter than ``pause``."""
    return pause * random.uniform(1 - SPREAD, 1)


def _shared(sites: int, shortest: float, rate: float) -> float:
    """Return the pause at which ``sites`` make ``rate`` requests a second, from ``shortest`` to a minute."""
    return min(LONGEST, max(shortest, sites / rate))

"""The server's end of a secure sum: it carries messages between sites, adds up, and learns the sum alone.

Nothing here needs to be trusted for the sites' privacy; what protects them is at their own end, in `secure_sum`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import FedsynthError, SiteLost
from fedsynth.federation.trust import Outcome, masking
from fedsynth.federation.trust.roster import (
    ADVERT_BYTES,
    AGREE,
    KEYS,
    MASKED,
    SHARES,
    UNMASK,
    Roster,
    as_bytes,
    commitment,
)
from fedsynth.federation.trust.shamir import SHARE_BYTES, from_bytes, weighted, weights_at_zero
from fedsynth.federation.wire import Reply, Request

_TURNS = ("keys", "shares", "masked answers", "agreement", "unmasking")
_VERSION = "install the same fedsynth version at server and sites"


@dataclass(eq=False)
class SecureSession:
    """One sum over ``sites``; ``threshold(members)`` must stay to the end, each with noise of ``share_std(members)``.

    Holds two vectors, whatever the number of sites.
    """

    request: Request
    sites: tuple[str, ...]
    threshold: Callable[[int], int]
    share_std: Callable[[int], float]
    turn: int = -1
    roster: Roster | None = None
    heard: dict[str, Reply] = field(default_factory=dict)
    boxes: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    survivors: list[str] = field(default_factory=list)
    total: NDArray[np.uint64] | None = None
    failure: str = ""

    def ask(self) -> Mapping[str, Request]:
        """Return the next turn's message to every site that is left; nothing after the last, or once too few are."""
        self.turn += 1
        if self.turn == KEYS:
            return dict.fromkeys(self.sites, self.request)
        if self.failure or self.turn > UNMASK + 1 or (self.turn == SHARES and not self.heard):
            return {}
        present, self.heard = dict(sorted(self.heard.items())), {}
        if self.turn == SHARES:
            self.roster = _roster(self.request, present)
        assert self.roster is not None
        required = self.threshold(len(self.roster.members))
        if len(present) < required:
            self.failure = (
                f"{len(present)} of {len(self.roster.members)} sites went through {_TURNS[self.turn - 1]} and "
                f"{required} are required: {required - len(present)} are missing"
            )
            return {}
        stages = self._stages(present)
        return {site: self.request.at(self.turn, {**self.roster.stage, **stage}) for site, stage in stages.items()}

    def _stages(self, present: Mapping[str, Reply]) -> dict[str, dict[str, Any]]:
        """Return what each site is sent beside the roster, after the turn that ``present`` went through."""
        if self.turn == SHARES:
            return {site: {} for site in present}
        if self.turn == MASKED:
            self.boxes = {site: reply.parts["boxes"] for site, reply in present.items()}
            return {site: self._boxes_for(site) for site in present}
        if self.turn == AGREE:
            self.survivors = list(present)
            return {site: {"survivors": self._positions(self.survivors)} for site in present}
        if self.turn == UNMASK:
            approvals = as_bytes([reply.parts["approval"].tobytes() for reply in present.values()])
            agreed = {
                "survivors": self._positions(self.survivors),
                "signers": self._positions(present),
                "approvals": approvals,
            }
            return {site: {**agreed, **self._boxes_for(site)} for site in present}
        self._unmask(present)
        return {}

    def hear(self, reply: Reply) -> None:
        """Take in one site's message; masked answers are added up at once."""
        assert self.roster is not None or self.turn == KEYS
        members = 0 if self.roster is None else len(self.roster.members)
        shapes: dict[int, dict[str, tuple[int, ...]]] = {
            KEYS: {"advert": (ADVERT_BYTES,), "signature": (masking.SIGNATURE_BYTES,)},
            SHARES: {"boxes": (members, 2 * SHARE_BYTES + masking.TAG_BYTES)},
            MASKED: {},
            AGREE: {"approval": (masking.SIGNATURE_BYTES,)},
            UNMASK: {"shares": (len(self.boxes), SHARE_BYTES)},
        }
        for name, shape in shapes[self.turn].items():
            array = reply.parts.get(name)
            if array is None or array.dtype != np.uint8 or array.shape != shape:
                raise FedsynthError(f"site {reply.site} sent no valid {name}; {_VERSION}")
        if self.turn == MASKED:
            self._add(reply)
            reply = Reply(reply.site, reply.digest)  # its vector is in the total now
        self.heard[reply.site] = reply

    def result(self) -> Outcome | None:
        """Return the sum of the sites that stayed, ``None`` if nobody answered; raise :class:`SiteLost` if too few."""
        if self.failure:
            raise SiteLost(
                f"{self.failure}; bring the sites back and start the run again: it resumes where it stopped, or "
                "allow another attempt without them, which is charged anew"
            )
        if self.roster is None:
            return None
        assert self.total is not None
        std = self.share_std(len(self.roster.members)) * len(self.survivors) ** 0.5
        return Outcome(self.total.view(np.int64), std, tuple(self.survivors))

    def _add(self, reply: Reply) -> None:
        if reply.values is None or reply.values.dtype != np.int64:
            raise FedsynthError(f"site {reply.site} sent no masked answer; {_VERSION}")
        vector = reply.values.view(np.uint64)
        self.total = vector.copy() if self.total is None else np.add(self.total, vector, out=self.total)

    def _positions(self, sites: Sequence[str] | Mapping[str, Any]) -> list[int]:
        assert self.roster is not None
        return [self.roster.members.index(site) for site in sites]

    def _boxes_for(self, site: str) -> dict[str, Any]:
        (at,) = self._positions([site])
        return {
            "senders": self._positions(self.boxes),
            "boxes": np.stack([boxes[at] for boxes in self.boxes.values()]),
        }

    def _unmask(self, present: Mapping[str, Reply]) -> None:
        """Take off the survivors' self-masks, and the pairwise masks that they share with senders that did not stay."""
        assert self.roster is not None
        assert self.total is not None
        weights = weights_at_zero([at + 1 for at in self._positions(present)])
        for row, sender in enumerate(self.boxes):
            shares = [from_bytes(reply.parts["shares"][row].tobytes()) for reply in present.values()]
            secret = weighted(weights, shares)
            if sender in self.survivors:
                self._check(sender, commitment(secret) == self.roster.committed(sender))
                masking.subtract_mask(self.total, masking.derive(secret, "self mask", self.roster.digest))
                continue
            self._check(sender, masking.public_key(secret) == self.roster.mask_key(sender))
            for survivor in self.survivors:
                remove = masking.subtract_mask if survivor < sender else masking.add_mask
                remove(self.total, self.roster.pair_key(secret, sender, survivor))

    @staticmethod
    def _check(sender: str, fits: bool) -> None:
        if not fits:
            raise FedsynthError(
                f"the shares of {sender}'s secret give another one: it, or a site that holds a share, does not follow "
                "the protocol; start another run without it"
            )


def _roster(request: Request, present: Mapping[str, Reply]) -> Roster:
    return Roster(
        request.question,
        tuple(present),
        as_bytes([reply.parts["advert"].tobytes() for reply in present.values()]),
        as_bytes([reply.parts["signature"].tobytes() for reply in present.values()]),
    )

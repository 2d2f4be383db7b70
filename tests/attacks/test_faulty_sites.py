"""One site that sends nonsense among honest ones, and a site's own files after a disk has damaged them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.attacks.world import CHEAP, SCHEMA, SEX, ask, ask_deployed, deployed, frame, question, table

from fedsynth.errors import FedsynthError
from fedsynth.federation.federation import Federation
from fedsynth.federation.simulation import federate
from fedsynth.federation.site import Site
from fedsynth.federation.task import marginals
from fedsynth.federation.transport import Addressed, InProcess
from fedsynth.federation.trust import masking
from fedsynth.federation.trust.local import LocalNoise
from fedsynth.federation.trust.roster import AGREE, KEYS, SHARES, UNMASK
from fedsynth.federation.trust.secure_sum import SecureSum
from fedsynth.federation.wire import Reply, Request
from fedsynth.methods import FedPrivSyn, OneShot
from fedsynth.models.synthesizer import GraphicalSynthesizer
from fedsynth.privacy.ledger import SiteLedger
from fedsynth.privacy.release import Budget, Gaussian

ROWS = 100  # of each of five sites
FAULTY = "site-002"
SECURE = SecureSum(min_honest=5, dropouts=2)
Fault = Callable[[Site, Request, Reply], Reply]


@dataclass
class Faulty(InProcess):
    """Five sites, of which one's replies go through ``fault``."""

    members: Sequence[Site]
    fault: Fault

    def __post_init__(self) -> None:
        """Reach the members."""
        super().__init__(self.members)

    def exchange(self, requests: Iterable[Addressed]) -> Iterator[Reply]:
        """Yield replies, one site's changed."""
        for name, request in requests:
            reply = ask(self._sites[name], request)
            yield self.fault(self._sites[name], request, reply) if name == FAULTY else reply


def five(trust: SecureSum | LocalNoise, fault: Fault, **options: Any) -> Federation:
    """Return a federation of five sites, one of them faulty."""
    tables = [table(ROWS, seed) for seed in range(5)]
    options = {"transport": partial(Faulty, fault=fault), **options}
    return federate(tables, SCHEMA, Budget(20.0, 1e-6), trust=trust, **options)


def honest(site: Site, request: Request, reply: Reply) -> Reply:
    """Change nothing."""
    return reply


def in_first_cell(number: int) -> Fault:
    """Return the fault of a site that puts a number into the first cell of every answer."""

    def fault(site: Site, request: Request, reply: Reply) -> Reply:
        assert reply.values is not None
        return replace(reply, values=np.concatenate([[number], reply.values[1:]]).astype(np.int64))

    return fault


@pytest.mark.parametrize(
    ("method", "number"),
    [pytest.param(OneShot(iterations=20), 2**62, id="too-many"), pytest.param(FedPrivSyn(), -(2**62), id="too-few")],
)
@pytest.mark.xfail(
    strict=True, raises=(AssertionError, pytest.fail.Exception), reason="a reply's numbers have no bound"
)
def test_a16_one_site_does_not_spoil_the_table(method, number):
    """A site whose counts are beyond what its rows can hold is lost by name, and the table is that of the others."""
    federation = five(LocalNoise(), in_first_cell(number))
    try:
        found = method.fit(federation)
        rows = found.model.total if isinstance(found, GraphicalSynthesizer) else len(found.sample(rng=0))
    except (FedsynthError, ArithmeticError, LookupError, ValueError) as error:
        pytest.fail(f"one site stopped the run: {type(error).__name__}: {error}")
    assert 3 * ROWS < rows < 6 * ROWS
    assert FAULTY in federation.lost


def corrupted(turn: int, part: str) -> Fault:
    """Return the fault of a site that flips the bits of one part of its message in one turn."""

    def fault(site: Site, request: Request, reply: Reply) -> Reply:
        if request.turn != turn or part not in reply.parts:
            return reply
        return replace(reply, parts={**reply.parts, part: reply.parts[part] ^ 255})

    return fault


def without_a_key(site: Site, request: Request, reply: Reply) -> Reply:
    """Sign keys of which one is no usable point."""
    if request.turn != KEYS:
        return reply
    advert = bytes(masking.KEY_BYTES) + reply.parts["advert"].tobytes()[masking.KEY_BYTES :]
    trust = site.policy.trusts["secure"]
    assert isinstance(trust, SecureSum)
    seed = masking.identity_seed(site.secret)
    signature = masking.sign(seed, "keys", request.question, trust.terms, site.name, advert)
    signed = {"advert": advert, "signature": signature}
    return replace(reply, parts={name: np.frombuffer(part, dtype=np.uint8) for name, part in signed.items()})


FAULTS = {
    "keys": corrupted(KEYS, "advert"),
    "signature": corrupted(KEYS, "signature"),
    "unusable-key": without_a_key,
    "boxes": corrupted(SHARES, "boxes"),
    "approval": corrupted(AGREE, "approval"),
    "shares": corrupted(UNMASK, "shares"),
}


def test_five_honest_sites_come_out():
    """The faults below are what stops a sum, if it stops."""
    result = five(SECURE, honest).sum(marginals, Gaussian(1.0), cliques=[(SEX,)])
    assert abs(result.values.sum() - 5 * ROWS) < 50


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.xfail(
    strict=True,
    raises=(AssertionError, pytest.fail.Exception),
    reason="a member's refusal of another member's message stops the whole sum",
)
def test_a16_one_site_does_not_stop_a_secure_sum(fault):
    """A malformed message of a secure sum costs its sender its place in the sum, as silence would, and nobody else."""
    federation = five(SECURE, fault)
    try:
        result = federation.sum(marginals, Gaussian(1.0), cliques=[(SEX,)])
    except FedsynthError as error:
        pytest.fail(f"one site stopped the sum: {error}")
    assert FAULTY in federation.lost
    assert abs(result.values.sum() - len(result.sites) * ROWS) < 50


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="the transcript keeps the bad message and the resumed run reads it again"
)
def test_a16_a_resumed_run_does_not_read_a_bad_reply_again(tmp_path):
    """A run that one bad message stopped comes out when it is started again and that site has been mended."""
    kept: list[Site] = []
    told = []
    for fault in (corrupted(SHARES, "boxes"), honest):

        def reach(sites: Sequence[Site], fault: Fault = fault) -> Faulty:
            kept[:] = kept or sites  # with the accounts that they had
            return Faulty(kept, fault)

        federation = five(SECURE, fault, seed=1, transcript=tmp_path / "transcript", transport=reach)
        try:
            federation.sum(marginals, Gaussian(1.0), cliques=[(SEX,)])
        except FedsynthError as error:
            told.append(str(error))
    assert len(told) < 2, told


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="errors of the decompressor are not taken for damage")
def test_a17_a_damaged_copy_of_the_rows_does_not_stop_a_site(tmp_path):
    """A new run is answered from the source when the encoded copy of the rows is damaged."""
    config = deployed(tmp_path / "site", frame(300))
    assert not ask_deployed(config, question(cliques=[[SEX]])).error
    whole = config.cache.read_bytes()
    failed = {}
    for number, start in enumerate(np.random.default_rng(0).integers(0, len(whole) - 8, 80)):
        config.cache.write_bytes(whole[:start] + bytes(8) + whole[start + 8 :])
        reply = ask_deployed(config, replace(question(cliques=[[SEX]]), run=f"run-{number}"))
        if reply.error:
            failed[int(start)] = reply.error
    assert failed == {}


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="charges have no checksum")
def test_a17_a_damaged_account_is_not_believed(tmp_path):
    """An account whose file has a changed bit says so; it never says another sum than was spent."""
    path = tmp_path / "ledger.sqlite"
    ledger = SiteLedger(path)
    for step in range(5):
        ledger.charge(f"question {step}", "run", "marginals", CHEAP, limit=1.0, run_limit=1.0)
    spent, whole = ledger.spent(), path.read_bytes()
    at = whole.index(struct.pack(">d", CHEAP.rho))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 8]) + whole[at + 1 :])
    try:
        now = SiteLedger(path).spent()
    except FedsynthError:
        return
    assert now == spent

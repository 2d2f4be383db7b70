"""A person is looked for in everything that whole runs release, and is found no more surely than the budget says.

Between a site with one person's rows and the same site without them, a run of rho-zCDP is no easier to tell apart than
two normal laws at a distance of sqrt(2 rho), as far as sums with Gaussian noise go. (With many rows a person the noise
is wide, so that whole numbers make no difference.) The adversary knows all other rows, adds up what each released
number says (the best test there is for such sums), and measures the distance over 200 runs. Seeds are fixed, so that a
test fails for a change and not by chance; the same runs with half the noise, or with the share of one site missing from
a secure sum, must be told apart beyond the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from tests.attacks.world import SCHEMA, TARGET, frame
from tests.world import Ask, Faulty

from fedsynth.encoding import encode
from fedsynth.federation.events import PlainAnswer
from fedsynth.federation.federation import Federation, Sum
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import Counts, Query
from fedsynth.federation.simulate import federate
from fedsynth.federation.transport import Message
from fedsynth.federation.trust import Released, Trust
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.vault import TrustedVault
from fedsynth.federation.wire import Reply, Request
from fedsynth.methods.aim import AIM
from fedsynth.methods.bayes import FedChowLiu
from fedsynth.methods.flaim import AugFLAIM
from fedsynth.methods.oneshot import OneShot
from fedsynth.methods.privsyn import FedPrivSyn
from fedsynth.models.synthesizer import Synthesizer
from fedsynth.privacy import noise
from fedsynth.privacy.cost import Budget, Unit, protect
from fedsynth.privacy.noise import noise_std
from fedsynth.rows import Table
from fedsynth.secure import noise_shares
from fedsynth.secure.site import SecureSum

RUNS = 200
FIRST = 1000  # seed
BUDGET = Budget(50.0, 1e-6)
BOUND = math.sqrt(2 * BUDGET.rho)
SURE = 3.09  # standard errors: 99.9 %, one-sided

# A site without the person has no rows, which is said in every such run.
pytestmark = pytest.mark.filterwarnings("ignore:1 of 2 sites has no rows")

UNIT = Unit(rows=16)
NOBODY = replace(encode(SCHEMA, frame(0)), persons=np.zeros(0, np.uint64))
TARGETED = replace(encode(SCHEMA, pd.DataFrame([TARGET] * UNIT.rows)), persons=np.zeros(UNIT.rows, np.uint64))
OTHERS = replace(encode(SCHEMA, frame(40)), persons=np.arange(1, 41, dtype=np.uint64))


@dataclass
class Seen:
    """What the adversary makes of the numbers that one run releases: how well they fit the person's presence."""

    known: Table
    fit: float = 0.0
    weight: float = 0.0
    sums: int = 0

    def receive(self, query: Query, values: np.ndarray[Any, Any], std: float) -> None:
        """Take in the released integers of a query, of noise ``std``."""
        mark = query.answer(TARGETED).astype(float)
        rest = values - query.answer(self.known)
        self.fit += float(rest @ mark) / std**2
        self.weight += float(mark @ mark) / std**2
        self.sums += 1

    @property
    def score(self) -> float:
        """Return a number that is standard normal without the person, if noise is what it says."""
        return self.fit / math.sqrt(self.weight)


def overhear(seen: Seen, message: Message, ask: Ask) -> Reply:
    """Under local noise, the replies of the canary's site are the adversary's."""
    reply = ask(message)
    query, head = message.request.query, message.request.head
    if message.site == "canary" and isinstance(query, Query) and isinstance(reply.answer, PlainAnswer):
        norms = protect(query.sensitivity(SCHEMA), message.request.agreement.change, pooled=False)
        seen.receive(query, reply.answer.values, noise_std(head.release, norms))
    return reply


class Nothing:
    """A generator that makes nothing of what was released: the adversary has seen it all."""

    def generate(self, *args: Any) -> Synthesizer:
        return Synthesizer(SCHEMA, (), cast("Any", SimpleNamespace(total=1.0)))


METHODS: dict[str, Callable[[], Any]] = {
    "oneshot": lambda: OneShot(iterations=1),
    "augflaim": lambda: AugFLAIM(rounds=1, measure_share=0.99, rate=1.0, iterations=1, final_iterations=1),
    "fedprivsyn": lambda: FedPrivSyn(generator=Nothing()),
    "fedchowliu": lambda: FedChowLiu(cells=4),
    "aim": lambda: AIM(rounds=2, iterations=1, final_iterations=1),
}
TRUSTS: dict[str, Trust] = {
    "local": LocalNoise(),
    "secure": SecureSum(min_honest=2, dropouts=0),
    "trusted": TrustedServer(),
}
# Secure sums of one method are looked at in every run of the tests; those of the others take a minute.
PAIRS = [
    pytest.param(method, trust, marks=[pytest.mark.slow] if trust == "secure" and method != "oneshot" else [])
    for method in METHODS
    for trust in TRUSTS
    if method != "aim" or trust == "trusted"
]


def run(method: str, trust: str, seed: int, target: bool, patch: pytest.MonkeyPatch) -> Seen:
    seen = Seen(NOBODY if trust == "local" else OTHERS)
    tables = {"canary": TARGETED if target else NOBODY, "others": OTHERS}
    options: dict[str, Any] = {}
    if trust == "local":
        options["transport"] = Faulty(partial(overhear, seen))
    with patch.context() as inner:
        if trust != "local":
            listen(inner, seen)
        federation = federate(tables, SCHEMA, BUDGET, trust=TRUSTS[trust], seed=seed, unit=UNIT, **options)
        METHODS[method]().fit(federation)
    return seen


def listen(patch: pytest.MonkeyPatch, seen: Seen) -> None:
    """Let the adversary hear every released sum, every site's own answer, and what a vault opens."""
    released, opened = Federation._sum, TrustedVault.open

    def hear(federation: Federation, request: Request, outcome: Released) -> Sum:
        query = request.query
        assert isinstance(query, Query)
        if outcome.sites == ("canary",):  # a site's own answer
            mine = Seen(NOBODY)
            mine.receive(query, outcome.values, outcome.std)
            seen.fit, seen.weight, seen.sums = seen.fit + mine.fit, seen.weight + mine.weight, seen.sums + 1
        elif "canary" in outcome.sites:
            seen.receive(query, outcome.values, outcome.std)
        return released(federation, request, outcome)

    def look(vault: TrustedVault, query: Counts, share: float) -> tuple[list[Any], list[float]]:
        tables, stds = opened(vault, query, share)
        weights = query.weights or (1,) * len(tables)
        values = np.concatenate([table.ravel() * weight for table, weight in zip(tables, weights, strict=True)])
        seen.receive(query, values, stds[0] * weights[0])
        return tables, stds

    patch.setattr(Federation, "_sum", hear)
    patch.setattr(TrustedVault, "open", look)


def distance(method: str, trust: str, patch: pytest.MonkeyPatch) -> tuple[float, float]:
    """Return how far apart runs with and without the person are, in standard deviations, and its standard error."""
    half = RUNS // 2
    found = [run(method, trust, FIRST + at, at < half, patch) for at in range(RUNS)]
    assert all(seen.sums for seen in found)
    scores = np.array([seen.score for seen in found])
    with_it, without = scores[:half], scores[half:]
    spread = math.sqrt((with_it.var(ddof=1) + without.var(ddof=1)) / 2)
    apart = float(with_it.mean() - without.mean()) / spread
    return apart, math.sqrt(2 / half + apart**2 / (4 * half))


def halve(patch: pytest.MonkeyPatch) -> None:
    """Let every sample of noise be half of what it says."""
    whole = noise.discrete_gaussian
    patch.setattr(noise, "discrete_gaussian", lambda sigma, size, bits: whole(sigma / 2, size, bits))


def drop_a_share(patch: pytest.MonkeyPatch) -> None:
    """Let every second answer of a secure sum have no noise of its own: one site of two adds none."""
    whole, calls = noise_shares.NoiseShare.add_to, [0]

    def added(share: noise_shares.NoiseShare, answer: Any, seeds: Any) -> Any:
        calls[0] += 1
        return whole(share, answer, seeds) if calls[0] % 2 else answer.copy()

    patch.setattr(noise_shares.NoiseShare, "add_to", added)


@pytest.mark.parametrize(("method", "trust"), PAIRS)
def test_a_person_is_found_no_more_surely_than_the_budget_says(method, trust, monkeypatch):
    """The distance is at most sqrt(2 rho), at 99.9 %; and it is not far below, so that somebody has looked."""
    apart, error = distance(method, trust, monkeypatch)
    assert apart - SURE * error < BOUND, (apart, error)
    assert apart > 0.6 * BOUND, (apart, error)


@pytest.mark.parametrize(("method", "trust"), PAIRS)
def test_a_person_is_found_where_noise_is_missing(method, trust, monkeypatch):
    """The same runs, at the same seeds, are beyond the bound once noise is half, or a site's share of it is missing."""
    (drop_a_share if trust == "secure" else halve)(monkeypatch)
    apart, error = distance(method, trust, monkeypatch)
    assert apart - SURE * error > BOUND, (apart, error)


def test_the_adversary_is_looking_for_one_person():
    """The canary is a person whom nobody else resembles, and whose rows are all that the site has."""
    assert (len(NOBODY), len(TARGETED), len(OTHERS)) == (0, UNIT.rows, 40)
    assert TARGET["diagnosis"] not in set(frame(40)["diagnosis"])

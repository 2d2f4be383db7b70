"""Methods that train networks, as members of the house: what is missing is said before anything is spent."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.contract.world import SCHEMA, random_table
from tests.world import Faulty

from fedsynth.deep.encoders import BatchLayout, Encoder
from fedsynth.deep.fedctgan import FedCTGAN
from fedsynth.deep.fedtabdiff import FedTabDiff
from fedsynth.deep.fedvae import FedVAE
from fedsynth.deep.training import GradientSum, LocalTraining, grid_for, require_size
from fedsynth.deep.vae import AutoEncoder
from fedsynth.errors import InvalidParameter, Refused, SiteLost, Unsupported
from fedsynth.federation.federation import Federation
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import weights_digest
from fedsynth.federation.simulate import federate
from fedsynth.federation.wire import LARGEST_MESSAGE, decode, encode
from fedsynth.methods import all_methods
from fedsynth.privacy.cost import Budget
from fedsynth.runs.dry_run import dealt, dry_run
from fedsynth.schema import Categorical, Schema
from fedsynth.terms import Terms

TRAINING = [one for one in all_methods() if one.trains]
ENCODERS = tuple(Encoder(np.arange(size)) for size in SCHEMA.sizes)
NETWORK = AutoEncoder(hidden=(8,), latent=2)


def world(**options: Any) -> Federation:
    data = [random_table(50, 0), random_table(30, 1)]
    return federate(data, SCHEMA, Budget(2.0, 1e-6), trust=LocalNoise(), seed=3, **options)


def gradients(federation: Federation) -> None:
    weights = NETWORK.initial(BatchLayout.of(ENCODERS), np.random.default_rng(0))
    query = GradientSum(0.5, weights_digest(weights), NETWORK, ENCODERS, 1.0, grid_for(1.0, len(weights)))
    federation.sum(query, 0.5, weights)


@pytest.mark.parametrize("one", TRAINING, ids=[one.name for one in TRAINING])
def test_a_method_says_what_to_install_before_anything_is_spent(one, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    federation = world()
    with pytest.raises(Unsupported, match=r"fedsynth\[deep\]"):
        one.kind(**({} if one.private else {"not_private": True})).fit(federation)
    assert not federation.ledger.entries


def test_a_site_without_pytorch_refuses_to_train_and_charges_nothing(monkeypatch, caplog):
    pytest.importorskip("torch")
    link = Faulty()
    federation = world(transport=link)
    members = link.doors.values()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Refused, match="gradient-sum"):
        gradients(federation)
    assert "fedsynth[deep]" in caplog.text
    assert not any(member.account.charges() for member in members)
    monkeypatch.undo()
    gradients(federation)
    assert all(len(member.account.charges()) == 1 for member in members)


def test_the_steps_of_a_loop_are_numbered_and_told():
    told: list[tuple[str, int, int]] = []
    federation = world(progress=lambda what, done, total: told.append((what, done, total)))
    assert list(federation.repeat("training", 3)) == [0, 1, 2]
    assert told == [("training", 0, 3), ("training", 1, 3), ("training", 2, 3), ("training", 3, 3)]


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (FedTabDiff, {"width": 4}),
        (FedTabDiff, {"predicts": "both"}),
        (FedVAE, {"latent": 1}),
        (FedVAE, {"updates": -1}),
        (FedCTGAN, {"noise": 1}),
    ],
)
def test_a_network_that_no_site_would_train_is_refused_at_once(kind, option):
    with pytest.raises(InvalidParameter):
        kind(**option)


def test_updates_at_the_sites_need_a_number_of_updates():
    """FedVAE's default is none; the run used to end after the survey and the sites' numbers of rows were paid for."""
    cases: tuple[tuple[Any, dict[str, Any]], ...] = ((FedVAE, {}), (FedTabDiff, {"updates": 0}))
    for kind, options in cases:
        with pytest.raises(InvalidParameter, match=r"local = true .* updates = 0; .* --set updates=20"):
            kind(local=True, **options)
        assert kind(local=True, updates=1).local
    assert FedTabDiff(updates=0).updates == 0


@pytest.mark.parametrize("kind", [FedTabDiff, FedVAE, FedCTGAN])
def test_a_step_that_no_site_would_take_is_refused_with_the_range_that_it_may_have(kind):
    for rate in (1.5, 9e-5, 0, -1, math.nan, math.inf):
        with pytest.raises(InvalidParameter, match=r"rate must lie between 0.0001 and 1, not"):
            kind(rate=rate)
    for clip in (1e-6, 2.0**21, math.nan, math.inf):
        with pytest.raises(InvalidParameter, match=r"clip must lie between 1e-05 and 1048576.0, not"):
            kind(clip=clip)
    for name in ("learning_rate", "server_rate") if kind is not FedCTGAN else ("learning_rate",):
        for number in (0.0, 1.5, math.nan):
            with pytest.raises(InvalidParameter, match=rf"{name} must lie in \(0, 1\], not"):
                kind(**{name: number})


@pytest.mark.parametrize("clip", [1e-5, 2.0**20])
@pytest.mark.parametrize("rate", [1e-4, 1.0])
def test_steps_of_the_widest_range_are_messages_that_a_site_reads(rate, clip):
    """With a network that fills a message, and for LocalTraining the most updates and rows of a batch."""
    kinds: tuple[type[FedTabDiff | FedVAE], ...] = (FedTabDiff, FedVAE)
    for kind in kinds:
        options = kind(rate=rate, clip=clip, updates=4096, batch=2**16, learning_rate=1.0)
        grid = grid_for(options.clip, LARGEST_MESSAGE // 8)
        common = (options.rate, weights_digest(np.zeros(1, dtype=np.float32)), NETWORK, ENCODERS)
        for query in (
            GradientSum(*common, options.clip, grid),
            LocalTraining(*common, options.clip, grid, options.updates, 0, options.learning_rate, 0.0, ()),
            LocalTraining(*common, 0.0, grid, options.updates, options.batch, options.learning_rate, 0.0, ()),
        ):
            read = decode(encode(query), type(query))
            assert (read.rate, read.clip, read.grid) == (query.rate, query.clip, query.grid)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (FedTabDiff(width=2048, depth=8, tokens=10**6), "MiB are allowed"),
        (FedVAE(tokens=10**6, width=256), "numbers per row"),
        (FedCTGAN(tokens=10**6), "numbers per row"),
    ],
)
def test_a_network_that_may_be_too_large_for_a_message_is_refused_before_anything_is_spent(method, says):
    """40,000 values, as far as anybody knows before the survey."""
    column = Categorical("c", tuple(range(40_000)))
    schema = Schema((column, Categorical("d", ("x", "y"))))
    frame = pd.DataFrame({"c": [1, 2, 3] * 20, "d": ["x", "y"] * 30})
    federation = federate([frame, frame[:-1]], schema, Budget(2.0, 1e-6), trust=LocalNoise(), seed=3)
    with pytest.raises(InvalidParameter, match=says):
        method.fit(federation)
    assert not federation.ledger.entries
    network = method.network() if isinstance(method, FedTabDiff) else getattr(method, "network", NETWORK)
    with pytest.raises(InvalidParameter, match=says):
        require_size(schema, network, 10**6, 1)
    require_size(schema, network, 16)


def test_a_dry_run_trains_nothing(monkeypatch):
    """What messages weigh depends on no weight: a wide network is forecast in seconds."""
    monkeypatch.setattr(GradientSum, "trained", None)
    monkeypatch.setattr(LocalTraining, "trained", None)
    for method in (FedTabDiff(width=1024, local=True, updates=100), FedTabDiff(width=16, depth=1, steps=3)):
        parts = dealt(random_table(50, 0), 2, 0)
        federation, _ = dry_run(method, Terms(SCHEMA, Budget(2.0, 1e-6), "local"), parts, seed=0)
        assert federation.ledger.exchanges > (40 if method.local else 3)
    with pytest.raises(SiteLost):  # in a run sites do train
        FedTabDiff(width=16, depth=1, steps=3).fit(world())


def test_whole_numbers_do_for_options_that_are_none():
    federation = world()
    FedVAE(width=16, depth=1, latent=4, factor=2, clip=1, rate=1, steps=2).fit(federation)
    assert federation.ledger.share_spent == pytest.approx(1, abs=1e-3)

"""Strategies of the questions that train networks: whole domains of their parameters, and hostile weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsynth.deep.diffusion import Diffusion
from fedsynth.deep.encoders import MOST_TOKENS, BatchLayout, CellPlaces, Encoder
from fedsynth.deep.gan import GAN, Critic, Generator
from fedsynth.deep.networks import size_of
from fedsynth.deep.one_hot import OneHot
from fedsynth.deep.training import GradientSum, LocalTraining, Network, NetworkTraining, grid_for
from fedsynth.deep.vae import AutoEncoder
from fedsynth.federation.query import LARGEST_WEIGHT, AnyQuery, Weights, weights_digest
from fedsynth.schema import Column, Schema

SITE = "north"
_CHECKED = 2**18  # weights that are made for a question at most: one of more is checked, and never asked
_EXTREMES = (-1e308, -1e30, -1.0, -1e-300, 0.0, 1e-300, 1.0, 5.0, 1e30, 1e308)


def rare(usual: st.SearchStrategy[Any], unusual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return ``usual``, and one time in thirty ``unusual``."""
    return st.sampled_from([usual] * 29 + [unusual]).flatmap(lambda drawn: drawn)


def gradient_sums(schema: Schema) -> st.SearchStrategy[AnyQuery]:
    """Return gradient sums, most of them with a grid that suits the clip norm."""
    return asked(schema, False)


def local_trainings(schema: Schema) -> st.SearchStrategy[AnyQuery]:
    """Return local training, on samples that are clipped and on batches."""
    return asked(schema, True)


@st.composite
def asked(draw: st.DrawFn, schema: Schema, local: bool) -> NetworkTraining:
    """Draw a question; its weights are those of :func:`weights_of`."""
    encoders = tuple(draw(encoder(column)) for column in schema.stored)
    network = draw(networks(schema, _tokens(encoders)))
    cells = _cells(network, encoders)
    clip = draw(rare(st.sampled_from([2.0**-20, 1e-3, 1.0, 77.7, 2.0**20]), st.sampled_from([0.0, 1e-300, 2.0**20])))
    batch = draw(st.sampled_from([0, 0, 1, 7])) if local else 0
    clip = draw(rare(st.just(0.0 if batch else clip), st.just(clip)))
    least = min(40, grid_for(clip, max(1, cells))) if clip > 1e-30 else 24
    most = min(40, math.floor(30 - math.log2(clip))) if clip > 1e-30 else 40
    grid = draw(rare(st.integers(least, max(least, most)), st.integers(0, 40)))
    digest = "0" * 64 if cells > _CHECKED else weights_digest(weights_of(draw(hostile_weights()), cells))
    rate = draw(st.sampled_from([1.0, 1.0, 0.5, 1e-4]))
    if not local:
        return GradientSum(rate, digest, network, encoders, clip, grid)
    sizes = draw(st.lists(st.tuples(st.just("south"), st.sampled_from([1, 77, 2**28])), max_size=1))
    if draw(rare(st.just(True), st.just(False))):
        sizes.append((SITE, draw(st.sampled_from([1, 10, 2**28]))))
    updates = draw(rare(st.integers(1, 3), st.sampled_from([4096])))
    speed = draw(st.sampled_from([1e-300, 1e-3, 1.0]))
    decay = draw(st.sampled_from([0.0, 1e-300, 1.0]))
    epochs = draw(st.sampled_from([0, 0, 1, 4096])) if batch else draw(rare(st.just(0), st.just(1)))
    return LocalTraining(
        rate, digest, network, encoders, clip, grid, updates, batch, speed, decay, tuple(sizes), epochs
    )


@st.composite
def networks(draw: st.DrawFn, schema: Schema, hot: int) -> Network:
    """Draw a network: small ones, and now and then one that a site must refuse; ``hot`` tokens have shares."""
    columns = len(schema.stored)
    widths = st.lists(rare(st.sampled_from([8, 9]), st.just(1024)), min_size=1, max_size=4).map(tuple)
    match draw(st.sampled_from(["diffusion", "vae", "critic", "gan"])):
        case "diffusion":
            return Diffusion(
                draw(rare(st.sampled_from([8, 9]), st.just(2048))),
                draw(rare(st.integers(1, 2), st.just(8))),
                draw(st.sampled_from([2, 3, 1000])),
                draw(st.booleans()),
                draw(st.sampled_from([1, 2, 16])),
                draw(rare(st.integers(-1, columns - 1), st.sampled_from([columns, 1 << 16]))),
                draw(st.sampled_from([0, 1 << 31])),
            )
        case "vae":
            factor, sigma = draw(st.sampled_from([0.01, 2.0, 100.0])), draw(st.sampled_from([0.01, 0.1, 1.0]))
            return AutoEncoder(draw(widths), draw(st.sampled_from([2, 3, 256])), factor, sigma)
        case "gan":
            shares = draw(st.sampled_from([0.0, 1e-300, 0.5, 1.0]))
            count = draw(rare(st.just(hot), st.integers(0, hot + 1)))
            return GAN(Critic(draw(widths)), Generator(draw(st.sampled_from([2, 3])), draw(widths)), (shares,) * count)
        case _:
            return Critic(draw(widths))


@st.composite
def encoder(draw: st.DrawFn, column: Column) -> Encoder:
    """Draw how a column is read: one group, groups with gaps, huge ones; places at both ends and beyond them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if not column.is_number:
        return Encoder(draw(groups(column.size)))
    cuts = draw(st.lists(st.sampled_from(_EXTREMES) | st.floats(-20, 30), min_size=1, max_size=6, unique=True))
    upper = np.array(sorted({cut + 0.0 for cut in cuts}))
    cells = len(upper)
    lower = np.append(draw(st.sampled_from([-1e308, -1.7e308, upper[0]])), upper[:-1])
    if draw(rare(st.just(False), st.just(True))):
        lower = lower[::-1].copy()  # cells that end before they begin, but for the middle
    begin = rng.choice([0.0, 0.5, 1.0, 5e-324], cells)
    share = np.where(rng.random(cells) < 0.5, 1 - begin, 0.0)
    if draw(rare(st.just(False), st.just(True))):
        share = share + draw(st.sampled_from([1e-10, 1.0]))
    places = CellPlaces(lower, upper, begin, share)
    given = Encoder(draw(groups(cells + column.missing)), places)
    found: Encoder = draw(rare(st.just(given), st.just(Encoder(np.zeros(1, dtype=np.int64)))))
    return found


@st.composite
def groups(draw: st.DrawFn, cells: int) -> NDArray[np.int64]:
    token = st.sampled_from([0, 0, 1, 2, 30]) | rare(
        st.integers(0, 3), st.sampled_from([MOST_TOKENS - 1, MOST_TOKENS, 2**24, -1, 2**62])
    )
    count = draw(rare(st.just(cells), st.integers(0, cells + 1)))
    same = draw(rare(st.booleans(), st.just(True)))
    found = [draw(token)] * count if same else draw(st.lists(token, min_size=count, max_size=count))
    return np.array(found, dtype=np.int64)


# ---------------------------------------------------------------------------------------------------------------------
# Weights


_KINDS = ("started", "zero", "thousand", "mixed", "denormal", "far", "infinite", "undefined")
_SENT: dict[str, Weights] = {}


def hostile_weights() -> st.SearchStrategy[tuple[str, int]]:
    """Return names of weights: ordinary ones, the largest, denormal ones, and some that must be refused."""
    accepted, refused = st.sampled_from(_KINDS[:5]), st.sampled_from(_KINDS[5:])
    return st.tuples(rare(accepted, refused), st.integers(0, 2**32))


def weights_of(named: tuple[str, int], cells: int) -> Weights:
    name, seed = named
    rng = np.random.default_rng(seed)
    match name:
        case "started":
            found = rng.uniform(-0.5, 0.5, cells)
        case "zero":
            found = np.zeros(cells)
        case "thousand":
            found = rng.choice([-LARGEST_WEIGHT, LARGEST_WEIGHT], cells)
        case "mixed":
            found = np.clip(rng.standard_normal(cells) * 10.0 ** rng.integers(-30, 4, cells), -1024, 1024)
        case "denormal":
            found = rng.choice([-1e-42, 1e-38, 0.0, 1e-45], cells)
        case _:
            found = rng.uniform(-1, 1, cells)
            found[rng.integers(cells)] = {"far": 1024.1, "infinite": np.inf, "undefined": np.nan}[name]
    weights = found.astype(np.float32)
    _SENT[weights_digest(weights)] = weights
    return weights


def sent_with(query: NetworkTraining) -> Weights | None:
    """Return the weights that a question was drawn with; none for a network that is too large to be asked."""
    return _SENT.get(query.weights)


def _cells(network: Network, encoders: tuple[Encoder, ...]) -> int:
    """Return the number of weights; 1 where the encoders or the network are refused."""
    try:
        return max(1, size_of(network.shapes(BatchLayout.of(encoders))))
    except ValueError:
        return 1


def _tokens(encoders: tuple[Encoder, ...]) -> int:
    """Return the number of tokens that need shares; 0 where the encoders are refused, and at most 2^16."""
    try:
        return min(1 << 16, OneHot.of(BatchLayout.of(encoders)).hot)
    except ValueError:
        return 0

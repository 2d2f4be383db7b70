"""Training networks over sites: the queries that sites answer, and the two training loops.

There are two mechanisms, never mixed. DP-FedSGD asks for one clipped gradient sum per step (:class:`GradientSum`),
noised like any other sum; it gives the better rows at equal epsilon. In FedAvg (McMahan et al., arXiv 1602.05629) sites
take several steps on their own (:class:`LocalTraining`), each with the site's own noise, and the server averages the
results. Without privacy both run without noise; gradient sums, or the changes of the weights, are rounded to multiples
of a power of 2 then, too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.deep.diffusion import Diffusion
from fedsynth.deep.encoders import BatchLayout, EncodedBatch, Encoder, Encoders, check_encoders, encode_rows
from fedsynth.deep.gan import GAN, Adversaries, Critic, Generator
from fedsynth.deep.networks import Adam, numbers_of_row, size_of
from fedsynth.deep.vae import AutoEncoder
from fedsynth.errors import InvalidParameter, Unsupported, between, lacking, whole
from fedsynth.federation.query import LARGEST_WEIGHT, RecordCount, SiteRandomness, Training, Weights, weights_digest
from fedsynth.federation.wire import LARGEST_MESSAGE
from fedsynth.methods.measure import check_shares, share_left, shares
from fedsynth.methods.registry import COHORT_RATE, Promise
from fedsynth.methods.survey import CLEAR, Survey
from fedsynth.privacy.cost import Sensitivity
from fedsynth.privacy.device import device
from fedsynth.privacy.release import MOST_STEPS, SMALLEST_RATE, Exact

if TYPE_CHECKING:
    from torch import Tensor

    from fedsynth.deep.dpsgd import RowLosses
    from fedsynth.deep.networks import Shapes
    from fedsynth.federation.federation import Federation, Share
    from fedsynth.models.adaptive_bins import AdaptiveBins
    from fedsynth.privacy.noise import RandomBits
    from fedsynth.rows import Table
    from fedsynth.schema import Schema
    from fedsynth.schema.bins import Floats, Integers

GRID = 10
"""Bits of the grid below the clip norm, at least: 2^grid C >= 2^GRID sqrt(d), so that rounding adds 1/1000 at most."""
_FINEST = 2.0**30  # 2^grid C at most: sums over 2^28 rows stay below 2^59
_UPDATE = 2**31 - 1  # grid steps by which a weight changes in a round, at most
_HEAVIEST = 2**12  # weight of the largest site in an average; the others in proportion
_PLAIN_GRID = 24  # bits of the grid without clipping: steps of 6e-8, changes of up to 128 in a round
_PART = 1 << 16  # rows that are encoded at a time, at most
_LEAST_PART = 1 << 10  # and at least: sums of floats over the parts would lose too much (privacy/dpsgd.py)
_ENCODED = 1 << 25  # encoded numbers held at a time: a diffusion has up to 16 for each column
_NUMBERS = 1 << 16  # numbers per row in all layers, at most: 576 rows with their gradients and products take 1 GiB
_WORK = 1 << 27  # weights times updates times the share of rows in each, at most in one query
_LEAST_SHARE = 2.0**-4  # share of rows that an update counts for, at least: noise and Adam take time for few rows too
_ORDERS = 3  # of random rows, with which a machine's rounding is tried
_FAKES = 512  # that a site generates for each step of a GAN, unless a step has a batch of rows
_UNCLIPPED = 2.0**60  # no gradient of a fake is longer
_PADDED = 576  # rows by which drawn ones are padded, at most (privacy/dpsgd.py)
_LARGEST_CLIP = 2.0**20
_LEAST_CLIP = 1e-5  # 2^25 weights, more than a message holds, then need a grid of 2^-40, the finest
_LARGEST_BATCH = 2**16  # rows of a batch, at most
_LARGEST_LEARNING_RATE = 1.0
_ORDERED = 1 << 24  # rows of all batches of a round, at most
_BESIDE = 1 << 16  # bytes of a message besides the weights, at most
_BATCH = 1 << 26  # numbers in all layers for a batch's rows, at most

# Measured seconds on one core, times four: per row that a step may draw; per drawn row; per drawn row and weight; per
# weight and step.
_SECONDS_TO_DRAW, _SECONDS_OF_ROW, _SECONDS_OF_PRODUCT, _SECONDS_OF_WEIGHT = 2e-7, 2e-5, 4e-10, 2e-6

EXEMPT: Mapping[Promise, str] = {
    "any split": "each site draws the rows of a step from its own secret",
    "any trust": "the draw of a step's rows depends on the query, which includes the trust model",
    "pure budget": "the noise of gradient sums is Gaussian",
    "public sizes": "no accountant covers sampled rows under replacement of a record",
}
"""Promises of the contract suite from which methods that train networks are exempt."""

Network = Diffusion | AutoEncoder | Critic | GAN
"""The networks that sites train."""

Sizes = Annotated[
    tuple[
        tuple[
            Annotated[str, msgspec.Meta(max_length=64)],
            Annotated[int, msgspec.Meta(ge=1, le=2**28)],
        ],
        ...,
    ],
    msgspec.Meta(max_length=2**14),
]
"""Numbers of rows by site, declared public or released with noise before: pairs (site, rows)."""


# ---------------------------------------------------------------------------------------------------------------------
# Queries


class NetworkTraining(Training, frozen=True):
    """Common part of the two training queries: :class:`GradientSum` (DP-FedSGD) and :class:`LocalTraining` (FedAvg).

    A site computes, from its own rows, clipped gradients of ``network`` on rows encoded by ``encoders``. The gradient
    of each row is clipped to the L2 norm ``clip`` (0: not clipped, and no noise is possible). Sums of clipped
    gradients, and changes of weights, are rounded to multiples of ``2^-grid``. ``rate`` and ``weights`` are those of
    :class:`~fedsynth.federation.query.Training`; ``rate`` is not used in batches.
    """

    network: Network
    encoders: Encoders
    clip: Annotated[float, msgspec.Meta(ge=0, le=_LARGEST_CLIP)]
    grid: Annotated[int, msgspec.Meta(ge=0, le=40)]

    def __post_init__(self) -> None:
        """Refuse a clip norm of -0.0, a second encoding of the same value."""
        if math.copysign(1, self.clip) < 0:
            raise InvalidParameter("clip = -0.0 is not allowed; give a positive number, or 0")

    @property
    def clipped(self) -> bool:
        """Whether gradients are clipped, which any noisy release needs."""
        return self.clip > 0

    @property
    def device(self) -> str:
        """Device on which this machine trains: "cpu" or "cuda".

        Clipped gradients are computed on a GPU only if the machine's operator names it
        (:func:`~fedsynth.privacy.device.device`). Raises :class:`Unsupported` if that GPU is missing.
        """
        return device(clipped=self.clipped)

    @property
    def layout(self) -> BatchLayout:
        """Layout of the network's input."""
        return BatchLayout.of(self.encoders)

    @property
    def shapes(self) -> Shapes:
        """Shapes of the network's weights, layer by layer; in messages the weights are one flat vector."""
        return self.network.shapes(self.layout)

    def check(self, schema: Schema) -> None:
        """Raise :class:`InvalidParameter` for parameters under which no valid or affordable answer exists.

        These are encoders that do not cover the schema's columns and values, a ``grid`` so coarse that rounding would
        exceed a thousandth of ``clip`` or so fine that sums might overflow, and networks whose layers hold more than
        65,536 numbers per row. These public numbers also bound the memory for gradients, however many rows are drawn.
        """
        check_encoders(self.encoders, schema)
        if isinstance(self.network, GAN):
            self.network.check(self.layout)
        cells = self.cells(schema)
        if (held := numbers_of_row(self.shapes)) > _NUMBERS:
            raise _too_wide(held)
        step = math.ldexp(self.clip, self.grid)
        if self.clip and not math.ldexp(math.sqrt(cells), GRID) <= step <= _FINEST:
            raise InvalidParameter(
                f"a grid of 2^-{self.grid} does not suit {cells} weights and gradients clipped to {self.clip:g}; "
                f"2^grid clip must be at least {math.ldexp(math.sqrt(cells), GRID):.3g} and at most {_FINEST:.3g}"
            )

    @classmethod
    def require(cls) -> None:
        """Raise :class:`Unsupported` if this machine has no PyTorch, or not the GPU that its operator named."""
        if find_spec("torch") is None:
            raise lacking("deep", "training networks needs PyTorch, here and at every site")
        device(clipped=True)  # raises if a named GPU is missing

    def require_rounding(self) -> None:
        """Raise :class:`Unsupported` if this machine rounds a row's clipped gradient differently by its position.

        The proof of the sensitivity excludes that (:mod:`fedsynth.deep.dpsgd`). It is tried with random rows and
        weights, which nobody can foresee, once a process for each network and layout of its input.
        """
        where = self.device
        if self.clipped and not _equal_positions(self.network, self.layout, where):
            raise Unsupported(
                "this machine rounds the gradient of a row differently at different positions of a batch, and the "
                "guarantee of training rests on equal ones; "
                + (
                    "choose --device cpu"
                    if where == "cuda"
                    else "if its PyTorch uses Intel's MKL, set MKL_CBWR=COMPATIBLE in the environment of this process, "
                    "or else use another machine"
                )
            )

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return a bound on how far one record moves the sum of a step in which it is sampled, in L1 and L2.

        In L2 the bound, in steps of the grid, is 2^grid clip, times 1 + 1/32 for rounding in floats, plus sqrt(d) for
        rounding to the grid, for d weights (proof: :mod:`fedsynth.deep.dpsgd`). In L1 it is at most sqrt(d) times that,
        and a replacement is a removal and an addition.
        """
        cells = self.cells(schema)
        l2 = math.ldexp(self.clip, self.grid) * (1 + 2.0**-5) + math.sqrt(cells)
        return Sensitivity(math.sqrt(cells) * l2, l2)

    def cells(self, schema: Schema) -> int:
        """Return the number of weights of the network."""
        return size_of(self.shapes)

    def seconds(self, schema: Schema, rows: int) -> float:
        """Return the seconds that training on a site's ``rows`` rows takes on one slow core, from public numbers alone.

        The estimate is four times what all steps took on one core when they were measured for this formula. Steps
        include the rows by which drawn ones are padded, and clipped gradients the passes in which this machine's
        rounding is tried.
        """
        return self._seconds(schema, rows * self.rate) + self.steps * rows * _SECONDS_TO_DRAW

    def _seconds(self, schema: Schema, drawn: float) -> float:
        cells = self.cells(schema)
        of_row = _SECONDS_OF_ROW * (1 + len(self.encoders) / 10) + _SECONDS_OF_PRODUCT * cells
        tried = _PADDED * (1 + _ORDERS) * of_row if self.clipped else 0.0
        made = 3 * max(_FAKES, drawn) if isinstance(self.network, GAN) else 0.0  # fakes, in three passes
        return tried + self.steps * ((drawn + _PADDED + made) * of_row + _SECONDS_OF_WEIGHT * cells)

    def row_range(self, schema: Schema) -> tuple[int, int]:
        """Return bounds: the clip norm plus what rounding adds or, without clipping, 2^31 - 1."""
        most = math.ceil(math.ldexp(self.clip, self.grid) * (1 + 2.0**-5)) + 1 if self.clip else _UPDATE
        return -most, most

    def split(self, schema: Schema, flat: NDArray[Any]) -> list[Floats]:
        """Return the integers in units of the gradient (or of the weights), shape ``(weights,)``, as the only array."""
        return [np.ldexp(flat.astype(np.float64), -self.grid)]

    def stds(self, std: float) -> list[float]:
        """Return the standard deviation of the noise in the array of :meth:`split`, in its unit."""
        return [math.ldexp(std, -self.grid)]

    @property
    def _together(self) -> int:
        """Number of rows that are encoded at a time."""
        return max(_LEAST_PART, min(_PART, _ENCODED // (16 * len(self.encoders))))

    def _step_sum(self, rows: Table, parameters: Sequence[Any], draws: SiteRandomness, step: int) -> Integers:
        """Return the integer sum of clipped gradients of the rows that a step draws, plus noise if the site adds it."""
        from fedsynth.deep import dpsgd

        rng = _generator(draws.bits(f"rows {step}"))
        drawn = dpsgd.poisson(len(rows), self.rate, draws.bits(f"sample {step}").words)
        drawn = rng.permutation(drawn)  # the sensitivity's proof rests on it
        total = np.zeros(sum(one.numel() for one in parameters))
        for start in range(0, len(drawn), self._together):
            part = drawn[start : start + self._together]
            losses = self.network.losses(self.layout, encode_rows(rows, self.encoders, part), rng)
            total += dpsgd.clipped_sum(losses, parameters, len(part), self.clip)
        return draws.noisy(dpsgd.on_grid(total, self.grid, 2**62), step)


class GradientSum(NetworkTraining, frozen=True):
    """Query for one step of DP-SGD: the sum over sites of the clipped gradients of randomly sampled rows."""

    kind: ClassVar[str] = "gradient-sum"
    verb: ClassVar[str] = "sum"

    def check(self, schema: Schema) -> None:
        """Raise :class:`InvalidParameter` also if ``clip`` is 0: unclipped gradients have no sensitivity."""
        if not self.clip:
            raise InvalidParameter("a gradient sum needs a clip norm; give one above 0")
        super().check(schema)

    def trained(self, rows: Table, weights: Weights, draws: SiteRandomness) -> Integers:
        """Return a site's sum of clipped gradients of the rows it samples, int64, in multiples of 2^-grid."""
        from fedsynth.deep import dpsgd

        return self._step_sum(rows, dpsgd.split(weights, self.shapes, self.device), draws, 0)


class LocalTraining(NetworkTraining, frozen=True):
    """Query for a round of FedAvg: how ``updates`` steps of Adam on a site's own rows change the network's weights.

    The answer is this change times the site's integer weight in the average (:meth:`weights_of`). ``sizes`` holds
    numbers of rows that are public or were released before; weights and steps use these, never a site's own count, and
    a site that it does not name does not train, but answers 0. Exactly one of ``batch`` and ``clip`` is above 0. With
    ``clip``, each step adds up the clipped gradients of randomly sampled rows, adds the site's own noise (none in a
    release without noise), and divides by ``rate`` times the site's number in ``sizes``. With ``batch``, as in the
    papers, a step takes that many rows in random order without clipping, which only a release without noise allows.
    With ``epochs`` above 0, which only batches allow, a site takes as many of the ``updates`` as that many passes over
    its rows take, by its number in ``sizes`` (:meth:`updates_of`). Adam's moments start anew each round;
    ``learning_rate`` and the weight ``decay`` (L2, added to gradients) are Adam's.
    """

    kind: ClassVar[str] = "local-training"
    verb: ClassVar[str] = "average"

    updates: Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)]
    batch: Annotated[int, msgspec.Meta(ge=0, le=_LARGEST_BATCH)]
    learning_rate: Annotated[float, msgspec.Meta(gt=0, le=_LARGEST_LEARNING_RATE)]
    decay: Annotated[float, msgspec.Meta(ge=0, le=1)]
    sizes: Sizes
    epochs: Annotated[int, msgspec.Meta(ge=0, le=MOST_STEPS)] = 0

    @property
    def steps(self) -> int:
        """``updates``; the privacy cost is that of all of them."""
        return self.updates

    def check(self, schema: Schema) -> None:
        """Raise :class:`InvalidParameter` unless just one of ``batch`` and ``clip`` is above 0, and for too much work.

        Limits on the work are 2^27 updates times weights times a share of rows (``rate``, or ``batch`` / 2^16; at least
        1/16), 2^24 rows in the batches of a round, and 2^26 numbers in all layers for a batch. A site that ``sizes``
        names twice and a ``decay`` of -0.0 are also refused.
        """
        super().check(schema)
        if (self.batch > 0) == self.clipped:
            raise InvalidParameter("local training needs either a batch or a clip norm; set one and leave the other 0")
        if self.epochs and not self.batch:
            raise InvalidParameter("epochs need batches: how often a row is sampled says nothing of passes over rows")
        if len(dict(self.sizes)) < len(self.sizes):
            raise InvalidParameter("local training names a site twice; name each site once")
        if math.copysign(1, self.decay) < 0:
            raise InvalidParameter("decay = -0.0 is not allowed; give a positive number, or 0")
        share = max(_LEAST_SHARE, self.batch / _PART if self.batch else self.rate)
        if (work := self.updates * self.cells(schema) * share) > _WORK or self.updates * self.batch > _ORDERED:
            raise InvalidParameter(
                f"{self.updates} updates of {self.cells(schema)} weights on so many rows are too much for one round "
                f"({work:.3g} of {_WORK:.3g}, {self.updates * self.batch} of {_ORDERED} rows in batches); take fewer "
                "updates, and more rounds"
            )
        if self.batch * (held := numbers_of_row(self.shapes)) > _BATCH:
            raise InvalidParameter(
                f"batches of {self.batch} rows are too large for layers that hold {held} numbers per row; take at most "
                f"{_BATCH // held}"
            )

    def seconds(self, schema: Schema, rows: int) -> float:
        """Return the seconds that training takes; with batches, whatever the number of rows."""
        return self._seconds(schema, self.batch) if self.batch else super().seconds(schema, rows)

    def answer_range(self, schema: Schema, rows: int, noise: float) -> tuple[float, float]:
        """Return bounds: a site clips changes to 2^31 - 1 grid steps, and its weight is at most 2^12."""
        return -_UPDATE * _HEAVIEST, _UPDATE * _HEAVIEST

    def updates_of(self, site: str) -> int:
        """Return the number of steps of a ``site`` that ``sizes`` names: ``updates``, or fewer for its ``epochs``."""
        return min(self.updates, updates_for(self.epochs, dict(self.sizes)[site], self.batch) or self.updates)

    def weights_of(self, sites: Sequence[str]) -> list[int]:
        """Return the integer weight of each of ``sites`` in the average; 0 for a site that ``sizes`` does not name.

        Weights are in proportion to the numbers in ``sizes``, rounded up; the largest of these has the weight 2^12.
        """
        sizes = dict(self.sizes)
        most = max(sizes.values(), default=1)
        return [math.ceil(sizes[site] * _HEAVIEST / most) if site in sizes else 0 for site in sites]

    def trained(self, rows: Table, weights: Weights, draws: SiteRandomness) -> Integers:
        """Return the round's change of the weights, times the site's weight, int64, in multiples of 2^-grid."""
        import torch

        from fedsynth.deep import dpsgd

        (own,) = self.weights_of([draws.site])
        if not own:
            return np.zeros(len(weights), dtype=np.int64)
        if isinstance(self.network, GAN):
            with np.errstate(over="ignore", invalid="ignore"):  # of hostile weights
                moved = self._both_trained(self.network, rows, weights, draws) - weights.astype(np.float64)
            return own * dpsgd.on_grid(np.nan_to_num(moved, posinf=0.0, neginf=0.0), self.grid, _UPDATE)
        where = self.device
        parameters = [one.requires_grad_() for one in dpsgd.split(weights, self.shapes, where)]
        adam = torch.optim.Adam(parameters, lr=self.learning_rate, weight_decay=self.decay, fused=True)
        if self.batch:
            self._train(rows, parameters, adam, draws)
        else:
            expected = self.rate * dict(self.sizes)[draws.site]
            for step in range(self.updates):
                total = np.ldexp(self._step_sum(rows, parameters, draws, step).astype(np.float64), -self.grid)
                for one, slope in zip(parameters, dpsgd.split(total / expected, self.shapes, where), strict=True):
                    one.grad = slope
                adam.step()
        moved = dpsgd.flattened(parameters).astype(np.float64) - weights
        return own * dpsgd.on_grid(np.nan_to_num(moved, posinf=0.0, neginf=0.0), self.grid, _UPDATE)

    def _both_trained(self, network: GAN, rows: Table, weights: Weights, draws: SiteRandomness) -> Floats:
        """Return the weights of a GAN after a round: in each step the critic learns from rows and fakes, then the rest.

        Only the critic's gradient on rows is a function of rows. With ``clip`` it is released with noise in every step
        (all coordinates of the query have noise; those of the generator are not used), and all that follows is computed
        from such sums and from draws that do not depend on rows.
        """
        import torch

        from fedsynth.deep import dpsgd

        critic, generator = network.split(self.layout, weights)
        pair = Adversaries(
            network.critic,
            network.generator,
            self.layout,
            np.array(network.shares),
            self.clip or _UNCLIPPED,
            critic,
            generator,
            self.batch or _FAKES,
            self.learning_rate,
            self.decay,
        )
        fakes, where = _generator(draws.bits("fakes")), self.device
        if self.batch:
            shapes = network.critic.shapes(self.layout)
            for losses, chosen in self._batches(rows, draws):
                parameters = [one.requires_grad_() for one in dpsgd.split(pair.critic_weights, shapes, where)]
                slopes = torch.autograd.grad(losses(dpsgd.Tape(parameters), chosen).mean(), parameters)
                pair.step(dpsgd.flattened(slopes).astype(np.float64), fakes)
        else:
            expected = self.rate * dict(self.sizes)[draws.site]
            for step in range(self.updates):
                both = np.concatenate([pair.critic_weights, pair.generator_weights])
                total = self._step_sum(rows, dpsgd.split(both, self.shapes, where), draws, step)
                pair.step(np.ldexp(total[: len(critic)].astype(np.float64), -self.grid) / expected, fakes)
        return np.concatenate([pair.critic_weights, pair.generator_weights]).astype(np.float64)

    def _train(self, rows: Table, parameters: Sequence[Any], adam: Any, draws: SiteRandomness) -> None:
        """Take the steps of a round on batches of rows (:meth:`_batches`)."""
        import torch

        from fedsynth.deep import dpsgd

        for losses, chosen in self._batches(rows, draws):
            adam.zero_grad()
            torch.autograd.backward(losses(dpsgd.Tape(parameters), chosen).mean())
            adam.step()

    def _batches(self, rows: Table, draws: SiteRandomness) -> Iterator[tuple[RowLosses, Tensor]]:
        """Yield each step's batch, as losses and positions: rows in random order, reshuffled after each pass."""
        import torch

        if not len(rows):
            return
        rng = _generator(draws.bits("order"))
        wanted = self.updates_of(draws.site) * self.batch
        order = np.concatenate([rng.permutation(len(rows)) for _ in range(-(-wanted // len(rows)))])[:wanted]
        together = self._together // self.batch * self.batch or self.batch
        for start in range(0, wanted, together):
            part = order[start : start + together]
            losses = self.network.losses(self.layout, encode_rows(rows, self.encoders, part), rng)
            for chosen in torch.arange(len(part)).split(self.batch):
                yield losses, chosen


# ---------------------------------------------------------------------------------------------------------------------
# Network input


def tokens_of(found: Survey, most: int, modes: int = 1) -> list[AdaptiveBins]:
    """Return, for each column, a survey's bins merged into the groups that networks read as tokens.

    A categorical column keeps the ``most`` most frequent values, as far as they count at least 8 standard deviations of
    the noise, and the most frequent one in any case; all others form one more group. A numeric column has at most
    ``modes`` groups, besides one for missing values; if ``modes`` is above 1, a single value that many rows share is
    mostly a group of its own.
    """
    from fedsynth.models.adaptive_bins import rare_together

    columns = []
    for cells in found.columns:
        std = float(np.sqrt(np.median(cells.variances)))
        if cells.grid is not None:
            columns.append(cells.grouped(std, modes))
        else:
            largest = np.sort(cells.counts)[-most] if len(cells.counts) > most else 0.0
            least = min(max(CLEAR * std, float(largest)), float(cells.counts.max()))  # keeps at least one value
            groups = rare_together(cells.counts, least)
            columns.append(replace(cells, groups=groups))
    return columns


# ---------------------------------------------------------------------------------------------------------------------
# Training loops


@dataclass(frozen=True)
class TrainingOptions:
    """Training options of the methods :class:`~fedsynth.deep.fedvae.FedVAE` and FedTabDiff.

    Parameters
    ----------
    rounds, updates, batch, learning_rate
        Without privacy, FedAvg as published: in each of ``rounds`` rounds, every site takes ``updates`` steps of Adam
        on ``batch`` rows, with new moments (``updates = 0``: gradient sums, as under a budget, but without noise). The
        learning rate falls towards zero over the rounds along half a cosine; otherwise averages of heterogeneous sites
        do not converge (Li et al., arXiv 1907.02189). At most 4096 updates, batches of at most 65,536 rows, and a
        learning rate of at most 1.
    steps, rate, clip, server_rate
        Under a budget, DP-FedSGD: ``steps`` steps of Adam at the server with the learning rate ``server_rate``, at most
        1. Each uses one noisy sum of gradients over rows sampled with probability ``rate``, from 1e-4 to 1, each
        gradient clipped to the L2 norm ``clip``, from 1e-5 to 2^20. A few hundred steps, each on many rows, work best.
    local
        Use FedAvg under a budget too: every site takes ``updates`` steps (not 0) on rows sampled with probability
        ``rate``, and adds its own noise to each. This is noisier than sums over sites at equal epsilon, but needs fewer
        rounds.
    survey_share
        Share of the budget for the survey, which defines the encoding of rows.
    size_share
        Share for noisy numbers of rows of the sites, by which FedAvg weights their results (gradient sums need none).
        These numbers must not be declared public (:func:`require_training`).
    tokens
        Largest number of values of a categorical column that the network distinguishes. Rarer values, and those hidden
        by noise, are merged into one, and are drawn by their released counts.
    epochs
        Without privacy, FedAvg with this number of passes over a site's rows in a round in place of ``updates``, as in
        the thesis: small sites then take fewer steps than large ones. 0: ``updates`` at every site. A budget refuses
        it, since a site's number of steps would show its number of rows.
    decay
        Weight decay of Adam, at sites and at the server, from 0 to 1: this multiple of the weights is added to their
        gradient.
    site_rate
        Probability with which a site takes part in a round of FedAvg, or in a step of gradient sums. The server draws
        the sites of all rounds before the first one, whatever their rows. No amplification is claimed for it: a site
        pays in full for each round that it takes part in, and the budget is divided by the number of rounds of the site
        that takes part in most.
    """

    rounds: int = 40
    updates: int = 20
    batch: int = 512
    learning_rate: float = 3e-4
    steps: int = 300
    rate: float = 0.2
    clip: float = 1.0
    server_rate: float = 1e-2
    local: bool = False
    survey_share: float = 0.1
    size_share: float = 0.02
    tokens: int = 256
    epochs: int = 0
    decay: float = 0.0
    site_rate: float = field(default=1.0, metadata=COHORT_RATE)

    def __post_init__(self) -> None:
        shares(survey_share=self.survey_share, size_share=self.size_share)
        check_shares("training", survey_share=self.survey_share, size_share=self.size_share)
        whole(rounds=self.rounds, steps=self.steps, tokens=self.tokens)
        whole(1, _LARGEST_BATCH, batch=self.batch)
        whole(0, MOST_STEPS, updates=self.updates, epochs=self.epochs)
        between(0, 1, decay=self.decay)
        if not 0 < self.site_rate <= 1:
            raise InvalidParameter(f"site_rate must lie in (0, 1], not {self.site_rate}; 1 asks all sites each time")
        check_steps(self.rate, self.clip, learning_rate=self.learning_rate, server_rate=self.server_rate)
        if self.local and not self.updates:
            raise InvalidParameter(
                "with local = true every site takes updates, but updates = 0; give a number from 1 on, such as "
                "--set updates=20 (in Python updates=20)"
            )

    def require(self, federation: Federation) -> None:
        """Raise what :func:`require_training` raises, and :class:`InvalidParameter` for ``epochs`` under a budget."""
        require_training(federation)
        if self.epochs and not federation.budget.exact:
            raise InvalidParameter(
                f"epochs = {self.epochs} gives each site as many steps as its rows take, which shows their number and "
                "has no accounting; under a budget leave epochs = 0, and set updates or steps"
            )

    def train(self, federation: Federation, network: Network, encoders: Sequence[Encoder], total: float) -> Weights:
        """Train ``network`` at the sites for the budget left after the survey, and return its weights.

        ``total`` is the released number of records. Raises what sums and averages raise, and :class:`InvalidParameter`
        for training that the check of the query (:class:`GradientSum` or :class:`LocalTraining`) refuses.
        """
        task = TrainingTask(network, tuple(encoders), total)
        weights = network.initial(task.layout, federation.rng)
        if self.local or (federation.budget.exact and (self.updates or self.epochs)):
            sizes = released_sizes(federation, self.size_share)
            left = share_left(self.survey_share, self.size_share)
            return self.averaged(federation, task, weights, left, sizes)
        return self._descended(federation, task, weights, share_left(self.survey_share))

    def _descended(self, federation: Federation, task: TrainingTask, weights: Weights, share: float) -> Weights:
        """Run DP-FedSGD: one clipped and noisy gradient sum per step."""
        adam = Adam(len(weights), self.server_rate, decay=self.decay)
        rounds, joined = self._rounds(federation, self.steps)
        for cohort in rounds:
            part = task._replace(total=task.total * len(cohort.sites) / len(federation.sites))  # sites count alike
            slope = mean_slope(cohort, part, weights, share / joined, self.rate, self.clip)
            weights = bounded(adam.step(weights, slope))
        return weights

    def _rounds(self, federation: Federation, count: int) -> tuple[Iterator[Federation], int]:
        """Return the sites of each of ``count`` rounds, and the number of rounds of the site that is in most."""
        if self.site_rate == 1:
            return (federation for _ in federation.repeat("training", count)), count
        cohorts = federation.cohorts(self.site_rate, count)
        joined = Counter(site for cohort in cohorts for site in cohort.sites)

        def rounds() -> Iterator[Federation]:
            for step, cohort in enumerate(cohorts):
                federation.progress("training", step, count)
                yield cohort
            federation.progress("training", count, count)

        return rounds(), max(joined.values())

    def averaged(
        self, federation: Federation, task: TrainingTask, weights: Weights, share: Share, sizes: Sizes
    ) -> Weights:
        """Run FedAvg: the average of the sites' own training, weighted by their numbers of rows in ``sizes``.

        An exact ``share`` trains without privacy under any budget, as only replicas that are NOT PRIVATE do.
        """
        private = not (federation.budget.exact or isinstance(share, Exact))
        clip, batch = (float(self.clip), 0) if private else (0.0, self.batch)
        grid = grid_for(clip, len(weights))
        updates = max([updates_for(self.epochs, size, batch) for _, size in sizes], default=0) or self.updates or 1
        if updates > MOST_STEPS:
            raise InvalidParameter(
                f"epochs = {self.epochs} over the rows of the largest site take {updates} steps in batches of {batch}; "
                f"at most {MOST_STEPS} are allowed in a round: take fewer epochs, more rounds or larger batches"
            )
        rounds, joined = self._rounds(federation, self.rounds)
        for step, cohort in enumerate(rounds):
            query = LocalTraining(
                float(self.rate),
                weights_digest(weights),
                task.network,
                task.encoders,
                clip,
                grid,
                updates,
                batch,
                self.learning_rate * cosine(step, self.rounds),
                self.decay + 0.0,
                sizes,
                self.epochs,
            )
            found = cohort.average(query, share if isinstance(share, Exact) else share / joined, weights)
            heavy = sum(query.weights_of(found.sites))
            weights = bounded(weights + found.tables[0] / max(1, heavy))
        return weights


def updates_for(epochs: int, rows: int, batch: int) -> int:
    """Return the number of steps on ``batch`` rows in ``epochs`` passes over ``rows``; 0 without epochs."""
    return math.ceil(epochs * rows / batch) if epochs else 0


def cosine(step: int, steps: int) -> float:
    """Return the factor of the learning rate at ``step`` (from 0) of ``steps``: half a cosine, from 1 towards 0."""
    return (1 + math.cos(math.pi * step / steps)) / 2


def check_steps(rate: float, clip: float, **learning_rates: float) -> None:
    """Raise :class:`InvalidParameter`, before budget is spent, for training steps that sites would refuse to take."""
    between(SMALLEST_RATE, 1, rate=rate)
    between(_LEAST_CLIP, _LARGEST_CLIP, clip=clip)
    for name, number in learning_rates.items():
        if not 0 < number <= _LARGEST_LEARNING_RATE:
            raise InvalidParameter(f"{name} must lie in (0, 1], not {number}; 0.001 is usual")


def check_network(network: Network | Generator) -> None:
    """Raise :class:`InvalidParameter`, before budget is spent, for a network that sites would refuse to train."""
    try:
        msgspec.convert(msgspec.to_builtins(network), type(network))
    except msgspec.ValidationError as error:
        raise InvalidParameter(
            f"sites would refuse to train this network ({error}); change the method's options"
        ) from error


class TrainingTask(NamedTuple):
    """What is trained: a ``network`` on rows encoded by ``encoders``, of ``total`` records at all sites together."""

    network: Network
    encoders: tuple[Encoder, ...]
    total: float

    @property
    def layout(self) -> BatchLayout:
        """Layout of the network's input."""
        return BatchLayout.of(self.encoders)


def require_training(federation: Federation) -> None:
    """Raise :class:`Unsupported`, before budget is spent, if this federation cannot train networks.

    The reasons are a missing PyTorch, or GPU that the operator named, a budget with delta = 0 (the noise is Gaussian),
    and sites' numbers of rows that are declared public, also in runs without privacy: neighbouring tables then differ
    by a replaced record, for which no accountant covers the random sampling of rows.
    """
    NetworkTraining.require()
    if federation.budget.pure:
        raise Unsupported(
            "training adds Gaussian noise, which a budget with delta = 0 does not allow; give a positive --delta, or "
            "choose a method that measures tables"
        )
    if federation.terms.public_sizes:
        raise Unsupported(
            "training under public numbers of rows is not supported: no accountant covers sampled rows when a record "
            "is replaced; run without --public-sizes, or choose a method that measures tables"
        )


def require_size(schema: Schema, network: Network, tokens: int, modes: int = 1) -> None:
    """Raise :class:`InvalidParameter`, before budget is spent, for a network that may become too large for sites.

    Too large are weights that exceed a message, and layers of more than 65,536 numbers per row. The network's size
    depends on the number of tokens of all columns, which is known only after the survey. The check therefore assumes
    the largest: ``tokens`` per categorical column and one for all its other values, ``modes`` per numeric column and
    one for missing values.
    """
    numbers = tuple(at for at, column in enumerate(schema.stored) if column.is_number)
    most = tuple(
        modes + column.missing if column.is_number else min(tokens + 1, column.size + column.missing)
        for column in schema.stored
    )
    shapes = network.shapes(BatchLayout(most, numbers))
    cells, held = size_of(shapes), numbers_of_row(shapes)
    if 8 * cells > LARGEST_MESSAGE - _BESIDE:
        raise InvalidParameter(
            f"the network may have {cells} weights, so that a reply takes {8 * cells / 2**20:.0f} MiB; at most "
            f"{LARGEST_MESSAGE / 2**20:.0f} MiB are allowed: use narrower layers or fewer tokens per column"
        )
    if held > _NUMBERS:
        raise _too_wide(held)


def _too_wide(held: int) -> InvalidParameter:
    return InvalidParameter(
        f"the network's layers hold {held} numbers per row; at most {_NUMBERS} are allowed: use narrower layers or "
        "fewer tokens per column"
    )


def mean_slope(
    federation: Federation, task: TrainingTask, weights: Weights, share: float, rate: float, clip: float
) -> Floats:
    """Return the noisy mean clipped gradient of all sites' rows, ``(weights,)``, from one sum for ``share``."""
    grid = grid_for(clip, len(weights))
    query = GradientSum(float(rate), weights_digest(weights), task.network, task.encoders, float(clip), grid)
    found = federation.sum(query, share, weights)
    present = task.total * len(found.sites) / len(federation.sites)  # a lost site counts as an average one
    return found.tables[0] / (rate * max(1.0, present))


def grid_for(clip: float, cells: int) -> int:
    """Return the exponent b of the grid, the multiples of 2^-b, to which gradients are rounded before summing.

    It is the smallest b, from 0 on, with which rounding a gradient of ``cells`` weights, clipped to the L2 norm
    ``clip``, adds at most 1/1024 to that norm. Without clipping (``clip = 0``) it is 24.
    """
    return max(0, math.ceil(GRID + math.log2(math.sqrt(cells) / clip))) if clip else _PLAIN_GRID


def released_sizes(federation: Federation, share: Share) -> Sizes:
    """Return each site's number of rows, sorted: public, or noisy and at least 1, for ``share`` of the budget."""
    if federation.sizes is not None:
        return tuple(sorted(federation.sizes.items()))
    found = federation.each(RecordCount(), share)
    return tuple(sorted((site, max(1, round(float(one.values[0])))) for site, one in found.items()))


def bounded(weights: Floats | Weights) -> Weights:
    """Return a network's weights as float32, clipped to what sites accept (2^10 in absolute value)."""
    return np.clip(weights, -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.float32)


@lru_cache(maxsize=256)
def _equal_positions(network: Network, layout: BatchLayout, where: str) -> bool:
    """Whether this machine computes equal gradients for a row at all positions, tried with random rows and weights."""
    import torch

    from fedsynth.deep import dpsgd

    rng, rows = np.random.default_rng(), dpsgd.CHUNK
    shapes = network.shapes(layout)
    weights = [rng.standard_normal(shape).ravel() / math.sqrt(shape[-1]) for shape in shapes]
    parameters = dpsgd.split(np.concatenate(weights), shapes, where)
    tokens = np.stack([rng.integers(0, many, rows) for many in layout.tokens], axis=1)
    batch = EncodedBatch(tokens, rng.random((rows, len(layout.numbers))))
    orders = [torch.from_numpy(rng.permutation(rows)) for _ in range(_ORDERS)]
    return dpsgd.equal_positions(network.losses(layout, batch, rng), parameters, orders)


def _generator(bits: RandomBits) -> np.random.Generator:
    """Return a generator seeded with secret bits, for draws that do not decide which rows are sampled."""
    return np.random.Generator(np.random.PCG64(int.from_bytes(bits.words(4).tobytes(), "little")))

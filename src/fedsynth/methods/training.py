"""Training networks over sites: what sites are asked, and the two loops that ask it.

Two mechanisms, never mixed. DP-FedSGD asks for one clipped gradient sum a step (:class:`GradientSum`), to which the
trust adds its noise as to any other sum: at equal epsilon the better one. FedAvg (McMahan et al., arXiv 1602.05629) has
sites take several steps by themselves (:class:`LocalTraining`), each with the site's own noise, and averages what they
arrive at. Without privacy both run without noise, on the same grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter, Unsupported, positive
from fedsynth.federation.query import LARGEST_WEIGHT, Draws, Size, Training, Weights, weights_digest
from fedsynth.federation.wire import LARGEST_MESSAGE
from fedsynth.methods.measure import shares
from fedsynth.methods.registry import Promise
from fedsynth.methods.survey import CLEAR, Survey
from fedsynth.models.diffusion import Diffusion
from fedsynth.models.encoders import Encoder, Encoders, Layout, check_encoders, encode_rows
from fedsynth.models.gan import Critic, Generator
from fedsynth.models.networks import Adam, numbers_of_row, size_of
from fedsynth.models.vae import AutoEncoder
from fedsynth.privacy.cost import Sensitivity
from fedsynth.privacy.device import device

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation, Share
    from fedsynth.models.cells import Cells
    from fedsynth.models.networks import Shapes
    from fedsynth.privacy.noise import RandomBits
    from fedsynth.rows import Table
    from fedsynth.schema import Schema
    from fedsynth.schema.bins import Floats, Integers

GRID = 10
"""Bits of the grid below the clip norm, at least: 2^grid C >= 2^GRID sqrt(d), so that rounding adds a thousandth."""
_FINEST = 2.0**30  # 2^grid C at most: sums over 2^28 rows stay below 2^58
_UPDATE = 2**31 - 1  # parts of the grid that a weight moves by in a round, at most
_HEAVIEST = 2**12  # weight of the largest site in an average; the others in proportion
_PLAIN_GRID = 24  # of weights that are not clipped: 6e-8, moves of up to 128 in a round
_PART = 1 << 16  # rows that are encoded at a time, at most
_LEAST_PART = 1 << 10  # and at least: sums of floats over the parts would lose too much (privacy/dpsgd.py)
_ENCODED = 1 << 25  # numbers of rows that are held at a time: a diffusion has up to 16 for each column
_NUMBERS = 1 << 16  # that layers hold of a row, at most: chunks of 512 rows, their slopes and products take 1 GiB
_WORK = 1 << 27  # weights times updates times the share of the rows in each: what one question may ask a site to do
_LEAST_SHARE = 2.0**-4  # that an update counts for: noise and Adam take their time however few the rows are
_ORDERED = 1 << 24  # rows of all batches of a round, at most
_BESIDE = 1 << 16  # bytes of a message beside weights, at most
_BATCH = 1 << 26  # numbers that layers hold of a batch's rows, at most

# Seconds on one core, times four: for each row that a step may draw, that it draws, and that it draws and weight; and
# for each weight in a step.
_SECONDS_TO_DRAW, _SECONDS_OF_ROW, _SECONDS_OF_PRODUCT, _SECONDS_OF_WEIGHT = 2e-7, 2e-5, 4e-10, 2e-6

EXEMPT: Mapping[Promise, str] = {
    "any split": "each site draws the rows of a step by its own secret",
    "any trust": "the rows of a step are drawn for a question, of which the trust is a part",
    "pure budget": "the noise of gradient sums is Gaussian",
    "public sizes": "no accountant covers samples of rows that are replaced",
}
"""What methods that train do not promise."""

Network = Diffusion | AutoEncoder | Critic
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
"""Public numbers of rows, by site."""


# ---------------------------------------------------------------------------------------------------------------------
# What sites are asked


class NetworkTraining(Training, frozen=True):
    """What :class:`GradientSum` and :class:`LocalTraining` share: the ``network``, and how rows are encoded for it.

    The gradient of each row is clipped to the L2 norm ``clip``, and sums are rounded to multiples of ``2^-grid``.
    """

    network: Network
    encoders: Encoders
    clip: Annotated[float, msgspec.Meta(ge=0, le=2.0**20)]
    grid: Annotated[int, msgspec.Meta(ge=0, le=40)]

    def __post_init__(self) -> None:
        """Refuse a zero with a sign, which would be a second way to say the same."""
        if math.copysign(1, self.clip) < 0:
            raise InvalidParameter("clip must be positive, or 0 without a sign")

    @property
    def clipped(self) -> bool:
        """Whether gradients are clipped."""
        return self.clip > 0

    @property
    def device(self) -> str:
        """The device that this machine trains on."""
        return device(clipped=self.clipped)

    @property
    def layout(self) -> Layout:
        """What the network knows of the columns."""
        return Layout.of(self.encoders)

    @property
    def shapes(self) -> Shapes:
        """Shapes of the network's weights."""
        return self.network.shapes(self.layout)

    def check(self, schema: Schema) -> None:
        """Refuse encoders that do not fit the schema, and grids for which the sensitivity would not hold.

        Memory that an answer takes follows from these public numbers, and not from the rows: what is too large is
        refused here.
        """
        check_encoders(self.encoders, schema)
        cells = self.cells(schema)
        if (held := numbers_of_row(self.shapes)) > _NUMBERS:
            raise _too_wide(held)
        step = math.ldexp(self.clip, self.grid)
        if self.clip and not math.ldexp(math.sqrt(cells), GRID) <= step <= _FINEST:
            raise InvalidParameter(
                f"a grid of 2^-{self.grid} does not suit {cells} weights clipped to {self.clip:g}; 2^grid clip must be "
                f"at least {math.ldexp(math.sqrt(cells), GRID):.3g} and at most {_FINEST:.3g}"
            )

    @classmethod
    def require(cls) -> None:
        """Raise :class:`Unsupported` where PyTorch is not installed, or finds no GPU though one was named."""
        if find_spec("torch") is None:
            raise Unsupported("training networks needs PyTorch; pip install 'fedsynth[deep]' here and at every site")
        device(clipped=True)  # a GPU that is named and not there

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Bound how far one record moves the sum of one step that it is drawn for.

        The proof is in :mod:`fedsynth.privacy.dpsgd`: 2^grid clip in L2, a 32nd more for rounding in floats, and
        sqrt(d) for rounding to the grid. In L1 it is at most sqrt(d) times that, and a replacement is a removal and an
        addition.
        """
        cells = self.cells(schema)
        l2 = math.ldexp(self.clip, self.grid) * (1 + 2.0**-5) + math.sqrt(cells)
        return Sensitivity(math.sqrt(cells) * l2, l2)

    def cells(self, schema: Schema) -> int:
        """One number for each weight."""
        return size_of(self.shapes)

    def seconds(self, schema: Schema, rows: int) -> float:
        """Return four times what steps on so many rows took on one core: of drawing, encoding, products and noise."""
        return self._seconds(schema, rows * self.rate) + self.steps * rows * _SECONDS_TO_DRAW

    def _seconds(self, schema: Schema, drawn: float) -> float:
        """Return the seconds of all steps, each on so many ``drawn`` rows."""
        cells = self.cells(schema)
        of_row = _SECONDS_OF_ROW * (1 + len(self.encoders) / 10) + _SECONDS_OF_PRODUCT * cells
        return self.steps * (drawn * of_row + _SECONDS_OF_WEIGHT * cells)

    def row_range(self, schema: Schema) -> tuple[int, int]:
        """No coordinate of a clipped gradient is larger than its norm; one more for rounding."""
        most = math.ceil(math.ldexp(self.clip, self.grid) * (1 + 2.0**-5)) + 1 if self.clip else _UPDATE
        return -most, most

    def split(self, schema: Schema, flat: NDArray[Any]) -> list[Floats]:
        """Return the sum in units of the gradient (or of the weights)."""
        return [np.ldexp(flat.astype(np.float64), -self.grid)]

    def stds(self, std: float) -> list[float]:
        """Return the noise in the same units."""
        return [math.ldexp(std, -self.grid)]

    @property
    def _together(self) -> int:
        """Number of rows that are encoded at a time."""
        return max(_LEAST_PART, min(_PART, _ENCODED // (16 * len(self.encoders))))

    def _step_sum(self, rows: Table, parameters: Sequence[Any], draws: Draws, step: int) -> Integers:
        """Return the noisy integer sum of the clipped gradients of the rows that one step draws."""
        from fedsynth.privacy import dpsgd

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
    """The clipped gradients of rows drawn at random, added up: one step of DP-SGD, as a sum over sites."""

    kind: ClassVar[str] = "gradient-sum"
    verb: ClassVar[str] = "sum"

    def check(self, schema: Schema) -> None:
        """Refuse what :class:`NetworkTraining` does, and gradients that are not clipped: they have no range."""
        if not self.clip:
            raise InvalidParameter("a gradient sum needs a clip norm; give one above 0")
        super().check(schema)

    def trained(self, rows: Table, weights: Weights, draws: Draws) -> Integers:
        """Return the sum, in parts of the grid."""
        from fedsynth.privacy import dpsgd

        return self._step_sum(rows, dpsgd.split(weights, self.shapes, self.device), draws, 0)


class LocalTraining(NetworkTraining, frozen=True):
    """How far a site's weights move in ``updates`` steps of Adam on its own rows, times the weight of the site.

    Each step adds up the clipped gradients of rows drawn at random, with the site's own noise, and divides by ``rate``
    times the site's number of rows in ``sizes``, which is a public or a released number, never its own count. Moments
    are those of one round. A site weighs in proportion to that number. With a ``batch``, as in the papers, a step takes
    that many rows of a random order and no clipping (``clip = 0``), which only a release without noise may carry.
    """

    kind: ClassVar[str] = "local-training"
    verb: ClassVar[str] = "average"

    updates: Annotated[int, msgspec.Meta(ge=1, le=2**12)]
    batch: Annotated[int, msgspec.Meta(ge=0, le=2**16)]
    learning_rate: Annotated[float, msgspec.Meta(gt=0, le=1)]
    decay: Annotated[float, msgspec.Meta(ge=0, le=1)]
    sizes: Sizes

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.updates

    def check(self, schema: Schema) -> None:
        """Refuse what :class:`NetworkTraining` does, batches that are clipped, and a site that is named twice."""
        super().check(schema)
        if (self.batch > 0) == self.clipped:
            raise InvalidParameter("local training either takes batches, or draws rows at random and clips; choose one")
        if len(dict(self.sizes)) < len(self.sizes):
            raise InvalidParameter("local training names a site twice")
        if math.copysign(1, self.decay) < 0:
            raise InvalidParameter("decay must be positive, or 0 without a sign")
        share = max(_LEAST_SHARE, self.batch / _PART if self.batch else self.rate)
        if (work := self.updates * self.cells(schema) * share) > _WORK or self.updates * self.batch > _ORDERED:
            raise InvalidParameter(
                f"{self.updates} updates of {self.cells(schema)} weights on so many rows are too much for one round "
                f"({work:.3g} of {_WORK:.3g}, {self.updates * self.batch} of {_ORDERED} rows in batches); take fewer "
                "updates, and more rounds"
            )
        if self.batch * (held := numbers_of_row(self.shapes)) > _BATCH:
            raise InvalidParameter(
                f"batches of {self.batch} rows are too large for layers that hold {held} numbers of each; take at most "
                f"{_BATCH // held}"
            )

    def seconds(self, schema: Schema, rows: int) -> float:
        """Return what :class:`NetworkTraining` does; batches take their time however many rows there are."""
        return self._seconds(schema, self.batch) if self.batch else super().seconds(schema, rows)

    def answer_range(self, schema: Schema, rows: int, noise: float) -> tuple[float, float]:
        """No sum over rows, and its noise is within: a weight moves by at most 2^31 parts, times the site's weight."""
        return -_UPDATE * _HEAVIEST, _UPDATE * _HEAVIEST

    def weights_of(self, sites: Sequence[str]) -> list[int]:
        """Return the weight of each of ``sites`` in the average: none for one that is not named."""
        sizes = dict(self.sizes)
        most = max(sizes.values(), default=1)
        return [math.ceil(sizes[site] * _HEAVIEST / most) if site in sizes else 0 for site in sites]

    def trained(self, rows: Table, weights: Weights, draws: Draws) -> Integers:
        """Return how far the weights moved, in parts of the grid, times the site's weight."""
        import torch

        from fedsynth.privacy import dpsgd

        (own,) = self.weights_of([draws.site])
        if not own:
            return np.zeros(len(weights), dtype=np.int64)
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

    def _train(self, rows: Table, parameters: Sequence[Any], adam: Any, draws: Draws) -> None:
        """Take the steps of a round on batches of rows in random order, begun anew where they run out."""
        import torch

        from fedsynth.privacy import dpsgd

        if not len(rows):
            return
        rng = _generator(draws.bits("order"))
        wanted = self.updates * self.batch
        order = np.concatenate([rng.permutation(len(rows)) for _ in range(-(-wanted // len(rows)))])[:wanted]
        together = self._together // self.batch * self.batch or self.batch
        for start in range(0, wanted, together):
            part = order[start : start + together]
            losses = self.network.losses(self.layout, encode_rows(rows, self.encoders, part), rng)
            for chosen in torch.arange(len(part)).split(self.batch):
                adam.zero_grad()
                torch.autograd.backward(losses(dpsgd.Tape(parameters), chosen).mean())
                adam.step()


# ---------------------------------------------------------------------------------------------------------------------
# Rows as networks read them


def tokens_of(found: Survey, most: int, modes: int = 1) -> list[Cells]:
    """Return a survey's columns in groups that networks read as tokens.

    A category has at most ``most``: values that noise hides, and the rarest, are one group together. A number has at
    most ``modes``; a value that many rows share is one of its own, if there may be several.
    """
    from fedsynth.models.cells import rare_together

    columns = []
    for cells in found.columns:
        std = float(np.sqrt(np.median(cells.variances)))
        if cells.grid is not None:
            columns.append(cells.grouped(std, modes))
        else:
            largest = np.sort(cells.counts)[-most] if len(cells.counts) > most else 0.0
            least = min(max(CLEAR * std, float(largest)), float(cells.counts.max()))  # something is left to train on
            groups = rare_together(cells.counts, least)
            columns.append(replace(cells, groups=groups))
    return columns


# ---------------------------------------------------------------------------------------------------------------------
# The two loops


@dataclass(frozen=True)
class Settings:
    """How a network is trained; what the methods that train one share.

    Parameters
    ----------
    rounds, updates, batch, learning_rate
        Without privacy, FedAvg as published: so many rounds, in each of which every site takes ``updates`` steps of
        Adam on ``batch`` rows, moments begun anew (0: gradient sums, as under a budget, but without noise). The
        learning rate falls to zero over the rounds, half a cosine: without that, averages of sites that
        differ do not converge (Li et al., arXiv 1907.02189).
    steps, rate, clip, server_rate
        Under a budget, DP-FedSGD: so many ``steps`` of Adam at the server with the learning rate ``server_rate``, each
        on one noisy sum of gradients, clipped to the L2 norm ``clip``, of rows that take part with probability
        ``rate``. A few hundred steps, each on many rows, work best.
    local
        Under a budget, FedAvg all the same: every site adds noise of its own to each of its steps. Noisier than sums
        over sites at equal epsilon, but with fewer rounds.
    survey_share
        Share of the budget for the columns by themselves, from which rows are encoded.
    size_share
        Share for the sites' numbers of rows, by which FedAvg weighs them, where these are not public.
    tokens
        Values of a category that the network tells apart, at most: the rarer ones are one to it, and are drawn by their
        released counts. So are all that noise hides.
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

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        shares(survey_share=self.survey_share, size_share=self.size_share)
        if self.survey_share + self.size_share >= 1:
            raise InvalidParameter("the shares leave nothing for training; let them add up to less than 1")
        if self.updates < 0:
            raise InvalidParameter(f"updates = {self.updates}: give a number of steps, or 0 for gradient sums")
        positive(rounds=self.rounds, batch=self.batch, steps=self.steps, tokens=self.tokens)
        for name in ("learning_rate", "server_rate", "clip", "rate"):
            if not 0 < getattr(self, name) <= (1 if name == "rate" else math.inf):
                raise InvalidParameter(f"{name} = {getattr(self, name)} is out of range; give a positive number")

    def train(self, federation: Federation, network: Network, encoders: Sequence[Encoder], total: float) -> Weights:
        """Spend what the survey leaves of the budget on training a network, and return its weights.

        ``total`` is the released number of records.
        """
        task = Task(network, tuple(encoders), total)
        weights = network.initial(task.layout, federation.rng)
        left = 1 - self.survey_share
        if self.local or (federation.budget.exact and self.updates):
            sizes = released_sizes(federation, self.size_share)
            return self._averaged(federation, task, weights, left - self.size_share, sizes)
        return self._descended(federation, task, weights, left)

    def _descended(self, federation: Federation, task: Task, weights: Weights, share: float) -> Weights:
        """DP-FedSGD: one clipped and noisy gradient sum a step."""
        adam = Adam(len(weights), self.server_rate)
        for _ in federation.repeat("training", self.steps):
            slope = mean_slope(federation, task, weights, share / self.steps, self.rate, self.clip)
            weights = bounded(adam.step(weights, slope))
        return weights

    def _averaged(self, federation: Federation, task: Task, weights: Weights, share: float, sizes: Sizes) -> Weights:
        """FedAvg: the average of what sites train by themselves, weighted by their numbers of rows."""
        private = not federation.budget.exact
        clip, batch = (float(self.clip), 0) if private else (0.0, self.batch)
        grid = grid_for(clip, len(weights))
        for step in federation.repeat("training", self.rounds):
            query = LocalTraining(
                float(self.rate),
                weights_digest(weights),
                task.network,
                task.encoders,
                clip,
                grid,
                self.updates,
                batch,
                self.learning_rate * cosine(step, self.rounds),
                0.0,
                sizes,
            )
            found = federation.average(query, share / self.rounds, weights)
            heavy = sum(query.weights_of(found.sites))
            weights = bounded(weights + found.tables[0] / max(1, heavy))
        return weights


def cosine(step: int, steps: int) -> float:
    """Return the part of a learning rate at one of so many steps: half a cosine, from 1 down towards 0."""
    return (1 + math.cos(math.pi * step / steps)) / 2


def check_network(network: Network | Generator) -> None:
    """Raise :class:`InvalidParameter` for a network that no site would train, before anything is spent."""
    try:
        msgspec.convert(msgspec.to_builtins(network), type(network))
    except msgspec.ValidationError as error:
        raise InvalidParameter(f"such a network cannot be trained: {error}") from error


class Task(NamedTuple):
    """What is trained: a ``network`` on rows encoded by ``encoders``; ``total`` records at all sites together."""

    network: Network
    encoders: tuple[Encoder, ...]
    total: float

    @property
    def layout(self) -> Layout:
        """What the network knows of the columns."""
        return Layout.of(self.encoders)


def require_training(federation: Federation) -> None:
    """Raise :class:`Unsupported` before anything is spent where networks cannot be trained."""
    NetworkTraining.require()
    if federation.budget.pure:
        raise Unsupported(
            "noise of gradient sums is Gaussian, which a budget with delta = 0 cannot pay; give a positive --delta, or "
            "choose a method that measures tables"
        )
    if federation.neighbours == "replace":
        raise Unsupported(
            "training under public numbers of rows is not supported: no accountant covers sampled rows that are "
            "replaced; run without --public-sizes, or choose a method that measures tables"
        )


def require_size(schema: Schema, network: Network, tokens: int, modes: int = 1) -> None:
    """Raise :class:`InvalidParameter` before anything is spent where a network is too large to be asked for.

    Its size follows from the tokens of all columns, ``tokens`` of a category and ``modes`` of a number at most, which
    are known once the survey is paid for: what counts is the most that they can be.
    """
    numbers = tuple(at for at, column in enumerate(schema.stored) if column.is_number)
    most = tuple(column.missing + (modes if column.is_number else min(tokens, column.size)) for column in schema.stored)
    shapes = network.shapes(Layout(most, numbers))
    cells, held = size_of(shapes), numbers_of_row(shapes)
    if 8 * cells > LARGEST_MESSAGE - _BESIDE:
        raise InvalidParameter(
            f"the network may have {cells} weights, so that a reply takes {8 * cells / 2**20:.0f} MiB, and "
            f"{LARGEST_MESSAGE / 2**20:.0f} MiB is the most; take narrower layers or fewer tokens of a column"
        )
    if held > _NUMBERS:
        raise _too_wide(held)


def _too_wide(held: int) -> InvalidParameter:
    return InvalidParameter(
        f"the network's layers hold {held} numbers of a row; {_NUMBERS} is the most: take narrower layers, or fewer "
        "tokens of a column"
    )


def mean_slope(federation: Federation, task: Task, weights: Weights, share: float, rate: float, clip: float) -> Floats:
    """Return the mean of the rows' clipped gradients at these weights, from one released sum for ``share``."""
    grid = grid_for(clip, len(weights))
    query = GradientSum(float(rate), weights_digest(weights), task.network, task.encoders, float(clip), grid)
    found = federation.sum(query, share, weights)
    present = task.total * len(found.sites) / len(federation.sites)  # a lost site counts as an average one
    return found.tables[0] / (rate * max(1.0, present))


def grid_for(clip: float, cells: int) -> int:
    """Return the coarsest grid on which rounding adds less than a thousandth to a clip norm."""
    return max(0, math.ceil(GRID + math.log2(math.sqrt(cells) / clip))) if clip else _PLAIN_GRID


def released_sizes(federation: Federation, share: Share) -> Sizes:
    """Return each site's number of rows: the public one, or one released for ``share`` of the budget."""
    if federation.sizes is not None:
        return tuple(sorted(federation.sizes.items()))
    found = federation.each(Size(), share)
    return tuple(sorted((site, max(1, round(float(one.values[0])))) for site, one in found.items()))


def bounded(weights: Floats | Weights) -> Weights:
    """Return weights that sites accept."""
    return np.clip(weights, -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.float32)


def _generator(bits: RandomBits) -> np.random.Generator:
    """Return a generator whose state follows from secret bits: for draws that do not decide which rows take part."""
    return np.random.Generator(np.random.PCG64(int.from_bytes(bits.words(4).tobytes(), "little")))

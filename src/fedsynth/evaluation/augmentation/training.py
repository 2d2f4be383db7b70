"""Federated training of a classifier over simulated sites (FedAvg, FedProx, FedMix), scored after every round.

This is an evaluation, NOT a private release: weights, and FedMix's means of rows, leave the sites without noise. Sites
must not publish any of it. Needs the extra ``deep``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter, SchemaError, Unsupported, from_extra, positive
from fedsynth.evaluation.augmentation.scores import ClassifierScores, TrainingCurve, score
from fedsynth.evaluation.features import labels, public_features
from fedsynth.rows import Table, concatenate

with from_extra("deep", "federated training needs PyTorch"):
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import cross_entropy, one_hot
    from torch.nn.utils import parameters_to_vector

_CHUNK = 1 << 14  # rows scored at a time


# ---------------------------------------------------------------------------------------------------------------------
# Learners


class Learner(Protocol):
    """A classifier to be trained federatedly (as :class:`SaneMLP`): network, optimiser and schedule."""

    @property
    def rounds(self) -> int:
        """Number of federated rounds: in each, every site trains on its own rows, then the models are averaged."""

    def network(self, inputs: int, classes: int) -> nn.Sequential:
        """Return a fresh network from ``inputs`` features to the logits of ``classes`` classes."""

    def optimiser(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a fresh optimiser of ``parameters``; every site starts every round with a new one."""

    def batches(self, rows: int, rng: np.random.Generator) -> Iterator[Tensor]:
        """Yield the row indices of each batch of one round at a site with ``rows`` rows: int64, shape ``(batch,)``.

        ``rng`` draws the order of the rows.
        """


@dataclass(frozen=True)
class PublishedMLP:
    """The classifier of Fed-TDA (arXiv 2211.13116), to compare with the scores in that paper.

    ``widths`` are the sizes of the hidden layers. In each of ``rounds`` rounds, a site makes ``epochs`` passes over its
    rows in batches of ``batch`` rows. Raises :class:`InvalidParameter` unless these three are positive. Under label
    skew its scores vary strongly between rounds: BatchNorm learns each site's own means, and their average fits no
    site. A site with a single row cannot train it.
    """

    widths: tuple[int, ...] = (512, 256, 128, 64)
    dropout: float = 0.5
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    rounds: int = 100
    epochs: int = 3
    batch: int = 64

    def __post_init__(self) -> None:
        """Refuse numbers that train nothing."""
        positive(rounds=self.rounds, epochs=self.epochs, batch=self.batch)

    def network(self, inputs: int, classes: int) -> nn.Sequential:
        """Return a fresh network, initialised as published: linear layers with BatchNorm, ReLU and dropout."""
        layers: list[nn.Module] = []
        for before, after in zip((inputs, *self.widths), self.widths, strict=False):
            layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU(), nn.Dropout(self.dropout)]
        network = nn.Sequential(*layers, nn.Linear((inputs, *self.widths)[-1], classes))
        for layer in network:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, 0.0, 0.01)
                nn.init.zeros_(layer.bias)
            elif isinstance(layer, nn.BatchNorm1d):
                nn.init.normal_(layer.weight, 1.0, 0.02)
        return network

    def optimiser(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a fresh Adam optimiser of ``parameters``, with weight decay added to the gradient (L2 penalty)."""
        return torch.optim.Adam(parameters, lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)

    def batches(self, rows: int, rng: np.random.Generator) -> Iterator[Tensor]:
        """Yield the batches of ``epochs`` epochs over a site's rows: sites with more rows take more steps."""
        for _ in range(self.epochs):
            yield from one_pass(rows, self.batch, rng)


@dataclass(frozen=True)
class SaneMLP:
    """A small multilayer perceptron without batch normalisation, which can be averaged over skewed sites.

    ``widths`` are the sizes of the hidden layers. In each of ``rounds`` rounds, every site takes ``steps`` steps with
    batches of ``batch`` rows, regardless of its number of rows. The default widths and learning rate were tuned on
    held-out rows of sites without skew. Raises :class:`InvalidParameter` unless rounds, steps and batch are positive.
    """

    widths: tuple[int, ...] = (128, 64)
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    rounds: int = 50
    steps: int = 10
    batch: int = 64

    def __post_init__(self) -> None:
        """Refuse numbers that train nothing."""
        positive(rounds=self.rounds, steps=self.steps, batch=self.batch)

    def network(self, inputs: int, classes: int) -> nn.Sequential:
        """Return a fresh network of linear layers with ReLU between them."""
        layers: list[nn.Module] = []
        for before, after in zip((inputs, *self.widths), self.widths, strict=False):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear((inputs, *self.widths)[-1], classes))

    def optimiser(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a fresh AdamW optimiser of ``parameters``: Adam with decoupled weight decay."""
        return torch.optim.AdamW(parameters, lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)

    def batches(self, rows: int, rng: np.random.Generator) -> Iterator[Tensor]:
        """Yield ``steps`` batches of a site's rows, over as many epochs as needed."""
        left = self.steps
        while left:
            for chosen in one_pass(rows, self.batch, rng)[:left]:
                left -= 1
                yield chosen


# ---------------------------------------------------------------------------------------------------------------------
# Algorithms


class Examples(NamedTuple):
    """A site's training rows as tensors: the features ``x`` and the classes ``y``.

    Features are float32, shape ``(rows, features)``; classes are int64 numbers from 0, shape ``(rows,)``. For the means
    of rows that FedMix publishes (:func:`published_means`), ``y`` holds class shares, shape ``(means, classes)``.
    """

    x: Tensor
    y: Tensor


class StepInput(NamedTuple):
    """The input of one training step at a site, from which an :class:`Algorithm` computes the loss.

    ``anchor`` holds the global weights at the start of the round as one vector, shape ``(weights,)``, without
    BatchNorm's running moments. ``mean`` is one of the :func:`published_means`, with a leading axis of length one;
    ``None`` without.
    """

    model: nn.Sequential
    batch: Examples
    anchor: Tensor
    mean: Examples | None


@dataclass(frozen=True)
class Algorithm:
    """A federated algorithm: FedAvg's exchange of weights, with its own loss at the sites.

    ``loss`` maps a :class:`StepInput` to the scalar that the site minimises. ``rows_per_mean`` is the number of rows in
    each mean that sites publish before training (:func:`published_means`); with 0 they publish none.
    """

    name: str
    loss: Callable[[StepInput], Tensor]
    rows_per_mean: int = 0


def fedavg() -> Algorithm:
    """Return federated averaging: sites minimise the plain cross-entropy (McMahan et al., arXiv 1602.05629)."""
    return Algorithm("FedAvg", lambda step: cross_entropy(step.model(step.batch.x), step.batch.y))


def fedprox(mu: float = 0.05) -> Algorithm:
    """Return FedProx, which adds ``mu / 2`` times the squared distance to the global weights (arXiv 1812.06127).

    Raises :class:`InvalidParameter` for a negative ``mu``.
    """
    if not mu >= 0:
        raise InvalidParameter(f"mu must be at least 0, not {mu}")

    def loss(step: StepInput) -> Tensor:
        away = parameters_to_vector(step.model.parameters()) - step.anchor
        return cross_entropy(step.model(step.batch.x), step.batch.y) + mu / 2 * (away**2).sum()

    return Algorithm("FedProx", loss)


def fedmix(share: float = 0.05, rows_per_mean: int = 5) -> Algorithm:
    """Return FedMix: Mixup with other sites' rows to first order in ``share`` (Yoon et al., arXiv 2107.00233).

    ``share`` is the weight of the other sites' rows in the mixture. Every site publishes the means of groups of
    ``rows_per_mean`` of its rows, features and labels, once and WITHOUT privacy; every step uses one of these means,
    which may be the site's own.
    The loss is that of the paper's algorithm 2: (1 - share) l(z, y) + share l(z, mean y) + share (1 - share)
    dl(z, y)/dz mean x at z = (1 - share) x, averaged over the rows (x, y) of the batch, with the cross-entropy l and a
    published mean (mean x, mean y). Raises :class:`InvalidParameter` for a share outside [0, 1) or ``rows_per_mean``
    below 1.
    """
    if not 0 <= share < 1 or rows_per_mean < 1:
        raise InvalidParameter(f"share must lie in [0, 1) and rows_per_mean be positive, not {share}, {rows_per_mean}")

    def loss(step: StepInput) -> Tensor:
        assert step.mean is not None
        z = ((1 - share) * step.batch.x).requires_grad_()
        logits = step.model(z)
        own = (1 - share) * cross_entropy(logits, step.batch.y)
        theirs = share * cross_entropy(logits, step.mean.y.expand(len(z), -1))
        (slope,) = torch.autograd.grad(own, z, create_graph=True)
        return own + theirs + share * (slope * step.mean.x).sum()

    return Algorithm("FedMix", loss, rows_per_mean)


# ---------------------------------------------------------------------------------------------------------------------
# Weights of sites


Weighting = Callable[[Sequence[int]], NDArray[np.float64]]


def by_rows(rows: Sequence[int]) -> NDArray[np.float64]:
    """Return the weight of each site in the average of models, N_k / N, shape ``(sites,)``; synthetic rows count."""
    weights: NDArray[np.float64] = np.asarray(rows, dtype=np.float64) / sum(rows)
    return weights


def uniform_as_in_published_code(rows: Sequence[int]) -> NDArray[np.float64]:
    """Return equal weights of all sites, 1 / K, as Fed-TDA's code has them; its paper says :func:`by_rows`."""
    return np.full(len(rows), 1 / len(rows))


# ---------------------------------------------------------------------------------------------------------------------
# Training


def train(
    sites: Sequence[Table],
    test: Table,
    target: str,
    *,
    algorithm: Algorithm,
    learner: Learner,
    seed: int,
    held: Sequence[Table] = (),
    weighting: Weighting = by_rows,
) -> TrainingCurve:
    """Train one classifier of the column ``target`` federatedly over all sites, and return its scores after each round.

    Not private in any way: weights leave the sites without noise. ``sites`` are each site's training rows, including
    appended synthetic rows; a site without rows takes no part. ``test`` holds the rows to score on, ``held`` the rows
    that each site held out (:func:`~fedsynth.evaluation.augmentation.rows.hold_out`). ``weighting`` gives the weights
    of sites in the average of models (:func:`by_rows`). Classes and features follow from the public schema, so they are
    the same at every site. ``seed`` determines the result.

    Raises :class:`SchemaError` if tables have different schemas or no column ``target``, :class:`Unsupported` if no
    site has rows, a site has too few for the learner, every site has too few for the algorithm, the target is numeric
    or the only column, a table holds only bins of a numeric column, or the rows to score hold a single class, and
    :class:`InvalidParameter` if training diverges.
    """
    if len({table.schema.digest for table in (*sites, *held, test)}) > 1:
        raise SchemaError("the tables are encoded with different schemas; encode all rows with the agreed one")
    rng = np.random.default_rng(seed)
    classes = test.schema.sizes[test.schema.index(target)]
    rows = [_rows(site, target) for site in sites if len(site)]
    if not rows:
        raise Unsupported("no site has rows to train on; pass at least one table with rows")
    scored = [_rows(test, target)]
    if sum(len(one) for one in held):
        scored.append(_rows(concatenate(held), target))
    courses: list[list[ClassifierScores]] = [[] for _ in scored]
    with torch.random.fork_rng(devices=[]):  # initial weights and dropout can only use torch's global generator
        torch.manual_seed(int(rng.integers(2**63)))
        model = learner.network(scored[0].x.shape[1], classes)
        for _ in federated_rounds(model, rows, classes, algorithm, learner, weighting, rng):
            for course, some in zip(courses, scored, strict=True):
                course.append(score(some.y.numpy(), _logits(model, some.x).softmax(dim=1).numpy()))
    return TrainingCurve(*(tuple(course) for course in courses))


def federated_rounds(
    model: nn.Sequential,
    sites: Sequence[Examples],
    classes: int,
    algorithm: Algorithm,
    learner: Learner,
    weighting: Weighting,
    rng: np.random.Generator,
) -> Iterator[None]:
    """Train ``model`` in place over all sites; yields after each round, so that the caller can score the model.

    Dropout draws from torch's global generator: seed it before the call. Raises :class:`Unsupported` for a site with
    one row if the model has BatchNorm, and in FedMix if no site has enough rows for a mean.
    """
    if min(len(site.y) for site in sites) < 2 and any(isinstance(layer, nn.BatchNorm1d) for layer in model):
        raise Unsupported("a site has a single row, but BatchNorm needs a variance; use SaneMLP, or more rows")
    means = published_means(sites, classes, algorithm.rows_per_mean, rng) if algorithm.rows_per_mean else None
    weights = weighting([len(site.y) for site in sites])
    worker = copy.deepcopy(model)
    for _ in range(learner.rounds):
        begun = {name: value.clone() for name, value in model.state_dict().items()}
        ended = []
        for site in sites:
            worker.load_state_dict(begun)
            train_locally(worker, site, means, algorithm, learner, rng)
            ended.append({name: value.clone() for name, value in worker.state_dict().items()})
        model.load_state_dict(average(ended, weights))
        yield


def train_locally(
    model: nn.Sequential,
    site: Examples,
    means: Examples | None,
    algorithm: Algorithm,
    learner: Learner,
    rng: np.random.Generator,
) -> None:
    """Train ``model`` in place on one site's rows for a round, with a fresh optimiser.

    ``means`` are all :func:`published_means`, of which every step draws one in FedMix; ``None`` otherwise.
    """
    anchor = parameters_to_vector(model.parameters()).detach()
    optimiser = learner.optimiser(model.parameters())
    model.train()
    for chosen in learner.batches(len(site.y), rng):
        mean = None
        if means is not None:
            one = int(rng.integers(len(means.y)))
            mean = Examples(means.x[one : one + 1], means.y[one : one + 1])
        optimiser.zero_grad()
        loss = algorithm.loss(StepInput(model, Examples(site.x[chosen], site.y[chosen]), anchor, mean))
        torch.autograd.backward(loss)
        optimiser.step()


def one_pass(rows: int, size: int, rng: np.random.Generator) -> list[Tensor]:
    """Return the row indices of each batch of one epoch over ``rows`` rows, in random order, ``size`` rows to a batch.

    Each batch is an int64 tensor, shape ``(batch,)``. The last batch may be smaller; a single row that is left over
    joins the batch before it, since BatchNorm needs a variance.
    """
    cuts = list(range(size, rows, size))
    if len(cuts) and rows - cuts[-1] == 1:
        cuts.pop()
    return [torch.from_numpy(part) for part in np.split(rng.permutation(rows), cuts)]


def average(states: Sequence[Mapping[str, Tensor]], weights: NDArray[np.float64]) -> dict[str, Tensor]:
    """Return the weighted mean of the sites' models, given and returned as state dictionaries (name to tensor).

    ``weights``, shape ``(sites,)``, sums to 1. BatchNorm's running moments are averaged like weights; sums are in
    float64. Integer entries (BatchNorm's batch counts) are those of the first site.
    """
    found = {}
    for name, first in states[0].items():
        if first.is_floating_point():
            total = sum(weight * state[name].double() for weight, state in zip(weights.tolist(), states, strict=True))
            found[name] = torch.as_tensor(total).to(first.dtype)
        else:
            found[name] = first
    return found


def published_means(sites: Sequence[Examples], classes: int, size: int, rng: np.random.Generator) -> Examples:
    """Return the means of random groups of ``size`` rows at each site, for all sites together: NOT private.

    The result holds one row for each mean: the mean features ``x``, shape ``(means, features)``, and the group's share
    of each of the ``classes`` classes ``y``, shape ``(means, classes)``. Leftover rows of a site are in no mean: a mean
    of fewer rows would reveal more of each. Raises :class:`Unsupported` if no site has ``size`` rows.
    """
    x, y = [], []
    for site in sites:
        groups = len(site.y) // size
        chosen = torch.from_numpy(rng.permutation(len(site.y))[: groups * size])
        x.append(site.x[chosen].reshape(groups, size, site.x.shape[1]).mean(dim=1))
        y.append(one_hot(site.y[chosen], classes).to(site.x.dtype).reshape(groups, size, classes).mean(dim=1))
    if not sum(len(one) for one in y):
        raise Unsupported(f"no site has {size} rows to publish a mean of; lower rows_per_mean")
    return Examples(torch.cat(x), torch.cat(y))


def _rows(table: Table, target: str) -> Examples:
    return Examples(torch.from_numpy(public_features(table, target)), torch.from_numpy(labels(table, target)))


def _logits(model: nn.Sequential, x: Tensor) -> Tensor:
    """Return the logits in float64, so that rows with probabilities near 1 do not tie."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model(x[start : start + _CHUNK]) for start in range(0, len(x), _CHUNK)]).double()

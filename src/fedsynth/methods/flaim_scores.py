"""What a site computes in FLAIM: how badly the model fits its own rows, candidate by candidate.

Source: Maddock, Cormode & Maple, KDD 2024 (arXiv 2310.06447), in records instead of shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter
from fedsynth.federation.task import Taken, choice, finite, marginals
from fedsynth.methods.marginals import fit_noisy
from fedsynth.models.estimate import Measurement
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.schema import Schema
from fedsynth.table import Table

Shares = NDArray[np.float64]


@dataclass(frozen=True)
class Prepared:
    """The public part of a site's scores: the model and its share of each candidate's cells, flat."""

    model: MarkovRandomField
    shares: tuple[Shares, ...]


def prepare_scores(
    schema: Schema,
    *,
    model: Mapping[str, Any],
    candidates: Sequence[Sequence[int]],
    weight: Sequence[float],
    penalty: Sequence[float],
    by_column: Sequence[Shares],
    by_candidate: Sequence[Shares],
    **_: Any,
) -> Prepared:
    """Evaluate the global model on every candidate; refuse what rows could not all be looked up in."""
    field_ = MarkovRandomField.from_arrays(model["meta"], model["arrays"])
    prepared = Prepared(field_, shares_of(field_, candidates))
    cells = [math.prod(schema.shape(candidate)) for candidate in candidates]
    finite(weight, (len(candidates),), "weights of candidates")
    finite(penalty, (len(candidates),), "penalties of candidates")
    sizes = (("the model's", prepared.shares, cells), ("all sites'", by_candidate, cells if by_candidate else []))
    for whose, shares, each in (*sizes, ("all sites'", by_column, schema.sizes if by_column else [])):
        if len(shares) != len(each):
            raise InvalidParameter(f"{whose} shares are given for {len(shares)} tables of {len(each)}")
        for share, size in zip(shares, each, strict=True):
            finite(share, (size,), f"{whose} shares")
    return prepared


def _scores_sensitivity(
    schema: Schema,
    *,
    weight: Sequence[float],
    by_column: Sequence[Shares],
    by_candidate: Sequence[Shares],
    **_: Any,
) -> float:
    """One record moves each L1 norm, and each mean of norms, by at most 1; a score is a sum of one to three of them."""
    return (1 + (len(by_column) > 0) + (len(by_candidate) > 0)) * max(abs(w) for w in weight)


def _look_params(index: int, params: dict[str, Any]) -> dict[str, Any]:
    return {"cliques": [params["candidates"][index]]}


@choice(sensitivity=_scores_sensitivity, prepare=prepare_scores, look=marginals, look_params=_look_params)
def flaim_scores(
    table: Table,
    prepared: Prepared,
    taken: Taken,
    *,
    model: Mapping[str, Any],
    candidates: Sequence[Sequence[int]],
    weight: Sequence[float],
    penalty: Sequence[float],
    by_column: Sequence[Shares],
    by_candidate: Sequence[Shares],
    steering: Mapping[str, Any],
    scale: float,
) -> NDArray[np.float64]:
    """Score of each candidate at this site: how wrong the model is here, beyond noise and the site's own heterogeneity.

    u(q) = w_q ( || M_q(D_k) - n_k p_q ||_1 - penalty_q - tau_k(q) ), in records. ``scale`` is n_k, public and
    fixed whatever the rows, so that one record moves each norm by at most 1. tau is the site's distance from
    all sites: from estimates ``by_column`` the mean over the candidate's columns, or from tables
    ``by_candidate`` itself; without either, zero. See arXiv 2310.06447, section 4; sensitivity max w, doubled
    by a tau.
    """
    finite(scale, (), "the number of records")
    shares = prepared.shares
    if taken:
        shares = shares_of(_steered(prepared.model, taken, candidates, steering, scale), candidates)
    wrong = np.array([l1_from(table, q, share, scale) for q, share in zip(candidates, shares, strict=True)])
    apart = np.zeros(len(candidates))
    if by_candidate:
        apart += [l1_from(table, q, share, scale) for q, share in zip(candidates, by_candidate, strict=True)]
    if by_column:
        columns = [l1_from(table, (j,), share, scale) for j, share in enumerate(by_column)]
        apart += [np.mean([columns[j] for j in q]) for q in candidates]
    scores: NDArray[np.float64] = np.array(weight) * (wrong - np.array(penalty) - apart)
    return scores


def l1_from(table: Table, clique: Sequence[int], shares: Shares, scale: float) -> float:
    """Return || M_clique(table) - scale * shares ||_1, visiting only cells that occur; flat ``shares`` sum to 1."""
    cells, counts = np.unique(table.flat_codes(clique), return_counts=True)
    expected = scale * shares[cells]
    return float(scale * shares.sum() - expected.sum() + np.abs(counts - expected).sum())


def shares_of(model: MarkovRandomField, candidates: Sequence[Sequence[int]]) -> tuple[Shares, ...]:
    """Return the model's share of each candidate's cells, flat."""
    answers = model.marginals([tuple(q) for q in candidates])
    return tuple(answers[tuple(q)].ravel() / model.total for q in candidates)


def _steered(
    model: MarkovRandomField,
    taken: Taken,
    candidates: Sequence[Sequence[int]],
    steering: Mapping[str, Any],
    scale: float,
) -> MarkovRandomField:
    """Return the model refitted, at this site, to the global measurements and to its own noisy looks."""
    measured = [
        Measurement(tuple(q), values, std)
        for q, values, std in zip(steering["cliques"], steering["values"], steering["stds"], strict=True)
    ]
    rescale = model.total / scale
    for index, noisy in taken:
        q = tuple(candidates[index])
        shape = [model.sizes[j] for j in q]
        measured.append(
            Measurement(q, np.asarray(noisy * rescale, np.float64).reshape(shape), steering["look_std"] * rescale)
        )
    return fit_noisy(model.sizes, measured, model.total, steering["iterations"], model, one_cohort=False)

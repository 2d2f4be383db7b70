"""The rows that each site trains a classifier on: its own less some held out, and synthetic ones below them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsynth.errors import InvalidParameter, SchemaError, Unsupported
from fedsynth.evaluation.features import labels
from fedsynth.rows import Table, concatenate


def hold_out(sites: Sequence[Table], share: float, rng: np.random.Generator) -> tuple[list[Table], list[Table]]:
    """Return what each site trains on, and the random ``share`` of its rows that it keeps to choose a round by.

    Fit the synthesizer on the first alone: rows held out must not come back as synthetic ones.
    """
    if not 0 < share < 1:
        raise InvalidParameter(f"share must lie between 0 and 1, not {share}")
    kept, held = [], []
    for site in sites:
        order = rng.permutation(len(site))
        many = round(share * len(site))
        kept.append(site.take(order[many:]))
        held.append(site.take(order[:many]))
    return kept, held


def append_rows(sites: Sequence[Table], synthetic: Table) -> list[Table]:
    """Return each site's rows with all synthetic rows below them, as in Fed-TDA (arXiv 2211.13116).

    The paper does not say how many; its code draws twice as many as all sites' rows together.
    """
    _same_schema(sites, synthetic)
    return [concatenate([site, synthetic]) for site in sites]


def append_sufficient_classes(sites: Sequence[Table], synthetic: Table, target: str) -> list[Table]:
    """Return each site's rows with the synthetic rows of some classes, by the rule of Fed-TDA's published notebook.

    A site gets all synthetic rows of each class that has at least as many of them as the site lacks: rows of that class
    at all sites, less its own. The rule reads exact counts of classes over all sites, which a federation would have to
    pay for.
    """
    _same_schema(sites, synthetic)
    at = synthetic.schema.index(target)
    classes = synthetic.schema.sizes[at]
    held = np.stack([np.bincount(labels(site, target), minlength=classes) for site in sites])
    drawn = labels(synthetic, target)
    enough = np.bincount(drawn, minlength=classes) >= held.sum(axis=0) - held
    return [concatenate([site, synthetic.take(fits[drawn])]) for site, fits in zip(sites, enough, strict=True)]


def _same_schema(sites: Sequence[Table], synthetic: Table) -> None:
    for site in sites:
        if site.schema.digest != synthetic.schema.digest:
            raise SchemaError("the synthetic rows have another schema than a site; encode them with the site's")
        if lacking := [site.schema.names[at] for at in site.numbers if at not in synthetic.numbers]:
            raise Unsupported(
                f"the synthetic rows hold only codes of {lacking}; pass schema.encode(synthesizer.sample(rows, rng))"
            )

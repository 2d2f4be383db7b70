"""Training rows of each site's classifier: its own rows, less a hold-out, plus synthetic rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsynth.errors import InvalidParameter, SchemaError, Unsupported
from fedsynth.evaluation.features import labels
from fedsynth.rows import Table, concatenate


def hold_out(sites: Sequence[Table], share: float, rng: np.random.Generator) -> tuple[list[Table], list[Table]]:
    """Split each site's rows at random into training rows and rows held out to select a training round.

    ``share`` is the fraction held out, in whole rows. Fit the synthesizer on the training rows only, so that no
    held-out row influences the synthetic rows. Raises :class:`InvalidParameter` for a share outside (0, 1).
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
    """Return one table per site, its rows followed by all synthetic rows, as in Fed-TDA (arXiv 2211.13116).

    The paper does not give the number of synthetic rows; its code draws twice as many as all sites' rows together.
    Raises :class:`SchemaError` if a site's schema is not that of the synthetic rows, and :class:`Unsupported` if, for a
    numeric column, a site's table holds numbers and the synthetic table holds only bins.
    """
    _same_schema(sites, synthetic)
    return [concatenate([site, synthetic]) for site in sites]


def append_sufficient_classes(sites: Sequence[Table], synthetic: Table, target: str) -> list[Table]:
    """Return each site's rows plus the synthetic rows of some classes, by the rule of Fed-TDA's published notebook.

    A site gets all synthetic rows of a class if they are at least as many as the real rows of that class at all other
    sites together; else none of it. The rule reads exact class counts of all sites. Raises the errors of
    :func:`append_rows`, and :class:`Unsupported` for a numeric target.
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
            raise SchemaError("the synthetic rows and a site have different schemas; encode both with the same")
        if lacking := [site.schema.names[at] for at in site.numbers if at not in synthetic.numbers]:
            raise Unsupported(
                f"the synthetic rows have no numbers for {lacking}; encode the rows of synthesizer.sample"
            )

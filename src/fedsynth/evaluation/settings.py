"""The settings of an evaluation, declared once: for the command line and for Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict

from msgspec import Meta
from msgspec.structs import force_setattr

from fedsynth.privacy.cost import ONE_ROW, Budget, Neighbours, Unit
from fedsynth.settings import Settings

_LARGEST_SEED = 2**31 - 1  # scikit-learn's learners refuse seeds beyond 32 bits


class EvaluationSettings(Settings, frozen=True, kw_only=True):
    """What an evaluation measures, and how; a single name may be given in place of several.

    Raises :class:`~fedsynth.errors.InvalidParameter` for settings out of bounds.
    """

    metrics: Sequence[str] | None = None
    """Names of metrics, which are all measured. Default: those of a first report or, with full, everything that the
    tables allow."""
    target: str = ""
    """Column that classifiers (or regressors) learn to predict from the synthetic rows, for scores of their
    usefulness. Without it, no such scores."""
    sensitive: str = ""
    """Column whose value an attacker tries to infer from the synthetic rows, for the attribute-disclosure score.
    Default: --target, else the last categorical column."""
    known: Sequence[str] = ()
    """Columns that the attacker of --sensitive knows about a person, separated by commas; default: the first four
    columns that are neither the sensitive one nor the target."""
    person: str = ""
    """Column of the real and the hold-out rows that tells which person a row is about; it need not be in the schema.
    Attacks are then on persons, and no person's rows are on both sides of a comparison. Default: each row counts as
    a person's only one."""
    full: bool = False
    """Measure everything: attacks on privacy, detection by classifiers, further distances and learners. Without it, a
    first report: what is lost of columns and associations, exact matches, and one learner."""
    suites: Sequence[str] = ()
    """Sets of classifiers (or regressors) that learn --target, separated by commas: default, boosting, or those of a
    publication: flaim, thesis, fedtabdiff, heterofedsyn. docs/evaluation.md lists them. Default: boosting, which is
    one learner, trained once; with --full, default."""
    guarantee: Budget | None = None
    """The (epsilon, delta) that the table was made under, with which attacks are compared. Default: none."""
    unit: Unit = ONE_ROW
    """The unit of protection of that guarantee."""
    neighbours: Neighbours = "add-remove"
    """Whether that guarantee holds for adding or removing the unit, or for replacing it by another."""
    repeats: Annotated[int, Meta(ge=1)] = 5
    """Number of random comparisons of which a fidelity score is the mean; a utility score is that of at most three
    draws of training rows."""
    max_rows: Annotated[int, Meta(ge=100)] = 20_000
    """Largest number of rows of each table that a fidelity or utility score uses; more rows take longer and give more
    exact scores."""
    seed: Annotated[int, Meta(ge=0, le=_LARGEST_SEED)] = 0
    """Whole number that fixes the random samples and splits from which scores are computed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("metrics", "known", "suites"):
            if (names := getattr(self, name)) is not None:
                force_setattr(self, name, (names,) if isinstance(names, str) else tuple(names))

    @property
    def first(self) -> bool:
        """Whether a first report is measured."""
        return self.metrics is None and not self.full


FIRST_REPORT = EvaluationSettings()


class EvaluationOptions(TypedDict, total=False):
    """:class:`EvaluationSettings` as keyword arguments of a function.

    It repeats their types because type checkers take those of keyword arguments from nothing else (PEP 692); a test
    compares the two.
    """

    metrics: Sequence[str] | None
    target: str
    sensitive: str
    known: Sequence[str]
    person: str
    full: bool
    suites: Sequence[str]
    guarantee: Budget | None
    unit: Unit
    neighbours: Neighbours
    repeats: int
    max_rows: int
    seed: int

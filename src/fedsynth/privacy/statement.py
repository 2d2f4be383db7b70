"""The statement of a run's privacy guarantee, as data from which all texts about it are generated.

The (epsilon, delta) of a statement is fixed before the run starts: its limit, or a smaller epsilon by exact accounting
of the plan that the sites approved. The cost that was actually spent depends on the course of the run; it is reported
as a fact next to the guarantee and is not a guarantee itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import msgspec

from fedsynth.errors import InvalidParameter
from fedsynth.privacy.cost import ONE_ROW, Budget, Cost, Unit, epsilon_of, group_epsilon, to_json
from fedsynth.schema import Schema
from fedsynth.terms import Terms

Basis = Literal["proved", "computational", "tested", "assumed"]
"""What a guarantee rests on, from the strongest to the weakest.

"proved": a proof alone. "computational": a proof that presumes unbroken cryptography. "tested": a proof of which one
premise is tested, not proved. "assumed": a premise that is not checked, or does not hold against everyone.
"""
_STRENGTH: tuple[Basis, ...] = get_args(Basis)

LARGEST_USUAL_EPSILON = 20.0
_Printable = Annotated[str, msgspec.Meta(max_length=2000, pattern="^[ -~]*\\Z")]

_AGAINST: dict[str, tuple[str, Basis]] = {
    "trusted": ("everyone but the server, which sees the exact counts of every site", "proved"),
    "local": ("the server and all other sites together", "proved"),
    "secure": ("the server together with all sites but those assumed to be honest", "computational"),
    "three-servers": ("the coordinator together with one of three servers and all other sites", "computational"),
}
_RESTS_ON: dict[Basis, str] = {
    "proved": "proved",
    "computational": "proved for adversaries who cannot break the cryptography",
    "tested": "that a row's gradient does not depend on other rows is tested, not proved",
    "assumed": "assumed, not proved",
}


_FACTS = (
    *("private", "publishable", "headline", "sentence", "conditions", "spent", "exact_releases", "adversary", "basis"),
    *("assumption", "seeded", "looks_at_other_rows", "exact", "sampled", "rfc4180", "typed_elsewhere"),
)
"""The fields of a statement that are written to files, beside its terms."""


class SavedStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A :class:`Statement` in a file, beside the schema of its terms; an epsilon of ``None`` is no limit."""

    epsilon: float | None
    delta: float
    trust: _Printable
    trust_options: dict[str, int | float]
    unit: Unit
    public_sizes: bool
    spent: Cost
    exact_releases: int
    assumption: _Printable
    seeded: bool
    looks_at_other_rows: bool
    exact: float | None
    sampled: bool
    rfc4180: bool
    typed_elsewhere: bool

    def statement(self, schema: Schema) -> Statement:
        """Return the statement under a schema; raises :class:`InvalidParameter` for one that contradicts itself."""
        budget = Budget.none() if self.epsilon is None else Budget(self.epsilon, self.delta)
        facts = {name: getattr(self, name) for name in _SAVED}
        terms = Terms(schema, budget, self.trust, self.trust_options, self.unit, self.public_sizes)
        return Statement(terms, **facts)


_SAVED = (
    *("spent", "exact_releases", "assumption", "seeded", "looks_at_other_rows", "exact", "sampled", "rfc4180"),
    "typed_elsewhere",
)


@dataclass(frozen=True)
class Statement:
    """The privacy guarantee of a run's releases with its conditions, from which all texts about it are made.

    Parameters
    ----------
    terms
        What was agreed (:class:`~fedsynth.terms.Terms`): the limit on all releases together, who is protected, and the
        trust model, which determines the adversary.
    spent
        An upper bound on what the releases cost one person.
    exact_releases
        Number of releases without noise; if it is not 0, nothing is guaranteed.
    assumption
        The trust model's assumption about its parties, as a clause ("at least 3 of the 5 sites are honest"), or empty.
    seeded
        Whether the noise can be reproduced from a seed.
    looks_at_other_rows
        Whether a published split of the rows over simulated sites depends on more than each row itself
        (:mod:`fedsynth.data.placement`), so that one more row moves others.
    exact
        A smaller epsilon than the limit's, at the same delta, from exact accounting of the plan (the questions that the
        run may ask, with their costs) that the sites approved
        (:attr:`~fedsynth.federation.agreement.Agreement.guarantee`); ``None`` if only the limit is known.
    sampled
        Whether noise was sized for random samples of rows, which sites draw in secret.
    rfc4180
        Whether rows may come from a CSV file that was declared ``rfc4180`` and is read only if it is valid as a whole.
        That is so for all sites of a deployment, since their files are not known to the server.
    typed_elsewhere
        Whether rows came as data frames with columns that are no text: whatever chose their types, such as
        ``pandas.read_csv``, may have looked at all rows.

    Raises
    ------
    InvalidParameter
        If ``spent`` exceeds the limit of a private run, or ``exact`` is not positive, is above the limit's epsilon, or
        is given for delta = 0.
    """

    terms: Terms
    spent: Cost
    exact_releases: int
    assumption: str = ""
    seeded: bool = False
    looks_at_other_rows: bool = False
    exact: float | None = None
    sampled: bool = False
    rfc4180: bool = False
    typed_elsewhere: bool = False

    def __post_init__(self) -> None:
        if self.exact is not None and not (0 < self.exact <= self.limit.epsilon and self.limit.delta):
            raise InvalidParameter(
                f"exact epsilon = {self.exact} must be positive and at most the limit's, and the limit {self.limit} "
                "needs a delta above 0"
            )
        if self.private and not self.limit.covers(self.spent):
            raise InvalidParameter(
                f"the releases cost {self.limit.share_of(self.spent):.4%} of the stated limit; state the limit that "
                "was set for the run"
            )

    @property
    def limit(self) -> Budget:
        """The (epsilon, delta) limit on all releases of the run together."""
        return self.terms.budget

    @property
    def private(self) -> bool:
        """Whether anything is guaranteed: the limit is finite and every release had noise."""
        return not self.limit.exact and self.exact_releases == 0

    @property
    def publishable(self) -> bool:
        """Whether there is a guarantee that covers everything that a published run shows.

        It does not if a seed reproduces the noise, if the schema was drafted from the rows, or if the published split
        of the rows depends on more than each row itself.
        """
        return self.private and not self._gaps

    @property
    def _gaps(self) -> list[str]:
        """What the guarantee does not cover, each as the end of a headline."""
        gaps = {
            "with noise from a seed": self.seeded,
            "with a schema drafted from the rows": self.terms.schema.drafted,
            "with a split over sites that looks at other rows": self.looks_at_other_rows,
        }
        return [gap for gap, there in gaps.items() if there]

    @property
    def adversary(self) -> str:
        """The parties that learn no more than the guarantee allows, even if they collude, as a clause."""
        return self._against[0]

    @property
    def basis(self) -> Basis:
        """What the guarantee rests on (:data:`Basis`); its weakest part decides.

        For noise on sampled rows (training), the independence of one row's gradient from other rows is tested, not
        proved.
        """
        return max(self._rests_on, key=_STRENGTH.index)

    @property
    def _rests_on(self) -> list[Basis]:
        parts = [self._against[1]]
        if self.sampled:
            parts.append("tested")
        if self._gaps:
            parts.append("assumed")
        return [part for part in parts if part != "proved"] or ["proved"]

    @property
    def headline(self) -> str:
        """The statement in a few words, such as "(1, 1e-06)-differentially private" or "NOT PRIVATE"."""
        if not self.private:
            return "NOT PRIVATE"
        return f"NOT FOR PUBLICATION: {self._private}, but {self._gaps[0]}" if self._gaps else self._private

    @property
    def text(self) -> str:
        """The full statement: one sentence that can stand alone, then its conditions."""
        return " ".join([self.sentence, *self.conditions])

    @property
    def sentence(self) -> str:
        """The guarantee in one sentence: what is guaranteed, for whom, and against whom."""
        if self.exact_releases:
            count = "1 release has" if self.exact_releases == 1 else f"{self.exact_releases} releases have"
            return f"NOT PRIVATE: {count} no noise, so nothing is guaranteed about the rows."
        if not self.private:
            return "NOT PRIVATE: the run had no privacy limit, so nothing is guaranteed about the rows."
        prefix = "" if self.publishable else "NOT FOR PUBLICATION: "
        return (
            f"{prefix}The synthetic data are {self._private} for {self._who} ({self._change}), "
            f"against {self.adversary} ({'; '.join(_RESTS_ON[part] for part in self._rests_on)})."
        )

    @property
    def conditions(self) -> tuple[str, ...]:
        """The assumptions and gaps of the guarantee, in one or two sentences each; empty without a guarantee."""
        if not self.private:
            return ()
        found = []
        if self.seeded:
            found.append(
                "The noise comes from a seed: a reader who knows the seed can remove it. Use such runs as simulations "
                "only."
            )
        if self.terms.schema.drafted:
            found.append(
                "Categories and bounds in the schema were drafted from the rows and are not covered: review the schema "
                "and delete `draft = true` once everything in it is public."
            )
        if self.looks_at_other_rows:
            found.append(
                "The split of the rows over the sites looks at all rows, so that one row more moves others: the "
                "guarantee does not hold for readers who know how the rows were split, as run.toml says. Split them "
                "row by row (iid, quantity:A, label-skew:A, column:NAME or values:NAME, without public sizes), or by "
                "iid or quantity:A with public sizes."
            )
        name = "epsilon" if self.limit.pure else "(epsilon, delta)"
        limit = self._pair_of(self.limit.epsilon)
        found.append(f"The limit set for the run is {name} = {limit}; its releases cost {self._spent}.")
        if self.exact is not None:
            found.append(
                f"That is by {'Renyi divergences' if self.sampled else 'zCDP'}, in which the sites charge it; the "
                "smaller epsilon is by exact accounting of Gaussian noise, the only kind in the plan that the sites "
                "approved."
            )
        if self.sampled:
            found.append(
                "Some noise is sized for random samples of rows: nobody outside a site may know which rows were drawn. "
                "Sites draw them anew for every step from a secret that never leaves the site."
            )
        if self.rfc4180:
            found.append(
                "If a site declared its CSV file rfc4180, whether that file is valid as a whole is not protected."
            )
        if self.typed_elsewhere:
            found.append(
                "Rows came as data frames with columns that are no text: what is protected is a row of these frames. "
                "If their types were guessed from all rows, as pandas.read_csv does, one record of a file can change "
                "how others were read: pass the path of the file, or read it with fedsynth.read_table."
            )
        if self.assumption:
            found.append(f"Assumption: {self.assumption.rstrip('.')}.")
        rows, sites = (
            self.terms.unit.rows,
            "one site" if self.terms.unit.sites == 1 else f"{self.terms.unit.sites} sites",
        )
        known = {k * rows: self.for_rows(k * rows) for k in (3, 10)}
        weaker = " and ".join(f"epsilon = {value:.4g} for {k} rows" for k, value in known.items() if value < math.inf)
        less = f" ({weaker} at a site)" if weaker else ""
        found.append(
            f"A person is protected less if more rows of that person are used{less}, or rows at more than {sites}."
        )
        if self.terms.public_sizes:
            found.append("The number of rows at each site is public, and how many rows a person has is not protected.")
        found += [
            "Costs add up: all runs on these rows, and on earlier or later versions of them, together cost up to "
            "the limit that each site has set for itself, for the unit that its policy protects.",
            "Choosing a run, a method or a setting by scores computed on real rows is not covered.",
        ]
        return tuple(found)

    @property
    def epsilon(self) -> float:
        """The guaranteed epsilon, at the limit's delta: :attr:`exact` if it is given, otherwise the limit's."""
        return self.limit.epsilon if self.exact is None else self.exact

    def for_rows(self, rows: int) -> float:
        """Return the epsilon, at the same delta, for a person with ``rows`` rows at a site; infinite if there is none.

        Let ``rows`` be at most k times the rows of the unit of protection. They change every answer by up to k times as
        much, at the same noise. This costs k^2 times the rho of zCDP, or k times a pure epsilon (group privacy; Bun &
        Steinke, arXiv 1605.02065). It does not hold for noise on random samples of rows: the result is then
        :func:`~fedsynth.privacy.cost.group_epsilon` of the limit. Raises :class:`InvalidParameter` for less than one
        row.
        """
        if rows < 1:
            raise InvalidParameter(f"a person has at least 1 row, not {rows}")
        times = -(-rows // self.terms.unit.rows)
        if not self.private:
            return math.inf
        if times == 1:
            return self.epsilon
        if self.limit.pure:
            return times * self.limit.epsilon
        if self.sampled:
            return group_epsilon(self.limit, times)
        return epsilon_of(times**2 * self.limit.rho, self.limit.delta)

    def warnings(self, rows: int | None = None) -> tuple[str, ...]:
        """Return sentences that say why the guarantee is weak: delta above 1 / ``rows``, or an unusually large epsilon.

        ``rows`` is the number of rows of the data; ``None``, for example because it must stay secret, skips that check.
        """
        if not self.private:
            return ()
        found = []
        if rows and self.limit.delta > 1 / rows:
            found.append(
                f"delta = {self.limit.delta:.3g} is above 1 / rows = {1 / rows:.3g}: publishing a few rows as they are "
                f"would satisfy it; choose a delta well below {1 / rows:.1g}"
            )
        if self.limit.epsilon > LARGEST_USUAL_EPSILON:
            found.append(
                f"epsilon = {self.limit.epsilon:.4g} is above {LARGEST_USUAL_EPSILON:g}: the guarantee excludes hardly "
                "any attack; usual values are 0.1 to 10"
            )
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Return the statement's data and texts as JSON values by name; infinite numbers are ``None``."""
        terms = self.terms
        agreed = {name: getattr(terms, name) for name in ("unit", "neighbours", "trust", "public_sizes")}
        agreed |= {"limit": terms.budget, "schema_draft": terms.schema.drafted}
        content: dict[str, Any] = to_json({name: getattr(self, name) for name in _FACTS} | agreed)
        return content

    def saved(self) -> SavedStatement:
        """Return the statement without its schema, for a file that has the schema beside it."""
        limit, terms = self.limit, self.terms
        facts = {name: getattr(self, name) for name in _SAVED}
        agreed = {name: getattr(terms, name) for name in ("trust", "unit", "public_sizes")}
        epsilon = None if limit.exact else limit.epsilon
        return SavedStatement(
            epsilon=epsilon, delta=limit.delta, trust_options=dict(terms.trust_options), **agreed, **facts
        )

    def __str__(self) -> str:
        return self.text

    @property
    def _against(self) -> tuple[str, Basis]:
        return _AGAINST.get(self.terms.trust, (f"the adversary that the trust {self.terms.trust!r} names", "assumed"))

    def _pair_of(self, epsilon: float) -> str:
        return f"{epsilon:.4g}" if self.limit.pure else f"({epsilon:.4g}, {self.limit.delta:.3g})"

    @property
    def _private(self) -> str:
        return f"{self._pair_of(self.epsilon)}-differentially private"

    @property
    def _spent(self) -> str:
        at = "" if self.limit.pure else f" at delta = {self.limit.delta:.3g}"
        return f"epsilon = {self.spent.at(self.limit.delta):.4g}{at}"

    @property
    def _who(self) -> str:
        unit = self.terms.unit
        if unit == ONE_ROW:
            return "each row"
        rows = "1 row" if unit.rows == 1 else f"{unit.rows} rows"
        sites = "at one site" if unit.sites == 1 else f"at each of up to {unit.sites} sites"
        return f"each person with up to {rows} {sites}"

    @property
    def _change(self) -> str:
        row = self.terms.unit == ONE_ROW
        if self.terms.public_sizes:
            return "replace one row by another" if row else "replace the person's rows by as many others"
        return "add or remove one row" if row else "add or remove all rows of the person"

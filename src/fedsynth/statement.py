"""The statement of a run's privacy guarantee, as data from which all texts about it are generated.

The (epsilon, delta) of a statement is fixed before the run starts: its limit, or a smaller epsilon by exact accounting
of the plan that the sites approved. The cost that was actually spent depends on the course of the run; it is reported
as a fact next to the guarantee and is not a guarantee itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from html import escape
from typing import Annotated, Any, Literal, Self, get_args

import msgspec

from fedsynth.errors import InvalidParameter
from fedsynth.privacy.cost import (
    ONE_ROW,
    WEAK_DELTA,
    Budget,
    Cost,
    Unit,
    epsilon_of,
    group_epsilon,
    in_full,
    repeated_epsilon,
    rounded_up,
    to_json,
)
from fedsynth.schema import Schema
from fedsynth.terms import Terms
from fedsynth.trusts import TRUSTS

Basis = Literal["proved", "computational", "tested", "assumed"]
"""What a guarantee rests on, from the strongest to the weakest.

"proved": a proof alone. "computational": a proof that presumes unbroken cryptography. "tested": a proof of which one
premise is tested, not proved. "assumed": a premise that is not checked, or does not hold against everyone.
"""
_STRENGTH: tuple[Basis, ...] = get_args(Basis)

LARGEST_USUAL_EPSILON = 20.0
_Printable = Annotated[str, msgspec.Meta(max_length=2000, pattern="^[ -~]*\\Z")]

_RESTS_ON: dict[Basis, str] = {
    "proved": "proved",
    "computational": "proved for adversaries who cannot break the cryptography",
    "tested": "that a row's gradient does not depend on other rows is tested, not proved",
    "assumed": "given what is assumed below",
}
_ASSUMED = "Assumed, not proved: "
Role = Literal["query", "trust", "method", "source"]
_CLAIMS: dict[Role, str] = {
    "query": "the sensitivity of questions of the kind {name!r}, which {place} declares",
    "trust": "that the trust {name!r} adds the noise that it states, as {place} makes it",
    "method": "that {place}, of the method {name}, learns about the rows from the questions alone",
    "source": "that the source {place} reads each record by itself, whatever the others are",
}


class ForeignPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a run on which the guarantee rests and whose class is not built in to fedsynth, so nobody proved it.

    ``role`` says what it is, ``name`` is its name in the run (such as the kind of a question), and ``place`` its class
    as ``package.module:Class``. ``accepted`` says whether somebody accepted this class by name: whoever made the run
    or, in a deployment, every site that answered, in its policy.
    """

    role: Role
    name: _Printable
    place: _Printable
    accepted: bool = False

    @classmethod
    def of(cls, role: Role, name: str, place: str, *, accepted: bool) -> Self:
        """Return the part with these fields, as text that can be printed."""
        return cls(role, _printable(name), _printable(place), accepted)

    @property
    def claim(self) -> str:
        """What has to be assumed of the part, as a clause."""
        return _CLAIMS[self.role].format(name=self.name, place=self.place)


def _printable(text: str) -> str:
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text)[:200]


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
    simulated: bool
    assumption: _Printable
    seeded: bool
    looks_at_other_rows: bool
    exact: float | None
    sampled: bool
    rfc4180: bool
    typed_elsewhere: bool
    foreign: tuple[ForeignPart, ...]
    records: float | None

    def statement(self, schema: Schema) -> Statement:
        """Return the statement under a schema; raises :class:`InvalidParameter` for one that contradicts itself."""
        budget = Budget.none() if self.epsilon is None else Budget(self.epsilon, self.delta)
        facts = {name: getattr(self, name) for name in _facts()}
        terms = Terms(schema, budget, self.trust, self.trust_options, self.unit, self.public_sizes)
        return Statement(terms, **facts)


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
    simulated
        Whether one process had the rows of all sites, whatever the trust: whoever ran it saw them, and no site kept an
        account that limits further runs.
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
    foreign
        The parts on which the guarantee rests and that fedsynth does not prove, since other packages provide them.
    records
        The number of rows as far as it is public: the sum of public sizes, or the estimate from noisy counts that a
        fitted model has; ``None`` without either.

    Raises
    ------
    InvalidParameter
        If ``spent`` exceeds the limit of a private run, if ``exact`` is not positive, is above the limit's epsilon, or
        is given for delta = 0, and for a trust that is neither built in nor a foreign part.
    """

    terms: Terms
    spent: Cost
    exact_releases: int
    simulated: bool = False
    assumption: str = ""
    seeded: bool = False
    looks_at_other_rows: bool = False
    exact: float | None = None
    sampled: bool = False
    rfc4180: bool = False
    typed_elsewhere: bool = False
    foreign: tuple[ForeignPart, ...] = ()
    records: float | None = None

    def __post_init__(self) -> None:
        if self.exact is not None and not (0 < self.exact <= self.limit.epsilon and self.limit.delta):
            raise InvalidParameter(
                f"exact epsilon = {self.exact} must be positive and at most the limit's, and the limit {self.limit} "
                "needs a delta above 0"
            )
        if self.terms.trust not in TRUSTS and not any(part.role == "trust" for part in self.foreign):
            raise InvalidParameter(
                f"the trust {self.terms.trust!r} is not built in to fedsynth; name its class among the foreign parts"
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

        It does not if a seed reproduces the noise, if the schema was drafted from the rows, if the published split of
        the rows depends on more than each row itself, or if it rests on a class of another package that nobody accepted
        by name (:attr:`foreign`).
        """
        return self.private and not self._gaps

    @property
    def _gaps(self) -> list[str]:
        """What the guarantee does not cover, each as the end of a headline."""
        unaccepted = [part.place for part in self.foreign if not part.accepted]
        gaps = {
            "with noise from a seed": self.seeded,
            "with a schema drafted from the rows": self.terms.schema.drafted,
            "with a split over sites that looks at other rows": self.looks_at_other_rows,
            f"with parts that are not fedsynth's ({', '.join(unaccepted)})": bool(unaccepted),
        }
        return [gap for gap, there in gaps.items() if there]

    @property
    def adversary(self) -> str:
        """The parties that learn no more than the guarantee allows, even if they collude, as a clause."""
        return "everybody except whoever ran this, who saw all rows" if self.simulated else self._against[0]

    @property
    def basis(self) -> Basis:
        """What the guarantee rests on (:data:`Basis`); its weakest part decides.

        For noise on sampled rows (training), the independence of one row's gradient from other rows is tested, not
        proved. Nothing of another package is proved.
        """
        return max(self._rests_on, key=_STRENGTH.index)

    @property
    def _rests_on(self) -> list[Basis]:
        parts = [self._against[1]]
        if self.sampled:
            parts.append("tested")
        if self._gaps or self.foreign:
            parts.append("assumed")
        return parts

    @property
    def _rests(self) -> str:
        """What the guarantee rests on, in words; what is assumed is said at its place."""
        parts = [part for part in self._rests_on if part != "assumed"]
        proved = [_RESTS_ON[part] for part in parts if part != "proved"] or [_RESTS_ON["proved"]] * bool(parts)
        assumed = [_RESTS_ON["assumed"]] * ("assumed" in self._rests_on)
        return ", ".join(filter(None, ["; ".join(proved), *assumed]))

    @property
    def headline(self) -> str:
        """The statement in a few words, such as "(1, 1e-06)-differentially private" or "NOT PRIVATE"."""
        if not self.private:
            return "NOT PRIVATE"
        against = " against everybody except whoever ran this" if self.simulated else ""
        said = f"{self._private}{against}"
        return f"NOT FOR PUBLICATION: {said}, but {self._gaps[0]}" if self._gaps else said

    @property
    def text(self) -> str:
        """The full statement: one or two sentences that can stand alone, then their conditions."""
        return " ".join([self.sentence, *self.conditions])

    @property
    def sentence(self) -> str:
        """The guarantee by itself: what is guaranteed, for whom, and against whom; first who saw all rows, if one did.

        What is assumed, not proved, is said in :attr:`conditions`.
        """
        if self.exact_releases:
            count = "1 release has" if self.exact_releases == 1 else f"{self.exact_releases} releases have"
            return f"NOT PRIVATE: {count} no noise, so nothing is guaranteed about the rows."
        if not self.private:
            return "NOT PRIVATE: the run had no privacy limit, so nothing is guaranteed about the rows."
        prefix = "" if self.publishable else "NOT FOR PUBLICATION: "
        rests = self._rests
        if self.simulated:
            return (
                f"{prefix}Whoever ran this saw all rows. Against everybody else, the synthetic data are "
                f"{self._private} for {self._who} ({self._change}; {rests})."
            )
        return (
            f"{prefix}The synthetic data are {self._private} for {self._who} ({self._change}), "
            f"against {self.adversary} ({rests})."
        )

    @property
    def conditions(self) -> tuple[str, ...]:
        """The assumptions and gaps of the guarantee, in one or two sentences each; empty without a guarantee."""
        if not self.private:
            return ()
        found = [f"Weak: {warning}." for warning in self.warnings]
        if self.simulated:
            found.append(self._deployed)
        found += [f"{_ASSUMED}{gap}" for gap in self._assumptions]
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
        found.append(self._more_rows)
        if self.terms.public_sizes:
            found.append("The number of rows at each site is public, and how many rows a person has is not protected.")
        found += [
            self._more_runs,
            "Choosing a run, a method or a setting by scores computed on real rows is not covered.",
        ]
        return tuple(found)

    @property
    def _assumptions(self) -> list[str]:
        """What is assumed and not proved, each as one or two sentences without their beginning."""
        found = []
        if self.seeded:
            found.append(
                "that no reader knows the seed of the noise, who could remove it. Use such runs as simulations only."
            )
        if self.terms.schema.drafted:
            found.append(
                "that the schema holds public facts alone. Its categories and bounds were drafted from the rows and "
                "are not covered: review it and delete `draft = true` once everything in it is public."
            )
        if self.looks_at_other_rows:
            found.append(
                "that no reader knows how the rows were split over the sites, as run.toml says. The split looks at all "
                "rows, so that one row more moves others: split them row by row (iid, quantity:A, label-skew:A, "
                "column:NAME or values:NAME, without public sizes), or by iid or quantity:A with public sizes."
            )
        for part in self.foreign:
            accepted = f"to publish, accept that by name: --unproved {part.place} (unproved=[{part.place!r}] in Python)"
            if part.accepted:
                who = "whoever ran this" if self.simulated or part.role != "query" else "every site that answered"
                accepted = f"{who} accepted the class by name"
            found.append(f"{part.claim}. It is not part of fedsynth; {accepted}.")
        return found

    @property
    def _deployed(self) -> str:
        """Against whom a run over real sites would give the same."""
        against = [
            f"the trust {trust} protects against {TRUSTS[trust].against}"
            for trust in (self.terms.trust, "secure")
            if trust in TRUSTS
        ]
        return f"Deployed at real sites, {', and '.join(dict.fromkeys(against))}."

    @property
    def _more_rows(self) -> str:
        """What a person with more rows or sites than the unit has."""
        rows, sites = self.terms.unit.rows, self.terms.unit.sites
        known = {k * rows: self.for_rows(k * rows) for k in (3, 10)}
        weaker = " and ".join(
            f"epsilon = {rounded_up(value)} for {k} rows" for k, value in known.items() if value < math.inf
        )
        less = f" ({weaker} at a site)" if weaker else ""
        at = "one site" if sites == 1 else f"{sites} sites"
        return f"A person is protected less if more rows of that person are used{less}, or rows at more than {at}."

    @property
    def _more_runs(self) -> str:
        """What further runs on the same rows cost: up to the limits of the sites' accounts, where there are any."""
        if not self.simulated:
            return (
                "Costs add up: all runs on these rows, and on earlier or later versions of them, together cost up to "
                "the limit that each site has set for itself, for the unit that its policy protects."
            )
        costs = [f"{runs} such runs cost epsilon = {rounded_up(self.for_runs(runs))}" for runs in (10, 100)]
        return (
            "Nothing limits further runs on these rows, or on earlier or later versions of them, and costs add up: "
            f"{', '.join(costs)}{self._at_delta}."
        )

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

    def for_runs(self, runs: int) -> float:
        """Return the epsilon, at the same delta, of ``runs`` such runs on the same rows; infinite without a guarantee.

        :func:`~fedsynth.privacy.cost.repeated_epsilon` of the limit. Raises :class:`InvalidParameter` for less than
        one.
        """
        if runs < 1:
            raise InvalidParameter(f"there is at least 1 run, not {runs}")
        return repeated_epsilon(self.limit, runs, sampled=self.sampled) if self.private else math.inf

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that say why the guarantee is weak: a large delta, or an unusually large epsilon.

        Delta is compared with 1 / :attr:`records`, if anything is known of the number of rows: a secret one would be
        released by the comparison.
        """
        if not self.private:
            return ()
        delta, found = self.limit.delta, []
        if delta > WEAK_DELTA:
            found.append(
                f"delta = {in_full(delta)} is above {WEAK_DELTA:g}: to publish that share of the rows as they are "
                "would satisfy the guarantee"
            )
        elif self.records is not None and self.records > 0 and delta > 1 / self.records:
            rows = f"the {self.records:,.0f} rows" if self.terms.public_sizes else f"about {self.records:,.0f} rows"
            found.append(
                f"delta = {in_full(delta)} is above 1 / {self.records:.0f}, one over {rows}: to publish a few rows as "
                "they are would satisfy the guarantee; choose a delta well below that"
            )
        if self.limit.epsilon > LARGEST_USUAL_EPSILON:
            found.append(
                f"epsilon = {rounded_up(self.limit.epsilon)} is above {LARGEST_USUAL_EPSILON:g}: the guarantee "
                "excludes hardly any attack; usual values are 0.1 to 10"
            )
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Return the statement's data and texts as JSON values by name; infinite numbers are ``None``."""
        terms = self.terms
        agreed = {name: getattr(terms, name) for name in ("unit", "neighbours", "trust", "public_sizes")}
        agreed |= {"limit": terms.budget, "schema_draft": terms.schema.drafted}
        texts = ("private", "publishable", "headline", "sentence", "conditions", "adversary", "basis", "warnings")
        content: dict[str, Any] = to_json({name: getattr(self, name) for name in (*texts, *_facts())} | agreed)
        return content

    def saved(self) -> SavedStatement:
        """Return the statement without its schema, for a file that has the schema beside it."""
        limit, terms = self.limit, self.terms
        facts = {name: getattr(self, name) for name in _facts()}
        agreed = {name: getattr(terms, name) for name in ("trust", "unit", "public_sizes")}
        epsilon = None if limit.exact else limit.epsilon
        return SavedStatement(
            epsilon=epsilon, delta=limit.delta, trust_options=dict(terms.trust_options), **agreed, **facts
        )

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        conditions = "".join(f"<li>{escape(condition)}</li>" for condition in self.conditions)
        return f"<p><strong>{escape(self.headline)}</strong></p><p>{escape(self.sentence)}</p><ul>{conditions}</ul>"

    @property
    def _against(self) -> tuple[str, Basis]:
        facts = TRUSTS.get(self.terms.trust)
        if facts is None:
            return f"the adversary that the trust {self.terms.trust!r} names", "assumed"
        return facts.against, facts.basis

    def _pair_of(self, epsilon: float) -> str:
        return rounded_up(epsilon) if self.limit.pure else f"({rounded_up(epsilon)}, {in_full(self.limit.delta)})"

    @property
    def _private(self) -> str:
        return f"{self._pair_of(self.epsilon)}-differentially private"

    @property
    def _at_delta(self) -> str:
        return "" if self.limit.pure else f" at delta = {in_full(self.limit.delta)}"

    @property
    def _spent(self) -> str:
        return f"epsilon = {rounded_up(self.spent.at(self.limit.delta))}{self._at_delta}"

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


def _facts() -> list[str]:
    """Return the names of a statement's fields beside its terms."""
    return [one.name for one in fields(Statement) if one.name != "terms"]
